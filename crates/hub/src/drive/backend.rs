//! Drives one backend: feeds its machine what happens, does what it says, and waits. It holds no rule.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bowline_core::Health;
use bowline_core::backend::{Backend as Machine, Call, CallId, DialError, Generation, Output, Policy, Told};
use bowline_core::health::Pulse;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use crate::backend::{Backend, BackendEvent, CallEnd, Command, Key, Snapshot};
use crate::catalogue::{Catalogue, ListKind};
use crate::clock::{self, chance};
use crate::era::Era;
use crate::fields::{Fields, Raw, empty};
use crate::link::{self, Dial, Ending, Inbound, Link, LinkEvent, Renewals, Upcall};
use crate::spec::ServerSpec;

const COMMANDS_MAX: usize = 4096;
const NOTES_MAX: usize = 4096;
/// How long a list may take to be fetched.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
/// While a backend is away, the wall clock is looked at this often to notice that the machine slept.
const SLEEP_WATCH: Duration = Duration::from_secs(5);

/// What all backends of a hub share.
#[derive(Clone, Debug)]
pub struct Around {
    pub policy: Policy,
    pub health_interval: Duration,
    pub health_timeout: Duration,
    pub http: reqwest::Client,
    pub events: mpsc::Sender<(Key, BackendEvent)>,
}

/// Something that a task of ours has to say.
enum Note {
    Dialled(Generation, Result<Arc<Link>, DialError>),
    Ended(Generation, CallId, Ending),
    Fetched(Generation, Catalogue),
    Checked(Generation, Result<(), String>),
}

/// A call that is not over.
struct Kept {
    call: Arc<Upcall>,
    done: oneshot::Sender<CallEnd>,
    task: Option<AbortHandle>,
}

struct Driver {
    key: Key,
    spec: Arc<ServerSpec>,
    allow_private: bool,
    around: Around,
    machine: Machine,
    health: Health,
    links: HashMap<Generation, Arc<Link>>,
    calls: HashMap<CallId, Kept>,
    reconnects: HashMap<u64, oneshot::Sender<bool>>,
    next_ticket: u64,
    era: Option<Era>,
    renewals: Arc<Renewals>,
    notes: mpsc::Sender<Note>,
    link_events: link::LinkEvents,
    snapshot: watch::Sender<Snapshot>,
    fetching: Fetching,
    /// The newest transport that was ever connected.
    connected: Option<Generation>,
    changed: bool,
    removed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fetching {
    Idle,
    Running,
    /// Something changed while it ran.
    Again,
}

/// Starts a backend's loop and returns the handle on it.
pub fn start(key: Key, spec: ServerSpec, allow_private: bool, around: Around) -> Backend {
    let (commands, commanded) = mpsc::channel(COMMANDS_MAX);
    let (notes, noted) = mpsc::channel(NOTES_MAX);
    let (link_events, linked) = mpsc::channel(NOTES_MAX);
    let machine = Machine::new(around.policy);
    let first = Snapshot {
        status: machine.status(),
        connected_at_ms: None,
        last_error: None,
        attempt: 0,
        next_retry_at: None,
        health: "unknown",
        health_failures: 0,
        facts: None,
        catalogue: Arc::default(),
        catalogue_known: false,
    };
    let (snapshot, shown) = watch::channel(first);
    let spec = Arc::new(spec);
    let mut driver = Driver {
        key: key.clone(),
        spec: spec.clone(),
        allow_private,
        health: Health::new(around.health_interval, around.health_timeout),
        around,
        machine,
        links: HashMap::new(),
        calls: HashMap::new(),
        reconnects: HashMap::new(),
        next_ticket: 0,
        era: None,
        renewals: Arc::default(),
        notes,
        link_events,
        snapshot,
        fetching: Fetching::Idle,
        connected: None,
        changed: true,
        removed: false,
    };
    if !spec.disabled {
        driver.machine.start();
        driver.publish();
    }
    tokio::spawn(driver.drive(commanded, noted, linked));
    Backend { key, spec, commands, snapshot: shown, counts: Arc::default() }
}

impl Driver {
    async fn drive(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut notes: mpsc::Receiver<Note>,
        mut links: mpsc::Receiver<(Generation, LinkEvent)>,
    ) {
        let mut clocks = (Instant::now(), SystemTime::now());
        loop {
            self.drain().await;
            if self.removed {
                return;
            }
            let away = self.machine.live().is_none().then(|| Instant::now() + SLEEP_WATCH);
            let due = [self.machine.poll_timeout(), self.health.poll_timeout(), away].into_iter().flatten().min();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => self.machine.remove(Instant::now()),
                },
                Some(note) = notes.recv() => self.note(note),
                Some((generation, event)) = links.recv() => self.link_event(generation, event).await,
                () = sleep_until(due) => {}
            }
            let now = Instant::now();
            let (steady, wall) = clocks;
            let slept = SystemTime::now().duration_since(wall).unwrap_or_default().saturating_sub(now - steady);
            clocks = (now, SystemTime::now());
            if slept > Duration::from_secs(10) {
                self.machine.handle_woke(now);
            }
            self.machine.handle_timeout(now);
            if let Some(pulse) = self.health.handle_timeout(now, chance()) {
                self.pulse(pulse).await;
            }
        }
    }

    fn command(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Call { id, call, deadline, resend, done } => {
                self.calls.insert(id, Kept { call, done, task: None });
                self.machine.handle_call(now, Call::new(id, deadline, resend));
            }
            Command::Cancel(id) => {
                self.machine.handle_cancelled(id);
                if let Some(Kept { task: Some(task), .. }) = self.calls.remove(&id) {
                    task.abort();
                }
            }
            Command::Notify { caller, method, params } => {
                if let Some(link) = self.machine.live().and_then(|live| self.links.get(&live)).cloned() {
                    tokio::spawn(async move { link.notify(&caller, &method, params).await });
                }
            }
            Command::EndLane(lane) => {
                self.renewals.forget(&lane);
                for link in self.links.values() {
                    let (link, lane) = (link.clone(), lane.clone());
                    tokio::spawn(async move { link.end_lane(&lane).await });
                }
            }
            Command::Reconnect(done) => {
                self.next_ticket += 1;
                self.reconnects.insert(self.next_ticket, done);
                self.machine.handle_reconnect(now, self.next_ticket);
            }
            Command::Remove => self.machine.remove(now),
        }
    }

    fn note(&mut self, note: Note) {
        let now = Instant::now();
        // A dial may end without anything to do, and still another status.
        self.changed |= matches!(note, Note::Dialled(..));
        match note {
            Note::Dialled(generation, Ok(link)) => {
                self.era = Some(link.facts().era);
                self.links.insert(generation, link);
                self.machine.handle_dialled(now, generation, Ok(()), chance());
            }
            Note::Dialled(generation, Err(error)) => {
                self.machine.handle_dialled(now, generation, Err(error), chance());
                // The next server at this address may be another one.
                self.era = None;
            }
            Note::Ended(generation, id, ending) => self.ended(now, generation, id, ending),
            Note::Fetched(generation, catalogue) => self.fetched(generation, catalogue),
            Note::Checked(generation, result) if self.machine.live() == Some(generation) => {
                let pulse = match result {
                    Ok(()) => self.health.handle_good(now, chance()),
                    Err(reason) => self.health.handle_bad(now, &reason, chance()),
                };
                self.changed = true;
                if let Some(pulse) = pulse {
                    self.tell_health(&pulse);
                }
            }
            Note::Checked(..) => {}
        }
    }

    fn ended(&mut self, now: Instant, generation: Generation, id: CallId, ending: Ending) {
        match ending {
            Ending::Answered { answer, status } => {
                self.machine.handle_answered(id);
                if let Some(pulse) = self.health.handle_good(now, chance()) {
                    self.tell_health(&pulse);
                }
                if let Some(kept) = self.calls.remove(&id) {
                    if answer.is_ok() {
                        self.renewals.note(&kept.call);
                    }
                    let _ = kept.done.send(CallEnd::Answered { answer, status });
                }
            }
            Ending::NotExecuted(why) => self.machine.handle_not_executed(now, generation, id, &why, chance()),
            Ending::Broken(why) => self.machine.handle_broken(now, generation, id, &why),
        }
    }

    async fn link_event(&mut self, generation: Generation, event: LinkEvent) {
        match event {
            LinkEvent::Lost { reason, exit } => {
                self.machine.handle_lost(Instant::now(), generation, &reason, chance());
                // A program that dies while it is dialled is a failed attempt, and told as such.
                if let Some(exit) = exit.filter(|_| self.connected == Some(generation)) {
                    self.connected = None;
                    self.drain().await;
                    self.tell(BackendEvent::ProcessCrashed(exit)).await;
                }
            }
            LinkEvent::Inbound(Inbound::Notification { method, params }) => {
                let changed = ListKind::ALL.iter().any(|kind| kind.changed() == method);
                if changed {
                    if self.machine.live() == Some(generation) {
                        self.fetch(generation);
                    }
                } else if method == "notifications/resources/updated" {
                    self.updated(&method, params.as_ref()).await;
                } else if method != "notifications/progress" && !method.starts_with("notifications/subscriptions/") {
                    self.tell(BackendEvent::Notification { method, params }).await;
                }
            }
            // A request that belongs to nobody is answered with "nobody", by dropping it.
            LinkEvent::Inbound(Inbound::Request { .. }) => {}
            LinkEvent::Stderr(line) => {
                tracing::info!(server = %self.key.name, source = "stderr", line = %line, "a backend wrote");
                self.tell(BackendEvent::Stderr(line)).await;
            }
        }
    }

    /// A resource has changed, which concerns those who subscribed to it.
    async fn updated(&self, method: &str, params: Option<&Raw>) {
        let uri = Fields::of(params.map(|raw| &**raw)).text("uri").unwrap_or_default();
        for inbox in self.renewals.subscribers(&uri).into_iter().filter_map(|caller| caller.inbox) {
            let inbound = Inbound::Notification { method: method.to_owned(), params: params.cloned() };
            // An update only says that there is something newer to read. A session that is far behind misses one of many.
            let _ = inbox.try_send(inbound);
        }
    }

    /// Does everything that the machine wants.
    async fn drain(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            self.changed |= !matches!(output, Output::Send { .. } | Output::Fail { .. });
            match output {
                Output::Dial(generation) => self.dial(generation),
                Output::Send { generation, call } => self.send(generation, call),
                Output::Fail { call, outcome } => {
                    if let Some(kept) = self.calls.remove(&call) {
                        if let Some(task) = kept.task {
                            task.abort();
                        }
                        let _ = kept.done.send(CallEnd::Failed(outcome));
                    }
                }
                Output::Retire(generation) => {
                    if let Some(link) = self.links.remove(&generation) {
                        link.close();
                    }
                }
                Output::Redialled { ticket, success } => {
                    // Whoever waited looks at the status next, so it must be there first.
                    self.publish();
                    if let Some(done) = self.reconnects.remove(&ticket) {
                        let _ = done.send(success);
                    }
                }
                Output::Tell(told) => self.told(told).await,
            }
        }
        if self.changed {
            self.publish();
        }
    }

    fn dial(&mut self, generation: Generation) {
        let dial = Dial {
            name: self.key.name.clone(),
            generation,
            era: self.spec.era.or(self.era),
            only_era: self.spec.era.is_some(),
            events: self.link_events.clone(),
            http: self.around.http.clone(),
            allow_private: self.allow_private,
            renewals: self.renewals.clone(),
        };
        let (spec, notes) = (self.spec.clone(), self.notes.clone());
        tokio::spawn(async move {
            let dialled = link::dial(&spec, dial).await.map(Arc::new);
            let _ = notes.send(Note::Dialled(generation, dialled)).await;
        });
    }

    fn send(&mut self, generation: Generation, id: CallId) {
        let (Some(kept), Some(link)) = (self.calls.get_mut(&id), self.links.get(&generation)) else { return };
        let (call, link, notes) = (kept.call.clone(), link.clone(), self.notes.clone());
        let task = tokio::spawn(async move {
            let ending = link.call(&call).await;
            let _ = notes.send(Note::Ended(generation, id, ending)).await;
        });
        kept.task = Some(task.abort_handle());
    }

    async fn told(&mut self, told: Told) {
        let facts = self.machine.live().and_then(|live| self.links.get(&live)).map(|link| link.facts().clone());
        let capabilities = facts.map_or_else(empty, |facts| facts.capabilities);
        let event = match told {
            Told::Connected => BackendEvent::Connected { capabilities },
            Told::Reconnected { attempts_taken, down } => {
                BackendEvent::Reconnected { capabilities, attempts_taken, down }
            }
            Told::Disconnected { intentional } => BackendEvent::Disconnected { intentional },
            Told::Reconnecting { attempt, next_retry } => BackendEvent::Reconnecting { attempt, next_retry },
            Told::Removed => BackendEvent::Removed,
        };
        match &event {
            BackendEvent::Connected { .. } | BackendEvent::Reconnected { .. } => self.connected(),
            BackendEvent::Disconnected { .. } => self.health.pause(),
            BackendEvent::Removed => self.removed = true,
            _ => {}
        }
        self.publish();
        self.tell(event).await;
    }

    fn connected(&mut self) {
        self.health.resume(Instant::now(), chance());
        self.snapshot.send_modify(|now| now.connected_at_ms = Some(clock::now_ms()));
        self.fetching = Fetching::Idle;
        let Some(generation) = self.machine.live() else { return };
        self.connected = Some(generation);
        self.fetch(generation);
        if let Some(link) = self.links.get(&generation).cloned() {
            tokio::spawn(async move { link.warm().await });
        }
    }

    fn fetch(&mut self, generation: Generation) {
        if self.fetching != Fetching::Idle {
            self.fetching = Fetching::Again;
            return;
        }
        self.fetching = Fetching::Running;
        let Some(link) = self.links.get(&generation).cloned() else { return };
        let (notes, before) = (self.notes.clone(), self.snapshot.borrow().catalogue.clone());
        tokio::spawn(async move {
            let fetched = tokio::time::timeout(FETCH_TIMEOUT, Catalogue::fetch(&link, &before)).await;
            let catalogue = fetched.unwrap_or_else(|_| {
                let why = "the lists did not arrive in time".to_owned();
                let mut kept = (*before).clone();
                kept.troubles = vec![(ListKind::Tools, why)];
                kept
            });
            let _ = notes.send(Note::Fetched(generation, catalogue)).await;
        });
    }

    fn fetched(&mut self, generation: Generation, catalogue: Catalogue) {
        if self.machine.live() != Some(generation) {
            return;
        }
        let again = self.fetching == Fetching::Again;
        self.fetching = Fetching::Idle;
        let changes = self.snapshot.borrow().catalogue.changes(&catalogue);
        self.snapshot.send_modify(|now| {
            now.catalogue = Arc::new(catalogue);
            now.catalogue_known = true;
        });
        for method in changes {
            // If the hub's queue is full it is far behind, and will look at the lists anyway.
            let _ = self.around.events.try_send((self.key.clone(), BackendEvent::ListChanged(method)));
        }
        if again {
            self.fetch(generation);
        }
    }

    async fn pulse(&mut self, pulse: Pulse) {
        self.changed = true;
        if pulse != Pulse::Ask {
            return self.tell_health(&pulse);
        }
        let Some(generation) = self.machine.live() else { return };
        let Some(link) = self.links.get(&generation).cloned() else { return };
        let (notes, timeout) = (self.notes.clone(), self.around.health_timeout);
        tokio::spawn(async move {
            let method = if link.facts().era == Era::Modern { "server/discover" } else { "ping" };
            let call = Upcall::of_hub(method, None);
            let checked = match tokio::time::timeout(timeout, link.call(&call)).await {
                Ok(Ending::Answered { .. }) => Ok(()),
                Ok(Ending::NotExecuted(why) | Ending::Broken(why)) => Err(why),
                Err(_) => Err("the check was not answered in time".to_owned()),
            };
            let _ = notes.send(Note::Checked(generation, checked)).await;
        });
    }

    fn tell_health(&mut self, pulse: &Pulse) {
        self.changed = true;
        let event = match pulse {
            Pulse::Ask => return,
            Pulse::Restored => BackendEvent::HealthRestored,
            Pulse::Degraded { failures, last_error } => {
                BackendEvent::HealthDegraded { failures: *failures, last_error: last_error.clone() }
            }
        };
        let _ = self.around.events.try_send((self.key.clone(), event));
    }

    async fn tell(&self, event: BackendEvent) {
        let _ = self.around.events.send((self.key.clone(), event)).await;
    }

    fn publish(&mut self) {
        self.changed = false;
        let now = Instant::now();
        let live = self.machine.live().and_then(|live| self.links.get(&live)).map(|link| link.facts().clone());
        self.snapshot.send_modify(|shown| {
            shown.status = self.machine.status();
            shown.last_error = self.machine.last_error().map(ToOwned::to_owned);
            shown.attempt = self.machine.attempt();
            shown.next_retry_at = self.machine.next_retry(now).map(|wait| now + wait);
            shown.health = self.health.word();
            shown.health_failures = self.health.failures();
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
