//! The call that an operation is, in its stream: announced as it begins, and answered as it ends, in the terms of any tool's call.

use bowline_core::dialect::{Importer, OperationCalls, OwedChunk, answer_chunk};
use bowline_env::entropy;
use bowline_protocol::event::names;
use bowline_protocol::{Draft, OperationId, StepId, TaskId};
use serde_json::{Value, json};

use super::actor::TaskActor;
use super::command::TaskClose;
use super::record::{TaskRecord, Worker};

/// The name of a tool that has none, as in a stream.
const UNNAMED_TOOL: &str = "unknown";

/// The call id of an operation that has none.
pub fn own_call(operation: &OperationId) -> StepId {
    // Both names have the same rules.
    StepId::parse(operation.as_str()).unwrap_or_else(|| StepId::from_random(entropy::u128()))
}

/// Follows the calls in a task's stream.
pub(super) fn calls_of(record: &TaskRecord) -> OperationCalls {
    let id = record.call.as_ref().map_or(record.operation_id.as_str(), StepId::as_str);
    OperationCalls::new(id, record.tool_name.as_deref())
}

/// Follows the chunks that a producer of the task appends.
pub(super) fn importer_of(record: &TaskRecord, id: &TaskId) -> Importer {
    match record.worker {
        Worker::Producer => Importer::producer(id.as_str()),
        Worker::Agent { .. } => Importer::new(),
    }
}

/// What the stream of a new task begins with: the call, if an agent of ours does the work.
pub(super) fn opening(record: &TaskRecord) -> Option<Draft> {
    let Worker::Agent { args, .. } = &record.worker else { return None };
    let call = record.call.clone().unwrap_or_else(|| own_call(&record.operation_id));
    Some(call_draft(record, args).step(call))
}

fn call_draft(record: &TaskRecord, args: &Value) -> Draft {
    let tool = record.tool_name.as_deref().unwrap_or(UNNAMED_TOOL);
    let mut facts = json!({ "tool": tool, "args": args, "status": "running" });
    if let Some((server, _)) = tool.split_once("__") {
        facts["server"] = server.into();
    }
    Draft::new(names::TOOL_CALL, &format!("Calls {tool}.")).metadata(&facts)
}

impl TaskActor {
    /// What the stream lacks of the operation's call and its output, if it ends like this.
    ///
    /// A producer that ends its stream with a chunk of its own has said what it has to say, and one that names no result has
    /// none to tell.
    pub(super) fn output(&self, ending: &TaskClose) -> Vec<Draft> {
        let outcome = match ending {
            TaskClose::Completed { result: Some(result), finish: None } => Ok(result),
            TaskClose::Failed { message, finish: None, .. } if self.record.tool_name.is_some() => Err(message.as_str()),
            TaskClose::Cancelled { finish: None, .. } if self.record.tool_name.is_some() => {
                Err("The operation was cancelled.")
            }
            _ => return Vec::new(),
        };
        match self.stream.calls.owed(outcome.ok()) {
            OwedChunk::Nothing => Vec::new(),
            OwedChunk::Output(id) => vec![self.answer(&id, outcome)],
            OwedChunk::Call(id) => {
                let none = json!({});
                let args = match &self.record.worker {
                    Worker::Agent { args, .. } => args,
                    Worker::Producer => &none,
                };
                let call = StepId::parse(&id).map(|step| call_draft(&self.record, args).step(step));
                call.into_iter().chain([self.answer(&id, outcome)]).collect()
            }
        }
    }

    fn answer(&self, id: &str, outcome: Result<&Value, &str>) -> Draft {
        let tool = self.record.tool_name.as_deref().unwrap_or(UNNAMED_TOOL);
        let chunk = answer_chunk(id, outcome);
        // A producer may have given its call a name that no step can have.
        let Some(step) = StepId::parse(id) else {
            return Draft::new(names::CHUNK, &chunk).metadata(&json!({ "tool": tool }));
        };
        let mut facts = json!({ "tool": tool, "duration_ms": self.age_ms() });
        let text = match outcome {
            Ok(result) => {
                facts["status"] = "success".into();
                // Only a chunk can tell a result that is `null` from none.
                let key = if result.is_null() { "chunk" } else { "data" };
                facts[key] = if result.is_null() { chunk } else { result.clone() };
                format!("{tool} has answered")
            }
            Err(error) => {
                facts["status"] = "failed".into();
                facts["error"] = error.into();
                error.to_owned()
            }
        };
        Draft::new(names::TOOL_RESULT, &text).step(step).metadata(&facts)
    }
}
