//! Small JSON helpers that work on bytes, so that nothing on the hot path builds a tree.

use serde::Serialize;
use serde_json::value::RawValue;

/// How deeply `text` nests, looking only at brackets outside strings. Stops counting once it is past `limit`.
pub fn depth(text: &str, limit: usize) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
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

/// The JSON string literal of `text`.
pub fn push_string(out: &mut Vec<u8>, text: &str) {
    // Writing to a Vec cannot fail, and a string always encodes.
    let _ = serde_json::to_writer(out, text);
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
        assert_eq!(depth(&"[".repeat(1_000_000), 64), 65);
    }
}
