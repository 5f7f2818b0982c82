//! The Responses API, as far as it is answered here. What a response holds is that API's own shape.

use bowline_protocol::ErrorCode::{
    AgentBusy, CursorAhead, IdempotencyConflict, InvalidPayload, NotSupported, RateLimited, ReplayGap, ServerDraining,
    TaskExpired, TaskNotFound, TooManySessions, UnknownStep,
};
use serde_json::{Value, json};

use super::chat::SESSION;
use super::schemas::{Named, anything, flag, object, one_of, or_null, request, text};
use super::{Access, ApiOperation, named, tasks};
use crate::http::responses::models::{Model, ModelList};
use crate::http::responses::show::{InputItems, ResponseDeleted};

fn api(method: &'static str, path: &'static str, id: &str, summary: &str) -> ApiOperation {
    ApiOperation::new(Access::Owner, method, path, id, summary, "responses").header("ResumeToken").in_the_apis_shape()
}

fn response(method: &'static str, path: &'static str, id: &str, summary: &str) -> ApiOperation {
    api(method, path, id, summary)
        .path("id", "The response")
        .refuses(&[TaskNotFound, TaskExpired, ReplayGap])
        .refuses(&SESSION)
}

/// A response as an object, or as its events.
fn whole_or_streamed() -> Value {
    json!({
        "application/json": { "schema": named("ResponseObject") },
        "text/event-stream": { "schema": named("ResponseEvent") },
    })
}

pub fn operations() -> Vec<ApiOperation> {
    let whole = json!({ "application/json": { "schema": named("ResponseObject") } });
    let item_count = json!({ "type": "integer", "minimum": 1, "maximum": 100, "default": 20 });
    vec![
        api("post", "/v1/responses", "createResponse", "Sends a message, answers a question of the agent's, or returns what it called for")
            .about(
                "The response comes when it is whole, as events with `stream`, or as it stands now with `background`. What is not in \
                 this schema is repeated in the response where the API does so, and otherwise ignored.",
            )
            .header("IdempotencyKey")
            .takes("NewResponse", true, &json!({ "model": "demo", "input": "/echo hello" }))
            .answers_content(200, "The response", whole_or_streamed())
            .answer_header("Bowline-Session-Id", "The session that the response belongs to.")
            .answer_header("Bowline-Resume-Token", "What proves that the session is yours, where that is asked for and it is new.")
            .link("show", "getResponse", "id", "id")
            .link("cancel", "cancelResponse", "id", "id")
            .link("items", "listInputItems", "id", "id")
            .link("delete", "deleteResponse", "id", "id")
            .refuses(&SESSION)
            .refuses(&[NotSupported, TaskNotFound, TaskExpired, ReplayGap, UnknownStep, AgentBusy])
            .refuses(&[IdempotencyConflict, TooManySessions, RateLimited, ServerDraining]),
        api("get", "/v1/responses", "connectResponses", "Opens a WebSocket for many responses, as the official clients speak it")
            .about("The request has to ask for the upgrade; see docs/responses.md for what is said over the socket.")
            .answers_nothing(101, "The connection is a WebSocket now")
            .refuses(&[InvalidPayload, RateLimited]),
        response("get", "/v1/responses/{id}", "getResponse", "Shows a response, or streams its events")
            .query("stream", "Whether its events are wanted", &tasks::flag())
            .query(
                "starting_after",
                "With `stream`: the `sequence_number` of the last event that is known",
                &json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX }),
            )
            .answers_content(200, "The response", whole_or_streamed())
            .refuses(&[CursorAhead, RateLimited]),
        response("delete", "/v1/responses/{id}", "deleteResponse", "Lets a response go that is all of its conversation")
            .answers::<ResponseDeleted>(200, "It is gone")
            .refuses(&[NotSupported]),
        response("post", "/v1/responses/{id}/cancel", "cancelResponse", "Stops a response")
            .about("One that has ended is shown as it is.")
            .answers_content(200, "The response as it stands now", whole),
        response("get", "/v1/responses/{id}/input_items", "listInputItems", "Lists what a response was asked")
            .query("limit", "How many", &item_count)
            .query("order", "`desc`, the newest first, if left out", &one_of(&["asc", "desc"]))
            .query("after", "The id of an item: only what follows it is listed", &text())
            .answers::<InputItems>(200, "Some of the items"),
        api("get", "/v1/models", "listModels", "Lists the agents").answers::<ModelList>(200, "All of them"),
        api("get", "/v1/models/{id}", "getModel", "Shows an agent")
            .path("id", "Its name")
            .answers::<Model>(200, "The agent")
            .refuses(&[TaskNotFound]),
    ]
}

pub fn schemas(agents: &[&str]) -> Vec<Named> {
    vec![
        ("NewResponse", new_response(agents)),
        ("ResponseObject", response_object()),
        (
            "ResponseEvent",
            json!({
                "type": "object",
                "description": "One server-sent event. Its `data` has the same name as `type`, and a `sequence_number` from 0 on; the last is `[DONE]`.",
                "properties": { "event": text(), "data": text() },
                "required": ["data"],
            }),
        ),
    ]
}

fn new_response(agents: &[&str]) -> Value {
    let metadata = json!({
        "type": "object",
        "maxProperties": 16,
        "propertyNames": { "maxLength": 64 },
        "additionalProperties": { "type": "string", "maxLength": 512 },
    });
    let name = json!({ "type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$" });
    let parameters = json!({ "type": ["object", "null"] });
    let function = object(&[("type", json!({ "const": "function" })), ("name", name), ("parameters?", parameters)]);
    let input = json!({ "anyOf": [text(), { "type": "array", "minItems": 1, "items": input_item() }] });
    request(&[
        ("input", input),
        (
            "model?",
            json!({ "type": "string", "enum": agents, "description": "The agent; the server's default if left out." }),
        ),
        ("instructions?", text()),
        ("stream?", flag()),
        ("background?", flag()),
        ("store?", flag()),
        ("previous_response_id?", text()),
        ("conversation?", json!({ "anyOf": [text(), object(&[("id", text())]), { "type": "null" }] })),
        ("metadata?", metadata),
        ("tools?", json!({ "type": "array", "maxItems": 128, "items": function })),
        ("parallel_tool_calls?", flag()),
    ])
}

/// Messages, answers to questions, what functions returned, and what earlier responses held, which is passed over.
fn input_item() -> Value {
    let part = |kind: &str, field: &str| object(&[("type", json!({ "const": kind })), (field, text())]);
    let parts = json!({ "anyOf": [
        object(&[("type", one_of(&["input_text", "output_text"])), ("text", text())]),
        part("refusal", "refusal"),
        part("input_image", "image_url"),
        part("input_file", "file_data"),
        part("input_file", "file_url"),
    ] });
    let content = json!({ "anyOf": [text(), { "type": "array", "items": parts }] });
    json!({ "anyOf": [
        object(&[("role", one_of(&["user", "assistant", "system", "developer"])), ("content", content)]),
        object(&[
            ("type", json!({ "const": "mcp_approval_response" })),
            ("approval_request_id", text()),
            ("approve", flag()),
        ]),
        object(&[
            ("type", json!({ "const": "function_call_output" })),
            ("call_id", text()),
            ("output", json!({ "anyOf": [text(), { "type": "array" }] })),
        ]),
        object(&[("type", json!({
            "type": "string",
            "not": { "enum": ["message", "mcp_approval_response"] },
            "description": "What an earlier response held, which is passed over; of what functions returned, only what stands at the end counts.",
        }))]),
    ] })
}

/// What every response has; it repeats more of its request than this.
fn response_object() -> Value {
    let count = || json!({ "type": "integer", "minimum": 0 });
    let item = object(&[("id", text()), ("type", text())]);
    let usage = object(&[
        ("input_tokens", count()),
        ("input_tokens_details", json!({ "type": "object" })),
        ("output_tokens", count()),
        ("output_tokens_details", json!({ "type": "object" })),
        ("total_tokens", count()),
    ]);
    let mut shown = object(&[
        ("id", text()),
        ("object", json!({ "const": "response" })),
        ("created_at", count()),
        ("completed_at", or_null(count())),
        ("status", one_of(&["in_progress", "completed", "incomplete", "failed", "cancelled"])),
        ("model", text()),
        ("output", json!({ "type": "array", "items": item })),
        ("error", or_null(object(&[("code", text()), ("message", text())]))),
        ("incomplete_details", or_null(object(&[("reason", text())]))),
        ("usage", or_null(usage)),
        ("previous_response_id", or_null(text())),
        ("conversation", anything()),
        ("instructions", or_null(text())),
        ("background", flag()),
        ("store", flag()),
        ("metadata", json!({ "type": "object" })),
    ]);
    shown["description"] = "A response: a turn of a session, or what followed an answer in it.".into();
    shown
}

#[cfg(test)]
mod tests {
    use bowline_core::dialect::Projection as _;
    use bowline_core::dialect::responses::{ECHOED, ResponseId, ResponseProjector};
    use bowline_protocol::event::names;
    use bowline_protocol::{Draft, Epoch, LogId, Recorded, Seq, SessionId};

    use super::*;

    /// The object is a struct of `core`, which knows no schemas.
    #[test]
    fn the_schema_of_a_response_has_the_members_of_a_response() {
        let first = Seq::FIRST;
        let draft = Draft::new(names::USER_MESSAGE, &json!({ "text": "hello" }));
        let session = SessionId::parse("s1").unwrap();
        let bytes = draft.seal(&session, "2026-01-01T00:00:00Z").number(&Epoch::parse("e").unwrap(), first);
        let id = ResponseId::of_turn(LogId::from(&session), first);
        let mut projector = ResponseProjector::new(&ResponseProjector::name(&id, "demo"));
        projector.pass_event(&Recorded { seq: first, bytes });
        let response: Value = serde_json::from_str(projector.response().unwrap().get()).unwrap();
        let (shown, schema) = (response.as_object().unwrap(), response_object());
        let members = schema["properties"].as_object().unwrap();
        for required in schema["required"].as_array().unwrap() {
            assert!(shown.contains_key(required.as_str().unwrap()), "no response has {required}");
        }
        for member in shown.keys() {
            assert!(
                members.contains_key(member) || ECHOED.contains(&member.as_str()),
                "the schema does not name {member}"
            );
        }
    }
}
