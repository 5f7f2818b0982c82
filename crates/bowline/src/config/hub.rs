//! The settings of the MCP hub.

use std::path::PathBuf;

use super::resolve::{ReadSection, Resolver, Result};
use crate::origin::is_loopback;

#[derive(Clone, Debug)]
pub struct HubConfig {
    /// The file that names its servers.
    pub servers_file: Option<PathBuf>,
    pub body_bytes_max: usize,
    pub options: bowline_hub::Options,
}

impl ReadSection for HubConfig {
    fn read(resolver: &Resolver<'_>) -> Result<HubConfig> {
        Ok(HubConfig {
            servers_file: resolver.get::<Option<String>>("hub.servers_file")?.map(|path| resolver.around.path(path)),
            body_bytes_max: resolver.get("hub.body_bytes_max")?,
            options: ReadSection::read(resolver)?,
        })
    }
}

impl Resolver<'_> {
    /// A client that can reach a server on loopback can reach the rest of this machine anyway.
    pub(super) fn hub_allow_private(&self, key: &str) -> Result<bool> {
        self.get::<Option<bool>>(key)?.map_or_else(|| Ok(is_loopback(&self.get("listen")?)), Ok)
    }

    /// Without auth there is one principal, which shares with no other.
    pub(super) fn hub_processes_per_principal_max(&self, key: &str) -> Result<usize> {
        let all: usize = self.get("hub.processes_per_server_max")?;
        let usual = if self.has_auth()? { all.div_ceil(2) } else { all };
        Ok(self.get::<Option<usize>>(key)?.unwrap_or(usual))
    }
}
