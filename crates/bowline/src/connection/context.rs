//! What all connections of a server share.

use std::sync::Arc;

use crate::auth::Authenticator;
use crate::config::Config;
use crate::lifecycle::Lifecycle;
use crate::metrics::Metrics;
use crate::session::Sessions;
use crate::stream::Streams;
use crate::stream::reader::ReaderContext;

pub struct ConnectionContext {
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
    pub auth: Arc<Authenticator>,
    pub lifecycle: Arc<Lifecycle>,
    pub sessions: Arc<Sessions>,
    pub streams: Arc<Streams>,
    pub readers: Arc<ReaderContext>,
}

impl std::fmt::Debug for ConnectionContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConnectionContext")
    }
}
