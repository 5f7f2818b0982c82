//! The processes of a program as they begin and end: started when a call wants them, watched, replaced, and ended when no client uses
//! them. What the end of one means, `core::process_pool` decides.

use std::sync::Arc;

use bowline_core::backend::DialError;
use bowline_core::process_pool::{ProcessEnd, SlotId, UNKEPT};
use bowline_env::clock;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{NoPipe, PoolState, PooledProcess, ProgramTransport, REST_PATIENCE, renewed_at_first};
use crate::call::{Caller, Exchange, Inbound};
use crate::catalogue::ListKind;
use crate::upstream::pipe::Pipe;
use crate::upstream::stdio::{self, ProcessClients, ProgramEnd, ProgramExit, StartError};
use crate::upstream::subscriptions::{RenewableRequest, is_subscription};
use crate::upstream::{Exit, TransportEvent};

impl ProgramTransport {
    /// The first process; it is started again if it has ended.
    pub(super) fn begin_first<'a>(
        self: &'a Arc<Self>,
        slot: SlotId,
        process: &'a PooledProcess,
    ) -> BoxFuture<'a, Result<Arc<Pipe>, NoPipe>> {
        let wait = self.lock().pool.first_due().saturating_duration_since(clock::now());
        Box::pin(async move {
            if process.pipe.get().is_none() && wait > REST_PATIENCE {
                return Err(NoPipe::Rests(wait));
            }
            let start = async {
                tokio::time::sleep(wait).await;
                self.start_first(slot, process).await
            };
            self.once(process, Box::pin(start)).await
        })
    }

    /// What one of the calls that want a process starts, all of them have.
    pub(super) async fn once(
        &self,
        process: &PooledProcess,
        start: BoxFuture<'_, Result<Arc<Pipe>, NoPipe>>,
    ) -> Result<Arc<Pipe>, NoPipe> {
        let started = async {
            if process.closed.is_cancelled() {
                return Err(NoPipe::Gone);
            }
            start.await
        };
        let pipe = process.closed.run_until_cancelled(process.pipe.get_or_try_init(|| started)).await;
        pipe.unwrap_or(Err(NoPipe::Gone)).cloned()
    }

    /// Starts a process in place of the first, which has ended.
    async fn start_first(self: &Arc<Self>, slot: SlotId, process: &PooledProcess) -> Result<Arc<Pipe>, NoPipe> {
        let closed = process.closed.child_token();
        let guard = closed.clone().drop_guard();
        let exchange = Some(self.facts.exchange);
        let (pipe, end) = match stdio::start(&self.program, &self.dial, &process.clients, exchange, closed).await {
            Ok(started) => started,
            Err(error) => return Err(self.not_started(slot, error)),
        };
        if !pipe.facts().is_same_server(&self.facts) {
            self.server_lost("the program is another one now".into(), None);
            return Err(NoPipe::Gone);
        }
        pipe.renew(renewed_at_first(&self.dial, &self.facts)).await;
        guard.disarm();
        self.lock().pool.handle_started(slot, clock::now());
        self.watch(slot, end);
        // It may offer something else than before. Clients are notified only of a real difference.
        let (server, method) = (self.dial.name.clone(), ListKind::Tools.changed().to_owned());
        let changed = TransportEvent::Inbound(Inbound::Notification { server, method, params: None });
        self.tell(changed);
        Ok(pipe)
    }

    /// Starts a process besides the first: for one client, or for visitors.
    pub(super) async fn start_further(
        self: &Arc<Self>,
        slot: SlotId,
        process: &PooledProcess,
    ) -> Result<Arc<Pipe>, NoPipe> {
        let closed = process.closed.child_token();
        // The caller may leave before the process has a client.
        let guard = closed.clone().drop_guard();
        let exchange = Some(Exchange::Session);
        let (pipe, end) = match stdio::start(&self.program, &self.dial, &process.clients, exchange, closed).await {
            Ok(started) => started,
            Err(_) if process.closed.is_cancelled() => return Err(NoPipe::Gone),
            Err(error) => return Err(self.not_started(slot, error)),
        };
        let client = process.clients.client();
        if let Some(client) = client {
            pipe.renew(self.kept_by(client, |_| true)).await;
            self.set_apart(&client.session_name, true);
            // A client may have released it before this is known; that release counts.
            if process.closed.is_cancelled() {
                self.set_apart(&client.session_name, false);
                return Err(NoPipe::Gone);
            }
        }
        guard.disarm();
        self.lock().pool.handle_started(slot, clock::now());
        self.watch(slot, end);
        if client.is_none() {
            tokio::spawn(sweep(Arc::downgrade(self), process.closed.clone()));
        } else if let Some(first) = self.lock().first().and_then(|(_, first)| first.running()) {
            // What the client had subscribed to is its own process's now.
            tokio::spawn(async move { first.end_unwanted().await });
        }
        Ok(pipe)
    }

    pub(super) fn watch(self: &Arc<Self>, slot: SlotId, end: ProgramEnd) {
        let transport = self.clone();
        tokio::spawn(async move {
            if let Ok(exit) = end.await {
                transport.ended(slot, Some(exit));
            }
        });
    }

    pub(super) fn kept_by(&self, caller: &Caller, wanted: impl Fn(&RenewableRequest) -> bool) -> Vec<RenewableRequest> {
        self.dial.renewals.of(&caller.session_name).into_iter().filter(|one| wanted(one)).collect()
    }

    /// A process cannot be started. If it is not the first, perhaps the program can run only once.
    fn not_started(self: &Arc<Self>, slot: SlotId, error: StartError) -> NoPipe {
        let refused = matches!(error, StartError::Refused(_));
        let (DialError::Passing { reason, .. } | DialError::Fatal { reason }) = error.into_dial_error();
        let why = self.dial.secrets.hide(reason);
        let (end, process) = {
            let (mut room, now) = (self.lock(), clock::now());
            let is_first = slot == room.pool.first();
            let end = if refused { room.pool.handle_refused(slot, now) } else { room.pool.handle_failed(slot, now) };
            if is_first {
                room.why_not.clone_from(&why);
            }
            room.replace_first(end, &self.closed);
            (end, room.processes.remove(&slot))
        };
        let server = &self.dial.name;
        match end {
            ProcessEnd::NotFirst => {
                tracing::warn!(%server, %why, "a further process cannot be had, so a client shares the first");
            }
            ProcessEnd::Replaced { .. } => tracing::warn!(%server, %why, "the first process cannot be started again"),
            ProcessEnd::Known | ProcessEnd::ServerLost => {}
        }
        self.settle(end, ProgramExit { how: why, exit: None });
        if let Some(process) = process {
            self.let_go(&process);
        }
        NoPipe::Gone
    }

    /// A process has ended by itself, and in this way if that is known.
    pub(super) fn ended(self: &Arc<Self>, slot: SlotId, exit: Option<ProgramExit>) {
        let exit = exit.unwrap_or_else(|| ProgramExit { how: "the program ended".into(), exit: None });
        let (end, process, keeper) = {
            let (mut room, now) = (self.lock(), clock::now());
            let crowded = room.crowded_until.is_some_and(|until| until > now);
            let keeper = room.pool.keeper(slot).filter(|_| !crowded).cloned();
            let end = room.pool.handle_ended(slot, now);
            room.replace_first(end, &self.closed);
            if let ProcessEnd::Replaced { .. } = end {
                room.why_not.clone_from(&exit.how);
            }
            (end, room.processes.remove(&slot), keeper)
        };
        if let ProcessEnd::Replaced { .. } = end {
            self.tell(TransportEvent::Exited { client: keeper, exit: exit.exit });
        }
        self.settle(end, exit);
        if let Some(process) = process {
            self.take_back(process);
        }
    }

    /// Does what the end of a process asks for.
    fn settle(self: &Arc<Self>, end: ProcessEnd, exit: ProgramExit) {
        match end {
            ProcessEnd::Known | ProcessEnd::NotFirst => {}
            ProcessEnd::ServerLost => self.server_lost(exit.how, exit.exit),
            ProcessEnd::Replaced { first, due } => {
                let Some(process) = self.lock().processes.get(&first).cloned() else { return };
                let transport = self.clone();
                tokio::spawn(async move {
                    let waited = process.closed.run_until_cancelled(tokio::time::sleep_until(due.into())).await;
                    if waited.is_some() {
                        let _ = transport.begin_first(first, &process).await;
                    }
                });
            }
        }
    }

    /// No process is left, or it is another server's.
    fn server_lost(&self, reason: String, exit: Option<Exit>) {
        let known = {
            let _one_at_a_time = self.lock();
            let known = self.closed.is_cancelled();
            self.closed.cancel();
            known
        };
        if !known {
            self.tell(TransportEvent::Lost { reason, exit });
        }
    }

    /// Tells the supervisor without waiting: a caller that leaves must not leave a process half begun.
    fn tell(&self, event: TransportEvent) {
        let (events, generation) = (self.dial.events.clone(), self.dial.generation);
        tokio::spawn(async move { events.send((generation, event)).await });
    }

    /// The last process besides the first is gone, on our side; if the first does not run, none does.
    pub(super) fn check_lost(&self) {
        let lost = {
            let room = self.lock();
            room.pool.is_lost().then(|| room.why_not.clone())
        };
        if let Some(why) = lost {
            self.server_lost(why, None);
        }
    }

    /// A client has lost its process, and not left. What it waits for, the first one tells until the client calls again.
    pub(super) fn take_back(self: &Arc<Self>, process: Arc<PooledProcess>) {
        self.let_go(&process);
        let transport = self.clone();
        tokio::spawn(async move {
            let Some(client) = process.client() else { return };
            let first = transport.lock().first().and_then(|(_, first)| first.running());
            if let Some(first) = first {
                let kept = transport.dial.renewals.of(client).into_iter().filter(is_subscription);
                first.renew(kept.collect()).await;
            }
        });
    }

    pub(super) fn let_go(&self, process: &PooledProcess) {
        process.closed.cancel();
        if let Some(client) = process.client() {
            self.set_apart(client, false);
        }
    }
}

impl PoolState {
    /// The place of a first process that takes over is there from the moment on in which the old one is gone.
    fn replace_first(&mut self, end: ProcessEnd, server: &CancellationToken) {
        if let ProcessEnd::Replaced { first, .. } = end {
            self.processes.insert(first, PooledProcess::new(ProcessClients::AllClients, server.child_token()));
            self.crowded_until = None;
        }
    }
}

/// Ends processes that no client uses, for as long as this one exists.
async fn sweep(transport: std::sync::Weak<ProgramTransport>, closed: CancellationToken) {
    while closed.run_until_cancelled(tokio::time::sleep(UNKEPT)).await.is_some() {
        let Some(transport) = transport.upgrade() else { return };
        let over: Vec<Arc<PooledProcess>> = {
            let mut room = transport.lock();
            let over = room.pool.sweep(clock::now());
            over.iter().filter_map(|slot| room.processes.remove(slot)).collect()
        };
        over.iter().for_each(|process| transport.let_go(process));
        transport.check_lost();
    }
}
