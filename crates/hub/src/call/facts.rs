//! What the two sides of a call say about themselves: a client what it can be asked and how much it wants to be told, a server what
//! it offers.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::call::Exchange;
use crate::fields::{Fields, Raw, empty, raw};

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

pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// The capability with which a client says that it can answer such a request itself.
pub fn capability(method: &str) -> Option<&'static str> {
    match method {
        "sampling/createMessage" => Some("sampling"),
        "elicitation/create" => Some("elicitation"),
        "roots/list" => Some("roots"),
        _ => None,
    }
}

/// Whether a client with these capabilities can answer this very request itself.
pub fn is_answerable(capabilities: &Raw, method: &str, params: Option<&Raw>) -> bool {
    let Some(name) = capability(method) else { return false };
    let capabilities = Fields::of(Some(capabilities));
    if !capabilities.has(name) {
        return false;
    }
    let (declared, params) = (capabilities.object(name), Fields::of(params.map(|raw| &**raw)));
    match method {
        // Forms are what a client means that says nothing more.
        "elicitation/create" => match params.text("mode").as_deref() {
            None | Some("form") => declared.has("form") || !declared.has("url"),
            Some(mode) => declared.has(mode),
        },
        "sampling/createMessage" => !params.has("tools") || declared.has("tools"),
        _ => true,
    }
}

/// Whether a client says that it can be asked anything at all.
pub fn can_answer_anything(capabilities: &Raw) -> bool {
    let capabilities = Fields::of(Some(capabilities));
    ["sampling", "elicitation", "roots"].iter().any(|name| capabilities.has(name))
}

/// What a client can do that has the hub's tools: with them it can answer everything.
pub fn with_tools(capabilities: &Raw) -> Raw {
    let mut all = Fields::of(Some(capabilities));
    for (name, parts) in [("sampling", ["tools", "context"]), ("elicitation", ["form", "url"])] {
        let mut declared = all.object(name);
        for part in parts.into_iter().filter(|part| !declared.has(part)).collect::<Vec<_>>() {
            declared.set(part, empty());
        }
        all.set(name, declared.to_raw());
    }
    all.to_raw()
}

/// Whether a client knows the Tasks extension.
pub fn has_tasks(capabilities: &Raw) -> bool {
    Fields::of(Some(capabilities)).object("extensions").has(TASKS_EXTENSION)
}

/// What a client can do for whom the hub follows tasks of the Tasks extension.
pub fn with_tasks(capabilities: &Raw) -> Raw {
    let mut all = Fields::of(Some(capabilities));
    let mut extensions = all.object("extensions");
    extensions.set(TASKS_EXTENSION, empty());
    all.set("extensions", extensions.to_raw());
    all.to_raw()
}

/// What a client can do besides the Tasks extension.
pub fn without_tasks(capabilities: &Raw) -> Raw {
    let mut all = Fields::of(Some(capabilities));
    let mut extensions = all.object("extensions");
    if !extensions.has(TASKS_EXTENSION) {
        return capabilities.clone();
    }
    extensions.remove(TASKS_EXTENSION);
    if extensions.is_empty() {
        all.remove("extensions");
    } else {
        all.set("extensions", extensions.to_raw());
    }
    all.to_raw()
}

/// From the least to the most urgent.
pub const LOG_LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

pub fn is_log_level(word: &str) -> bool {
    LOG_LEVELS.contains(&word)
}

/// Whether a log message of this level is for a client that asked for logs from `wanted` on, or for none.
pub fn is_logged(level: Option<&str>, wanted: Option<&str>) -> bool {
    let place = |level: &str| LOG_LEVELS.iter().position(|known| *known == level);
    match (level.and_then(place), wanted.map(place)) {
        (_, None) => false,
        (Some(level), Some(Some(wanted))) => level >= wanted,
        (_, Some(_)) => true,
    }
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

#[cfg(test)]
mod capabilities_tests {
    use super::*;
    use crate::fields::raw;
    use serde_json::json;

    #[test]
    fn a_client_is_asked_itself_only_what_it_says_that_it_can_answer() {
        let can = |capabilities: serde_json::Value, method: &str, params: serde_json::Value| {
            is_answerable(&raw(&capabilities), method, Some(&raw(&params)))
        };
        let (form, url) = (json!({ "mode": "form" }), json!({ "mode": "url" }));
        for (declared, forms, urls) in [
            (json!({}), false, false),
            (json!({ "elicitation": {} }), true, false),
            (json!({ "elicitation": { "form": {} } }), true, false),
            (json!({ "elicitation": { "url": {} } }), false, true),
            (json!({ "elicitation": { "form": {}, "url": {} } }), true, true),
        ] {
            assert_eq!(can(declared.clone(), "elicitation/create", form.clone()), forms, "{declared}");
            assert_eq!(can(declared.clone(), "elicitation/create", json!({})), forms, "{declared}");
            assert_eq!(can(declared.clone(), "elicitation/create", url.clone()), urls, "{declared}");
            let all: serde_json::Value = serde_json::from_str(with_tools(&raw(&declared)).get()).unwrap();
            assert!(
                can(all.clone(), "elicitation/create", url.clone()) && can(all, "elicitation/create", form.clone())
            );
        }
        assert!(can(json!({ "sampling": {} }), "sampling/createMessage", json!({})));
        assert!(!can(json!({ "sampling": {} }), "sampling/createMessage", json!({ "tools": [] })));
        assert!(can(json!({ "roots": {} }), "roots/list", json!({})) && !can(json!({}), "roots/list", json!({})));
        assert!(!can(json!({ "other": {} }), "other/thing", json!({})));
    }
}

#[cfg(test)]
mod log_level_tests {
    use super::*;

    #[test]
    fn logs_are_for_those_who_asked_from_the_level_they_named() {
        assert!(!is_logged(Some("emergency"), None));
        assert!(is_logged(Some("warning"), Some("warning")) && is_logged(Some("error"), Some("warning")));
        assert!(!is_logged(Some("notice"), Some("warning")));
        assert!(is_logged(Some("of their own"), Some("warning")) && is_logged(None, Some("debug")));
    }
}
