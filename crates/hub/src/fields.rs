//! A JSON object that is opened only at the top: its members stay the text that they were.

use std::fmt;

use bytes::Bytes;
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// A piece of JSON, as it was written.
pub type Raw = Box<RawValue>;

/// Encodes a value that cannot fail to encode.
pub fn raw<T: Serialize + ?Sized>(value: &T) -> Raw {
    bowline_protocol::json::raw(value)
}

/// JSON as it leaves, without a copy.
pub fn into_bytes(raw: Raw) -> Bytes {
    String::from(Box::<str>::from(raw)).into()
}

/// `{}`.
pub fn empty() -> Raw {
    raw(&Fields::default())
}

/// JSON from outside, as a value of ours. JSON may say what no value of ours can hold: half of a surrogate pair, which a
/// program writes that cuts a text in the middle of a character, and numbers without end. The former becomes the sign for what
/// cannot be read; of the latter nothing is left. So pass on what others wrote as [`Raw`], and never by `json!`, which panics there.
pub fn lossy(text: &RawValue) -> Value {
    let parse = |text: &str| serde_json::from_str(text).ok();
    parse(text.get()).or_else(|| parse(&whole_characters(text.get()))).unwrap_or_default()
}

/// The text with every half of a surrogate pair replaced.
fn whole_characters(text: &str) -> String {
    let (mut whole, mut rest) = (String::with_capacity(text.len()), text);
    let unit = |text: &str| text.strip_prefix("\\u").and_then(|hex| u16::from_str_radix(hex.get(..4)?, 16).ok());
    while let Some(at) = rest.find('\\') {
        whole.push_str(&rest[..at]);
        rest = &rest[at..];
        let taken = match (unit(rest), rest.get(6..).and_then(unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                whole.push('\u{fffd}');
                rest = &rest[6..];
                continue;
            }
            (Some(_), _) => 6,
            // A backslash and what it escapes, which is one byte.
            (None, _) => 2.min(rest.len()),
        };
        whole.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    whole + rest
}

/// The members of an object, in their order. May hold what people wrote, so `Debug` shows only how many.
#[derive(Clone, Default)]
pub struct Fields(Vec<(String, Raw)>);

impl Fields {
    /// `None` if the text is not a JSON object.
    pub fn parse(text: &RawValue) -> Option<Fields> {
        serde_json::from_str(text.get()).ok()
    }

    /// The members of an optional object; none if it is missing or something else.
    pub fn of(text: Option<&RawValue>) -> Fields {
        text.and_then(Fields::parse).unwrap_or_default()
    }

    pub fn get(&self, key: &str) -> Option<&RawValue> {
        // The last of two equal keys wins, as everywhere else.
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| &**value)
    }

    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub fn object(&self, key: &str) -> Fields {
        Fields::of(self.get(key))
    }

    pub fn read<'a, T: Deserialize<'a>>(&'a self, key: &str) -> Option<T> {
        serde_json::from_str(self.get(key)?.get()).ok()
    }

    pub fn text(&self, key: &str) -> Option<String> {
        self.read(key)
    }

    pub fn set(&mut self, key: &str, value: Raw) {
        self.remove(key);
        self.0.push((key.to_owned(), value));
    }

    pub fn put<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        self.set(key, raw(value));
    }

    /// The same for building one up.
    pub fn and<T: Serialize + ?Sized>(mut self, key: &str, value: &T) -> Fields {
        self.put(key, value);
        self
    }

    /// For our own use, where what cannot be held is left out: see [`lossy`].
    pub fn to_value(&self) -> Value {
        let members = self.0.iter().map(|(key, raw)| (key.clone(), lossy(raw)));
        Value::Object(members.collect())
    }

    pub fn remove(&mut self, key: &str) {
        self.0.retain(|(name, _)| name != key);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().map(|(key, value)| (key.as_str(), &**value))
    }

    pub fn to_raw(&self) -> Raw {
        raw(self)
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, Raw>()? {
                    members.push(member);
                }
                Ok(Fields(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fields({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_touched_stays_as_it_was_written() {
        let text = r#"{"z":1.0,"big":123456789012345678901234567890,"a":{"y":[1, 2]},"é":"\u00e9"}"#;
        let mut fields: Fields = serde_json::from_str(text).unwrap();
        assert_eq!(fields.to_raw().get(), text);
        fields.put("z", "new");
        assert_eq!(fields.text("z").as_deref(), Some("new"));
        assert!(fields.to_raw().get().contains("123456789012345678901234567890"));
        assert!(Fields::parse(&raw(&[1])).is_none());
    }

    #[test]
    fn what_no_value_can_hold_costs_as_little_as_can_be() {
        let odd: Raw =
            serde_json::from_str(r#"{"a":"cut \ud83d","b":"\ude00\ud83d\ude00 \\ud83d \n\u00e9","c":[1]}"#).unwrap();
        assert!(serde_json::from_str::<Value>(odd.get()).is_err(), "else this tries nothing");
        let read = lossy(&odd);
        assert_eq!(read["a"], "cut \u{fffd}");
        assert_eq!(read["b"], "\u{fffd}\u{1f600} \\ud83d \n\u{e9}");
        assert_eq!(read["c"][0], 1);
        let endless: Raw = serde_json::from_str(r#"{"n":1e400,"m":1}"#).unwrap();
        assert_eq!(Fields::of(Some(&endless)).to_value(), serde_json::json!({ "n": null, "m": 1 }));
    }
}
