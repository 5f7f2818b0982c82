//! A response is the same for everyone who reads it: streamed, cut anywhere and resumed, together or alone, or asked for at its end.

use bowline_core::dialect::responses::{CallId, QuestionId, ResponseEvent, ResponseId, ResponseProjector, Wait};
use bowline_core::dialect::{Live, Projection as _, SharedOutputs};
use bowline_core::watch::{Output, Watch, WatchStart};
use bowline_protocol::event::names;
use bowline_protocol::{Extent, LogId, Recorded, Seq, StepId};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::log::{Log, event, step_event};
use crate::support::noise::noise;
use crate::support::story::story;

fn number(n: usize) -> Seq {
    Seq::new(n as u64).unwrap()
}

fn id(first: usize, question: Option<usize>) -> ResponseId {
    let log = LogId::parse("sess_1").unwrap();
    ResponseId { log, turn: number(first), question: question.map(number) }
}

fn projector(id: &ResponseId) -> ResponseProjector {
    ResponseProjector::new(&ResponseProjector::name(id, "demo"))
}

fn json_of(event: &ResponseEvent) -> Value {
    serde_json::from_slice(&event.json).unwrap()
}

fn all(events: &[Value]) -> Log {
    let mut log = Log::default();
    events.iter().for_each(|event| log.push(event));
    log
}

/// The whole stream, and the response behind it.
fn streamed(id: &ResponseId, events: &[Recorded]) -> (Vec<Value>, Option<Value>) {
    let (mut projector, mut out) = (projector(id), Vec::new());
    let first = id.first().get() as usize - 1;
    events[first.min(events.len())..].iter().for_each(|event| projector.handle_event(event, &mut out));
    let response = projector.response().map(|raw| serde_json::from_str(raw.get()).unwrap());
    (out.iter().map(json_of).collect(), response)
}

/// From the event with this number on, as a server reads for one who comes back.
fn resumed(id: &ResponseId, events: &[Recorded], from: u64) -> Vec<Value> {
    let next = number(events.len() + 1);
    let extent = Extent { epoch: Log::epoch(), epoch_first: number(1), first: number(1), next };
    let name = ResponseProjector::name(id, "demo");
    let mut watch: Watch<ResponseProjector> =
        Watch::new(&name, id.first(), &extent, WatchStart::Index(from), false, None);
    let mut seen = Vec::new();
    loop {
        match watch.poll_output() {
            Some(Output::Outputs(outputs)) => seen.extend(outputs.iter().map(json_of)),
            Some(Output::Over) => return seen,
            None => {
                let from = watch.poll_read().map_or(events.len(), |(from, _)| from.get() as usize - 1);
                if from >= events.len() {
                    return seen;
                }
                watch.handle_events(&events[from..events.len().min(from + 3)]);
            }
        }
    }
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// What the published clients make of a stream: they believe each event, and never look at the last one's response.
fn accumulated(events: &[Value]) -> Vec<Value> {
    let mut output: Vec<Value> = Vec::new();
    for event in events {
        let at = event["output_index"].as_u64().map(|at| at as usize);
        let mut add = |place: &str, field: &str, index: &str| {
            let place = &mut output[at.unwrap()][place][event[index].as_u64().unwrap() as usize][field];
            *place = format!("{}{}", place.as_str().unwrap(), event["delta"].as_str().unwrap()).into();
        };
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                assert_eq!(at, Some(output.len()), "items begin in their order");
                output.push(event["item"].clone());
            }
            "response.output_item.done" => {
                let (told, item) = (&output[at.unwrap()], &event["item"]);
                assert_eq!(told["id"], item["id"]);
                for field in ["content", "summary", "arguments"] {
                    assert_eq!(told[field], item[field], "what was streamed is what there is");
                }
                output[at.unwrap()] = item.clone();
            }
            "response.content_part.added" => {
                output[at.unwrap()]["content"].as_array_mut().unwrap().push(event["part"].clone());
            }
            "response.reasoning_summary_part.added" => {
                output[at.unwrap()]["summary"].as_array_mut().unwrap().push(event["part"].clone());
            }
            "response.output_text.delta" => add("content", "text", "content_index"),
            "response.refusal.delta" => add("content", "refusal", "content_index"),
            "response.reasoning_summary_text.delta" => add("summary", "text", "summary_index"),
            "response.mcp_call_arguments.delta" | "response.function_call_arguments.delta" => {
                output[at.unwrap()]["arguments"] = event["delta"].clone();
            }
            _ => {}
        }
    }
    output
}

proptest! {
    #[test]
    fn numbers_have_no_holes_and_a_stream_cut_anywhere_goes_on_as_it_was(story in story()) {
        let (whole, response) = streamed(&id(1, None), &story.log.events);
        for (at, event) in whole.iter().enumerate() {
            prop_assert_eq!(event["sequence_number"].as_u64(), Some(at as u64));
            let rest = resumed(&id(1, None), &story.log.events, at as u64 + 1);
            prop_assert_eq!(&rest[..], &whole[at + 1..]);
        }
        prop_assert_eq!(&resumed(&id(1, None), &story.log.events, 0), &whole);
        if let Some(last) = whole.iter().find(|event| ENDS.contains(&event["type"].as_str().unwrap())) {
            prop_assert_eq!(Some(&last["response"]), response.as_ref());
            prop_assert_eq!(&last["response"]["output"], &Value::from(accumulated(&whole)));
            prop_assert_eq!(whole.last(), Some(last), "nothing follows the end");
        } else if let Some(response) = response {
            prop_assert_eq!(&response["status"], "in_progress");
        }
    }

    #[test]
    fn readers_that_share_a_projection_get_what_each_would_get_alone(story in story(), cut in 0..40usize) {
        let events = &story.log.events;
        let (whole, _) = streamed(&id(1, None), events);
        let cut = cut.min(events.len());
        let mut live: Live<ResponseProjector, ()> = Live::new(projector(&id(1, None)), number(1));
        live.handle_events(&events[..cut], 1 << 20);
        live.handle_events(&events[cut..], 1 << 20);
        let (mut at, mut seen) = (number(1), Vec::new());
        while let SharedOutputs::Outputs { batch, from } = live.read(at) {
            seen.extend(batch.outputs[from..].iter().map(json_of));
            at = batch.next();
        }
        prop_assert_eq!(seen, whole);
    }

    #[test]
    fn every_question_is_followed_by_a_response_of_its_own_and_nothing_is_lost_between_them(story in story()) {
        let events = &story.log.events;
        let asked: Vec<usize> = events.iter().enumerate()
            .filter(|(_, event)| event.view().is_some_and(|view| view.event == names::USER_CONFIRM))
            .map(|(at, _)| at + 1)
            .collect();
        for question in asked.into_iter().filter(|question| *question > 1) {
            let (whole, response) = streamed(&id(1, Some(question)), events);
            let answered = events[question..].iter().any(|event| {
                event.view().is_some_and(|view| view.event == names::USER_RESPONSE)
            });
            prop_assert_eq!(response.is_some(), answered);
            for (at, event) in whole.iter().enumerate() {
                prop_assert_eq!(event["sequence_number"].as_u64(), Some(at as u64));
            }
        }
    }

    #[test]
    fn whatever_is_in_a_log_a_stream_is_made_of_it(log in noise()) {
        let _ = streamed(&id(1, None), &log.events);
    }
}

const ENDS: &[&str] = &["response.completed", "response.failed", "response.incomplete"];

fn said(text: &str) -> Value {
    let mut said = event(names::PARTIAL_ANSWER, text);
    said["metadata"] = json!({ "index": 0 });
    said
}

fn with(mut event: Value, metadata: &Value) -> Value {
    event["metadata"] = metadata.clone();
    event
}

#[test]
fn a_text_answer_has_the_events_of_the_api_in_its_order() {
    let asked = json!({ "text": "hi", "response": { "model": "helper", "metadata": { "a": "b" }, "id": "forged" } });
    let usage = json!({ "usage": { "prompt_tokens": 1, "completion_tokens": 2 }, "streamed": 3 });
    let log = all(&[
        event(names::USER_MESSAGE, asked),
        with(event(names::THINKING, "hm"), &json!({ "stage": "x" })),
        said("on"),
        said("e"),
        with(event(names::FINAL_ANSWER, "one two"), &usage),
    ]);
    let (whole, response) = streamed(&id(1, None), &log.events);
    assert_eq!(
        kinds(&whole),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.reasoning_summary_part.added",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.done",
            "response.reasoning_summary_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let response = response.unwrap();
    let text = json!({ "type": "output_text", "text": "one two", "annotations": [], "logprobs": [] });
    let message = json!({
        "type": "message", "id": "msg_3_sess_1", "status": "completed", "role": "assistant", "content": [text],
    });
    assert_eq!(response["output"][1], message);
    assert_eq!((&response["id"], &response["model"]), (&json!("resp_1_sess_1"), &json!("helper")));
    assert_eq!((&response["metadata"], &response["status"]), (&json!({ "a": "b" }), &json!("completed")));
    assert_eq!(response["usage"]["total_tokens"], 3);
    let date = 1_767_225_600;
    assert_eq!((&response["created_at"], &response["completed_at"]), (&json!(date), &json!(date)));
}

#[test]
fn a_tool_of_the_hub_is_a_call_that_the_server_made() {
    let facts = json!({ "tool": "look", "server": "files", "args": { "at": [1] } });
    let log = all(&[
        event(names::USER_MESSAGE, "hi"),
        said("Looking."),
        with(step_event(names::TOOL_CALL, "s1", "Calling"), &facts),
        with(step_event(names::TOOL_CALL, "s2", "Calling"), &json!({ "tool": "own" })),
        with(step_event(names::TOOL_RESULT, "s1", "found"), &json!({ "status": "success" })),
        with(step_event(names::TOOL_RESULT, "s2", "no"), &json!({ "status": "unknown", "error": "cut" })),
        with(event(names::FINAL_ANSWER, "Looking."), &json!({ "streamed": 8 })),
    ]);
    let (whole, response) = streamed(&id(1, None), &log.events);
    let response = response.unwrap();
    let call = json!({
        "type": "mcp_call", "id": "mcp_3_sess_1", "status": "completed", "server_label": "files", "name": "look",
        "arguments": "{\"at\":[1]}", "approval_request_id": null, "output": "found", "error": null,
    });
    assert_eq!(response["output"][1], call);
    let lost = &response["output"][2];
    assert_eq!(
        (&lost["server_label"], &lost["status"], &lost["error"]),
        (&json!("demo"), &json!("failed"), &json!("cut"))
    );
    assert_eq!(response["output"].as_array().unwrap().len(), 3, "what was streamed is not said again");
    assert_eq!(Value::from(accumulated(&whole)), response["output"]);
}

#[test]
fn calls_of_the_callers_functions_complete_a_response_and_their_outputs_begin_the_next() {
    let call = |name: &str, awaits: Option<&[&str]>| {
        let mut facts = json!({ "tool": name, "args": { "city": "Rome" }, "status": "waiting", "caller": true });
        if let Some(steps) = awaits {
            facts["awaits"] = json!(steps);
        }
        facts
    };
    let output = json!({ "tool": "weather", "status": "success", "caller": true });
    let log = all(&[
        event(names::USER_MESSAGE, "hi"),
        said("Looking."),
        with(step_event(names::TOOL_CALL, "a", "Calling"), &call("weather", None)),
        with(step_event(names::TOOL_CALL, "b", "Calling"), &call("time", Some(&["a", "b"]))),
        step_event(names::USER_RESPONSE, "b", json!({ "outputs": 2, "response": { "metadata": { "n": "2" } } })),
        with(step_event(names::TOOL_RESULT, "a", "sunny"), &output),
        with(step_event(names::TOOL_RESULT, "b", "noon"), &output),
        said(" Sunny."),
        with(event(names::FINAL_ANSWER, "Looking. Sunny."), &json!({ "streamed": 15 })),
    ]);
    let (whole, first) = streamed(&id(1, None), &log.events);
    let first = first.unwrap();
    assert_eq!(Value::from(accumulated(&whole)), first["output"]);
    assert_eq!((&first["status"], first["output"].as_array().unwrap().len()), (&json!("completed"), 3));
    let called = json!({
        "type": "function_call", "id": "fc_3_sess_1", "status": "completed", "call_id": "call_3_sess_1",
        "name": "weather", "arguments": "{\"city\":\"Rome\"}",
    });
    assert_eq!(first["output"][1], called);
    assert_eq!(CallId::parse("call_4_sess_1").unwrap().called, number(4));
    let steps = ["a", "b"].map(|step| StepId::parse(step).unwrap());
    let waits: Vec<Option<Wait>> = log.events[2..5].iter().map(|event| Wait::of(&event.view().unwrap())).collect();
    assert_eq!(waits, [None, Some(Wait::Outputs(steps.to_vec())), None]);
    let (whole, second) = streamed(&id(1, Some(4)), &log.events);
    let second = second.unwrap();
    assert_eq!((&second["id"], &second["metadata"]), (&json!("resp_1-4_sess_1"), &json!({ "n": "2" })));
    assert_eq!(second["output"].as_array().unwrap().len(), 1, "what the caller sent is not told back");
    assert_eq!(second["output"][0]["content"][0]["text"], " Sunny.");
    for at in 0..whole.len() {
        assert_eq!(resumed(&id(1, Some(4)), &log.events, at as u64 + 1), whole[at + 1..]);
    }
}

#[test]
fn a_question_completes_a_response_and_its_answer_begins_the_next() {
    let question = json!({ "scope": "tool", "tool_name": "rm", "tool_args": { "path": "/x" } });
    let log = all(&[
        event(names::USER_MESSAGE, "hi"),
        said("May I?"),
        with(step_event(names::USER_CONFIRM, "ask", "Really?"), &question),
        said("meanwhile "),
        step_event(names::USER_RESPONSE, "other", json!({ "confirmed": true })),
        step_event(
            names::USER_RESPONSE,
            "ask",
            json!({ "confirmed": true, "response": { "previous_response_id": "resp_1_sess_1" } }),
        ),
        said("done"),
        with(event(names::FINAL_ANSWER, "May I?meanwhile done"), &json!({ "streamed": 20 })),
    ]);
    let (_, first) = streamed(&id(1, None), &log.events);
    let first = first.unwrap();
    assert_eq!((&first["status"], first["output"].as_array().unwrap().len()), (&json!("completed"), 2));
    let asked = json!({
        "type": "mcp_approval_request", "id": "mcpr_3_sess_1", "server_label": "demo", "name": "rm",
        "arguments": "{\"path\":\"/x\"}",
    });
    assert_eq!(first["output"][1], asked);
    assert_eq!(QuestionId::parse("mcpr_3_sess_1").unwrap().asked, number(3));
    let (whole, second) = streamed(&id(1, Some(3)), &log.events);
    let second = second.unwrap();
    assert_eq!(second["id"], "resp_1-3_sess_1");
    assert_eq!(second["previous_response_id"], "resp_1_sess_1");
    assert_eq!(second["output"][0]["content"][0]["text"], "meanwhile done");
    assert_eq!(second["output"].as_array().unwrap().len(), 1);
    assert_eq!(Value::from(accumulated(&whole)), second["output"]);
}

#[test]
fn a_response_ends_as_its_run_did() {
    let ended = |last: Value| {
        let (whole, response) =
            streamed(&id(1, None), &all(&[event(names::USER_MESSAGE, "hi"), said("a"), last]).events);
        (whole.last().unwrap()["type"].as_str().unwrap().to_owned(), response.unwrap())
    };
    let (kind, failed) = ended(with(event(names::ERROR, "gone"), &json!({ "error_code": "AGENT_LOST" })));
    assert_eq!(kind, "response.failed");
    assert_eq!(failed["error"], json!({ "code": "AGENT_LOST", "message": "gone" }));
    assert_eq!((&failed["status"], &failed["output"][0]["status"]), (&json!("failed"), &json!("incomplete")));
    let (kind, cancelled) = ended(event(names::CANCELLED, "stopped"));
    assert_eq!((kind.as_str(), &cancelled["status"]), ("response.incomplete", &json!("cancelled")));
    let (kind, short) =
        ended(with(event(names::FINAL_ANSWER, "a"), &json!({ "finish_reason": "length", "streamed": 1 })));
    assert_eq!((kind.as_str(), &short["status"]), ("response.incomplete", &json!("incomplete")));
    assert_eq!(short["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    let (kind, refused) =
        ended(with(event(names::FINAL_ANSWER, "No."), &json!({ "refusal": true, "streamed": false })));
    assert_eq!(kind, "response.completed");
    assert_eq!(refused["output"][1]["content"], json!([{ "type": "refusal", "refusal": "No." }]));
}

#[test]
fn a_reader_whose_events_are_gone_is_told_so_and_gets_no_numbers_that_are_wrong() {
    let log = all(&[event(names::USER_MESSAGE, "hi"), said("a"), said("b"), said("c")]);
    let next = number(5);
    let extent = Extent { epoch: Log::epoch(), epoch_first: number(1), first: number(3), next };
    let name = ResponseProjector::name(&id(1, None), "demo");
    let mut watch: Watch<ResponseProjector> = Watch::new(&name, number(1), &extent, WatchStart::Index(4), false, None);
    let mut seen = Vec::new();
    loop {
        match watch.poll_output() {
            Some(Output::Outputs(outputs)) => seen.extend(outputs.iter().map(json_of)),
            Some(Output::Over) => break,
            None => watch.handle_events(&log.events[2..]),
        }
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!((&seen[0]["type"], &seen[0]["code"]), (&json!("error"), &json!("REPLAY_GAP")));
}
