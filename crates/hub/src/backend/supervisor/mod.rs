//! Drives one backend: feeds its machine what happens, does what it says, and waits. It holds no rule.

pub(crate) mod lists;
mod reconnects;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_core::backend::{BackendMachine, DialError, Generation, Policy};
use bowline_core::health::HealthEvent;
use bowline_core::process_pool::PoolLimits;
use bowline_core::{HealthCheck, Listing};
use bowline_env::http::Http1Client;
use bowline_env::{clock, entropy};
use bowline_store::Clock;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::dispatcher::{Dispatcher, SupervisorAction};
use super::{Backend, BackendCommand, BackendEvent, Lists, RememberedServer, Snapshot};
use crate::backend::Observer;
use crate::call::{BackendCall, CallEnding, Exchange, Inbound};
use crate::catalogue::{FetchedList, ListKind};
use crate::config::spec::{Reach, ServerSpec};
use crate::config::{BackendKey, Secrets};
use crate::fields::{Fields, Raw};
use crate::message;
use crate::upstream::{self, Exit, LimitHit, Renewals, Transport, TransportEvent};

const COMMANDS_MAX: usize = 4096;
const NOTES_MAX: usize = 4096;
/// While a backend is away, the clock is looked at this often to notice that the machine slept.
const SLEEP_WATCH: Duration = Duration::from_secs(5);

/// What all backends of a hub share.
#[derive(Clone)]
pub struct SupervisorContext {
    pub clock: Clock,
    pub policy: Policy,
    pub health_interval: Duration,
    pub health_timeout: Duration,
    pub http: Http1Client,
    pub events: mpsc::Sender<(BackendKey, BackendEvent)>,
    /// Programs, from their start until they are gone.
    pub programs: TaskTracker,
    /// How many processes of one program there may be.
    pub processes: PoolLimits,
    pub observer: Arc<dyn Observer>,
}

impl fmt::Debug for SupervisorContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SupervisorContext({} programs)", self.programs.len())
    }
}

/// Something that a task of ours has to say.
enum Note {
    Dialled(Generation, Result<Arc<Transport>, DialError>),
    /// Some of its lists, and then that this was all of them.
    Listed(Generation, Vec<FetchedList>),
    Fetched(Generation),
    Checked(Generation, Result<(), Ailment>),
}

/// What is wrong with a server that was checked.
enum Ailment {
    /// It is there, and not well.
    Sick(String),
    /// The server cannot be reached.
    Gone(String),
}

struct Supervisor {
    key: BackendKey,
    spec: Arc<ServerSpec>,
    secrets: Arc<Secrets>,
    reach: Reach,
    context: SupervisorContext,
    dispatcher: Arc<Dispatcher>,
    reconnects: HashMap<u64, oneshot::Sender<bool>>,
    next_ticket: u64,
    /// How it was spoken with the last time.
    exchange: Option<Exchange>,
    renewals: Arc<Renewals>,
    notes: mpsc::Sender<Note>,
    transport_events: upstream::TransportEvents,
    snapshot: watch::Sender<Snapshot>,
    listing: Listing,
    /// The newest transport that was ever connected.
    connected: Option<Generation>,
    changed: bool,
    removed: bool,
    /// Callers that wait until the removal has been announced; dropping this wakes them.
    told_removed: Option<oneshot::Sender<()>>,
    /// Fires when the backend is removed: whatever it has started ends, also what is only being dialled.
    over: CancellationToken,
}

/// Starts a backend's loop and returns the handle on it.
pub fn start(
    key: BackendKey,
    spec: ServerSpec,
    reach: Reach,
    context: SupervisorContext,
    remembered: Option<RememberedServer>,
) -> Backend {
    let (commands, commanded) = mpsc::channel(COMMANDS_MAX);
    let (notes, noted) = mpsc::channel(NOTES_MAX);
    let (transport_events, transport_said) = mpsc::channel(NOTES_MAX);
    let machine = BackendMachine::new(context.policy);
    let first = Snapshot {
        status: machine.status(),
        connected_at_ms: None,
        last_error: None,
        attempt: 0,
        next_retry_at: None,
        health: "unknown",
        health_failures: 0,
        lists: if remembered.is_some() { Lists::Remembered } else { Lists::Unknown },
        facts: remembered.as_ref().and_then(|remembered| remembered.facts.clone()),
        catalogue: remembered.map(|remembered| remembered.catalogue).unwrap_or_default(),
        fetches: 0,
    };
    let (snapshot, shown) = watch::channel(first);
    let spec = Arc::new(spec);
    let mut driver = Supervisor {
        key: key.clone(),
        secrets: Arc::new(Secrets::of(&spec)),
        spec: spec.clone(),
        reach,
        dispatcher: Arc::new(Dispatcher::new(
            machine,
            HealthCheck::new(context.health_interval, context.health_timeout),
        )),
        listing: Listing::new(context.policy.retry_first, context.policy.retry_max, context.policy.retry_jitter),
        context,
        reconnects: HashMap::new(),
        next_ticket: 0,
        exchange: None,
        renewals: Arc::default(),
        notes,
        transport_events,
        snapshot,
        connected: None,
        changed: true,
        removed: false,
        told_removed: None,
        over: CancellationToken::new(),
    };
    if !spec.disabled {
        driver.dispatcher.lock().machine.start();
        driver.publish();
    }
    let (dispatcher, renewals) = (driver.dispatcher.clone(), driver.renewals.clone());
    let observer = driver.context.observer.calls_of(&key);
    tokio::spawn(driver.drive(commanded, noted, transport_said));
    Backend { key, spec, reach, commands, dispatcher, snapshot: shown, renewals, counts: Arc::default(), observer }
}

impl Supervisor {
    async fn drive(
        mut self,
        mut commands: mpsc::Receiver<BackendCommand>,
        mut notes: mpsc::Receiver<Note>,
        mut transports: mpsc::Receiver<(Generation, TransportEvent)>,
    ) {
        // The first stands still while the machine sleeps, and the second does not.
        let mut clocks = (clock::now(), self.context.clock.uptime());
        loop {
            self.drain().await;
            if self.removed {
                return self.over.cancel();
            }
            let away = self.dispatcher.live().is_none().then(|| clock::now() + SLEEP_WATCH);
            let due = self.dispatcher.sleep([away, self.listing.poll_timeout()].into_iter().flatten().min());
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => self.dispatcher.lock().machine.remove(clock::now()),
                },
                () = self.dispatcher.woken() => {}
                Some(note) = notes.recv() => self.note(note),
                Some((generation, event)) = transports.recv() => self.transport_event(generation, event).await,
                () = sleep_until(due) => {}
            }
            let now = clock::now();
            let (awake_since, up_since) = clocks;
            clocks = (now, self.context.clock.uptime());
            let slept = clocks.1.saturating_sub(up_since).saturating_sub(now - awake_since);
            let pulse = {
                let mut state = self.dispatcher.lock();
                if slept > Duration::from_secs(10) {
                    state.machine.handle_woke(now);
                }
                state.machine.handle_timeout(now);
                state.health.handle_timeout(now, entropy::chance())
            };
            if let Some(pulse) = pulse {
                self.pulse(&pulse);
            }
            if self.listing.handle_timeout(now) {
                self.fetch();
            }
        }
    }

    fn command(&mut self, command: BackendCommand) {
        let now = clock::now();
        match command {
            BackendCommand::Notify { caller, method, params } => {
                if let Some((_, transport)) = self.dispatcher.live() {
                    tokio::spawn(async move { transport.notify(&caller, &method, params).await });
                }
            }
            BackendCommand::EndBackendSession(session_name) => {
                self.renewals.forget(&session_name);
                for transport in self.dispatcher.lock().transports.values() {
                    let (transport, session_name) = (transport.clone(), session_name.clone());
                    tokio::spawn(async move { transport.end_backend_session(&session_name).await });
                }
            }
            BackendCommand::Reconnect(done) => {
                self.next_ticket += 1;
                self.reconnects.insert(self.next_ticket, done);
                self.dispatcher.lock().machine.handle_reconnect(now, self.next_ticket);
            }
            BackendCommand::Relist => self.want_lists(),
            BackendCommand::Remove(told) => {
                self.told_removed = Some(told);
                self.dispatcher.lock().machine.remove(now);
            }
        }
    }

    fn note(&mut self, note: Note) {
        let now = clock::now();
        // A dial may end without anything to do, and still another status.
        self.changed |= matches!(note, Note::Dialled(..));
        match note {
            Note::Dialled(generation, Ok(transport)) => {
                self.exchange = Some(transport.facts().exchange);
                let mut state = self.dispatcher.lock();
                state.transports.insert(generation, transport);
                state.machine.handle_dialled(now, generation, Ok(()), entropy::chance());
            }
            Note::Dialled(generation, Err(error)) => {
                let error = error.map(|reason| self.secrets.hide(reason));
                self.dispatcher.lock().machine.handle_dialled(now, generation, Err(error), entropy::chance());
                // The next server at this address may be another one.
                self.exchange = None;
            }
            Note::Listed(generation, fetched) => self.listed(generation, fetched),
            Note::Fetched(generation) => self.fetched(generation),
            Note::Checked(generation, result) if self.dispatcher.is_live(generation) => {
                let pulse = {
                    let state = &mut *self.dispatcher.lock();
                    match result {
                        Ok(()) => state.health.handle_good(now, entropy::chance()),
                        Err(Ailment::Sick(reason)) => {
                            state.health.handle_bad(now, &self.secrets.hide(reason), entropy::chance())
                        }
                        Err(Ailment::Gone(reason)) => {
                            state.machine.handle_lost(now, generation, &self.secrets.hide(reason), entropy::chance());
                            None
                        }
                    }
                };
                self.changed = true;
                if let Some(pulse) = pulse {
                    self.tell_health(&pulse);
                }
            }
            Note::Checked(..) => {}
        }
    }

    async fn transport_event(&mut self, generation: Generation, event: TransportEvent) {
        match event {
            TransportEvent::Lost { reason, exit } => {
                let reason = self.secrets.hide(reason);
                self.dispatcher.lock().machine.handle_lost(clock::now(), generation, &reason, entropy::chance());
                // A program that dies again and again while it is dialled is announced as rarely as the dials.
                let was_connected = self.connected == Some(generation);
                let told = was_connected || self.dispatcher.lock().machine.tells_each_attempt();
                if let Some(exit) = exit.filter(|_| told) {
                    self.connected = self.connected.filter(|_| !was_connected);
                    self.drain().await;
                    self.tell(BackendEvent::ProcessCrashed(exit)).await;
                }
            }
            TransportEvent::Inbound(Inbound::Notification { method, params, .. }) => {
                let changed = ListKind::ALL.iter().any(|kind| kind.changed() == method);
                if changed {
                    if self.dispatcher.is_live(generation) {
                        self.want_lists();
                    }
                } else if method == "notifications/resources/updated" {
                    self.updated(generation, &method, params.as_ref());
                } else if method != "notifications/progress" && !method.starts_with("notifications/subscriptions/") {
                    self.tell(BackendEvent::Notification { method, params }).await;
                }
            }
            // A request without a recipient is dropped, which answers it with an error.
            TransportEvent::Inbound(Inbound::Request { .. }) => {}
            TransportEvent::Exited { client, exit } => {
                // One that only closes its output has no way to end yet, and is as lost.
                let exit = exit.unwrap_or(Exit { code: None, signal: None });
                self.tell(BackendEvent::ProcessCrashed(exit).of_client(client)).await;
            }
            TransportEvent::Stderr { line, client } => {
                let line = self.secrets.hide(line);
                tracing::info!(server = %self.key.name, source = "stderr", line = %line, "a backend wrote");
                self.tell(BackendEvent::Stderr(line).of_client(client)).await;
            }
        }
    }

    /// A resource has changed, which concerns those who subscribed to it.
    fn updated(&self, generation: Generation, method: &str, params: Option<&Raw>) {
        let uri = Fields::of(params.map(|raw| &**raw)).text("uri").unwrap_or_default();
        for inbox in self.renewals.subscribers(generation, &uri).into_iter().filter_map(|caller| caller.inbox) {
            let (server, method) = (self.key.name.clone(), method.to_owned());
            let inbound = Inbound::Notification { server, method, params: params.cloned() };
            // An update only says that there is something newer to read. A session that is far behind misses one of many.
            let _ = inbox.try_send(inbound);
        }
    }

    /// Does everything that the machine wants.
    async fn drain(&mut self) {
        while let Some(effect) = self.dispatcher.effect() {
            self.changed = true;
            match effect {
                SupervisorAction::Dial(generation) => self.dial(generation),
                SupervisorAction::Retire(generation) => {
                    let gone = self.dispatcher.lock().transports.remove(&generation);
                    if let Some(transport) = gone {
                        transport.close();
                    }
                }
                SupervisorAction::Redialled { ticket, success } => {
                    // The waiting caller reads the status next, so the status must be set first.
                    self.publish();
                    if let Some(done) = self.reconnects.remove(&ticket) {
                        let _ = done.send(success);
                    }
                }
                SupervisorAction::Tell(told) => self.told(told).await,
                SupervisorAction::TellHealth(pulse) => self.tell_health(&pulse),
            }
        }
        if self.changed {
            self.publish();
        }
    }

    fn pulse(&mut self, pulse: &HealthEvent) {
        self.changed = true;
        if *pulse != HealthEvent::Ask {
            return self.tell_health(pulse);
        }
        let Some((generation, transport)) = self.dispatcher.live() else { return };
        let (notes, timeout) = (self.notes.clone(), self.context.health_timeout);
        tokio::spawn(async move {
            let call = BackendCall::of_hub(transport.health_method(), None);
            let checked = match tokio::time::timeout(timeout, transport.call(&call)).await {
                // That it does not know the question is an answer; that it broke on it is none.
                Ok(CallEnding::Answered { answer: Err(error), .. })
                    if message::code_of(&error) == message::INTERNAL_ERROR =>
                {
                    Err(Ailment::Sick(message::message_of(&error)))
                }
                Ok(CallEnding::Answered { .. }) => Ok(()),
                Ok(CallEnding::NotExecuted(why)) => Err(Ailment::Gone(why)),
                Ok(CallEnding::Broken(why) | CallEnding::Refused { why, .. }) => Err(Ailment::Sick(why)),
                Err(_) => Err(Ailment::Sick("the check was not answered in time".to_owned())),
            };
            let _ = notes.send(Note::Checked(generation, checked)).await;
        });
    }

    fn tell_health(&mut self, pulse: &HealthEvent) {
        self.changed = true;
        let event = match pulse {
            HealthEvent::Ask => return,
            HealthEvent::Restored => BackendEvent::HealthRestored,
            HealthEvent::Degraded { failures, last_error } => {
                BackendEvent::HealthDegraded { failures: *failures, last_error: last_error.clone() }
            }
        };
        let _ = self.context.events.try_send((self.key.clone(), event));
    }

    async fn tell(&self, event: BackendEvent) {
        let _ = self.context.events.send((self.key.clone(), event)).await;
    }

    fn publish(&mut self) {
        self.changed = false;
        let now = clock::now();
        let live = self.dispatcher.live().map(|(_, transport)| transport.facts().clone());
        let state = self.dispatcher.lock();
        self.snapshot.send_modify(|shown| {
            shown.status = state.machine.status();
            shown.last_error = state.machine.last_error().map(ToOwned::to_owned);
            shown.attempt = state.machine.attempt();
            shown.next_retry_at = state.machine.next_retry(now).map(|wait| now + wait);
            shown.health = state.health.word();
            shown.health_failures = state.health.failures();
            // What a server can do is remembered while it is away.
            if live.is_some() {
                shown.facts = live;
            }
        });
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn limit_hit(observer: Arc<dyn Observer>) -> LimitHit {
    Arc::new(move |setting| observer.limit_hit(setting))
}
