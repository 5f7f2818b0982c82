//! One transport to one backend: made by [`dial`], used by calls, gone for good when it is lost.

pub(crate) mod backend_session;
pub(crate) mod http;
pub(crate) mod http_sse;
pub(crate) mod inbound_queue;
pub(crate) mod pending_calls;
pub(crate) mod pipe;
pub(crate) mod process_pool;
pub(crate) mod progress;
pub(crate) mod stdio;
pub(crate) mod streamable_http;
pub(crate) mod subscriptions;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backend::{DialError, Generation};
use bowline_core::process_pool::PoolLimits;
use bowline_env::http::Http1Client;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::facts::ServerFacts;
use crate::call::{BackendCall, CallEnding, Caller, Exchange, Inbound};
use crate::config::Secrets;
use crate::config::spec::{Dialect, Reach, ServerSpec, Target};
use crate::fields::{Fields, Raw};
use crate::message::RpcId;
use crate::revision;

pub use crate::upstream::subscriptions::Renewals;

/// How long a server that knows nothing of `server/discover` is given to say so.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// What is said again to a new connection keeps others waiting, so it must not take for ever.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(10);
/// A child may have to download itself first.
const DIAL_TIMEOUT: Duration = Duration::from_secs(60);

/// What a transport tells its driver.
#[derive(Debug)]
pub enum TransportEvent {
    Lost {
        reason: String,
        exit: Option<Exit>,
    },
    /// Something that belongs to no client in particular.
    Inbound(Inbound),
    /// A process has ended that one client had to itself, or else all those who have none of their own. The server has not.
    Exited {
        client: Option<Arc<str>>,
        exit: Option<Exit>,
    },
    /// A line of a child's stderr, and whose child that is if clients do not share it.
    Stderr {
        line: String,
        client: Option<Arc<str>>,
    },
}

/// How a child process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

/// Called with the name of a setting whose limit was reached.
pub type LimitHit = Arc<dyn Fn(&'static str) + Send + Sync>;

pub type TransportEvents = mpsc::Sender<(Generation, TransportEvent)>;

pub enum Transport {
    Http(Arc<streamable_http::HttpTransport>),
    Sse(Arc<http_sse::SseTransport>),
    Program(Arc<process_pool::ProgramTransport>),
}

impl Transport {
    pub fn facts(&self) -> &ServerFacts {
        match self {
            Transport::Http(transport) => transport.facts(),
            Transport::Sse(transport) => transport.facts(),
            Transport::Program(transport) => transport.facts(),
        }
    }

    /// Dropping the future cancels the call upstream.
    pub async fn call(&self, call: &BackendCall) -> CallEnding {
        match self {
            Transport::Http(transport) => transport.call(call).await,
            Transport::Sse(transport) => transport.call(call).await,
            Transport::Program(transport) => transport.call(call).await,
        }
    }

    pub async fn notify(&self, caller: &Caller, method: &str, params: Option<Raw>) {
        match self {
            Transport::Http(transport) => transport.notify(caller, method, params).await,
            Transport::Sse(transport) => transport.notify(caller, method, params).await,
            Transport::Program(transport) => transport.notify(caller, method, params).await,
        }
    }

    /// A client is gone, and its upstream session with it.
    pub async fn end_backend_session(&self, session_name: &str) {
        match self {
            Transport::Http(transport) => transport.end_backend_session(session_name).await,
            Transport::Sse(transport) => transport.end_backend_session(session_name).await,
            Transport::Program(transport) => transport.end_backend_session(session_name).await,
        }
    }

    /// Whether a client has a session of its own there, in which it gets the notifications that all clients get.
    pub fn has_own(&self, session_name: &str) -> bool {
        match self {
            Transport::Http(transport) => transport.has_session(session_name),
            Transport::Sse(transport) => transport.has_session(session_name),
            Transport::Program(transport) => transport.has_process(session_name),
        }
    }

    /// After a reconnect: clients that wait for something get their sessions back.
    pub async fn warm(&self) {
        match self {
            Transport::Http(transport) => transport.warm().await,
            Transport::Sse(transport) => transport.warm().await,
            Transport::Program(_) => {}
        }
    }

    /// Whether calls repeat arguments in their headers.
    pub fn mirrors_arguments(&self) -> bool {
        matches!(self, Transport::Http(transport) if transport.facts().exchange == Exchange::Stateless)
    }

    /// The request by which the backend shows that it is there.
    pub fn health_method(&self) -> &'static str {
        let facts = self.facts();
        revision::of(&facts.version, facts.exchange).ping_method()
    }

    pub fn close(&self) {
        match self {
            Transport::Http(transport) => transport.close(),
            Transport::Sse(transport) => transport.close(),
            Transport::Program(transport) => transport.close(),
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transport({})", self.facts().version)
    }
}

/// What a dial needs to know besides the target.
#[derive(Clone)]
pub struct Dial {
    pub name: Arc<str>,
    pub generation: Generation,
    /// How the backend was spoken with the last time, or is to be.
    pub exchange: Option<Exchange>,
    /// It is to be spoken with in that way only.
    pub only_exchange: bool,
    pub events: TransportEvents,
    pub http: Http1Client,
    pub reach: Reach,
    pub renewals: Arc<Renewals>,
    /// Secrets that the backend may repeat in its messages and that are removed from them.
    pub secrets: Arc<Secrets>,
    pub programs: TaskTracker,
    /// How many processes of one program there may be.
    pub processes: PoolLimits,
    pub limit_hit: LimitHit,
    /// Fires when the backend is removed.
    pub over: CancellationToken,
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dial({}, {:?})", self.name, self.generation)
    }
}

/// Makes a transport and asks the backend what it is.
pub async fn dial(spec: &ServerSpec, dial: Dial) -> Result<Transport, DialError> {
    let made = async {
        match &spec.target {
            Target::Http { url, headers, dialect: Dialect::Streamable } => {
                match streamable_http::dial(url, headers, dial.clone()).await {
                    Err(streamable_http::HttpDialError::OlderTransport) => {
                        http_sse::dial(url, headers, dial).await.map(Transport::Sse)
                    }
                    Err(streamable_http::HttpDialError::Failed(error)) => Err(error),
                    Err(
                        streamable_http::HttpDialError::Unreachable { reason, retry_after }
                        | streamable_http::HttpDialError::Refused { reason, retry_after },
                    ) => Err(DialError::Passing { reason, retry_after }),
                    Ok(transport) => Ok(Transport::Http(transport)),
                }
            }
            Target::Http { url, headers, dialect: Dialect::Sse } => {
                http_sse::dial(url, headers, dial).await.map(Transport::Sse)
            }
            Target::Invalid { reason, .. } => Err(DialError::Fatal { reason: reason.clone() }),
            Target::Stdio { command, args, env, cwd } => {
                let (command, args, env, cwd) = (command.clone(), args.clone(), env.clone(), cwd.clone());
                process_pool::dial(stdio::Program { command, args, env, cwd }, dial).await.map(Transport::Program)
            }
        }
    };
    match tokio::time::timeout(DIAL_TIMEOUT, made).await {
        Ok(result) => result,
        Err(_) => Err(passing("it did not answer in time")),
    }
}

impl Dial {
    /// The error for a caller whose session the backend refused, in the backend's own words but for what it was given in confidence.
    fn refused_session(&self, reason: &str) -> CallEnding {
        CallEnding::failed(&self.secrets.hide(format!("the server refused a new session: {reason}")))
    }
}

fn passing(reason: impl Into<String>) -> DialError {
    DialError::Passing { reason: reason.into(), retry_after: None }
}

/// A notification that takes back a request.
fn cancelled(id: &RpcId) -> Raw {
    let mut params = Fields::default();
    params.set("requestId", id.to_raw());
    params.put("reason", "the caller does not want it any more");
    params.to_raw()
}
