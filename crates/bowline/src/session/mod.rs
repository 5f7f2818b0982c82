//! Sessions: their durable record, the actor that alone changes it, and the registry that finds or wakes the actor.

mod activation;
pub mod actor;
mod attach;
pub mod background;
mod command;
pub mod export;
mod functions;
mod list;
mod messages;
pub mod operations;
pub mod record;
pub mod registry;
pub mod restore;
pub(crate) mod run;
mod tools_used;
pub mod turns;
mod used_states;
mod webhooks;

pub use attach::capabilities;
pub use command::{
    AttachOrigin, AttachRequest, Attacher, CommandOutcome, CommandResult, CommandSender, Grant, Mail, MailReceiver,
    Mailbox, RequestCaller, SessionCommand, SessionRequest,
};
pub use functions::Returned;
pub use record::{Life, SessionRecord};
pub use registry::Sessions;
pub use webhooks::{Announcer, Owed, OwedEnd};
