//! The settings: nothing optional, units resolved.
//!
//! Which there are, with what type and default, is in `table`; reading them begins in `load`.

mod agents;
mod auth;
mod cgroup;
mod choice;
mod error;
mod hub;
mod key;
mod load;
pub mod lookup;
mod reread;
mod resolve;
mod state;
mod store;
mod table;
pub mod units;
mod value;
mod webhooks;
mod written;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use bowline_env::Env;

pub use agents::{AgentConfig, AgentKind, Format, HttpConfig, OpenAiConfig, WireConfig};
pub use auth::{AuthConfig, AuthMode, JWT_SECRET_BYTES_MIN, JwtConfig, JwtKeys, StaticToken};
pub use choice::{LogFormat, Ownership, SyncMode, WhenBusy};
pub use error::{ConfigError, Source};
pub use hub::HubConfig;
pub use load::{EffectiveSettings, FILE_NAME, Flags, Loaded, Setting, Surroundings};
pub use reread::Reread;
pub use store::StoreUrl;
pub use table::{
    BufferConfig, DrainConfig, HeartbeatConfig, LeaseConfig, Limits, LogConfig, SessionConfig, StateConfig,
    StoreConfig, StreamConfig,
};

pub use webhooks::{WebhookConfig, WebhookKey};

use crate::origin::is_loopback;
use resolve::{ReadSection, Resolver, Result};

/// The settings in force: `section.name` is the field `name` of the field `section`.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    pub default_agent: String,
    pub insecure_no_auth: bool,
    pub store: StoreConfig,
    pub session: SessionConfig,
    pub buffer: BufferConfig,
    pub stream: StreamConfig,
    pub state: StateConfig,
    pub heartbeat: HeartbeatConfig,
    pub auth: AuthConfig,
    pub agents: BTreeMap<String, AgentConfig>,
    pub hub: HubConfig,
    pub limits: Limits,
    /// Whether TLS is served, and with what.
    pub tls: Option<TlsConfig>,
    /// The addresses that get the ends of responses, if there are any.
    pub webhooks: Option<WebhookConfig>,
    pub lease: LeaseConfig,
    pub drain: DrainConfig,
    pub log: LogConfig,
    /// No setting: the files and the network that the settings come with, and that a node with them uses.
    pub env: Env,
}

/// Where the certificate and its key are, in PEM.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Default for Config {
    fn default() -> Config {
        Resolver::of_defaults(Config::read)
    }
}

impl ReadSection for Config {
    fn read(resolver: &Resolver<'_>) -> Result<Config> {
        let listen = resolver.get("listen")?;
        let insecure_no_auth: bool = resolver.get("insecure_no_auth")?;
        let (agents, default_agent) = resolver.agents()?;
        let auth = resolver.auth()?;
        if auth.mode == AuthMode::None && !is_loopback(&listen) && !insecure_no_auth {
            return Err(ConfigError::conflict(
                format!("`listen` is {listen}, which others can reach, and `auth.mode` is \"none\""),
                "Set `auth.mode` to \"tokens\" or \"jwt\", listen on 127.0.0.1, or accept the risk with --insecure-no-auth.",
            ));
        }
        let config = Config {
            listen,
            default_agent,
            insecure_no_auth,
            store: ReadSection::read(resolver)?,
            session: ReadSection::read(resolver)?,
            buffer: ReadSection::read(resolver)?,
            stream: ReadSection::read(resolver)?,
            state: ReadSection::read(resolver)?,
            heartbeat: ReadSection::read(resolver)?,
            auth,
            agents,
            hub: ReadSection::read(resolver)?,
            limits: ReadSection::read(resolver)?,
            tls: resolver.tls()?,
            webhooks: resolver.webhooks()?,
            lease: ReadSection::read(resolver)?,
            drain: ReadSection::read(resolver)?,
            log: ReadSection::read(resolver)?,
            env: resolver.around.env.clone(),
        };
        resolver.check_state_fits(&config.state, &config.limits)?;
        Ok(config)
    }
}

impl Resolver<'_> {
    fn tls(&self) -> Result<Option<TlsConfig>> {
        match (self.get::<Option<String>>("tls.cert")?, self.get::<Option<String>>("tls.key")?) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => Ok(Some(TlsConfig { cert: self.around.path(cert), key: self.around.path(key) })),
            (Some(_), None) => Err(self.wrong("tls.key", "the file of the key that belongs to `tls.cert`")),
            (None, Some(_)) => Err(self.wrong("tls.cert", "the file of the certificate that belongs to `tls.key`")),
        }
    }
}

impl Config {
    /// What readers, and as much the newest events, may take here: a small cgroup must have room for the rest.
    pub fn half_of_read_memory(&self) -> usize {
        let wanted = self.limits.read_memory_bytes_max;
        cgroup::memory_max(&*self.env.files).map_or(wanted, |max| wanted.min(max / 4)) / 2
    }
}
