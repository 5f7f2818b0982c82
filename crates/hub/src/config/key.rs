//! Which server: its name, and whose it is.

use std::sync::Arc;

use bowline_protocol::Principal;

/// Which backend: its name, and whose it is. Those of the configuration are everybody's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub owner: Option<Principal>,
    pub name: Arc<str>,
}

impl Key {
    /// Of a server that is everybody's.
    pub fn shared(name: &str) -> Key {
        Key { owner: None, name: name.into() }
    }

    pub fn of(owner: &Principal, name: &str) -> Key {
        Key { owner: Some(owner.clone()), name: name.into() }
    }
}
