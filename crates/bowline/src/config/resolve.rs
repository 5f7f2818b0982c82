//! What the written settings mean together: units resolved, references followed, unsafe combinations refused.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bowline_protocol::Principal;
use bowline_protocol::frame::client::Secret;

use super::error::{ConfigError, Source};
use super::load::Surroundings;
use super::value::{HIDDEN, Value, WrittenToken};
use super::written::Written;
use super::{
    AgentConfig, AgentKind, AuthConfig, AuthMode, BufferConfig, Config, JwtConfig, JwtKeys, Limits, LogConfig,
    LogFormat, Ownership, SessionConfig, StaticToken, StoreConfig, StoreUrl, SyncMode, WhenBusy,
};

/// HS256 with a secret shorter than its own output can be guessed; RFC 7518 forbids it.
pub const JWT_SECRET_BYTES_MIN: usize = 32;

type Result<T> = std::result::Result<T, ConfigError>;

pub struct Resolver<'a> {
    pub written: &'a Written,
    pub around: &'a Surroundings,
}

impl Resolver<'_> {
    pub fn config(&self) -> Result<Config> {
        let listen = self.listen()?;
        let insecure_no_auth = self.flag("insecure_no_auth")?;
        let agents = self.agents()?;
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
            default_agent: self.default_agent(&agents)?,
            insecure_no_auth,
            store: self.store()?,
            session: self.session(has_auth, is_loopback(&listen))?,
            buffer: BufferConfig {
                events_max: self.number("buffer.events_max")?,
                age_max: self.span("buffer.age_max")?,
            },
            heartbeat_interval: self.span("heartbeat.interval")?,
            auth,
            agents,
            limits: self.limits()?,
            drain_timeout: self.span("drain.timeout")?,
            log: self.log()?,
        })
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
            Some(("redis" | "rediss", _)) => {
                return Err(self.unsupported("store.url", "Redis stores; use `disk:DIR` or `memory:`"));
            }
            _ => return Err(self.wrong("store.url", "\"disk:DIR\" or \"memory:\"")),
        };
        let sync = match self.text("store.sync")?.as_str() {
            "interval" => SyncMode::Interval,
            _ => SyncMode::Always,
        };
        Ok(StoreConfig { url, sync })
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

    fn ownership(&self, has_auth: bool, loopback: bool) -> Result<Ownership> {
        let Some(text) = self.optional("session.ownership")? else {
            return Ok(match (has_auth, loopback) {
                (true, _) => Ownership::Principal,
                (false, true) => Ownership::Open,
                (false, false) => Ownership::Token,
            });
        };
        match text.as_str() {
            "principal" if !has_auth => Err(ConfigError::conflict(
                "`session.ownership` is \"principal\", but without auth all callers are the same principal",
                "Set `auth.mode`, or use \"token\".",
            )),
            "open" if has_auth || !loopback => Err(ConfigError::conflict(
                "`session.ownership` is \"open\", which is safe only on loopback without auth",
                "Remove it to get the safe default, or use \"token\".",
            )),
            "principal" => Ok(Ownership::Principal),
            "open" => Ok(Ownership::Open),
            _ => Ok(Ownership::Token),
        }
    }

    fn auth(&self) -> Result<AuthConfig> {
        let mode = match self.text("auth.mode")?.as_str() {
            "tokens" => AuthMode::Tokens(self.static_tokens()?),
            "jwt" => AuthMode::Jwt(self.jwt()?),
            _ => {
                self.refuse_forgotten_mode()?;
                AuthMode::None
            }
        };
        let origins = match self.written.get("auth.origins").0 {
            Value::List(origins) => origins,
            _ => Vec::new(),
        };
        for origin in &origins {
            if origin != "*" && crate::auth::origin::Origin::parse(origin).is_none() {
                return Err(
                    self.wrong("auth.origins", "origins such as \"https://app.example\", without a path, or \"*\"")
                );
            }
        }
        Ok(AuthConfig { mode, origins, first_frame_timeout: self.span("auth.first_frame_timeout")? })
    }

    /// Credentials without a mode are a server that its owner believes to be locked.
    fn refuse_forgotten_mode(&self) -> Result<()> {
        let credentials = ["auth.tokens", "auth.jwt_secret", "auth.jwt_public_key_file", "auth.jwks_file"];
        match credentials.iter().find(|key| self.written.is_written(key)) {
            Some(key) if !self.written.is_written("auth.mode") => Err(ConfigError::conflict(
                format!("`{key}` is set, but `auth.mode` is not"),
                "Set `auth.mode` to \"tokens\" or \"jwt\", or to \"none\" if nobody needs to prove anything.",
            )),
            _ => Ok(()),
        }
    }

    fn static_tokens(&self) -> Result<Vec<StaticToken>> {
        let (Value::Tokens(written), _) = self.written.get("auth.tokens") else {
            return Err(self.wrong("auth.tokens", "a list of tokens"));
        };
        if written.is_empty() {
            return Err(ConfigError::conflict(
                "`auth.mode` is \"tokens\", but `auth.tokens` is empty",
                "Add at least one token.",
            ));
        }
        let mut tokens: Vec<StaticToken> = Vec::new();
        for WrittenToken { token, principal, admin } in written {
            let token = self.secret("auth.tokens", &token)?;
            let principal = Principal::parse(&principal)
                .ok_or_else(|| self.wrong("auth.tokens", "a principal of 1 to 128 characters"))?;
            if tokens.iter().any(|other| other.token == token) {
                return Err(ConfigError::conflict(
                    "`auth.tokens` has the same token twice",
                    "Give each principal its own token.",
                ));
            }
            tokens.push(StaticToken { token, principal, admin });
        }
        Ok(tokens)
    }

    fn jwt(&self) -> Result<JwtConfig> {
        let secret = match self.written.get("auth.jwt_secret").0 {
            Value::Secret(text) if !text.is_empty() => Some(self.secret("auth.jwt_secret", &text)?),
            _ => None,
        };
        let pem_file = self.optional("auth.jwt_public_key_file")?;
        let jwks_file = self.optional("auth.jwks_file")?;
        let keys = match (secret, pem_file, jwks_file) {
            (Some(secret), None, None) if secret.expose().len() < JWT_SECRET_BYTES_MIN => {
                return Err(self.wrong(
                    "auth.jwt_secret",
                    &format!("at least {JWT_SECRET_BYTES_MIN} bytes, such as from `openssl rand -hex 32`"),
                ));
            }
            (Some(secret), None, None) => JwtKeys::Secret(secret),
            (None, Some(path), None) => JwtKeys::Pem(self.read(&path)?),
            (None, None, Some(path)) => JwtKeys::JwksFile(self.around.path(path)),
            _ => {
                return Err(ConfigError::conflict(
                    "`auth.mode` is \"jwt\", which needs exactly one kind of key",
                    "Set one of `auth.jwt_secret`, `auth.jwt_public_key_file` and `auth.jwks_file`.",
                ));
            }
        };
        Ok(JwtConfig {
            keys,
            issuer: self.optional("auth.issuer")?,
            audience: self.optional("auth.audience")?,
            principal_claim: self.text("auth.principal_claim")?,
            admin_claim: self.text("auth.admin_claim")?,
        })
    }

    fn agents(&self) -> Result<BTreeMap<String, AgentConfig>> {
        let mut names = self.written.agent_names();
        names.insert("demo".into());
        names.into_iter().map(|name| self.agent(&name).map(|agent| (name, agent))).collect()
    }

    fn agent(&self, name: &str) -> Result<AgentConfig> {
        let key = format!("agents.{name}.kind");
        let plain = name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
        if !plain || name.is_empty() {
            let source_of = self.written.first_of_agent(name).unwrap_or(Source::Default);
            let expected = "an agent's name of letters, digits, _ and -".to_owned();
            return Err(ConfigError::Wrong { key: "agents".into(), source_of, given: name.to_owned(), expected });
        }
        if name != "demo" && !self.written.is_written(&key) {
            let source_of = self.written.first_of_agent(name).unwrap_or(Source::Default);
            return Err(ConfigError::Wrong { key, source_of, given: "nothing".into(), expected: "\"demo\"".into() });
        }
        match self.text(&key)?.as_str() {
            "demo" => {
                let speed = match self.written.get(&format!("agents.{name}.speed")).0 {
                    Value::Decimal(speed) => speed,
                    _ => return Err(self.wrong(&format!("agents.{name}.speed"), "a number")),
                };
                let seed = self.number(&format!("agents.{name}.seed"))?;
                Ok(AgentConfig { kind: AgentKind::Demo { seed, speed } })
            }
            kind @ ("openai" | "http") => Err(self.unsupported(&key, &format!("agents of kind \"{kind}\""))),
            _ => Err(self.wrong(&key, "\"demo\"")),
        }
    }

    fn default_agent(&self, agents: &BTreeMap<String, AgentConfig>) -> Result<String> {
        let name = self.text("default_agent")?;
        if name.contains("://") {
            return Err(self.unsupported("default_agent", "agents of kind \"http\", so an agent cannot be a URL yet"));
        }
        if !agents.contains_key(&name) {
            let known: Vec<_> = agents.keys().map(|name| format!("\"{name}\"")).collect();
            return Err(self.wrong("default_agent", &format!("the name of a configured agent ({})", known.join(", "))));
        }
        Ok(name)
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
            confirmations_max: self.count("limits.confirmations_max")?,
            conversation_messages_max: self.count("limits.conversation_messages_max")?,
            http_body_bytes_max: self.count("limits.http_body_bytes_max")?,
            header_timeout: self.span("limits.header_timeout")?,
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

    /// Follows `env:NAME` and `file:PATH`; anything else is the secret itself.
    fn secret(&self, key: &str, text: &str) -> Result<Secret> {
        let found = if let Some(name) = text.strip_prefix("env:") {
            let value = self.around.variables.get(name).cloned();
            value.ok_or_else(|| self.missing(key, &format!("the environment variable {name}, which is not set")))?
        } else if let Some(path) = text.strip_prefix("file:") {
            self.read(path)?.trim_end_matches(['\r', '\n']).to_owned()
        } else {
            text.to_owned()
        };
        if found.is_empty() {
            return Err(self.missing(key, "a secret that is empty"));
        }
        Ok(Secret::new(found))
    }

    fn read(&self, path: &str) -> Result<String> {
        let path = self.around.path(path);
        std::fs::read_to_string(&path).map_err(|error| ConfigError::Unreadable { path, reason: error.to_string() })
    }

    fn text(&self, key: &str) -> Result<String> {
        match self.written.get(key).0 {
            Value::Text(text) if !text.is_empty() => Ok(text),
            _ => Err(self.wrong(key, "text that is not empty")),
        }
    }

    fn optional(&self, key: &str) -> Result<Option<String>> {
        match self.written.get(key).0 {
            Value::Unset => Ok(None),
            _ => self.text(key).map(Some),
        }
    }

    fn flag(&self, key: &str) -> Result<bool> {
        match self.written.get(key).0 {
            Value::Bool(flag) => Ok(flag),
            _ => Err(self.wrong(key, "true or false")),
        }
    }

    fn span(&self, key: &str) -> Result<Duration> {
        match self.written.get(key).0 {
            Value::Duration(span) => Ok(span),
            _ => Err(self.wrong(key, "a duration")),
        }
    }

    fn number(&self, key: &str) -> Result<u64> {
        match self.written.get(key).0 {
            Value::Number(number) | Value::Size(number) => Ok(number),
            _ => Err(self.wrong(key, "a number")),
        }
    }

    fn count(&self, key: &str) -> Result<usize> {
        self.number(key).map(|number| usize::try_from(number).unwrap_or(usize::MAX))
    }

    fn wrong(&self, key: &str, expected: &str) -> ConfigError {
        let (value, source_of) = self.written.get(key);
        let given = match value.shown() {
            serde_json::Value::Null => "nothing".to_owned(),
            serde_json::Value::String(text) if text == HIDDEN => text,
            shown => shown.to_string(),
        };
        ConfigError::Wrong { key: key.to_owned(), source_of, given, expected: expected.to_owned() }
    }

    fn missing(&self, key: &str, given: &str) -> ConfigError {
        let source_of = self.written.get(key).1;
        ConfigError::Wrong { key: key.to_owned(), source_of, given: given.to_owned(), expected: "a secret".into() }
    }

    fn unsupported(&self, key: &str, what: &str) -> ConfigError {
        let source_of = self.written.get(key).1;
        ConfigError::Unsupported { key: key.to_owned(), source_of, what: what.to_owned() }
    }
}

/// Whether only this machine can reach the address.
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}
