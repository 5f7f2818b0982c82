//! The real server in a deterministic simulation: the whole node on a disk, a network and a clock of our own, with clients
//! that judge it by what they see, and faults at every seam.
//!
//! ```text
//! world ── ticks ──▶ host: the node of crate `bowline`, on a runtime of its own that can be dropped at any moment
//!   │                  │ files ▶ disk   what a power cut leaves, failing and slow writes
//!   │ faults           │ sockets ▶ net  late, cut at any byte, silent
//!   ▼                  │ clock, randomness ▶ the seed
//! clients ◀── net ─────┘
//!   └▶ oracle: what was seen, and whether that was promised
//! ```
//!
//! A seed is the whole history: it is run in a process of its own, where nothing but the seed is random (`seeded_libc`), and
//! a second process must come to the same hash of all that happened. First the faults, then quiet: every
//! client must then come to the end of its script within a bounded time, and what it has seen must still be there.
//!
//! | module | holds |
//! |---|---|
//! | [`world`] | one history from its first tick to its judgement |
//! | [`scenario`] | what a seed has in store: settings, clients, faults |
//! | [`oracle`] | what clients saw, and the rules it is held to |
//! | [`client`], [`wire`] | the clients' scripts, and how they reach the server |
//! | [`agent`] | the agent, which counts its runs |
//! | [`host`] | the node, on a runtime that can be dropped |
//! | [`disk`], [`net`], [`redis`], [`mcp`] | the models of a disk, a network, a Redis and an MCP server |
//! | [`mutants`] | the flaws that can be planted, to see that each is found |
//! | [`dice`], [`seeded_libc`] | chance that follows from the seed, ours and the C library's |
//! | [`picture`] | one history as a sequence diagram |
//! | [`trace`] | what happened: its hash, its lines, the faults that were delivered |

pub mod agent;
pub mod client;
pub mod dice;
pub mod disk;
pub mod host;
pub mod mcp;
pub mod mutants;
pub mod net;
pub mod oracle;
pub mod picture;
pub mod redis;
pub mod scenario;
pub mod seeded_libc;
pub mod trace;
pub mod wire;
pub mod world;
