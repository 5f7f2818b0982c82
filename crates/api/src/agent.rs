//! The trait that an agent implements.

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    AgentError, FunctionOutputs, OpenCalls, OpenQuestion, Operation, PlanProgress, Reply, Run, RunResult, Work,
};

/// Something that answers messages.
///
/// What an implementor owes:
/// - It emits through [`Run::emit`] and ends by returning. It never emits an ending itself, so that a run has exactly one.
/// - It stops soon after [`Run::cancel`] fires, or after an emission returns [`Stopped`](crate::Stopped). If it does not,
///   the server drops it after half a second.
/// - It puts what it needs after a question into [`Confirm::state`](crate::Confirm::state): if the process dies before the
///   person replies, [`answered`](Agent::answered) gets that state, and nothing else of the run is left.
#[async_trait]
pub trait Agent: Send + Sync + 'static {
    /// Works on one input until it is answered.
    async fn run(&self, run: Run) -> RunResult;

    /// Goes on from [`OpenQuestion::state`]: a person replied after the process that asked had ended.
    async fn answered(&self, run: Run, question: OpenQuestion, reply: Reply) -> RunResult;

    /// Whether it calls functions of its caller's: only then does the server take a request that brings some.
    fn calls_functions(&self) -> bool {
        false
    }

    /// Goes on from [`OpenCalls::state`]: the outputs came after the process that called the functions had ended.
    async fn returned(&self, _run: Run, _calls: OpenCalls, _outputs: FunctionOutputs) -> RunResult {
        Err(AgentError::failed("This agent calls no functions, so it has no use for their outputs."))
    }

    /// Names of the background operations that clients may start.
    fn operations(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Does one piece of work in the background: one that [`operations`](Agent::operations) names, or one that a run
    /// started with [`Emitter::start_operation`](crate::Emitter::start_operation). Returns its result.
    async fn operate(&self, operation: Operation) -> Result<Value, AgentError> {
        Err(AgentError::failed(format!("This agent cannot do `{}` in the background.", operation.tool)))
    }

    /// Whether it plans: only then does the server pass plan commands to it.
    fn plans(&self) -> bool {
        false
    }

    /// Follows the work of one run for the server: what commands mean to it, and how far it has come. Unless an agent says otherwise,
    /// its work is a plan.
    fn work(&self) -> Box<dyn Work> {
        Box::new(PlanProgress::new(self.plans()))
    }

    /// Whether a run that a crash interrupted can go on: [`run`](Agent::run) is then called again, with what the run had
    /// logged in [`Run::logged`]. Otherwise the run ends as lost.
    fn continues(&self) -> bool {
        false
    }
}

/// Follows the work of this agent; one that is no longer configured takes no commands.
pub fn work_of(agent: Option<&dyn Agent>) -> Box<dyn Work> {
    agent.map_or_else(|| Box::new(PlanProgress::new(false)) as Box<dyn Work>, |agent| agent.work())
}
