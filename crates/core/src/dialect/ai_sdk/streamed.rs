//! How much of an answer was streamed: a length and a hash, so that no reader keeps the text.

use std::fmt;

use bowline_protocol::json;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::digest::common::hazmat::{SerializableState, SerializedState};
use sha2::{Digest as _, Sha256};

/// What a whole answer holds beyond what was streamed of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rest<'a> {
    /// Everything was streamed.
    Nothing,
    /// What was streamed is the beginning; this is the body of a JSON string with the rest.
    Tail(&'a str),
    /// What was streamed is something else.
    Everything,
}

impl fmt::Debug for Rest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rest::Nothing => f.write_str("Nothing"),
            Rest::Tail(tail) => write!(f, "Tail({} bytes)", tail.len()),
            Rest::Everything => f.write_str("Everything"),
        }
    }
}

/// The text that was streamed, as a whole and since its last part began.
///
/// Agents mean different things by the whole answer: all they said, or what they said after the last tool call. Either
/// is recognised, or a reader would see the text twice.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Streamed {
    all: TextDigest,
    /// None as long as the last part is all there is.
    last_part: Option<TextDigest>,
    /// Some of it was not seen, so nothing can be compared with it.
    blind: bool,
}

impl Streamed {
    pub fn blind() -> Streamed {
        Streamed { blind: true, ..Streamed::default() }
    }

    pub fn is_blind(&self) -> bool {
        self.blind
    }

    pub fn begin_part(&mut self) {
        self.last_part = (!self.all.is_empty()).then(TextDigest::default);
    }

    /// Takes the body of a JSON string.
    pub fn push(&mut self, body: &str) {
        self.all.push(body);
        self.last_part.iter_mut().for_each(|part| part.push(body));
    }

    /// How many bytes of a whole answer, the body of a JSON string, were streamed; none if that was something else.
    pub fn count(&self, body: &str) -> Option<usize> {
        let streamed = |digest: &TextDigest| match digest.rest(body) {
            Rest::Everything => None,
            Rest::Nothing | Rest::Tail(_) => Some(digest.bytes),
        };
        streamed(&self.all).or_else(|| streamed(self.last_part.as_ref()?))
    }

    /// Compares with a whole answer, the body of a JSON string.
    pub fn rest<'a>(&self, body: &'a str) -> Rest<'a> {
        match self.all.rest(body) {
            Rest::Everything => self.last_part.as_ref().map_or(Rest::Everything, |part| part.rest(body)),
            rest => rest,
        }
    }
}

/// What follows the first bytes of a whole answer, the body of a JSON string.
pub fn rest_after(body: &str, bytes: usize) -> Rest<'_> {
    let (missing, cut) = divide(body, bytes, |_| {});
    if missing > 0 { Rest::Everything } else { rest_from(body, cut) }
}

/// Walks through so many bytes of a JSON string's body: how many were missing, and where they end as it is written.
fn divide(body: &str, bytes: usize, mut seen: impl FnMut(&[u8])) -> (usize, usize) {
    let (mut missing, mut cut) = (bytes, 0);
    json::unescape(body, |end, piece| {
        if missing == 0 {
            return;
        }
        // A piece can be divided only where it stands for itself, byte for byte.
        let taken = piece.len().min(missing);
        seen(&piece[..taken]);
        missing -= taken;
        cut = end - (piece.len() - taken);
    });
    (missing, cut)
}

fn rest_from(body: &str, cut: usize) -> Rest<'_> {
    match body.get(cut..) {
        Some("") => Rest::Nothing,
        Some(tail) => Rest::Tail(tail),
        // The count was of another text.
        None => Rest::Everything,
    }
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct TextDigest {
    #[serde(serialize_with = "keep_hash", deserialize_with = "kept_hash")]
    hash: Sha256,
    bytes: usize,
    /// The first half of a surrogate pair whose second half may begin the next delta.
    half: Option<[u8; 3]>,
}

/// A hash that can be gone on with, as hexadecimal digits.
fn keep_hash<S: Serializer>(hash: &Sha256, to: S) -> Result<S::Ok, S::Error> {
    let digits: String = hash.serialize().iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).collect();
    digits.serialize(to)
}

fn digit(half: u8) -> char {
    char::from_digit(u32::from(half), 16).unwrap_or('0')
}

fn kept_hash<'de, D: Deserializer<'de>>(from: D) -> Result<Sha256, D::Error> {
    let digits = String::deserialize(from)?;
    let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
    let state = bytes.and_then(|bytes| SerializedState::<Sha256>::try_from(&*bytes).ok());
    let hash = state.and_then(|state| Sha256::deserialize(&state).ok());
    hash.ok_or_else(|| de::Error::custom("this is no hash that can be gone on with"))
}

fn byte(digits: &[u8]) -> Option<u8> {
    let value = |digit: u8| char::from(digit).to_digit(16);
    let [high, low] = digits else { return None };
    u8::try_from(value(*high)? << 4 | value(*low)?).ok()
}

impl TextDigest {
    fn is_empty(&self) -> bool {
        self.bytes == 0 && self.half.is_none()
    }

    fn push(&mut self, body: &str) {
        json::unescape(body, |_, piece| self.push_piece(piece));
    }

    fn push_piece(&mut self, piece: &[u8]) {
        if let Some(first) = self.half.take() {
            if let Some(joined) = join(first, piece) {
                return self.add(joined.encode_utf8(&mut [0; 4]).as_bytes());
            }
            self.add(&first);
        }
        match piece {
            [0xED, second @ 0xA0..=0xAF, third] => self.half = Some([0xED, *second, *third]),
            _ => self.add(piece),
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len();
    }

    fn rest<'a>(&self, body: &'a str) -> Rest<'a> {
        if self.half.is_some() {
            return Rest::Everything;
        }
        let mut hash = Sha256::new();
        let (missing, cut) = divide(body, self.bytes, |piece| hash.update(piece));
        if missing > 0 || hash.finalize() != self.hash.clone().finalize() {
            return Rest::Everything;
        }
        // Equal bytes end at a character, so the cut lies between two.
        rest_from(body, cut)
    }
}

impl fmt::Debug for TextDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({} bytes)", self.bytes)
    }
}

/// Joins the two halves of a surrogate pair, each in three bytes.
fn join(first: [u8; 3], second: &[u8]) -> Option<char> {
    let [0xED, 0xB0..=0xBF, _] = second else { return None };
    let unit = |bytes: &[u8]| (u32::from(bytes[1] & 0x3F) << 6) | u32::from(bytes[2] & 0x3F);
    // Both units lack their leading 0xD000, which the formula takes off as 0xD800 and 0xDC00.
    char::from_u32(0x10000 + ((unit(&first) - 0x800) << 10) + (unit(second) - 0xC00))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(deltas: &[&str]) -> Streamed {
        let mut streamed = Streamed::default();
        streamed.begin_part();
        deltas.iter().for_each(|delta| streamed.push(delta));
        streamed
    }

    #[test]
    fn the_rest_is_found_whatever_the_escapes() {
        for (deltas, whole, rest) in [
            (&["He", "llo"][..], "Hello", Rest::Nothing),
            (&["He", "llo"], "Hello, world", Rest::Tail(", world")),
            (&[], "Hello", Rest::Tail("Hello")),
            (&[""], "", Rest::Nothing),
            (&["Hallo"], "Hello", Rest::Everything),
            (&["Hello"], "Hell", Rest::Everything),
            (&[r"a\n"], r"a\u000ab", Rest::Tail("b")),
            (&["é"], r"\u00e9\n", Rest::Tail(r"\n")),
            (&["😀"], r"\ud83d\ude00!", Rest::Tail("!")),
            (&[r"\ud83d", r"\ude00"], "😀", Rest::Nothing),
            (&[r"x\ud83d"], "x😀", Rest::Everything),
            (&[r"\ud83d", "x"], r"\ud83dx.", Rest::Tail(".")),
            (&["a"], r"\u0061\u0062", Rest::Tail(r"\u0062")),
        ] {
            assert_eq!(streamed(deltas).rest(whole), rest, "{deltas:?} {whole}");
        }
    }

    #[test]
    fn an_answer_may_be_all_that_was_said_or_the_last_part() {
        let mut streamed = streamed(&["Let me look."]);
        streamed.begin_part();
        streamed.push("It is 4");
        assert_eq!(streamed.rest("Let me look.It is 42"), Rest::Tail("2"));
        assert_eq!(streamed.rest("It is 42"), Rest::Tail("2"));
        assert_eq!(streamed.rest("is 42"), Rest::Everything);
    }
}
