//! What must not be shown: a person's words and credentials. `Debug` gives lengths only.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::json;

/// Something a person wrote or holds; `Debug` shows only its length.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Content(pub Box<RawValue>);

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Content({} bytes)", self.0.get().len())
    }
}

impl Content {
    /// Keeps what was written, but on one line: events travel in line-based formats too.
    pub(super) fn one_line(raw: &RawValue) -> Content {
        let broken = raw.get().contains(['\n', '\r']);
        let compacted = broken.then(|| RawValue::from_string(json::compact(raw.get())).ok()).flatten();
        Content(compacted.unwrap_or_else(|| raw.to_owned()))
    }

    /// How long it is: a text as UTF-8, whatever its JSON looks like; anything else as compact JSON. So it does not depend on
    /// who wrote it down, or by which endpoint it came.
    pub fn bytes(&self) -> usize {
        match serde_json::from_str::<Value>(self.0.get()) {
            Ok(Value::String(text)) => text.len(),
            Ok(other) => other.to_string().len(),
            Err(_) => self.0.get().len(),
        }
    }

    /// What a message of several parts consists of: the `parts` of an object.
    pub fn parts(&self) -> Option<Value> {
        match serde_json::from_str::<Value>(self.0.get()).ok()? {
            Value::Object(mut fields) => fields.remove("parts").filter(Value::is_array),
            _ => None,
        }
    }

    /// The text of a message: a JSON string, or the `text` of an object.
    pub fn text(&self) -> Option<String> {
        match serde_json::from_str::<Value>(self.0.get()).ok()? {
            Value::String(text) => Some(text),
            Value::Object(mut fields) => match fields.remove("text") {
                Some(Value::String(text)) => Some(text),
                _ => None,
            },
            _ => None,
        }
    }
}

/// A credential. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The secret itself, for the one who checks or sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}
