//! What the settings mean: nothing optional, units resolved, every default in this file or in that of its section.
//!
//! What may be written, and how it is read, is in [`table`] and [`load`].

mod cgroup;
mod error;
mod load;
mod reread;
mod resolve;
mod resolve_agents;
mod resolve_auth;
mod resolve_hub;
mod resolve_state;
mod state;
pub mod table;
pub mod units;
mod value;
mod written;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bowline_protocol::Principal;
use bowline_protocol::frame::client::Secret;
use bowline_store::RedisUrl;

pub use error::{ConfigError, Source};
pub use load::{FILE_NAME, Flags, Loaded, Setting, Surroundings};
pub use reread::Reread;
pub use resolve::is_loopback;
pub use resolve_auth::JWT_SECRET_BYTES_MIN;
pub use state::StateConfig;

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
    pub heartbeat_interval: Duration,
    pub auth: AuthConfig,
    pub agents: BTreeMap<String, AgentConfig>,
    pub hub: HubConfig,
    pub limits: Limits,
    /// Whether TLS is served, and with what.
    pub tls: Option<TlsConfig>,
    /// How long a node that shows no sign of life keeps what it holds.
    pub lease_ttl: Duration,
    /// How long a caller waits for another node without an answer.
    pub answer_timeout: Duration,
    pub drain_timeout: Duration,
    pub log: LogConfig,
}

/// Where the certificate and its key are, in PEM.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    pub cert: PathBuf,
    pub key: PathBuf,
}

#[derive(Clone, Debug)]
pub struct StoreConfig {
    pub url: StoreUrl,
    /// On disk.
    pub sync: SyncMode,
    /// On Redis: how many replicas must have a commit before it is answered.
    pub wait_replicas: u32,
    /// On Redis: how long a command may take, with all its attempts.
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    Memory,
    Disk(PathBuf),
    Redis(RedisUrl),
}

/// As it is shown: without a password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Memory => f.write_str("memory:"),
            StoreUrl::Disk(dir) => write!(f, "disk:{}", dir.display()),
            StoreUrl::Redis(url) => url.fmt(f),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Synced to disk before anyone sees an event.
    Always,
    /// Written to the operating system before anyone sees an event; synced every 50 ms.
    Interval,
}

#[derive(Clone, Debug)]
pub struct SessionConfig {
    pub ttl: Duration,
    pub when_busy: WhenBusy,
    pub queue_max: usize,
    pub ownership: Ownership,
    /// How long a tombstone tells the owner that a session has expired or ended.
    pub tombstone_ttl: Duration,
    /// How long a run waits at its next event for a store that cannot take it, before the run is given up.
    pub store_patience: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenBusy {
    Reject,
    Queue,
}

/// What proves that a session is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The authenticated principal.
    Principal,
    /// A resume token that only the creator was given.
    Token,
    /// Knowing the id. Only for loopback without auth.
    Open,
}

impl Ownership {
    /// The word that stands for it in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Ownership::Principal => "principal",
            Ownership::Token => "token",
            Ownership::Open => "open",
        }
    }
}

#[derive(Clone, Debug)]
pub struct BufferConfig {
    pub events_max: u64,
    pub age_max: Duration,
}

/// Tasks with a log of their own; turns follow their session.
#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// How long a task's stream can be read after its end.
    pub ttl: Duration,
    pub events_max: u64,
    /// A producer that says nothing for so long is gone.
    pub producer_ttl: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub struct AuthConfig {
    pub mode: AuthMode,
    /// Without auth: what makes an admin, instead of being able to reach a loopback address.
    pub admin_token: Option<Secret>,
    /// Browser origins that may connect, besides the server's own page.
    pub origins: Vec<String>,
    /// Names that this server goes by, besides its addresses and the hosts of those origins.
    pub hosts: Vec<String>,
    /// How long a connection without a credential may wait before it sends one.
    pub first_frame_timeout: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub enum AuthMode {
    None,
    Tokens(Vec<StaticToken>),
    Jwt(JwtConfig),
}

#[derive(Clone, Debug, PartialEq)]
pub struct StaticToken {
    pub token: Secret,
    pub principal: Principal,
    pub admin: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JwtConfig {
    pub keys: JwtKeys,
    pub issuer: Option<String>,
    pub audience: Option<String>,
    /// The claim that names the principal.
    pub principal_claim: String,
    /// Principals with a claim of this name that is `true`, or a `scope` holding this word, may use the admin API.
    pub admin_claim: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum JwtKeys {
    /// One shared secret, for HS256, HS384 and HS512.
    Secret(Secret),
    /// One public key in PEM, for RS256, RS384 and RS512, or ES256 or ES384, by its kind.
    Pem(String),
    /// A JSON Web Key Set on disk.
    JwksFile(PathBuf),
    /// A JSON Web Key Set elsewhere, and how often it is fetched anew.
    JwksUrl { url: reqwest::Url, refresh: Duration },
}

#[derive(Clone, Debug)]
pub struct AgentConfig {
    pub kind: AgentKind,
}

#[derive(Clone, Debug)]
pub enum AgentKind {
    Demo {
        /// The same seed gives the same plan and the same pauses.
        seed: u64,
        /// 1 is as a person would like it; larger is faster, 0 means no pauses at all.
        speed: f64,
    },
    OpenAi(OpenAiConfig),
    Http(HttpConfig),
}

impl AgentKind {
    /// The word that stands for it in settings.
    pub const fn name(&self) -> &'static str {
        match self {
            AgentKind::Demo { .. } => "demo",
            AgentKind::OpenAi(_) => "openai",
            AgentKind::Http(_) => "http",
        }
    }
}

/// A model behind an OpenAI-compatible endpoint.
#[derive(Clone, Debug)]
pub struct OpenAiConfig {
    /// Where `/chat/completions` lies.
    pub base_url: String,
    pub model: String,
    /// What the model is told before the conversation.
    pub system: Option<String>,
    /// Requests to the model in one run; each but the last may call tools.
    pub max_steps: u32,
    pub wire: WireConfig,
}

/// A program behind a URL.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    pub url: String,
    /// What it answers; none means that its answer tells.
    pub format: Option<Format>,
    pub wire: WireConfig,
}

/// What an upstream answers a POST with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Chunks of the AI SDK's UI message stream.
    Ui,
    /// Chunks of chat completions.
    OpenAi,
    /// Events of our own.
    Events,
}

/// How an upstream is spoken to.
#[derive(Clone, Debug)]
pub struct WireConfig {
    pub token: Option<Secret>,
    pub headers: Vec<(String, Secret)>,
    /// The longest silence before the upstream counts as lost.
    pub timeout: Duration,
    /// How often a request that may be sent again is.
    pub retries: u32,
    /// The longest answer, and the largest record of one.
    pub answer_bytes_max: usize,
}

/// The MCP hub.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// The file that names its servers.
    pub servers_file: Option<PathBuf>,
    pub body_bytes_max: usize,
    pub options: bowline_hub::Options,
}

/// Everything that a client can make grow.
#[derive(Clone, Debug)]
pub struct Limits {
    pub connections_max: usize,
    pub sessions_per_principal_max: usize,
    pub sessions_per_connection_max: usize,
    pub frame_bytes_max: usize,
    pub json_depth_max: usize,
    pub message_bytes_max: usize,
    /// `config` and `app_version` of one session.
    pub config_bytes_max: usize,
    /// Client frames per second and connection (acks and pongs do not count).
    pub events_per_second: u32,
    pub bad_frames_max: u32,
    /// Bytes handed to a socket before it must have taken them.
    pub send_window_bytes: usize,
    /// One event as an agent emits it.
    pub event_bytes_max: usize,
    /// Pending confirmations of one run.
    pub confirmations_max: usize,
    /// Messages of one conversation that an agent is given.
    pub conversation_messages_max: usize,
    /// Messages of one conversation that are kept; a `message_id` is remembered as long as its message.
    pub messages_kept_max: u64,
    pub http_body_bytes_max: usize,
    /// Responses that stream events, open at once.
    pub streams_max: usize,
    /// Running tasks with a log of their own.
    pub tasks_per_principal_max: usize,
    /// Tasks that have ended and whose streams can still be read.
    pub ended_tasks_per_principal_max: usize,
    /// Sessions that are over, and tasks whose streams are gone, of which only that is remembered.
    pub tombstones_per_principal_max: usize,
    /// Memory for readers and for the newest events, half of it each.
    pub read_memory_bytes_max: usize,
    pub producer_appends_kept_max: usize,
    pub operations_per_session_max: usize,
    /// Operations of one session that it remembers, and the bytes of their results that it keeps.
    pub operations_kept_max: usize,
    pub operation_results_bytes_max: usize,
    /// Tasks that one WebSocket connection watches.
    pub watches_per_connection_max: usize,
    pub header_timeout: Duration,
    pub body_timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Debug)]
pub struct LogConfig {
    pub format: LogFormat,
    /// A `tracing` filter such as `info` or `bowline=debug`.
    pub level: String,
}

const HOUR: Duration = Duration::from_secs(3600);

impl Default for WireConfig {
    fn default() -> WireConfig {
        WireConfig {
            token: None,
            headers: Vec::new(),
            timeout: Duration::from_secs(60),
            retries: 3,
            answer_bytes_max: 4 << 20,
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            default_agent: "demo".into(),
            insecure_no_auth: false,
            store: StoreConfig {
                url: StoreUrl::Disk("./bowline-data".into()),
                sync: SyncMode::Always,
                wait_replicas: 0,
                timeout: Duration::from_secs(5),
            },
            session: SessionConfig {
                ttl: 24 * HOUR,
                when_busy: WhenBusy::Reject,
                queue_max: 10,
                // The default depends on `auth.mode` and `listen`; loading settles it.
                ownership: Ownership::Open,
                tombstone_ttl: 7 * 24 * HOUR,
                store_patience: Duration::from_secs(60),
            },
            buffer: BufferConfig { events_max: 100_000, age_max: 24 * HOUR },
            stream: StreamConfig { ttl: HOUR, events_max: 100_000, producer_ttl: 24 * HOUR },
            state: StateConfig::default(),
            heartbeat_interval: Duration::from_secs(30),
            auth: AuthConfig {
                mode: AuthMode::None,
                admin_token: None,
                origins: Vec::new(),
                hosts: Vec::new(),
                first_frame_timeout: Duration::from_secs(5),
            },
            agents: BTreeMap::from([("demo".into(), AgentConfig { kind: AgentKind::Demo { seed: 1, speed: 1.0 } })]),
            hub: HubConfig::default(),
            tls: None,
            limits: Limits::default(),
            lease_ttl: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            log: LogConfig { format: LogFormat::Text, level: "info".into() },
        }
    }
}

impl Default for HubConfig {
    fn default() -> HubConfig {
        HubConfig { servers_file: None, body_bytes_max: 4 << 20, options: bowline_hub::Options::default() }
    }
}

impl Limits {
    /// What readers, and as much the newest events, may take here: a small cgroup must have room for the rest.
    pub fn half_of_read_memory(&self) -> usize {
        cgroup::memory_max().map_or(self.read_memory_bytes_max, |max| self.read_memory_bytes_max.min(max / 4)) / 2
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 20_000,
            sessions_per_principal_max: 20_000,
            sessions_per_connection_max: 64,
            frame_bytes_max: 1 << 20,
            json_depth_max: 64,
            message_bytes_max: 256 << 10,
            config_bytes_max: 16 << 10,
            events_per_second: 500,
            bad_frames_max: 100,
            send_window_bytes: 256 << 10,
            event_bytes_max: 1 << 20,
            confirmations_max: 32,
            conversation_messages_max: 1000,
            messages_kept_max: 10_000,
            http_body_bytes_max: 1 << 20,
            streams_max: 10_000,
            tasks_per_principal_max: 1000,
            ended_tasks_per_principal_max: 1000,
            tombstones_per_principal_max: 1000,
            read_memory_bytes_max: 128 << 20,
            producer_appends_kept_max: 100_000,
            operations_per_session_max: 100,
            operations_kept_max: 1000,
            operation_results_bytes_max: 16 << 20,
            watches_per_connection_max: 64,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(10),
        }
    }
}
