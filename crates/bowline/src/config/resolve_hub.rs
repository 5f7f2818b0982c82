//! What the settings of the MCP hub mean.

use std::net::SocketAddr;

use bowline_hub::{Expose, Options, Prefix};

use super::HubConfig;
use super::resolve::{Resolver, Result, is_loopback};

impl Resolver<'_> {
    pub(super) fn hub(&self, listen: &SocketAddr) -> Result<HubConfig> {
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
                processes_per_server_max: self.count("hub.processes_per_server_max")?,
                ..Options::default()
            },
        })
    }
}
