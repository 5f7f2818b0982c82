//! The work of a run: what a client's commands mean to it, how far it has come, and what is shown of it.

use std::fmt;

use bowline_protocol::frame::PlanCommand;
use serde_json::Value;

use crate::{Emission, Input};

/// What a client asks of an agent's work. A server carries it and does not look into it.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkCommand {
    /// About a plan.
    Plan(PlanCommand),
}

impl WorkCommand {
    /// The word for it in notices.
    pub fn action(&self) -> &'static str {
        match self {
            WorkCommand::Plan(command) => command.action(),
        }
    }
}

/// Follows the work of one run for the server, by what the run emits.
///
/// An agent has one made for each run ([`Agent::work`](crate::Agent::work)); a server asks a new one while no run has a process. It decides and does
/// nothing else: it waits for nothing and emits nothing.
pub trait Work: fmt::Debug + Send + Sync {
    /// Takes one emission of the run, once it is stored.
    fn handle_emission(&mut self, emission: &Emission);

    /// Decides about a command.
    fn effect_of(&self, command: WorkCommand, target: CommandTarget<'_>) -> CommandEffect;

    /// The word for where the run is, if the agent has one for it.
    fn stage(&self) -> Option<&'static str>;

    /// What is shown of the work, given what the session last `kept` of it.
    fn describe(&self, kept: Option<Value>) -> WorkView;
}

/// What a command meets.
#[derive(Clone, Copy, Debug)]
pub enum CommandTarget<'a> {
    /// No run is active; this is what the last one kept of its work.
    Idle(Option<&'a Value>),
    /// A run is active.
    Run,
}

/// What a server does with a client's command to the agent of a session.
#[derive(Debug)]
pub enum CommandEffect {
    /// Refuses it: the agent does not do such a thing, in words that follow its name.
    Unsupported(&'static str),
    /// Refuses it for now: a run is active, and this would begin another one.
    Busy,
    /// Says that there is nothing to do.
    Nothing,
    /// Passes it to the active run, as one of [`Run::commands`](crate::Run::commands). If it calls the work off, a run that then
    /// ends as cancelled was cancelled by the one who sent it.
    Pass {
        /// The command itself.
        command: WorkCommand,
        /// Whether it calls the work off.
        calls_off: bool,
    },
    /// Starts a run.
    Start(Input),
}

/// What a client is shown of the work of a session.
#[derive(Debug)]
pub struct WorkView {
    /// The work as a whole, as a plan and its status.
    pub context: Value,
    /// Its tasks that are done.
    pub completed: Vec<Value>,
    /// The task at hand, or the next one.
    pub current: Option<Value>,
}
