//! Frames on the WebSocket: what a client may send, what the server says besides logged events.
//!
//! Names of frames are written here and nowhere else.

pub mod client;
mod fields;
mod private;
pub mod server;

pub use client::{Attach, BadFrame, ClientFrame, PlanCommand};
pub use server::Control;

/// Names of client frames and of control frames.
pub mod names {
    pub use crate::control_names::*;

    pub const CREATE_SESSION: &str = "user.create_session";
    pub const MESSAGE: &str = crate::event::names::USER_MESSAGE;
    pub const RESPONSE: &str = crate::event::names::USER_RESPONSE;
    pub const CANCEL: &str = "user.cancel";
    pub const ACK: &str = "user.ack";
    pub const RECONNECT: &str = "user.reconnect";
    pub const RECONNECT_WITH_STATE: &str = "user.reconnect_with_state";
    pub const REQUEST_STATE: &str = "user.request_state";
    pub const CANCEL_TASK: &str = "user.cancel_task";
    pub const RESTART_TASK: &str = "user.restart_task";
    pub const CANCEL_PLAN: &str = "user.cancel_plan";
    pub const REPLAN: &str = "user.replan";
    pub const SOLVE_TASKS: &str = "user.solve_tasks";
    pub const WATCH_TASK: &str = "user.watch_task";
    pub const UNWATCH_TASK: &str = "user.unwatch_task";
    pub const AUTHENTICATE: &str = "user.authenticate";
    pub const END_SESSION: &str = "user.end_session";
    pub const PONG: &str = "user.pong";

    /// What a client may send.
    pub const CLIENT: &[&str] = &[
        CREATE_SESSION,
        MESSAGE,
        RESPONSE,
        CANCEL,
        ACK,
        RECONNECT,
        RECONNECT_WITH_STATE,
        REQUEST_STATE,
        CANCEL_TASK,
        RESTART_TASK,
        CANCEL_PLAN,
        REPLAN,
        SOLVE_TASKS,
        WATCH_TASK,
        UNWATCH_TASK,
        AUTHENTICATE,
        END_SESSION,
        PONG,
    ];
}
