//! What the two sides of a call say about themselves: a client what it can be asked, a server what it offers.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Exchange;
use crate::fields::{Raw, empty, raw};

/// What a client says about itself.
pub struct ClientFacts {
    pub capabilities: Raw,
    pub info: Raw,
}

impl fmt::Debug for ClientFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientFacts({} bytes)", self.capabilities.get().len())
    }
}

/// What a server said about itself. It is kept in the store under the names given here.
#[derive(Clone, Serialize, Deserialize)]
pub struct ServerFacts {
    /// How the hub itself speaks with it.
    #[serde(rename = "era")]
    pub exchange: Exchange,
    /// It has sessions, be it besides stateless requests: then clients with sessions have theirs there too.
    #[serde(rename = "speaks_legacy")]
    pub has_sessions: bool,
    pub version: String,
    pub capabilities: Raw,
    pub info: Option<Raw>,
    pub instructions: Option<Raw>,
    /// What `initialize` was answered with, where it was.
    pub initialized: Option<Raw>,
}

impl ServerFacts {
    /// Whether it can be spoken with in this way.
    pub fn offers(&self, exchange: Exchange) -> bool {
        match exchange {
            Exchange::Session => self.has_sessions,
            Exchange::Stateless => self.exchange == Exchange::Stateless,
        }
    }

    /// Whether a server that says this of itself can be taken for the one that said the other.
    pub fn is_same_server(&self, other: &ServerFacts) -> bool {
        let said = |facts: &ServerFacts| (facts.exchange, facts.version.clone(), facts.capabilities.get().to_owned());
        said(self) == said(other)
    }

    /// How requests of a client that speaks so go out: in its own way where the server offers it.
    pub fn exchange_with(&self, client: Exchange) -> Exchange {
        if self.offers(client) { client } else { self.exchange }
    }
}

impl fmt::Debug for ServerFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerFacts({})", self.version)
    }
}

/// Who the hub is, to both sides.
pub fn our_info() -> Raw {
    raw(&json!({ "name": "bowline", "title": "Bowline hub", "version": env!("CARGO_PKG_VERSION") }))
}

/// What a client can do that says nothing of it.
pub fn no_capabilities() -> Raw {
    empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_spoken_for_in_its_own_way_where_the_server_offers_it() {
        let (session, stateless) = (Exchange::Session, Exchange::Stateless);
        for (server, has_sessions, client, expected) in [
            (session, true, session, session),
            (session, true, stateless, session),
            (stateless, false, session, stateless),
            (stateless, false, stateless, stateless),
            (stateless, true, session, session),
            (stateless, true, stateless, stateless),
        ] {
            let (version, capabilities) = (String::new(), no_capabilities());
            let rest = (None, None, None);
            let facts = ServerFacts {
                exchange: server,
                has_sessions,
                version,
                capabilities,
                info: rest.0,
                instructions: rest.1,
                initialized: rest.2,
            };
            assert_eq!(facts.exchange_with(client), expected, "{server:?}, sessions: {has_sessions}, {client:?}");
        }
    }

    #[test]
    fn what_was_stored_of_a_server_is_still_read() {
        let stored = r#"{"era":"modern","speaks_legacy":true,"version":"2026-07-28","capabilities":{},"info":null,"instructions":null,"initialized":null}"#;
        let facts: ServerFacts = serde_json::from_str(stored).unwrap();
        assert!(facts.offers(Exchange::Stateless) && facts.offers(Exchange::Session));
        assert_eq!(raw(&facts).get(), stored);
    }
}
