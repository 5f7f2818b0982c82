//! The shapes that requests have, and the events of streams. Those of answers follow from their types.

use bowline_protocol::ChunkKind;
use bowline_protocol::id::NAME_BYTES_MAX;
use serde_json::{Map, Value, json};

use super::{named, responses};
use crate::schema::{CURSOR, CURSOR_EXAMPLE};

const LOG_CURSOR: &str = "^([A-Za-z0-9]{1,32}-)?[0-9]{1,15}$";

/// Any JSON value.
pub fn anything() -> Value {
    json!(true)
}

/// The same, or `null`, which means nothing.
pub fn or_null(mut schema: Value) -> Value {
    match (schema.get("type").and_then(Value::as_str), schema.get("$ref")) {
        (Some(kind), _) => schema["type"] = json!([kind, "null"]),
        (None, Some(_)) => schema = json!({ "anyOf": [schema, { "type": "null" }] }),
        // Whatever says nothing of types allows it already.
        (None, None) => {}
    }
    if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        words.push(Value::Null);
    }
    schema
}

pub fn text() -> Value {
    json!({ "type": "string" })
}

pub fn flag() -> Value {
    json!({ "type": "boolean" })
}

/// A name that a peer chose. Lengths are in bytes, so what counts in characters is only near.
fn name() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$" })
}

fn cursor() -> Value {
    json!({ "type": "string", "pattern": CURSOR, "examples": [CURSOR_EXAMPLE] })
}

/// The same from a reader, to whom nothing at all means everything.
pub fn asked_cursor() -> Value {
    let pattern = format!("^({})?$", CURSOR.trim_start_matches('^').trim_end_matches('$'));
    json!({ "type": "string", "pattern": pattern, "examples": [CURSOR_EXAMPLE] })
}

/// A cursor of a log, whose events are not divided.
pub fn log_cursor() -> Value {
    json!({ "type": "string", "pattern": LOG_CURSOR, "examples": [CURSOR_EXAMPLE] })
}

/// A name in a header, where only visible ASCII can stand, and space at the ends is lost.
fn header_name() -> Value {
    json!({ "type": "string", "maxLength": NAME_BYTES_MAX, "pattern": "^[!-~]([ -~]*[!-~])?$" })
}

pub fn one_of(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

/// An object with these fields. A name that ends in `?` may be left out.
pub fn object(fields: &[(&str, Value)]) -> Value {
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).filter(|name| !name.ends_with('?')).collect();
    let properties: Map<String, Value> =
        fields.iter().map(|(name, schema)| (name.trim_end_matches('?').to_owned(), schema.clone())).collect();
    let mut shown = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        shown["required"] = required.into();
    }
    shown
}

/// The same for what a client sends: where a field may be left out, `null` means that too.
pub fn request(fields: &[(&str, Value)]) -> Value {
    let relaxed: Vec<(&str, Value)> = fields
        .iter()
        .map(|(name, schema)| (*name, if name.ends_with('?') { or_null(schema.clone()) } else { schema.clone() }))
        .collect();
    object(&relaxed)
}

/// Everything but answers, by name.
pub fn requests(agents: &[&str]) -> impl Iterator<Item = (String, Value)> {
    [common(), sessions(agents), tasks(), responses::schemas(agents)]
        .into_iter()
        .flatten()
        .map(|(name, schema)| (name.to_owned(), schema))
}

pub type Named = (&'static str, Value);

fn common() -> Vec<Named> {
    let data = json!({ "type": "string", "description": "A chunk as JSON; `[DONE]` in the last event." });
    let event = json!({
        "type": "object",
        "description": "One server-sent event. Chunks that were made up for this reader have no `id`.",
        "properties": { "id": cursor(), "data": data, "event": text() },
        "required": ["data"],
    });
    vec![
        ("StreamEvent", event),
        ("Chunk", chunk()),
        ("Chunks", json!({ "type": "array", "minItems": 1, "maxItems": 10_000, "items": named("Chunk") })),
        ("Reason", request(&[("reason?", text())])),
    ]
}

/// A chunk of the UI message stream. It says which fields a type needs, and not which it may have besides.
fn chunk() -> Value {
    let kinds: Vec<Value> = ChunkKind::ALL
        .iter()
        .map(|kind| {
            let field = |name: &&'static str| match *name {
                "approved" => (*name, flag()),
                "parts" => (*name, json!({ "type": "array" })),
                _ => (*name, text()),
            };
            let kind_name = match kind {
                ChunkKind::Data => json!({ "type": "string", "pattern": "^data-" }),
                kind => json!({ "const": kind.as_str() }),
            };
            let fields: Vec<_> = [("type", kind_name)].into_iter().chain(kind.required().iter().map(field)).collect();
            object(&fields)
        })
        .collect();
    json!({ "type": "object", "description": "One chunk of the AI SDK's UI message stream.", "anyOf": kinds })
}

fn sessions(agents: &[&str]) -> Vec<Named> {
    let agent = json!({
        "type": "string",
        "enum": agents,
        "description": "Who is to answer; the server's default if left out. It counts when the session is made.",
    });
    let content = json!({ "anyOf": [text(), object(&[("text", text()), ("parts?", json!({ "type": "array" }))])] });
    vec![
        (
            "NewSession",
            request(&[
                ("agent?", agent.clone()),
                ("client_id?", name()),
                ("app_version?", text()),
                ("config?", json!({ "type": "object" })),
            ]),
        ),
        ("Message", request(&[("message", content), ("message_id?", name())])),
        ("Submit", submit(agent)),
        ("NewBackend", new_backend()),
        (
            "Response",
            request(&[
                ("step_id", name()),
                ("confirmed", flag()),
                ("tasks?", json!({ "type": "array" })),
                ("reason?", text()),
            ]),
        ),
    ]
}

fn new_backend() -> Value {
    request(&[
        ("name", json!({ "type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[A-Za-z0-9._-]+$" })),
        ("url?", text()),
        ("command?", text()),
    ])
}

fn submit(agent: Value) -> Value {
    let message = json!({
        "type": "object",
        "description": "A message of the AI SDK. Only the last one is read, and it must be the user's.",
        "properties": { "id": text(), "role": text(), "parts": { "type": "array" }, "content": text() },
    });
    request(&[
        ("id?", json!({ "type": "string", "minLength": 1, "maxLength": 256 })),
        ("messages?", json!({ "type": "array", "items": message })),
        ("trigger?", one_of(&["submit-message", "regenerate-message"])),
        ("messageId?", name()),
        ("agent?", agent),
    ])
}

fn tasks() -> Vec<Named> {
    let tool_name =
        json!({ "type": "string", "minLength": 1, "maxLength": 256, "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$" });
    let ending = [
        ("result?", anything()),
        ("error?", json!({ "description": "What went wrong: a sentence, or anything." })),
        ("status?", one_of(&["completed", "failed", "cancelled"])),
    ];
    vec![
        (
            "NewOperation",
            request(&[
                ("tool_name", tool_name.clone()),
                ("arguments?", json!({ "type": "object" })),
                ("tool_call_id?", name()),
            ]),
        ),
        ("NewTask", request(&[("session_id?", name()), ("tool_name?", tool_name), ("operation_id?", name())])),
        ("TaskEnd", request(&[&[("success?", flag())], &ending[..]].concat())),
        ("OperationEnd", request(&[&[("success", flag())], &ending[..2]].concat())),
    ]
}

/// Headers that several operations read.
pub fn parameters() -> Value {
    let header = |name: &str, about: &str, schema: Value| json!({ "name": name, "in": "header", "required": false, "description": about, "schema": schema });
    json!({
        "ResumeToken": header(
            "Bowline-Resume-Token",
            "What proves that a session, or a task without one, is yours, on servers with `session.ownership = \"token\"`; others ignore it.",
            text(),
        ),
        "IdempotencyKey": header("Idempotency-Key", "Your own key for this request: the same one twice does it once.", header_name()),
        "LastEventId": header("Last-Event-ID", "The cursor; a browser's EventSource sends it by itself.", asked_cursor()),
        "LastEventIdOfLog": header("Last-Event-ID", "The cursor in the session's log.", log_cursor()),
        "ProducerId": header("Producer-Id", "Who appends, as it calls itself. Only together with `Producer-Seq`.", header_name()),
        "ProducerSeq": header(
            "Producer-Seq",
            "Which append of this producer's this is: from 0, growing by 1.",
            json!({ "type": "integer", "minimum": 0, "maximum": bowline_protocol::Seq::MAX.get() }),
        ),
    })
}
