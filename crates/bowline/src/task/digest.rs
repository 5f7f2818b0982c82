//! What distinguishes the chunks of an append: the same chunks written otherwise are the same chunks.

use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::position::ChunkDigest;

/// White space, the order of keys and escapes make no difference.
pub fn digest(chunks: &[Box<RawValue>]) -> ChunkDigest {
    let mut hash = Sha256::new();
    for chunk in chunks {
        match texts_of(chunk.get()) {
            Some(members) => members.iter().for_each(|piece| hash.update(piece.as_bytes())),
            None => hash.update(canonical(chunk.get()).as_bytes()),
        }
        hash.update([0]);
    }
    let mut digest = ChunkDigest::default();
    digest.iter_mut().zip(hash.finalize()).for_each(|(to, byte)| *to = byte);
    digest
}

/// Keys in their order, and nothing else between them. What is no tree, because a text in it is half a character, is
/// compared as it is written.
fn canonical(chunk: &str) -> String {
    serde_json::from_str::<Value>(chunk).map_or_else(|_| chunk.to_owned(), |value| value.to_string())
}

/// The pieces of the [`canonical`] form of an object that holds nothing but texts, each written as that form writes it:
/// so are nearly all chunks, and no tree has to be made for them. None for any other.
fn texts_of(chunk: &str) -> Option<Vec<&str>> {
    let mut rest = chunk.strip_prefix('{')?;
    let mut members = Vec::with_capacity(4);
    loop {
        let (key, after) = text(rest)?;
        let (value, after) = text(after.strip_prefix(':')?)?;
        if key.contains('\\') {
            return None;
        }
        members.push((key, value));
        match after.as_bytes() {
            [b'}'] => break,
            [b',', ..] => rest = &after[1..],
            _ => return None,
        }
    }
    // As they are compared between their quotes, one key that begins another comes first.
    members.sort_unstable_by_key(|&(key, _)| &key[1..key.len() - 1]);
    if members.windows(2).any(|two| two[0].0 == two[1].0) {
        return None;
    }
    let mut pieces = Vec::with_capacity(members.len() * 4 + 1);
    for (place, (key, value)) in members.into_iter().enumerate() {
        pieces.extend([if place == 0 { "{" } else { "," }, key, ":", value]);
    }
    pieces.push("}");
    Some(pieces)
}

/// The JSON text that this begins with, and what follows it; none if it has an escape that can be written otherwise. Looks
/// for quotes and escapes only, because a text may be long.
fn text(from: &str) -> Option<(&str, &str)> {
    let (mut at, mut quote) = (1, 1 + from.strip_prefix('"')?.find('"')?);
    while let Some(escape) = from.get(at..quote)?.find('\\') {
        at += escape + 1;
        if !matches!(from.as_bytes().get(at)?, b'"' | b'\\' | b'n' | b'r' | b't' | b'b' | b'f') {
            return None;
        }
        at += 1;
        if at > quote {
            // It was that quote which was escaped.
            quote = at + from.get(at..)?.find('"')?;
        }
    }
    Some(from.split_at(quote + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunk(text: &str) -> Box<RawValue> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn chunks_are_compared_by_value() {
        for [one, other] in [
            [
                r#"{"type":"text-delta","id":"t","delta":"a\n\"b"}"#,
                r#"{ "delta":"\u0061\n\"b","type":"text-delta","id":"t"}"#,
            ],
            [r#"{"a":"1","ab":"2"}"#, r#"{"ab":"2","a":"1"}"#],
            [r#"{"a":"\"\\\"","b":"\\\\"}"#, r#"{"b":"\\\\", "a":"\u0022\\\""}"#],
            [r#"{"a":"\/"}"#, r#"{"a":"/"}"#],
            [r#"{"a":"1","a":"2"}"#, r#"{"a":"2"}"#],
            [r#"{"b":{"d":1,"c":[]},"a":null}"#, r#"{"a":null,"b":{"c":[],"d":1}}"#],
        ] {
            assert_eq!(digest(&[chunk(one)]), digest(&[chunk(other)]), "{one} {other}");
        }
        assert_ne!(digest(&[chunk(r#"{"a":"1"}"#)]), digest(&[chunk(r#"{"a":"2"}"#)]));
        let delta = r#"{"type":"text-delta","id":"t","delta":"a b\u000a"}"#;
        assert!(
            texts_of(delta).is_none() && texts_of(&delta.replace(r"\u000a", r"\n")).is_some(),
            "the quick way is taken"
        );
    }

    proptest! {
        #[test]
        fn the_quick_way_says_what_the_tree_says(members in proptest::collection::btree_map(".{0,6}", ".{0,12}", 0..5), turn in 0usize..5) {
            let mut written: Vec<String> =
                members.iter().map(|(key, value)| format!("{}:{}", serde_json::json!(key), serde_json::json!(value))).collect();
            let turn = turn.min(written.len());
            written.rotate_left(turn);
            let text = format!("{{{}}}", written.join(","));
            if let Some(pieces) = texts_of(&text) {
                prop_assert_eq!(pieces.concat(), canonical(&text));
            }
        }
    }
}
