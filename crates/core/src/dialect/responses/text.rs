//! Text as it stands in a log: the body of a JSON string. A character may be cut in two between deltas, so nothing is decoded.

use std::borrow::Cow;
use std::fmt;

use bowline_protocol::json;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// What stands between the quotes of a JSON string.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Text(String);

impl Text {
    /// The text that a value is, or the one that shows it.
    pub fn of(raw: &RawValue) -> Text {
        match body(raw.get()) {
            Some(body) => Text(body.to_owned()),
            None => Text::plain(&json::one_line(raw.get())),
        }
    }

    pub fn plain(text: &str) -> Text {
        Text(body(json::raw(text).get()).unwrap_or_default().to_owned())
    }

    pub fn push(&mut self, more: &Text) {
        self.0.push_str(&more.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn decoded(&self) -> String {
        json::unescaped(&self.0)
    }
}

fn body(literal: &str) -> Option<&str> {
    literal.strip_prefix('"')?.strip_suffix('"')
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // It came from a JSON string, so it is one again.
        let literal = RawValue::from_string(format!("\"{}\"", self.0));
        literal.unwrap_or_else(|_| RawValue::NULL.to_owned()).serialize(serializer)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Text({} bytes)", self.0.len())
    }
}

/// The text of a JSON string; none if it is something else.
pub fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    let plain = body(raw.get())?;
    if plain.contains('\\') { Some(json::unescaped(plain).into()) } else { Some(plain.into()) }
}

/// What of a whole answer was not streamed yet. `streamed` is what its event says of that: so many bytes of it, or `false` if
/// something else was streamed; where it says nothing, the text that was seen is compared.
pub fn rest(answer: &Text, streamed: Option<&RawValue>, seen: &str, last: &str) -> Text {
    let whole = answer.decoded();
    let after = |bytes: usize| whole.get(bytes..).map_or_else(|| answer.clone(), Text::plain);
    match streamed.map(|raw| raw.get().parse::<usize>()) {
        Some(Ok(bytes)) => after(bytes),
        Some(Err(_)) => answer.clone(),
        // Agents mean different things by the whole answer: all they said, or what they said after the last call.
        None if whole.starts_with(seen) => after(seen.len()),
        None if whole.starts_with(last) => after(last.len()),
        None => answer.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_was_cut_in_two_is_whole_again() {
        let half = |literal: &str| Text::of(&RawValue::from_string(literal.to_owned()).unwrap());
        let mut text = half(r#""a \ud83d""#);
        text.push(&half(r#""\ude00\n""#));
        assert_eq!(text.decoded(), "a \u{1f600}\n");
        assert_eq!(serde_json::to_string(&text).unwrap(), r#""a \ud83d\ude00\n""#);
        assert_eq!(serde_json::to_string(&half(r#"{"a":[1]}"#)).unwrap(), r#""{\"a\":[1]}""#);
    }

    #[test]
    fn an_answer_is_told_once() {
        let rest_of = |streamed: Option<&str>, seen: &str, last: &str| {
            let streamed = streamed.map(|text| RawValue::from_string(text.to_owned()).unwrap());
            rest(&Text::plain("one \u{e9} two"), streamed.as_deref(), seen, last).decoded()
        };
        assert_eq!(rest_of(Some("6"), "", ""), " two");
        assert_eq!(rest_of(Some("99"), "", ""), "one \u{e9} two", "a count of another text");
        assert_eq!(rest_of(Some("5"), "", ""), "one \u{e9} two", "a count that ends within a character");
        assert_eq!(rest_of(Some("false"), "one", ""), "one \u{e9} two");
        assert_eq!(rest_of(None, "one ", ""), "\u{e9} two");
        assert_eq!(rest_of(None, "before. one ", "one "), "\u{e9} two");
        assert_eq!(rest_of(None, "other", "other"), "one \u{e9} two");
    }
}
