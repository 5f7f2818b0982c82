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
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// What a log holds now. Retained events are `first .. next`; those of this epoch begin at `epoch_first`.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}
