//! The settings of the hub, as the program around it gives them.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::backend::Policy;
use bowline_env::Env;
use bowline_store::{Clock, ReadBudget};

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
