//! An MCP server in memory, for the hub to have behind it: over Streamable HTTP, of revision 2025-11-25 with sessions or of 2026-07-28
//! without, with tools that write down each time they run.
//!
//! It shares no code with the hub. What it had in memory dies with it; what its tools have done is in the ledger, as the effect of a call
//! is in the world.
//!
//! | module | holds |
//! |---|---|
//! | `host` | when it is there, and what happens to it |
//! | `backend` | connections and sessions |
//! | `exchange` | what it answers to each request |
//! | `http` | HTTP/1.1 as it is spoken there |
//! | `stream` | what is said of one call, which can be read again |
//! | `tool` | the tools, and what each answers |
//! | `ledger` | which calls ran, what their clients were told, and whether both can be true |

pub mod backend;
mod exchange;
pub mod host;
mod http;
pub mod ledger;
mod stream;
pub mod tool;

/// The revisions that it speaks, one of them in each seed: with sessions, and with requests that stand alone. Clients have either, too.
pub const WITH_SESSIONS: &str = "2025-11-25";
pub const STATELESS: &str = "2026-07-28";
