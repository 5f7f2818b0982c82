//! What the endpoints of a running server reach: its settings, its logs, its sessions and tasks, and how far it has come.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_env::Clock;
use bowline_store::{ReadBudget, Store};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::Authenticator;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::live_streams::LiveStreams;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::session::Sessions;
use crate::task::Tasks;
use crate::tls::Tls;

pub struct Shared {
    pub config: Arc<Config>,
    /// The effective settings with secrets hidden, for the admin API.
    pub effective: Value,
    pub store: Arc<dyn Store>,
    pub logs: Arc<Logs>,
    /// All MCP servers and their clients.
    pub hub: Arc<bowline_hub::Hub>,
    pub metrics: Arc<Metrics>,
    pub clock: Clock,
    /// What readers hold in memory, all together.
    pub reading: Arc<ReadBudget>,
    /// What readers of the same stream share.
    pub live: Arc<LiveStreams>,
    pub auth: Arc<Authenticator>,
    pub sessions: Arc<Sessions>,
    pub tasks: Arc<Tasks>,
    /// The other nodes on this store, where there can be any.
    pub cluster: Option<Arc<Cluster>>,
    /// Held while a client's own name for a chat is given to a session.
    pub naming: tokio::sync::Mutex<()>,
    /// Fires when the server wants to leave: clients are told, nothing new is accepted.
    pub draining: CancellationToken,
    /// Fires when it does leave: connections close.
    pub closing: CancellationToken,
    /// Every open WebSocket, so that the server leaves only after each was told.
    pub connections: TaskTracker,
    /// Where it listens; the port that was asked for may have been 0.
    pub address: SocketAddr,
    /// Where TLS is served: with what.
    pub tls: Option<Tls>,
    /// Whether recovery is done.
    pub ready: AtomicBool,
}

impl Shared {
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Whether recovery is done and the server may be sent traffic.
    pub fn is_ready(&self) -> bool {
        let mute = self.cluster.as_ref().is_some_and(|cluster| cluster.mute().is_some());
        self.ready.load(Ordering::Acquire) && !self.is_draining() && self.store.health().writable && !mute
    }

    /// `http`, or with TLS `https`.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({:?})", self.sessions)
    }
}
