//! Who asks the hub for something: a principal, and whether it operates the hub.

use bowline_protocol::Principal;
use serde::{Deserialize, Serialize};

/// What a credential lets its bearer do with servers that all clients share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequesterRole {
    #[default]
    User,
    /// An admin, or any client of a hub without auth or over stdio.
    Operator,
}

#[derive(Clone, Debug)]
pub struct Requester {
    pub principal: Principal,
    pub role: RequesterRole,
}

impl Requester {
    pub fn operator(principal: Principal) -> Requester {
        Requester { principal, role: RequesterRole::Operator }
    }
}

impl From<Principal> for Requester {
    fn from(principal: Principal) -> Requester {
        Requester { principal, role: RequesterRole::User }
    }
}

impl From<&Principal> for Requester {
    fn from(principal: &Principal) -> Requester {
        principal.clone().into()
    }
}
