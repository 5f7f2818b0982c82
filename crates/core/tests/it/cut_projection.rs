//! Cut a stream of chunks anywhere: whoever comes back sees the same message, and no parser is ever given what it refuses.

use bowline_protocol::{Chunk, Recorded};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

use crate::support::noise::noise;
use crate::support::parser::Parser;
use crate::support::readers::{assembled, folded, forgotten, gapped, late, late_untold, parts, resumed, shown, uncut};
use crate::support::story::story;

/// The places of those chunks at which a reader can stand.
fn stops(chunks: &[Chunk]) -> Vec<usize> {
    (0..chunks.len()).filter(|at| chunks[*at].at.is_some()).collect()
}

/// Parts that a reader who comes now must be framed with.
fn is_open(part: &Value) -> bool {
    match part["state"].as_str() {
        Some("streaming" | "input-streaming" | "input-available") => true,
        Some("output-available") => part["preliminary"] == true,
        _ => false,
    }
}

fn is_tool(part: &Value) -> bool {
    part.get("toolCallId").is_some()
}

/// Whether two parts are one thing: the same call, or the same data.
fn same_thing(a: &Value, b: &Value) -> bool {
    let data = a["type"].as_str().is_some_and(|kind| kind.starts_with("data-"));
    (is_tool(a) && a["toolCallId"] == b["toolCallId"])
        || (data && a["type"] == b["type"] && a.get("id").is_some() && a.get("id") == b.get("id"))
}

/// A producer may end a step that it never began, so the last word counts.
fn in_step(chunks: &[Chunk]) -> bool {
    let kinds = [(&br#"{"type":"start-step""#[..], true), (&br#"{"type":"finish-step""#[..], false)];
    let said = |chunk: &Chunk| kinds.iter().find(|(kind, _)| chunk.json.starts_with(kind)).map(|(_, within)| *within);
    chunks.iter().rev().find_map(said).unwrap_or(false)
}

/// Checks that what a fresh parser saw from the cut on, together with what was there before it, is the whole message.
fn assert_continues(before: &[Chunk], framed: &[Chunk], whole: &[Chunk]) {
    let (in_step, before, framed, whole) = (in_step(before), parts(before), parts(framed), parts(whole));
    let mut framed = framed.iter();
    if in_step {
        assert_eq!(framed.next().unwrap()["type"], "step-start");
    }
    for (at, part) in before.iter().enumerate().filter(|(_, part)| is_open(part)) {
        let mut rest = framed.next().expect("what is open is framed").clone();
        if !is_tool(part) {
            let text = format!("{}{}", part["text"].as_str().unwrap(), rest["text"].as_str().unwrap());
            rest["text"] = text.into();
            // What the deltas before the cut said of the maker, only they said.
            if rest.get("providerMetadata").is_none() || rest["providerMetadata"] != whole[at]["providerMetadata"] {
                assert_eq!(part.get("providerMetadata"), whole[at].get("providerMetadata"));
                rest.as_object_mut().unwrap().remove("providerMetadata");
                if let Some(known) = whole[at].get("providerMetadata") {
                    rest["providerMetadata"] = known.clone();
                }
            }
        }
        assert_eq!(rest, whole[at]);
    }
    // What was over and changes again appears once more; everything else is new.
    let mut new = Vec::new();
    for part in framed {
        match before.iter().position(|known| !is_open(known) && same_thing(known, part)) {
            Some(at) => {
                for key in ["state", "output", "errorText", "data"] {
                    assert_eq!(part.get(key), whole[at].get(key), "{part} {}", whole[at]);
                }
            }
            None => new.push(part.clone()),
        }
    }
    assert_eq!(new, whole[before.len()..]);
}

/// What is not made up is the same for every reader, ids and all.
fn check_numbers(framed: &[Chunk], rest: &[Chunk]) {
    let numbered =
        |chunks: &[Chunk]| -> Vec<Chunk> { chunks.iter().filter(|chunk| chunk.at.is_some()).cloned().collect() };
    assert_eq!(shown(&numbered(framed)), shown(&numbered(rest)));
}

fn check_same_parser(events: &[Recorded], chunks: &[Chunk], at: usize) {
    let rest = resumed(events, chunks[at].at.unwrap(), false);
    assert_eq!(shown(&rest), shown(&chunks[at + 1..]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_cut_reader_sees_the_same_message(story in story(), cut in any::<Index>()) {
        let events = &story.log.events;
        let chunks = uncut(events);
        let stops = stops(&chunks);
        let at = *cut.get(&stops);
        check_same_parser(events, &chunks, at);

        let framed = resumed(events, chunks[at].at.unwrap(), true);
        Parser::read(&framed);
        check_numbers(&framed, &chunks[at + 1..]);
        // Behind the terminal nothing follows, and nothing is framed.
        if at + 1 < chunks.len() || !story.ends {
            assert_continues(&chunks[..=at], &framed, &chunks);
        }
    }

    #[test]
    fn folding_changes_no_message(story in story(), cut in any::<Index>()) {
        let events = &story.log.events;
        let chunks = uncut(events);
        let at = *cut.get(&stops(&chunks));
        for stream in [chunks.clone(), resumed(events, chunks[at].at.unwrap(), true), late(events, at.min(events.len()))] {
            let folded = folded(&stream);
            Parser::read(&folded);
            prop_assert_eq!(parts(&folded), parts(&stream));
            let (one, other) = (assembled(&folded), assembled(&stream));
            prop_assert_eq!(one.metadata(), other.metadata());
            prop_assert_eq!(folded.last().map(|chunk| chunk.at), stream.last().map(|chunk| chunk.at));
            prop_assert!(folded.len() <= stream.len());
        }
    }

    #[test]
    fn a_stream_ends_once_and_leaves_nothing_open(story in story()) {
        let chunks = uncut(&story.log.events);
        let parser = Parser::read(&chunks);
        prop_assert_eq!(parser.terminals, usize::from(story.ends));
        if story.ends {
            prop_assert_eq!(parser.open(), 0);
            prop_assert!(parts(&chunks).iter().all(|part| part["state"] != "streaming"));
        }
        let mut ids: Vec<String> = chunks.iter().filter_map(|chunk| Some(chunk.at?.to_string())).collect();
        let count = ids.len();
        ids.dedup();
        prop_assert_eq!(ids.len(), count, "an id names one chunk");
    }

    #[test]
    fn no_order_of_events_makes_a_stream_that_a_parser_refuses(
        log in noise(), cut in any::<Index>(), from in any::<Index>(), to in any::<Index>(),
    ) {
        let events = &log.events;
        let chunks = uncut(events);
        Parser::read(&chunks);
        Parser::read(&folded(&chunks));
        let at = *cut.get(&stops(&chunks));
        check_same_parser(events, &chunks, at);
        let framed = resumed(events, chunks[at].at.unwrap(), true);
        Parser::read(&framed);
        check_numbers(&framed, &chunks[at + 1..]);

        let (a, b) = (from.index(events.len() + 1), to.index(events.len() + 1));
        let with_gap = gapped(events, a.min(b)..a.max(b));
        Parser::read(&with_gap);
        Parser::read(&folded(&with_gap));
        Parser::read(&late(events, a));
        Parser::read(&late_untold(events, a));
        let cursor = chunks[at].at.unwrap();
        Parser::read(&forgotten(events, a.min(cursor.seq.get() as usize - 1), cursor));
    }

    #[test]
    fn after_a_gap_every_place_is_behind_a_whole_event(story in story(), from in any::<Index>(), to in any::<Index>()) {
        let events = &story.log.events;
        let (a, b) = (from.index(events.len()), to.index(events.len()));
        let lost = a.min(b)..a.max(b);
        let with_gap = gapped(events, lost.clone());
        let parser = Parser::read(&with_gap);
        prop_assert_eq!(parser.terminals, usize::from(story.ends), "the terminal is the last event, and was not lost");
        for chunk in &with_gap {
            if let Some(place) = chunk.at {
                prop_assert!(place.part.is_none() || place.seq.get() <= lost.start as u64 || lost.is_empty());
            }
        }
    }
}
