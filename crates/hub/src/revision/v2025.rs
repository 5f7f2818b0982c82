//! The codec of the revisions up to 2025-11-25: a handshake, and a session in which the server asks its client.

use super::v2026;
use crate::call::facts::{self, ServerFacts, no_capabilities, our_info};
use crate::call::{BackendCall, Caller, Exchange};
use crate::fields::{Fields, Raw, empty};

/// Newest first.
pub const VERSIONS: &[&str] = &["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// The request by which a server shows that it is there.
pub const PING: &str = "ping";

/// What the client asked for, if we speak it; else our newest.
pub fn negotiate(asked: Option<&str>) -> &'static str {
    let known = VERSIONS.iter().find(|version| Some(**version) == asked);
    known.copied().unwrap_or(VERSIONS[0])
}

/// The parameters of `initialize` on behalf of a caller. The hub follows tasks of the Tasks extension by itself, and servers of
/// this revision know nothing of it.
pub fn initialize(caller: &Caller) -> Raw {
    let mut params = Fields::default();
    params.put("protocolVersion", VERSIONS[0]);
    params.set("capabilities", facts::without_tasks(&caller.client.capabilities));
    params.set("clientInfo", caller.client.info.clone());
    params.to_raw()
}

/// What a server says of itself in the result of `initialize`.
pub fn server_facts(result: &Raw) -> ServerFacts {
    let fields = Fields::of(Some(result));
    ServerFacts {
        exchange: Exchange::Session,
        has_sessions: true,
        version: fields.text("protocolVersion").unwrap_or_else(|| VERSIONS[0].to_owned()),
        capabilities: fields.get("capabilities").map_or_else(no_capabilities, ToOwned::to_owned),
        info: fields.get("serverInfo").map(ToOwned::to_owned),
        instructions: fields.get("instructions").map(ToOwned::to_owned),
        initialized: Some(result.clone()),
    }
}

/// What `initialize` would have been answered with by a server that knows no `initialize`.
pub fn initialized(facts: &ServerFacts) -> Raw {
    let mut result = Fields::default();
    result.put("protocolVersion", VERSIONS[0]);
    let mut capabilities = Fields::of(Some(&facts.capabilities));
    // Logging became a matter of each request; the hub keeps the level for clients that set it once.
    if !capabilities.has("logging") {
        capabilities.set("logging", empty());
    }
    result.set("capabilities", capabilities.to_raw());
    result.set("serverInfo", facts.info.clone().unwrap_or_else(our_info));
    if let Some(instructions) = &facts.instructions {
        result.set("instructions", instructions.clone());
    }
    result.to_raw()
}

/// The parameters of a call as a session has them: without what a stateless request says of its client.
pub fn params(call: &BackendCall) -> Option<Raw> {
    if call.sent.is_none() {
        return call.params.clone();
    }
    Fields::parse(call.params.as_ref()?).map(|params| v2026::plain(&params).to_raw())
}
