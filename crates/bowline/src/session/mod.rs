//! Sessions: their durable record, the actor that alone changes it, and the registry that finds or wakes the actor.

mod activation;
pub mod actor;
mod answer;
mod attach;
pub mod background;
mod brought;
pub mod caller;
mod command;
mod emissions;
mod ending;
pub mod export;
mod life;
pub mod operations;
pub mod record;
pub mod registry;
pub mod restore;
pub(crate) mod run;
mod taken;
mod tools_used;
mod turn_index;
pub mod turns;
mod work;

pub use attach::capabilities;
pub use caller::{Caller, Outcome};
pub use command::{Approach, Ask, Claimant, Command, Grant, Inbox, Mail, Mailbox, Way};
pub use record::{Life, SessionRecord};
pub use registry::Sessions;
