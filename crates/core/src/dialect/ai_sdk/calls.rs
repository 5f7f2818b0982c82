//! Whether the stream of an operation has sent the operation's own call and its output, so that each is sent once.

use std::collections::VecDeque;
use std::fmt;

use bowline_protocol::chunk::ChunkView;
use bowline_protocol::event::names;
use bowline_protocol::{ChunkKind, EventView, Recorded};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::events::{EventFacts, text_of};

/// Calls of one stream that are remembered. An operation has one call of its own; more of its tool are calls within it.
const CALLS_MAX: usize = 64;

/// Follows the calls in the stream of an operation that may be the operation's own: those with its id, and those of its
/// tool, since a producer may give its call an id of its own.
#[derive(Clone, Serialize, Deserialize)]
pub struct OperationCalls {
    #[serde(skip)]
    id: Box<str>,
    #[serde(skip)]
    tool: Option<Box<str>>,
    /// Oldest first.
    known: VecDeque<OperationCall>,
}

#[derive(Clone, Serialize, Deserialize)]
struct OperationCall {
    id: Box<str>,
    standing: CallState,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum CallState {
    /// Its output is still to come.
    Open,
    /// It was answered with the value that has this hash.
    Answered(u64),
    Failed,
}

/// What a stream still lacks of the operation's call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwedChunk {
    Nothing,
    /// The output of the call with this id.
    Output(Box<str>),
    /// The call, under this id, and its output.
    Call(Box<str>),
}

impl OperationCalls {
    /// The calls of an operation whose own call is called `id`, and its tool so.
    pub fn new(id: &str, tool: Option<&str>) -> OperationCalls {
        OperationCalls { id: id.into(), tool: tool.map(Into::into), known: VecDeque::new() }
    }

    /// The same, with what was kept of the calls in its stream.
    pub fn resumed(self, kept: OperationCalls) -> OperationCalls {
        OperationCalls { known: kept.known, ..self }
    }

    /// Takes the next event of the stream.
    pub fn handle_event(&mut self, event: &Recorded) {
        if let Some(view) = event.view() {
            self.handle_view(&view);
        }
    }

    /// The same, before the event is encoded.
    pub fn handle_view(&mut self, view: &EventView<'_>) {
        let facts = || EventFacts::of(view.metadata);
        let step = || view.step_id.and_then(text_of).unwrap_or_default();
        match view.event {
            names::TOOL_CALL => {
                self.begin(&step(), facts().tool.and_then(text_of).as_deref().unwrap_or_default());
            }
            names::TOOL_RESULT => {
                let facts = facts();
                let failed = matches!(facts.status.and_then(text_of).as_deref(), Some("failed" | "unknown"));
                // An upstream's own chunk says it best, where there is one.
                let said = facts.chunk.and_then(|chunk| ChunkView::parse(chunk.get()).ok()?.fields.output);
                let output = said.or(facts.data).unwrap_or(view.content);
                self.end(&step(), if failed { CallState::Failed } else { CallState::Answered(hash_of(output)) });
            }
            names::CHUNK => {
                if let Ok(chunk) = ChunkView::parse(view.content.get()) {
                    self.handle_chunk(&chunk);
                }
            }
            _ => {}
        }
    }

    fn handle_chunk(&mut self, chunk: &ChunkView<'_>) {
        match chunk.kind {
            ChunkKind::ToolInputStart | ChunkKind::ToolInputAvailable => {
                self.begin(&chunk.tool_call_id(), &chunk.tool_name());
            }
            ChunkKind::ToolOutputAvailable if !chunk.is_preliminary() => {
                let output = chunk.fields.output.unwrap_or(RawValue::NULL);
                self.end(&chunk.tool_call_id(), CallState::Answered(hash_of(output)));
            }
            ChunkKind::ToolOutputError | ChunkKind::ToolInputError | ChunkKind::ToolOutputDenied => {
                self.end(&chunk.tool_call_id(), CallState::Failed);
            }
            _ => {}
        }
    }

    fn begin(&mut self, id: &str, tool: &str) {
        if *id != *self.id && self.tool.as_deref() != Some(tool) {
            return;
        }
        self.known.retain(|call| *call.id != *id);
        self.known.push_back(OperationCall { id: id.into(), standing: CallState::Open });
        if self.known.len() > CALLS_MAX {
            self.known.pop_front();
        }
    }

    fn end(&mut self, id: &str, standing: CallState) {
        if let Some(call) = self.known.iter_mut().find(|call| *call.id == *id) {
            call.standing = standing;
        } else if *id == *self.id {
            // Its beginning is gone.
            self.known.push_back(OperationCall { id: id.into(), standing });
        }
    }

    /// What the stream lacks if the operation ends with this result, or without one because it failed.
    pub fn owed(&self, result: Option<&Value>) -> OwedChunk {
        // Under the operation's own id, whatever was sent counts. Under another, only what is the same.
        if let Some(own) = self.known.iter().find(|call| *call.id == *self.id) {
            return if own.standing == CallState::Open {
                OwedChunk::Output(own.id.clone())
            } else {
                OwedChunk::Nothing
            };
        }
        let given = result.map_or(CallState::Failed, |result| CallState::Answered(hash(result)));
        if self.known.iter().any(|call| call.standing == given) {
            return OwedChunk::Nothing;
        }
        let open = self.known.iter().rev().find(|call| call.standing == CallState::Open);
        open.map_or_else(|| OwedChunk::Call(self.id.clone()), |call| OwedChunk::Output(call.id.clone()))
    }
}

/// The chunk that answers a call, or says why there is no answer.
pub fn answer_chunk(call: &str, outcome: Result<&Value, &str>) -> Value {
    match outcome {
        Ok(output) => json!({ "type": "tool-output-available", "toolCallId": call, "output": output }),
        Err(error) => json!({ "type": "tool-output-error", "toolCallId": call, "errorText": error }),
    }
}

fn hash_of(raw: &RawValue) -> u64 {
    // What is no tree, because a text in it is half a character, is compared as it is written.
    serde_json::from_str::<Value>(raw.get()).map_or_else(|_| hash_text(raw.get()), |value| hash(&value))
}

/// The same value has the same hash, however it was written.
fn hash(value: &Value) -> u64 {
    hash_text(&value.to_string())
}

/// It is kept, so it must be the same in every build.
fn hash_text(text: &str) -> u64 {
    Sha256::digest(text.as_bytes()).iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Names are a person's.
impl fmt::Debug for OperationCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calls({} known)", self.known.len())
    }
}

#[cfg(test)]
mod tests {
    use bowline_protocol::Seq;

    use super::*;

    fn followed(events: &[Value]) -> OperationCalls {
        let mut calls = OperationCalls::new("op_1", Some("render"));
        for event in events {
            calls.handle_event(&Recorded { seq: Seq::ZERO.next(), bytes: event.to_string().into_bytes().into() });
        }
        calls
    }

    fn call(id: &str, tool: &str) -> Value {
        json!({ "event": names::TOOL_CALL, "step_id": id, "content": "", "metadata": { "tool": tool } })
    }

    fn chunk(chunk: &Value) -> Value {
        json!({ "event": names::CHUNK, "content": chunk })
    }

    fn result(id: &str, metadata: &Value) -> Value {
        json!({ "event": names::TOOL_RESULT, "step_id": id, "content": "seven", "metadata": metadata })
    }

    #[test]
    fn what_was_told_is_not_owed() {
        let value = json!({ "a": 1, "b": [2] });
        let output = |id: &str, metadata: &Value| [call(id, "render"), result(id, metadata)];
        let owed = |events: &[Value], result: Option<&Value>| followed(events).owed(result);
        let own = || OwedChunk::Call("op_1".into());
        assert_eq!(owed(&[], Some(&value)), own());
        assert_eq!(owed(&[call("c", "other")], Some(&value)), own(), "another tool's call is another call");
        assert_eq!(owed(&[call("c", "render")], Some(&value)), OwedChunk::Output("c".into()));
        assert_eq!(
            owed(&[call("op_1", "x")], None),
            OwedChunk::Output("op_1".into()),
            "its own, whatever its tool is called"
        );
        let given = json!({ "status": "success", "data": { "b": [2], "a": 1 } });
        assert_eq!(owed(&output("c", &given), Some(&value)), OwedChunk::Nothing);
        assert_eq!(owed(&output("c", &given), Some(&json!(1))), own(), "another result was not given");
        assert_eq!(owed(&output("op_1", &given), Some(&json!(1))), OwedChunk::Nothing, "under its id, it was");
        assert_eq!(owed(&output("c", &given), None), own(), "and neither was a failure");
        assert_eq!(owed(&output("c", &json!({})), Some(&json!("seven"))), OwedChunk::Nothing, "a text is the content");
        assert_eq!(owed(&output("c", &json!({ "status": "unknown" })), None), OwedChunk::Nothing);
        let verbatim = json!({ "chunk": { "type": "tool-output-available", "toolCallId": "c", "output": null } });
        assert_eq!(owed(&output("c", &verbatim), Some(&Value::Null)), OwedChunk::Nothing);
        assert_eq!(
            owed(&[result("op_1", &json!({}))], Some(&value)),
            OwedChunk::Nothing,
            "though its beginning is gone"
        );
    }

    #[test]
    fn chunks_that_are_logged_word_for_word_count_too() {
        let begun = chunk(&json!({ "type": "tool-input-start", "toolCallId": "c", "toolName": "render" }));
        let output = |preliminary: bool| {
            let chunk_of =
                json!({ "type": "tool-output-available", "toolCallId": "c", "output": 7, "preliminary": preliminary });
            chunk(&chunk_of)
        };
        assert_eq!(followed(std::slice::from_ref(&begun)).owed(Some(&json!(7))), OwedChunk::Output("c".into()));
        assert_eq!(followed(&[begun.clone(), output(true)]).owed(Some(&json!(7))), OwedChunk::Output("c".into()));
        assert_eq!(followed(&[begun.clone(), output(false)]).owed(Some(&json!(7))), OwedChunk::Nothing);
        let denied = chunk(&json!({ "type": "tool-output-denied", "toolCallId": "c" }));
        assert_eq!(followed(&[begun, denied]).owed(None), OwedChunk::Nothing);
    }

    #[test]
    fn however_many_calls_there_are_few_are_remembered() {
        let events: Vec<Value> = (0..1000).map(|n| call(&n.to_string(), "render")).collect();
        let calls = followed(&events);
        assert_eq!(calls.known.len(), CALLS_MAX);
        assert_eq!(calls.owed(None), OwedChunk::Output("999".into()), "the newest");
    }
}
