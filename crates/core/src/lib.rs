//! The decisions of Bowline, as machines without I/O: no async, no clock, no dice, no sockets, no logging.
//!
//! A machine is told what happened (`handle_*`) and says what to do (`poll_*`, or a returned value); a driver waits.

pub mod attribution;
pub mod backend;
pub mod backoff;
pub mod bucket;
pub mod canonical;
pub mod dialect;
pub mod exchange;
pub mod health;
pub mod heartbeat;
pub mod hold;
pub mod link;
pub mod listing;
pub mod peers;
pub mod proof;
pub mod resume;
pub mod scrub;
pub mod seal;
pub mod seats;
pub mod shorten;
pub mod taken;
pub mod turn;
pub mod watch;

pub use backend::Backend;
pub use backoff::Backoff;
pub use bucket::Bucket;
pub use exchange::Exchange;
pub use health::Health;
pub use heartbeat::Heartbeat;
pub use hold::Hold;
pub use link::Link;
pub use listing::Listing;
pub use peers::Peers;
pub use resume::Resume;
pub use scrub::Scrubber;
pub use seal::{Key, Ring, SealRefusal};
pub use turn::Turn;
