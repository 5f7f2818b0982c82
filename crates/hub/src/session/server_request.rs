//! A backend's question to a client: kept until it is answered once, taken back, or void.

use std::fmt;
use std::time::Instant;

use bowline_env::clock;

use crate::call::server_request::Replier;
use crate::fields::{Fields, Raw};

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

pub struct Pending {
    pub kind: Kind,
    pub server: String,
    pub method: String,
    pub params: Option<Raw>,
    pub reply: Replier,
    pub since: Instant,
    /// The stream on which the client itself was asked; without one the tools answer.
    pub stream: Option<String>,
    /// Its backend is another node's, so what happens to ours does not matter.
    pub foreign: bool,
}

impl Pending {
    pub fn new(server: &str, method: String, params: Option<Raw>, reply: Replier) -> Pending {
        let kind = Kind::of(&method);
        Pending {
            kind,
            server: server.to_owned(),
            method,
            params,
            reply,
            since: clock::now(),
            stream: None,
            foreign: false,
        }
    }

    pub fn shown(&self, id: &str) -> Fields {
        let shown = Fields::default().and("id", id).and("server", &self.server);
        shown.and("method", &self.method).and("params", &self.params)
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({} of {})", self.method, self.server)
    }
}
