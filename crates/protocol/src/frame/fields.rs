//! Reading fields of client frames: generous about where a cursor stands, strict about types.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::Refusal;
use crate::id::ClientId;
use crate::position::{Cursor, Epoch, Seq};

/// The fields of a `content` object.
pub struct ContentFields(pub Map<String, Value>);

impl ContentFields {
    pub fn text(&mut self, key: &str) -> Result<Option<String>, Refusal> {
        match self.0.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Refusal::field(&format!("content.{key}"), "must be text")),
        }
    }

    pub fn flag(&mut self, key: &str) -> Result<bool, Refusal> {
        match self.0.remove(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(Refusal::field(&format!("content.{key}"), "must be true or false")),
        }
    }

    /// Text or a number, as text.
    pub fn scalar(&self, key: &str) -> Option<String> {
        match self.0.get(key)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    pub fn client_id(&mut self) -> Result<Option<ClientId>, Refusal> {
        match self.text("client_id")? {
            None => Ok(None),
            Some(text) => ClientId::parse(&text)
                .map(Some)
                .ok_or_else(|| Refusal::field("content.client_id", "is empty or too long")),
        }
    }

    pub fn cursor(&self) -> Result<Option<Cursor>, Refusal> {
        let present = |key: &str| self.0.get(key).is_some_and(|value| !value.is_null());
        let cursor = cursor_in(&Value::Object(self.0.clone()));
        if cursor.is_none() && present("last_seq") {
            return Err(Refusal::field("content.last_seq", "must be a whole number from 0"));
        }
        // An id that is not one of ours says nothing about this log, and is passed over.
        if cursor.is_none() && present("last_event_id") && !self.0["last_event_id"].is_string() {
            return Err(Refusal::field("content.last_event_id", "must be \"<epoch>-<seq>\""));
        }
        Ok(cursor)
    }
}

/// The cursor in an object: `last_event_id` if it is one of ours, else `last_seq` with an optional `epoch`.
pub fn cursor_in(object: &Value) -> Option<Cursor> {
    let by_id = object.get("last_event_id").and_then(Value::as_str).and_then(Cursor::parse);
    by_id.or_else(|| {
        let seq = seq_of(object.get("last_seq")?)?;
        let epoch = object.get("epoch").and_then(Value::as_str).and_then(Epoch::parse);
        Some(Cursor { epoch, seq })
    })
}

/// A whole number from 0, also written as digits. Above 2^53 it is still "far ahead", not an error.
pub fn seq_of(value: &Value) -> Option<Seq> {
    let number = match value {
        Value::Number(number) => match number.as_u64() {
            Some(number) => number,
            None if number.as_f64().is_some_and(|f| f >= 2f64.powi(53)) => u64::MAX,
            // A whole number that some language wrote as a float.
            None if number.as_f64().is_some_and(|f| f >= 0.0 && f.fract() == 0.0) => number.as_f64()? as u64,
            None => return None,
        },
        Value::String(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            digits.parse().unwrap_or(u64::MAX)
        }
        _ => return None,
    };
    Some(Seq::new(number).unwrap_or(Seq::MAX))
}

/// What JSON can write and Rust cannot hold (half a surrogate pair, a number beyond all floats) is refused by name.
pub fn value_of(field: &str, raw: Option<&RawValue>) -> Result<Value, Refusal> {
    let Some(raw) = raw else { return Ok(Value::Null) };
    serde_json::from_str(raw.get()).map_err(|error| {
        let reason = error.to_string();
        // The place is counted within the field, which would only confuse.
        let reason = reason.split(" at line").next().unwrap_or_default();
        Refusal::field(field, &format!("cannot be read: {reason}"))
    })
}

/// The same where what cannot be understood is left out.
pub fn leniently(raw: Option<&RawValue>) -> Value {
    value_of("", raw).unwrap_or_default()
}

pub fn text_of(field: &str, raw: Option<&RawValue>) -> Result<Option<String>, Refusal> {
    match value_of(field, raw)? {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        _ => Err(Refusal::field(field, "must be text")),
    }
}
