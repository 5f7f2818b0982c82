//! A backend's question to a client: kept until it is answered once, taken back, or void.

use std::fmt;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::fields::Raw;
use crate::message::Answer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sampling,
    Elicitation,
    Other,
}

impl Kind {
    pub fn of(method: &str) -> Kind {
        match method {
            "sampling/createMessage" => Kind::Sampling,
            "elicitation/create" => Kind::Elicitation,
            _ => Kind::Other,
        }
    }

    pub const fn event(self) -> &'static str {
        match self {
            Kind::Sampling => "sampling_request",
            Kind::Elicitation | Kind::Other => "elicitation_request",
        }
    }

    pub const fn expired(self) -> &'static str {
        match self {
            Kind::Sampling => "sampling_expired",
            Kind::Elicitation | Kind::Other => "elicitation_expired",
        }
    }
}

/// The capability with which a client says that it can answer such a request itself.
pub fn capability(method: &str) -> Option<&'static str> {
    match method {
        "sampling/createMessage" => Some("sampling"),
        "elicitation/create" => Some("elicitation"),
        "roots/list" => Some("roots"),
        _ => None,
    }
}

pub struct Pending {
    pub kind: Kind,
    pub server: String,
    pub method: String,
    pub params: Option<Raw>,
    pub reply: oneshot::Sender<Answer>,
    pub since: Instant,
    /// The stream on which the client itself was asked; without one the tools answer.
    pub stream: Option<String>,
    /// Its backend is another node's, so what happens to ours does not matter.
    pub foreign: bool,
}

impl Pending {
    pub fn new(server: &str, method: String, params: Option<Raw>, reply: oneshot::Sender<Answer>) -> Pending {
        let kind = Kind::of(&method);
        Pending {
            kind,
            server: server.to_owned(),
            method,
            params,
            reply,
            since: Instant::now(),
            stream: None,
            foreign: false,
        }
    }

    pub fn shown(&self, id: &str) -> Value {
        json!({ "id": id, "server": self.server, "method": self.method, "params": self.params })
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({} of {})", self.method, self.server)
    }
}
