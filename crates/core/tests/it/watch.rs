//! A reader of a turn that comes back gets exactly what follows its cursor, wherever that stands.

use bowline_core::dialect::ai_sdk::Projector;
use bowline_core::watch::{Output, Watch, WatchStart};
use bowline_protocol::event::names;
use bowline_protocol::{Chunk, Cursor, Extent, Seq, StreamCursor};
use serde_json::Value;

use crate::support::log::{Log, event};

/// An earlier turn, and one with a thought and an answer in pieces; how many events the earlier one has.
fn two_turns() -> (Log, usize) {
    let mut log = Log::default();
    log.push(&event(names::USER_MESSAGE, "before"));
    log.push(&event(names::FINAL_ANSWER, "said before"));
    let earlier = log.events.len();
    log.push(&event(names::USER_MESSAGE, "now"));
    log.push(&event(names::THINKING, "hm"));
    log.push(&event(names::PARTIAL_ANSWER, "one"));
    log.push(&event(names::PARTIAL_ANSWER, " two"));
    log.push(&event(names::FINAL_ANSWER, "one two"));
    (log, earlier)
}

fn watched(log: &Log, first: usize, start: WatchStart) -> Vec<Chunk> {
    watched_from(log, 0, first, start)
}

/// The same, when only the events from `retained` on are left.
fn watched_from(log: &Log, retained: usize, first: usize, start: WatchStart) -> Vec<Chunk> {
    watched_in(log, 0, retained, first, start)
}

/// The same, when the log changed its epoch before the event `epoch_first`.
fn watched_in(log: &Log, epoch_first: usize, retained: usize, first: usize, start: WatchStart) -> Vec<Chunk> {
    let number = |index: usize| Seq::new(index as u64 + 1).unwrap();
    let next = number(log.events.len());
    let extent = Extent { epoch: Log::epoch(), epoch_first: number(epoch_first), first: number(retained), next };
    let mut watch: Watch<Projector> = Watch::new("msg_1", number(first), &extent, start, false, None);
    let mut seen = Vec::new();
    loop {
        match watch.poll_output() {
            Some(Output::Outputs(chunks)) => seen.extend(chunks),
            Some(Output::Over) => return seen,
            None => {
                let (from, _) = watch.poll_read().expect("the turn has ended, so its reader was told so");
                watch.handle_events(&log.events[from.get() as usize - 1..]);
            }
        }
    }
}

#[test]
fn a_reader_that_comes_back_gets_exactly_what_follows_each_chunk() {
    let (log, earlier) = two_turns();
    for first in [0, earlier] {
        let all = watched(&log, first, WatchStart::Fresh);
        for (index, chunk) in all.iter().enumerate().take(all.len() - 1) {
            let place = chunk.at.expect("nothing is made up for a reader of everything");
            let cursor =
                StreamCursor { cursor: Cursor { epoch: Some(Log::epoch()), seq: place.seq }, part: place.part };
            let rest = watched(&log, first, WatchStart::After(cursor.clone()));
            let shown = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.json.clone()).collect::<Vec<_>>();
            assert_eq!(shown(&rest), shown(&all[index + 1..]), "after {cursor}, in the turn that begins at {first}");
        }
    }
}

#[test]
fn a_gap_is_told_before_anything_else_and_makes_no_message_of_its_own() {
    let (log, first) = two_turns();
    let other_epoch = StreamCursor::parse("other-4").unwrap().unwrap();
    for (retained, start) in [
        (first + 2, WatchStart::Fresh),
        (first + 2, WatchStart::After(StreamCursor::parse("e-3").unwrap().unwrap())),
        (first + 2, WatchStart::Framed(other_epoch.clone())),
        (0, WatchStart::After(other_epoch)),
    ] {
        let chunks = watched_from(&log, retained, first, start.clone());
        let kinds: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_slice(&chunk.json).unwrap()).collect();
        let kinds: Vec<&str> = kinds.iter().map(|chunk| chunk["type"].as_str().unwrap()).collect();
        assert_eq!(kinds[..3], ["data-gap", "start", "start-step"], "{start:?}");
        let passes = serde_json::from_slice::<Value>(&chunks[0].json).unwrap()["transient"] == true;
        assert_eq!(
            passes,
            !matches!(start, WatchStart::After(_)),
            "a parser without a message gets a notice that passes"
        );
        assert_eq!(kinds.iter().filter(|kind| **kind == "start").count(), 1, "{start:?}");
        assert_eq!(kinds.last(), Some(&"finish"), "{start:?}");
    }
}

#[test]
fn a_change_of_epoch_takes_nothing_from_a_reader_that_is_not_lost() {
    let (log, earlier) = two_turns();
    let shown = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.json.clone()).collect::<Vec<_>>();
    for (first, epoch_first) in
        [0, earlier].into_iter().flat_map(|first| (0..=log.events.len()).map(move |at| (first, at)))
    {
        let all = watched(&log, first, WatchStart::Fresh);
        let fresh = watched_in(&log, epoch_first, 0, first, WatchStart::Fresh);
        assert_eq!(shown(&fresh), shown(&all), "everything is there, and nothing is told");
        for seq in 1..=9_u64 {
            let cursor = StreamCursor::parse(&format!("other-{seq}")).unwrap().unwrap();
            let told = watched_in(&log, epoch_first, 0, first, WatchStart::After(cursor));
            let gap: Value = serde_json::from_slice(&told[0].json).unwrap();
            // Numbers of the other epoch from there on were given out, and are not here.
            let lost = (seq + 1).saturating_sub(epoch_first.max(first) as u64 + 1);
            assert_eq!(gap["data"]["lost"], lost, "with {seq}, in an epoch that begins behind {epoch_first}");
            assert_eq!(
                (&gap["type"], &gap["data"]["first_retained"]),
                (&"data-gap".into(), &(first as u64 + 1).into())
            );
            assert_eq!(shown(&told[1..]), shown(&all), "then everything, as every reader gets it");
        }
    }
}

#[test]
fn behind_the_terminal_nothing_follows_and_nothing_is_framed() {
    let (log, first) = two_turns();
    let all = watched(&log, first, WatchStart::Fresh);
    let place = all.last().and_then(|chunk| chunk.at).unwrap();
    assert!(place.part.is_some(), "the terminal is one of several chunks of its event");
    let cursor = StreamCursor { cursor: Cursor { epoch: Some(Log::epoch()), seq: place.seq }, part: place.part };
    assert!(watched(&log, first, WatchStart::After(cursor.clone())).is_empty());
    assert!(watched(&log, first, WatchStart::Framed(cursor)).is_empty());
}
