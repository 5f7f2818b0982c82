//! The parts of a message that are tool calls, as the AI SDK keeps them.

use std::collections::BTreeMap;

use bowline_protocol::{ChunkKind, json};
use serde_json::{Map, Value};

use super::assemble::{Growing, MessagePart, PartFields, set};
use super::partial_json;

/// A chunk about a tool call.
pub struct ToolUpdate<'a> {
    pub kind: ChunkKind,
    pub id: &'a str,
    /// More of its input, the body of a JSON string.
    pub delta: &'a str,
    pub fields: &'a PartFields,
}

/// What is known of the calls besides their parts.
#[derive(Default)]
pub struct ToolParts {
    /// The calls whose input streams in: the chunk that began each, and the text so far.
    streaming: BTreeMap<String, (PartFields, String)>,
    /// Where the parts of each call are.
    places: BTreeMap<String, Vec<usize>>,
}

impl ToolParts {
    /// `step` is where the parts of the current step begin.
    pub fn handle(&mut self, parts: &mut Vec<MessagePart>, step: usize, update: &ToolUpdate<'_>) {
        match update.kind {
            ChunkKind::ToolInputStart => {
                self.freeze(parts, update.id);
                self.streaming.insert(update.id.to_owned(), (update.fields.clone(), String::new()));
                let keys = ["inputEncoding", "providerExecuted", "title", "toolMetadata", "providerMetadata"];
                let options = options("input-streaming", update.fields, &keys);
                self.write(parts, self.find(parts, step, update), update, &options);
            }
            ChunkKind::ToolInputDelta => self.grow(parts, step, update),
            ChunkKind::ToolInputAvailable => {
                let keys = ["input", "providerExecuted", "providerMetadata", "title", "toolMetadata"];
                let options = options("input-available", update.fields, &keys);
                self.write(parts, self.find(parts, step, update), update, &options);
            }
            ChunkKind::ToolInputError => {
                let keys = ["input", "errorText", "providerExecuted", "providerMetadata", "toolMetadata"];
                // The call stays what it was, whatever the chunk says.
                let known = self.places(update.id).find(|at| *at >= step);
                self.write(parts, known, update, &options("output-error", update.fields, &keys));
            }
            ChunkKind::ToolOutputAvailable => {
                let keys = ["output", "preliminary", "providerExecuted", "providerMetadata"];
                self.output(parts, step, update, "output-available", &keys);
            }
            ChunkKind::ToolOutputError => {
                let keys = ["errorText", "providerExecuted", "providerMetadata"];
                self.output(parts, step, update, "output-error", &keys);
            }
            ChunkKind::ToolOutputDenied => {
                if let Some(at) = self.find_any(step, update.id) {
                    parts[at].fields.insert("state".into(), "output-denied".into());
                }
            }
            ChunkKind::ToolApprovalRequest => {
                if let Some(at) = self.find_any(step, update.id) {
                    request(&mut parts[at], update.fields);
                }
            }
            ChunkKind::ToolApprovalResponse => response(parts, update.fields),
            _ => {}
        }
    }

    /// The parts from `step` on are gone.
    pub fn reset_step(&mut self, parts: &mut [MessagePart], step: usize) {
        self.places.values_mut().for_each(|places| places.retain(|at| *at < step));
        let ids: Vec<String> = self.streaming.keys().cloned().collect();
        ids.iter().for_each(|id| self.freeze(parts, id));
        self.streaming.clear();
    }

    /// An input that nothing will be added to stays as it is.
    fn freeze(&self, parts: &mut [MessagePart], id: &str) {
        for at in self.places(id) {
            if matches!(parts[at].growing, Growing::Input) {
                self.settle(&mut parts[at].fields);
                parts[at].growing = Growing::Nothing;
            }
        }
    }

    fn places(&self, id: &str) -> impl DoubleEndedIterator<Item = usize> {
        self.places.get(id).into_iter().flatten().copied()
    }

    /// The call with this id: of the current step, or else the newest.
    fn find_any(&self, step: usize, id: &str) -> Option<usize> {
        self.places(id).find(|at| *at >= step).or_else(|| self.places(id).next_back())
    }

    /// The call of the current step with this id, if it is dynamic or not as the chunk says.
    fn find(&self, parts: &[MessagePart], step: usize, update: &ToolUpdate<'_>) -> Option<usize> {
        self.places(update.id).find(|at| *at >= step && is_dynamic(&parts[*at]) == says_dynamic(update.fields))
    }

    fn grow(&mut self, parts: &mut Vec<MessagePart>, step: usize, update: &ToolUpdate<'_>) {
        let Some((begun, body)) = self.streaming.get_mut(update.id) else { return };
        body.push_str(update.delta);
        let begun = begun.clone();
        let update = ToolUpdate { fields: &begun, ..*update };
        let options = options("input-streaming", &begun, &["inputEncoding", "title", "toolMetadata"]);
        let at = self.write(parts, self.find(parts, step, &update), &update, &options);
        parts[at].growing = Growing::Input;
    }

    /// What the SDK makes of an input that has come so far.
    pub fn settle(&self, fields: &mut PartFields) {
        let id = fields.get("toolCallId").and_then(Value::as_str).unwrap_or_default();
        let Some((_, body)) = self.streaming.get(id) else { return };
        let text = json::unescaped(body);
        let is_text = fields.get("inputEncoding").and_then(Value::as_str) == Some("text");
        let input = if is_text { Some(text.clone().into()) } else { partial_json::parse(&text) };
        set(fields, "input", input.as_ref());
        fields.insert("rawInput".into(), text.into());
    }

    /// Writes `options` into the call's part, or into a new one. Says where it is.
    fn write(
        &mut self,
        parts: &mut Vec<MessagePart>,
        known: Option<usize>,
        update: &ToolUpdate<'_>,
        options: &PartFields,
    ) -> usize {
        let dynamic = known.map_or_else(|| says_dynamic(update.fields), |at| is_dynamic(&parts[at]));
        let at = known.unwrap_or_else(|| {
            let mut fields = PartFields::new();
            fields.insert("toolCallId".into(), update.id.into());
            self.places.entry(update.id.to_owned()).or_default().push(parts.len());
            parts.push(MessagePart::new(fields));
            parts.len() - 1
        });
        let part = &mut parts[at];
        if let Some(name) = update.fields.get("toolName").and_then(Value::as_str) {
            if dynamic {
                part.fields.insert("toolName".into(), name.into());
            }
            let kind = if dynamic { "dynamic-tool".to_owned() } else { format!("tool-{name}") };
            part.fields.insert("type".into(), kind.into());
        }
        part.growing = Growing::Nothing;
        for key in ["state", "input", "output", "errorText", "rawInput", "inputEncoding", "preliminary"] {
            set(&mut part.fields, key, options.get(key));
        }
        for key in ["title", "toolMetadata", "providerExecuted"] {
            if let Some(value) = options.get(key) {
                part.fields.insert(key.into(), value.clone());
            }
        }
        if let Some(metadata) = options.get("providerMetadata") {
            let is_result = options["state"].as_str().is_some_and(|state| state.starts_with("output-"));
            let key = if is_result { "resultProviderMetadata" } else { "callProviderMetadata" };
            part.fields.insert(key.into(), metadata.clone());
        }
        at
    }

    /// An output keeps what is known of its call.
    fn output(
        &mut self,
        parts: &mut Vec<MessagePart>,
        step: usize,
        update: &ToolUpdate<'_>,
        state: &str,
        keys: &[&str],
    ) {
        let Some(at) = self.find_any(step, update.id) else { return };
        let part = &mut parts[at];
        if matches!(part.growing, Growing::Input) {
            self.settle(&mut part.fields);
        }
        let mut options = options(state, update.fields, keys);
        set(&mut options, "input", part.fields.get("input"));
        let metadata = update.fields.get("toolMetadata").or_else(|| part.fields.get("toolMetadata"));
        set(&mut options, "toolMetadata", metadata);
        let keeps_text = state == "output-error" && !is_dynamic(part);
        set(&mut options, "rawInput", part.fields.get("rawInput").filter(|_| keeps_text));
        // The name is the call's own.
        let mut unnamed = update.fields.clone();
        unnamed.remove("toolName");
        self.write(parts, Some(at), &ToolUpdate { fields: &unnamed, ..*update }, &options);
    }
}

/// What the SDK's update of a part is given: its state, and some fields of the chunk.
fn options(state: &str, chunk: &PartFields, keys: &[&str]) -> PartFields {
    let mut options = PartFields::new();
    options.insert("state".into(), state.into());
    for key in keys {
        set(&mut options, key, chunk.get(*key));
    }
    options
}

fn is_dynamic(part: &MessagePart) -> bool {
    part.kind() == "dynamic-tool"
}

fn says_dynamic(chunk: &PartFields) -> bool {
    chunk.get("dynamic") == Some(&Value::Bool(true))
}

fn request(part: &mut MessagePart, chunk: &PartFields) {
    let mut approval = Map::new();
    let keys = [
        ("id", "approvalId"),
        ("descriptor", "approvalDescriptor"),
        ("inputSchemaInput", "inputSchemaInput"),
        ("requestReason", "reason"),
        ("isAutomatic", "isAutomatic"),
        ("signature", "signature"),
    ];
    for (key, field) in keys {
        let value = chunk.get(field);
        let absent = match key {
            "inputSchemaInput" => value.is_none(),
            "isAutomatic" => value != Some(&Value::Bool(true)),
            _ => value.is_none_or(Value::is_null),
        };
        if !absent {
            set(&mut approval, key, value);
        }
    }
    part.fields.insert("state".into(), "approval-requested".into());
    part.fields.insert("approval".into(), Value::Object(approval));
}

fn response(parts: &mut [MessagePart], chunk: &PartFields) {
    let asked = |part: &&mut MessagePart| {
        part.fields.get("approval").and_then(|approval| approval.get("id")) == chunk.get("approvalId")
    };
    let Some(part) = parts.iter_mut().find(asked) else { return };
    part.fields.insert("state".into(), "approval-responded".into());
    if let Some(Value::Object(approval)) = part.fields.get_mut("approval") {
        set(approval, "approved", chunk.get("approved"));
        if let Some(reason) = chunk.get("reason").filter(|value| !value.is_null()) {
            approval.insert("reason".into(), reason.clone());
        }
    }
    let renamed = [("providerExecuted", "providerExecuted"), ("providerMetadata", "callProviderMetadata")];
    for (field, key) in renamed {
        if let Some(value) = chunk.get(field).filter(|value| !value.is_null()) {
            part.fields.insert(key.into(), value.clone());
        }
    }
}
