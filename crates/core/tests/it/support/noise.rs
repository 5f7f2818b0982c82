//! Events in no sensible order: results without calls, ends without starts, deltas of parts that are gone.

use bowline_protocol::event::names;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::log::{Log, event, step_event};

fn id() -> impl Strategy<Value = String> {
    prop_oneof![Just("a"), Just("b"), Just("c")].prop_map(str::to_owned)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z\"\\\\\n😀]{0,6}"]
}

/// A tool call is dynamic or not by its id, as an upstream would have it.
fn tool(kind: &str, id: &str, more: &Value) -> Value {
    let mut chunk = json!({ "type": kind, "toolCallId": id });
    if id == "c" {
        chunk["dynamic"] = true.into();
    }
    for (key, value) in more.as_object().unwrap() {
        chunk[key] = value.clone();
    }
    chunk
}

fn chunk() -> impl Strategy<Value = Value> {
    prop_oneof![
        id().prop_map(|id| json!({ "type": "text-start", "id": id })),
        (id(), text()).prop_map(|(id, text)| json!({ "type": "text-delta", "id": id, "delta": text })),
        id().prop_map(|id| json!({ "type": "text-end", "id": id })),
        id().prop_map(|id| json!({ "type": "reasoning-start", "id": id })),
        (id(), text()).prop_map(|(id, text)| json!({ "type": "reasoning-delta", "id": id, "delta": text })),
        id().prop_map(|id| json!({ "type": "reasoning-end", "id": id })),
        id().prop_map(|id| tool("tool-input-start", &id, &json!({ "toolName": "t" }))),
        (id(), text())
            .prop_map(|(id, text)| json!({ "type": "tool-input-delta", "toolCallId": id, "inputTextDelta": text })),
        id().prop_map(|id| tool("tool-input-available", &id, &json!({ "toolName": "t", "input": 1 }))),
        id().prop_map(|id| tool("tool-input-error", &id, &json!({ "toolName": "t", "errorText": "e" }))),
        (id(), any::<bool>()).prop_map(|(id, preliminary)| tool(
            "tool-output-available",
            &id,
            &json!({ "output": 1, "preliminary": preliminary })
        )),
        id().prop_map(|id| tool("tool-output-error", &id, &json!({ "errorText": "e" }))),
        // A generation that knows approvals does not care whether a tool is dynamic.
        own_step().prop_map(|id| json!({ "type": "tool-output-denied", "toolCallId": id })),
        (own_step(), id()).prop_map(
            |(id, approval)| json!({ "type": "tool-approval-request", "toolCallId": id, "approvalId": approval })
        ),
        id().prop_map(|id| json!({ "type": "tool-approval-response", "approvalId": id, "approved": true })),
        Just(json!({ "type": "start-step" })),
        Just(json!({ "type": "finish-step" })),
        Just(json!({ "type": "reset-step" })),
        Just(json!({ "type": "data-x", "id": "a", "data": 1 })),
        Just(json!({ "type": "message-metadata", "messageMetadata": { "a": 1 } })),
        // Not an upstream's to send.
        Just(json!({ "type": "start" })),
        Just(json!({ "type": "finish" })),
        Just(json!({ "type": "error", "errorText": "e" })),
        Just(json!({ "type": "nothing" })),
        Just(json!([1])),
    ]
}

fn own_step() -> impl Strategy<Value = String> {
    // Our own results answer our own calls; those of an upstream's dynamic tools are the upstream's.
    prop_oneof![Just("a"), Just("b"), Just("z")].prop_map(str::to_owned)
}

fn any_event() -> impl Strategy<Value = Value> {
    let with = |mut event: Value, metadata: Value| {
        event["metadata"] = metadata;
        event
    };
    prop_oneof![
        6 => chunk().prop_map(|chunk| event(names::CHUNK, chunk)),
        4 => (text(), prop::option::of(id())).prop_map(move |(text, part)| {
            with(event(names::PARTIAL_ANSWER, text), json!({ "index": 0, "part": part }))
        }),
        2 => (text(), prop::option::of(id()), any::<bool>()).prop_map(move |(text, part, streamed)| {
            with(event(names::THINKING, text), json!({ "index": streamed.then_some(0), "part": part }))
        }),
        1 => chunk().prop_map(move |chunk| with(event(names::PARTIAL_ANSWER, "x"), json!({ "chunk": chunk }))),
        1 => own_step().prop_map(move |id| with(step_event(names::TOOL_CALL, &id, ""), json!({ "tool": "t" }))),
        1 => (own_step(), any::<bool>()).prop_map(move |(id, failed)| {
            let status = if failed { "failed" } else { "success" };
            with(step_event(names::TOOL_RESULT, &id, "r"), json!({ "tool": "t", "status": status }))
        }),
        1 => Just(event(names::TOOL_RESULT, "no step")),
        1 => own_step().prop_map(|id| step_event(names::OPERATION_STARTED, &id, json!({ "tool_name": "t" }))),
        1 => Just(event(names::PLAN_START, json!({ "question": "q" }))),
        1 => Just(event(names::USER_MESSAGE, "again")),
        1 => Just(event(names::SESSION_END, "over")),
        1 => text().prop_map(|text| event(names::FINAL_ANSWER, text)),
        1 => Just(event(names::CANCELLED, "stop")),
        1 => Just(event(names::ERROR, "broken")),
    ]
}

/// A log of noise. It may end, and go on after that.
pub fn noise() -> impl Strategy<Value = Log> {
    prop::collection::vec(any_event(), 1..25).prop_map(|events| {
        let mut log = Log::default();
        log.push(&event(names::USER_MESSAGE, "hi"));
        events.iter().for_each(|event| log.push(event));
        log
    })
}
