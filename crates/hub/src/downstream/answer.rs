//! Answers in the words of the client's revision.

use crate::call::reply::Reply;
use crate::fields::{Fields, Raw};
use crate::message;
use crate::revision::server_facts::Facts;
use crate::revision::{self, Revision};

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

/// A result as a modern client must get it; what is there already stays.
pub fn modern_result(method: &str, result: &Raw) -> Raw {
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

/// A missing resource has another code now.
fn modern_error(error: Raw) -> Raw {
    if message::code_of(&error) != message::RESOURCE_NOT_FOUND {
        return error;
    }
    let mut fields = Fields::of(Some(&error));
    fields.put("code", &message::INVALID_PARAMS);
    fields.to_raw()
}

/// The whole reply for a client of this revision.
pub fn adapt(revision: Revision, method: &str, reply: Reply) -> Reply {
    let Reply { answer, outcome, status, goes_on_in } = reply;
    let (answer, status) = match (revision, answer) {
        (Revision::V2026, Ok(result)) => (Ok(modern_result(method, &result)), 200),
        (Revision::V2026, Err(error)) => {
            let error = modern_error(error);
            let status = match (status, message::code_of(&error)) {
                (200, message::METHOD_NOT_FOUND) => 404,
                (200, message::UNSUPPORTED_VERSION..=message::HEADER_MISMATCH) => 400,
                (status, _) => status,
            };
            (Err(error), status)
        }
        (Revision::V2025, answer) => (answer, 200),
    };
    Reply { answer, outcome, status, goes_on_in }
}

/// What `server/discover` says about a backend of the older revision, or about the hub itself.
pub fn discover(capabilities: &Raw, info: &Raw, instructions: Option<&Raw>) -> Raw {
    let mut result = Fields::default();
    result.put("resultType", "complete");
    result.put("supportedVersions", &revision::versions());
    result.set("capabilities", capabilities.clone());
    let mut meta = Fields::default();
    meta.set(revision::META_SERVER, info.clone());
    result.set("_meta", meta.to_raw());
    if let Some(instructions) = instructions {
        result.set("instructions", instructions.clone());
    }
    result.put("ttlMs", &0);
    result.put("cacheScope", "private");
    result.to_raw()
}

pub fn discover_facts(facts: &Facts) -> Raw {
    let info = facts.info.clone().unwrap_or_else(revision::our_info);
    discover(&facts.capabilities, &info, facts.instructions.as_ref())
}

/// A list with its entries, marked as stale when its origin is away.
pub fn list(member: &str, entries: &[Raw], stale: bool, meta: Option<Raw>) -> Raw {
    let mut result = Fields::default();
    result.put(member, entries);
    if stale {
        result.put("ttlMs", &0);
        result.put("cacheScope", "private");
    }
    if let Some(meta) = meta {
        result.set("_meta", meta);
    }
    result.to_raw()
}
