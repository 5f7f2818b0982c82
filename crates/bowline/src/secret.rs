//! What a client shows to prove that a session or a task is its own.

use bowline_protocol::frame::client::Secret;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A secret that a client showed, hashed when it arrives: enough to compare with, and of no use to a thief.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Presented(pub String);

impl From<&Secret> for Presented {
    fn from(secret: &Secret) -> Presented {
        Presented::hash(secret.expose())
    }
}

impl Presented {
    pub fn hash(secret: &str) -> Presented {
        Presented(Sha256::digest(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl std::fmt::Debug for Presented {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Presented({} bytes)", self.0.len())
    }
}
