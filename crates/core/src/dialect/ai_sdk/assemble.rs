//! Chunks → the message that the AI SDK builds of them.
//!
//! Where the generations differ, the message is that of the newest (7): reasoning parts have an `id` (5 and 7), files keep
//! their provider metadata (6 and 7), an input that was refused stays `input` (7), calls have titles (6 and 7). Half a
//! surrogate pair, which JavaScript keeps and our texts cannot hold, becomes U+FFFD unless its other half follows.

use std::collections::BTreeMap;
use std::fmt;

use bowline_protocol::chunk::ChunkView;
use bowline_protocol::{Chunk, ChunkKind, json};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::events::body_of;
use super::parts::TextKind;
use super::tool_part::{ToolParts, ToolUpdate};

pub(super) type PartFields = Map<String, Value>;

/// Builds one message.
#[derive(Default)]
pub struct Assembler {
    message_id: Option<String>,
    metadata: Option<Value>,
    parts: Vec<MessagePart>,
    /// Where the parts of the current step begin.
    step: usize,
    /// Data that later data of the same type and id replaces.
    data: BTreeMap<(String, String), usize>,
    active_texts: BTreeMap<String, usize>,
    active_thoughts: BTreeMap<String, usize>,
    tools: ToolParts,
}

/// One part of the message.
pub(super) struct MessagePart {
    pub fields: PartFields,
    pub growing: Growing,
}

/// What of a part grows by deltas.
pub(super) enum Growing {
    Nothing,
    /// Its text: the body of a JSON string, so that the halves of a character find each other.
    Text(String),
    /// Its input, which is kept with the call.
    Input,
}

impl MessagePart {
    pub fn new(fields: PartFields) -> MessagePart {
        MessagePart { fields, growing: Growing::Nothing }
    }

    pub fn kind(&self) -> &str {
        self.fields.get("type").and_then(Value::as_str).unwrap_or_default()
    }
}

impl fmt::Debug for Assembler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Assembler({} parts)", self.parts.len())
    }
}

impl Assembler {
    pub fn new() -> Assembler {
        Assembler::default()
    }

    /// The id that the stream gave the message.
    pub fn message_id(&self) -> Option<&str> {
        self.message_id.as_deref()
    }

    /// What the stream said about the message, merged.
    pub fn metadata(&self) -> Option<&Value> {
        self.metadata.as_ref()
    }

    /// The parts of the message, as the SDK would have them now.
    pub fn parts(&self) -> Vec<Value> {
        self.parts.iter().map(|part| self.render(part)).collect()
    }

    pub fn handle_chunk(&mut self, chunk: &Chunk) {
        let Ok(text) = std::str::from_utf8(&chunk.json) else { return };
        let Ok(view) = ChunkView::parse(text) else { return };
        let delta = view.delta_text().map_or("", RawValue::get);
        match view.kind {
            // The hot ones need no tree.
            ChunkKind::TextDelta if view.fields.provider_metadata.is_none() => {
                return self.grow(TextKind::Text, &view.id(), body_of(delta));
            }
            ChunkKind::ReasoningDelta if view.fields.provider_metadata.is_none() => {
                return self.grow(TextKind::Reasoning, &view.id(), body_of(delta));
            }
            _ => {}
        }
        let fields = object(text);
        match view.kind {
            ChunkKind::Start => {
                self.message_id = view.fields.message_id.and(fields.get("messageId")).and_then(text_of);
                self.merge_metadata(fields.get("messageMetadata"));
            }
            ChunkKind::Finish | ChunkKind::MessageMetadata => self.merge_metadata(fields.get("messageMetadata")),
            ChunkKind::StartStep => {
                self.push(picked("step-start", &fields, &[]));
                self.step = self.parts.len();
            }
            ChunkKind::ResetStep => self.reset_step(),
            // The parsers of two generations forget their open texts here; a legal stream does not notice.
            ChunkKind::FinishStep | ChunkKind::Abort | ChunkKind::Error => {}
            ChunkKind::TextStart => self.start(TextKind::Text, &view.id(), &fields),
            ChunkKind::ReasoningStart => self.start(TextKind::Reasoning, &view.id(), &fields),
            ChunkKind::TextDelta => {
                self.grow(TextKind::Text, &view.id(), body_of(delta));
                self.annotate(TextKind::Text, &view.id(), &fields);
            }
            ChunkKind::ReasoningDelta => {
                self.grow(TextKind::Reasoning, &view.id(), body_of(delta));
                self.annotate(TextKind::Reasoning, &view.id(), &fields);
            }
            ChunkKind::TextEnd => self.end(TextKind::Text, &view.id(), &fields),
            ChunkKind::ReasoningEnd => self.end(TextKind::Reasoning, &view.id(), &fields),
            ChunkKind::File | ChunkKind::ReasoningFile => {
                self.push(picked(view.kind.as_str(), &fields, &["mediaType", "url", "providerMetadata"]));
            }
            ChunkKind::SourceUrl => {
                self.push(picked("source-url", &fields, &["sourceId", "url", "title", "providerMetadata"]));
            }
            ChunkKind::SourceDocument => {
                let keys = ["sourceId", "mediaType", "title", "filename", "providerMetadata"];
                self.push(picked("source-document", &fields, &keys));
            }
            ChunkKind::Custom => self.push(picked("custom", &fields, &["kind", "providerMetadata"])),
            ChunkKind::SteeringMessage => self.push(picked("steering-message", &fields, &["id", "parts"])),
            ChunkKind::Data => self.data(fields),
            kind => {
                let update = ToolUpdate { kind, id: &view.tool_call_id(), delta: body_of(delta), fields: &fields };
                self.tools.handle(&mut self.parts, self.step, &update);
            }
        }
    }

    fn push(&mut self, fields: PartFields) {
        self.parts.push(MessagePart::new(fields));
    }

    fn active(&mut self, flow: TextKind) -> &mut BTreeMap<String, usize> {
        match flow {
            TextKind::Text => &mut self.active_texts,
            TextKind::Reasoning => &mut self.active_thoughts,
        }
    }

    fn active_part(&mut self, flow: TextKind, id: &str) -> Option<&mut MessagePart> {
        let at = *self.active(flow).get(id)?;
        self.parts.get_mut(at)
    }

    fn start(&mut self, flow: TextKind, id: &str, chunk: &PartFields) {
        let keys: &[&str] =
            if flow == TextKind::Reasoning { &["id", "providerMetadata"] } else { &["providerMetadata"] };
        let mut fields = picked(flow.prefix(), chunk, keys);
        fields.insert("state".into(), "streaming".into());
        let at = self.parts.len();
        self.parts.push(MessagePart { fields, growing: Growing::Text(String::new()) });
        self.active(flow).insert(id.to_owned(), at);
    }

    fn grow(&mut self, flow: TextKind, id: &str, body: &str) {
        if let Some(MessagePart { growing: Growing::Text(text), .. }) = self.active_part(flow, id) {
            text.push_str(body);
        }
    }

    fn annotate(&mut self, flow: TextKind, id: &str, chunk: &PartFields) {
        if let Some(part) = self.active_part(flow, id) {
            for key in ["citations", "providerMetadata"] {
                if let Some(value) = chunk.get(key).filter(|value| !value.is_null()) {
                    part.fields.insert(key.into(), value.clone());
                }
            }
        }
    }

    fn end(&mut self, flow: TextKind, id: &str, chunk: &PartFields) {
        self.annotate(flow, id, chunk);
        if let Some(part) = self.active_part(flow, id) {
            part.fields.insert("state".into(), "done".into());
        }
        self.active(flow).remove(id);
    }

    fn data(&mut self, fields: PartFields) {
        if fields.get("transient") == Some(&Value::Bool(true)) {
            return;
        }
        let name = |key: &str| fields.get(key).and_then(text_of);
        let Some(key) = name("type").zip(name("id")) else { return self.push(fields) };
        match self.data.get(&key).and_then(|at| self.parts.get_mut(*at)) {
            Some(part) => set(&mut part.fields, "data", fields.get("data")),
            None => {
                self.data.insert(key, self.parts.len());
                self.push(fields);
            }
        }
    }

    fn reset_step(&mut self) {
        self.parts.truncate(self.step);
        self.data.retain(|_, at| *at < self.step);
        self.active_texts.clear();
        self.active_thoughts.clear();
        self.tools.reset_step(&mut self.parts, self.step);
    }

    fn render(&self, part: &MessagePart) -> Value {
        let mut fields = part.fields.clone();
        match &part.growing {
            Growing::Nothing => {}
            Growing::Text(body) => drop(fields.insert("text".into(), json::unescaped(body).into())),
            Growing::Input => self.tools.settle(&mut fields),
        }
        Value::Object(fields)
    }

    fn merge_metadata(&mut self, metadata: Option<&Value>) {
        let Some(new) = metadata.filter(|value| !value.is_null()) else { return };
        match (&mut self.metadata, new) {
            (Some(Value::Object(base)), Value::Object(new)) => merge(base, new),
            (known, new) => *known = Some(new.clone()),
        }
    }
}

/// Puts `new` over `base`, object by object.
fn merge(base: &mut PartFields, new: &PartFields) {
    for (key, value) in new {
        match (base.get_mut(key), value) {
            _ if matches!(key.as_str(), "__proto__" | "constructor" | "prototype") => {}
            (Some(Value::Object(base)), Value::Object(new)) => merge(base, new),
            _ => drop(base.insert(key.clone(), value.clone())),
        }
    }
}

/// A part with these fields of a chunk.
fn picked(kind: &str, chunk: &PartFields, keys: &[&str]) -> PartFields {
    let mut fields = PartFields::new();
    fields.insert("type".into(), kind.into());
    for key in keys {
        set(&mut fields, key, chunk.get(*key));
    }
    fields
}

/// What is undefined in JavaScript is absent in JSON.
pub(super) fn set(fields: &mut PartFields, key: &str, value: Option<&Value>) {
    match value {
        Some(value) => drop(fields.insert(key.to_owned(), value.clone())),
        None => drop(fields.remove(key)),
    }
}

fn text_of(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// The fields of a chunk. Its texts may have halves of pairs, which a tree cannot hold.
fn object(text: &str) -> PartFields {
    serde_json::from_str(text).unwrap_or_else(|_| {
        let mut whole = String::with_capacity(text.len());
        let mut rest = text;
        // Strings are re-encoded, everything between them is copied.
        while let Some(open) = rest.find('"') {
            let (before, string) = rest.split_at(open + 1);
            let close = string_end(string);
            whole.push_str(&before[..open]);
            whole.push_str(json::raw(&json::unescaped(&string[..close])).get());
            rest = string.get(close + 1..).unwrap_or_default();
        }
        whole.push_str(rest);
        serde_json::from_str(&whole).unwrap_or_default()
    })
}

/// Where the body of a JSON string ends.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    let quote = text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    quote.unwrap_or(text.len())
}
