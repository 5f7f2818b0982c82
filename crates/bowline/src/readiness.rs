//! Whether this server may be sent traffic, and what keeps it from that.

use std::fmt;
use std::sync::Arc;

use bowline_protocol::LogId;
use bowline_store::{Health, Store};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cluster::Cluster;
use crate::lifecycle::Lifecycle;

/// How the store is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct StoreHealth {
    /// Whether it takes events now.
    writable: bool,
    /// What a crash or a power cut can lose, in one sentence.
    loss_window: String,
    /// What is wrong, in sentences.
    troubles: Vec<String>,
    /// Logs that were set aside because a record of theirs is damaged.
    #[schemars(with = "Vec<String>")]
    quarantined: Vec<LogId>,
}

impl From<Health> for StoreHealth {
    fn from(Health { writable, loss_window, problems, quarantined, .. }: Health) -> StoreHealth {
        StoreHealth { writable, loss_window, troubles: problems, quarantined }
    }
}

pub struct Readiness {
    pub lifecycle: Arc<Lifecycle>,
    pub store: Arc<dyn Store>,
    /// The other nodes on this store, where there can be any: they have to see this one.
    pub cluster: Option<Arc<Cluster>>,
}

impl Readiness {
    pub fn is_ready(&self) -> bool {
        let mute = self.cluster.as_ref().is_some_and(|cluster| cluster.heartbeat_failure().is_some());
        self.lifecycle.is_recovered() && !self.lifecycle.is_draining() && self.store.health().writable && !mute
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Readiness({})", self.is_ready())
    }
}
