//! What the AI SDK's JSON parser refuses, taken out: names that would reach into the prototype of an object.
//!
//! One tool result with such a name in it would end the whole stream of every reader. The log keeps it.

use std::borrow::Cow;
use std::fmt;

use bowline_protocol::json;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::events::body_of;

/// Parsers that build trees read no deeper than this, so nothing deeper is in a log.
const DEPTH_MAX: usize = 127;

/// JSON without the members that the SDK refuses: `__proto__`, and a `constructor` that has a `prototype`.
pub fn sanitized(text: &str) -> Cow<'_, str> {
    // Nearly nothing gets past this line. A name may hide behind escapes, and then it has a backslash and a `u`.
    let suspect = !text.starts_with('"') && (text.contains("proto") || text.contains("\\u"));
    if !suspect || json::depth(text, DEPTH_MAX) > DEPTH_MAX {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut changed = false;
    copy(text, &mut out, &mut changed);
    if changed { Cow::Owned(out) } else { Cow::Borrowed(text) }
}

fn copy(text: &str, out: &mut String, changed: &mut bool) {
    match text.as_bytes().first() {
        Some(b'{') => {
            let Ok(RawMembers(members)) = serde_json::from_str(text) else { return out.push_str(text) };
            out.push('{');
            let mut first = true;
            for (name, value) in members {
                if is_forbidden(name, value) {
                    *changed = true;
                    continue;
                }
                if !std::mem::take(&mut first) {
                    out.push(',');
                }
                out.push_str(name.get());
                out.push(':');
                copy(value.get(), out, changed);
            }
            out.push('}');
        }
        Some(b'[') => {
            let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text) else { return out.push_str(text) };
            out.push('[');
            for (at, item) in items.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                copy(item.get(), out, changed);
            }
            out.push(']');
        }
        _ => out.push_str(text),
    }
}

fn is_forbidden(name: &RawValue, value: &RawValue) -> bool {
    let has_prototype = || {
        let members: Option<RawMembers<'_>> = serde_json::from_str(value.get()).ok();
        members.is_some_and(|RawMembers(members)| members.iter().any(|(name, _)| is_name(name, "prototype")))
    };
    is_name(name, "__proto__") || (is_name(name, "constructor") && has_prototype())
}

fn is_name(literal: &RawValue, name: &str) -> bool {
    let mut decoded = Vec::new();
    json::unescape(body_of(literal.get()), |_, piece| decoded.extend_from_slice(piece));
    decoded == name.as_bytes()
}

/// The members of an object in their order, each as it was written. Names too: one that is no text must not hide another.
struct RawMembers<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for RawMembers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersReader;
        impl<'de> Visitor<'de> for MembersReader {
            type Value = Vec<(&'de RawValue, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(MembersReader).map(RawMembers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_sdk_refuses_is_taken_out() {
        for (text, expected) in [
            (r#"{"a":1,"__proto__":{"b":2},"c":[{"__proto__":1}]}"#, r#"{"a":1,"c":[{}]}"#),
            (r#"{"\u005f_proto__":1,"é":1.50}"#, r#"{"é":1.50}"#),
            (r#"{"\ud800":"\ud800","__proto__":1}"#, r#"{"\ud800":"\ud800"}"#),
            (r#"{"constructor":{"prototype":1},"z":1}"#, r#"{"z":1}"#),
            (r#"{"constructor":{"x":{"__proto__":1}}}"#, r#"{"constructor":{"x":{}}}"#),
        ] {
            assert_eq!(sanitized(text), expected);
        }
        for text in [
            r#"{"constructor":1,"prototype":{}}"#,
            r#"{"constructor":null, "prototype":"__proto__"}"#,
            r#""{\"__proto__\":1}""#,
            r#"{ "b" : "\u0041", "a":[1, 2.50] }"#,
            r#"{"\ud800":"\ud800"}"#,
        ] {
            assert!(matches!(sanitized(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }
}
