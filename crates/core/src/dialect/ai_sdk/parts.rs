//! What is open in the stream at one point: the message, its step, its texts and its tool calls.

use std::collections::BTreeMap;
use std::fmt;

use bowline_protocol::chunk::ChunkBuilder;
use bowline_protocol::{Chunk, ChunkKind};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::kept;

/// The two kinds of text that grow by deltas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextKind {
    Text,
    Reasoning,
}

impl TextKind {
    pub fn start(self) -> ChunkKind {
        match self {
            TextKind::Text => ChunkKind::TextStart,
            TextKind::Reasoning => ChunkKind::ReasoningStart,
        }
    }

    pub fn delta(self) -> ChunkKind {
        match self {
            TextKind::Text => ChunkKind::TextDelta,
            TextKind::Reasoning => ChunkKind::ReasoningDelta,
        }
    }

    pub fn end(self) -> ChunkKind {
        match self {
            TextKind::Text => ChunkKind::TextEnd,
            TextKind::Reasoning => ChunkKind::ReasoningEnd,
        }
    }

    /// What the ids of our own parts begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            TextKind::Text => "text",
            TextKind::Reasoning => "reasoning",
        }
    }
}

/// Who ends a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ends {
    /// It is ours, and the next thing that does not extend it ends it.
    Implicitly,
    /// An upstream named it, and ends it.
    ByName,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct TextPart {
    pub flow: TextKind,
    pub id: Box<str>,
    pub ends: Ends,
    /// The chunk that began it.
    #[serde(with = "kept::chunk")]
    pub(super) start: Bytes,
}

impl fmt::Debug for TextPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part({:?}, {:?}, {} bytes)", self.flow, self.ends, self.start.len())
    }
}

/// How far a tool call has come.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum Progress {
    /// Its input is arriving. The text so far is the body of a JSON string; even an empty delta shows in a parser.
    Streaming {
        #[serde(with = "kept::chunk")]
        start: Bytes,
        /// Not kept: only a reader who is framed needs it, and nothing that is kept frames one.
        #[serde(skip)]
        text: Option<String>,
    },
    /// Its input is there. These chunks bring a parser to where the call stands.
    Waiting {
        #[serde(with = "kept::chunks")]
        chunks: Vec<Bytes>,
        preliminary: bool,
    },
    Done,
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Tool {
    pub progress: Progress,
    /// Whether the reader's parser has it. One that is done before a framed reader begins, it has not.
    pub known: bool,
    pub opened: u64,
    pub step: u64,
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let progress = match &self.progress {
            Progress::Streaming { text, .. } => format!("streaming, {} bytes", text.as_ref().map_or(0, String::len)),
            Progress::Waiting { chunks, .. } => format!("waiting, {} chunks", chunks.len()),
            Progress::Done => "done".to_owned(),
        };
        write!(f, "Tool({progress}, known: {})", self.known)
    }
}

/// A question whether a call may be made.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Approval {
    pub call: Box<str>,
    #[serde(with = "kept::chunk")]
    pub request: Bytes,
    /// Whether the reader's parser has it.
    pub known: bool,
}

impl fmt::Debug for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Approval({} bytes, known: {})", self.request.len(), self.known)
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Parts {
    /// By when they were opened.
    pub(super) parts: BTreeMap<u64, TextPart>,
    /// Where an id is found among them.
    texts: BTreeMap<Box<str>, u64>,
    thoughts: BTreeMap<Box<str>, u64>,
    /// The one that the next other thing ends.
    implicit: Option<u64>,
    pub(super) tools: BTreeMap<Box<str>, Tool>,
    pub(super) approvals: BTreeMap<Box<str>, Approval>,
    /// The chunk with which an upstream began the message itself. Then its steps are the upstream's too.
    #[serde(with = "kept::maybe_chunk")]
    pub(super) start: Option<Bytes>,
    pub(super) in_step: bool,
    pub(super) steps: u64,
    /// Counts what was opened, so that framing keeps the order.
    pub(super) opened: u64,
    /// Something was opened, closed or came further since this was last asked, which is at each event.
    #[serde(skip)]
    changed: bool,
    /// So many calls are over that the oldest of them are not among these.
    pub(super) forgotten_calls: bool,
}

impl Parts {
    fn next_opened(&mut self) -> u64 {
        self.opened += 1;
        self.opened
    }

    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// An upstream begins the message, with this chunk.
    pub fn begin_message(&mut self, start: Bytes) {
        self.changed = true;
        self.start = Some(start);
    }

    /// Whether a step is open that is ours to end.
    pub fn in_own_step(&self) -> bool {
        self.in_step && self.start.is_none()
    }

    /// The chunk that begins the message: the upstream's own, or ours.
    pub fn message_start(&self, message_id: &str) -> Chunk {
        self.start.as_ref().map_or_else(|| Chunk::start(message_id), again)
    }

    pub fn begin_step(&mut self) {
        self.changed = true;
        self.in_step = true;
        self.steps += 1;
    }

    /// Two generations of the SDK forget their open texts when a step ends, so nothing may refer to them afterwards.
    pub fn end_step(&mut self) {
        self.changed = true;
        self.in_step = false;
        self.take_parts();
    }

    /// The newest generation of the SDK can retract what it got in this step.
    pub fn reset_step(&mut self) {
        self.changed = true;
        let step = self.steps;
        self.take_parts();
        self.tools.retain(|_, tool| tool.step != step);
        self.approvals.retain(|_, approval| self.tools.contains_key(&approval.call));
    }

    fn take_parts(&mut self) -> BTreeMap<u64, TextPart> {
        self.texts.clear();
        self.thoughts.clear();
        self.implicit = None;
        std::mem::take(&mut self.parts)
    }

    fn ids(&mut self, flow: TextKind) -> &mut BTreeMap<Box<str>, u64> {
        match flow {
            TextKind::Text => &mut self.texts,
            TextKind::Reasoning => &mut self.thoughts,
        }
    }

    pub fn open(&mut self, flow: TextKind, id: &str, ends: Ends, start: Bytes) {
        // An id that is opened twice means the newer part from then on, in every parser.
        self.close(flow, id);
        self.changed = true;
        let opened = self.next_opened();
        self.reopen(opened, TextPart { flow, id: id.into(), ends, start });
    }

    /// Puts a part where it was.
    pub(super) fn reopen(&mut self, opened: u64, part: TextPart) {
        self.opened = self.opened.max(opened);
        self.ids(part.flow).insert(part.id.clone(), opened);
        if part.ends == Ends::Implicitly {
            self.implicit = Some(opened);
        }
        self.parts.insert(opened, part);
    }

    pub fn is_open(&self, flow: TextKind, id: &str) -> bool {
        match flow {
            TextKind::Text => self.texts.contains_key(id),
            TextKind::Reasoning => self.thoughts.contains_key(id),
        }
    }

    /// The part that the next other thing ends.
    pub fn implicit(&self) -> Option<&TextPart> {
        self.parts.get(&self.implicit?)
    }

    pub fn newest_text(&self) -> Option<&TextPart> {
        self.parts.values().rev().find(|part| part.flow == TextKind::Text)
    }

    pub fn oldest(&self) -> Option<&TextPart> {
        self.parts.values().next()
    }

    /// False if there was nothing to close.
    pub fn close(&mut self, flow: TextKind, id: &str) -> bool {
        let Some(opened) = self.ids(flow).remove(id) else { return false };
        self.changed = true;
        self.implicit = self.implicit.filter(|implicit| *implicit != opened);
        self.parts.remove(&opened).is_some()
    }

    fn put_tool(&mut self, id: &str, progress: Progress) {
        self.changed = true;
        // A call whose input streamed in stays where it began.
        let same = self.tools.get(id).filter(|tool| tool.known && tool.step == self.steps);
        let opened = same.map(|tool| tool.opened).unwrap_or_else(|| self.next_opened());
        let tool = Tool { progress, known: true, opened, step: self.steps };
        self.tools.insert(id.into(), tool);
    }

    pub fn tool_streams(&mut self, id: &str, start: Bytes) {
        self.put_tool(id, Progress::Streaming { start, text: None });
    }

    /// Whether more of its input can be taken: its beginning was seen.
    pub fn is_tool_streaming(&self, id: &str) -> bool {
        matches!(self.tools.get(id), Some(Tool { progress: Progress::Streaming { .. }, .. }))
    }

    /// More of a tool's input, the body of a JSON string.
    pub fn tool_grows(&mut self, id: &str, body: &str) {
        if let Some(Tool { progress: Progress::Streaming { text, .. }, .. }) = self.tools.get_mut(id) {
            text.get_or_insert_default().push_str(body);
        }
    }

    pub fn tool_waits(&mut self, id: &str, input: Bytes) {
        // What the chunk that began a streamed input said of the call, it keeps.
        let began = match self.tools.get(id) {
            Some(Tool { progress: Progress::Streaming { start, .. }, known: true, .. }) => Some(start.clone()),
            _ => None,
        };
        let chunks = began.into_iter().chain([input]).collect();
        self.put_tool(id, Progress::Waiting { chunks, preliminary: false });
    }

    /// Something that changes how a waiting call looks, and does not end it.
    pub fn tool_shows(&mut self, id: &str, chunk: Bytes, is_preliminary: bool) {
        if let Some(Tool { progress: Progress::Waiting { chunks, preliminary }, .. }) = self.tools.get_mut(id) {
            self.changed = true;
            // A preliminary output replaces the one before.
            if *preliminary && is_preliminary {
                chunks.pop();
            }
            chunks.push(chunk);
            *preliminary = is_preliminary;
        }
    }

    pub fn tool_asks(&mut self, id: &str, approval: &str, request: Bytes) {
        self.tool_shows(id, request.clone(), false);
        self.changed = true;
        self.approvals.insert(approval.into(), Approval { call: id.into(), request, known: true });
    }

    /// The answer to a question about a call.
    pub fn tool_answered(&mut self, id: &str, approval: &str, response: Bytes) {
        let request = self.approvals.get(approval).map(|approval| approval.request.clone());
        let has = |chunks: &[Bytes]| request.as_ref().is_none_or(|request| chunks.contains(request));
        // A call that was made once more since it was asked for stands behind the question.
        let asked_before = match self.tools.get(id) {
            Some(Tool { progress: Progress::Waiting { chunks, .. }, .. }) => !has(chunks),
            _ => false,
        };
        request.filter(|_| asked_before).into_iter().for_each(|request| self.tool_shows(id, request, false));
        self.tool_shows(id, response, false);
    }

    /// The call that this question is about.
    pub fn tool_asked(&self, approval: &str) -> Option<Box<str>> {
        self.approvals.get(approval).map(|approval| approval.call.clone())
    }

    /// The question, if the reader's parser does not have it. From now on it has.
    pub fn tell_approval(&mut self, approval: &str) -> Option<Bytes> {
        let approval = self.approvals.get_mut(approval)?;
        let unknown = !std::mem::replace(&mut approval.known, true);
        unknown.then(|| approval.request.clone())
    }

    pub fn tool_ends(&mut self, id: &str) {
        match self.tools.get_mut(id) {
            Some(tool) => {
                tool.progress = Progress::Done;
                self.changed = true;
            }
            None => self.put_tool(id, Progress::Done),
        }
    }

    /// Whether the reader's parser has all calls and questions.
    pub fn are_known(&self) -> bool {
        self.tools.values().all(|tool| tool.known) && self.approvals.values().all(|approval| approval.known)
    }

    /// Whether a call that is not known here may have been made and be over.
    pub fn has_forgotten_calls(&self) -> bool {
        self.forgotten_calls
    }

    /// Whether the reader's parser has this call.
    pub fn is_tool_known(&self, id: &str) -> bool {
        self.tools.get(id).is_some_and(|tool| tool.known)
    }

    /// What was made up for the reader, it has.
    pub fn tell_tool(&mut self, id: &str) {
        if let Some(tool) = self.tools.get_mut(id) {
            tool.known = true;
        }
    }

    /// After a gap it is not known what is open. What the reader's parser still has open is returned, to be ended; the
    /// calls that it has, it keeps, but an input that was arriving has a hole in it, and nothing is added to it.
    pub fn lose(&mut self) -> impl Iterator<Item = TextPart> + use<> {
        self.in_step = false;
        self.tools.retain(|_, tool| tool.known);
        self.approvals.retain(|_, approval| approval.known && self.tools.contains_key(&approval.call));
        for tool in self.tools.values_mut() {
            if matches!(tool.progress, Progress::Streaming { .. }) {
                tool.progress = Progress::Done;
            }
        }
        self.take_parts().into_values()
    }

    /// What a fresh parser needs before it can follow from here, in the order in which it was opened. From now on the
    /// reader is that parser: it does not have what is already over.
    pub fn framing(&mut self) -> Vec<Chunk> {
        let mut opened: Vec<(u64, Vec<Chunk>)> = Vec::new();
        opened.extend(self.parts.iter().map(|(order, part)| (*order, vec![again(&part.start)])));
        for (id, tool) in &mut self.tools {
            match &tool.progress {
                Progress::Streaming { start, text } => {
                    let mut chunks = vec![again(start)];
                    if let Some(text) = text {
                        let delta = ChunkBuilder::new(ChunkKind::ToolInputDelta.as_str(), id.len() + text.len());
                        chunks.push(delta.text("toolCallId", id).delta("inputTextDelta", &format!("\"{text}\"")));
                    }
                    opened.push((tool.opened, chunks));
                }
                Progress::Waiting { chunks, .. } => {
                    opened.push((tool.opened, chunks.iter().map(again).collect()));
                }
                Progress::Done => tool.known = false,
            }
        }
        for approval in self.approvals.values_mut() {
            let call = self.tools.get(&approval.call).map(|tool| &tool.progress);
            approval.known =
                matches!(call, Some(Progress::Waiting { chunks, .. }) if chunks.contains(&approval.request));
        }
        opened.sort_by_key(|(order, _)| *order);
        let step = self.in_step.then(|| Chunk::bare(ChunkKind::StartStep));
        step.into_iter().chain(opened.into_iter().flat_map(|(_, chunks)| chunks)).collect()
    }
}

/// The same chunk, made up once more.
pub(super) fn again(json: &Bytes) -> Chunk {
    Chunk::made_up(json.clone())
}
