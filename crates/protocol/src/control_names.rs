//! Names of control frames: what the server sends without a number. No event may be called like one of them.

pub const CONNECTED: &str = "system.connected";
pub const HEARTBEAT: &str = "system.heartbeat";
pub const NOTICE: &str = "system.notice";
pub const SYSTEM_ERROR: &str = "system.error";
pub const SESSION_CREATED: &str = "agent.session_created";
pub const STATE_EXPORTED: &str = "agent.state_exported";
pub const STATE_RESTORED: &str = "agent.state_restored";
pub const RECOVERY_FAILED: &str = "error.recovery_failed";
pub const TASK_CHUNK: &str = "task.chunk";
pub const TASK_END: &str = "task.end";

/// All of them.
pub const CONTROL: &[&str] = &[
    CONNECTED,
    HEARTBEAT,
    NOTICE,
    SYSTEM_ERROR,
    SESSION_CREATED,
    STATE_EXPORTED,
    STATE_RESTORED,
    RECOVERY_FAILED,
    TASK_CHUNK,
    TASK_END,
];
