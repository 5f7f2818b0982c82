//! What is posted to an agent behind a URL: one body that serves programs written for Bowline and for the AI SDK alike.

use bowline_api::{Message, OpenQuestion, Reply, Role, Run};
use bytes::Bytes;
use serde_json::{Value, json};

/// The request for a run. `answer` is what a person has answered to a question of this run.
pub fn body(run: &Run, input: &str, answer: Option<&Value>) -> Bytes {
    let asked = match &run.message {
        Some(message) => as_ui_message(message),
        None => shape(run.id.as_str(), Role::User, input, None),
    };
    let messages: Value = run.conversation.iter().map(as_ui_message).chain([asked]).collect();
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
    if let Some(instructions) = run.message.as_ref().and_then(|message| message.instructions.as_ref()) {
        body["instructions"] = instructions.as_str().into();
    }
    if let Some(state) = &run.state {
        body["agent_state"] = state.clone();
    }
    if let Some(answer) = answer {
        body["answer"] = answer.clone();
    }
    body.to_string().into()
}

/// A message in both shapes: `content` is the text, and `parts` is what the AI SDK reads.
fn shape(id: &str, role: Role, text: &str, parts: Option<Value>) -> Value {
    let parts = parts.unwrap_or_else(|| json!([{ "type": "text", "text": text }]));
    json!({ "id": id, "role": role, "content": text, "parts": parts })
}

fn as_ui_message(message: &Message) -> Value {
    let role = if message.role == Role::User { "user" } else { "assistant" };
    let id = message.message_id.clone().unwrap_or_else(|| format!("msg_{}_{role}", message.at_ms));
    let parts = message.parts.clone().map(|parts| if message.interrupted { whole(parts) } else { parts });
    let mut shaped = shape(&id, message.role, &message.content, parts);
    if message.interrupted {
        shaped["interrupted"] = true.into();
    }
    shaped
}

/// An answer that was cut short may hold calls without a result, which no model takes.
fn whole(parts: Value) -> Value {
    let Value::Array(parts) = parts else { return parts };
    let open = |part: &Value| {
        part["toolCallId"].is_string() && !["output-available", "output-error"].iter().any(|end| part["state"] == *end)
    };
    parts.into_iter().filter(|part| !open(part)).collect()
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
pub fn answer_to(asked: &OpenQuestion, reply: &Reply) -> Value {
    answer(asked.step_id.as_str(), &asked.state, reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_answer_is_told_without_the_calls_that_were_cut() {
        let part = |id: &str, state: &str| json!({ "type": "tool-x", "toolCallId": id, "state": state });
        let text = json!({ "type": "text", "text": "Let me see." });
        let parts =
            json!([text, part("a", "output-available"), part("b", "input-available"), part("c", "output-error")]);
        let message = Message {
            role: Role::Assistant,
            content: "Let me see.".into(),
            at_ms: 7,
            message_id: None,
            interrupted: true,
            turn: None,
            instructions: None,
            functions: None,
            parts: Some(parts.clone()),
        };
        let written = as_ui_message(&message);
        assert_eq!(written["parts"], json!([text, parts[1], parts[3]]));
        assert_eq!((&written["id"], &written["interrupted"]), (&json!("msg_7_assistant"), &json!(true)));
        assert_eq!(as_ui_message(&Message { interrupted: false, ..message })["parts"], parts);
    }
}
