//! The open parts of a stream as its index keeps them: what each mark says, and the way back.

use std::collections::BTreeMap;
use std::fmt;

use bowline_protocol::chunk::{ChunkBuilder, ChunkView};
use bowline_protocol::{Chunk, ChunkKind};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::super::OpenParts;
use super::events::{text_of, tool_input};
use super::parts::{Approval, Ends, Parts, Progress, TextKind, TextPart, Tool};

/// Longer chunks of a call, or beginnings of a part, are kept without what makes them long. Only a fresh parser notices:
/// the call that it is shown has no input until its output comes.
const CHUNK_BYTES_MAX: usize = 1024;
/// Calls that are over and still remembered, so that a second output of one is not taken for that of an unknown call.
const CALLS_DONE_MAX: usize = 64;

/// One thing that is open, or was; without its text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenPart {
    #[serde(rename = "s")]
    Step { within: bool, number: u64 },
    /// An upstream began the message, with this chunk.
    #[serde(rename = "m")]
    Message {
        start: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        short: bool,
    },
    #[serde(rename = "p")]
    Part {
        at: u64,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        named: bool,
        /// The chunk that began it, where ours would be another.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        start: Option<String>,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        short: bool,
    },
    #[serde(rename = "c")]
    Call {
        at: u64,
        step: u64,
        progress: CallProgress,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        chunks: Vec<String>,
        /// Its chunks are as they were, none of them shortened.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        whole: bool,
    },
    #[serde(rename = "a")]
    Approval { call: String, request: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallProgress {
    #[serde(rename = "s")]
    Streaming,
    #[serde(rename = "w")]
    Waiting { preliminary: bool },
    #[serde(rename = "d")]
    Done,
}

impl OpenPart {
    /// Whether a fresh parser can be shown all that the events before would show it.
    pub(super) fn is_whole(&self) -> bool {
        match self {
            OpenPart::Step { .. } | OpenPart::Approval { .. } => true,
            OpenPart::Message { short, .. } | OpenPart::Part { short, .. } => !short,
            OpenPart::Call { progress, whole, .. } => match progress {
                CallProgress::Streaming => false,
                CallProgress::Waiting { .. } => *whole,
                CallProgress::Done => true,
            },
        }
    }

    fn is_done_call(&self) -> bool {
        matches!(self, OpenPart::Call { progress: CallProgress::Done, .. })
    }
}

/// Its chunks hold what people wrote.
impl fmt::Debug for OpenPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OpenPart::Step { .. } => "Step",
            OpenPart::Message { .. } => "Message",
            OpenPart::Part { .. } => "Part",
            OpenPart::Call { .. } => "Call",
            OpenPart::Approval { .. } => "Approval",
        })
    }
}

const STEP: &str = "s";
const MESSAGE: &str = "m";

fn part_key(flow: TextKind, id: &str) -> String {
    match flow {
        TextKind::Text => format!("t{id}"),
        TextKind::Reasoning => format!("r{id}"),
    }
}

/// The chunk that begins a part, unless an upstream wrote another.
pub(super) fn plain_start(flow: TextKind, id: &str) -> Bytes {
    ChunkBuilder::new(flow.start().as_str(), id.len()).text("id", id).done().json
}

fn text(json: &Bytes) -> String {
    String::from_utf8_lossy(json).into_owned()
}

impl Parts {
    pub(super) fn open_parts(&self) -> OpenParts<OpenPart> {
        let mut marks = BTreeMap::new();
        marks.insert(STEP.to_owned(), OpenPart::Step { within: self.in_step, number: self.steps });
        if let Some(start) = &self.start {
            let short = start.len() > CHUNK_BYTES_MAX;
            marks.insert(MESSAGE.to_owned(), OpenPart::Message { start: short_start(start), short });
        }
        for (opened, part) in &self.parts {
            let differs = part.start != plain_start(part.flow, &part.id);
            let short = differs && part.start.len() > CHUNK_BYTES_MAX;
            let start = (differs && !short).then(|| text(&part.start));
            let mark = OpenPart::Part { at: *opened, named: part.ends == Ends::ByName, start, short };
            marks.insert(part_key(part.flow, &part.id), mark);
        }
        let mut done: Vec<u64> = self.tools.values().filter(|tool| tool.is_done()).map(|tool| tool.opened).collect();
        done.sort_unstable();
        let oldest = done.len().checked_sub(CALLS_DONE_MAX).and_then(|excess| done.get(excess)).copied().unwrap_or(0);
        for (id, tool) in self.tools.iter().filter(|(_, tool)| !tool.is_done() || tool.opened >= oldest) {
            marks.insert(format!("c{id}"), tool.mark());
        }
        for (id, approval) in &self.approvals {
            let (call, request) = (approval.call.to_string(), text(&approval.request));
            marks.insert(format!("a{id}"), OpenPart::Approval { call, request });
        }
        OpenParts(marks)
    }

    /// What a parser has that has read everything up to there.
    pub(super) fn of(open_parts: &OpenParts<OpenPart>) -> Parts {
        let done = open_parts.0.values().filter(|mark| mark.is_done_call()).count();
        let mut parts = Parts::default();
        let mut opened: Vec<(u64, TextPart)> = Vec::new();
        for (key, mark) in &open_parts.0 {
            let id = key.get(1..).unwrap_or_default();
            match mark {
                OpenPart::Step { within, number } => (parts.in_step, parts.steps) = (*within, *number),
                OpenPart::Message { start, .. } => parts.start = Some(start.clone().into()),
                OpenPart::Part { at, named, start, .. } => {
                    let flow = if key.starts_with('r') { TextKind::Reasoning } else { TextKind::Text };
                    let ends = if *named { Ends::ByName } else { Ends::Implicitly };
                    let start = start.as_ref().map_or_else(|| plain_start(flow, id), |start| start.clone().into());
                    opened.push((*at, TextPart { flow, id: id.into(), ends, start }));
                }
                OpenPart::Call { at, step, progress, chunks, .. } => {
                    let chunks: Vec<Bytes> = chunks.iter().map(|chunk| chunk.clone().into()).collect();
                    let tool = Tool { progress: progress.begun(chunks), known: true, opened: *at, step: *step };
                    parts.opened = parts.opened.max(*at);
                    parts.tools.insert(id.into(), tool);
                }
                OpenPart::Approval { call, request } => {
                    let request = request.clone().into();
                    parts.approvals.insert(id.into(), Approval { call: call.as_str().into(), request, known: true });
                }
            }
        }
        opened.into_iter().for_each(|(at, part)| parts.reopen(at, part));
        parts.forgotten_calls = done >= CALLS_DONE_MAX;
        parts
    }
}

impl Tool {
    fn is_done(&self) -> bool {
        matches!(self.progress, Progress::Done)
    }

    fn mark(&self) -> OpenPart {
        let (progress, chunks, whole) = match &self.progress {
            Progress::Streaming { start, .. } => (CallProgress::Streaming, vec![text(start)], false),
            Progress::Waiting { chunks, preliminary } => {
                let short: Vec<String> = chunks.iter().filter_map(shortened).collect();
                // A preliminary output that was too long is not the last chunk any more.
                let preliminary = *preliminary && short.len() == chunks.len();
                let whole = chunks.iter().all(|chunk| chunk.len() <= CHUNK_BYTES_MAX);
                (CallProgress::Waiting { preliminary }, short, whole)
            }
            Progress::Done => (CallProgress::Done, Vec::new(), false),
        };
        OpenPart::Call { at: self.opened, step: self.step, progress, chunks, whole }
    }
}

/// The chunk that began a message; only its name if the rest is long.
fn short_start(chunk: &Bytes) -> String {
    let json = text(chunk);
    if json.len() <= CHUNK_BYTES_MAX {
        return json;
    }
    let id = ChunkView::parse(&json).ok().and_then(|view| view.fields.message_id).and_then(text_of);
    text(&Chunk::start(&id.unwrap_or_default()).json)
}

/// A chunk of a call if it is short; the bare call if it is its input; nothing if a parser can do without it.
fn shortened(chunk: &Bytes) -> Option<String> {
    let json = text(chunk);
    if json.len() <= CHUNK_BYTES_MAX {
        return Some(json);
    }
    let view = ChunkView::parse(&json).ok()?;
    let bare = match view.kind {
        ChunkKind::ToolInputAvailable => tool_input(&view.tool_call_id(), &view.tool_name(), None, view.is_dynamic()),
        _ => return None,
    };
    Some(text(&bare.json))
}

impl CallProgress {
    fn begun(self, mut chunks: Vec<Bytes>) -> Progress {
        match self {
            CallProgress::Streaming => Progress::Streaming { start: chunks.pop().unwrap_or_default(), text: None },
            CallProgress::Waiting { preliminary } => Progress::Waiting { chunks, preliminary },
            CallProgress::Done => Progress::Done,
        }
    }
}
