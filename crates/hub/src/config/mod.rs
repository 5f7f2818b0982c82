//! How servers are configured: what is written of one, which of that is secret, and the file that names them; and the settings of the
//! hub itself.

pub mod file;
pub mod spec;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backend::Policy;
use bowline_env::Env;
use bowline_protocol::Principal;
use bowline_store::{Clock, ReadBudget};

use crate::config::spec::{ServerSpec, Target};

/// Which backend: its name, and whose it is. All clients share those of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendKey {
    pub owner: Option<Principal>,
    pub name: Arc<str>,
}

impl BackendKey {
    /// Of a server that all clients share.
    pub fn shared(name: &str) -> BackendKey {
        BackendKey { owner: None, name: name.into() }
    }

    pub fn of(owner: &Principal, name: &str) -> BackendKey {
        BackendKey { owner: Some(owner.clone()), name: name.into() }
    }
}

/// What `/mcp` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expose {
    /// The hub's own tools.
    Meta,
    /// The backends' tools, resources and prompts.
    Direct,
    Both,
}

impl Expose {
    pub fn meta(self) -> bool {
        self != Expose::Direct
    }

    pub fn direct(self) -> bool {
        self != Expose::Meta
    }
}

/// When a backend's names get its own name in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    Always,
    /// Only where two would be the same.
    Conditional,
    Never,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// What lifetimes count on. All parts of a node share it.
    pub clock: Clock,
    /// How servers are reached, and where their file is read.
    pub env: Env,
    /// What readers may hold in memory, those of the server around the hub included.
    pub reading: Arc<ReadBudget>,
    pub expose: Expose,
    pub prefix: Prefix,
    /// Servers that are added at run time may be on private and loopback addresses.
    pub allow_private: bool,
    /// Programs may be added at run time.
    pub allow_stdio_add: bool,
    /// Tools that say that they are read-only or idempotent are called again when their wire broke.
    pub retry_idempotent: bool,
    /// How long a call may take before it becomes a task.
    pub call_timeout: Duration,
    /// How long a call may run at a backend.
    pub call_limit: Duration,
    /// How long a backend's question waits for a person.
    pub ask_timeout: Duration,
    pub health_interval: Duration,
    pub health_timeout: Duration,
    pub policy: Policy,
    pub session_ttl: Duration,
    /// How long a finished task's result is kept.
    pub task_result_ttl: Duration,
    pub servers_per_principal_max: usize,
    pub sessions_per_principal_max: usize,
    /// How many processes of one program there may be, so that clients of it have one each.
    pub processes_per_server_max: usize,
    /// How many of them may be one principal's.
    pub processes_per_principal_max: usize,
    /// How often in a minute one principal may force a reconnect of a server that all clients share.
    pub forced_reconnects_per_minute_max: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            clock: Clock::start(),
            env: Env::default(),
            reading: ReadBudget::new(64 << 20),
            expose: Expose::Both,
            prefix: Prefix::Always,
            allow_private: true,
            allow_stdio_add: false,
            retry_idempotent: false,
            call_timeout: Duration::from_secs(120),
            call_limit: Duration::from_secs(24 * 3600),
            ask_timeout: Duration::from_secs(600),
            health_interval: Duration::from_secs(120),
            health_timeout: Duration::from_secs(60),
            policy: Policy::default(),
            session_ttl: Duration::from_secs(24 * 3600),
            task_result_ttl: Duration::from_secs(3600),
            servers_per_principal_max: 100,
            sessions_per_principal_max: 1000,
            processes_per_server_max: 16,
            processes_per_principal_max: 16,
            forced_reconnects_per_minute_max: 6,
        }
    }
}

/// Shorter values are words like `true` or `debug`; hiding them would make every sentence unreadable.
const CHARS_MIN: usize = 6;
const HIDDEN: &str = "[hidden]";

/// What a server was given in confidence.
#[derive(Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    pub fn of(spec: &ServerSpec) -> Secrets {
        let values: Vec<&String> = match &spec.target {
            Target::Http { headers, .. } => headers.values().collect(),
            Target::Stdio { env, .. } => env.values().collect(),
            Target::Invalid { .. } => Vec::new(),
        };
        // `Bearer abc` may come back whole, or as `abc`.
        let parts = values.iter().flat_map(|value| value.split_whitespace());
        let mut all: Vec<String> =
            values.iter().map(|value| value.as_str()).chain(parts).map(ToOwned::to_owned).collect();
        all.retain(|value| value.chars().count() >= CHARS_MIN && !value.eq_ignore_ascii_case("bearer"));
        // The longest first, so that nothing of it is left behind.
        all.sort_by_key(|value| std::cmp::Reverse(value.len()));
        all.dedup();
        Secrets(all)
    }

    pub fn hide(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| {
            if text.contains(secret.as_str()) { text.replace(secret.as_str(), HIDDEN) } else { text }
        })
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

#[cfg(test)]
mod secrets_tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_server_was_given_in_confidence_is_not_repeated() {
        let read = |entry| Secrets::of(&ServerSpec::read(&entry, &|_| None).unwrap());
        let http = read(
            json!({ "url": "http://x.example", "headers": { "Authorization": "Bearer s3cret-key", "X-On": "yes" } }),
        );
        assert_eq!(http.hide("bad auth: Bearer s3cret-key".into()), "bad auth: [hidden]");
        assert_eq!(http.hide("yes, no such key s3cret-key, s3cret-key".into()), "yes, no such key [hidden], [hidden]");
        let program = read(json!({ "command": "x", "env": { "A": "abcdef", "B": "abcdefghi" } }));
        assert_eq!(program.hide("it has abcdefghi and abcdef".into()), "it has [hidden] and [hidden]");
        assert_eq!(program.hide("nothing".into()), "nothing");
    }
}
