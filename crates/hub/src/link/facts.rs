//! What a backend said about itself, in either era.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::era::{self, Era};
use crate::fields::{Fields, Raw};

/// What a backend said about itself.
#[derive(Clone, Serialize, Deserialize)]
pub struct Facts {
    pub era: Era,
    /// It speaks the older era too, so older clients need no bridge.
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
    pub(super) fn of_initialize(result: &Raw) -> Facts {
        let fields = Fields::of(Some(result));
        Facts {
            era: Era::Legacy,
            speaks_legacy: true,
            version: fields.text("protocolVersion").unwrap_or_else(|| Era::Legacy.newest().to_owned()),
            capabilities: fields.get("capabilities").map_or_else(era::no_capabilities, ToOwned::to_owned),
            info: fields.get("serverInfo").map(ToOwned::to_owned),
            instructions: fields.get("instructions").map(ToOwned::to_owned),
            initialized: Some(result.clone()),
        }
    }

    /// From the result of `server/discover`.
    pub(super) fn of_discover(result: &Raw) -> Facts {
        let fields = Fields::of(Some(result));
        let versions: Vec<String> = fields.read("supportedVersions").unwrap_or_default();
        Facts {
            era: Era::Modern,
            speaks_legacy: versions.iter().any(|version| Era::of_version(version) == Some(Era::Legacy)),
            version: Era::Modern.newest().to_owned(),
            capabilities: fields.get("capabilities").map_or_else(era::no_capabilities, ToOwned::to_owned),
            info: fields.object("_meta").get(era::META_SERVER).map(ToOwned::to_owned),
            instructions: fields.get("instructions").map(ToOwned::to_owned),
            initialized: None,
        }
    }

    /// Whether calls of a client of this era go out in the older one.
    pub fn legacy_for(&self, client: Era) -> bool {
        self.era == Era::Legacy || (client == Era::Legacy && self.speaks_legacy)
    }
}

/// What `initialize` would have been answered with by a server that knows no `initialize`.
pub fn synthesised_initialize(facts: &Facts) -> Raw {
    let mut result = Fields::default();
    result.put("protocolVersion", Era::Legacy.newest());
    let mut capabilities = Fields::of(Some(&facts.capabilities));
    // Logging became a matter of each request; the hub keeps the level for clients that set it once.
    if !capabilities.has("logging") {
        capabilities.set("logging", crate::fields::empty());
    }
    result.set("capabilities", capabilities.to_raw());
    result.set("serverInfo", facts.info.clone().unwrap_or_else(era::our_info));
    if let Some(instructions) = &facts.instructions {
        result.set("instructions", instructions.clone());
    }
    result.to_raw()
}
