//! The codec of 2026-07-28: each request stands alone and says what its client can do; a question is an answer.

use std::borrow::Cow;

use serde_json::json;
use serde_json::value::RawValue;

use super::{ClientIntroduction, Revision, ServerIntroduction};
use crate::call::facts::{self, ClientFacts, ServerFacts, no_capabilities, our_info};
use crate::call::{BackendCall, CallReply, Caller, Exchange, refuse};
use crate::catalogue::mirrored_headers::{self, named_headers};
use crate::fields::{Fields, Raw, empty, raw};
use crate::message::{self, RpcRequest};

/// Newest first.
const VERSIONS: &[&str] = &["2026-07-28"];
/// The request by which a server shows what it is.
const DISCOVER: &str = "server/discover";

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const META_CLIENT: &str = "io.modelcontextprotocol/clientInfo";
const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";

pub(super) struct Codec2026;

impl Revision for Codec2026 {
    fn versions(&self) -> &'static [&'static str] {
        VERSIONS
    }

    fn exchange(&self) -> Exchange {
        Exchange::Stateless
    }

    fn opening_method(&self) -> &'static str {
        DISCOVER
    }

    fn opening(&self, caller: &Caller) -> BackendCall {
        BackendCall::new(caller.clone(), DISCOVER, None)
    }

    fn ping_method(&self) -> &'static str {
        DISCOVER
    }

    fn server_facts(&self, result: &Raw) -> ServerFacts {
        let fields = Fields::of(Some(result));
        let offered: Vec<String> = fields.read("supportedVersions").unwrap_or_default();
        let offers = |exchange| {
            super::exchanging(exchange)
                .flat_map(Revision::versions)
                .find(|one| offered.iter().any(|version| version == *one))
        };
        ServerFacts {
            exchange: Exchange::Stateless,
            has_sessions: offers(Exchange::Session).is_some(),
            version: (*offers(Exchange::Stateless).unwrap_or(&VERSIONS[0])).to_owned(),
            capabilities: fields.get("capabilities").map_or_else(no_capabilities, ToOwned::to_owned),
            info: fields.object("_meta").get(META_SERVER).map(ToOwned::to_owned),
            instructions: fields.get("instructions").map(ToOwned::to_owned),
            initialized: None,
        }
    }

    fn is_of_opening(&self, result: &Raw) -> bool {
        Fields::of(Some(result)).has("supportedVersions")
    }

    fn is_own_error(&self, error: &Raw) -> bool {
        (message::UNSUPPORTED_VERSION..=message::HEADER_MISMATCH).contains(&message::code_of(error))
    }

    fn watch(&self) -> Option<BackendCall> {
        let filter = json!({ "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true });
        Some(BackendCall::of_hub("subscriptions/listen", Some(raw(&json!({ "notifications": filter })))))
    }

    /// With the `_meta` that says what the client can do. What the client itself put there stays, and its own request is left as it came.
    fn params<'a>(&self, call: &'a BackendCall) -> Option<Cow<'a, RawValue>> {
        if is_as_sent(call) {
            return Some(call.params.as_deref().map_or_else(|| Cow::Owned(empty()), Cow::Borrowed));
        }
        let (client, params) = (&call.caller.client, call.params.as_ref());
        Some(Cow::Owned(with_meta(params, &client.capabilities, &client.info, call.log_level.as_deref())))
    }

    /// A request repeats what it is about, for those who route by it. The client's own headers are left as they came.
    fn headers(&self, call: &BackendCall, params: Option<&RawValue>) -> Vec<(String, String)> {
        match call.sent.as_ref().and_then(|sent| sent.headers.as_ref()).filter(|_| is_as_sent(call)) {
            Some(headers) => headers.clone(),
            None => {
                let version = (mirrored_headers::VERSION.to_owned(), VERSIONS[0].to_owned());
                let named = named_headers(&call.method, params);
                [version].into_iter().chain(named).chain(call.param_headers.iter().cloned()).collect()
            }
        }
    }

    fn said_version(&self, params: &Fields) -> Option<String> {
        params.object("_meta").text(META_VERSION)
    }

    fn plain(&self, mut params: Fields) -> Fields {
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

    fn stands_alone(&self, request: &RpcRequest) -> bool {
        request.method == DISCOVER || Fields::of(request.params.as_deref()).object("_meta").has(META_VERSION)
    }

    fn check(&self, params: &Fields) -> Result<(), CallReply> {
        let meta = params.object("_meta");
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

    fn client(&self, params: &Fields) -> ClientIntroduction {
        let meta = params.object("_meta");
        let facts = ClientFacts {
            capabilities: meta.get(META_CAPABILITIES).map_or_else(no_capabilities, ToOwned::to_owned),
            info: meta.get(META_CLIENT).map_or_else(our_info, ToOwned::to_owned),
        };
        let version = meta.text(META_VERSION).unwrap_or_else(|| VERSIONS[0].to_owned());
        ClientIntroduction { version, facts, log_level: meta.text(META_LOG_LEVEL) }
    }

    fn removed(&self, method: &str) -> Option<CallReply> {
        let gone = ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"];
        gone.contains(&method).then(|| refuse(message::METHOD_NOT_FOUND, "this method is gone since 2026-07-28"))
    }

    fn introduced(&self, server: &ServerIntroduction, _version: &str) -> Raw {
        let mut result = Fields::default();
        result.put("resultType", "complete");
        result.put("supportedVersions", &super::versions());
        result.set("capabilities", server.capabilities.clone());
        let mut meta = Fields::default();
        meta.set(META_SERVER, server.info.clone());
        result.set("_meta", meta.to_raw());
        if let Some(instructions) = &server.instructions {
            result.set("instructions", instructions.clone());
        }
        result.put("ttlMs", &0);
        result.put("cacheScope", "private");
        result.to_raw()
    }

    /// The hub runs tasks for a server that cannot; those that the server itself has are another thing, which the client cannot use.
    fn across(&self, server: &ServerFacts) -> ServerIntroduction {
        let mut capabilities = Fields::of(Some(&facts::with_tasks(&server.capabilities)));
        capabilities.remove("tasks");
        ServerIntroduction {
            capabilities: capabilities.to_raw(),
            info: server.info.clone().unwrap_or_else(our_info),
            instructions: server.instructions.clone(),
        }
    }

    fn reply(&self, method: &str, reply: CallReply) -> CallReply {
        let CallReply { answer, status, .. } = reply;
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
        CallReply { answer, status, ..reply }
    }

    fn check_batch(&self, _version: &str) -> Result<(), &'static str> {
        Err("Send each message by itself.")
    }
}

/// Whether a call goes out as its client wrote it. One that says another version which is known here is translated.
fn is_as_sent(call: &BackendCall) -> bool {
    let is_ours = |version: &str| VERSIONS.contains(&version) || super::of_version(version).is_none();
    call.sent.as_ref().is_some_and(|sent| is_ours(&sent.version))
}

fn with_meta(params: Option<&Raw>, capabilities: &Raw, info: &Raw, log_level: Option<&str>) -> Raw {
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
            Codec2026.plain(described).to_value(),
            json!({ "name": "x", "_meta": { "progressToken": 7, "vendor": 1.5 } })
        );
    }
}
