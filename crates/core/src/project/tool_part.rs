//! The parts of a message that are tool calls, as the AI SDK keeps them.

use std::collections::BTreeMap;

use bowline_protocol::ChunkKind;
use serde_json::{Map, Value};

use super::assemble::{Fields, Part, set, unescaped};
use super::partial_json;

/// A chunk about a tool call.
pub struct ToolUpdate<'a> {
    pub kind: ChunkKind,
    pub id: &'a str,
    /// More of its input, the body of a JSON string.
    pub delta: &'a str,
    pub fields: &'a Fields,
}

/// The calls whose input streams in: the chunk that began each, and the text so far.
#[derive(Default)]
pub struct Tools {
    streaming: BTreeMap<String, (Fields, String)>,
}

impl Tools {
    pub fn handle(&mut self, parts: &mut Vec<Part>, update: &ToolUpdate<'_>) {
        match update.kind {
            ChunkKind::ToolInputStart => {
                self.streaming.insert(update.id.to_owned(), (update.fields.clone(), String::new()));
                let state = [("state", "input-streaming".into())];
                let keys = ["inputEncoding", "providerExecuted", "title", "toolMetadata", "providerMetadata"];
                write(parts, None, update, &options(update.fields, &keys, state));
            }
            ChunkKind::ToolInputDelta => self.grow(parts, update),
            ChunkKind::ToolInputAvailable => {
                let state = [("state", "input-available".into())];
                let keys = ["input", "providerExecuted", "providerMetadata", "title", "toolMetadata"];
                write(parts, None, update, &options(update.fields, &keys, state));
            }
            ChunkKind::ToolInputError => {
                let state = [("state", "output-error".into())];
                let keys = ["input", "errorText", "providerExecuted", "providerMetadata", "toolMetadata"];
                // The call stays what it was, whatever the chunk says.
                let known = in_step(parts).find(|at| is_call(&parts[*at], update.id));
                write(parts, known, update, &options(update.fields, &keys, state));
            }
            ChunkKind::ToolOutputAvailable => {
                let keys = ["output", "preliminary", "providerExecuted", "providerMetadata"];
                output(parts, update, "output-available", &keys);
            }
            ChunkKind::ToolOutputError => {
                output(parts, update, "output-error", &["errorText", "providerExecuted", "providerMetadata"]);
            }
            ChunkKind::ToolOutputDenied => {
                if let Some(at) = find_call(parts, update.id) {
                    parts[at].fields.insert("state".into(), "output-denied".into());
                }
            }
            ChunkKind::ToolApprovalRequest => request(parts, update),
            ChunkKind::ToolApprovalResponse => response(parts, update.fields),
            _ => {}
        }
    }

    fn grow(&mut self, parts: &mut Vec<Part>, update: &ToolUpdate<'_>) {
        let Some((begun, body)) = self.streaming.get_mut(update.id) else { return };
        body.push_str(update.delta);
        let state = [("state", "input-streaming".into())];
        let options = options(begun, &["inputEncoding", "title", "toolMetadata"], state);
        let at = write(parts, None, &ToolUpdate { fields: begun, ..*update }, &options);
        parts[at].body = Some(body.clone());
    }
}

/// What the SDK's update of a part is given: some fields of the chunk, and some of its own.
fn options<const N: usize>(chunk: &Fields, keys: &[&str], own: [(&str, Value); N]) -> Fields {
    let mut options: Fields = own.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    for key in keys {
        set(&mut options, key, chunk.get(*key));
    }
    options
}

fn is_call(part: &Part, id: &str) -> bool {
    let is_tool = part.kind().starts_with("tool-") || part.kind() == "dynamic-tool";
    is_tool && part.fields.get("toolCallId").and_then(Value::as_str) == Some(id)
}

/// The places of the parts of the current step.
fn in_step(parts: &[Part]) -> std::ops::Range<usize> {
    parts.iter().rposition(|part| part.kind() == "step-start").map_or(0, |at| at + 1)..parts.len()
}

/// The call with this id: of the current step, or else the newest.
fn find_call(parts: &[Part], id: &str) -> Option<usize> {
    let here = in_step(parts).find(|at| is_call(&parts[*at], id));
    here.or_else(|| parts.iter().rposition(|part| is_call(part, id)))
}

/// Writes `options` into the call's part, or into a new one. Says where it is.
fn write(parts: &mut Vec<Part>, known: Option<usize>, update: &ToolUpdate<'_>, options: &Fields) -> usize {
    let dynamic = match known {
        Some(at) => parts[at].kind() == "dynamic-tool",
        None => update.fields.get("dynamic") == Some(&Value::Bool(true)),
    };
    let fits = |part: &Part| is_call(part, update.id) && (part.kind() == "dynamic-tool") == dynamic;
    let at = known.or_else(|| in_step(parts).find(|at| fits(&parts[*at]))).unwrap_or_else(|| {
        let mut fields = Fields::new();
        fields.insert("toolCallId".into(), update.id.into());
        parts.push(Part::new(fields));
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
    part.body = None;
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
fn output(parts: &mut Vec<Part>, update: &ToolUpdate<'_>, state: &str, keys: &[&str]) {
    let Some(at) = find_call(parts, update.id) else { return };
    let part = &mut parts[at];
    if let Some(body) = part.body.take() {
        settle(&mut part.fields, &body);
    }
    let known = part.fields.clone();
    let mut options = options(update.fields, keys, [("state", state.into())]);
    set(&mut options, "input", known.get("input"));
    let metadata = update.fields.get("toolMetadata").or_else(|| known.get("toolMetadata"));
    set(&mut options, "toolMetadata", metadata);
    let keeps_text = state == "output-error" && part.kind() != "dynamic-tool";
    set(&mut options, "rawInput", known.get("rawInput").filter(|_| keeps_text));
    // The name is the call's own.
    let mut unnamed = update.fields.clone();
    unnamed.remove("toolName");
    write(parts, Some(at), &ToolUpdate { fields: &unnamed, ..*update }, &options);
}

fn request(parts: &mut [Part], update: &ToolUpdate<'_>) {
    let Some(at) = find_call(parts, update.id) else { return };
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
        let value = update.fields.get(field);
        let absent = match key {
            "inputSchemaInput" => value.is_none(),
            "isAutomatic" => value != Some(&Value::Bool(true)),
            _ => value.is_none_or(Value::is_null),
        };
        if !absent {
            set(&mut approval, key, value);
        }
    }
    parts[at].fields.insert("state".into(), "approval-requested".into());
    parts[at].fields.insert("approval".into(), Value::Object(approval));
}

fn response(parts: &mut [Part], chunk: &Fields) {
    let asked = |part: &&mut Part| {
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

/// What the SDK makes of an input that has come so far.
pub fn settle(fields: &mut Fields, body: &str) {
    let text = unescaped(body);
    let is_text = fields.get("inputEncoding").and_then(Value::as_str) == Some("text");
    let input = if is_text { Some(text.clone().into()) } else { partial_json::parse(&text) };
    set(fields, "input", input.as_ref());
    fields.insert("rawInput".into(), text.into());
}
