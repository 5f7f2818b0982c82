//! The codec of 2026-07-28: each request stands alone and says what its client can do; a question is an answer.

use serde_json::json;

use crate::call::facts::{ClientFacts, ServerFacts, no_capabilities, our_info};
use crate::call::{BackendCall, CallReply, Exchange};
use crate::catalogue::mirrored_headers::{self, named_headers};
use crate::fields::{Fields, Raw, empty, raw};
use crate::message;

/// Newest first.
pub const VERSIONS: &[&str] = &["2026-07-28"];
/// The request by which a server shows what it is.
pub const DISCOVER: &str = "server/discover";

pub const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const META_CLIENT: &str = "io.modelcontextprotocol/clientInfo";
const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";

/// A request must say which version it speaks, one that we speak too, and what its client can do.
pub fn check(params: Option<&Raw>) -> Result<(), CallReply> {
    let meta = Fields::of(params.map(|raw| &**raw)).object("_meta");
    let missing = |name: &str| {
        let error = message::error(message::INVALID_PARAMS, &format!("`_meta` must have {name}"));
        CallReply::with_status(Err(error), 400)
    };
    let Some(asked) = meta.text(META_VERSION) else { return Err(missing(META_VERSION)) };
    if !VERSIONS.contains(&asked.as_str()) {
        let data = json!({ "supported": super::versions(), "requested": asked });
        let error = message::error_with(message::UNSUPPORTED_VERSION, "this version is not spoken here", &data);
        return Err(CallReply::with_status(Err(error), 400));
    }
    if meta.get(META_CAPABILITIES).is_none_or(|raw| !raw.get().starts_with('{')) {
        return Err(missing(META_CAPABILITIES));
    }
    Ok(())
}

/// What a request says of its client, and the log level that it asks for.
pub fn client(params: Option<&Raw>) -> (ClientFacts, Option<String>) {
    let meta = Fields::of(params.map(|raw| &**raw)).object("_meta");
    let facts = ClientFacts {
        capabilities: meta.get(META_CAPABILITIES).map_or_else(no_capabilities, ToOwned::to_owned),
        info: meta.get(META_CLIENT).map_or_else(our_info, ToOwned::to_owned),
    };
    (facts, meta.text(META_LOG_LEVEL))
}

/// What clients cannot ask for any more.
pub fn is_removed(method: &str) -> bool {
    matches!(method, "initialize" | "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe")
}

/// The parameters of a call with the `_meta` that says what its client can do. What the client itself put there stays.
pub fn described(call: &BackendCall) -> Raw {
    let (client, params) = (&call.caller.client, call.params.as_ref());
    with_meta(params, &client.capabilities, &client.info, call.log_level.as_deref())
}

/// The same, but a stateless client's own are left as they came.
pub fn params(call: &BackendCall) -> Raw {
    match call.sent {
        Some(_) => call.params.clone().unwrap_or_else(empty),
        None => described(call),
    }
}

pub fn with_meta(params: Option<&Raw>, capabilities: &Raw, info: &Raw, log_level: Option<&str>) -> Raw {
    let mut params = Fields::of(params.map(|raw| &**raw));
    let mut meta = params.object("_meta");
    meta.put(META_VERSION, VERSIONS[0]);
    meta.set(META_CAPABILITIES, capabilities.clone());
    meta.set(META_CLIENT, info.clone());
    if let Some(level) = log_level {
        meta.put(META_LOG_LEVEL, level);
    }
    params.set("_meta", meta.to_raw());
    params.to_raw()
}

/// Parameters without what only requests of this revision have.
pub fn plain(params: &Fields) -> Fields {
    let mut params = params.clone();
    let mut meta = params.object("_meta");
    for key in [META_VERSION, META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL] {
        meta.remove(key);
    }
    params.remove("_meta");
    if !meta.is_empty() {
        params.set("_meta", meta.to_raw());
    }
    params.remove("inputResponses");
    params.remove("requestState");
    params
}

/// The headers in which a request repeats what it is about, for those who route by them.
pub fn headers(method: &str, params: Option<&Raw>) -> Vec<(String, String)> {
    let version = (mirrored_headers::VERSION.to_owned(), VERSIONS[0].to_owned());
    [version].into_iter().chain(named_headers(method, params)).collect()
}

/// What a subscription to changes of every list asks for.
pub fn every_list() -> Raw {
    let filter = json!({ "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true });
    raw(&json!({ "notifications": filter }))
}

/// What a server says of itself in the result of `server/discover`.
pub fn server_facts(result: &Raw) -> ServerFacts {
    let fields = Fields::of(Some(result));
    let versions: Vec<String> = fields.read("supportedVersions").unwrap_or_default();
    ServerFacts {
        exchange: Exchange::Stateless,
        has_sessions: versions.iter().any(|version| super::exchange_of(version) == Some(Exchange::Session)),
        version: VERSIONS[0].to_owned(),
        capabilities: fields.get("capabilities").map_or_else(no_capabilities, ToOwned::to_owned),
        info: fields.object("_meta").get(META_SERVER).map(ToOwned::to_owned),
        instructions: fields.get("instructions").map(ToOwned::to_owned),
        initialized: None,
    }
}

/// Whether an error is one that only servers of this revision know.
pub fn is_own_error(error: &Raw) -> bool {
    (message::UNSUPPORTED_VERSION..=message::HEADER_MISMATCH).contains(&message::code_of(error))
}

/// The result of `server/discover` for a server that does not answer it, or for the hub itself.
pub fn discovered(capabilities: &Raw, info: &Raw, instructions: Option<&Raw>) -> Raw {
    let mut result = Fields::default();
    result.put("resultType", "complete");
    result.put("supportedVersions", &super::versions());
    result.set("capabilities", capabilities.clone());
    let mut meta = Fields::default();
    meta.set(META_SERVER, info.clone());
    result.set("_meta", meta.to_raw());
    if let Some(instructions) = instructions {
        result.set("instructions", instructions.clone());
    }
    result.put("ttlMs", &0);
    result.put("cacheScope", "private");
    result.to_raw()
}

/// A reply as a client must get it, with the HTTP status that goes with it.
pub fn reply(method: &str, reply: CallReply) -> CallReply {
    let CallReply { answer, outcome, status, goes_on_in } = reply;
    let (answer, status) = match answer {
        Ok(result) => (Ok(complete(method, &result)), 200),
        Err(error) => {
            let error = own_error(error);
            let status = match (status, message::code_of(&error)) {
                (200, message::METHOD_NOT_FOUND) => 404,
                (200, message::UNSUPPORTED_VERSION..=message::HEADER_MISMATCH) => 400,
                (status, _) => status,
            };
            (Err(error), status)
        }
    };
    CallReply { answer, outcome, status, goes_on_in }
}

/// A result with what every result must have; what is there already stays.
fn complete(method: &str, result: &Raw) -> Raw {
    let Some(mut fields) = Fields::parse(result) else { return result.clone() };
    if !fields.has("resultType") {
        fields.put("resultType", "complete");
    }
    if is_cacheable(method) && fields.text("resultType").as_deref() == Some("complete") {
        if !fields.has("ttlMs") {
            fields.put("ttlMs", &0);
        }
        if !fields.has("cacheScope") {
            fields.put("cacheScope", "private");
        }
    }
    fields.to_raw()
}

/// A missing resource has another code here.
fn own_error(error: Raw) -> Raw {
    if message::code_of(&error) != message::RESOURCE_NOT_FOUND {
        return error;
    }
    let mut fields = Fields::of(Some(&error));
    fields.put("code", &message::INVALID_PARAMS);
    fields.to_raw()
}

/// Whether a result of this method says how long it is good.
fn is_cacheable(method: &str) -> bool {
    matches!(
        method,
        "server/discover"
            | "tools/list"
            | "resources/list"
            | "resources/templates/list"
            | "prompts/list"
            | "resources/read"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_crosses_into_the_other_revision_and_keeps_its_own_meta() {
        let params = raw(&json!({ "name": "x", "_meta": { "progressToken": 7, "vendor": 1.5 } }));
        let described = with_meta(Some(&params), &empty(), &our_info(), None);
        let described = Fields::of(Some(&described));
        let meta = described.object("_meta");
        assert_eq!(meta.text(META_VERSION).as_deref(), Some("2026-07-28"));
        assert_eq!(meta.get("vendor").unwrap().get(), "1.5");
        assert_eq!(
            plain(&described).to_value(),
            json!({ "name": "x", "_meta": { "progressToken": 7, "vendor": 1.5 } })
        );
    }
}
