//! What a model streams, gathered: text and thoughts at once, tool calls when they are whole, figures at the end.
//!
//! Many servers speak this protocol and few to the letter. Only what is needed is read, wherever it may stand; a field
//! that is missing, doubled or of another kind costs nothing that can do without it.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A model that calls more tools than this at once means none of them.
const CALLS_MAX: usize = 128;

/// A piece that can be shown at once.
#[derive(Clone, PartialEq, Eq)]
pub enum ModelDelta {
    Text(String),
    /// It will not answer, and says so.
    Refusal(String),
    Thinking(String),
}

impl fmt::Debug for ModelDelta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelDelta::Text(text) => write!(f, "Text({} bytes)", text.len()),
            ModelDelta::Refusal(text) => write!(f, "Refusal({} bytes)", text.len()),
            ModelDelta::Thinking(text) => write!(f, "Thinking({} bytes)", text.len()),
        }
    }
}

/// A tool call as the model wrote it. The arguments should be JSON, and may not be.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedCall {
    pub(super) index: Option<u64>,
    pub id: String,
    pub name: String,
    pub arguments: String,
}

impl fmt::Debug for RequestedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wanted({}, {} bytes)", self.name, self.arguments.len())
    }
}

/// Why a record cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub enum Unusable {
    NotJson,
    TooMany,
    /// The model's server says that it failed.
    Failed(String),
}

/// One answer of a model, as far as it has come.
#[derive(Debug, Default)]
pub struct Gathered {
    pub calls: Vec<RequestedCall>,
    pub finish: Option<String>,
    pub usage: Option<Value>,
    pub model: Option<String>,
    /// The end mark was seen.
    done: bool,
    /// Something of the answer was seen: asked again, the model would answer anew.
    begun: bool,
}

impl Gathered {
    /// Takes one record, and returns what of it can be shown.
    pub fn take(&mut self, data: &str) -> Result<Vec<ModelDelta>, Unusable> {
        let data = data.trim();
        if data == "[DONE]" {
            self.done = true;
            return Ok(Vec::new());
        }
        if data.is_empty() {
            return Ok(Vec::new());
        }
        let chunk: Value = serde_json::from_str(data).map_err(|_| Unusable::NotJson)?;
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            let message = error["message"].as_str().or_else(|| error.as_str());
            return Err(Unusable::Failed(message.unwrap_or("no reason was given").to_owned()));
        }
        if let Some(model) = chunk["model"].as_str().filter(|model| !model.is_empty()) {
            self.model = Some(model.to_owned());
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            self.usage = Some(usage.clone());
        }
        let Some(choice) = chunk["choices"].get(0) else { return Ok(Vec::new()) };
        // A server that does not stream answers with a message where others have a delta.
        let delta = choice.get("delta").filter(|delta| delta.is_object()).unwrap_or(&choice["message"]);
        let mut pieces = Vec::new();
        let thoughts = ["reasoning_content", "reasoning"].iter().find_map(|key| delta[key].as_str());
        push(&mut pieces, ModelDelta::Thinking, thoughts);
        match &delta["content"] {
            Value::Array(parts) => parts.iter().for_each(|part| push_part(&mut pieces, part)),
            content => push(&mut pieces, ModelDelta::Text, content.as_str()),
        }
        // A refusal to answer is an answer.
        push(&mut pieces, ModelDelta::Refusal, delta["refusal"].as_str());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.take_call(call)?;
        }
        if let Some(reason) = choice["finish_reason"].as_str().filter(|reason| !reason.is_empty()) {
            self.finish = Some(reason.to_owned());
        }
        self.begun |= !pieces.is_empty() || !self.calls.is_empty();
        Ok(pieces)
    }

    /// Adds what one delta says of one call. The first one names it, later ones add to its arguments.
    fn take_call(&mut self, delta: &Value) -> Result<(), Unusable> {
        let index = delta["index"].as_u64();
        let id = delta["id"].as_str().unwrap_or_default();
        let name = delta["function"]["name"].as_str().unwrap_or_default();
        // Servers that number nothing, or everything 0, still give each call an id of its own.
        let at = match index {
            Some(_) => self.calls.iter().rposition(|call| call.index == index),
            None if id.is_empty() && name.is_empty() => self.calls.len().checked_sub(1),
            None => self.calls.iter().rposition(|call| !id.is_empty() && call.id == id),
        };
        let at = at.filter(|at| id.is_empty() || self.calls[*at].id.is_empty() || self.calls[*at].id == id);
        let at = at.unwrap_or_else(|| {
            self.calls.push(RequestedCall { index, ..RequestedCall::default() });
            self.calls.len() - 1
        });
        if self.calls.len() > CALLS_MAX {
            return Err(Unusable::TooMany);
        }
        let call = &mut self.calls[at];
        if call.id.is_empty() {
            call.id = id.to_owned();
        }
        if call.name.is_empty() {
            call.name = name.to_owned();
        }
        match &delta["function"]["arguments"] {
            Value::String(more) => call.arguments.push_str(more),
            Value::Null => {}
            whole => call.arguments = whole.to_string(),
        }
        Ok(())
    }

    /// Whether the model has said that this is all. A body that merely ends says nothing.
    pub fn is_whole(&self) -> bool {
        self.done || self.finish.is_some()
    }

    /// Whether nothing can follow, not even figures.
    pub fn is_over(&self) -> bool {
        self.done
    }

    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// The calls, each with an id to answer it by.
    pub fn into_calls(self) -> Vec<RequestedCall> {
        let mut calls = self.calls;
        for (at, call) in calls.iter_mut().enumerate().filter(|(_, call)| call.id.is_empty()) {
            call.id = format!("call_{at}");
        }
        calls
    }
}

fn push(pieces: &mut Vec<ModelDelta>, kind: fn(String) -> ModelDelta, text: Option<&str>) {
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        pieces.push(kind(text.to_owned()));
    }
}

/// Content in parts: text, or thoughts that are themselves text or parts.
fn push_part(pieces: &mut Vec<ModelDelta>, part: &Value) {
    push(pieces, ModelDelta::Text, part["text"].as_str());
    match &part["thinking"] {
        Value::Array(thoughts) => {
            thoughts.iter().for_each(|thought| push(pieces, ModelDelta::Thinking, thought["text"].as_str()));
        }
        thought => push(pieces, ModelDelta::Thinking, thought.as_str()),
    }
}

/// Adds the figures of one answer to those of the ones before it.
pub fn add_usage(total: &mut Option<Value>, more: Option<Value>) {
    match (total, more) {
        (_, None) => {}
        (total @ None, more) => *total = more,
        (Some(total), Some(more)) => add(total, more),
    }
}

fn add(total: &mut Value, more: Value) {
    match (total, more) {
        (Value::Object(total), Value::Object(more)) => {
            for (key, value) in more {
                match total.get_mut(&key) {
                    Some(known) => add(known, value),
                    None => drop(total.insert(key, value)),
                }
            }
        }
        (total, more) => {
            *total = match (total.as_u64(), more.as_u64(), total.as_f64(), more.as_f64()) {
                (Some(a), Some(b), ..) => a.saturating_add(b).into(),
                (.., Some(a), Some(b)) => (a + b).into(),
                _ => more,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn gather(chunks: &[Value]) -> (Gathered, Vec<ModelDelta>) {
        let mut gathered = Gathered::default();
        let pieces = chunks.iter().flat_map(|chunk| gathered.take(&chunk.to_string()).unwrap()).collect();
        (gathered, pieces)
    }

    fn delta(delta: &Value) -> Value {
        json!({ "choices": [{ "delta": delta }] })
    }

    fn text(text: &str) -> ModelDelta {
        ModelDelta::Text(text.into())
    }

    fn thinking(text: &str) -> ModelDelta {
        ModelDelta::Thinking(text.into())
    }

    #[test]
    fn text_and_thoughts_are_found_wherever_a_server_puts_them() {
        let cases = [
            (json!({ "content": "a" }), vec![text("a")]),
            (json!({ "content": "", "reasoning_content": "b" }), vec![thinking("b")]),
            (json!({ "reasoning": "c", "content": null }), vec![thinking("c")]),
            (json!({ "reasoning": "c", "reasoning_content": "c" }), vec![thinking("c")]),
            (json!({ "refusal": "no" }), vec![ModelDelta::Refusal("no".into())]),
            (
                json!({ "content": [{ "type": "thinking", "thinking": [{ "type": "text", "text": "d" }] }, { "type": "text", "text": "e" }] }),
                vec![thinking("d"), text("e")],
            ),
            (json!({ "role": "assistant" }), vec![]),
            (json!(null), vec![]),
        ];
        for (written, pieces) in cases {
            assert_eq!(gather(&[delta(&written)]).1, pieces, "{written}");
        }
    }

    #[test]
    fn a_server_that_does_not_stream_is_understood() {
        let message = json!({ "model": "m", "usage": { "total_tokens": 3 }, "choices": [{ "message": { "role": "assistant", "content": "whole" }, "finish_reason": "stop" }] });
        let (gathered, pieces) = gather(&[message]);
        assert_eq!(pieces, [text("whole")]);
        assert!(gathered.is_whole());
        assert_eq!((gathered.model.as_deref(), gathered.usage), (Some("m"), Some(json!({ "total_tokens": 3 }))));
    }

    #[test]
    fn a_call_is_put_together_from_its_pieces_however_they_are_numbered() {
        let part = |call: &Value| delta(&json!({ "tool_calls": [call] }));
        let whole = |calls: &[Value]| {
            let chunks: Vec<Value> = calls.iter().map(part).collect();
            let calls = gather(&chunks).0.into_calls();
            calls.into_iter().map(|call| (call.id, call.name, call.arguments)).collect::<Vec<_>>()
        };
        let owned = |id: &str, name: &str, arguments: &str| (id.to_owned(), name.to_owned(), arguments.to_owned());
        let numbered = [
            json!({ "index": 0, "id": "a", "function": { "name": "f", "arguments": "" } }),
            json!({ "index": 1, "id": "b", "function": { "name": "g", "arguments": "{}" } }),
            json!({ "index": 0, "function": { "arguments": "{\"x\"" } }),
            json!({ "index": 0, "id": "a", "function": { "name": "f", "arguments": ":1}" } }),
        ];
        assert_eq!(whole(&numbered), [owned("a", "f", "{\"x\":1}"), owned("b", "g", "{}")]);
        let all_zero = [
            json!({ "index": 0, "id": "a", "function": { "name": "f", "arguments": "{}" } }),
            json!({ "index": 0, "id": "b", "function": { "name": "f", "arguments": "{}" } }),
        ];
        assert_eq!(whole(&all_zero), [owned("a", "f", "{}"), owned("b", "f", "{}")]);
        let unnumbered = [
            json!({ "id": "a", "function": { "name": "f" } }),
            json!({ "function": { "arguments": "{}" } }),
            json!({ "id": "b", "function": { "name": "g", "arguments": { "x": 1 } } }),
        ];
        assert_eq!(whole(&unnumbered), [owned("a", "f", "{}"), owned("b", "g", "{\"x\":1}")]);
        let nameless = [json!({ "index": 0, "function": { "name": "f", "arguments": "{}" } })];
        assert_eq!(whole(&nameless), [owned("call_0", "f", "{}")]);
    }

    #[test]
    fn only_the_model_says_that_this_is_all() {
        let (mut gathered, _) = gather(&[delta(&json!({ "content": "a" }))]);
        assert!(!gathered.is_whole() && gathered.has_begun());
        gathered.take("[DONE]").unwrap();
        assert!(gathered.is_whole() && gathered.is_over());
        let odd = json!({ "choices": [{ "delta": {}, "finish_reason": "whatever-this-server-says" }] });
        let (gathered, _) = gather(&[odd]);
        assert!(gathered.is_whole() && !gathered.is_over() && !gathered.has_begun());
    }

    #[test]
    fn what_is_no_chunk_is_not_passed_over() {
        let mut gathered = Gathered::default();
        assert_eq!(gathered.take("{\"choices\": ["), Err(Unusable::NotJson));
        let failed = gathered.take(&json!({ "error": { "message": "overloaded", "code": 503 } }).to_string());
        assert_eq!(failed, Err(Unusable::Failed("overloaded".into())));
        assert_eq!(gathered.take(&json!({ "error": null, "choices": [] }).to_string()), Ok(vec![]));
    }

    #[test]
    fn figures_of_several_answers_are_added_at_every_depth() {
        let mut total = None;
        add_usage(&mut total, Some(json!({ "prompt_tokens": 1, "details": { "cached": 1 } })));
        add_usage(&mut total, None);
        add_usage(&mut total, Some(json!({ "prompt_tokens": 2, "details": { "cached": 3, "audio": 1 }, "cost": 0.5 })));
        assert_eq!(total, Some(json!({ "prompt_tokens": 3, "details": { "cached": 4, "audio": 1 }, "cost": 0.5 })));
    }
}
