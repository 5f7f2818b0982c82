//! Small JSON helpers that work on bytes, so that nothing on the hot path builds a tree.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;

/// How deeply `text` nests, looking only at brackets outside strings. Stops counting once it is past `limit`.
pub fn depth(text: &str, limit: usize) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut deepest) = (0, 0usize, 0usize);
    while let Some(byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => at = string_end(bytes, at),
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
                if deepest > limit {
                    return deepest;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Where the string ends whose body begins at `at`: behind its closing quote, or at the end of the text. Most of a large
/// text is in strings, so they are not walked byte by byte.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    bytes.len()
}

/// Encodes a value that cannot fail to encode: our own types have string keys and finite numbers only.
pub fn raw<T: Serialize + ?Sized>(value: &T) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The same JSON without white space between its tokens, so that it stands on one line. Valid JSON in, valid JSON out.
pub fn compact(text: &str) -> String {
    let (mut out, mut in_string, mut escaped) = (String::with_capacity(text.len()), false, false);
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            ' ' | '\n' | '\r' | '\t' if !in_string => continue,
            _ => {}
        }
        out.push(c);
    }
    out
}

/// Whether there is no white space between the tokens, so that [`compact`] would change nothing.
pub fn is_compact(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => at = string_end(bytes, at),
            b' ' | b'\n' | b'\r' | b'\t' => return false,
            _ => {}
        }
    }
    true
}

/// The JSON string literal of `text`.
pub fn push_string(out: &mut Vec<u8>, text: &str) {
    // Writing to a Vec cannot fail, and a string always encodes.
    let _ = serde_json::to_writer(out, text);
}

/// `text` on one line: what has no line break is left as it is.
pub fn one_line(text: &str) -> Cow<'_, str> {
    // Inside a JSON string a line break is always escaped, so a bare one stands between tokens.
    if text.contains(['\n', '\r']) { Cow::Owned(compact(text)) } else { Cow::Borrowed(text) }
}

/// The characters of a JSON string's body (what stands between its quotes), decoded piece by piece.
///
/// `piece` gets the place in `body` behind the piece, and the piece. Half of a surrogate pair, which JSON can hold and
/// UTF-8 cannot, comes as the three bytes that UTF-8 would have for it, so that two halves can still be joined.
pub fn unescape(body: &str, mut piece: impl FnMut(usize, &[u8])) {
    let mut at = 0;
    while at < body.len() {
        let plain = body[at..].find('\\').unwrap_or(body.len() - at);
        if plain > 0 {
            at += plain;
            piece(at, &body.as_bytes()[at - plain..at]);
            continue;
        }
        let (length, code) = escape(&body[at..]);
        at += length;
        let mut buffer = [0; 4];
        match char::from_u32(code) {
            Some(c) => piece(at, c.encode_utf8(&mut buffer).as_bytes()),
            None => piece(at, &half_pair(code)),
        }
    }
}

/// The text of a JSON string's body. Half a pair becomes one sign that something is missing.
pub fn unescaped(body: &str) -> String {
    let mut bytes = Vec::with_capacity(body.len());
    unescape(body, |_, piece| bytes.extend_from_slice(piece));
    String::from_utf8(bytes).unwrap_or_else(|error| whole_characters(error.as_bytes()))
}

/// Half a pair has three bytes, of which the first differs from all that characters begin with.
fn whole_characters(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if chunk.invalid().first() == Some(&0xED) {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    text
}

/// The three bytes of half a surrogate pair.
fn half_pair(code: u32) -> [u8; 3] {
    [0xE0 | (code >> 12) as u8, 0x80 | ((code >> 6) & 0x3F) as u8, 0x80 | (code & 0x3F) as u8]
}

/// One escape at the start of `text`: how long it is and what it stands for.
fn escape(text: &str) -> (usize, u32) {
    let unit = |from: usize| text.get(from..from + 4).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    match text.as_bytes().get(1) {
        Some(b'u') => {
            let Some(first) = unit(2) else { return (text.len(), 0xFFFD) };
            let follows = text.get(6..8) == Some("\\u");
            match unit(8).filter(|second| follows && (0xDC00..0xE000).contains(second)) {
                Some(second) if (0xD800..0xDC00).contains(&first) => {
                    (12, 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00))
                }
                _ => (6, first),
            }
        }
        Some(b'n') => (2, 0x0A),
        Some(b'r') => (2, 0x0D),
        Some(b't') => (2, 0x09),
        Some(b'b') => (2, 0x08),
        Some(b'f') => (2, 0x0C),
        Some(other) if other.is_ascii() => (2, u32::from(*other)),
        _ => (text.len(), 0xFFFD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compacting_touches_nothing_inside_strings() {
        assert_eq!(compact("{ \"a b\" :\r\n [ 1 ,\t\"\\\" x\" ] }"), "{\"a b\":[1,\"\\\" x\"]}");
    }

    #[test]
    fn depth_counts_brackets_outside_strings_only() {
        assert_eq!(depth(r#"{"a":[1,{"b":"[[[["}]}"#, 64), 3);
        assert_eq!(depth(r#""\"[[""#, 64), 0);
        assert_eq!(depth(r#"["\\\\",["[",[]]]"#, 64), 3);
        assert_eq!(depth(r#"["[[\"#, 64), 1, "a string that does not end");
        assert_eq!(depth(&"[".repeat(1_000_000), 64), 65);
    }

    #[test]
    fn compact_is_what_compacting_does_not_change() {
        for text in [r#"{"a b":[1,"\" x\\"]}"#, r#"{"a": 1}"#, "[1,\n2]", r#"["x\\" ]"#, r#""a b"#, "", "1 "] {
            assert_eq!(is_compact(text), compact(text) == text, "{text}");
        }
    }

    fn decoded(body: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let mut last = 0;
        unescape(body, |at, piece| {
            assert!(at > last);
            last = at;
            out.extend_from_slice(piece);
        });
        assert_eq!(last, body.len());
        out
    }

    #[test]
    fn unescaping_says_what_the_parser_says() {
        let bodies = [
            "",
            "plain",
            r"\\n is \n",
            r"\u0041\u00e9\u2028",
            r"\ud83d\ude00",
            "\\\"\\\\\\/\\b\\f\\r\\t",
            "é\u{2028}\u{feff}😀",
        ];
        for body in bodies {
            let text: String = serde_json::from_str(&format!("\"{body}\"")).unwrap();
            assert_eq!(decoded(body), text.as_bytes(), "{body}");
        }
    }

    #[test]
    fn half_a_pair_is_kept_as_three_bytes() {
        assert_eq!(decoded(r"a\ud83d"), [b'a', 0xED, 0xA0, 0xBD]);
        assert_eq!(decoded(r"\ude00\ud83d\u0041"), [0xED, 0xB8, 0x80, 0xED, 0xA0, 0xBD, b'A']);
    }
}
