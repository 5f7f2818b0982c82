//! What a backend said about itself, in either revision.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Revision;
use crate::fields::{Fields, Raw};
use crate::revision;

/// What a backend said about itself.
#[derive(Clone, Serialize, Deserialize)]
pub struct Facts {
    #[serde(rename = "era")]
    pub revision: Revision,
    /// It speaks the older revision too, so older clients need no bridge.
    pub speaks_legacy: bool,
    pub version: String,
    pub capabilities: Raw,
    pub info: Option<Raw>,
    pub instructions: Option<Raw>,
    /// What `initialize` was answered with, where it was.
    pub initialized: Option<Raw>,
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Facts({})", self.version)
    }
}

impl Facts {
    /// From the result of `initialize`.
    pub fn of_initialize(result: &Raw) -> Facts {
        let fields = Fields::of(Some(result));
        Facts {
            revision: Revision::V2025,
            speaks_legacy: true,
            version: fields.text("protocolVersion").unwrap_or_else(|| Revision::V2025.newest().to_owned()),
            capabilities: fields.get("capabilities").map_or_else(revision::no_capabilities, ToOwned::to_owned),
            info: fields.get("serverInfo").map(ToOwned::to_owned),
            instructions: fields.get("instructions").map(ToOwned::to_owned),
            initialized: Some(result.clone()),
        }
    }

    /// From the result of `server/discover`.
    pub fn of_discover(result: &Raw) -> Facts {
        let fields = Fields::of(Some(result));
        let versions: Vec<String> = fields.read("supportedVersions").unwrap_or_default();
        Facts {
            revision: Revision::V2026,
            speaks_legacy: versions.iter().any(|version| Revision::of_version(version) == Some(Revision::V2025)),
            version: Revision::V2026.newest().to_owned(),
            capabilities: fields.get("capabilities").map_or_else(revision::no_capabilities, ToOwned::to_owned),
            info: fields.object("_meta").get(revision::META_SERVER).map(ToOwned::to_owned),
            instructions: fields.get("instructions").map(ToOwned::to_owned),
            initialized: None,
        }
    }

    /// Whether calls of a client of this revision go out in the older one.
    pub fn legacy_for(&self, client: Revision) -> bool {
        self.revision == Revision::V2025 || (client == Revision::V2025 && self.speaks_legacy)
    }
}

/// What `initialize` would have been answered with by a server that knows no `initialize`.
pub fn synthesised_initialize(facts: &Facts) -> Raw {
    let mut result = Fields::default();
    result.put("protocolVersion", Revision::V2025.newest());
    let mut capabilities = Fields::of(Some(&facts.capabilities));
    // Logging became a matter of each request; the hub keeps the level for clients that set it once.
    if !capabilities.has("logging") {
        capabilities.set("logging", crate::fields::empty());
    }
    result.set("capabilities", capabilities.to_raw());
    result.set("serverInfo", facts.info.clone().unwrap_or_else(revision::our_info));
    if let Some(instructions) = &facts.instructions {
        result.set("instructions", instructions.clone());
    }
    result.to_raw()
}
