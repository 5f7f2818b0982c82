//! What travels from a run to the server that stores it.

use std::fmt;

use bowline_protocol::{Draft, MessageId, OperationId, Refusal, StepId, TaskId, json};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::{FunctionCall, FunctionOutputs, Reply};

/// One thing that a run emitted. [`Emitter`](crate::Emitter) makes it; the server takes it.
#[derive(Debug)]
pub enum Emission {
    /// An event for the log.
    Event(Draft),
    /// A piece of the answer: also added to what the conversation keeps if the run is cut short.
    Partial(Draft, Delta),
    /// A question for a person.
    Ask {
        /// The step of the question.
        step: StepId,
        /// The event that shows it.
        draft: Draft,
        /// What the agent needs to go on after a crash.
        state: Value,
        /// Where the reply goes if this process is still there.
        reply: oneshot::Sender<Reply>,
    },
    /// Calls of functions of the caller's, for whose outputs the run waits.
    Call {
        /// The calls; the run waits under the step of the last.
        calls: Vec<FunctionCall>,
        /// The events that show them, one each.
        drafts: Vec<Draft>,
        /// What the agent needs to go on after a crash.
        state: Value,
        /// Where the outputs go if this process is still there.
        reply: oneshot::Sender<FunctionOutputs>,
    },
    /// The agent's work as it stands, its plan, stored beside the log.
    Work(Value),
    /// What the agent itself keeps from run to run.
    State(Value),
    /// Work to start in the background.
    Operate {
        /// What to do.
        request: Box<OperationRequest>,
        /// Where the answer goes once that is durable.
        reply: oneshot::Sender<Result<StartedOperation, Refusal>>,
    },
}

impl Emission {
    /// About how many bytes it takes in the log.
    pub fn len_hint(&self) -> usize {
        match self {
            Emission::Event(draft) | Emission::Partial(draft, _) => draft.len_hint(),
            Emission::Ask { draft, state, .. } => draft.len_hint() + json::raw(state).get().len(),
            Emission::Call { drafts, state, .. } => {
                drafts.iter().map(Draft::len_hint).sum::<usize>() + json::raw(state).get().len()
            }
            Emission::Work(value) | Emission::State(value) => json::raw(value).get().len(),
            Emission::Operate { request, .. } => json::raw(&request.args).get().len(),
        }
    }
}

/// A piece of the answer's text; `Debug` shows only its length.
pub struct Delta(pub String);

impl fmt::Debug for Delta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delta({} bytes)", self.0.len())
    }
}

/// Work that a run wants done in the background.
pub struct OperationRequest {
    /// What [`Operation::tool`](crate::Operation::tool) will say.
    pub tool: String,
    /// The arguments for it.
    pub args: Value,
    /// The tool call that the work is for: the same key twice starts one operation.
    pub key: Option<MessageId>,
}

impl fmt::Debug for OperationRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationRequest({})", self.tool)
    }
}

/// A background operation that the server has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedOperation {
    /// The name of the operation.
    pub operation_id: OperationId,
    /// The task whose log shows its progress.
    pub task_id: TaskId,
}
