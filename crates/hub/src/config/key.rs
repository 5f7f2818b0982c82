//! Which server: its name, and whose it is.

use std::sync::Arc;

use bowline_protocol::Principal;

/// Which backend: its name, and whose it is. All clients share those of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendKey {
    pub owner: Option<Principal>,
    pub name: Arc<str>,
}

impl BackendKey {
    /// Of a server that all clients share.
    pub fn shared(name: &str) -> BackendKey {
        BackendKey { owner: None, name: name.into() }
    }

    pub fn of(owner: &Principal, name: &str) -> BackendKey {
        BackendKey { owner: Some(owner.clone()), name: name.into() }
    }
}
