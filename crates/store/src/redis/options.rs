//! Where Redis is and how it is to be used.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_env::Network;
use bowline_env::net::OsNetwork;

use crate::Retentions;

/// The port of a Redis server, and that of a sentinel.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;

#[derive(Clone, Debug)]
pub struct RedisOptions {
    pub url: RedisUrl,
    pub retention: Retentions,
    /// How many replicas must have a commit before it is answered.
    pub wait_replicas: u32,
    /// How long a command may take, with all its attempts. After this the caller gets an error.
    pub timeout: Duration,
    /// How much memory the newest events of logs that are followed may take.
    pub cache_bytes: usize,
    /// How servers are reached.
    pub network: Arc<dyn Network>,
}

impl RedisOptions {
    pub fn new(url: RedisUrl, retention: impl Into<Retentions>) -> RedisOptions {
        RedisOptions {
            url,
            retention: retention.into(),
            wait_replicas: 0,
            timeout: Duration::from_secs(5),
            cache_bytes: 64 << 20,
            network: Arc::new(OsNetwork),
        }
    }
}

/// `redis://[user:password@]host[:port][,host[:port]…][/db][?prefix=…&era=…]`, `rediss://` for TLS, and
/// `redis+sentinel://…/name` (or `rediss+sentinel://`) for the master that the sentinels call so.
///
/// Several hosts are ways to the same data. Whether it is a cluster is asked of the server.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    pub hosts: Vec<HostPort>,
    /// The hosts are sentinels, and this is what they call the master.
    pub master: Option<String>,
    pub tls: bool,
    pub user: Option<String>,
    pub password: Option<String>,
    pub db: i64,
    /// What the name of every key begins with.
    pub prefix: String,
    /// To be changed by an operator who restores Redis from a backup: positions from before then belong to another epoch.
    pub era: String,
}

/// One host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl RedisUrl {
    /// Reads a URL; the error is a sentence.
    pub fn parse(text: &str) -> Result<RedisUrl, String> {
        let (scheme, rest) = text.split_once("://").ok_or("A Redis URL begins with redis:// or rediss://.")?;
        let (tls, sentinel) = match scheme {
            "redis" => (false, false),
            "rediss" => (true, false),
            "redis+sentinel" => (false, true),
            "rediss+sentinel" => (true, true),
            _ => {
                return Err(format!(
                    "{scheme}:// is not a way to Redis; use redis://, rediss:// or redis+sentinel://."
                ));
            }
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (credentials, rest) = rest.rsplit_once('@').map_or((None, rest), |(who, rest)| (Some(who), rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let port = if sentinel { SENTINEL_PORT } else { PORT };
        let hosts = hosts.split(',').map(|host| address(host, port)).collect::<Result<Vec<_>, _>>()?;
        let (user, password) = match credentials.map(|text| text.split_once(':').unwrap_or((text, ""))) {
            Some((user, password)) => (decode(user)?, decode(password)?),
            None => (String::new(), String::new()),
        };
        let mut url = RedisUrl {
            hosts,
            master: None,
            tls,
            user: Some(user).filter(|user| !user.is_empty()),
            password: Some(password).filter(|password| !password.is_empty()),
            db: 0,
            prefix: "bowline".into(),
            era: "1".into(),
        };
        match (sentinel, decode(path)?) {
            (true, name) if name.is_empty() => {
                return Err("A sentinel URL ends with the name of the master: redis+sentinel://host/name.".into());
            }
            (true, name) => url.master = Some(name),
            (false, db) if db.is_empty() => {}
            (false, db) => url.db = number(&db)?,
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value)?;
            match key {
                "prefix" if !value.is_empty() => url.prefix = value,
                "era" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric()) => url.era = value,
                "era" => return Err("An era is made of letters and digits.".into()),
                "db" => url.db = number(&value)?,
                _ => return Err(format!("{key} is not known in a Redis URL; prefix, era and db are.")),
            }
        }
        Ok(url)
    }
}

fn number(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("{text} is not the number of a database."))
}

fn address(text: &str, port: u16) -> Result<HostPort, String> {
    let bad = || format!("{text:?} is not a host, or a host and a port.");
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, port),
        Some((host, rest)) => (host, rest.strip_prefix(':').and_then(|port| port.parse().ok()).ok_or_else(bad)?),
        None => match text.split_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| bad())?),
            None => (text, port),
        },
    };
    (!host.is_empty()).then(|| HostPort { host: host.to_owned(), port }).ok_or_else(bad)
}

/// Undoes `%40` and its like.
fn decode(text: &str) -> Result<String, String> {
    let bad = || "A Redis URL has a % that is not followed by two digits of base 16, or that makes no text.".to_owned();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        if *byte == b'%' {
            let pair = rest.get(..2).and_then(|pair| std::str::from_utf8(pair).ok()).ok_or_else(bad)?;
            bytes.push(u8::from_str_radix(pair, 16).map_err(|_| bad())?);
            rest = &rest[2..];
        } else {
            bytes.push(*byte);
        }
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

/// Without the password: this is shown in logs and by `config print`.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tls, sentinel) = (if self.tls { "s" } else { "" }, if self.master.is_some() { "+sentinel" } else { "" });
        write!(f, "redis{tls}{sentinel}://")?;
        if self.user.is_some() || self.password.is_some() {
            let hidden = if self.password.is_some() { ":…" } else { "" };
            write!(f, "{}{hidden}@", self.user.as_deref().unwrap_or_default())?;
        }
        let hosts: Vec<String> = self.hosts.iter().map(HostPort::to_string).collect();
        f.write_str(&hosts.join(","))?;
        match &self.master {
            Some(master) => write!(f, "/{master}?db={}&", self.db)?,
            None => write!(f, "/{}?", self.db)?,
        }
        write!(f, "prefix={}&era={}", self.prefix, self.era)
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_shown_without_their_password() {
        for (text, shown) in [
            ("redis://localhost", "redis://localhost:6379/0?prefix=bowline&era=1"),
            ("redis://a:1,b:2/3?prefix=x", "redis://a:1,b:2/3?prefix=x&era=1"),
            ("rediss://ann:s%40cret@[::1]:7/", "rediss://ann:…@[::1]:7/0?prefix=bowline&era=1"),
            ("redis://:secret@h?era=2", "redis://:…@h:6379/0?prefix=bowline&era=2"),
            ("redis+sentinel://a,b:9/mine?db=4", "redis+sentinel://a:26379,b:9/mine?db=4&prefix=bowline&era=1"),
        ] {
            let url = RedisUrl::parse(text).unwrap();
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("ecret"));
        }
        assert_eq!(RedisUrl::parse("rediss://ann:s%40cret@h").unwrap().password.as_deref(), Some("s@cret"));
    }

    #[test]
    fn what_is_no_way_to_redis_is_refused_with_a_sentence() {
        for text in [
            "redis:localhost",
            "http://h",
            "redis://",
            "redis://h:x",
            "redis://h/x",
            "redis://h?color=red",
            "redis+sentinel://h",
            "redis://h:1,",
            "redis://%zz@h",
            "redis://h?era=a/b",
        ] {
            let why = RedisUrl::parse(text).unwrap_err();
            assert!(why.ends_with('.'), "{text}: {why}");
        }
    }
}
