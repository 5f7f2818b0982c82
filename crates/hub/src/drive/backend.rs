//! Drives one backend: feeds its machine what happens, does what it says, and waits. It holds no rule.

mod lists;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_core::backend::{Backend as Machine, DialError, Generation, Policy, Told};
use bowline_core::health::Pulse;
use bowline_core::seats::SeatLimits;
use bowline_core::{Health, Listing};
use bowline_store::Clock;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::{Backend, BackendEvent, Command, Key, Lists, Snapshot};
use crate::catalogue::{Catalogue, Fetched, ListKind};
use crate::clock::{self, chance};
use crate::desk::{Desk, Order};
use crate::era::Era;
use crate::fields::{Fields, Raw, empty};
use crate::hub::Observer;
use crate::link::{self, Dial, Ending, Exit, Inbound, Link, LinkEvent, Renewals, Upcall};
use crate::memory::Remembered;
use crate::message;
use crate::secrets::Secrets;
use crate::spec::{Reach, ServerSpec};

const COMMANDS_MAX: usize = 4096;
const NOTES_MAX: usize = 4096;
/// While a backend is away, the clock is looked at this often to notice that the machine slept.
const SLEEP_WATCH: Duration = Duration::from_secs(5);

/// What all backends of a hub share.
#[derive(Clone)]
pub struct Around {
    pub clock: Clock,
    pub policy: Policy,
    pub health_interval: Duration,
    pub health_timeout: Duration,
    pub http: reqwest::Client,
    pub events: mpsc::Sender<(Key, BackendEvent)>,
    /// Programs, from their start until they are gone.
    pub programs: TaskTracker,
    /// How many processes of one program there may be.
    pub processes: SeatLimits,
    pub observer: Arc<dyn Observer>,
}

impl fmt::Debug for Around {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Around({} programs)", self.programs.len())
    }
}

/// Something that a task of ours has to say.
enum Note {
    Dialled(Generation, Result<Arc<Link>, DialError>),
    /// Some of its lists, and then that this was all of them.
    Listed(Generation, Vec<Fetched>),
    Fetched(Generation),
    Checked(Generation, Result<(), Ailment>),
}

/// What is wrong with a server that was checked.
enum Ailment {
    /// It is there, and not well.
    Sick(String),
    /// Nobody is there.
    Gone(String),
}

struct Driver {
    key: Key,
    spec: Arc<ServerSpec>,
    secrets: Arc<Secrets>,
    reach: Reach,
    around: Around,
    desk: Arc<Desk>,
    reconnects: HashMap<u64, oneshot::Sender<bool>>,
    next_ticket: u64,
    era: Option<Era>,
    renewals: Arc<Renewals>,
    notes: mpsc::Sender<Note>,
    link_events: link::LinkEvents,
    snapshot: watch::Sender<Snapshot>,
    listing: Listing,
    /// The newest transport that was ever connected.
    connected: Option<Generation>,
    changed: bool,
    removed: bool,
    /// Whoever waits until its removal is told, by the loss of this.
    told_removed: Option<oneshot::Sender<()>>,
    /// Fires when the backend is removed: whatever it has started ends, also what is only being dialled.
    over: CancellationToken,
}

/// Starts a backend's loop and returns the handle on it.
pub fn start(key: Key, spec: ServerSpec, reach: Reach, around: Around, remembered: Option<Remembered>) -> Backend {
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
        lists: if remembered.is_some() { Lists::Remembered } else { Lists::Unknown },
        facts: remembered.as_ref().and_then(|remembered| remembered.facts.clone()),
        catalogue: remembered.map(|remembered| remembered.catalogue).unwrap_or_default(),
        fetches: 0,
    };
    let (snapshot, shown) = watch::channel(first);
    let spec = Arc::new(spec);
    let mut driver = Driver {
        key: key.clone(),
        secrets: Arc::new(Secrets::of(&spec)),
        spec: spec.clone(),
        reach,
        desk: Arc::new(Desk::new(machine, Health::new(around.health_interval, around.health_timeout))),
        listing: Listing::new(around.policy.retry_first, around.policy.retry_max, around.policy.retry_jitter),
        around,
        reconnects: HashMap::new(),
        next_ticket: 0,
        era: None,
        renewals: Arc::default(),
        notes,
        link_events,
        snapshot,
        connected: None,
        changed: true,
        removed: false,
        told_removed: None,
        over: CancellationToken::new(),
    };
    if !spec.disabled {
        driver.desk.lock().machine.start();
        driver.publish();
    }
    let (desk, renewals) = (driver.desk.clone(), driver.renewals.clone());
    tokio::spawn(driver.drive(commanded, noted, linked));
    Backend { key, spec, reach, commands, desk, snapshot: shown, renewals, counts: Arc::default() }
}

impl Driver {
    async fn drive(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut notes: mpsc::Receiver<Note>,
        mut links: mpsc::Receiver<(Generation, LinkEvent)>,
    ) {
        // The first stands still while the machine sleeps, and the second does not.
        let mut clocks = (Instant::now(), self.around.clock.uptime());
        loop {
            self.drain().await;
            if self.removed {
                return self.over.cancel();
            }
            let away = self.desk.live().is_none().then(|| Instant::now() + SLEEP_WATCH);
            let due = self.desk.sleep([away, self.listing.poll_timeout()].into_iter().flatten().min());
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => self.desk.lock().machine.remove(Instant::now()),
                },
                () = self.desk.rung() => {}
                Some(note) = notes.recv() => self.note(note),
                Some((generation, event)) = links.recv() => self.link_event(generation, event).await,
                () = sleep_until(due) => {}
            }
            let now = Instant::now();
            let (awake_since, up_since) = clocks;
            clocks = (now, self.around.clock.uptime());
            let slept = clocks.1.saturating_sub(up_since).saturating_sub(now - awake_since);
            let pulse = {
                let mut books = self.desk.lock();
                if slept > Duration::from_secs(10) {
                    books.machine.handle_woke(now);
                }
                books.machine.handle_timeout(now);
                books.health.handle_timeout(now, chance())
            };
            if let Some(pulse) = pulse {
                self.pulse(&pulse);
            }
            if self.listing.handle_timeout(now) {
                self.fetch();
            }
        }
    }

    fn command(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Notify { caller, method, params } => {
                if let Some((_, link)) = self.desk.live() {
                    tokio::spawn(async move { link.notify(&caller, &method, params).await });
                }
            }
            Command::EndLane(lane) => {
                self.renewals.forget(&lane);
                for link in self.desk.lock().links.values() {
                    let (link, lane) = (link.clone(), lane.clone());
                    tokio::spawn(async move { link.end_lane(&lane).await });
                }
            }
            Command::Reconnect(done) => {
                self.next_ticket += 1;
                self.reconnects.insert(self.next_ticket, done);
                self.desk.lock().machine.handle_reconnect(now, self.next_ticket);
            }
            Command::Relist => self.want_lists(),
            Command::Remove(told) => {
                self.told_removed = Some(told);
                self.desk.lock().machine.remove(now);
            }
        }
    }

    fn note(&mut self, note: Note) {
        let now = Instant::now();
        // A dial may end without anything to do, and still another status.
        self.changed |= matches!(note, Note::Dialled(..));
        match note {
            Note::Dialled(generation, Ok(link)) => {
                self.era = Some(link.facts().era);
                let mut books = self.desk.lock();
                books.links.insert(generation, link);
                books.machine.handle_dialled(now, generation, Ok(()), chance());
            }
            Note::Dialled(generation, Err(error)) => {
                let error = error.map(|reason| self.secrets.hide(reason));
                self.desk.lock().machine.handle_dialled(now, generation, Err(error), chance());
                // The next server at this address may be another one.
                self.era = None;
            }
            Note::Listed(generation, fetched) => self.listed(generation, fetched),
            Note::Fetched(generation) => self.fetched(generation),
            Note::Checked(generation, result) if self.desk.is_live(generation) => {
                let pulse = {
                    let books = &mut *self.desk.lock();
                    match result {
                        Ok(()) => books.health.handle_good(now, chance()),
                        Err(Ailment::Sick(reason)) => {
                            books.health.handle_bad(now, &self.secrets.hide(reason), chance())
                        }
                        Err(Ailment::Gone(reason)) => {
                            books.machine.handle_lost(now, generation, &self.secrets.hide(reason), chance());
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

    async fn link_event(&mut self, generation: Generation, event: LinkEvent) {
        match event {
            LinkEvent::Lost { reason, exit } => {
                let reason = self.secrets.hide(reason);
                self.desk.lock().machine.handle_lost(Instant::now(), generation, &reason, chance());
                // A program that dies again and again while it is dialled is told of with the same restraint as the dials.
                let was_connected = self.connected == Some(generation);
                let told = was_connected || self.desk.lock().machine.tells_each_attempt();
                if let Some(exit) = exit.filter(|_| told) {
                    self.connected = self.connected.filter(|_| !was_connected);
                    self.drain().await;
                    self.tell(BackendEvent::ProcessCrashed(exit)).await;
                }
            }
            LinkEvent::Inbound(Inbound::Notification { method, params, .. }) => {
                let changed = ListKind::ALL.iter().any(|kind| kind.changed() == method);
                if changed {
                    if self.desk.is_live(generation) {
                        self.want_lists();
                    }
                } else if method == "notifications/resources/updated" {
                    self.updated(generation, &method, params.as_ref());
                } else if method != "notifications/progress" && !method.starts_with("notifications/subscriptions/") {
                    self.tell(BackendEvent::Notification { method, params }).await;
                }
            }
            // A request that belongs to nobody is answered with "nobody", by dropping it.
            LinkEvent::Inbound(Inbound::Request { .. }) => {}
            LinkEvent::Exited { client, exit } => {
                // One that only closes its output has no way to end yet, and is as lost.
                let exit = exit.unwrap_or(Exit { code: None, signal: None });
                self.tell(BackendEvent::ProcessCrashed(exit).of_client(Some(client))).await;
            }
            LinkEvent::Stderr { line, client } => {
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
        while let Some(order) = self.desk.order() {
            self.changed = true;
            match order {
                Order::Dial(generation) => self.dial(generation),
                Order::Retire(generation) => {
                    let gone = self.desk.lock().links.remove(&generation);
                    if let Some(link) = gone {
                        link.close();
                    }
                }
                Order::Redialled { ticket, success } => {
                    // Whoever waited looks at the status next, so it must be there first.
                    self.publish();
                    if let Some(done) = self.reconnects.remove(&ticket) {
                        let _ = done.send(success);
                    }
                }
                Order::Tell(told) => self.told(told).await,
                Order::TellHealth(pulse) => self.tell_health(&pulse),
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
            reach: self.reach,
            renewals: self.renewals.clone(),
            secrets: self.secrets.clone(),
            programs: self.around.programs.clone(),
            processes: self.around.processes,
            observer: self.around.observer.clone(),
            over: self.over.clone(),
        };
        let (spec, notes, over) = (self.spec.clone(), self.notes.clone(), self.over.clone());
        self.around.programs.spawn(async move {
            let Some(dialled) = over.run_until_cancelled(link::dial(&spec, dial)).await else { return };
            let dialled = dialled.map(Arc::new);
            let _ = notes.send(Note::Dialled(generation, dialled)).await;
        });
    }

    async fn told(&mut self, told: Told) {
        let capabilities = self.desk.live().map_or_else(empty, |(_, link)| link.facts().capabilities.clone());
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
            BackendEvent::Disconnected { .. } => self.desk.lock().health.pause(),
            BackendEvent::Removed => self.removed = true,
            _ => {}
        }
        self.publish();
        self.tell(event).await;
        if self.removed {
            // What it offered is gone with it.
            let offered = self.snapshot.borrow().catalogue.changes(&Catalogue::default());
            for method in offered {
                self.tell(BackendEvent::ListChanged(method)).await;
            }
        }
    }

    fn connected(&mut self) {
        self.desk.lock().health.resume(Instant::now(), chance());
        self.snapshot.send_modify(|now| now.connected_at_ms = Some(clock::wall_ms()));
        self.listing.reset();
        let Some((generation, link)) = self.desk.live() else { return };
        self.connected = Some(generation);
        self.want_lists();
        tokio::spawn(async move { link.warm().await });
    }

    fn pulse(&mut self, pulse: &Pulse) {
        self.changed = true;
        if *pulse != Pulse::Ask {
            return self.tell_health(pulse);
        }
        let Some((generation, link)) = self.desk.live() else { return };
        let (notes, timeout) = (self.notes.clone(), self.around.health_timeout);
        tokio::spawn(async move {
            let method = if link.facts().era == Era::Modern { "server/discover" } else { "ping" };
            let call = Upcall::of_hub(method, None);
            let checked = match tokio::time::timeout(timeout, link.call(&call)).await {
                // That it does not know the question is an answer; that it broke on it is none.
                Ok(Ending::Answered { answer: Err(error), .. })
                    if message::code_of(&error) == message::INTERNAL_ERROR =>
                {
                    Err(Ailment::Sick(message::message_of(&error)))
                }
                Ok(Ending::Answered { .. }) => Ok(()),
                Ok(Ending::NotExecuted(why)) => Err(Ailment::Gone(why)),
                Ok(Ending::Broken(why) | Ending::Refused { why, .. }) => Err(Ailment::Sick(why)),
                Err(_) => Err(Ailment::Sick("the check was not answered in time".to_owned())),
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
        let live = self.desk.live().map(|(_, link)| link.facts().clone());
        let books = self.desk.lock();
        self.snapshot.send_modify(|shown| {
            shown.status = books.machine.status();
            shown.last_error = books.machine.last_error().map(ToOwned::to_owned);
            shown.attempt = books.machine.attempt();
            shown.next_retry_at = books.machine.next_retry(now).map(|wait| now + wait);
            shown.health = books.health.word();
            shown.health_failures = books.health.failures();
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
