//! What the written settings mean together: units resolved, references followed, unsafe combinations refused.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::error::ConfigError;
use super::load::Surroundings;
use bowline_store::RedisUrl;

use super::value::{HIDDEN, Value};
use super::written::Written;
use super::{
    AuthMode, BufferConfig, Config, Limits, LogConfig, LogFormat, SessionConfig, StoreConfig, StoreUrl, SyncMode,
    TlsConfig, WhenBusy,
};

pub(super) type Result<T> = std::result::Result<T, ConfigError>;

/// Signs of life come eight times as often, and cannot come any faster than this allows.
const LEASE_MIN: Duration = Duration::from_millis(400);

pub struct Resolver<'a> {
    pub written: &'a Written,
    pub around: &'a Surroundings,
}

impl Resolver<'_> {
    pub fn config(&self) -> Result<Config> {
        let listen = self.listen()?;
        let insecure_no_auth = self.flag("insecure_no_auth")?;
        let (agents, default_agent) = self.agents()?;
        let auth = self.auth()?;
        let has_auth = !matches!(auth.mode, AuthMode::None);
        if !has_auth && !is_loopback(&listen) && !insecure_no_auth {
            return Err(ConfigError::conflict(
                format!("`listen` is {listen}, which others can reach, and `auth.mode` is \"none\""),
                "Set `auth.mode` to \"tokens\" or \"jwt\", listen on 127.0.0.1, or accept the risk with --insecure-no-auth.",
            ));
        }
        Ok(Config {
            listen,
            default_agent,
            insecure_no_auth,
            store: self.store()?,
            session: self.session(has_auth, is_loopback(&listen))?,
            buffer: BufferConfig {
                events_max: self.number("buffer.events_max")?,
                age_max: self.span("buffer.age_max")?,
            },
            stream: super::StreamConfig {
                ttl: self.span("stream.ttl")?,
                events_max: self.number("stream.events_max")?,
                producer_ttl: self.span("stream.producer_ttl")?,
            },
            state: self.state()?,
            heartbeat_interval: self.span("heartbeat.interval")?,
            auth,
            agents,
            hub: self.hub(&listen, has_auth)?,
            limits: self.limits()?,
            tls: self.tls()?,
            lease_ttl: self.lease_ttl()?,
            answer_timeout: self.answer_timeout()?,
            drain_timeout: self.span("drain.timeout")?,
            log: self.log()?,
        })
    }

    fn lease_ttl(&self) -> Result<Duration> {
        let ttl = self.span("lease.ttl")?;
        if ttl >= LEASE_MIN { Ok(ttl) } else { Err(self.wrong("lease.ttl", "400 ms or longer")) }
    }

    fn answer_timeout(&self) -> Result<Duration> {
        let timeout = self.span("lease.answer_timeout")?;
        if timeout >= LEASE_MIN { Ok(timeout) } else { Err(self.wrong("lease.answer_timeout", "400 ms or longer")) }
    }

    fn tls(&self) -> Result<Option<TlsConfig>> {
        match (self.optional("tls.cert")?, self.optional("tls.key")?) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => Ok(Some(TlsConfig { cert: self.around.path(cert), key: self.around.path(key) })),
            (Some(_), None) => Err(self.wrong("tls.key", "the file of the key that belongs to `tls.cert`")),
            (None, Some(_)) => Err(self.wrong("tls.cert", "the file of the certificate that belongs to `tls.key`")),
        }
    }

    fn listen(&self) -> Result<SocketAddr> {
        let text = self.text("listen")?;
        let address = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}").parse(),
            None => text.parse(),
        };
        address.map_err(|_| self.wrong("listen", "an address and port such as \"127.0.0.1:8080\" or \"[::1]:8080\""))
    }

    fn store(&self) -> Result<StoreConfig> {
        let text = self.text("store.url")?;
        let url = match text.split_once(':') {
            Some(("disk", dir)) if !dir.is_empty() => StoreUrl::Disk(PathBuf::from(dir)),
            Some(("memory", "")) => StoreUrl::Memory,
            Some((scheme, _)) if scheme.starts_with("redis") => match RedisUrl::parse(&text) {
                Ok(url) => StoreUrl::Redis(url),
                Err(why) => return Err(self.wrong("store.url", &format!("a Redis URL ({why})"))),
            },
            _ => return Err(self.wrong("store.url", "\"disk:DIR\", \"memory:\" or \"redis://HOST\"")),
        };
        let sync = match self.text("store.sync")?.as_str() {
            "interval" => SyncMode::Interval,
            _ => SyncMode::Always,
        };
        let wait_replicas = self.number("store.wait_replicas")? as u32;
        Ok(StoreConfig { url, sync, wait_replicas, timeout: self.span("store.timeout")? })
    }

    fn session(&self, has_auth: bool, loopback: bool) -> Result<SessionConfig> {
        let when_busy = match self.text("session.when_busy")?.as_str() {
            "queue" => WhenBusy::Queue,
            _ => WhenBusy::Reject,
        };
        Ok(SessionConfig {
            ttl: self.span("session.ttl")?,
            when_busy,
            queue_max: self.count("session.queue_max")?,
            ownership: self.ownership(has_auth, loopback)?,
            tombstone_ttl: self.span("session.tombstone_ttl")?,
            store_patience: self.span("session.store_patience")?,
        })
    }

    fn limits(&self) -> Result<Limits> {
        let bits32 = |key: &str| self.number(key).map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        Ok(Limits {
            connections_max: self.count("limits.connections_max")?,
            sessions_per_principal_max: self.count("limits.sessions_per_principal_max")?,
            sessions_per_connection_max: self.count("limits.sessions_per_connection_max")?,
            frame_bytes_max: self.count("limits.frame_bytes_max")?,
            json_depth_max: self.count("limits.json_depth_max")?,
            message_bytes_max: self.count("limits.message_bytes_max")?,
            events_per_second: bits32("limits.events_per_second")?,
            bad_frames_max: bits32("limits.bad_frames_max")?,
            send_window_bytes: self.count("limits.send_window_bytes")?,
            event_bytes_max: self.count("limits.event_bytes_max")?,
            config_bytes_max: self.count("limits.config_bytes_max")?,
            confirmations_max: self.count("limits.confirmations_max")?,
            conversation_messages_max: self.count("limits.conversation_messages_max")?,
            messages_kept_max: self.number("limits.messages_kept_max")?,
            http_body_bytes_max: self.count("limits.http_body_bytes_max")?,
            streams_max: self.count("limits.streams_max")?,
            tasks_per_principal_max: self.count("limits.tasks_per_principal_max")?,
            ended_tasks_per_principal_max: self.count("limits.ended_tasks_per_principal_max")?,
            tombstones_per_principal_max: self.count("limits.tombstones_per_principal_max")?,
            read_memory_bytes_max: self.count("limits.read_memory_bytes_max")?,
            producer_appends_kept_max: self.count("limits.producer_appends_kept_max")?,
            operations_per_session_max: self.count("limits.operations_per_session_max")?,
            operations_kept_max: self.count("limits.operations_kept_max")?,
            operation_results_bytes_max: self.count("limits.operation_results_bytes_max")?,
            watches_per_connection_max: self.count("limits.watches_per_connection_max")?,
            header_timeout: self.span("limits.header_timeout")?,
            body_timeout: self.span("limits.body_timeout")?,
        })
    }

    fn log(&self) -> Result<LogConfig> {
        let format = match self.text("log.format")?.as_str() {
            "json" => LogFormat::Json,
            _ => LogFormat::Text,
        };
        let level = self.text("log.level")?;
        if tracing_subscriber::EnvFilter::try_new(&level).is_err() {
            return Err(self.wrong("log.level", "a filter such as \"info\" or \"bowline=debug\""));
        }
        Ok(LogConfig { format, level })
    }

    pub(super) fn read(&self, path: &str) -> Result<String> {
        let path = self.around.path(path);
        std::fs::read_to_string(&path).map_err(|error| ConfigError::Unreadable { path, reason: error.to_string() })
    }

    pub(super) fn text(&self, key: &str) -> Result<String> {
        match self.written.get(key).0 {
            Value::Text(text) if !text.is_empty() => Ok(text),
            _ => Err(self.wrong(key, "text that is not empty")),
        }
    }

    pub(super) fn optional(&self, key: &str) -> Result<Option<String>> {
        match self.written.get(key).0 {
            Value::Unset => Ok(None),
            _ => self.text(key).map(Some),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool> {
        match self.written.get(key).0 {
            Value::Bool(flag) => Ok(flag),
            _ => Err(self.wrong(key, "true or false")),
        }
    }

    pub(super) fn span(&self, key: &str) -> Result<Duration> {
        match self.written.get(key).0 {
            Value::Duration(span) => Ok(span),
            _ => Err(self.wrong(key, "a duration")),
        }
    }

    pub(super) fn number(&self, key: &str) -> Result<u64> {
        match self.written.get(key).0 {
            Value::Number(number) | Value::Size(number) => Ok(number),
            _ => Err(self.wrong(key, "a number")),
        }
    }

    pub(super) fn count(&self, key: &str) -> Result<usize> {
        self.number(key).map(|number| usize::try_from(number).unwrap_or(usize::MAX))
    }

    pub(super) fn wrong(&self, key: &str, expected: &str) -> ConfigError {
        let (value, source_of) = self.written.get(key);
        let given = match value.shown() {
            serde_json::Value::Null => "nothing".to_owned(),
            serde_json::Value::String(text) if text == HIDDEN => text,
            shown => shown.to_string(),
        };
        ConfigError::Wrong { key: key.to_owned(), source_of, given, expected: expected.to_owned() }
    }
}

/// Whether only this machine can reach the address.
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}
