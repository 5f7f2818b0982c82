//! The mapping of events to chunks, row by row.

use bowline_core::dialect::ai_sdk::{Assembler, DeltaFold, Importer, Projector};
use bowline_core::dialect::{Fold as _, Projection as _};
use bowline_protocol::Chunk;
use bowline_protocol::event::names;
use serde_json::{Value, json};

use crate::support::log::{Log, event, step_event};

/// The chunks of a turn as `(id, JSON text)`; those that are made up have `-`.
fn shown(chunks: &[Chunk]) -> Vec<(String, String)> {
    let id = |chunk: &Chunk| chunk.at.map_or("-".to_owned(), |place| place.to_string());
    chunks.iter().map(|chunk| (id(chunk), String::from_utf8(chunk.json.to_vec()).unwrap())).collect()
}

/// Projects a turn that begins with a message, and returns what follows its `start` and `start-step`.
fn turn(events: &[Value]) -> Vec<(String, String)> {
    let mut log = Log::default();
    log.push(&event(names::USER_MESSAGE, json!("hi")));
    events.iter().for_each(|event| log.push(event));
    let mut out = Vec::new();
    let mut projector = Projector::new("msg_1");
    log.events.iter().for_each(|event| projector.handle_event(event, &mut out));
    let all = shown(&out);
    assert_eq!(all[0], ("1.1".into(), r#"{"type":"start","messageId":"msg_1"}"#.into()));
    assert_eq!(all[1], ("1.2".into(), r#"{"type":"start-step"}"#.into()));
    all[2..].to_vec()
}

/// Whether the chunks are these, given as `id JSON`.
fn assert_chunks(events: &[Value], expected: &[(&str, &str)]) {
    let expected: Vec<(String, String)> =
        expected.iter().map(|(id, json)| (id.to_string(), json.to_string())).collect();
    assert_eq!(turn(events), expected);
}

fn with(mut event: Value, metadata: Value) -> Value {
    event["metadata"] = metadata;
    event
}

fn partial(delta: &str) -> Value {
    with(event(names::PARTIAL_ANSWER, json!(delta)), json!({"index": 0}))
}

const FINISH_STEP: &str = r#"{"type":"finish-step"}"#;
const FINISH: &str = r#"{"type":"finish"}"#;

#[test]
fn a_whole_thought_begins_and_ends_at_once() {
    assert_chunks(
        &[event(names::THINKING, json!("hm")), event(names::THINKING, json!({"a": 1}))],
        &[
            ("2.1", r#"{"type":"reasoning-start","id":"reasoning-2"}"#),
            ("2.2", r#"{"type":"reasoning-delta","id":"reasoning-2","delta":"hm"}"#),
            ("2.3", r#"{"type":"reasoning-end","id":"reasoning-2"}"#),
            ("3.1", r#"{"type":"reasoning-start","id":"reasoning-3"}"#),
            ("3.2", r#"{"type":"reasoning-delta","id":"reasoning-3","delta":"{\"a\":1}"}"#),
            ("3.3", r#"{"type":"reasoning-end","id":"reasoning-3"}"#),
        ],
    );
}

#[test]
fn streamed_thoughts_extend_one_part_until_something_else_comes() {
    let thought = |text: &str| with(event(names::THINKING, json!(text)), json!({"index": 0}));
    assert_chunks(
        &[thought("a"), thought("b"), event(names::THINKING, json!("whole"))],
        &[
            ("2.1", r#"{"type":"reasoning-start","id":"reasoning-2"}"#),
            ("2.2", r#"{"type":"reasoning-delta","id":"reasoning-2","delta":"a"}"#),
            ("3", r#"{"type":"reasoning-delta","id":"reasoning-2","delta":"b"}"#),
            ("4.1", r#"{"type":"reasoning-end","id":"reasoning-2"}"#),
            ("4.2", r#"{"type":"reasoning-start","id":"reasoning-4"}"#),
            ("4.3", r#"{"type":"reasoning-delta","id":"reasoning-4","delta":"whole"}"#),
            ("4.4", r#"{"type":"reasoning-end","id":"reasoning-4"}"#),
        ],
    );
}

#[test]
fn an_answer_streams_into_one_part_and_the_end_adds_what_is_missing() {
    let answer = with(event(names::FINAL_ANSWER, json!("Hello!")), json!({"duration_ms": 3}));
    assert_chunks(
        &[partial("Hel"), partial("lo"), answer.clone(), partial("late"), answer],
        &[
            ("2.1", r#"{"type":"text-start","id":"text-2"}"#),
            ("2.2", r#"{"type":"text-delta","id":"text-2","delta":"Hel"}"#),
            ("3", r#"{"type":"text-delta","id":"text-2","delta":"lo"}"#),
            ("4.1", r#"{"type":"text-delta","id":"text-2","delta":"!"}"#),
            ("4.2", r#"{"type":"text-end","id":"text-2"}"#),
            ("4.3", FINISH_STEP),
            ("4.4", FINISH),
        ],
    );
}

#[test]
fn an_answer_that_was_not_streamed_comes_whole_with_what_is_known_of_it() {
    let answer = with(event(names::FINAL_ANSWER, json!("Hi")), json!({"model": "m", "usage": {"total": 1}}));
    assert_chunks(
        &[partial("Ho"), answer],
        &[
            ("2.1", r#"{"type":"text-start","id":"text-2"}"#),
            ("2.2", r#"{"type":"text-delta","id":"text-2","delta":"Ho"}"#),
            ("3.1", r#"{"type":"text-end","id":"text-2"}"#),
            ("3.2", r#"{"type":"text-start","id":"text-3"}"#),
            ("3.3", r#"{"type":"text-delta","id":"text-3","delta":"Hi"}"#),
            ("3.4", r#"{"type":"text-end","id":"text-3"}"#),
            ("3.5", FINISH_STEP),
            ("3.6", r#"{"type":"finish","messageMetadata":{"usage":{"total":1},"model":"m"}}"#),
        ],
    );
    assert_chunks(&[event(names::FINAL_ANSWER, json!(""))], &[("2.1", FINISH_STEP), ("2.2", FINISH)]);
}

#[test]
fn a_tool_call_ends_the_text_and_its_result_follows_by_the_step() {
    let call = with(step_event(names::TOOL_CALL, "s1", json!("look")), json!({"tool": "search", "args": {"q": 1}}));
    let data = with(
        step_event(names::TOOL_RESULT, "s1", json!("text")),
        json!({"tool": "search", "status": "success", "data": [1]}),
    );
    let text = with(step_event(names::TOOL_RESULT, "s1", json!("text")), json!({"status": "success"}));
    let failed =
        with(step_event(names::TOOL_RESULT, "s1", json!("text")), json!({"status": "failed", "error": "broken"}));
    let unknown = with(step_event(names::TOOL_RESULT, "s1", json!("cut")), json!({"status": "unknown"}));
    assert_chunks(
        &[partial("x"), call, data, text, failed, unknown],
        &[
            ("2.1", r#"{"type":"text-start","id":"text-2"}"#),
            ("2.2", r#"{"type":"text-delta","id":"text-2","delta":"x"}"#),
            ("3.1", r#"{"type":"text-end","id":"text-2"}"#),
            ("3.2", r#"{"type":"tool-input-available","toolCallId":"s1","toolName":"search","input":{"q":1}}"#),
            ("4", r#"{"type":"tool-output-available","toolCallId":"s1","output":[1]}"#),
            ("5", r#"{"type":"tool-output-available","toolCallId":"s1","output":"text"}"#),
            ("6", r#"{"type":"tool-output-error","toolCallId":"s1","errorText":"broken"}"#),
            ("7", r#"{"type":"tool-output-error","toolCallId":"s1","errorText":"cut"}"#),
        ],
    );
}

#[test]
fn a_result_without_its_call_gets_an_input_made_up() {
    let result = with(step_event(names::TOOL_RESULT, "s1", json!("t")), json!({"tool": "search"}));
    assert_chunks(
        &[result],
        &[
            ("-", r#"{"type":"tool-input-available","toolCallId":"s1","toolName":"search","input":{}}"#),
            ("2", r#"{"type":"tool-output-available","toolCallId":"s1","output":"t"}"#),
        ],
    );
}

#[test]
fn an_operation_answers_its_call_or_brings_one() {
    let content = json!({"operation_id": "op", "tool_name": "crawl", "type": "operation_started"});
    let output = r#"{"operation_id":"op","tool_name":"crawl","type":"operation_started"}"#;
    let call = with(step_event(names::TOOL_CALL, "s1", json!("")), json!({"tool": "crawl"}));
    let done = event(names::OPERATION_COMPLETED, json!({"operation_id": "op", "status": "completed"}));
    assert_chunks(
        &[
            call,
            step_event(names::OPERATION_STARTED, "s1", content.clone()),
            event(names::OPERATION_STARTED, content),
            done,
        ],
        &[
            ("2", r#"{"type":"tool-input-available","toolCallId":"s1","toolName":"crawl","input":{}}"#),
            ("3", &format!(r#"{{"type":"tool-output-available","toolCallId":"s1","output":{output}}}"#)),
            ("4.1", r#"{"type":"tool-input-available","toolCallId":"op","toolName":"crawl","input":{}}"#),
            ("4.2", &format!(r#"{{"type":"tool-output-available","toolCallId":"op","output":{output}}}"#)),
            (
                "5",
                r#"{"type":"data-operation","data":{"event":"agent.operation_completed","content":{"operation_id":"op","status":"completed"}}}"#,
            ),
        ],
    );
}

#[test]
fn what_has_no_row_of_its_own_is_data() {
    let confirm = with(step_event(names::USER_CONFIRM, "s1", json!("Sure?")), json!({"scope": "plan"}));
    assert_chunks(
        &[
            event(names::PLAN_START, json!({"question": "q"})),
            event(names::SOLVER_START, json!({"task": {"id": "t1"}})),
            event(names::SOLVER_PROGRESS, json!({"task_id": "t1"})),
            event(names::SOLVER_CANCELLED, json!({"task": 7})),
            event(names::AGGREGATE_START, json!(1)),
            event(names::PIPELINE_COMPLETED, json!(null)),
            confirm,
            step_event(names::USER_RESPONSE, "s1", json!({"confirmed": true})),
            event("agent.mood", json!("good")),
            event("task.tick", json!(1)),
            event(names::SESSION_END, json!("over")),
            event(names::USER_MESSAGE, json!("next")),
        ],
        &[
            ("2", r#"{"type":"data-plan","data":{"event":"plan.start","content":{"question":"q"}}}"#),
            (
                "3",
                r#"{"type":"data-solver","id":"solver-t1","data":{"event":"solver.start","content":{"task":{"id":"t1"}}}}"#,
            ),
            (
                "4",
                r#"{"type":"data-solver","id":"solver-t1","data":{"event":"solver.progress","content":{"task_id":"t1"}}}"#,
            ),
            ("5", r#"{"type":"data-solver","id":"solver-7","data":{"event":"solver.cancelled","content":{"task":7}}}"#),
            ("6", r#"{"type":"data-aggregate","data":{"event":"aggregate.start","content":1}}"#),
            ("7", r#"{"type":"data-pipeline","data":{"event":"pipeline.completed","content":null}}"#),
            (
                "8",
                r#"{"type":"data-user_confirm","data":{"event":"agent.user_confirm","step_id":"s1","content":"Sure?","metadata":{"scope":"plan"}}}"#,
            ),
            (
                "9",
                r#"{"type":"data-user_response","data":{"event":"user.response","step_id":"s1","content":{"confirmed":true}}}"#,
            ),
            ("10", r#"{"type":"data-mood","data":{"event":"agent.mood","content":"good"}}"#),
            ("11", r#"{"type":"data-task","data":{"event":"task.tick","content":1}}"#),
        ],
    );
}

#[test]
fn a_cancelled_run_aborts_and_a_failed_one_says_why() {
    assert_chunks(
        &[partial("x"), event(names::CANCELLED, json!("stopped")), event(names::ERROR, json!("late"))],
        &[
            ("2.1", r#"{"type":"text-start","id":"text-2"}"#),
            ("2.2", r#"{"type":"text-delta","id":"text-2","delta":"x"}"#),
            ("3.1", r#"{"type":"text-end","id":"text-2"}"#),
            ("3.2", r#"{"type":"abort"}"#),
        ],
    );
    assert_chunks(
        &[event(names::ERROR, json!("It broke."))],
        &[("2.1", r#"{"type":"error","errorText":"It broke."}"#), ("2.2", FINISH)],
    );
}

#[test]
fn an_upstreams_chunks_are_sent_as_written_and_followed() {
    let chunk = |json: Value| event(names::CHUNK, json);
    let named = |delta: &str| with(event(names::PARTIAL_ANSWER, json!(delta)), json!({"index": 0, "part": "p"}));
    let odd = json!({"delta": "c", "id": "p", "type": "text-delta"});
    let kept = with(event(names::PARTIAL_ANSWER, json!("c")), json!({"part": "p", "chunk": odd}));
    let finish = json!({"finishReason": "stop", "type": "finish"});
    assert_chunks(
        &[
            partial("own"),
            chunk(json!({"id": "p", "providerMetadata": {"x": {}}, "type": "text-start"})),
            named("a"),
            chunk(json!({"data": 1, "type": "data-x"})),
            named("b"),
            kept,
            chunk(json!({"id": "p", "type": "text-end"})),
            chunk(json!({"id": "p", "type": "text-end"})),
            chunk(json!({"type": "finish-step"})),
            chunk(json!({"type": "no-such-thing"})),
            with(event(names::FINAL_ANSWER, json!("ownabc")), json!({"finish": finish})),
        ],
        &[
            ("2.1", r#"{"type":"text-start","id":"text-2"}"#),
            ("2.2", r#"{"type":"text-delta","id":"text-2","delta":"own"}"#),
            ("3.1", r#"{"type":"text-end","id":"text-2"}"#),
            ("3.2", r#"{"id":"p","providerMetadata":{"x":{}},"type":"text-start"}"#),
            ("4", r#"{"type":"text-delta","id":"p","delta":"a"}"#),
            ("5", r#"{"data":1,"type":"data-x"}"#),
            ("6", r#"{"type":"text-delta","id":"p","delta":"b"}"#),
            ("7", r#"{"delta":"c","id":"p","type":"text-delta"}"#),
            ("8", r#"{"id":"p","type":"text-end"}"#),
            // The end of what is not open would be refused by every parser.
            ("10", r#"{"type":"finish-step"}"#),
            ("11", r#"{"type":"data-chunk","data":{"event":"agent.chunk","content":{"type":"no-such-thing"}}}"#),
            ("12", r#"{"finishReason":"stop","type":"finish"}"#),
        ],
    );
}

#[test]
fn a_task_begins_with_whatever_comes_first() {
    let mut log = Log::default();
    log.push(&event(names::SOLVER_START, json!({"task": "t"})));
    let (mut projector, mut out) = (Projector::new("m"), Vec::new());
    projector.handle_event(&log.events[0], &mut out);
    let ids: Vec<String> = shown(&out).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["1.1", "1.2", "1.3"]);
}

#[test]
fn a_fresh_parser_is_framed_with_what_is_open_in_the_order_it_was_opened() {
    let mut log = Log::default();
    let chunk = |json: Value| event(names::CHUNK, json);
    log.push(&event(names::USER_MESSAGE, json!("hi")));
    log.push(&chunk(json!({"id": "p", "type": "text-start"})));
    log.push(&with(step_event(names::TOOL_CALL, "done", json!("")), json!({"tool": "t"})));
    log.push(&step_event(names::TOOL_RESULT, "done", json!("r")));
    log.push(&with(step_event(names::TOOL_CALL, "s1", json!("")), json!({"tool": "t"})));
    log.push(&chunk(json!({"toolCallId": "c2", "toolName": "t", "type": "tool-input-start"})));
    log.push(&chunk(json!({"inputTextDelta": "{\"a", "toolCallId": "c2", "type": "tool-input-delta"})));
    log.push(&chunk(json!({"inputTextDelta": "\":1", "toolCallId": "c2", "type": "tool-input-delta"})));
    log.push(&partial("x"));
    let mut projector = Projector::new("m");
    let mut out = Vec::new();
    projector.framing(&mut out);
    assert!(out.is_empty(), "before the first event there is nothing to frame");
    log.events.iter().for_each(|event| projector.pass_event(event));
    projector.framing(&mut out);
    let expected = [
        r#"{"type":"start","messageId":"m"}"#,
        r#"{"type":"start-step"}"#,
        r#"{"id":"p","type":"text-start"}"#,
        r#"{"type":"tool-input-available","toolCallId":"s1","toolName":"t","input":{}}"#,
        r#"{"toolCallId":"c2","toolName":"t","type":"tool-input-start"}"#,
        r#"{"type":"tool-input-delta","toolCallId":"c2","inputTextDelta":"{\"a\":1"}"#,
        r#"{"type":"text-start","id":"text-9"}"#,
    ];
    let expected: Vec<_> = expected.iter().map(|json| ("-".to_owned(), json.to_string())).collect();
    assert_eq!(shown(&out), expected);

    // A result of a call that was over before this parser began needs its input first.
    out.clear();
    log.push(&with(step_event(names::TOOL_RESULT, "done", json!("again")), json!({"tool": "t"})));
    projector.handle_event(&log.events[9], &mut out);
    let ids: Vec<String> = shown(&out).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["10.1", "-", "10.2"], "the end of the text, the made-up input, the result");
}

#[test]
fn a_cursor_between_the_chunks_of_one_event_is_framed_for_that_very_point() {
    let mut log = Log::default();
    log.push(&event(names::USER_MESSAGE, json!("hi")));
    log.push(&partial("x"));
    log.push(&with(step_event(names::TOOL_CALL, "s1", json!("")), json!({"tool": "t"})));
    let rest = |has: u32, framed: bool| {
        let (mut projector, mut out) = (Projector::new("m"), Vec::new());
        log.events[..2].iter().for_each(|event| projector.pass_event(event));
        projector.split_event(&log.events[2], has, framed, &mut out);
        shown(&out)
    };
    let call =
        ("3.2".to_owned(), r#"{"type":"tool-input-available","toolCallId":"s1","toolName":"t","input":{}}"#.to_owned());
    assert_eq!(rest(1, false), std::slice::from_ref(&call));
    assert_eq!(rest(2, false), []);
    let framed = rest(1, true);
    assert_eq!(framed.len(), 3, "start, start-step, and no text: its end was the chunk before");
    assert_eq!(framed[2], call);
}

#[test]
fn after_a_gap_the_stream_is_framed_anew_and_only_whole_events_are_places() {
    let mut log = Log::default();
    log.push(&event(names::USER_MESSAGE, json!("hi")));
    log.push(&partial("before"));
    log.push(&partial("lost"));
    log.push(&partial("after"));
    log.push(&step_event(names::TOOL_RESULT, "s1", json!("r")));
    log.push(&event(names::FINAL_ANSWER, json!("before lost after")));
    let (mut projector, mut out) = (Projector::new("m"), Vec::new());
    log.events[..2].iter().for_each(|event| projector.handle_event(event, &mut out));
    out.clear();
    projector.lose();
    log.events[3..].iter().for_each(|event| projector.handle_event(event, &mut out));
    let expected = [
        ("-", r#"{"type":"text-end","id":"text-2"}"#),
        ("-", r#"{"type":"start","messageId":"m"}"#),
        ("-", r#"{"type":"start-step"}"#),
        ("-", r#"{"type":"text-start","id":"text-4"}"#),
        ("4", r#"{"type":"text-delta","id":"text-4","delta":"after"}"#),
        ("-", r#"{"type":"text-end","id":"text-4"}"#),
        ("-", r#"{"type":"tool-input-available","toolCallId":"s1","toolName":"unknown","input":{}}"#),
        ("5", r#"{"type":"tool-output-available","toolCallId":"s1","output":"r"}"#),
        ("-", r#"{"type":"text-start","id":"text-6"}"#),
        ("-", r#"{"type":"text-delta","id":"text-6","delta":"before lost after"}"#),
        ("-", r#"{"type":"text-end","id":"text-6"}"#),
        ("-", FINISH_STEP),
        ("6", FINISH),
    ];
    let expected: Vec<_> = expected.iter().map(|(id, json)| (id.to_string(), json.to_string())).collect();
    assert_eq!(shown(&out), expected);
    assert!(projector.is_over());
}

#[test]
fn a_gap_in_an_input_leaves_the_call_its_name() {
    let mut log = Log::default();
    log.push(&event(names::USER_MESSAGE, "hi"));
    log.push(&event(names::CHUNK, json!({"type": "tool-input-start", "toolCallId": "c", "toolName": "t"})));
    let lost = json!({"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": "lost"});
    log.push(&event(names::CHUNK, lost.clone()));
    log.push(&event(names::CHUNK, lost));
    let output = json!({"type": "tool-output-available", "toolCallId": "c", "output": 1, "preliminary": true});
    log.push(&with(event(names::CHUNK, output), json!({"tool": "t"})));
    let kinds = |projector: &mut Projector| -> Vec<String> {
        let mut out = Vec::new();
        log.events[3..].iter().for_each(|event| projector.handle_event(event, &mut out));
        shown(&out).into_iter().map(|(_, json)| json).collect()
    };
    let mut same = Projector::new("m");
    log.events[..2].iter().for_each(|event| same.pass_event(event));
    same.lose();
    let output = r#"{"output":1,"preliminary":true,"toolCallId":"c","type":"tool-output-available"}"#;
    assert_eq!(kinds(&mut same)[2..], [output], "its parser has the call, and more of the input would be garbage");
    let mut fresh = Projector::new("m");
    fresh.lose();
    let input = r#"{"type":"tool-input-available","toolCallId":"c","toolName":"t","input":{}}"#;
    assert_eq!(kinds(&mut fresh)[2..], [input, output]);
}

#[test]
fn the_answer_to_a_question_is_one_for_every_reader() {
    let mut log = Log::default();
    let chunk = |json: Value| event(names::CHUNK, json);
    log.push(&event(names::USER_MESSAGE, "hi"));
    log.push(&with(step_event(names::TOOL_CALL, "s1", ""), json!({"tool": "t"})));
    log.push(&chunk(json!({"type": "tool-approval-request", "toolCallId": "s1", "approvalId": "q"})));
    log.push(&with(step_event(names::TOOL_RESULT, "s1", "r"), json!({"tool": "t"})));
    log.push(&partial("x"));
    log.push(&with(
        chunk(json!({"type": "tool-approval-response", "approvalId": "q", "approved": true})),
        json!({"tool": "t"}),
    ));
    let answered = |framed: bool| {
        let (mut projector, mut out) = (Projector::new("m"), Vec::new());
        log.events[..5].iter().for_each(|event| projector.pass_event(event));
        if framed {
            projector.framing(&mut Vec::new());
        }
        projector.handle_event(&log.events[5], &mut out);
        shown(&out)
    };
    let end = ("6.1".to_owned(), r#"{"type":"text-end","id":"text-5"}"#.to_owned());
    let answer = ("6.2".to_owned(), r#"{"approvalId":"q","approved":true,"type":"tool-approval-response"}"#.to_owned());
    assert_eq!(answered(false), [end.clone(), answer.clone()]);
    let made_up = [
        r#"{"type":"tool-input-available","toolCallId":"s1","toolName":"t","input":{}}"#,
        r#"{"approvalId":"q","toolCallId":"s1","type":"tool-approval-request"}"#,
    ];
    let made_up = made_up.map(|json| ("-".to_owned(), json.to_owned()));
    assert_eq!(answered(true), [&[end], &made_up[..], &[answer]].concat());
}

#[test]
fn a_debug_line_shows_nothing_of_what_was_said() {
    let mut log = Log::default();
    log.push(&event(names::USER_MESSAGE, "marker"));
    let tagged = json!({"type": "text-start", "id": "p", "providerMetadata": {"x": {"y": "marker"}}});
    log.push(&event(names::CHUNK, tagged));
    log.push(&with(event(names::PARTIAL_ANSWER, "marker"), json!({"part": "p"})));
    log.push(&with(step_event(names::TOOL_CALL, "s1", "marker"), json!({"tool": "t", "args": "marker"})));
    log.push(&event(names::CHUNK, json!({"type": "tool-input-start", "toolCallId": "c", "toolName": "t"})));
    log.push(&event(names::CHUNK, json!({"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": "marker"})));
    let (mut projector, mut fold, mut assembler) = (Projector::new("m"), DeltaFold::default(), Assembler::new());
    let (mut importer, mut out) = (Importer::new(), Vec::new());
    for event in &log.events {
        projector.handle_event(event, &mut out);
        importer.follow(event);
    }
    out.iter().for_each(|chunk| assembler.handle_chunk(chunk));
    out.drain(..).for_each(|chunk| fold.push(chunk, &mut Vec::new()));
    let shown = format!("{projector:?} {fold:?} {assembler:?} {importer:?} {log:?}", log = log.events);
    assert!(!shown.contains("marker"), "{shown}");
}
