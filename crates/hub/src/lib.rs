//! The MCP hub: one endpoint in front of many MCP servers, which never lies about them and never gives up on them.
//!
//! JSON is carried through as it is: only what must be looked at is parsed, and unknown fields survive.
//!
//! # A tool call, file by file
//!
//! ```text
//! a client
//!    │  POST /mcp                                 or a line on stdin
//!    ▼
//! downstream/streamable_http                      downstream/stdio
//!    │  with a session, or without?
//!    ├─ downstream/session_http   with one: the answer is in its log (session/, read by session/stream_reader), and outlives the wire
//!    └─ downstream/stateless      without: closing the response cancels; questions travel in results
//!    ▼
//! downstream/mod, call/mod                        begins it; what the server says on the way comes before the answer
//!    ▼
//! downstream/one_server, downstream/all_servers   one server as it is, or all as one; tools/ are the hub's own
//!    ▼
//! relay/call                                      whose tool is it? counts it, makes it, repeats it if the server asks for input
//!    ▼
//! backend/mod, backend/dispatcher                 core::backend decides: send, wait for a reconnect, send again, give up
//!    ▼
//! upstream/mod
//!    ├─ upstream/streamable_http  core::upstream_session decides: make a session, send, wait, resume, ask, end;
//!    │                            request: was it sent?  response: what came back
//!    │                            (env/http, driven by the task that waits)
//!    └─ upstream/http_sse, upstream/process_pool → upstream/stdio
//!                                 one pipe each (upstream/pipe); pending_calls: was it sent?
//!    ▼
//! the server
//! ```
//!
//! Over HTTP on both sides these are 13 files with [`session`], and four that all of them use: [`message`], [`fields`], `relay/mod` (who asks)
//! and `upstream/backend_session`. Not drawn is what a call only asks in passing: the codec of its revision, whether it is slow, cancelled or a
//! task, and what stands when it has ended. Modules import each other one way, down the picture; between `relay` and [`backend`] stand [`hub`] (all
//! servers and clients, and who may see what), [`session`], `tasks` and `registry`. All share the types in [`call`], [`config`] and
//! [`message`].
//!
//! # Where to look
//!
//! | what | where |
//! |---|---|
//! | elicitation, sampling, roots | `session/elicitation_and_sampling`; without a session `call/server_request` and `downstream/stateless` |
//! | progress | `upstream/progress`; whose it is, like all that servers say: `upstream/pending_calls`, `core::attribution` |
//! | cancellation | `session/cancellation`; upstream `streamable_http/request` and `pipe`, where a caller leaves |
//! | subscriptions | `session/subscriptions`, `relay/subscriptions`, `upstream/subscriptions` |
//! | reconnects | `backend/supervisor/reconnects`, as `core::backend` decides |
//! | sessions at servers, and doubt about them | `core::upstream_session`; `upstream/streamable_http/doubt` asks |
//! | processes of a program | `core::process_pool`, `upstream/process_pool` |
//! | tasks | `tasks/actor`, `relay/task`, `tools/tasks`; before older servers `relay/hosted_task` |
//! | other nodes | [`peers`]; what is asked of them `relay/peer_requests`, a client's whole request `downstream/carried_requests` |
//! | how a session or a task is found, activated and ended | `session/registry`, `session/actor`, `tasks`, `tasks/actor`, in the loop of `bowline_actor`; `actors` has what both share |
//!
//! Only the codecs in `revision` know the revisions of the protocol. Where messages enter (`downstream`) and leave (`upstream`), the codec
//! of the revision that was agreed on translates them. Between the two a request has one form ([`call::BackendCall`]), and what decides is
//! how the two sides exchange messages ([`Exchange`]). Another revision is a codec and a line in the table there.
//!
//! Around these: [`agent`] is what agents inside the server call, [`catalogue`] the lists of a server as they were last seen, `lifecycle` the
//! start and the end of the hub, [`peers`] the other nodes, `seal` what clients bring back. [`fields`], [`sse`] and `scan` read JSON,
//! Server-Sent Events and lines of limited length.
//!
//! # Decisions
//!
//! **A call needs no task.** It waits for its transport in its caller's own task. A task per call and a message to it and back were
//! four wake-ups, which cost more than the call.
//!
//! **The actor of a hub's session does not write for its calls.** They commit by themselves, each with a copy of the actor's lease;
//! two wake-ups around each message would cost more than the message. The actor takes the lease, writes down what servers say
//! outside of calls, and takes a new lease when a call has found the old one void.
//!
//! **Who waits for an answer drives the connection** (`env/http/wire`). Common clients have a task for each connection, and spawn
//! another one for each call. All requests go out on connections of hyper's that have none: what is said on them wakes the task
//! that waits, and to give up a request is to close its connection. A task must not wake itself either (`bowline/http/own_wakes`):
//! tokio then rouses another thread to help. And calls share one timer for what is due after 100 ms (`hub/call/slow_calls`).
//!
//! **A program runs once for each client.** A process of the older revision is one session, and its questions name no client. The
//! first client has the process that the hub needs anyway; in a shared one, a question that may be one client's or another's is
//! refused.
//!
//! **A POST to a program is not pooled.** On a kept connection, a request that fails may have been read or not; on a new one, a
//! failure to connect is proof that nothing was taken.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test is no part of a node"))]

mod actors;
pub mod agent;
pub mod backend;
pub mod call;
pub mod catalogue;
pub mod config;
pub mod downstream;
pub mod fields;
pub mod hub;
mod lifecycle;
pub mod message;
pub mod peers;
mod registry;
mod relay;
mod revision;
mod scan;
mod seal;
pub mod session;
pub mod sse;
mod tasks;
mod tools;
pub mod upstream;

pub use backend::{Backend, BackendEvent, CallObserver, Observer};
pub use call::{Exchange, outcome};
pub use call::{Requester, RequesterRole};
pub use config::file;
pub use config::spec::{Reach, ServerSpec, Target, check_address};
pub use config::{BackendKey, Expose, Options, Prefix};
pub use downstream::carried_requests::serve as serve_neighbour;
pub use fields::{Fields, Raw};
pub use hub::{AddError, Hub, RemoveError, file_watch};
pub use session::Route;
pub use upstream::http::client as guarded_client;
