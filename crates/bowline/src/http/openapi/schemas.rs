//! The shapes that requests and answers have.

use bowline_protocol::id::NAME_BYTES_MAX;
use bowline_protocol::{ChunkKind, ErrorCode, RecoveryAction};
use serde_json::{Map, Value, json};

use super::named;
use crate::task::status::Status;

/// `<epoch>-<seq>`, with the place within the event if that became several chunks; or the number alone.
const CURSOR: &str = r"^([A-Za-z0-9]{1,32}-)?[0-9]{1,15}(\.[1-9][0-9]{0,8})?$";
const LOG_CURSOR: &str = "^([A-Za-z0-9]{1,32}-)?[0-9]{1,15}$";

/// Any JSON value.
fn anything() -> Value {
    json!(true)
}

/// The same, or `null`, which means nothing.
fn or_null(mut schema: Value) -> Value {
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

fn text() -> Value {
    json!({ "type": "string" })
}

fn flag() -> Value {
    json!({ "type": "boolean" })
}

fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

/// A name that a peer chose. Lengths are in bytes, so what counts in characters is only near.
fn name() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$" })
}

fn cursor() -> Value {
    json!({ "type": "string", "pattern": CURSOR, "examples": ["7k3m9x2c0q-12"] })
}

/// The same from a reader, to whom nothing at all means everything.
pub fn asked_cursor() -> Value {
    let pattern = format!("^({})?$", CURSOR.trim_start_matches('^').trim_end_matches('$'));
    json!({ "type": "string", "pattern": pattern, "examples": ["7k3m9x2c0q-12"] })
}

/// A cursor of a log, whose events are not divided.
pub fn log_cursor() -> Value {
    json!({ "type": "string", "pattern": LOG_CURSOR, "examples": ["7k3m9x2c0q-12"] })
}

/// A name in a header, where only visible ASCII can stand, and space at the ends is lost.
fn header_name() -> Value {
    json!({ "type": "string", "maxLength": NAME_BYTES_MAX, "pattern": "^[!-~]([ -~]*[!-~])?$" })
}

fn one_of(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

/// An object with these fields. A name that ends in `?` may be left out.
fn object(fields: &[(&str, Value)]) -> Value {
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).filter(|name| !name.ends_with('?')).collect();
    let properties: Map<String, Value> =
        fields.iter().map(|(name, schema)| (name.trim_end_matches('?').to_owned(), schema.clone())).collect();
    let mut shown = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        shown["required"] = required.into();
    }
    shown
}

/// The same for what somebody sends: where a field may be left out, `null` means that too.
fn request(fields: &[(&str, Value)]) -> Value {
    let relaxed: Vec<(&str, Value)> = fields
        .iter()
        .map(|(name, schema)| (*name, if name.ends_with('?') { or_null(schema.clone()) } else { schema.clone() }))
        .collect();
    object(&relaxed)
}

pub fn schemas(agents: &[&str]) -> Value {
    let mut all = Map::new();
    for (name, schema) in [common(), sessions(agents), tasks(), operator()].into_iter().flatten() {
        all.insert(name.to_owned(), schema);
    }
    all.into()
}

type Named = (&'static str, Value);

fn common() -> Vec<Named> {
    let codes: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
    let actions: Vec<&str> = RecoveryAction::ALL.iter().map(|action| action.as_str()).collect();
    let problem = object(&[
        ("code", one_of(&codes)),
        ("message", json!({ "type": "string", "description": "A sentence for people." })),
        ("recovery_action", one_of(&actions)),
        ("retry_after_ms?", count()),
        ("details?", json!({ "type": "object" })),
    ]);
    let data = json!({ "type": "string", "description": "A chunk as JSON; `[DONE]` in the last event." });
    let event = json!({
        "type": "object",
        "description": "One server-sent event. Chunks that were made up for this reader have no `id`.",
        "properties": { "id": cursor(), "data": data, "event": text() },
        "required": ["data"],
    });
    vec![
        ("Problem", problem),
        ("StreamEvent", event),
        ("Chunk", chunk()),
        ("Chunks", json!({ "type": "array", "minItems": 1, "maxItems": 10_000, "items": named("Chunk") })),
        ("Reason", request(&[("reason?", text())])),
    ]
}

/// A chunk of the UI message stream. Which fields a type needs is told; those that it may have besides are not.
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
    let states = ["idle", "running", "waiting"];
    let summary = [
        ("id", text()),
        ("created_at", time()),
        ("updated_at", time()),
        ("title", or_null(text())),
        ("status", one_of(&states)),
        ("agent", text()),
    ];
    let whole: Vec<(&str, Value)> = summary
        .clone()
        .into_iter()
        .chain([
            ("messages", json!({ "type": "array", "items": named("UIMessage") })),
            ("active_stream", or_null(named("ActiveStream"))),
            ("active_streams", json!({ "type": "array", "items": named("ActiveStream") })),
        ])
        .collect();
    let part = json!({ "type": "object", "properties": { "type": text() }, "required": ["type"] });
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
        (
            "SessionMade",
            object(&[
                ("id", text()),
                ("created_at", time()),
                ("status", json!({ "const": "idle" })),
                ("resume_token?", text()),
            ]),
        ),
        ("SessionSummary", object(&summary)),
        (
            "Sessions",
            object(&[("sessions", json!({ "type": "array", "items": named("SessionSummary") })), ("total", count())]),
        ),
        ("Session", object(&whole)),
        (
            "UIMessage",
            object(&[
                ("id", text()),
                ("role", one_of(&["user", "assistant"])),
                ("parts", json!({ "type": "array", "items": part })),
                ("metadata", object(&[("created_at", time()), ("interrupted?", flag())])),
            ]),
        ),
        (
            "ActiveStream",
            object(&[
                ("task_id", text()),
                ("last_message_id", cursor()),
                ("operation_id?", text()),
                ("tool_name?", or_null(text())),
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
        ("Responded", object(&[("step_id", text()), ("confirmed", flag()), ("accepted", json!({ "const": true }))])),
        (
            "Cancelled",
            object(&[
                ("cancelled", flag()),
                ("status", one_of(&["idle", "running", "completed", "failed", "cancelled"])),
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
    let statuses: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
    let tool_name =
        json!({ "type": "string", "minLength": 1, "maxLength": 256, "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$" });
    let error = object(&[("code", text()), ("message", text())]);
    let ending = [
        ("result?", anything()),
        ("error?", json!({ "description": "What went wrong: a sentence, or anything." })),
        ("status?", one_of(&["completed", "failed", "cancelled"])),
    ];
    let task = [
        ("task_id", text()),
        ("session_id", or_null(text())),
        ("operation_id", or_null(text())),
        ("tool_name", or_null(text())),
        ("status", one_of(&statuses)),
        ("created_at", time()),
        ("finished_at", or_null(time())),
        ("last_message_id", cursor()),
        ("result?", anything()),
        ("error?", error),
        ("result_expired?", flag()),
    ];
    vec![
        ("Task", object(&task)),
        (
            "NewOperation",
            request(&[
                ("tool_name", tool_name.clone()),
                ("arguments?", json!({ "type": "object" })),
                ("tool_call_id?", name()),
            ]),
        ),
        (
            "OperationStarted",
            object(&[
                ("type", json!({ "const": "operation_started" })),
                ("tool_name", or_null(text())),
                ("operation_id", text()),
                ("task_id", text()),
                ("message", text()),
            ]),
        ),
        ("NewTask", request(&[("session_id?", name()), ("tool_name?", tool_name), ("operation_id?", name())])),
        ("TaskMade", object(&[("task_id", text()), ("operation_id", text()), ("resume_token?", text())])),
        ("Appended", object(&[("last_message_id", cursor())])),
        ("TaskEnd", request(&[&[("success?", flag())], &ending[..]].concat())),
        ("OperationEnd", request(&[&[("success", flag())], &ending[..2]].concat())),
        ("Ended", object(&[("task_id", text()), ("status", one_of(&statuses)), ("last_message_id", cursor())])),
        ("Ttl", object(&[("stream_ttl_seconds", json!({ "type": "number" })), ("stream_ttl_ms", count())])),
    ]
}

fn operator() -> Vec<Named> {
    let store = object(&[
        ("writable", flag()),
        ("loss_window", anything()),
        ("troubles", json!({ "type": "array" })),
        ("quarantined", json!({ "type": "array" })),
    ]);
    // Null where a server shares its store with no other.
    let node = or_null(object(&[("name", text()), ("incarnation", count()), ("trouble", or_null(text()))]));
    let session = [
        ("id", text()),
        ("log", text()),
        ("owner", text()),
        ("held", flag()),
        ("observers", count()),
        ("acked_seq", or_null(count())),
        ("last_seq", or_null(count())),
        ("first_retained_seq", or_null(count())),
        ("epoch", or_null(text())),
    ];
    let buffer = object(&[
        ("buffer_size", count()),
        ("buffer_usage_percent", json!({ "type": "number" })),
        ("oldest_event_seq", or_null(count())),
        ("newest_event_seq", or_null(count())),
        ("unacked_events", count()),
        ("session_age_seconds", count()),
    ]);
    let whole: Vec<(&str, Value)> = session.iter().cloned().chain([("buffer", buffer)]).collect();
    vec![
        ("Readiness", object(&[("ready", flag()), ("draining", flag()), ("store", store), ("node", node)])),
        ("Facts", json!({ "type": "object" })),
        (
            "AllSessions",
            object(&[("sessions", json!({ "type": "array", "items": object(&session) })), ("total", count())]),
        ),
        ("AnySession", object(&whole)),
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
