//! A turn as a server writes it: its events, and its index as it was after each of them.

use std::collections::BTreeMap;

use bowline_core::dialect::ProjectionIndex;
use bowline_core::dialect::ai_sdk::{Indexer, OpenPart};
use bowline_protocol::event::names;
use bowline_protocol::{Draft, EventName, Recorded, Seq};
use serde_json::value::RawValue;

use super::log::Log;

pub fn number(index: usize) -> Seq {
    Seq::new(index as u64 + 1).unwrap()
}

/// A turn as a server writes it, with its index as it was after each event.
pub struct Written {
    pub events: Vec<Recorded>,
    pub indexes: Vec<ProjectionIndex<OpenPart>>,
}

/// The event that brings the answer says how much of it was streamed; the log keeps everything else as it is.
pub fn write(log: &Log) -> Written {
    let (mut indexer, mut written, mut indexes) = (Indexer::new(number(0)), Log::default(), Vec::new());
    for event in &log.events {
        let view = event.view().unwrap();
        let mut metadata: BTreeMap<String, Box<RawValue>> =
            view.metadata.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        if view.event == names::FINAL_ANSWER {
            let answer: String = serde_json::from_str(view.content.get()).unwrap();
            let streamed = indexer.streamed(&answer).expect("it has seen everything");
            metadata.insert("streamed".into(), bowline_protocol::json::raw(&streamed));
        }
        let step_id = view.step_id.and_then(|raw| serde_json::from_str(raw.get()).ok());
        let step_id = step_id.and_then(|id: String| bowline_protocol::StepId::parse(&id));
        let name = EventName::custom(view.event);
        let name = name.unwrap_or_else(|| EventName::known(view.event.to_owned().leak()));
        let draft = Draft { name, step_id, content: view.content.to_owned(), metadata: None }.metadata(&metadata);
        written.push_draft(&draft);
        indexer.handle_event(written.events.last().unwrap());
        indexes.push(ProjectionIndex::decode(&indexer.index().unwrap().encode()).unwrap());
    }
    Written { events: written.events, indexes }
}

/// The same with the events as they are: nothing says how much of an answer was streamed.
pub fn write_plainly(log: &Log) -> Written {
    let (mut indexer, mut indexes) = (Indexer::new(number(0)), Vec::new());
    for event in &log.events {
        indexer.handle_event(event);
        indexes.push(ProjectionIndex::decode(&indexer.index().unwrap().encode()).unwrap());
    }
    Written { events: log.events.clone(), indexes }
}
