//! A backend as the rest of the hub sees it: something to call, with a status that is always true.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_core::backend::{CallId, Outcome, Resend, Status};
use bowline_protocol::Principal;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use crate::catalogue::Catalogue;
use crate::counts::Counts;
use crate::fields::Raw;
use crate::link::{Caller, Exit, Facts, Upcall};
use crate::message::Answer;
use crate::spec::ServerSpec;

/// Which backend: its name, and whose it is. Those of the configuration are everybody's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub owner: Option<Principal>,
    pub name: Arc<str>,
}

/// How a call through the hub ended.
pub enum CallEnd {
    Answered { answer: Answer, status: u16 },
    Failed(Outcome),
}

impl fmt::Debug for CallEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallEnd::Answered { answer, status } => write!(f, "Answered(ok: {}, {status})", answer.is_ok()),
            CallEnd::Failed(outcome) => write!(f, "Failed({outcome:?})"),
        }
    }
}

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
}

impl fmt::Debug for BackendEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl BackendEvent {
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
        }
    }

    /// The event's data, as `await_activity` gives it.
    pub fn data(&self, name: &str) -> Value {
        let ms = |span: &Duration| span.as_millis() as u64;
        match self {
            BackendEvent::Added | BackendEvent::HealthRestored | BackendEvent::Removed => json!({ "name": name }),
            BackendEvent::Connected { capabilities } => json!({ "name": name, "capabilities": capabilities }),
            BackendEvent::Disconnected { intentional } => json!({ "name": name, "wasIntentional": intentional }),
            BackendEvent::Reconnecting { attempt, next_retry } => {
                json!({ "name": name, "attempt": attempt, "nextRetryMs": ms(next_retry) })
            }
            BackendEvent::Reconnected { capabilities, attempts_taken, down } => json!({
                "name": name, "capabilities": capabilities, "attemptsTaken": attempts_taken, "downMs": ms(down),
            }),
            BackendEvent::HealthDegraded { failures, last_error } => {
                json!({ "name": name, "consecutiveFailures": failures, "lastError": last_error })
            }
            BackendEvent::ProcessCrashed(exit) => {
                json!({ "name": name, "exitCode": exit.code, "signal": exit.signal })
            }
            BackendEvent::ListChanged(method) => json!({ "name": name, "method": method }),
            BackendEvent::Notification { method, params } => {
                json!({ "name": name, "method": method, "params": params })
            }
            BackendEvent::Stderr(line) => json!({ "name": name, "line": line }),
        }
    }
}

/// Where a backend stands now.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub status: Status,
    pub connected_at_ms: Option<u64>,
    pub last_error: Option<String>,
    pub attempt: u32,
    pub next_retry_at: Option<Instant>,
    pub health: &'static str,
    pub health_failures: u32,
    pub facts: Option<Facts>,
    pub catalogue: Arc<Catalogue>,
    /// Whether the lists were ever fetched.
    pub catalogue_known: bool,
}

impl Snapshot {
    pub fn is_connected(&self) -> bool {
        self.status == Status::Connected
    }

    /// As `list_servers` shows it.
    pub fn shown(&self, name: &str, spec: &ServerSpec) -> Value {
        let (kind, target) = spec.shown();
        let mut shown = json!({
            "name": name,
            kind: target,
            "status": self.status.as_str(),
            "connected": self.is_connected(),
        });
        if let Some(at) = self.connected_at_ms.filter(|_| self.is_connected()) {
            shown["connectedAt"] = crate::clock::rfc3339(at).into();
        }
        if let Some(error) = &self.last_error {
            shown["lastError"] = error.as_str().into();
        }
        if self.status == Status::Reconnecting {
            shown["reconnectAttempt"] = self.attempt.into();
            let left = self.next_retry_at.map(|at| at.saturating_duration_since(Instant::now()));
            shown["nextRetryMs"] = (left.unwrap_or_default().as_millis() as u64).into();
        }
        if self.is_connected() {
            shown["healthStatus"] = self.health.into();
            shown["consecutiveHealthFailures"] = self.health_failures.into();
        }
        if let Some(facts) = &self.facts {
            shown["capabilities"] = json!(facts.capabilities);
            shown["protocolVersion"] = facts.version.as_str().into();
            shown["serverInfo"] = json!(facts.info);
        }
        shown
    }
}

pub(crate) enum Command {
    Call { id: CallId, call: Arc<Upcall>, deadline: Instant, resend: Resend, done: oneshot::Sender<CallEnd> },
    Cancel(CallId),
    Notify { caller: Caller, method: String, params: Option<Raw> },
    EndLane(Arc<str>),
    Reconnect(oneshot::Sender<bool>),
    Remove,
}

/// A handle on one backend. Clones share it.
#[derive(Clone)]
pub struct Backend {
    pub key: Key,
    pub spec: Arc<ServerSpec>,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) snapshot: watch::Receiver<Snapshot>,
    pub counts: Arc<Counts>,
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

    pub fn shown(&self) -> Value {
        self.snapshot().shown(self.name(), &self.spec)
    }

    /// One request, with one ending. Dropping the future takes the call back.
    pub async fn call(&self, call: Upcall, deadline: Instant, resend: Resend) -> CallEnd {
        let id = self.counts.next_call();
        let (done, ended) = oneshot::channel();
        let mut open = Open { commands: &self.commands, id, over: false };
        let command = Command::Call { id, call: Arc::new(call), deadline, resend, done };
        let gone = || {
            CallEnd::Failed(Outcome::Unavailable {
                status: Status::Disconnected,
                attempt: 0,
                next_retry: None,
                last_error: Some("the server was removed".into()),
            })
        };
        if self.commands.send(command).await.is_err() {
            open.over = true;
            return gone();
        }
        let end = ended.await.unwrap_or_else(|_| gone());
        open.over = true;
        end
    }

    pub async fn notify(&self, caller: Caller, method: &str, params: Option<Raw>) {
        let _ = self.commands.send(Command::Notify { caller, method: method.to_owned(), params }).await;
    }

    pub async fn end_lane(&self, lane: Arc<str>) {
        let _ = self.commands.send(Command::EndLane(lane)).await;
    }

    /// Returns after the dial, with whether it went well.
    pub async fn reconnect(&self) -> bool {
        let (done, ended) = oneshot::channel();
        let _ = self.commands.send(Command::Reconnect(done)).await;
        ended.await.unwrap_or(false)
    }

    /// Waits until the lists are known or the first dial is over, at most this long.
    pub async fn settled(&self, patience: Duration) {
        let mut snapshot = self.snapshot.clone();
        let settled = snapshot
            .wait_for(|now| now.catalogue_known || !matches!(now.status, Status::Connecting | Status::Connected));
        let _ = tokio::time::timeout(patience, settled).await;
    }
}

struct Open<'a> {
    commands: &'a mpsc::Sender<Command>,
    id: CallId,
    over: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.over {
            // If the queue is full the call runs on, and its answer finds nobody; it costs no more than that.
            let _ = self.commands.try_send(Command::Cancel(self.id));
        }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backend({}, {})", self.key.name, self.snapshot.borrow().status.as_str())
    }
}
