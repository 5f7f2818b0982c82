//! A backend that is a program: a first process, and further ones for clients that would otherwise share it. A process with
//! sessions is one session, and does not say whose its questions are. Which process serves whom, and what the end of one means,
//! `core::process_pool` decides.

mod start;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_core::backend::DialError;
use bowline_core::process_pool::{DOUBT, PoolClient, ProcessPool, SlotChoice, SlotId};
use bowline_env::clock;
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::call::facts::{self, LOG_LEVELS, ServerFacts, is_log_level};
use crate::call::{BackendCall, CallEnding, Caller, Exchange, SHARED_SESSION};
use crate::fields::{Fields, Raw, empty};
use crate::message;
use crate::upstream::pipe::Pipe;
use crate::upstream::stdio::{self, ProcessClients, Program, ProgramExit, StartError};
use crate::upstream::subscriptions::{RenewableRequest, is_subscription};
use crate::upstream::{Dial, TransportEvent};

const CLOSED: &str = "the connection is closed";
const SET_LEVEL: &str = "logging/setLevel";
/// How often a call is tried whose process is gone before it has the call.
const TRIES: usize = 5;
/// How long how a process ended is waited for. One that only reads no more may never end by itself.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// For so long a call waits for the first process, if that rests before it is started again.
const REST_PATIENCE: Duration = Duration::from_secs(3);

pub struct ProgramTransport {
    program: Program,
    dial: Dial,
    /// What the program said of itself. A process that says something else is another server.
    facts: ServerFacts,
    room: Mutex<PoolState>,
    closed: CancellationToken,
}

struct PoolState {
    pool: ProcessPool,
    processes: HashMap<SlotId, Arc<PooledProcess>>,
    /// A client had to share the first process, whose messages may thus concern more than one client for a while.
    crowded_until: Option<Instant>,
    /// When an operator was last told that clients share a process.
    told: Option<Instant>,
    /// Why the first process does not run.
    why_not: String,
}

/// A process, which may have to be started yet.
struct PooledProcess {
    clients: ProcessClients,
    /// Started once, however many calls want it.
    pipe: OnceCell<Arc<Pipe>>,
    closed: CancellationToken,
}

impl PooledProcess {
    fn new(clients: ProcessClients, closed: CancellationToken) -> Arc<PooledProcess> {
        Arc::new(PooledProcess { clients, pipe: OnceCell::new(), closed })
    }

    /// Its pipe, if it runs.
    fn running(&self) -> Option<Arc<Pipe>> {
        self.pipe.get().filter(|pipe| !pipe.is_lost()).cloned()
    }

    fn is_first(&self) -> bool {
        matches!(self.clients, ProcessClients::AllClients)
    }

    /// Whose alone it is.
    fn client(&self) -> Option<&Arc<str>> {
        self.clients.client().map(|client| &client.session_name)
    }
}

/// Why a call has no process.
enum NoPipe {
    /// It was taken away before it was begun, or could not be started. Another one may be had.
    Gone,
    /// The first process ended too often and is not started again before this time has passed.
    Rests(Duration),
}

pub async fn dial(program: Program, dial: Dial) -> Result<Arc<ProgramTransport>, DialError> {
    let closed = dial.over.child_token();
    let guard = closed.clone().drop_guard();
    let process = PooledProcess::new(ProcessClients::AllClients, closed.child_token());
    let (pipe, end) =
        match stdio::start(&program, &dial, &process.clients, dial.exchange, process.closed.child_token()).await {
            Ok(started) => started,
            Err(error) => {
                if let StartError::Ended(ProgramExit { how, exit }) = &error {
                    let lost = TransportEvent::Lost { reason: how.clone(), exit: *exit };
                    let _ = dial.events.send((dial.generation, lost)).await;
                }
                return Err(error.into_dial_error());
            }
        };
    pipe.renew(renewed_at_first(&dial, pipe.facts())).await;
    tokio::spawn(pipe.clone().hold_subscription());
    guard.disarm();
    let facts = pipe.facts().clone();
    let pool = ProcessPool::new(dial.processes, clock::now());
    let first = pool.first();
    let _ = process.pipe.set(pipe);
    let processes = HashMap::from([(first, process)]);
    let room = Mutex::new(PoolState { pool, processes, crowded_until: None, told: None, why_not: String::new() });
    let transport = Arc::new(ProgramTransport { program, dial, facts, room, closed });
    transport.watch(first, end);
    Ok(transport)
}

/// What is said again to a first process: what those have subscribed to who have no other, and how much they want to be told
/// where each of them cannot say that to a process of its own.
fn renewed_at_first(dial: &Dial, facts: &ServerFacts) -> Vec<RenewableRequest> {
    let apart = facts.exchange == Exchange::Session && dial.processes.max > 1;
    dial.renewals.of_sharers(dial.generation).into_iter().filter(|one| !apart || is_subscription(one)).collect()
}

impl ProgramTransport {
    pub fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    pub async fn call(self: &Arc<Self>, call: &BackendCall) -> CallEnding {
        let Some(client) = self.client(call) else { return Box::pin(self.call_in_passing(call)).await };
        let mut why = String::new();
        for _ in 0..TRIES {
            // Its session is over, so a process that is started for it would have no client.
            if call.caller.inbox.as_ref().is_some_and(|inbox| inbox.is_closed()) {
                return CallEnding::failed("the client has left");
            }
            let mut visit = self.take_slot(&client, &call.caller);
            let begun = match self.at_hand(&visit) {
                Some(pipe) => Ok(pipe),
                None => self.begin(&visit, &call.caller).await,
            };
            let ending = match begun {
                Ok(pipe) => pipe.call(call).await,
                Err(NoPipe::Gone) if self.closed.is_cancelled() => CallEnding::NotExecuted(CLOSED.into()),
                Err(NoPipe::Gone) => {
                    visit.over = true;
                    continue;
                }
                Err(NoPipe::Rests(wait)) => self.rests(wait),
            };
            visit.over = true;
            match ending {
                // Only this process is gone. Nothing was sent, so the next one may carry it.
                CallEnding::NotExecuted(reason) if !self.closed.is_cancelled() => {
                    self.replaced(&visit.process, visit.taken.id()).await;
                    why = reason;
                }
                ending => return ending,
            }
        }
        CallEnding::failed(&format!("the program ends again and again: {why}"))
    }

    /// A process did not take a call, so it is let go. How it ended is known in a moment if it has, and is told of the first.
    async fn replaced(self: &Arc<Self>, process: &PooledProcess, slot: SlotId) {
        if process.is_first() {
            let _ = tokio::time::timeout(END_PATIENCE, process.closed.cancelled()).await;
        }
        self.ended(slot, None);
    }

    fn rests(&self, wait: Duration) -> CallEnding {
        let why = format!("the program ends as soon as it is started: {}", self.lock().why_not);
        CallEnding::Refused { why: self.dial.secrets.hide(why), retry_after: Some(wait) }
    }

    /// Who calls, if it matters where: a stateless program says whose everything is, our own housekeeping takes no slot, and clients
    /// without a session need none to look.
    fn client(&self, call: &BackendCall) -> Option<PoolClient> {
        let BackendCall { method, caller, .. } = call;
        if self.facts.exchange == Exchange::Stateless || *caller.session_name == *SHARED_SESSION {
            return None;
        }
        let sessionless = caller.inbox.is_none() || caller.exchange == Exchange::Stateless;
        let looks = method.ends_with("/list") && sessionless;
        if matches!(method.as_str(), "initialize" | "ping" | SET_LEVEL) || looks {
            return None;
        }
        let (name, owner) = (caller.session_name.clone(), caller.owner.clone());
        Some(match &caller.inbox {
            Some(_) => PoolClient::Client { name, owner },
            None if facts::can_answer_anything(&caller.client.capabilities) => PoolClient::Alone { owner },
            None => PoolClient::Mute { owner },
        })
    }

    /// A call that is made wherever its client is, and starts nothing for it.
    async fn call_in_passing(self: &Arc<Self>, call: &BackendCall) -> CallEnding {
        let (own, shares) = {
            let room = self.lock();
            let own = room.pool.kept_by(&call.caller.session_name).filter(|slot| *slot != room.pool.first());
            (
                own.and_then(|slot| Some((slot, room.processes.get(&slot)?.running()?))),
                room.pool.shares(&call.caller.session_name),
            )
        };
        if let Some((slot, pipe)) = own {
            match pipe.call(call).await {
                CallEnding::NotExecuted(_) => self.ended(slot, None),
                ending => return ending,
            }
        }
        let keeps_first = self.lock().keeps_first(&call.caller.session_name);
        let ours = self.facts.exchange == Exchange::Stateless || *call.caller.session_name == *SHARED_SESSION;
        if call.method == SET_LEVEL && !ours && !shares && !keeps_first {
            return self.keep_level(call);
        }
        // It may be another client's process. A call that only reads state must not start a question to that client.
        let mute = (!ours && !shares && !keeps_first).then(|| BackendCall { sink: None, ..call.clone() });
        self.call_first(mute.as_ref().unwrap_or(call)).await
    }

    async fn call_first(self: &Arc<Self>, call: &BackendCall) -> CallEnding {
        for _ in 0..TRIES {
            let Some((slot, process)) = self.lock().first() else { break };
            let begun = match process.running() {
                Some(pipe) => Ok(pipe),
                None => self.begin_first(slot, &process).await,
            };
            match begun {
                Ok(pipe) => match pipe.call(call).await {
                    CallEnding::NotExecuted(_) if !self.closed.is_cancelled() => self.replaced(&process, slot).await,
                    ending => return ending,
                },
                Err(NoPipe::Gone) if self.closed.is_cancelled() => break,
                Err(NoPipe::Gone) => {}
                Err(NoPipe::Rests(wait)) => return self.rests(wait),
            }
        }
        CallEnding::NotExecuted(CLOSED.into())
    }

    /// A level is kept, and said to the client's process once it has one.
    fn keep_level(&self, call: &BackendCall) -> CallEnding {
        let level = Fields::of(call.params.as_deref()).text("level").unwrap_or_default();
        let error = |code, text: &str| CallEnding::answered(Err(message::error(code, text)));
        if !Fields::of(Some(&self.facts.capabilities)).has("logging") {
            return error(message::METHOD_NOT_FOUND, "the server has no log messages");
        }
        if !is_log_level(&level) {
            let levels = LOG_LEVELS.join(", ");
            return error(message::INVALID_PARAMS, &format!("`level` must be one of {levels}"));
        }
        CallEnding::answered(Ok(empty()))
    }

    pub async fn notify(&self, caller: &Caller, method: &str, params: Option<Raw>) {
        let pipe = {
            let room = self.lock();
            let own = room.pool.kept_by(&caller.session_name).and_then(|slot| room.processes.get(&slot)?.running());
            // The first process may be another client's.
            let shares = room.pool.shares(&caller.session_name) || room.pool.keeper(room.pool.first()).is_none();
            let first = || room.first().and_then(|(_, process)| process.running());
            own.or_else(|| if shares || self.facts.exchange == Exchange::Stateless { first() } else { None })
        };
        if let Some(pipe) = pipe {
            pipe.notify(method, params).await;
        }
    }

    /// Whether a client has a process besides the first.
    pub fn has_process(&self, session_name: &str) -> bool {
        let room = self.lock();
        room.pool.kept_by(session_name).is_some_and(|slot| slot != room.pool.first())
    }

    pub async fn end_backend_session(self: &Arc<Self>, session_name: &str) {
        let (over, first) = {
            let mut room = self.lock();
            let first = room.first().and_then(|(_, process)| process.running());
            if room.keeps_first(session_name)
                && let Some(first) = &first
            {
                first.set_tenant(None);
            }
            (room.pool.handle_over(session_name).and_then(|slot| room.processes.remove(&slot)), first)
        };
        if let Some(process) = over {
            self.let_go(&process);
        }
        if let Some(first) = first {
            first.end_unwanted().await;
        }
        self.check_lost();
    }

    pub fn close(&self) {
        self.closed.cancel();
        self.dial.renewals.end_apart(self.dial.generation);
    }

    fn take_slot(self: &Arc<Self>, client: &PoolClient, caller: &Caller) -> ProcessCall {
        let now = clock::now();
        let mut guard = self.lock();
        let room = &mut *guard;
        let is_new = matches!(client, PoolClient::Client { name, .. } if room.pool.kept_by(name).is_none());
        let (taken, evicted) = room.pool.take(client, now);
        let evicted = evicted.and_then(|slot| room.processes.remove(&slot));
        if taken.is_overflow() && self.dial.processes.max > 1 {
            self.note_crowd(room, &caller.owner, now);
        }
        let at_first = taken.id() == room.pool.first();
        let process = room.processes.entry(taken.id()).or_insert_with(|| {
            let clients = match client {
                _ if at_first => ProcessClients::AllClients,
                PoolClient::Client { .. } if !taken.is_overflow() => ProcessClients::Client(caller.clone()),
                PoolClient::Client { .. } | PoolClient::Alone { .. } | PoolClient::Mute { .. } => {
                    ProcessClients::Visitors
                }
            };
            PooledProcess::new(clients, self.closed.child_token())
        });
        let process = process.clone();
        if at_first && taken.is_overflow() {
            room.crowded_until = Some(now + DOUBT);
        }
        room.settle_tenant(taken, caller, now);
        drop(guard);
        if let Some(process) = evicted {
            self.take_back(process);
        }
        ProcessCall { transport: self.clone(), process, taken, is_new, over: false }
    }

    /// A client has to share a process although it should have its own.
    fn note_crowd(&self, room: &mut PoolState, owner: &str, now: Instant) {
        if room.pool.is_at_share(owner) {
            (self.dial.limit_hit)("hub.processes_per_principal_max");
        } else if room.pool.is_full() {
            (self.dial.limit_hit)("hub.processes_per_server_max");
        }
        if room.told.is_none_or(|told| now.saturating_duration_since(told) >= DOUBT) {
            room.told = Some(now);
            let processes = room.pool.count();
            tracing::warn!(server = %self.dial.name, processes, "clients share a process; see hub.processes_per_server_max and hub.processes_per_principal_max");
        }
    }

    /// The process that a client is assigned to, if it runs already and has heard of the client.
    fn at_hand(&self, visit: &ProcessCall) -> Option<Arc<Pipe>> {
        let met = !(visit.is_new && visit.process.is_first());
        visit.process.pipe.get().filter(|_| met && !visit.process.closed.is_cancelled()).cloned()
    }

    /// The same, with whatever has to be done, as long as there is a server at all. Boxed, since it is rare and large.
    fn begin<'a>(
        self: &'a Arc<Self>,
        visit: &'a ProcessCall,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Arc<Pipe>, NoPipe>> {
        Box::pin(async move {
            let (slot, process) = (visit.taken.id(), &visit.process);
            if !process.is_first() {
                return self.once(process, Box::pin(self.start_further(slot, process))).await;
            }
            let pipe = self.begin_first(slot, process).await?;
            self.lock().settle_tenant(visit.taken, caller, clock::now());
            if visit.is_new && !visit.taken.is_overflow() {
                pipe.renew(self.kept_by(caller, |one| !is_subscription(one))).await;
            }
            Ok(pipe)
        })
    }

    fn set_apart(&self, client: &Arc<str>, apart: bool) {
        self.dial.renewals.set_apart(self.dial.generation, client, apart);
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    fn first(&self) -> Option<(SlotId, Arc<PooledProcess>)> {
        let first = self.pool.first();
        Some((first, self.processes.get(&first)?.clone()))
    }

    fn keeps_first(&self, client: &str) -> bool {
        self.pool.kept_by(client) == Some(self.pool.first())
    }

    /// Says to the first process whose it is, as far as a call by this caller changes that.
    fn settle_tenant(&self, taken: SlotChoice, caller: &Caller, now: Instant) {
        let Some((first, pipe)) = self.first().and_then(|(id, process)| Some((id, process.running()?))) else { return };
        if self.crowded_until.is_some_and(|until| until > now) {
            pipe.set_tenant(None);
        } else if taken == SlotChoice::Slot(first) && caller.inbox.is_some() {
            pipe.set_tenant(Some(caller));
        }
    }
}

/// A call at a process, whose caller may walk away.
struct ProcessCall {
    transport: Arc<ProgramTransport>,
    process: Arc<PooledProcess>,
    taken: SlotChoice,
    /// Its client sits there for the first time.
    is_new: bool,
    over: bool,
}

impl Drop for ProcessCall {
    fn drop(&mut self) {
        self.transport.lock().pool.leave(self.taken, !self.over, clock::now());
    }
}

impl fmt::Debug for ProgramTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProgramTransport({} processes)", self.lock().pool.count())
    }
}
