//! The two revisions of the protocol: sessions and handshakes up to 2025-11-25, stateless requests since 2026-07-28.

pub(crate) mod mirrored_headers;
pub mod server_facts;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::fields::{Fields, Raw, empty, raw};

/// Newest first.
pub const V2026_VERSIONS: &[&str] = &["2026-07-28"];
pub const V2025_VERSIONS: &[&str] = &["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

pub const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub const META_CLIENT: &str = "io.modelcontextprotocol/clientInfo";
pub const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
pub const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";
pub const META_SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Revision {
    /// `initialize`, sessions, `Last-Event-ID`, requests from the server.
    #[serde(rename = "legacy")]
    V2025,
    /// Each request stands alone and says what its client can do.
    #[serde(rename = "modern")]
    V2026,
}

impl Revision {
    pub fn of_version(version: &str) -> Option<Revision> {
        if V2026_VERSIONS.contains(&version) {
            Some(Revision::V2026)
        } else {
            V2025_VERSIONS.contains(&version).then_some(Revision::V2025)
        }
    }

    pub fn newest(self) -> &'static str {
        match self {
            Revision::V2025 => V2025_VERSIONS[0],
            Revision::V2026 => V2026_VERSIONS[0],
        }
    }
}

/// What a client can do, without the Tasks extension: the hub follows modern tasks for it, and the older revision knows nothing of
/// that.
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

/// What a subscription to changes of every list asks for.
pub fn every_list() -> Raw {
    let filter = json!({ "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true });
    raw(&json!({ "notifications": filter }))
}

/// All versions that we speak, newest first.
pub fn versions() -> Vec<&'static str> {
    V2026_VERSIONS.iter().chain(V2025_VERSIONS).copied().collect()
}

/// Who we are, to both sides.
pub fn our_info() -> Raw {
    raw(&json!({ "name": "bowline", "title": "Bowline hub", "version": env!("CARGO_PKG_VERSION") }))
}

/// Parameters with the `_meta` that a modern request must have. What the client itself put there stays.
pub fn with_meta(params: Option<&Raw>, capabilities: &Raw, info: &Raw, log_level: Option<&str>) -> Raw {
    let mut params = Fields::of(params.map(|raw| &**raw));
    let mut meta = params.object("_meta");
    meta.put(META_VERSION, Revision::V2026.newest());
    meta.set(META_CAPABILITIES, capabilities.clone());
    meta.set(META_CLIENT, info.clone());
    if let Some(level) = log_level {
        meta.put(META_LOG_LEVEL, level);
    }
    params.set("_meta", meta.to_raw());
    params.to_raw()
}

/// Parameters without what only modern requests have, for a backend of the older revision.
pub fn without_meta(params: Option<&Raw>) -> Option<Raw> {
    let mut params = Fields::parse(params?)?;
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
    Some(params.to_raw())
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

/// What a client that asked for nothing can do.
pub fn no_capabilities() -> Raw {
    empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_crosses_into_the_other_era_and_keeps_its_own_meta() {
        let params = raw(&json!({ "name": "x", "_meta": { "progressToken": 7, "vendor": 1.5 } }));
        let modern = with_meta(Some(&params), &empty(), &our_info(), None);
        let meta = Fields::of(Some(&modern)).object("_meta");
        assert_eq!(meta.text(META_VERSION).as_deref(), Some("2026-07-28"));
        assert_eq!(meta.get("vendor").unwrap().get(), "1.5");
        let back: serde_json::Value = serde_json::from_str(without_meta(Some(&modern)).unwrap().get()).unwrap();
        assert_eq!(back, json!({ "name": "x", "_meta": { "progressToken": 7, "vendor": 1.5 } }));
    }

    #[test]
    fn logs_are_for_those_who_asked_from_the_level_they_named() {
        assert!(!is_logged(Some("emergency"), None));
        assert!(is_logged(Some("warning"), Some("warning")) && is_logged(Some("error"), Some("warning")));
        assert!(!is_logged(Some("notice"), Some("warning")));
        assert!(is_logged(Some("of their own"), Some("warning")) && is_logged(None, Some("debug")));
    }

    #[test]
    fn versions_belong_to_one_era_or_to_none() {
        assert_eq!(Revision::of_version("2026-07-28"), Some(Revision::V2026));
        assert_eq!(Revision::of_version("2024-11-05"), Some(Revision::V2025));
        assert_eq!(Revision::of_version("2027-01-01"), None);
    }
}
