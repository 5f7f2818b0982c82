//! Upstream chunks become events, and come out of the projection word for word.

use std::collections::BTreeMap;

use bowline_core::dialect::Projection as _;
use bowline_core::dialect::ai_sdk::{Imported, Importer, Projector, UpstreamEnding};
use bowline_protocol::chunk::ChunkError;
use bowline_protocol::event::names;
use bowline_protocol::{Draft, json};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

use crate::support::log::{Log, event};
use crate::support::parser::Parser;
use crate::support::readers::{folded, parts, uncut};

/// An upstream as its authors write it: other key orders, other escapes, fields of their own, white space.
const UPSTREAM: &[&str] = &[
    r#"{"type":"start","messageId":"theirs","messageMetadata":{"a":1}}"#,
    r#"{"type":"start-step"}"#,
    r#"{"type":"reasoning-start","id":"r","providerMetadata":{"p":{"x":1}}}"#,
    r#"{"type":"reasoning-delta","id":"r","delta":"hm"}"#,
    r#"{"type":"reasoning-delta","id":"r","delta":"","providerMetadata":{"p":{"signature":"s"}}}"#,
    r#"{"type":"reasoning-end","id":"r"}"#,
    r#"{"type":"text-start","id":"0"}"#,
    r#"{"type":"text-delta","id":"0","delta":"Hé\ud83d"}"#,
    r#"{"delta":"\ude00\u0041","id":"0","type":"text-delta"}"#,
    r#"{"type":"text-end","id":"0"}"#,
    r#"{"type":"tool-input-start","toolCallId":"c","toolName":"t"}"#,
    r#"{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":"{\"a\":1}"}"#,
    r#"{"type":"tool-input-available","toolCallId":"c","toolName":"t","input":{"b":1,"a":1.0}}"#,
    r#"{"type":"tool-output-available","toolCallId":"c","output":{"n":1},"preliminary":true}"#,
    r#"{"type":"tool-output-available","toolCallId":"c","output":{"n":2}}"#,
    r#"{"type":"finish-step"}"#,
    r#"{"type":"start-step"}"#,
    r#"{"type":"tool-input-available","toolCallId":"d","toolName":"t","input":null}"#,
    r#"{"type":"tool-output-available","toolCallId":"d","output":null}"#,
    r#"{"type":"tool-input-available","toolCallId":"e","toolName":"t"}"#,
    r#"{"type":"tool-output-available","toolCallId":"e"}"#,
    r#"{"type":"tool-input-available","toolCallId":"f","toolName":"t","input":"x","providerExecuted":true}"#,
    r#"{"type":"tool-output-available","toolCallId":"f","output":"text"}"#,
    r#"{"type":"tool-input-available","toolCallId":"g","toolName":"t","input":[]}"#,
    r#"{"type":"tool-output-error","toolCallId":"g","errorText":"no"}"#,
    r#"{"type":"tool-input-available","toolCallId":"\u0068","toolName":"t","input":[]}"#,
    r#"{"type":"tool-input-error","toolCallId":"i","toolName":"t","input":"{","errorText":"bad"}"#,
    r#"{"type":"source-url","sourceId":"s","url":"https://x"}"#,
    r#"{"type":"file","url":"data:,x","mediaType":"text/plain"}"#,
    r#"{"type":"data-weather","id":"w","data":{"t":1}}"#,
    r#"{"type":"message-metadata","messageMetadata":{"b":2}}"#,
    r#"{"type":"text-start","id":"0"}"#,
    r#"{"type":"text-delta","id":"0","delta":"."}"#,
    r#"{"type":"text-end","id":"0"}"#,
    r#"{"type":"finish-step"}"#,
    r#"{"messageMetadata":{"c":3},"type":"finish","finishReason":"stop"}"#,
];

/// What readers get of an upstream that says `chunks`: a turn of ours, begun by a message and ended as the upstream ends.
fn through(chunks: &[&str]) -> Vec<String> {
    let (mut projector, mut out) = (Projector::new("ours"), Vec::new());
    logged(chunks, None).events.iter().for_each(|event| projector.handle_event(event, &mut out));
    assert!(projector.is_over());
    out.into_iter().map(|chunk| String::from_utf8(chunk.json.to_vec()).unwrap()).collect()
}

/// The log of that turn; the importer is lost and built again before one of the chunks.
fn logged(chunks: &[&str], restart_at: Option<usize>) -> Log {
    let mut log = Log::default();
    log.push(&event(names::USER_MESSAGE, "hi"));
    let mut importer = Importer::new();
    for (at, chunk) in chunks.iter().enumerate() {
        if restart_at == Some(at) {
            importer = Importer::new();
            log.events.iter().for_each(|event| importer.follow(event));
        }
        match importer.handle_chunk(chunk).unwrap() {
            Imported::Event(draft) => log.push_draft(&draft),
            Imported::End(end) => {
                assert_eq!(end.ending, UpstreamEnding::Finished);
                let answer = Draft::new(names::FINAL_ANSWER, "Hé😀A.");
                log.push_draft(&answer.metadata(&BTreeMap::from([("finish", &end.chunk)])));
            }
            Imported::Nothing | Imported::Done => {}
        }
    }
    log
}

/// The upstream with its beginning replaced by ours.
fn expected() -> Vec<String> {
    let ours = [
        r#"{"type":"start","messageId":"ours"}"#,
        r#"{"type":"start-step"}"#,
        r#"{"type":"message-metadata","messageMetadata":{"a":1}}"#,
    ];
    ours.iter().chain(&UPSTREAM[2..]).map(|chunk| chunk.to_string()).collect()
}

#[test]
fn readers_get_an_upstreams_chunks_word_for_word() {
    assert_eq!(through(UPSTREAM), expected());
}

#[test]
fn white_space_between_tokens_is_all_that_changes() {
    let spaced: Vec<String> = UPSTREAM
        .iter()
        .map(|chunk| {
            let value: Value = serde_json::from_str(&chunk.replace("\\ud83d", "").replace("\\ude00", "")).unwrap();
            serde_json::to_string_pretty(&value).unwrap().replace('\n', "\r\n")
        })
        .collect();
    let compact: Vec<String> = spaced.iter().map(|chunk| json::compact(chunk)).collect();
    let spaced: Vec<&str> = spaced.iter().map(String::as_str).collect();
    // The answer has no such character now, so it is said once more at the end; everything before is the upstream's.
    let out = through(&spaced);
    assert_eq!(out[3..36], compact[2..35]);
    assert!(out.iter().all(|chunk| !chunk.contains(['\n', '\r'])));
}

/// What readers get of a producer that says `chunks`; its importer is lost and built again before one of them.
fn produced(chunks: &[&str], restart_at: Option<usize>) -> Vec<String> {
    let (mut log, mut importer) = (Log::default(), Importer::producer("ours"));
    for (at, chunk) in chunks.iter().enumerate() {
        if restart_at == Some(at) {
            importer = Importer::producer("ours");
            log.events.iter().for_each(|event| importer.follow(event));
        }
        importer.opening(chunk).into_iter().for_each(|draft| log.push_draft(&draft));
        match importer.handle_chunk(chunk).unwrap() {
            Imported::Event(draft) => log.push_draft(&draft),
            Imported::End(end) => {
                let answer = Draft::new(names::FINAL_ANSWER, "");
                log.push_draft(&answer.metadata(&BTreeMap::from([("finish", &end.chunk)])));
            }
            Imported::Nothing | Imported::Done => {}
        }
    }
    let (mut projector, mut out) = (Projector::new("ours"), Vec::new());
    log.events.iter().for_each(|event| projector.handle_event(event, &mut out));
    assert!(projector.is_over());
    out.into_iter().map(|chunk| String::from_utf8(chunk.json.to_vec()).unwrap()).collect()
}

#[test]
fn a_producers_stream_is_what_it_sent_and_only_a_missing_start_is_added() {
    let start = r#"{"type":"start","messageId":"ours"}"#;
    for restart_at in (0..UPSTREAM.len()).map(Some).chain([None]) {
        assert_eq!(produced(UPSTREAM, restart_at), UPSTREAM, "restarted before {restart_at:?}");
        let rest = [&[start], &UPSTREAM[1..]].concat();
        assert_eq!(produced(&UPSTREAM[1..], restart_at), rest, "restarted before {restart_at:?}");
    }
    // A message has one name, whoever gives it.
    let nameless = [r#"{"type":"start","messageMetadata":{"a":1}}"#, r#"{"type":"finish"}"#];
    let named = r#"{"type":"start","messageMetadata":{"a":1},"messageId":"ours"}"#;
    assert_eq!(produced(&nameless, None), [named, nameless[1]]);
    assert_eq!(produced(&nameless[1..], None), [start, nameless[1]]);
}

#[test]
fn a_restart_anywhere_changes_nothing() {
    for at in 0..UPSTREAM.len() {
        let (one, other) = (logged(UPSTREAM, None), logged(UPSTREAM, Some(at)));
        assert_eq!(format!("{one:?}"), format!("{other:?}"), "restarted before chunk {at}");
    }
}

#[test]
fn deltas_and_calls_are_events_of_the_catalogue() {
    let mut importer = Importer::new();
    let mut drafts = Vec::new();
    for chunk in UPSTREAM {
        if let Imported::Event(draft) = importer.handle_chunk(chunk).unwrap() {
            drafts.push(draft);
        }
    }
    let shown = |name: &str| -> Vec<String> {
        let named = drafts.iter().filter(|draft| draft.name.as_str() == name);
        named
            .map(|draft| format!("{} {}", draft.content.get(), draft.metadata.as_ref().map_or("", |raw| raw.get())))
            .collect()
    };
    assert_eq!(
        shown(names::PARTIAL_ANSWER),
        [
            r#""Hé\ud83d" {"index":0,"part":"0"}"#,
            r#""\ude00\u0041" {"index":1,"part":"0","chunk":{"delta":"\ude00\u0041","id":"0","type":"text-delta"}}"#,
            r#""." {"index":2,"part":"0"}"#,
        ]
    );
    assert_eq!(shown(names::THINKING)[0], r#""hm" {"index":0,"part":"r"}"#);
    assert_eq!(shown(names::TOOL_CALL)[0], r#""Calling t" {"tool":"t","args":{"b":1,"a":1.0},"status":"running"}"#);
    let results = shown(names::TOOL_RESULT);
    assert_eq!(results[0], r#""t has answered" {"tool":"t","status":"success","data":{"n":2}}"#);
    assert_eq!(results[3], r#""text" {"tool":"t","status":"success"}"#);
    assert_eq!(results[4], r#""no" {"tool":"t","status":"failed","error":"no"}"#);
}

#[test]
fn an_upstream_ends_once_and_says_how() {
    let end = |chunk: &str| match Importer::new().handle_chunk(chunk).unwrap() {
        Imported::End(end) => (end.ending, end.text),
        other => panic!("{other:?}"),
    };
    assert_eq!(end(r#"{"type":"finish"}"#), (UpstreamEnding::Finished, None));
    assert_eq!(end(r#"{"type":"abort","reason":"bored"}"#), (UpstreamEnding::Cancelled, Some("bored".into())));
    assert_eq!(end(r#"{"type":"error","errorText":"broken"}"#), (UpstreamEnding::Failed, Some("broken".into())));
    let mut importer = Importer::new();
    importer.handle_chunk(r#"{"type":"error","errorText":"broken"}"#).unwrap();
    assert!(matches!(importer.handle_chunk(r#"{"type":"finish"}"#), Ok(Imported::Nothing)));
    assert!(matches!(importer.handle_chunk(" [DONE]\n"), Ok(Imported::Done)));
}

#[test]
fn what_no_reader_could_be_shown_is_refused_by_the_name_of_its_field() {
    let mut importer = Importer::new();
    for (chunk, field) in [
        (r#"{"type":"text-end","id":"x"}"#, Some("id")),
        (r#"{"type":"reasoning-end","id":"x"}"#, Some("id")),
        (r#"{"type":"tool-input-delta","toolCallId":"x","inputTextDelta":"{"}"#, Some("toolCallId")),
        (r#"{"type":"tool-approval-response","approvalId":"x","approved":true}"#, Some("approvalId")),
        (r#"{"type":"text-delta","id":"x","delta":1}"#, Some("delta")),
        (r#"{"type":"mystery"}"#, Some("type")),
        ("[]", None),
        ("not json", None),
    ] {
        assert_eq!(importer.handle_chunk(chunk).unwrap_err().field(), field, "{chunk}");
    }
    let deep = format!(r#"{{"type":"data-x","data":{}{}}}"#, "[".repeat(100), "]".repeat(100));
    assert!(matches!(importer.handle_chunk(&deep), Err(ChunkError::TooDeep { .. })));
    // Whoever has lost some of the log cannot know what has begun.
    importer.lose();
    assert!(importer.handle_chunk(r#"{"type":"text-end","id":"x"}"#).is_ok());
}

/// A change to a text: at some byte, something else.
fn edits() -> impl Strategy<Value = Vec<(Index, String)>> {
    let pieces =
        prop_oneof![Just("\\"), Just("\""), Just("\\u"), Just("\\ud83d"), Just("{"), Just("]"), Just(""), Just("é")];
    prop::collection::vec((any::<Index>(), pieces.prop_map(str::to_owned)), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]
    #[test]
    fn whatever_an_upstream_says_is_refused_or_can_be_read(
        said in prop::collection::vec((any::<Index>(), edits()), 1..12),
    ) {
        let mut log = Log::default();
        log.push(&event(names::USER_MESSAGE, "hi"));
        let mut importer = Importer::new();
        for (which, edits) in said {
            let mut chunk = UPSTREAM[which.index(UPSTREAM.len())].to_owned();
            for (at, piece) in edits {
                let at = (0..=at.index(chunk.len() + 1)).rev().find(|at| chunk.is_char_boundary(*at)).unwrap();
                let end = (at + 1..=chunk.len()).find(|end| chunk.is_char_boundary(*end)).unwrap_or(at);
                chunk.replace_range(at..end, &piece);
            }
            if let Ok(Imported::Event(draft)) = importer.handle_chunk(&chunk) {
                log.push_draft(&draft);
            }
        }
        let chunks = uncut(&log.events);
        Parser::read(&chunks);
        parts(&folded(&chunks));
    }
}
