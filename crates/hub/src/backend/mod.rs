//! A backend as the rest of the hub sees it: something to call, with a status that is always true, and counts of what became of
//! its calls.

pub(crate) mod dispatcher;
pub(crate) mod supervisor;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bowline_core::backend::{BackendStatus, CallFailure, ResendPolicy};
use bowline_env::clock;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use crate::backend::dispatcher::Dispatcher;
use crate::call::facts::ServerFacts;
use crate::call::outcome::CallOutcome;
use crate::call::{BackendCall, CallEnd, Caller, Exchange};
use crate::catalogue::Catalogue;
use crate::config::BackendKey;
use crate::config::spec::{Reach, ServerSpec};
use crate::fields::{Fields, Raw};
use crate::upstream::{Exit, Renewals};

/// What happened to a backend, for sessions, logs and metrics.
pub enum BackendEvent {
    Added,
    Connected {
        capabilities: Raw,
    },
    Disconnected {
        intentional: bool,
    },
    Reconnecting {
        attempt: u32,
        next_retry: Duration,
    },
    Reconnected {
        capabilities: Raw,
        attempts_taken: u32,
        down: Duration,
    },
    HealthDegraded {
        failures: u32,
        last_error: String,
    },
    HealthRestored,
    ProcessCrashed(Exit),
    Removed,
    /// One of its lists is another now; the notification that says so.
    ListChanged(&'static str),
    /// Something it said that belongs to no client in particular.
    Notification {
        method: String,
        params: Option<Raw>,
    },
    /// A line of its stderr.
    Stderr(String),
    /// Something that concerns one client alone: its session's name.
    OfClient {
        client: Arc<str>,
        event: Box<BackendEvent>,
    },
}

impl fmt::Debug for BackendEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl BackendEvent {
    /// The same for one client alone, if there is one.
    pub(crate) fn of_client(self, client: Option<Arc<str>>) -> BackendEvent {
        match client {
            Some(client) => BackendEvent::OfClient { client, event: Box::new(self) },
            None => self,
        }
    }

    /// Whether a session of this name is concerned.
    pub(crate) fn concerns(&self, session: &str) -> bool {
        match self {
            BackendEvent::OfClient { client, .. } => **client == *session,
            _ => true,
        }
    }

    /// Whether the process is gone that one client had to itself.
    pub(crate) fn is_own_crash(&self) -> bool {
        matches!(self, BackendEvent::OfClient { event, .. } if matches!(**event, BackendEvent::ProcessCrashed(_)))
    }

    pub fn name(&self) -> &'static str {
        match self {
            BackendEvent::Added => "server_added",
            BackendEvent::Connected { .. } => "server_connected",
            BackendEvent::Disconnected { .. } => "server_disconnected",
            BackendEvent::Reconnecting { .. } => "server_reconnecting",
            BackendEvent::Reconnected { .. } => "server_reconnected",
            BackendEvent::HealthDegraded { .. } => "server_health_degraded",
            BackendEvent::HealthRestored => "server_health_restored",
            BackendEvent::ProcessCrashed(_) => "server_process_crashed",
            BackendEvent::Removed => "server_removed",
            BackendEvent::ListChanged(_) | BackendEvent::Notification { .. } => "notification",
            BackendEvent::Stderr(_) => "log",
            BackendEvent::OfClient { event, .. } => event.name(),
        }
    }

    /// The event's data, as `await_activity` gives it.
    pub fn data(&self, name: &str) -> Fields {
        let ms = |span: &Duration| span.as_millis() as u64;
        let data = Fields::default().and("name", name);
        match self {
            BackendEvent::Added | BackendEvent::HealthRestored | BackendEvent::Removed => data,
            BackendEvent::Connected { capabilities } => data.and("capabilities", capabilities),
            BackendEvent::Disconnected { intentional } => data.and("wasIntentional", intentional),
            BackendEvent::Reconnecting { attempt, next_retry } => {
                data.and("attempt", attempt).and("nextRetryMs", &ms(next_retry))
            }
            BackendEvent::Reconnected { capabilities, attempts_taken, down } => {
                data.and("capabilities", capabilities).and("attemptsTaken", attempts_taken).and("downMs", &ms(down))
            }
            BackendEvent::HealthDegraded { failures, last_error } => {
                data.and("consecutiveFailures", failures).and("lastError", last_error)
            }
            BackendEvent::ProcessCrashed(exit) => data.and("exitCode", &exit.code).and("signal", &exit.signal),
            BackendEvent::ListChanged(method) => data.and("method", method),
            BackendEvent::Notification { method, params } => notification_data(name, method, params.as_ref()),
            // Programs write all sorts of things there, so nothing says that it is more than information.
            BackendEvent::Stderr(line) => data.and("line", line).and("level", "info"),
            BackendEvent::OfClient { event, .. } => event.data(name),
        }
    }
}

/// The data of the event that tells a notification of a backend's.
pub fn notification_data(server: &str, method: &str, params: Option<&Raw>) -> Fields {
    Fields::default().and("name", server).and("method", method).and("params", &params)
}

/// Where a backend stands now.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub status: BackendStatus,
    pub connected_at_ms: Option<u64>,
    pub last_error: Option<String>,
    pub attempt: u32,
    pub next_retry_at: Option<Instant>,
    pub health: &'static str,
    pub health_failures: u32,
    pub facts: Option<ServerFacts>,
    pub catalogue: Arc<Catalogue>,
    pub lists: Lists,
    /// How often they were fetched.
    pub fetches: u64,
}

/// Where the lists of a server come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// They were never seen.
    Unknown,
    /// From before our own restart.
    Remembered,
    /// Some from the server itself; the others may come yet.
    Arriving,
    /// From the server itself.
    Fetched,
}

impl Lists {
    pub fn are_known(self) -> bool {
        self != Lists::Unknown
    }
}

impl Snapshot {
    pub fn is_connected(&self) -> bool {
        self.status == BackendStatus::Connected
    }

    /// As `list_servers` shows it.
    pub fn shown(&self, name: &str, spec: &ServerSpec) -> Fields {
        let mut shown = Fields::default().and("name", name);
        if let Some((kind, target)) = spec.shown() {
            shown.put(kind, &target);
        }
        shown.put("status", self.status.as_str());
        shown.put("connected", &self.is_connected());
        if let Some(at) = self.connected_at_ms.filter(|_| self.is_connected()) {
            shown.put("connectedAt", &clock::rfc3339(at));
        }
        if let Some(error) = &self.last_error {
            shown.put("lastError", error);
        }
        if self.status == BackendStatus::Reconnecting {
            shown.put("reconnectAttempt", &self.attempt);
            let left = self.next_retry_at.map(|at| at.saturating_duration_since(clock::now()));
            shown.put("nextRetryMs", &(left.unwrap_or_default().as_millis() as u64));
        }
        if self.is_connected() {
            shown.put("healthStatus", self.health);
            shown.put("consecutiveHealthFailures", &self.health_failures);
        }
        if let Some(facts) = &self.facts {
            shown.put("capabilities", &facts.capabilities);
            shown.put("protocolVersion", &facts.version);
            shown.put("serverInfo", &facts.info);
        }
        shown
    }
}

/// What is known of a server before it has been reached.
#[derive(Debug, Default)]
pub struct RememberedServer {
    pub facts: Option<ServerFacts>,
    pub catalogue: Arc<Catalogue>,
}

pub(crate) enum BackendCommand {
    Notify {
        caller: Caller,
        method: String,
        params: Option<Raw>,
    },
    EndBackendSession(Arc<str>),
    Reconnect(oneshot::Sender<bool>),
    Relist,
    /// Answered, by dropping it, once all that there is to tell of the removal is on its way.
    Remove(oneshot::Sender<()>),
}

/// A handle on one backend. Clones share it.
#[derive(Clone)]
pub struct Backend {
    pub key: BackendKey,
    pub spec: Arc<ServerSpec>,
    pub(crate) reach: Reach,
    pub(crate) commands: mpsc::Sender<BackendCommand>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) snapshot: watch::Receiver<Snapshot>,
    pub(crate) renewals: Arc<Renewals>,
    pub counts: Arc<CallCounts>,
    pub(crate) observer: Arc<dyn CallObserver>,
}

impl Backend {
    pub fn name(&self) -> &str {
        &self.key.name
    }

    pub fn snapshot(&self) -> Snapshot {
        self.snapshot.borrow().clone()
    }

    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.snapshot.borrow().catalogue.clone()
    }

    pub fn shown(&self) -> Fields {
        self.snapshot().shown(self.name(), &self.spec)
    }

    /// Whether this is true of what it said of itself; it is not of one of which nothing is known yet.
    pub fn said(&self, is_true: impl FnOnce(&ServerFacts) -> bool) -> bool {
        self.snapshot.borrow().facts.as_ref().is_some_and(is_true)
    }

    /// Whether it can be spoken with in this way. One of which nothing is known yet is taken for one with sessions.
    pub fn offers(&self, exchange: Exchange) -> bool {
        let snapshot = self.snapshot.borrow();
        snapshot.facts.as_ref().map_or(exchange == Exchange::Session, |facts| facts.offers(exchange))
    }

    /// One request, with one ending. Dropping the future takes the call back.
    pub async fn call(&self, call: BackendCall, deadline: Instant, resend: ResendPolicy) -> CallEnd {
        dispatcher::run(self, &call, deadline, resend).await
    }

    /// The same for a request that is worth nothing if it is not answered in this time. Once it is sent, a deadline alone would
    /// not end it.
    pub async fn call_within(&self, call: BackendCall, patience: Duration, resend: ResendPolicy) -> CallEnd {
        let called = self.call(call, clock::now() + patience, resend);
        let silent = |_| {
            let reason = format!("it had not answered after {} s", patience.as_secs());
            CallEnd::Failed(CallFailure::Unknown { reason })
        };
        tokio::time::timeout(patience, called).await.unwrap_or_else(silent)
    }

    pub async fn notify(&self, caller: Caller, method: &str, params: Option<Raw>) {
        let _ = self.commands.send(BackendCommand::Notify { caller, method: method.to_owned(), params }).await;
    }

    pub async fn end_backend_session(&self, session_name: Arc<str>) {
        let _ = self.commands.send(BackendCommand::EndBackendSession(session_name)).await;
    }

    /// Whether a client has a session of its own there.
    pub fn has_own(&self, session_name: &str) -> bool {
        self.dispatcher.live().is_some_and(|(_, transport)| transport.has_own(session_name))
    }

    /// Returns after the dial, with whether it went well.
    pub async fn reconnect(&self) -> bool {
        let (done, ended) = oneshot::channel();
        let _ = self.commands.send(BackendCommand::Reconnect(done)).await;
        ended.await.unwrap_or(false)
    }

    /// Fetches the lists anew and waits for them, at most this long.
    pub async fn relist(&self, patience: Duration) {
        let (before, mut snapshot) = (self.snapshot.borrow().fetches, self.snapshot.clone());
        if self.commands.send(BackendCommand::Relist).await.is_ok() {
            let newer = snapshot.wait_for(|now| now.fetches > before);
            let _ = tokio::time::timeout(patience, newer).await;
        }
    }

    /// Waits until the lists are fetched or the first dial is over, at most this long.
    pub async fn settled(&self, patience: Duration) {
        let mut snapshot = self.snapshot.clone();
        let settled = snapshot.wait_for(|now| {
            now.lists == Lists::Fetched || !matches!(now.status, BackendStatus::Connecting | BackendStatus::Connected)
        });
        let _ = tokio::time::timeout(patience, settled).await;
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backend({}, {})", self.key.name, self.snapshot.borrow().status.as_str())
    }
}

#[derive(Default)]
pub struct CallCounts {
    next_call: AtomicU64,
    open: AtomicU64,
    ended: [AtomicU64; CallOutcome::ALL.len()],
    micros: AtomicU64,
    last_micros: AtomicU64,
}

impl CallCounts {
    /// A number for each call.
    pub fn next_call(&self) -> u64 {
        self.next_call.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A call begins. Dropping what this gives without an ending means that its caller walked away.
    pub fn begin(&self) -> CountedCall<'_> {
        self.open.fetch_add(1, Ordering::Relaxed);
        CountedCall { counts: self, began: clock::now() }
    }

    /// Calls that are under way.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed) as usize
    }

    pub fn shown(&self) -> Value {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counted = CallOutcome::ALL.iter().zip(&self.ended);
        let outcomes: serde_json::Map<String, Value> =
            counted.map(|(outcome, count)| (outcome.as_str().to_owned(), of(count).into())).collect();
        let total: u64 = self.ended.iter().map(of).sum();
        let ms = |micros: u64| micros as f64 / 1000.0;
        json!({
            "total": total,
            "open": of(&self.open),
            "outcomes": outcomes,
            "meanMs": (total > 0).then(|| ms(of(&self.micros) / total)),
            "lastMs": (total > 0).then(|| ms(of(&self.last_micros))),
        })
    }
}

/// A call that is under way.
#[derive(Debug)]
pub struct CountedCall<'a> {
    counts: &'a CallCounts,
    began: Instant,
}

impl CountedCall<'_> {
    /// The call has ended so; returns how many seconds it took.
    pub fn end(&self, outcome: CallOutcome) -> f64 {
        let took = clock::since(self.began);
        self.counts.ended[outcome.place()].fetch_add(1, Ordering::Relaxed);
        self.counts.micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        self.counts.last_micros.store(took.as_micros() as u64, Ordering::Relaxed);
        took.as_secs_f64()
    }
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for CallCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counts({})", self.shown())
    }
}

/// What the hub counts, for the metrics of the server around it.
pub trait Observer: Send + Sync {
    /// What is told of the calls to one server, from its start on.
    fn calls_of(&self, key: &BackendKey) -> Arc<dyn CallObserver>;
    fn backend_event(&self, name: &'static str);
    /// A limit was reached; the name is that of its setting.
    fn limit_hit(&self, _name: &'static str) {}
}

/// What the calls to one server come to, for the same metrics.
pub trait CallObserver: Send + Sync {
    fn call_ended(&self, outcome: CallOutcome, seconds: f64);
}

pub(crate) struct NoObserver;

impl CallObserver for NoObserver {
    fn call_ended(&self, _outcome: CallOutcome, _seconds: f64) {}
}

impl Observer for NoObserver {
    fn calls_of(&self, _key: &BackendKey) -> Arc<dyn CallObserver> {
        Arc::new(NoObserver)
    }

    fn backend_event(&self, _name: &'static str) {}
}

#[cfg(test)]
mod counts_tests {
    use super::*;

    #[test]
    fn each_call_is_open_until_it_ends_and_counted_under_its_outcome() {
        let counts = CallCounts::default();
        let (first, second) = (counts.begin(), counts.begin());
        assert_eq!(counts.shown()["open"], 2);
        first.end(CallOutcome::Unknown);
        drop(first);
        drop(second);
        let shown = counts.shown();
        assert_eq!((&shown["open"], &shown["total"]), (&json!(0), &json!(1)));
        assert_eq!(
            shown["outcomes"],
            json!({ "result": 0, "tool_error": 0, "error": 0, "unknown": 1, "not_executed": 0 })
        );
        assert!(shown["meanMs"].is_number());
    }
}
