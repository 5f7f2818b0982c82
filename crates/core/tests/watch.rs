//! A reader of a turn that comes back gets exactly what follows its cursor, wherever that stands.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test may panic and print")]

mod support;

use bowline_core::watch::{Output, Start, Watch};
use bowline_protocol::event::names;
use bowline_protocol::{Chunk, Cursor, Extent, Seq, StreamCursor};
use support::log::{Log, event};

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

fn watched(log: &Log, first: usize, start: Start) -> Vec<Chunk> {
    let number = |index: usize| Seq::new(index as u64 + 1).unwrap();
    let next = number(log.events.len());
    let extent = Extent { epoch: Log::epoch(), epoch_first: number(0), first: number(0), next };
    let mut watch = Watch::new("msg_1", number(first), &extent, start, false);
    let mut seen = Vec::new();
    loop {
        match watch.poll_output().expect("the turn has ended, so the reader never waits") {
            Output::Chunks(chunks) => seen.extend(chunks),
            Output::Over => return seen,
            Output::Read { from, .. } => {
                let events = &log.events[from.get() as usize - 1..];
                watch.handle_events(events, number(0), next);
            }
        }
    }
}

#[test]
fn a_reader_that_comes_back_gets_exactly_what_follows_each_chunk() {
    let (log, earlier) = two_turns();
    for first in [0, earlier] {
        let all = watched(&log, first, Start::Fresh);
        for (index, chunk) in all.iter().enumerate().take(all.len() - 1) {
            let place = chunk.at.expect("nothing is made up for a reader of everything");
            let cursor =
                StreamCursor { cursor: Cursor { epoch: Some(Log::epoch()), seq: place.seq }, part: place.part };
            let rest = watched(&log, first, Start::After(cursor.clone()));
            let shown = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.json.clone()).collect::<Vec<_>>();
            assert_eq!(shown(&rest), shown(&all[index + 1..]), "after {cursor}, in the turn that begins at {first}");
        }
    }
}

#[test]
fn behind_the_terminal_nothing_follows_and_nothing_is_framed() {
    let (log, first) = two_turns();
    let all = watched(&log, first, Start::Fresh);
    let place = all.last().and_then(|chunk| chunk.at).unwrap();
    assert!(place.part.is_some(), "the terminal is one of several chunks of its event");
    let cursor = StreamCursor { cursor: Cursor { epoch: Some(Log::epoch()), seq: place.seq }, part: place.part };
    assert!(watched(&log, first, Start::After(cursor.clone())).is_empty());
    assert!(watched(&log, first, Start::Framed(cursor)).is_empty());
}
