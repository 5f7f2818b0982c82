//! A backend's question to a client: kept until it is answered once, taken back, or void.

use std::fmt;
use std::time::Instant;

use bowline_env::clock;

use crate::call::server_request::Replier;
use crate::fields::{Fields, Raw};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerRequestKind {
    Sampling,
    Elicitation,
    Other,
}

impl ServerRequestKind {
    pub fn of(method: &str) -> ServerRequestKind {
        match method {
            "sampling/createMessage" => ServerRequestKind::Sampling,
            "elicitation/create" => ServerRequestKind::Elicitation,
            _ => ServerRequestKind::Other,
        }
    }

    pub const fn event(self) -> &'static str {
        match self {
            ServerRequestKind::Sampling => "sampling_request",
            ServerRequestKind::Elicitation | ServerRequestKind::Other => "elicitation_request",
        }
    }

    pub const fn expired(self) -> &'static str {
        match self {
            ServerRequestKind::Sampling => "sampling_expired",
            ServerRequestKind::Elicitation | ServerRequestKind::Other => "elicitation_expired",
        }
    }
}

pub struct PendingServerRequest {
    pub kind: ServerRequestKind,
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

impl PendingServerRequest {
    pub fn new(server: &str, method: String, params: Option<Raw>, reply: Replier) -> PendingServerRequest {
        let kind = ServerRequestKind::of(&method);
        PendingServerRequest {
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

impl fmt::Debug for PendingServerRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({} of {})", self.method, self.server)
    }
}
