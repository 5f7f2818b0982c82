//! A request for a response: what is answered, how the answer is wanted, and what the response repeats.

use bowline_api::Functions;
use bowline_core::dialect::responses::ECHOED;
use bowline_protocol::{ErrorCode, Refusal};
use serde_json::{Map, Value, json};

use super::super::chat::read::BodyFields;
use super::input::Input;
use super::tools;

/// The API's own limits on what callers may attach.
const METADATA_MAX: usize = 16;
const METADATA_KEY_CHARS_MAX: usize = 64;
const METADATA_VALUE_CHARS_MAX: usize = 512;

#[derive(Debug)]
pub struct ResponseRequest {
    pub model: Option<String>,
    pub input: Input,
    pub delivery: Delivery,
    pub previous: Option<String>,
    pub conversation: Option<String>,
    /// Whether it can be asked for again once it was delivered.
    pub is_kept: bool,
    /// What the agent may call of the caller's.
    pub functions: Functions,
    /// What the response repeats of this.
    pub echoed: Echoed,
}

/// Holds what the caller wrote.
pub struct Echoed(pub Map<String, Value>);

impl std::fmt::Debug for Echoed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Echoed({} fields)", self.0.len())
    }
}

/// How the caller wants the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// When it is whole.
    Whole,
    Streamed,
    /// As it stands now; it is asked for again later.
    Now,
}

impl ResponseRequest {
    pub fn read(mut fields: BodyFields) -> Result<ResponseRequest, Refusal> {
        refuse_what_would_be_ignored(&fields.0)?;
        let mut echoed: Map<String, Value> = fields
            .0
            .iter()
            .filter(|(key, value)| ECHOED.contains(&key.as_str()) && !value.is_null())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        check_metadata(echoed.get("metadata"))?;
        let functions = tools::functions(&fields.0)?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let background = fields.flag("background")?.unwrap_or(false);
        let conversation = conversation(fields.take("conversation"))?;
        let previous = fields.text("previous_response_id")?;
        if previous.is_some() && conversation.is_some() {
            return Err(Refusal::field("conversation", "cannot be given with `previous_response_id`"));
        }
        if let Some(id) = &conversation {
            echoed.insert("conversation".into(), json!({ "id": id }));
        }
        let instructions = fields.text("instructions")?;
        Ok(ResponseRequest {
            model: fields.text("model")?,
            input: Input::read(fields.take("input"), instructions.as_deref())?,
            delivery: match (stream, background) {
                (true, _) => Delivery::Streamed,
                (false, true) => Delivery::Now,
                (false, false) => Delivery::Whole,
            },
            previous,
            conversation,
            is_kept: fields.flag("store")?.unwrap_or(true),
            functions,
            echoed: Echoed(echoed),
        })
    }
}

/// The name of a conversation, or an object that has it.
fn conversation(value: Option<Value>) -> Result<Option<String>, Refusal> {
    match value {
        None => Ok(None),
        Some(Value::String(id)) => Ok(Some(id)),
        Some(Value::Object(fields)) => match fields.get("id") {
            Some(Value::String(id)) => Ok(Some(id.clone())),
            _ => Err(Refusal::field("conversation", "has no `id`")),
        },
        Some(_) => Err(Refusal::field("conversation", "must be text or an object with `id`")),
    }
}

fn check_metadata(metadata: Option<&Value>) -> Result<(), Refusal> {
    let Some(metadata) = metadata else { return Ok(()) };
    let fits = |(key, value): (&String, &Value)| {
        let text = value.as_str().map(|text| text.chars().count());
        key.chars().count() <= METADATA_KEY_CHARS_MAX && text.is_some_and(|chars| chars <= METADATA_VALUE_CHARS_MAX)
    };
    let fields = metadata.as_object().filter(|fields| fields.len() <= METADATA_MAX);
    if fields.is_some_and(|fields| fields.iter().all(fits)) {
        return Ok(());
    }
    Err(Refusal::field(
        "metadata",
        "must be an object of at most 16 texts, with keys of 64 and values of 512 characters",
    ))
}

/// What changes the meaning of an answer and has no way to an agent. What only tunes a model is repeated and not passed on.
fn refuse_what_would_be_ignored(fields: &Map<String, Value>) -> Result<(), Refusal> {
    let unsupported = |field: &str, why: &str| {
        let refusal = Refusal::new(ErrorCode::NotSupported, format!("`{field}` {why}"));
        Err(refusal.details(json!({ "field": field })))
    };
    let has = |field: &str| fields.get(field).is_some_and(|value| !value.is_null());
    if fields.get("text").is_some_and(|text| !text["format"].is_null() && text["format"]["type"] != "text") {
        return unsupported("text", "can have the format `text` only.");
    }
    let is_kept_anyway =
        has("previous_response_id") || has("conversation") || fields.get("background") == Some(&true.into());
    if fields.get("store") == Some(&false.into()) && is_kept_anyway {
        return unsupported(
            "store",
            "cannot be false for what is read later: in the background, or in a conversation.",
        );
    }
    for field in ["prompt", "context_management"] {
        if has(field) {
            return unsupported(field, "is not supported.");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<ResponseRequest, Refusal> {
        let Value::Object(fields) = body else { panic!("a test writes objects") };
        ResponseRequest::read(BodyFields(fields))
    }

    #[test]
    fn what_only_tunes_a_model_is_repeated_and_what_changes_the_answer_is_refused() {
        let request =
            read(json!({ "input": "hi", "temperature": 0.2, "tools": [], "seed": 7, "metadata": { "a": "b" } }));
        let request = request.unwrap();
        assert_eq!(
            Value::Object(request.echoed.0),
            json!({ "temperature": 0.2, "tools": [], "metadata": { "a": "b" } })
        );
        assert_eq!(request.delivery, Delivery::Whole);
        for (field, value) in [
            ("tools", json!([{ "type": "web_search" }])),
            ("text", json!({ "format": { "type": "json_schema" } })),
            ("prompt", json!({ "id": "p" })),
            ("metadata", json!({ "a": 1 })),
            ("conversation", json!(7)),
            ("stream", json!("yes")),
        ] {
            let refusal = read(json!({ "input": "hi", field: value })).unwrap_err();
            assert_eq!(refusal.details.unwrap()["field"], field);
        }
        assert!(!read(json!({ "input": "hi", "store": false })).unwrap().is_kept);
        assert!(read(json!({ "input": "hi", "store": false, "background": true })).is_err());
    }
}
