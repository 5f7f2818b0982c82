//! What a writer keeps of a stream and goes on with later is what it would know had it read everything.

use bowline_core::dialect::ai_sdk::{Importer, Indexer, OperationCalls, Projector};
use bowline_core::dialect::{IndexerState, ProjectionIndex};
use bowline_protocol::Recorded;
use proptest::prelude::*;
use proptest::sample::Index;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::support::noise::noise;
use crate::support::story::story;
use crate::support::written::{number, write};

/// All that follows a stream as it is written.
struct Writer {
    importer: Importer,
    calls: OperationCalls,
    indexer: Indexer,
}

fn kept<T: Serialize, R: DeserializeOwned>(value: &T) -> R {
    serde_json::from_slice(&serde_json::to_vec(value).unwrap()).unwrap()
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

impl Writer {
    fn new() -> Writer {
        Writer {
            importer: Importer::producer("m"),
            calls: OperationCalls::new("c0", Some("t")),
            indexer: Indexer::new(number(0)),
        }
    }

    fn handle(mut self, events: &[Recorded]) -> Writer {
        for event in events {
            self.importer.follow(event);
            self.calls.handle_event(event);
            self.indexer.handle_event(event);
        }
        self
    }

    /// What a later process makes of what was kept here, of the events since, and of the index as it is then.
    fn come_back(&self, since: &[Recorded], index: Option<&[u8]>) -> Writer {
        let mut importer = Importer::producer("m").resumed(kept(&self.importer));
        let mut calls = OperationCalls::new("c0", Some("t")).resumed(kept(&self.calls));
        let mut state: IndexerState<Projector> = kept(self.indexer.state());
        for event in since {
            importer.follow(event);
            calls.handle_event(event);
            state.pass_event(event);
        }
        let index = index.map(|bytes| ProjectionIndex::decode(bytes).unwrap());
        Writer { importer, calls, indexer: Indexer::resumed(state, index) }
    }

    fn index(&self) -> Option<Vec<u8>> {
        self.indexer.index().map(ProjectionIndex::encode)
    }

    fn shown(&self) -> [String; 5] {
        let index = self.index().map(|bytes| String::from_utf8(bytes).unwrap()).unwrap_or_default();
        let streamed = format!("{:?}", self.indexer.streamed("Hello"));
        // Kept once more, so that what is not kept (the text of a tool's input) does not count.
        let state: IndexerState<Projector> = kept(self.indexer.state());
        [json(&self.importer), json(&self.calls), json(&state), index, streamed]
    }
}

fn check(events: &[Recorded], keep: &Index, back: &Index) {
    let keep = keep.index(events.len() + 1);
    let back = keep + back.index(events.len() - keep + 1);
    let whole = Writer::new().handle(events);
    let index = Writer::new().handle(&events[..back]).index();
    let resumed = Writer::new().handle(&events[..keep]).come_back(&events[keep..back], index.as_deref());
    let resumed = resumed.handle(&events[back..]);
    assert_eq!(resumed.shown(), whole.shown(), "kept at {keep}, gone on with at {back} of {}", events.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn a_writer_that_goes_on_with_what_it_kept_knows_all_that_it_wrote(
        story in story(), keep in any::<Index>(), back in any::<Index>()
    ) {
        check(&write(&story.log).events, &keep, &back);
    }

    #[test]
    fn whatever_was_written(noise in noise(), keep in any::<Index>(), back in any::<Index>()) {
        check(&noise.events, &keep, &back);
    }
}

#[test]
fn a_long_stream_adds_up_its_index_at_the_same_events() {
    let mut log = crate::support::log::Log::default();
    for n in 0..2000 {
        for kind in ["text-start", "text-delta", "text-end"] {
            let chunk = serde_json::json!({ "type": kind, "id": format!("t{n}"), "delta": "x" });
            log.push(&crate::support::log::event("agent.chunk", chunk));
        }
    }
    let whole = Writer::new().handle(&log.events);
    for (keep, back) in [(0, 3000), (100, 150), (2999, 3001), (5000, 6000)] {
        let index = Writer::new().handle(&log.events[..back]).index();
        let resumed = Writer::new().handle(&log.events[..keep]).come_back(&log.events[keep..back], index.as_deref());
        assert_eq!(resumed.handle(&log.events[back..]).shown(), whole.shown(), "kept at {keep}, back at {back}");
    }
}
