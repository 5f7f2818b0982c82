//! Trim the head of a stream anywhere: whoever has a cursor that is retained gets exactly what follows it, and all readers
//! mean the same by an id, also those who were told of a gap.

use bowline_core::dialect::INDEX_BYTES_MAX;
use bowline_core::dialect::ai_sdk::Projector;
use bowline_core::watch::{Output, Watch, WatchStart};
use bowline_protocol::event::names;
use bowline_protocol::{Chunk, ChunkPosition, Cursor, Extent, StreamCursor};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use crate::support::log::{Log, event};
use crate::support::parser::Parser;
use crate::support::readers::{MESSAGE_ID, shown, uncut};
use crate::support::story::story;
use crate::support::written::{Written, number, write, write_plainly};

/// How the readers of these tests come.
trait Watched {
    fn watched(&self, retained: usize, now: usize, start: WatchStart) -> Vec<Chunk>;
    fn read(&self, watch: &mut Watch<Projector>, retained: usize, now: usize) -> Vec<Chunk>;
}

impl Watched for Written {
    /// What a reader gets who comes when `now` events are written and those before `retained` are gone, and stays.
    fn watched(&self, retained: usize, now: usize, start: WatchStart) -> Vec<Chunk> {
        let index = |now: usize| now.checked_sub(1).map(|last| &self.indexes[last]);
        let extent = Extent { epoch: Log::epoch(), epoch_first: number(0), first: number(retained), next: number(now) };
        let mut watch: Watch<Projector> = Watch::new(MESSAGE_ID, number(0), &extent, start, false, index(now));
        self.read(&mut watch, retained, now)
    }

    fn read(&self, watch: &mut Watch<Projector>, retained: usize, mut now: usize) -> Vec<Chunk> {
        let mut seen = Vec::new();
        loop {
            match watch.poll_output() {
                Some(Output::Outputs(chunks)) => seen.extend(chunks),
                Some(Output::Over) => return seen,
                None => {
                    let Some((from, _)) = watch.poll_read() else { return seen };
                    let index = now.checked_sub(1).map(|last| &self.indexes[last]);
                    match from.get() as usize - 1 {
                        from if from < retained => watch.handle_gap(number(retained), index),
                        from if from < now => watch.handle_events(&self.events[from..now]),
                        _ if now < self.events.len() => now = self.events.len(),
                        _ => return seen,
                    }
                }
            }
        }
    }
}

fn after(place: ChunkPosition) -> WatchStart {
    WatchStart::After(cursor(place))
}

fn cursor(place: ChunkPosition) -> StreamCursor {
    StreamCursor { cursor: Cursor { epoch: Some(Log::epoch()), seq: place.seq }, part: place.part }
}

fn numbered(chunks: &[Chunk]) -> Vec<Chunk> {
    chunks.iter().filter(|chunk| chunk.at.is_some()).cloned().collect()
}

/// The chunks of the events from here on.
fn since(chunks: &[Chunk], index: usize) -> Vec<Chunk> {
    let of_later = |chunk: &Chunk| chunk.at.is_some_and(|place| place.seq >= number(index));
    chunks.iter().filter(|chunk| of_later(chunk)).cloned().collect()
}

/// A place at which a reader can stand, and everything behind which is still retained.
fn place(chunks: &[Chunk], retained: usize, cut: &Index) -> Option<usize> {
    let stops: Vec<usize> = (0..chunks.len())
        .filter(|at| {
            let owed = chunks[*at].at.map(|place| if place.part.is_some() { place.seq } else { place.seq.next() });
            owed.is_some_and(|owed| owed >= number(retained))
        })
        .collect();
    (!stops.is_empty()).then(|| *cut.get(&stops))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_retained_cursor_goes_on_exactly(story in story(), trim in any::<Index>(), cut in any::<Index>(), now in any::<Index>()) {
        let written = write(&story.log);
        let whole = uncut(&written.events);
        let retained = trim.index(written.events.len());
        let Some(at) = place(&whole, retained, &cut) else { return Ok(()) };
        let stands = whole[at].at.unwrap();
        // It comes at any time after it left.
        let left = (stands.seq.get() as usize).max(retained);
        let now = left + now.index(written.events.len() - left + 1);
        let rest = written.watched(retained, now, after(stands));
        prop_assert_eq!(shown(&rest), shown(&whole[at + 1..]));

        let framed = written.watched(retained, now, WatchStart::Framed(cursor(stands)));
        Parser::read(&framed);
        prop_assert_eq!(shown(&numbered(&framed)), shown(&numbered(&whole[at + 1..])));
    }

    #[test]
    fn a_reader_that_was_sent_a_gap_reads_the_same_ids_and_may_come_back(
        story in story(), trim in any::<Index>(), lost in any::<Index>(), cut in any::<Index>(),
    ) {
        let written = write(&story.log);
        let whole = uncut(&written.events);
        let events = written.events.len();
        let retained = trim.index(events);
        if retained == 0 {
            return Ok(());
        }
        let before = lost.index(retained);
        let starts = [WatchStart::Fresh, after(ChunkPosition { seq: number(before), part: None })];
        for start in starts.into_iter().filter(|start| *start == WatchStart::Fresh || before + 1 < retained) {
            let seen = written.watched(retained, events, start.clone());
            prop_assert!(seen[0].json.starts_with(br#"{"type":"data-gap""#), "{start:?}");
            prop_assert_eq!(shown(&numbered(&seen)), shown(&since(&numbered(&whole), retained)));
            if start != WatchStart::Fresh {
                continue;
            }
            Parser::read(&seen);
            let stops: Vec<usize> = (0..seen.len()).filter(|at| seen[*at].at.is_some()).collect();
            if stops.is_empty() {
                continue;
            }
            let at = *cut.get(&stops);
            let rest = written.watched(retained, events, after(seen[at].at.unwrap()));
            // Calls that were over before the gap, a parser that was not there does not have.
            let mut parser = Parser::default();
            parser.was_told_of_calls(&whole);
            seen[..=at].iter().chain(&rest).for_each(|chunk| parser.take(chunk));
        }
    }

    #[test]
    fn a_reader_under_whose_eyes_the_log_is_trimmed_goes_on_with_the_ids_of_all(
        story in story(), trim in any::<Index>(), read in any::<Index>(),
    ) {
        let written = write(&story.log);
        let whole = uncut(&written.events);
        let retained = trim.index(written.events.len());
        let read = read.index(retained + 1);
        let extent = Extent { epoch: Log::epoch(), epoch_first: number(0), first: number(0), next: number(read) };
        let mut watch: Watch<Projector> = Watch::new(MESSAGE_ID, number(0), &extent, WatchStart::Fresh, false, None);
        let mut seen = Vec::new();
        watch.handle_events(&written.events[..read]);
        while let Some(Output::Outputs(chunks)) = watch.poll_output() {
            seen.extend(chunks);
        }
        seen.extend(written.read(&mut watch, retained, written.events.len()));
        let mut parser = Parser::default();
        parser.was_told_of_calls(&whole);
        seen.iter().for_each(|chunk| parser.take(chunk));
        let expected: Vec<Chunk> = numbered(&whole)
            .into_iter()
            .filter(|chunk| chunk.at.is_some_and(|place| place.seq < number(read) || place.seq >= number(retained)))
            .collect();
        prop_assert_eq!(shown(&numbered(&seen)), shown(&expected));
    }
}

/// A turn of many changes: texts between calls.
fn busy(calls: usize) -> Log {
    let mut log = Log::default();
    log.push(&event(names::USER_MESSAGE, "hi"));
    for call in 0..calls {
        log.push(&event(names::PARTIAL_ANSWER, format!("word{call} ")));
        log.push(&json!({ "event": names::TOOL_CALL, "step_id": format!("s{call}"), "content": "call", "metadata": { "tool": "look" } }));
        log.push(&json!({ "event": names::TOOL_RESULT, "step_id": format!("s{call}"), "content": "done", "metadata": { "tool": "look" } }));
    }
    log.push(&event(names::FINAL_ANSWER, "something else"));
    log
}

#[test]
fn an_index_is_bounded_and_what_it_no_longer_knows_is_a_gap() {
    let written = write(&busy(400));
    let whole = uncut(&written.events);
    let index = written.indexes.last().unwrap();
    assert!(index.encode().len() <= INDEX_BYTES_MAX + 1024, "{}", index.encode().len());
    let events = written.events.len();
    // The newest cursors go on as if nothing had been trimmed.
    for at in whole.len() - 200..whole.len() - 1 {
        let rest = written.watched(1, events, after(whole[at].at.unwrap()));
        assert_eq!(shown(&rest), shown(&whole[at + 1..]));
    }
    // One that is retained, and too old for the index, is told what it does not get.
    let rest = written.watched(1, events, after(whole[10].at.unwrap()));
    let told: Value = serde_json::from_slice(&rest[0].json).unwrap();
    assert_eq!(told["type"], "data-gap");
    let first = told["data"]["first_retained"].as_u64().unwrap() as usize - 1;
    assert_eq!(shown(&numbered(&rest)), shown(&since(&numbered(&whole), first)));
}

#[test]
fn a_stream_whose_beginning_goes_while_its_end_is_looked_at_ends() {
    let mut log = Log::default();
    log.push(&event(names::USER_MESSAGE, "hi"));
    (1..=5).for_each(|n| log.push(&event(names::PARTIAL_ANSWER, format!("tok{n} "))));
    log.push(&event(names::FINAL_ANSWER, "tok1 tok2 tok3 tok4 tok5 "));
    let (written, now) = (write_plainly(&log), log.events.len());
    let extent = Extent { epoch: Log::epoch(), epoch_first: number(0), first: number(0), next: number(now) };
    let start = after(ChunkPosition { seq: number(3), part: None });
    let mut watch: Watch<Projector> = Watch::new(MESSAGE_ID, number(0), &extent, start, false, written.indexes.last());
    // It comes in the middle. Whether it lacks text, the answer makes it ask, and only the beginning can tell.
    let (from, _) = watch.poll_read().unwrap();
    watch.handle_events(&written.events[from.get() as usize - 1..]);
    assert_eq!(watch.poll_read().unwrap().0, number(0), "it reads the beginning");
    watch.handle_gap(number(4), written.indexes.last());
    let Some(Output::Outputs(chunks)) = watch.poll_output() else { panic!("what follows its place was not given") };
    assert!(chunks.last().is_some_and(|chunk| chunk.json.starts_with(br#"{"type":"finish""#)));
    assert!(matches!(watch.poll_output(), Some(Output::Over)), "it waits for what never comes");
    assert!(watch.poll_read().is_none());
}

#[test]
fn a_reader_that_missed_text_gets_the_whole_answer_without_a_place_in_the_stream() {
    let mut log = Log::default();
    log.push(&event(names::USER_MESSAGE, "hi"));
    (1..=5).for_each(|n| log.push(&event(names::PARTIAL_ANSWER, format!("tok{n} "))));
    log.push(&event(names::FINAL_ANSWER, "tok1 tok2 tok3 tok4 tok5 "));
    let written = write(&log);
    let seen = written.watched(3, written.events.len(), WatchStart::Fresh);
    let texts: Vec<(bool, Value)> = seen
        .iter()
        .map(|chunk| (chunk.at.is_some(), serde_json::from_slice::<Value>(&chunk.json).unwrap()))
        .filter(|(_, chunk)| chunk["type"] == "text-delta")
        .collect();
    let shown: Vec<(bool, &str, &str)> = texts
        .iter()
        .map(|(placed, chunk)| (*placed, chunk["id"].as_str().unwrap(), chunk["delta"].as_str().unwrap()))
        .collect();
    assert_eq!(
        shown,
        [
            (true, "text-2", "tok3 "),
            (true, "text-2", "tok4 "),
            (true, "text-2", "tok5 "),
            (false, "whole-7", "tok1 tok2 tok3 tok4 tok5 "),
        ]
    );
}
