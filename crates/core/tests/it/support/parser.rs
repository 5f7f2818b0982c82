//! A parser as strict as the strictest generation of the AI SDK at each point; it panics at what one of them refuses.

use std::collections::{BTreeMap, BTreeSet};

use bowline_protocol::chunk::ChunkView;
use bowline_protocol::{Chunk, ChunkKind};

#[derive(Debug, Default)]
pub struct Parser {
    texts: BTreeSet<String>,
    thoughts: BTreeSet<String>,
    streaming: BTreeSet<String>,
    /// Calls, and whether they are dynamic: one generation looks for the two in different places.
    calls: BTreeMap<String, bool>,
    approvals: BTreeSet<String>,
    started: bool,
    pub terminals: usize,
}

impl Parser {
    /// Reads a whole stream.
    pub fn read(chunks: &[Chunk]) -> Parser {
        let mut parser = Parser::default();
        chunks.iter().for_each(|chunk| parser.take(chunk));
        parser
    }

    pub fn take(&mut self, chunk: &Chunk) {
        let text = std::str::from_utf8(&chunk.json).unwrap();
        let view = ChunkView::parse(text).unwrap_or_else(|error| panic!("{error} {text}"));
        let (id, call) = (view.id().into_owned(), view.tool_call_id().into_owned());
        assert_eq!(self.terminals, 0, "nothing follows the terminal: {text}");
        // A notice that passes makes no message, so it may stand before one.
        let passes = text.contains("\"transient\":true");
        assert!(self.started || passes || view.kind == ChunkKind::Start, "a message starts first: {text}");
        match view.kind {
            ChunkKind::Start => self.started = true,
            ChunkKind::TextStart => drop(self.texts.insert(id)),
            ChunkKind::TextDelta => assert!(self.texts.contains(&id), "a delta before its start: {text}"),
            ChunkKind::TextEnd => assert!(self.texts.remove(&id), "an end before its start: {text}"),
            ChunkKind::ReasoningStart => drop(self.thoughts.insert(id)),
            ChunkKind::ReasoningDelta => assert!(self.thoughts.contains(&id), "a delta before its start: {text}"),
            ChunkKind::ReasoningEnd => assert!(self.thoughts.remove(&id), "an end before its start: {text}"),
            ChunkKind::FinishStep => {
                self.texts.clear();
                self.thoughts.clear();
            }
            ChunkKind::ResetStep => {
                self.texts.clear();
                self.thoughts.clear();
                self.streaming.clear();
            }
            ChunkKind::ToolInputStart => {
                self.streaming.insert(call.clone());
                self.calls.insert(call, view.is_dynamic());
            }
            ChunkKind::ToolInputDelta => assert!(self.streaming.contains(&call), "an input before its start: {text}"),
            ChunkKind::ToolInputAvailable | ChunkKind::ToolInputError => {
                self.calls.insert(call, view.is_dynamic());
            }
            ChunkKind::ToolOutputAvailable | ChunkKind::ToolOutputError => {
                assert_eq!(self.calls.get(&call), Some(&view.is_dynamic()), "an output before its call: {text}");
            }
            ChunkKind::ToolOutputDenied => assert!(self.calls.contains_key(&call), "an output before its call: {text}"),
            ChunkKind::ToolApprovalRequest => {
                assert!(self.calls.contains_key(&call), "a question before its call: {text}");
                self.approvals.insert(view.approval_id().into_owned());
            }
            ChunkKind::ToolApprovalResponse => {
                assert!(self.approvals.contains(&*view.approval_id()), "an answer before its question: {text}");
            }
            ChunkKind::Finish | ChunkKind::Abort => self.terminals += 1,
            _ => {}
        }
    }

    /// It has the calls that are over somewhere in this stream, from elsewhere.
    pub fn was_told_of_calls(&mut self, chunks: &[Chunk]) {
        for chunk in chunks {
            let view = ChunkView::parse(std::str::from_utf8(&chunk.json).unwrap()).unwrap();
            if matches!(view.kind, ChunkKind::ToolOutputAvailable | ChunkKind::ToolOutputError) {
                self.calls.insert(view.tool_call_id().into_owned(), view.is_dynamic());
            }
        }
    }

    /// What a parser has open after the terminal would look unfinished for ever.
    pub fn open(&self) -> usize {
        self.texts.len() + self.thoughts.len()
    }
}
