//! A backend that is a program: one process that is always there, and further ones for clients that would otherwise share it. A
//! process with sessions is one session, and does not say whose its questions are.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bowline_core::backend::DialError;
use bowline_core::process_pool::{DOUBT, FIRST, PoolClient, ProcessPool, SlotChoice, SlotId, UNKEPT};
use bowline_env::clock;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::Dial;
use super::pipe::Pipe;
use super::renewals::{RenewableRequest, is_subscription};
use super::stdio::{self, ProcessClients, Program, StartError};
use crate::call::facts::ServerFacts;
use crate::call::log_level::{LOG_LEVELS, is_log_level};
use crate::call::{BackendCall, CallEnding, Caller, Exchange, SHARED_LANE, capabilities};
use crate::fields::{Fields, Raw, empty};
use crate::message;

const SET_LEVEL: &str = "logging/setLevel";
/// How often a call is tried whose process is gone before it has the call.
const TRIES: usize = 5;

pub struct ProgramTransport {
    program: Program,
    dial: Dial,
    /// The process that is always there: it answers for the server, and its end is the loss of the link.
    first: Arc<Pipe>,
    room: Mutex<PoolState>,
    closed: CancellationToken,
}

struct PoolState {
    seats: ProcessPool,
    /// The processes besides the first.
    chairs: HashMap<SlotId, Arc<PooledProcess>>,
    /// A client had to share the first process, whose messages may thus concern more than one client for a while.
    crowded_until: Option<Instant>,
    /// When an operator was last told that clients share a process.
    told: Option<Instant>,
}

/// A process besides the first.
struct PooledProcess {
    client: Option<Arc<str>>,
    /// Started once, however many calls want it.
    pipe: tokio::sync::Mutex<Option<Arc<Pipe>>>,
    closed: CancellationToken,
}

/// Why a client has no process.
enum NoPipe {
    /// It was taken away before it was begun.
    Gone,
    Failed(StartError),
}

pub async fn dial(program: Program, dial: Dial) -> Result<Arc<ProgramTransport>, DialError> {
    let closed = dial.over.child_token();
    let guard = closed.clone().drop_guard();
    let started = stdio::start(&program, &dial, ProcessClients::AllClients, dial.exchange, closed.child_token()).await;
    let (first, _) = started.map_err(StartError::into_dial_error)?;
    let apart = first.facts().exchange == Exchange::Session && dial.processes.max > 1;
    // How much each client wants to be told is said where it is.
    let kept = dial.renewals.all().into_iter().filter(|one| !apart || is_subscription(one));
    first.renew(kept.collect()).await;
    tokio::spawn(first.clone().hold_subscription());
    guard.disarm();
    let seats = ProcessPool::new(dial.processes, clock::now());
    let room = Mutex::new(PoolState { seats, chairs: HashMap::new(), crowded_until: None, told: None });
    Ok(Arc::new(ProgramTransport { program, dial, first, room, closed }))
}

impl ProgramTransport {
    pub fn facts(&self) -> &ServerFacts {
        self.first.facts()
    }

    pub async fn call(self: &Arc<Self>, call: &BackendCall) -> CallEnding {
        let Some(guest) = self.guest(call) else { return self.call_in_passing(call).await };
        let mut why = String::new();
        for _ in 0..TRIES {
            // Its session is over, so a process that is started for it would have no client.
            if call.caller.inbox.as_ref().is_some_and(|inbox| inbox.is_closed()) {
                return CallEnding::failed("the client has left");
            }
            let mut visit = self.sit_down(&guest, &call.caller);
            let begun = match self.at_hand(&visit) {
                Some(pipe) => Ok(pipe),
                None => self.begin(&visit, &call.caller).await,
            };
            let pipe = match begun {
                Ok(pipe) => pipe,
                Err(none) => {
                    visit.over = true;
                    if self.closed.is_cancelled() {
                        return CallEnding::NotExecuted("the connection is closed".into());
                    }
                    if let NoPipe::Failed(error) = none {
                        self.not_started(visit.taken.id(), error);
                    }
                    continue;
                }
            };
            let ending = pipe.call(call).await;
            visit.over = true;
            match ending {
                // Only this client's process is gone. Nothing was sent, so the next one may carry it.
                CallEnding::NotExecuted(reason) if visit.taken.id() != FIRST && !self.closed.is_cancelled() => {
                    self.ended(visit.taken.id());
                    why = reason;
                }
                ending => return ending,
            }
        }
        CallEnding::failed(&format!("the program ends again and again: {why}"))
    }

    /// Who calls, if it matters where: a stateless program says whose everything is, our own housekeeping takes no seat, and clients
    /// without a session need none to look.
    fn guest(&self, call: &BackendCall) -> Option<PoolClient> {
        let BackendCall { method, caller, .. } = call;
        if self.facts().exchange == Exchange::Stateless || *caller.lane == *SHARED_LANE {
            return None;
        }
        let sessionless = caller.inbox.is_none() || caller.exchange == Exchange::Stateless;
        let looks = method.ends_with("/list") && sessionless;
        if matches!(method.as_str(), "initialize" | "ping" | SET_LEVEL) || looks {
            return None;
        }
        let (name, owner) = (caller.lane.clone(), caller.owner.clone());
        Some(match &caller.inbox {
            Some(_) => PoolClient::Client { name, owner },
            None if capabilities::can_answer_anything(&caller.client.capabilities) => PoolClient::Alone { owner },
            None => PoolClient::Mute { owner },
        })
    }

    /// A call that is made wherever its client is, and starts nothing.
    async fn call_in_passing(self: &Arc<Self>, call: &BackendCall) -> CallEnding {
        let (seat, shares) = {
            let seats = &self.lock().seats;
            (seats.kept_by(&call.caller.lane), seats.shares(&call.caller.lane))
        };
        if let Some(pipe) = self.running(seat).await {
            match pipe.call(call).await {
                CallEnding::NotExecuted(_) if seat != Some(FIRST) => seat.map(|seat| self.ended(seat)),
                ending => return ending,
            };
        }
        let ours = self.facts().exchange == Exchange::Stateless || *call.caller.lane == *SHARED_LANE;
        if call.method == SET_LEVEL && !ours && !shares {
            return self.keep_level(call);
        }
        if ours || shares {
            return self.first.call(call).await;
        }
        // It may be another client's process. A call that only reads state must not start a question to that client.
        self.first.call(&BackendCall { sink: None, ..call.clone() }).await
    }

    /// A level is kept, and said to the client's process once it has one.
    fn keep_level(&self, call: &BackendCall) -> CallEnding {
        let level = Fields::of(call.params.as_deref()).text("level").unwrap_or_default();
        let error = |code, text: &str| CallEnding::answered(Err(message::error(code, text)));
        if !Fields::of(Some(&self.facts().capabilities)).has("logging") {
            return error(message::METHOD_NOT_FOUND, "the server has no log messages");
        }
        if !is_log_level(&level) {
            let levels = LOG_LEVELS.join(", ");
            return error(message::INVALID_PARAMS, &format!("`level` must be one of {levels}"));
        }
        CallEnding::answered(Ok(empty()))
    }

    pub async fn notify(&self, caller: &Caller, method: &str, params: Option<Raw>) {
        let (seat, shares) = {
            let seats = &self.lock().seats;
            // The first process may be another client's.
            (seats.kept_by(&caller.lane), seats.shares(&caller.lane) || seats.keeper(FIRST).is_none())
        };
        match self.running(seat).await {
            Some(pipe) => pipe.notify(method, params).await,
            None if shares || self.facts().exchange == Exchange::Stateless => self.first.notify(method, params).await,
            None => {}
        }
    }

    /// Whether a client has a process besides the first.
    pub fn has_process(&self, lane: &str) -> bool {
        self.lock().seats.kept_by(lane).is_some_and(|seat| seat != FIRST)
    }

    pub async fn end_backend_session(&self, lane: &str) {
        let over = {
            let mut room = self.lock();
            if room.seats.kept_by(lane) == Some(FIRST) {
                self.first.set_tenant(None);
            }
            room.seats.handle_over(lane).and_then(|seat| room.chairs.remove(&seat))
        };
        if let Some(chair) = over {
            self.let_go(&chair);
        }
        self.first.end_unwanted().await;
    }

    pub fn close(&self) {
        self.closed.cancel();
        self.dial.renewals.end_apart(self.dial.generation);
    }

    fn sit_down(self: &Arc<Self>, guest: &PoolClient, caller: &Caller) -> ProcessCall {
        let now = clock::now();
        let mut room = self.lock();
        let client = match guest {
            PoolClient::Client { name, .. } => Some(name.clone()),
            PoolClient::Alone { .. } | PoolClient::Mute { .. } => None,
        };
        let is_new = client.as_ref().is_some_and(|name| room.seats.kept_by(name).is_none());
        let (taken, evicted) = room.seats.take(guest, now);
        let evicted = evicted.and_then(|seat| room.chairs.remove(&seat));
        if taken.is_crowded() && self.dial.processes.max > 1 {
            self.note_crowd(&mut room, &caller.owner, now);
        }
        let client = client.filter(|_| !taken.is_crowded());
        match taken {
            SlotChoice::Crowded(FIRST) => room.crowded_until = Some(now + DOUBT),
            SlotChoice::Seat(FIRST) => {}
            SlotChoice::Seat(seat) | SlotChoice::Crowded(seat) => {
                room.chairs.entry(seat).or_insert_with(|| {
                    let (pipe, closed) = (tokio::sync::Mutex::default(), self.closed.child_token());
                    Arc::new(PooledProcess { client, pipe, closed })
                });
            }
        }
        if room.crowded_until.is_some_and(|until| until > now) {
            self.first.set_tenant(None);
        } else if taken == SlotChoice::Seat(FIRST) && caller.inbox.is_some() {
            self.first.set_tenant(Some(caller));
        }
        drop(room);
        if let Some(chair) = evicted {
            self.take_back(chair);
        }
        ProcessCall { transport: self.clone(), taken, is_new, over: false }
    }

    /// A client has to share a process although it should have its own.
    fn note_crowd(&self, room: &mut PoolState, owner: &str, now: Instant) {
        if room.seats.is_at_share(owner) {
            (self.dial.limit_hit)("hub.processes_per_principal_max");
        } else if room.seats.is_full() {
            (self.dial.limit_hit)("hub.processes_per_server_max");
        }
        if room.told.is_none_or(|told| now.saturating_duration_since(told) >= DOUBT) {
            room.told = Some(now);
            let processes = room.seats.count();
            tracing::warn!(server = %self.dial.name, processes, "clients share a process; see hub.processes_per_server_max and hub.processes_per_principal_max");
        }
    }

    /// The process that a client is assigned to, if it runs already.
    fn at_hand(&self, visit: &ProcessCall) -> Option<Arc<Pipe>> {
        if visit.taken.id() == FIRST {
            return (!visit.is_new).then(|| self.first.clone());
        }
        let chair = self.lock().chairs.get(&visit.taken.id()).cloned()?;
        let pipe = chair.pipe.try_lock().ok()?.clone();
        pipe.filter(|_| !chair.closed.is_cancelled())
    }

    /// The same, with whatever has to be done, as long as there is a server at all. Boxed, since it is rare and large.
    fn begin<'a>(
        self: &'a Arc<Self>,
        visit: &'a ProcessCall,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Arc<Pipe>, NoPipe>> {
        Box::pin(async move {
            let begun = self.closed.run_until_cancelled(self.pipe(visit, caller)).await;
            begun.unwrap_or(Err(NoPipe::Gone))
        })
    }

    /// The process that a client is assigned to; it is started if need be.
    async fn pipe(self: &Arc<Self>, visit: &ProcessCall, caller: &Caller) -> Result<Arc<Pipe>, NoPipe> {
        let seat = visit.taken.id();
        if seat == FIRST {
            if visit.is_new && !visit.taken.is_crowded() {
                self.first.renew(self.kept_by(caller, |one| !is_subscription(one))).await;
            }
            return Ok(self.first.clone());
        }
        let chair = self.lock().chairs.get(&seat).cloned().ok_or(NoPipe::Gone)?;
        let mut running = chair.pipe.lock().await;
        if chair.closed.is_cancelled() {
            return Err(NoPipe::Gone);
        }
        if let Some(pipe) = &*running {
            return Ok(pipe.clone());
        }
        let closed = chair.closed.child_token();
        // The caller may leave before the process has a client.
        let guard = closed.clone().drop_guard();
        let guests =
            if chair.client.is_some() { ProcessClients::Client(caller.clone()) } else { ProcessClients::Visitors };
        let started = stdio::start(&self.program, &self.dial, guests, Some(Exchange::Session), closed).await;
        let gone = chair.closed.is_cancelled();
        let (pipe, ended) = started.map_err(|error| if gone { NoPipe::Gone } else { NoPipe::Failed(error) })?;
        if let Some(client) = &chair.client {
            pipe.renew(self.kept_by(caller, |_| true)).await;
            self.set_apart(client, true);
            // A client may have released it before this is known; that release counts.
            if chair.closed.is_cancelled() {
                self.set_apart(client, false);
                return Err(NoPipe::Gone);
            }
        }
        guard.disarm();
        *running = Some(pipe.clone());
        drop(running);
        self.lock().seats.handle_started();
        let transport = self.clone();
        tokio::spawn(async move {
            if ended.await.is_ok() {
                transport.ended(seat);
            }
        });
        if chair.client.is_some() {
            // What the client had subscribed to is its own process's now.
            let first = self.first.clone();
            tokio::spawn(async move { first.end_unwanted().await });
        } else {
            tokio::spawn(sweep(Arc::downgrade(self), chair.closed.clone()));
        }
        Ok(pipe)
    }

    fn kept_by(&self, caller: &Caller, wanted: impl Fn(&RenewableRequest) -> bool) -> Vec<RenewableRequest> {
        self.dial.renewals.of(&caller.lane).into_iter().filter(|one| wanted(one)).collect()
    }

    /// A further process cannot be started. Perhaps the program can run only once.
    fn not_started(&self, seat: SlotId, error: StartError) {
        let chair = {
            let mut room = self.lock();
            match &error {
                StartError::Refused(_) => room.seats.handle_refused(seat),
                StartError::Failed(_) => room.seats.handle_failed(seat, clock::now()),
            }
            room.chairs.remove(&seat)
        };
        let (DialError::Passing { reason, .. } | DialError::Fatal { reason }) = error.into_dial_error();
        let why = self.dial.secrets.hide(reason);
        tracing::warn!(server = %self.dial.name, %why, "a further process cannot be had, so a client shares the first");
        if let Some(chair) = chair {
            self.let_go(&chair);
        }
    }

    /// A process besides the first has ended by itself.
    fn ended(self: &Arc<Self>, seat: SlotId) {
        let chair = {
            let mut room = self.lock();
            room.seats.handle_ended(seat);
            room.chairs.remove(&seat)
        };
        if let Some(chair) = chair {
            self.take_back(chair);
        }
    }

    /// A client has lost its process, and not left. What it waits for, the first one tells until the client calls again.
    fn take_back(self: &Arc<Self>, chair: Arc<PooledProcess>) {
        self.let_go(&chair);
        let transport = self.clone();
        tokio::spawn(async move {
            if let Some(client) = &chair.client {
                let kept = transport.dial.renewals.of(client).into_iter().filter(is_subscription);
                transport.first.renew(kept.collect()).await;
            }
        });
    }

    fn let_go(&self, chair: &PooledProcess) {
        chair.closed.cancel();
        if let Some(client) = &chair.client {
            self.set_apart(client, false);
        }
    }

    fn set_apart(&self, client: &Arc<str>, apart: bool) {
        self.dial.renewals.set_apart(self.dial.generation, client, apart);
    }

    async fn running(&self, seat: Option<SlotId>) -> Option<Arc<Pipe>> {
        let seat = seat?;
        if seat == FIRST {
            return Some(self.first.clone());
        }
        let chair = self.lock().chairs.get(&seat).cloned()?;
        let pipe = chair.pipe.lock().await.clone();
        pipe.filter(|pipe| !pipe.is_lost())
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends processes that no client uses, for as long as this one exists.
async fn sweep(transport: std::sync::Weak<ProgramTransport>, closed: CancellationToken) {
    while closed.run_until_cancelled(tokio::time::sleep(UNKEPT)).await.is_some() {
        let Some(transport) = transport.upgrade() else { return };
        let over: Vec<Arc<PooledProcess>> = {
            let mut room = transport.lock();
            let over = room.seats.sweep(clock::now());
            over.iter().filter_map(|seat| room.chairs.remove(seat)).collect()
        };
        over.iter().for_each(|chair| transport.let_go(chair));
    }
}

/// A call at a process, whose caller may walk away.
struct ProcessCall {
    transport: Arc<ProgramTransport>,
    taken: SlotChoice,
    /// Its client sits there for the first time.
    is_new: bool,
    over: bool,
}

impl Drop for ProcessCall {
    fn drop(&mut self) {
        self.transport.lock().seats.leave(self.taken, !self.over, clock::now());
    }
}

impl fmt::Debug for ProgramTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProgramTransport({} processes)", self.lock().seats.count())
    }
}
