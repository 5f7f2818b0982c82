//! What the settings of the MCP hub mean.

use std::net::SocketAddr;

use bowline_hub::{Expose, Options, Prefix};

use super::HubConfig;
use super::resolve::{Resolver, Result, is_loopback};

impl Resolver<'_> {
    pub(super) fn hub(&self, listen: &SocketAddr, has_auth: bool) -> Result<HubConfig> {
        let expose = match self.text("hub.expose")?.as_str() {
            "meta" => Expose::Meta,
            "direct" => Expose::Direct,
            _ => Expose::Both,
        };
        let prefix = match self.text("hub.prefix")?.as_str() {
            "conditional" => Prefix::Conditional,
            "never" => Prefix::Never,
            _ => Prefix::Always,
        };
        // Whoever can reach a server on loopback can reach the rest of this machine anyway.
        let allow_private = if self.written.is_written("hub.allow_private") {
            self.flag("hub.allow_private")?
        } else {
            is_loopback(listen)
        };
        let processes_per_server_max = self.count("hub.processes_per_server_max")?;
        // Without auth there is one principal, which has nobody to share with.
        let processes_per_principal_max = if self.written.is_written("hub.processes_per_principal_max") {
            self.count("hub.processes_per_principal_max")?
        } else if has_auth {
            processes_per_server_max.div_ceil(2)
        } else {
            processes_per_server_max
        };
        let forced_reconnects = self.number("hub.forced_reconnects_per_minute_max")?;
        Ok(HubConfig {
            servers_file: self.optional("hub.servers_file")?.map(|path| self.around.path(path)),
            body_bytes_max: self.count("hub.body_bytes_max")?,
            options: Options {
                expose,
                prefix,
                allow_private,
                allow_stdio_add: self.flag("hub.allow_stdio_add")?,
                retry_idempotent: self.flag("hub.retry_idempotent")?,
                call_timeout: self.span("hub.call_timeout")?,
                call_limit: self.span("hub.call_limit")?,
                ask_timeout: self.span("hub.ask_timeout")?,
                health_interval: self.span("hub.health_interval")?,
                health_timeout: self.span("hub.health_timeout")?,
                session_ttl: self.span("hub.session_ttl")?,
                servers_per_principal_max: self.count("hub.servers_per_principal_max")?,
                sessions_per_principal_max: self.count("hub.sessions_per_principal_max")?,
                processes_per_server_max,
                processes_per_principal_max,
                forced_reconnects_per_minute_max: u32::try_from(forced_reconnects).unwrap_or(u32::MAX),
                ..Options::default()
            },
        })
    }
}
