//! An upstream's own chunk, sent as it was written, while what it opens and closes is followed.

use bowline_protocol::chunk::ChunkView;
use bowline_protocol::event::names;
use bowline_protocol::{Chunk, ChunkKind, EventView, json};
use serde_json::value::RawValue;

use super::Projector;
use super::events::{EventFacts, body_of};
use super::parts::{Ends, TextKind};
use super::sanitize::sanitized;

/// The chunk with which an upstream begins its message, if this event is that.
pub(super) fn message_start(view: &EventView<'_>) -> Option<Chunk> {
    if view.event != names::CHUNK {
        return None;
    }
    let line = json::one_line(view.content.get());
    let line = sanitized(&line);
    let is_start = ChunkView::parse(&line).is_ok_and(|chunk| chunk.kind == ChunkKind::Start);
    is_start.then(|| Chunk::verbatim(&line))
}

impl Projector {
    /// Sends a chunk word for word. False if it is none, or one that is not an upstream's to send here.
    ///
    /// What no parser would take is not sent: the end of a part that is not open, the rest of an input that has lost its
    /// beginning, a name that reaches into a prototype.
    pub(super) fn verbatim(&mut self, raw: &RawValue, facts: &EventFacts<'_>) -> bool {
        let line = json::one_line(raw.get());
        let line = sanitized(&line);
        let Ok(view) = ChunkView::parse(&line) else { return false };
        let chunk = Chunk::viewed(&line, &view);
        match view.kind {
            // The stream has one beginning and one end, and neither is an upstream's.
            ChunkKind::Start | ChunkKind::Finish | ChunkKind::Abort | ChunkKind::Error => return false,
            ChunkKind::TextStart => self.upstream_start(TextKind::Text, &view, chunk),
            ChunkKind::ReasoningStart => self.upstream_start(TextKind::Reasoning, &view, chunk),
            ChunkKind::TextDelta => self.upstream_delta(TextKind::Text, &view, chunk),
            ChunkKind::ReasoningDelta => self.upstream_delta(TextKind::Reasoning, &view, chunk),
            ChunkKind::TextEnd => self.upstream_end(TextKind::Text, &view, chunk),
            ChunkKind::ReasoningEnd => self.upstream_end(TextKind::Reasoning, &view, chunk),
            ChunkKind::StartStep => {
                self.end_implicit();
                self.parts.begin_step();
                self.own(chunk);
            }
            ChunkKind::FinishStep => {
                self.end_implicit();
                self.parts.end_step();
                self.own(chunk);
            }
            ChunkKind::ResetStep => {
                self.end_implicit();
                self.parts.reset_step();
                self.own(chunk);
            }
            _ if view.fields.tool_call_id.is_some() && view.kind != ChunkKind::Data => {
                self.upstream_tool(&view, chunk, facts);
            }
            ChunkKind::ToolApprovalResponse => {
                // The parser looks for the call by its question; without it, it would refuse the stream.
                let approval = view.approval_id();
                if let Some(id) = self.parts.tool_asked(&approval) {
                    self.end_implicit();
                    self.ensure_tool(&id, facts, false);
                    self.parts.tell_approval(&approval).into_iter().for_each(|json| self.made_up(Chunk::made_up(json)));
                    self.parts.tool_answered(&id, &approval, chunk.json.clone());
                    self.own(chunk);
                }
            }
            _ => {
                self.end_implicit();
                self.own(chunk);
            }
        }
        true
    }

    fn upstream_start(&mut self, flow: TextKind, view: &ChunkView<'_>, chunk: Chunk) {
        self.end_implicit();
        self.start(flow, &view.id(), Ends::ByName, chunk);
    }

    fn upstream_delta(&mut self, flow: TextKind, view: &ChunkView<'_>, chunk: Chunk) {
        let literal = view.delta_text().map_or("\"\"", RawValue::get);
        self.ensure_open(flow, &view.id(), Ends::ByName);
        self.delta(flow, chunk, literal);
    }

    fn upstream_end(&mut self, flow: TextKind, view: &ChunkView<'_>, chunk: Chunk) {
        let id = view.id();
        if self.parts.implicit().is_some_and(|open| open.flow != flow || *open.id != *id) {
            self.end_implicit();
        }
        if self.parts.close(flow, &id) {
            self.own(chunk);
        }
    }

    fn upstream_tool(&mut self, view: &ChunkView<'_>, chunk: Chunk, facts: &EventFacts<'_>) {
        let id = view.tool_call_id();
        let json = chunk.json.clone();
        match view.kind {
            ChunkKind::ToolInputDelta => {
                if !self.parts.is_tool_streaming(&id) {
                    return;
                }
                self.end_implicit();
                self.parts.tool_grows(&id, body_of(view.delta_text().map_or("", RawValue::get)));
            }
            ChunkKind::ToolInputStart => {
                self.end_implicit();
                self.parts.tool_streams(&id, json);
            }
            ChunkKind::ToolInputAvailable => {
                self.end_implicit();
                self.parts.tool_waits(&id, json);
            }
            ChunkKind::ToolInputError => {
                self.end_implicit();
                self.parts.tool_ends(&id);
                self.parts.tell_tool(&id);
            }
            kind => {
                self.end_implicit();
                self.ensure_tool(&id, facts, view.is_dynamic());
                match kind {
                    ChunkKind::ToolApprovalRequest => self.parts.tool_asks(&id, &view.approval_id(), json),
                    ChunkKind::ToolOutputAvailable if view.is_preliminary() => self.parts.tool_shows(&id, json, true),
                    _ => self.parts.tool_ends(&id),
                }
            }
        }
        self.own(chunk);
    }
}
