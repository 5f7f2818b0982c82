//! The real AI SDK, in three generations, reads our streams: it takes every chunk, and builds the message that we expect.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bowline_core::dialect::ai_sdk::{Imported, Importer};
use bowline_protocol::chunk::DONE;
use bowline_protocol::event::names;
use bowline_protocol::{Chunk, ChunkPosition, Draft, Seq};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

use crate::support::log::{Log, event};
use crate::support::readers::{MESSAGE_ID, assembled, folded, gapped, late, late_untold, resumed, uncut};
use crate::support::story::{story, value};

const GENERATIONS: [&str; 3] = ["ai5", "ai6", "ai7"];

/// A stream for the judges.
struct Case {
    name: String,
    chunks: Vec<Chunk>,
}

impl Case {
    fn new(name: impl Into<String>, chunks: Vec<Chunk>) -> Case {
        Case { name: name.into(), chunks }
    }

    /// The bytes that a server would send.
    fn sse(&self) -> String {
        let mut out = Vec::new();
        for chunk in &self.chunks {
            chunk.encode(&Log::epoch(), &mut out);
            // What keeps a quiet stream alive must not disturb either.
            out.extend_from_slice(b": \n\n");
        }
        out.extend_from_slice(DONE);
        String::from_utf8(out).unwrap()
    }

    /// The text of the `error` chunk, if there is one.
    fn error(&self) -> Option<String> {
        let values = self.chunks.iter().map(|chunk| serde_json::from_slice::<Value>(&chunk.json).unwrap_or_default());
        let mut errors = values.filter(|value| value["type"] == "error");
        errors.next().map(|value| value["errorText"].as_str().unwrap().to_owned())
    }
}

fn judges() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../judges/parsers")
}

/// What each generation made of each case, by the name of the case.
fn judge(cases: &[Case]) -> BTreeMap<String, Value> {
    let judges = judges();
    for generation in GENERATIONS {
        let installed = judges.join("node_modules").join(generation).join("package.json");
        assert!(installed.is_file(), "The AI SDK is not installed. Run `npm ci` in judges/parsers, then test again.");
    }
    let names: std::collections::BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len(), "each case has a name of its own");
    let lines = cases.iter().map(|case| json!({ "name": case.name, "message_id": MESSAGE_ID, "sse": case.sse() }));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("streams-{}.jsonl", RandomState::new().hash_one(0)));
    fs::write(&path, text).unwrap();
    let mut node = Command::new("node");
    node.arg("read.mjs").current_dir(&judges).stdin(File::open(&path).unwrap());
    let output = node.stderr(Stdio::inherit()).output().expect("Node.js 20 or later must be installed");
    fs::remove_file(&path).unwrap();
    assert!(output.status.success(), "the judges failed");
    let verdicts: BTreeMap<String, Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|verdict| (verdict["name"].as_str().unwrap().to_owned(), verdict["results"].clone()))
        .collect();
    assert_eq!(verdicts.len(), cases.len(), "every case was judged");
    verdicts
}

/// The message that we expect of a generation: the newest one's, but for what older ones do otherwise.
fn expected(parts: Vec<Value>, generation: &str) -> Vec<Value> {
    let mut expected: Vec<Value> = Vec::new();
    for part in parts.into_iter().map(|part| with_doubles(as_built_by(generation, part))) {
        // One generation looks for a call in all steps, and changes it where it is.
        let call = part.get("toolCallId").filter(|_| generation == "ai6");
        match call.and_then(|id| expected.iter_mut().find(|known| known.get("toolCallId") == Some(id))) {
            Some(known) => {
                let kind = known["type"].take();
                *known = part;
                known["type"] = kind;
            }
            None => expected.push(part),
        }
    }
    expected
}

fn as_built_by(generation: &str, mut part: Value) -> Value {
    let is_static = part["type"].as_str().is_some_and(|kind| kind.starts_with("tool-"));
    let fields = part.as_object_mut().unwrap();
    let is_streaming = fields.get("state").is_some_and(|state| state == "input-streaming");
    if generation == "ai6" {
        if fields["type"] == "reasoning" {
            fields.remove("id");
        }
        // It keeps the text of an input only if it was refused.
        if fields.get("errorText").is_none_or(|text| text != "bad") {
            fields.remove("rawInput");
        }
    }
    if generation != "ai7" {
        // They complete the beginning of an input a little differently.
        if is_streaming {
            fields.remove("input");
        }
        // A refused input, they keep under another name.
        let refused = fields.get("errorText").is_some_and(|text| text == "bad");
        if refused
            && is_static
            && let Some(input) = fields.remove("input")
        {
            fields.insert("rawInput".into(), input);
        }
    }
    part
}

/// JavaScript has one kind of number.
fn with_doubles(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::from(number.as_f64()),
        Value::Array(items) => items.into_iter().map(with_doubles).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, with_doubles(value))).collect(),
        other => other,
    }
}

/// Drops what `expected` cannot tell of a generation.
fn comparable(parts: &Value, generation: &str) -> Vec<Value> {
    let mut parts: Vec<Value> = parts.as_array().unwrap().iter().cloned().map(with_doubles).collect();
    for part in parts.iter_mut().filter(|_| generation != "ai7") {
        if part["state"] == "input-streaming" {
            part.as_object_mut().unwrap().remove("input");
        }
    }
    parts
}

/// Every generation takes every chunk, and has our message, in the parser and in the page.
fn assert_accepted(case: &Case, verdict: &Value) {
    let assembled = assembled(&case.chunks);
    for generation in GENERATIONS {
        let result = &verdict[generation];
        let context = || format!("{generation} on {}:\n{}\n{result}", case.name, case.sse());
        let errors: Vec<String> = case.error().into_iter().collect();
        assert_eq!(result["errors"], json!(errors), "{}", context());
        assert_eq!(result["chunks"], case.chunks.len(), "{}", context());
        let parts = expected(assembled.parts(), generation);
        assert_eq!(comparable(&result["message"]["parts"], generation), parts, "{}", context());
        assert_eq!(result["message"]["id"], MESSAGE_ID);
        assert_eq!(result["message"].get("metadata"), assembled.metadata(), "{}", context());
        let chat = &result["chat"];
        let status = if errors.is_empty() { "ready" } else { "error" };
        assert_eq!(chat["status"], status, "{}", context());
        assert_eq!(chat.get("error").and_then(Value::as_str), errors.first().map(String::as_str), "{}", context());
        assert_eq!(comparable(&chat["message"]["parts"], generation), parts, "{}", context());
        assert_eq!(chat["message"]["id"], MESSAGE_ID, "{}", context());
    }
}

/// All generations build the very same message of two streams.
fn assert_same(one: &Value, other: &Value, what: &str) {
    for generation in GENERATIONS {
        let message = |verdict: &Value| verdict[generation]["message"].to_string();
        assert_eq!(message(one), message(other), "{generation} on {what}");
    }
}

/// So many of something, from a seed that is printed; `BOWLINE_TEST_SEED` repeats them.
fn drawn<S: Strategy>(strategy: S, count: usize) -> Vec<S::Value> {
    let seed = std::env::var("BOWLINE_TEST_SEED").ok().and_then(|text| u64::from_str_radix(&text, 16).ok());
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one("seed"));
    println!("BOWLINE_TEST_SEED={seed:x}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

#[test]
#[ignore = "needs Node.js"]
fn the_real_sdk_builds_the_same_message_whatever_happens_to_the_stream() {
    // `BOWLINE_TEST_STORIES` asks for more of them.
    let count = std::env::var("BOWLINE_TEST_STORIES").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let stories = drawn(story(), count);
    let mut cases = Vec::new();
    for (n, story) in stories.iter().enumerate() {
        let events = &story.log.events;
        let chunks = uncut(events);
        let stops: Vec<usize> = (0..chunks.len()).filter(|at| chunks[*at].at.is_some()).collect();
        // Each story is cut somewhere else.
        let at = stops[n * 7919 % stops.len()];
        let cursor = chunks[at].at.unwrap();
        let lost = n * 104_729 % events.len();
        let returned = [&chunks[..=at], &resumed(events, cursor, false)].concat();
        let framed = resumed(events, cursor, true);
        cases.push(Case::new(format!("{n} uncut"), chunks.clone()));
        cases.push(Case::new(format!("{n} folded"), folded(&chunks)));
        cases.push(Case::new(format!("{n} returned"), returned));
        if !framed.is_empty() {
            cases.push(Case::new(format!("{n} framed"), framed.clone()));
            cases.push(Case::new(format!("{n} framed and folded"), folded(&framed)));
        }
        cases.push(Case::new(format!("{n} late"), late(events, lost)));
        cases.push(Case::new(format!("{n} gapped"), gapped(events, lost..events.len().min(lost + 3))));
        if lost < events.len() {
            cases.push(Case::new(format!("{n} untold"), late_untold(events, lost)));
        }
    }
    cases.retain(|case| !case.chunks.is_empty());
    let verdicts = judge(&cases);
    cases.iter().for_each(|case| assert_accepted(case, &verdicts[&case.name]));
    for n in 0..stories.len() {
        let uncut = &verdicts[&format!("{n} uncut")];
        assert_same(uncut, &verdicts[&format!("{n} folded")], "folding");
        assert_same(uncut, &verdicts[&format!("{n} returned")], "a cursor");
        if let Some(framed) = verdicts.get(&format!("{n} framed")) {
            assert_same(framed, &verdicts[&format!("{n} framed and folded")], "folding what is framed");
        }
    }
}

#[test]
#[ignore = "needs Node.js"]
fn halves_of_characters_find_each_other_in_every_generation() {
    let mut log = Log::default();
    log.push(&event(names::USER_MESSAGE, "hi"));
    let mut importer = Importer::new();
    for chunk in [
        r#"{"type":"text-start","id":"0"}"#,
        r#"{"type":"text-delta","id":"0","delta":"a\ud83d"}"#,
        r#"{"type":"text-delta","id":"0","delta":"\ude00b"}"#,
    ] {
        let Ok(Imported::Event(draft)) = importer.handle_chunk(chunk) else { panic!() };
        log.push_draft(&draft);
    }
    log.push(&event(names::FINAL_ANSWER, "a😀b"));
    let chunks = uncut(&log.events);
    let cases = [Case::new("uncut", chunks.clone()), Case::new("folded", folded(&chunks))];
    let verdicts = judge(&cases);
    cases.iter().for_each(|case| assert_accepted(case, &verdicts[&case.name]));
    let parts = verdicts["uncut"]["ai5"]["message"]["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 2, "the whole answer was streamed, so it is not said again");
    assert_eq!(parts[1]["text"], "a😀b");
    assert!(cases[1].chunks.len() < cases[0].chunks.len());
}

#[test]
#[ignore = "needs Node.js"]
fn a_name_that_the_sdk_refuses_does_not_end_the_stream() {
    let mut log = Log::default();
    log.push(&event(names::USER_MESSAGE, "hi"));
    let nasty = json!({ "__proto__": { "x": 1 }, "a": [{ "constructor": { "prototype": 1 } }] });
    log.push(&event(names::PLAN_START, nasty.clone()));
    log.push(&json!({
        "event": names::TOOL_CALL, "step_id": "s", "content": "", "metadata": { "tool": "t", "args": nasty }
    }));
    log.push(&json!({
        "event": names::TOOL_RESULT, "step_id": "s", "content": "", "metadata": { "tool": "t", "data": nasty }
    }));
    let chunk = json!({ "type": "data-x", "data": nasty });
    let Ok(Imported::Event(draft)) = Importer::new().handle_chunk(&chunk.to_string()) else { panic!() };
    log.push_draft(&draft);
    log.push_draft(&Draft::new(names::FINAL_ANSWER, "ok").metadata(&json!({ "usage": nasty })));
    let case = Case::new("nasty", uncut(&log.events));
    let verdicts = judge(std::slice::from_ref(&case));
    assert_accepted(&case, &verdicts["nasty"]);
}

#[test]
#[ignore = "needs Node.js"]
fn the_beginning_of_an_input_is_read_as_the_newest_generation_reads_it() {
    let mut texts = drawn("[\\[\\]{}\",:0-9a-fnrtu.eE\\\\ -]{0,12}", 400);
    // Also beginnings of what is JSON as a whole.
    for (n, value) in drawn(value(), 200).into_iter().enumerate() {
        let text = json!({ "a": value, "b": [value, "\\\"é"] }).to_string();
        let end = (0..=n * 31 % (text.len() + 1)).rev().find(|end| text.is_char_boundary(*end)).unwrap();
        texts.push(text[..end].to_owned());
    }
    let mut chunks = vec![Chunk::start(MESSAGE_ID)];
    for (n, text) in texts.iter().enumerate() {
        let start = json!({ "type": "tool-input-start", "toolCallId": n.to_string(), "toolName": "t" });
        let delta = json!({ "type": "tool-input-delta", "toolCallId": n.to_string(), "inputTextDelta": text });
        chunks.extend([start, delta].iter().map(|chunk| Chunk::verbatim(&chunk.to_string())));
    }
    let case = Case::new("inputs", chunks);
    let result = &judge(std::slice::from_ref(&case))["inputs"]["ai7"];
    assert_eq!(result["errors"], json!([]));
    let ours = assembled(&case.chunks).parts().into_iter().map(with_doubles);
    assert_eq!(comparable(&result["message"]["parts"], "ai7"), ours.collect::<Vec<_>>());
}

#[test]
#[ignore = "needs Node.js"]
fn what_only_the_newest_generation_knows_is_assembled_as_it_does() {
    let chunks = [
        r#"{"type":"start","messageId":"msg_1","messageMetadata":{"a":{"b":1},"l":[1]}}"#,
        r#"{"type":"start-step"}"#,
        r#"{"type":"tool-input-start","toolCallId":"a","toolName":"t","title":"T","toolMetadata":{"k":1},"inputEncoding":"text"}"#,
        r#"{"type":"tool-input-delta","toolCallId":"a","inputTextDelta":"{\"x"}"#,
        r#"{"type":"tool-input-start","toolCallId":"b","toolName":"t","dynamic":true,"providerExecuted":true}"#,
        r#"{"type":"tool-input-delta","toolCallId":"b","inputTextDelta":"{\"x\":[1,"}"#,
        r#"{"type":"tool-output-error","toolCallId":"b","errorText":"e","dynamic":true,"providerMetadata":{"p":{"r":1}}}"#,
        r#"{"type":"tool-input-start","toolCallId":"c","toolName":"t"}"#,
        r#"{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":"{\"x\":tr"}"#,
        r#"{"type":"tool-output-error","toolCallId":"c","errorText":"e"}"#,
        r#"{"type":"tool-input-available","toolCallId":"d","toolName":"t","input":1,"title":"D","providerMetadata":{"p":{"c":1}}}"#,
        r#"{"type":"tool-approval-request","toolCallId":"d","approvalId":"q","reason":"why","isAutomatic":true,"signature":"s"}"#,
        r#"{"type":"tool-approval-response","approvalId":"q","approved":true,"reason":"because","providerExecuted":true}"#,
        r#"{"type":"tool-input-available","toolCallId":"e","toolName":"t","input":2}"#,
        r#"{"type":"tool-approval-request","toolCallId":"e","approvalId":"r","inputSchemaInput":null}"#,
        r#"{"type":"tool-output-denied","toolCallId":"e"}"#,
        r#"{"type":"custom","kind":"x.y","providerMetadata":{"p":{}}}"#,
        r#"{"type":"file","url":"u","mediaType":"m","providerMetadata":{"p":{}}}"#,
        r#"{"type":"reasoning-file","url":"u","mediaType":"m"}"#,
        r#"{"type":"source-document","sourceId":"s","mediaType":"m","title":"t","filename":"f"}"#,
        r#"{"type":"steering-message","id":"s","parts":[{"type":"text","text":"left"}]}"#,
        r#"{"type":"text-start","id":"1"}"#,
        r#"{"type":"text-delta","id":"1","delta":"cited"}"#,
        r#"{"type":"text-end","id":"1","citations":[]}"#,
        r#"{"type":"finish-step"}"#,
        r#"{"type":"start-step"}"#,
        r#"{"type":"text-start","id":"2"}"#,
        r#"{"type":"text-delta","id":"2","delta":"taken back"}"#,
        r#"{"type":"data-x","id":"1","data":"taken back"}"#,
        r#"{"type":"tool-input-start","toolCallId":"f","toolName":"t"}"#,
        r#"{"type":"reset-step"}"#,
        r#"{"type":"data-x","id":"1","data":1}"#,
        r#"{"type":"tool-output-available","toolCallId":"c","output":"late"}"#,
        r#"{"type":"message-metadata","messageMetadata":{"a":{"c":2},"l":[2],"n":null}}"#,
        r#"{"type":"finish","finishReason":"interrupted"}"#,
    ];
    let case = Case::new("new", chunks.iter().map(|chunk| Chunk::verbatim(chunk)).collect());
    let result = &judge(std::slice::from_ref(&case))["new"]["ai7"];
    assert_eq!(result["errors"], json!([]));
    let assembled = assembled(&case.chunks);
    assert_eq!(result["message"]["parts"], Value::Array(assembled.parts()));
    assert_eq!(result["message"].get("metadata"), assembled.metadata());
}

#[test]
#[ignore = "needs Node.js"]
fn an_operation_is_read_to_its_output_by_every_generation() {
    let call = json!({
        "event": names::TOOL_CALL, "step_id": "op_1", "content": "Calls render.",
        "metadata": { "tool": "render", "args": { "n": 1 }, "status": "running" }
    });
    let answer = |facts: Value| json!({ "event": names::TOOL_RESULT, "step_id": "op_1", "content": "out of paint", "metadata": facts });
    let done = answer(json!({ "tool": "render", "status": "success", "data": { "frames": 24 } }));
    let nothing = json!({ "type": "tool-output-available", "toolCallId": "op_1", "output": null });
    let nothing = answer(json!({ "tool": "render", "status": "success", "chunk": nothing }));
    let failed = answer(json!({ "tool": "render", "status": "failed", "error": "out of paint" }));
    let progress = event("agent.progress", json!({ "progress_percent": 50 }));
    let (end, error, cancelled) =
        (event(names::FINAL_ANSWER, ""), event(names::ERROR, "out of paint"), event(names::CANCELLED, "stopped"));
    let logged = |events: &[&Value]| {
        let mut log = Log::default();
        events.iter().for_each(|event| log.push(event));
        log
    };
    let agents = |name: &str, last: &[&Value]| {
        let log = logged(&[&[&call, &progress], last].concat());
        [Case::new(format!("agent, {name}"), uncut(&log.events))]
    };
    let producers = |name: &str, last: &[&Value]| {
        let (mut log, mut importer) = (Log::default(), Importer::producer(MESSAGE_ID));
        for chunk in [r#"{"type":"text-start","id":"t"}"#, r#"{"type":"text-delta","id":"t","delta":"x"}"#] {
            importer.opening(chunk).into_iter().for_each(|draft| log.push_draft(&draft));
            let Ok(Imported::Event(draft)) = importer.handle_chunk(chunk) else { panic!() };
            log.push_draft(&draft);
        }
        [&call].into_iter().chain(last.iter().copied()).for_each(|event| log.push(event));
        let cut = Seq::new(2).map(|seq| ChunkPosition { seq, part: None }).unwrap();
        [
            Case::new(format!("producer, {name}"), uncut(&log.events)),
            Case::new(format!("producer, {name}, framed"), resumed(&log.events, cut, true)),
        ]
    };
    let ends: [(&str, &[&Value], Value); 4] = [
        ("done", &[&done, &end], json!({ "frames": 24.0 })),
        ("done without a result", &[&nothing, &end], Value::Null),
        ("failed", &[&failed, &error], json!("out of paint")),
        ("cancelled", &[&failed, &cancelled], json!("out of paint")),
    ];
    let mut cases = Vec::new();
    ends.iter().for_each(|(name, last, _)| cases.extend(agents(name, last)));
    ends.iter().for_each(|(name, last, _)| cases.extend(producers(name, last)));
    let verdicts = judge(&cases);
    for case in &cases {
        assert_accepted(case, &verdicts[&case.name]);
        let (_, _, told) = ends.iter().rfind(|(name, ..)| case.name.contains(&format!(", {name}"))).unwrap();
        for generation in GENERATIONS {
            let parts = verdicts[&case.name][generation]["message"]["parts"].as_array().unwrap();
            let part = parts.iter().find(|part| part["type"] == "tool-render").unwrap();
            let told = with_doubles(told.clone());
            let is = with_doubles(if told.is_string() { part["errorText"].clone() } else { part["output"].clone() });
            let state = if told.is_string() { "output-error" } else { "output-available" };
            assert_eq!((&part["state"], is), (&json!(state), told), "{generation} on {}", case.name);
            let steps = parts.iter().filter(|part| part["type"] == "step-start").count();
            assert_eq!(steps, usize::from(case.name.starts_with("agent")), "{generation} on {}", case.name);
        }
    }
}

#[test]
#[ignore = "needs Node.js"]
fn the_judges_can_say_no() {
    let text = |json: &str| Chunk::verbatim(json);
    let start = || Chunk::start(MESSAGE_ID);
    let finish = || text(r#"{"type":"finish"}"#);
    let cases = [
        Case::new("an unknown type", vec![start(), text(r#"{"type":"mystery"}"#), finish()]),
        Case::new("an unknown field", vec![start(), text(r#"{"type":"start-step","n":1}"#), finish()]),
        Case::new("a delta", vec![start(), text(r#"{"type":"text-delta","id":"1","delta":"x"}"#), finish()]),
        Case::new("an output", vec![start(), text(r#"{"type":"tool-output-error","toolCallId":"1","errorText":"x"}"#)]),
    ];
    let verdicts = judge(&cases);
    for case in &cases {
        for generation in GENERATIONS {
            let refused = !verdicts[&case.name][generation]["errors"].as_array().unwrap().is_empty();
            // Two generations let unknown fields pass.
            let lenient = case.name == "an unknown field" && generation != "ai6";
            assert_eq!(refused, !lenient, "{generation} on {}", case.name);
        }
    }
}
