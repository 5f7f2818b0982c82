//! The codec of the revisions up to 2025-11-25: a handshake, and a session in which the server asks its client.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{ClientIntroduction, Revision, ServerIntroduction};
use crate::call::facts::{self, ClientFacts, ServerFacts, no_capabilities, our_info};
use crate::call::{BackendCall, Caller, Exchange};
use crate::fields::{Fields, Raw, empty};

/// Newest first.
const VERSIONS: &[&str] = &["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// The only version whose clients may send several messages in one body.
const WITH_BATCHES: &str = "2025-03-26";
/// From this version on a stream begins with an event that says nothing.
const PRIMED_SINCE: &str = "2025-11-25";

pub(super) struct Codec2025;

impl Revision for Codec2025 {
    fn versions(&self) -> &'static [&'static str] {
        VERSIONS
    }

    fn exchange(&self) -> Exchange {
        Exchange::Session
    }

    fn opening_method(&self) -> &'static str {
        "initialize"
    }

    /// The hub follows tasks of the Tasks extension by itself, and servers of this revision know nothing of it.
    fn opening(&self, caller: &Caller) -> BackendCall {
        let mut params = Fields::default();
        params.put("protocolVersion", VERSIONS[0]);
        params.set("capabilities", facts::without_tasks(&caller.client.capabilities));
        params.set("clientInfo", caller.client.info.clone());
        BackendCall::new(caller.clone(), self.opening_method(), Some(params.to_raw()))
    }

    fn ping_method(&self) -> &'static str {
        "ping"
    }

    fn server_facts(&self, result: &Raw) -> ServerFacts {
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

    fn is_of_opening(&self, _result: &Raw) -> bool {
        true
    }

    /// Without what a stateless request says of its client.
    fn params<'a>(&self, call: &'a BackendCall) -> Option<Cow<'a, RawValue>> {
        let params = call.params.as_deref()?;
        if call.sent.is_none() {
            return Some(Cow::Borrowed(params));
        }
        Fields::parse(params).map(|params| Cow::Owned(super::plain(&params).to_raw()))
    }

    /// The version is what the client asked for, if we speak it; else our newest.
    fn client(&self, params: &Fields) -> ClientIntroduction {
        let asked = params.text("protocolVersion").filter(|asked| VERSIONS.contains(&asked.as_str()));
        let facts = ClientFacts {
            capabilities: params.get("capabilities").map_or_else(no_capabilities, ToOwned::to_owned),
            info: params.get("clientInfo").map_or_else(our_info, ToOwned::to_owned),
        };
        ClientIntroduction { version: asked.unwrap_or_else(|| VERSIONS[0].to_owned()), facts, log_level: None }
    }

    fn introduced(&self, server: &ServerIntroduction, version: &str) -> Raw {
        let mut result = Fields::default();
        result.put("protocolVersion", version);
        result.set("capabilities", server.capabilities.clone());
        result.set("serverInfo", server.info.clone());
        if let Some(instructions) = &server.instructions {
            result.set("instructions", instructions.clone());
        }
        result.to_raw()
    }

    /// Logging became a matter of each request; the hub keeps the level for clients that set it once.
    fn across(&self, server: &ServerFacts) -> ServerIntroduction {
        let mut capabilities = Fields::of(Some(&server.capabilities));
        if !capabilities.has("logging") {
            capabilities.set("logging", empty());
        }
        ServerIntroduction {
            capabilities: capabilities.to_raw(),
            info: server.info.clone().unwrap_or_else(our_info),
            instructions: server.instructions.clone(),
        }
    }

    fn check_batch(&self, version: &str) -> Result<(), &'static str> {
        if version == WITH_BATCHES {
            Ok(())
        } else {
            Err("Batches are of 2025-03-26 only. Send each message by itself.")
        }
    }

    fn primes_streams(&self, version: &str) -> bool {
        version >= PRIMED_SINCE
    }
}
