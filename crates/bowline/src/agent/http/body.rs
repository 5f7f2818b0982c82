//! What is posted to an agent behind a URL: one body that serves programs written for Bowline and for the AI SDK alike.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::agent::{Asked, Message, Reply, Role, Run};

/// The request for a run. `answer` is what a person has answered to a question of this run.
pub fn body(run: &Run, input: &str, answer: Option<&Value>) -> Bytes {
    let past = run.conversation.iter().enumerate().map(|(at, message)| past(at, message));
    let asked = spoken(run.id.as_str(), Role::User, input);
    let messages: Value = past.chain([Value::Object(asked)]).collect();
    let mut body = json!({
        "id": run.session,
        "session_id": run.session,
        "run_id": run.id,
        "trigger": "submit-message",
        "message": input,
        "messages": messages,
        "config": run.config,
        "stream": true,
    });
    if let Some(answer) = answer {
        body["answer"] = answer.clone();
    }
    body.to_string().into()
}

/// A message in both shapes: `content` is the text, and `parts` is what the AI SDK reads.
fn spoken(id: &str, role: Role, text: &str) -> Map<String, Value> {
    let message = json!({ "id": id, "role": role, "content": text, "parts": [{ "type": "text", "text": text }] });
    match message {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn past(at: usize, message: &Message) -> Value {
    let id = message.message_id.clone().unwrap_or_else(|| format!("msg_{}_{at}", message.at_ms));
    let mut fields = spoken(&id, message.role, &message.content);
    if message.interrupted {
        fields.insert("interrupted".into(), true.into());
    }
    Value::Object(fields)
}

/// What is kept beside the log of a question: the upstream's own name for it, and its state.
pub fn kept(step_id: Option<&str>, state: &Value) -> Value {
    json!({ "step_id": step_id, "state": state })
}

/// What a person has answered, as the next request tells it. `step` is our name for the question, `kept` is what the
/// upstream wanted to have back.
pub fn answer(step: &str, kept: &Value, reply: &Reply) -> Value {
    let mut answer = json!({
        "step_id": kept["step_id"].as_str().unwrap_or(step),
        "confirmed": reply.confirmed,
        "state": kept["state"],
    });
    if let Some(tasks) = &reply.tasks {
        answer["tasks"] = tasks.clone();
    }
    if let Some(reason) = &reply.reason {
        answer["reason"] = reason.as_str().into();
    }
    answer
}

/// The same, from what is left after the process that asked has gone.
pub fn answer_to(asked: &Asked, reply: &Reply) -> Value {
    answer(asked.step_id.as_str(), &asked.state, reply)
}
