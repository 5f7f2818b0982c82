//! The mapping, row by row: which chunks each kind of event becomes.

use std::borrow::Cow;

use bowline_protocol::chunk::{ChunkBuilder, ChunkView};
use bowline_protocol::event::names;
use bowline_protocol::{Chunk, ChunkKind, EventView, json};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::parts::{Ends, TextKind};
use super::sanitize::sanitized;
use super::streamed::{Rest, rest_after};
use super::{ChunkStage, Numbers, Projector, end};

/// What a call is named if nothing says its tool. A parser needs some name.
const UNNAMED_TOOL: &str = "unknown";

/// What the mapping looks at in an event's metadata; each as it was written, and `null` as good as absent.
#[derive(Clone, Copy, Default, Deserialize)]
pub struct EventFacts<'a> {
    #[serde(borrow, default)]
    pub index: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub part: Option<&'a RawValue>,
    /// The upstream's own chunk, where ours would differ from it.
    #[serde(borrow, default)]
    pub chunk: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub tool: Option<&'a RawValue>,
    /// The id that the caller gave the call.
    #[serde(borrow, default)]
    pub tool_call_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub args: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub status: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub model: Option<&'a RawValue>,
    /// The chunk with which an upstream ended.
    #[serde(borrow, default)]
    pub finish: Option<&'a RawValue>,
    /// How much of the answer was streamed before: so many bytes, or `false` if that was something else.
    #[serde(borrow, default)]
    pub streamed: Option<&'a RawValue>,
}

impl<'a> EventFacts<'a> {
    pub fn of(metadata: Option<&'a RawValue>) -> EventFacts<'a> {
        metadata.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
    }
}

/// The fields of an event's content that name what it is about.
#[derive(Default, Deserialize)]
struct EventSubject<'a> {
    #[serde(borrow, default)]
    task_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    task: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    operation_id: Option<&'a RawValue>,
}

impl<'a> EventSubject<'a> {
    fn of(content: &'a RawValue) -> EventSubject<'a> {
        // A list would be read as a struct too.
        let object = content.get().starts_with('{');
        object.then(|| serde_json::from_str(content.get()).ok()).flatten().unwrap_or_default()
    }
}

impl Projector {
    pub(super) fn handle_view(&mut self, view: &EventView<'_>, facts: &EventFacts<'_>) {
        match view.event {
            names::THINKING => self.thinking(view, facts),
            names::PARTIAL_ANSWER => self.partial_answer(view, facts),
            names::TOOL_CALL => self.tool_call(view, facts),
            names::TOOL_RESULT => self.tool_result(view, facts),
            names::OPERATION_STARTED => self.operation_started(view, facts),
            names::CHUNK => self.upstream_chunk(view, facts),
            names::FINAL_ANSWER => self.final_answer(view, facts),
            names::CANCELLED => self.cancelled(facts),
            names::ERROR => self.error(view, facts),
            _ => self.data(view),
        }
    }

    fn thinking(&mut self, view: &EventView<'_>, facts: &EventFacts<'_>) {
        if facts.chunk.is_some_and(|chunk| self.verbatim(chunk, facts)) {
            return;
        }
        let part = facts.part.and_then(text_of);
        // Without an index it is a whole thought: it extends nothing, and nothing will extend it.
        let whole = facts.index.is_none() && part.is_none();
        if whole {
            self.end_implicit();
        }
        self.extend(TextKind::Reasoning, part.as_deref(), &text_literal(view.content));
        if whole {
            self.end_implicit();
        }
    }

    fn partial_answer(&mut self, view: &EventView<'_>, facts: &EventFacts<'_>) {
        if facts.chunk.is_some_and(|chunk| self.verbatim(chunk, facts)) {
            return;
        }
        let part = facts.part.and_then(text_of);
        self.extend(TextKind::Text, part.as_deref(), &text_literal(view.content));
    }

    /// A delta, in the part that an upstream named, or in our own.
    fn extend(&mut self, flow: TextKind, part: Option<&str>, literal: &str) {
        let (id, ends) = match (part, self.parts.implicit()) {
            (Some(part), _) => (part.into(), Ends::ByName),
            (None, Some(open)) if open.flow == flow => (open.id.clone(), Ends::Implicitly),
            (None, _) => (self.part_id(flow), Ends::Implicitly),
        };
        self.ensure_open(flow, &id, ends);
        self.delta(flow, delta_chunk(flow, &id, literal), literal);
    }

    /// The id of a part of ours that begins with this event.
    fn part_id(&self, flow: TextKind) -> Box<str> {
        format!("{}-{}", flow.prefix(), self.output.seq).into()
    }

    /// Begins the part unless it is open, and ends the one that this delta does not extend.
    pub(super) fn ensure_open(&mut self, flow: TextKind, id: &str, ends: Ends) {
        if self.parts.implicit().is_some_and(|open| open.flow != flow || *open.id != *id) {
            self.end_implicit();
        }
        if !self.parts.is_open(flow, id) {
            let start = ChunkBuilder::new(flow.start().as_str(), id.len()).text("id", id).done();
            self.start(flow, id, ends, start);
        }
    }

    pub(super) fn start(&mut self, flow: TextKind, id: &str, ends: Ends, start: Chunk) {
        self.parts.open(flow, id, ends, start.json.clone());
        if flow == TextKind::Text {
            self.streamed.begin_part();
        }
        self.own(start);
    }

    pub(super) fn delta(&mut self, flow: TextKind, delta: Chunk, literal: &str) {
        if flow == TextKind::Text {
            self.streamed.push(body_of(literal));
        }
        self.own(delta);
    }

    /// Ends our own open part: something else comes.
    pub(super) fn end_implicit(&mut self) {
        let Some((flow, id)) = self.parts.implicit().map(|open| (open.flow, open.id.clone())) else { return };
        self.parts.close(flow, &id);
        self.own(end(flow, &id));
    }

    fn tool_call(&mut self, view: &EventView<'_>, facts: &EventFacts<'_>) {
        if facts.chunk.is_some_and(|chunk| self.verbatim(chunk, facts)) {
            return;
        }
        self.end_implicit();
        let id = self.call_id(view.step_id);
        let input = tool_input(&id, &tool_name(facts.tool), facts.args, false);
        self.parts.tool_waits(&id, input.json.clone());
        self.own(input);
    }

    fn tool_result(&mut self, view: &EventView<'_>, facts: &EventFacts<'_>) {
        if facts.chunk.is_some_and(|chunk| self.verbatim(chunk, facts)) {
            return;
        }
        self.end_implicit();
        let id = self.call_id(view.step_id);
        self.ensure_tool(&id, facts, false);
        let failed = matches!(facts.status.and_then(text_of).as_deref(), Some("failed" | "unknown"));
        let output = if failed {
            tool_error(&id, &text_literal(facts.error.unwrap_or(view.content)))
        } else {
            tool_output(&id, facts.data.unwrap_or(view.content))
        };
        self.parts.tool_ends(&id);
        self.own(output);
    }

    /// Makes up the input of a call that the reader's parser does not have, or its output would be refused.
    pub(super) fn ensure_tool(&mut self, id: &str, facts: &EventFacts<'_>, dynamic: bool) {
        if !self.parts.is_tool_known(id) {
            self.inexact |= self.parts.has_forgotten_calls();
            let input = tool_input(id, &tool_name(facts.tool), facts.args, dynamic);
            self.parts.tool_waits(id, input.json.clone());
            self.made_up(input);
        }
    }

    /// The step pairs a call with its result. One without a step stands alone.
    fn call_id<'a>(&self, step_id: Option<&'a RawValue>) -> Cow<'a, str> {
        step_id.and_then(text_of).unwrap_or_else(|| format!("call-{}", self.output.seq).into())
    }

    fn operation_started(&mut self, view: &EventView<'_>, facts: &EventFacts<'_>) {
        self.end_implicit();
        let subject = EventSubject::of(view.content);
        let id = self.call_id(view.step_id.or(facts.tool_call_id).or(subject.operation_id));
        let facts = &EventFacts { tool: subject.tool_name.or(facts.tool), ..*facts };
        if view.step_id.is_some() {
            self.ensure_tool(&id, facts, false);
        } else {
            // It was not called in this turn, so the call is part of the event. The event alone decides that: what was
            // called before may be gone.
            let input = tool_input(&id, &tool_name(facts.tool), facts.args, false);
            self.parts.tool_waits(&id, input.json.clone());
            self.own(input);
        }
        self.parts.tool_ends(&id);
        self.own(tool_output(&id, view.content));
    }

    fn upstream_chunk(&mut self, view: &EventView<'_>, facts: &EventFacts<'_>) {
        if !self.verbatim(view.content, facts) {
            self.data(view);
        }
    }

    fn data(&mut self, view: &EventView<'_>) {
        self.end_implicit();
        let metadata = view.metadata.filter(|raw| !matches!(json::compact(raw.get()).as_str(), "{}" | "null"));
        let room = view.content.get().len() + metadata.map_or(0, |raw| raw.get().len());
        let mut chunk = ChunkBuilder::new(&data_type(view.event), room + 128);
        if let Some(id) = solver_id(view) {
            chunk = chunk.text("id", &id);
        }
        let mut data = Vec::with_capacity(room + 64);
        data.extend_from_slice(b"{\"event\":");
        json::push_string(&mut data, view.event);
        let fields = [("step_id", view.step_id), ("content", Some(view.content)), ("metadata", metadata)];
        for (key, raw) in fields.into_iter().filter_map(|(key, raw)| raw.map(|raw| (key, raw))) {
            data.extend_from_slice(format!(",\"{key}\":").as_bytes());
            data.extend_from_slice(sanitized(raw.get()).as_bytes());
        }
        data.push(b'}');
        self.own(chunk.raw("data", &String::from_utf8_lossy(&data)).done());
    }

    fn final_answer(&mut self, view: &EventView<'_>, facts: &EventFacts<'_>) {
        let literal = text_literal(view.content);
        match self.rest(body_of(&literal), facts) {
            Rest::Nothing => {}
            Rest::Tail(tail) => {
                let literal = format!("\"{tail}\"");
                match self.parts.newest_text().map(|part| part.id.clone()) {
                    Some(id) => self.delta(TextKind::Text, delta_chunk(TextKind::Text, &id, &literal), &literal),
                    None => self.extend(TextKind::Text, None, &literal),
                }
            }
            Rest::Everything => {
                self.output.sent_whole = true;
                self.end_implicit();
                if !body_of(&literal).is_empty() {
                    self.extend(TextKind::Text, None, &literal);
                }
            }
        }
        self.end_all();
        if self.has_gap {
            self.heal(&literal);
        }
        if self.parts.in_own_step() {
            self.parts.end_step();
            self.own(Chunk::bare(ChunkKind::FinishStep));
        }
        let finish = upstream_end(facts, ChunkKind::Finish).unwrap_or_else(|| finish(facts));
        self.own(finish);
        self.stage = ChunkStage::Over;
    }

    /// What of a whole answer was not streamed yet. Its event says so, and then every reader says the same.
    fn rest<'a>(&mut self, body: &'a str, facts: &EventFacts<'_>) -> Rest<'a> {
        match facts.streamed.map(|raw| raw.get().parse().ok()) {
            Some(Some(bytes)) => rest_after(body, bytes),
            Some(None) => Rest::Everything,
            None => {
                if self.streamed.is_blind() {
                    self.inexact = true;
                    // Readers may differ here, so no chunk but the last has a place.
                    self.numbers = Numbers::WholeEvents;
                    return Rest::Everything;
                }
                self.streamed.rest(body)
            }
        }
    }

    /// Brings the whole answer, in a part that only this reader gets: what it had of the others has holes.
    fn heal(&mut self, literal: &str) {
        let id = format!("whole-{}", self.output.seq);
        // What was streamed since the gap may be all of it.
        let has_it = self.output.sent_whole || self.streamed.rest(body_of(literal)) == Rest::Nothing;
        if has_it || body_of(literal).is_empty() {
            return;
        }
        let start = ChunkBuilder::new(ChunkKind::TextStart.as_str(), id.len()).text("id", &id).done();
        for chunk in [start, delta_chunk(TextKind::Text, &id, literal), end(TextKind::Text, &id)] {
            self.made_up(chunk);
        }
    }

    fn cancelled(&mut self, facts: &EventFacts<'_>) {
        self.end_all();
        let abort = upstream_end(facts, ChunkKind::Abort).unwrap_or_else(|| Chunk::bare(ChunkKind::Abort));
        self.own(abort);
        self.stage = ChunkStage::Over;
    }

    fn error(&mut self, view: &EventView<'_>, facts: &EventFacts<'_>) {
        self.end_all();
        let said = || ChunkBuilder::new(ChunkKind::Error.as_str(), 0).raw("errorText", &text_literal(view.content));
        let error = upstream_end(facts, ChunkKind::Error).unwrap_or_else(|| said().done());
        self.own(error);
        self.own(Chunk::bare(ChunkKind::Finish));
        self.stage = ChunkStage::Over;
    }

    fn end_all(&mut self) {
        while let Some((flow, id)) = self.parts.oldest().map(|part| (part.flow, part.id.clone())) {
            self.parts.close(flow, &id);
            self.own(end(flow, &id));
        }
    }
}

/// The upstream's own last chunk, if it was one of this kind.
fn upstream_end(facts: &EventFacts<'_>, kind: ChunkKind) -> Option<Chunk> {
    let raw = sanitized(facts.finish?.get());
    let fits = ChunkView::parse(&raw).is_ok_and(|view| view.kind == kind);
    fits.then(|| Chunk::verbatim(&raw))
}

fn finish(facts: &EventFacts<'_>) -> Chunk {
    let known = [("usage", facts.usage), ("model", facts.model)];
    let fields: Vec<String> =
        known.into_iter().filter_map(|(key, raw)| Some(format!("\"{key}\":{}", sanitized(raw?.get())))).collect();
    let finish = ChunkBuilder::new(ChunkKind::Finish.as_str(), 0);
    if fields.is_empty() {
        finish.done()
    } else {
        finish.raw("messageMetadata", &format!("{{{}}}", fields.join(","))).done()
    }
}

pub(super) fn delta_chunk(flow: TextKind, id: &str, literal: &str) -> Chunk {
    let delta = ChunkBuilder::new(flow.delta().as_str(), id.len() + literal.len());
    delta.text("id", id).delta("delta", literal)
}

/// Whether this is what [`delta_chunk`] writes, without writing it.
pub(super) fn is_delta_chunk(line: &str, flow: TextKind, id: &str, literal: &str) -> bool {
    let after_literal = || {
        let rest = line.strip_prefix("{\"type\":\"")?.strip_prefix(flow.delta().as_str())?;
        let rest = rest.strip_prefix("\",\"id\":")?.strip_prefix(json::raw(id).get())?;
        rest.strip_prefix(",\"delta\":")?.strip_prefix(literal)
    };
    after_literal() == Some("}")
}

pub(super) fn tool_input(id: &str, name: &str, input: Option<&RawValue>, dynamic: bool) -> Chunk {
    let input = sanitized(input.map_or("{}", RawValue::get));
    let chunk = ChunkBuilder::new(ChunkKind::ToolInputAvailable.as_str(), id.len() + name.len() + input.len());
    let chunk = chunk.text("toolCallId", id).text("toolName", name).raw("input", &input);
    // One generation looks for a call by this flag, so it is said only where the output will say it.
    if dynamic { chunk.flag("dynamic", true).done() } else { chunk.done() }
}

pub(super) fn tool_output(id: &str, output: &RawValue) -> Chunk {
    let output = sanitized(output.get());
    let chunk = ChunkBuilder::new(ChunkKind::ToolOutputAvailable.as_str(), id.len() + output.len());
    chunk.text("toolCallId", id).raw("output", &output).done()
}

pub(super) fn tool_error(id: &str, text_literal: &str) -> Chunk {
    let chunk = ChunkBuilder::new(ChunkKind::ToolOutputError.as_str(), id.len() + text_literal.len());
    chunk.text("toolCallId", id).raw("errorText", text_literal).done()
}

fn tool_name(raw: Option<&RawValue>) -> Cow<'_, str> {
    raw.and_then(text_of).unwrap_or(Cow::Borrowed(UNNAMED_TOOL))
}

/// `data-plan` for `plan.start`, `data-mood` for `agent.mood`. What a person answers has a type of its own.
fn data_type(event: &str) -> String {
    match (event, event.split_once('.')) {
        (names::OPERATION_COMPLETED, _) => "data-operation".to_owned(),
        (names::USER_RESPONSE, _) => "data-user_response".to_owned(),
        (_, Some(("agent", name))) => format!("data-{name}"),
        (_, Some((namespace, _))) => format!("data-{namespace}"),
        (_, None) => format!("data-{event}"),
    }
}

/// Events about one solver share an id, so that the SDK keeps one part for it.
fn solver_id(view: &EventView<'_>) -> Option<String> {
    view.event.starts_with("solver.").then_some(())?;
    let subject = EventSubject::of(view.content);
    let task = subject.task_id.or_else(|| {
        let task = subject.task?;
        // A task is an object with an id, or the id.
        if task.get().starts_with('{') { EventSubject::of(task).id } else { Some(task) }
    })?;
    match task.get().as_bytes().first()? {
        b'"' => text_of(task).map(|id| format!("solver-{id}")),
        b'-' | b'0'..=b'9' => Some(format!("solver-{}", task.get())),
        _ => None,
    }
}

pub(super) fn text_of(raw: &RawValue) -> Option<Cow<'_, str>> {
    let literal = raw.get();
    match literal.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Some(Cow::Borrowed(plain)),
        Some(_) => serde_json::from_str(literal).ok().map(Cow::Owned),
        None => None,
    }
}

/// The JSON string that a value is, or the one that shows it.
fn text_literal(raw: &RawValue) -> Cow<'_, str> {
    let text = raw.get();
    if text.starts_with('"') {
        return Cow::Borrowed(text);
    }
    let mut literal = Vec::with_capacity(text.len() + 16);
    json::push_string(&mut literal, &json::one_line(text));
    Cow::Owned(String::from_utf8_lossy(&literal).into_owned())
}

/// What stands between the quotes of a JSON string.
pub(super) fn body_of(literal: &str) -> &str {
    literal.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delta_is_known_as_ours_exactly_if_we_would_write_it_like_that() {
        let lines = [
            r#"{"type":"text-delta","id":"t","delta":"a\"b"}"#,
            r#"{"type":"text-delta","id":"t","delta":"a\"b","x":1}"#,
            r#"{"type":"text-delta","delta":"a\"b","id":"t"}"#,
            r#"{"type":"reasoning-delta","id":"t","delta":"a\"b"}"#,
            r#"{"type":"text-delta","id":"t\n","delta":"a\"b"}"#,
            r#"{"type":"text-delta","id":"t","delta":"a\"bc"}"#,
        ];
        for (line, id) in lines.iter().flat_map(|line| ["t", "t\n"].map(|id| (line, id))) {
            for flow in [TextKind::Text, TextKind::Reasoning] {
                let ours = delta_chunk(flow, id, r#""a\"b""#);
                let is_ours = is_delta_chunk(line, flow, id, r#""a\"b""#);
                assert_eq!(is_ours, ours.json == line.as_bytes(), "{line} as {id:?}");
            }
        }
    }
}
