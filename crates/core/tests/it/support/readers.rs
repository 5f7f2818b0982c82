//! The ways in which a reader can come to a turn: from its start, with a cursor, with a fresh parser, after a gap.

use std::ops::Range;

use bowline_core::dialect::ai_sdk::{Assembler, DeltaFold, Projector};
use bowline_core::dialect::{ClientParser, Fold as _, Projection as _};
use bowline_protocol::{Chunk, ChunkPosition, Recorded, Seq};
use serde_json::Value;

pub const MESSAGE_ID: &str = "msg_1";

/// From the start.
pub fn uncut(events: &[Recorded]) -> Vec<Chunk> {
    let (mut projector, mut out) = (Projector::new(MESSAGE_ID), Vec::new());
    events.iter().for_each(|event| projector.handle_event(event, &mut out));
    out
}

/// With a cursor: what follows it, and before that, for a fresh parser, the framing.
pub fn resumed(events: &[Recorded], cursor: ChunkPosition, framed: bool) -> Vec<Chunk> {
    let (mut projector, mut out) = (Projector::new(MESSAGE_ID), Vec::new());
    let mut framing_due = framed;
    for event in events {
        match cursor.part {
            Some(part) if event.seq == cursor.seq => {
                projector.split_event(event, part, framed, &mut out);
                framing_due = false;
            }
            _ if event.seq <= cursor.seq => projector.pass_event(event),
            _ => {
                if std::mem::take(&mut framing_due) {
                    projector.framing(&mut out);
                }
                projector.handle_event(event, &mut out);
            }
        }
    }
    if framing_due {
        projector.framing(&mut out);
    }
    out
}

/// From the start, until `lost` was trimmed under the reader's eyes.
pub fn gapped(events: &[Recorded], lost: Range<usize>) -> Vec<Chunk> {
    let (mut projector, mut out) = (Projector::new(MESSAGE_ID), Vec::new());
    for (at, event) in events.iter().enumerate() {
        // Readers stop at the terminal.
        if projector.is_over() {
            break;
        }
        if at == lost.start && !lost.is_empty() {
            let parser = if at == 0 { ClientParser::Fresh } else { ClientParser::Same };
            projector.gap(parser, lost.len() as u64, Seq::new(lost.end as u64 + 1).unwrap(), None, &mut out);
        }
        if !lost.contains(&at) {
            projector.handle_event(event, &mut out);
        }
    }
    out
}

/// A fresh parser, when the first `lost` events are gone.
pub fn late(events: &[Recorded], lost: usize) -> Vec<Chunk> {
    let (mut projector, mut out) = (Projector::new(MESSAGE_ID), Vec::new());
    projector.gap(ClientParser::Fresh, lost as u64, Seq::new(lost as u64 + 1).unwrap(), None, &mut out);
    events[lost..].iter().for_each(|event| projector.handle_event(event, &mut out));
    out
}

/// As before, but the notice is left to somebody else, and the next event is framed.
pub fn late_untold(events: &[Recorded], lost: usize) -> Vec<Chunk> {
    let (mut projector, mut out) = (Projector::new(MESSAGE_ID), Vec::new());
    projector.lose();
    events[lost..].iter().for_each(|event| projector.handle_event(event, &mut out));
    out
}

/// With a cursor, when the first `lost` events are gone, all of which the reader has.
pub fn forgotten(events: &[Recorded], lost: usize, cursor: ChunkPosition) -> Vec<Chunk> {
    let (mut projector, mut out) = (Projector::new(MESSAGE_ID), Vec::new());
    projector.lose();
    for event in &events[lost..] {
        match cursor.part {
            Some(part) if event.seq == cursor.seq => projector.split_event(event, part, true, &mut out),
            _ if event.seq < cursor.seq => projector.pass_event(event),
            _ if event.seq == cursor.seq => {
                projector.pass_event(event);
                projector.framing(&mut out);
            }
            _ => projector.handle_event(event, &mut out),
        }
    }
    out
}

pub fn folded(chunks: &[Chunk]) -> Vec<Chunk> {
    let (mut fold, mut out) = (DeltaFold::default(), Vec::new());
    chunks.iter().for_each(|chunk| fold.push(chunk.clone(), &mut out));
    fold.flush(&mut out);
    out
}

pub fn assembled(chunks: &[Chunk]) -> Assembler {
    let mut assembler = Assembler::new();
    chunks.iter().for_each(|chunk| assembler.handle_chunk(chunk));
    assembler
}

pub fn parts(chunks: &[Chunk]) -> Vec<Value> {
    assembled(chunks).parts()
}

/// The chunks for a message in a test's failure.
pub fn shown(chunks: &[Chunk]) -> String {
    let line = |chunk: &Chunk| {
        let at = chunk.at.map_or("-".to_owned(), |place| place.to_string());
        format!("{at} {}", String::from_utf8_lossy(&chunk.json))
    };
    chunks.iter().map(line).collect::<Vec<_>>().join("\n")
}
