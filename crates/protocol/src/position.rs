//! Where a reader stands in a log: sequence numbers, epochs, cursors and the retained extent.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The number of an event in its log: 1, 2, 3 … `0` stands before the first event.
///
/// Kept below 2^53 so that a browser reads it exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(u64);

impl Seq {
    pub const ZERO: Seq = Seq(0);
    /// The first event of a log that is new to the world.
    pub const FIRST: Seq = Seq(1);
    /// JavaScript's `Number.MAX_SAFE_INTEGER`.
    pub const MAX: Seq = Seq((1 << 53) - 1);

    /// `None` above [`Seq::MAX`]: such a number came from a peer and is not a position.
    pub fn new(value: u64) -> Option<Seq> {
        (value <= Self::MAX.0).then_some(Seq(value))
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    pub const fn next(self) -> Seq {
        Seq(self.0 + 1)
    }

    pub const fn plus(self, count: u64) -> Seq {
        Seq(self.0 + count)
    }

    /// The event before this one; `0` stays `0`.
    pub const fn prev(self) -> Seq {
        Seq(self.0.saturating_sub(1))
    }

    /// How many events lie in `self .. later`; zero if `later` is not later.
    pub const fn until(self, later: Seq) -> u64 {
        later.0.saturating_sub(self.0)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one incarnation of a log. Numbers are comparable only within one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(Arc<str>);

/// Long enough for any epoch we make; anything longer is not one of ours.
const EPOCH_LEN_MAX: usize = 32;

impl Epoch {
    /// Ten characters of base 32: 50 random bits are plenty, since an epoch must only differ from the others of one log.
    pub fn from_random(bits: u64) -> Epoch {
        const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        let text: String = (0..10).map(|i| char::from(ALPHABET[(bits >> (5 * i)) as usize & 31])).collect();
        Epoch(text.into())
    }

    pub fn parse(text: &str) -> Option<Epoch> {
        let ok = !text.is_empty() && text.len() <= EPOCH_LEN_MAX && text.bytes().all(|b| b.is_ascii_alphanumeric());
        ok.then(|| Epoch(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// "I have seen everything up to and including `seq`." Without an epoch it means the current one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    pub epoch: Option<Epoch>,
    pub seq: Seq,
}

impl Cursor {
    pub fn bare(seq: Seq) -> Cursor {
        Cursor { epoch: None, seq }
    }

    /// Reads `<epoch>-<seq>` or a bare number.
    pub fn parse(text: &str) -> Option<Cursor> {
        let (epoch, digits) = match text.split_once('-') {
            Some((epoch, digits)) => (Some(Epoch::parse(epoch)?), digits),
            None => (None, text),
        };
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let seq = plain.then(|| digits.parse().ok()).flatten().and_then(Seq::new)?;
        Some(Cursor { epoch, seq })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.epoch {
            Some(epoch) => write!(f, "{epoch}-{}", self.seq),
            None => self.seq.fmt(f),
        }
    }
}

/// Where a chunk stands in the projection of a log: it is all of event `seq`, or the `part`-th of its chunks, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPosition {
    pub seq: Seq,
    pub part: Option<u32>,
}

impl fmt::Display for ChunkPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Some(part) => write!(f, "{}.{part}", self.seq),
            None => self.seq.fmt(f),
        }
    }
}

/// A cursor into the chunks of a log: after the whole event, or after the `part`-th of its chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamCursor {
    pub cursor: Cursor,
    pub part: Option<u32>,
}

/// A text that is no position in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotACursor;

impl fmt::Display for NotACursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a position is a number, `<number>.<part>`, or either behind `<epoch>-`")
    }
}

impl StreamCursor {
    /// Reads `N`, `N.n`, `<epoch>-N` or `<epoch>-N.n`. Nothing, or a bare `0`, is no cursor: the whole stream is wanted.
    pub fn parse(text: &str) -> Result<Option<StreamCursor>, NotACursor> {
        if text.is_empty() {
            return Ok(None);
        }
        let (cursor, part) = match text.split_once('.') {
            Some((cursor, part)) => (cursor, Some(part_number(part).ok_or(NotACursor)?)),
            None => (text, None),
        };
        let cursor = Cursor::parse(cursor).ok_or(NotACursor)?;
        match (cursor.seq, part) {
            (Seq::ZERO, Some(_)) => Err(NotACursor),
            (Seq::ZERO, None) if cursor.epoch.is_none() => Ok(None),
            _ => Ok(Some(StreamCursor { cursor, part })),
        }
    }

    /// Whether a reader that stands here has the chunk at `place`. Both are of one epoch.
    pub fn has(&self, place: ChunkPosition) -> bool {
        match self.part {
            Some(part) if place.seq == self.cursor.seq => place.part.is_some_and(|at| at <= part),
            _ => place.seq <= self.cursor.seq,
        }
    }
}

impl fmt::Display for StreamCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cursor.fmt(f)?;
        self.part.map_or(Ok(()), |part| write!(f, ".{part}"))
    }
}

fn part_number(digits: &str) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten().filter(|part| *part > 0)
}

/// What a log holds now. Retained events are `first .. next`; those of this epoch begin at `epoch_first`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    pub epoch: Epoch,
    /// The first number that was given out in this epoch (whether or not it is still retained).
    pub epoch_first: Seq,
    /// The first event that can still be read; equal to `next` when nothing is retained.
    pub first: Seq,
    /// The number that the next event will get.
    pub next: Seq,
}

impl Extent {
    /// The last number given out, `0` if none was.
    pub fn last(&self) -> Seq {
        self.next.prev()
    }

    /// The first retained event of the current epoch.
    pub fn first_of_epoch(&self) -> Seq {
        self.first.max(self.epoch_first)
    }

    pub fn retained(&self) -> u64 {
        self.first.until(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_the_trip_through_text() {
        let epoch = Epoch::from_random(0x1234_5678_9abc);
        for cursor in [Cursor::bare(Seq::ZERO), Cursor { epoch: Some(epoch), seq: Seq::MAX }] {
            assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        }
    }

    #[test]
    fn what_is_not_a_cursor_is_refused() {
        for text in
            ["", "-", "-1", "a-", "a-b", "1.5", "+1", " 1", "1-2-3", "e-9007199254740992", "9007199254740992", "é-1"]
        {
            assert_eq!(Cursor::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_stream_cursor_survives_the_trip_through_text() {
        for text in ["7", "7.3", "e1-7", "e1-7.4294967295", "e1-0"] {
            assert_eq!(StreamCursor::parse(text).unwrap().unwrap().to_string(), text);
        }
        for text in ["", "0"] {
            assert_eq!(StreamCursor::parse(text), Ok(None), "{text:?}");
        }
        for text in ["0.1", "1.0", "1.", ".1", "1.1.1", "1.-1", "1.4294967296", "x", "e-1.x", "e-0.1", "1. 1"] {
            assert_eq!(StreamCursor::parse(text), Err(NotACursor), "{text:?}");
        }
    }

    #[test]
    fn a_stream_cursor_stands_behind_what_it_has() {
        let has = |cursor: &str, seq: u64, part: Option<u32>| {
            let cursor = StreamCursor::parse(cursor).unwrap().unwrap();
            cursor.has(ChunkPosition { seq: Seq::new(seq).unwrap(), part })
        };
        assert!(has("5", 5, None) && has("5", 5, Some(9)) && has("5", 4, Some(1)) && !has("5", 6, None));
        assert!(has("5.2", 5, Some(2)) && has("5.2", 4, None) && !has("5.2", 5, Some(3)) && !has("5.2", 6, Some(1)));
    }
}
