//! How far a producer has come, and how each of its appends was answered.
//!
//! Three sizes of memory, so that an append writes little and much is remembered: the newest few appends are in one small
//! item that is written with every append; whenever that is full, they move into the block of their time, which is
//! written once more; and a block that is full is never written again.

use bowline_protocol::{ProducerId, Seq};
use bowline_store::Item;
use serde::Deserialize;

use super::record::keys;

/// Appends in one block: some 600 bytes.
const BLOCK: u64 = 64;
/// Appends in the small item. With fewer, blocks are written more often; with more, the item is longer: at eight, an
/// append writes some 40 bytes for each.
const FEW: u64 = 8;
/// What the items begin with; those of earlier versions are JSON.
const VERSION: u8 = 2;

/// What distinguishes the chunks of an append.
pub type ChunkDigest = [u8; 8];

/// What the store keeps of a producer, since its last full block.
#[derive(Clone, Debug, Default)]
pub struct Position {
    pub next: u64,
    recent: Vec<TakenAppend>,
    /// What is in `recent` was read from an item of an earlier version, and is not in blocks yet.
    is_old: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenAppend {
    seq: u64,
    /// The last event of the append.
    pub last: Seq,
    pub digest: ChunkDigest,
}

/// Where an append that came before is remembered.
#[derive(Debug)]
pub enum RememberedAppend {
    Here(TakenAppend),
    /// In the block under this key, if it is still kept.
    InBlock(String),
}

impl Position {
    /// Reads the small item of a producer, and says under which key the block of its appends is. None if it cannot be read.
    pub fn read(producer: &ProducerId, small: Option<&[u8]>) -> Option<(Position, String)> {
        let position = match small {
            None => Position::default(),
            Some([VERSION, rest @ ..]) => {
                let mut rest = rest;
                let next = number(&mut rest)?;
                let recent = all_taken(rest, |count| next.checked_sub(count))?;
                Position { next, recent, is_old: false }
            }
            Some(json) => {
                let old: OldPosition = serde_json::from_slice(json).ok()?;
                let recent = old.recent.iter().map(OldTaken::read).collect::<Option<_>>()?;
                Position { next: old.next, recent, is_old: true }
            }
        };
        let block = keys::block(producer, position.next / BLOCK);
        Some((position, block))
    }

    /// Adds what the block says of appends before those in the small item.
    pub fn add_block(&mut self, block: &[TakenAppend]) {
        let first = self.recent.first().map_or(self.next, |taken| taken.seq);
        let older = block.iter().filter(|taken| taken.seq < first && taken.seq / BLOCK == self.next / BLOCK);
        self.recent.splice(0..0, older.copied());
    }

    /// Takes the next append.
    pub fn push(&mut self, last: Seq, digest: ChunkDigest) {
        self.recent.push(TakenAppend { seq: self.next, last, digest });
        self.next += 1;
    }

    pub fn find(&self, producer: &ProducerId, seq: u64) -> RememberedAppend {
        match self.recent.iter().find(|taken| taken.seq == seq) {
            Some(taken) => RememberedAppend::Here(*taken),
            None => RememberedAppend::InBlock(keys::block(producer, seq / BLOCK)),
        }
    }

    /// What is to be stored with the appends since `before` was the next one, when so many are kept. What is in full
    /// blocks is let go of here.
    pub fn store(&mut self, producer: &ProducerId, before: u64, kept_max: u64, items: &mut Vec<Item>) {
        let few = self.next - self.next % FEW;
        let mut small = vec![VERSION];
        push_number(&mut small, self.next);
        push_taken(&mut small, self.recent.iter().filter(|taken| taken.seq >= few));
        items.push(Item::put(keys::producer(producer), small));
        if self.is_old || before / FEW < self.next / FEW {
            for block in self.recent.chunk_by(|a, b| a.seq / BLOCK == b.seq / BLOCK) {
                let Some(first) = block.first().filter(|first| first.seq < few) else { continue };
                let mut bytes = vec![VERSION];
                push_number(&mut bytes, first.seq);
                push_taken(&mut bytes, block.iter().filter(|taken| taken.seq < few));
                items.push(Item::put(keys::block(producer, first.seq / BLOCK), bytes));
            }
            self.is_old = false;
        }
        let (old, full) = (before / BLOCK, self.next / BLOCK);
        // The ones before the oldest that holds one of the appends to be kept.
        let outlived = |full: u64| full.saturating_sub(kept_max.div_ceil(BLOCK));
        let gone = outlived(old)..outlived(full);
        items.extend(gone.map(|block| Item::delete(keys::block(producer, block))));
        self.recent.retain(|taken| taken.seq / BLOCK >= full);
    }
}

/// The appends in a block.
pub fn read_block(bytes: &[u8]) -> Option<Vec<TakenAppend>> {
    match bytes {
        [VERSION, rest @ ..] => {
            let mut rest = rest;
            let first = number(&mut rest)?;
            all_taken(rest, |_| Some(first))
        }
        json => serde_json::from_slice::<Vec<OldTaken>>(json).ok()?.iter().map(OldTaken::read).collect(),
    }
}

pub fn find(block: &[TakenAppend], seq: u64) -> Option<TakenAppend> {
    block.iter().find(|taken| taken.seq == seq).copied()
}

/// Appends that follow each other: how far each one's last event is from that of the one before, and its digest.
fn push_taken<'a>(out: &mut Vec<u8>, taken: impl Iterator<Item = &'a TakenAppend>) {
    let mut before = 0;
    for TakenAppend { last, digest, .. } in taken {
        push_number(out, last.get().wrapping_sub(before));
        out.extend_from_slice(digest);
        before = last.get();
    }
}

fn all_taken(mut bytes: &[u8], first: impl FnOnce(u64) -> Option<u64>) -> Option<Vec<TakenAppend>> {
    let (mut before, mut taken) = (0, Vec::new());
    while !bytes.is_empty() {
        before = number(&mut bytes)?.wrapping_add(before);
        let (digest, rest) = bytes.split_first_chunk()?;
        taken.push(TakenAppend { seq: 0, last: Seq::new(before)?, digest: *digest });
        bytes = rest;
    }
    let first = first(taken.len() as u64)?;
    taken.iter_mut().zip(first..).for_each(|(taken, seq)| taken.seq = seq);
    Some(taken)
}

/// Seven bits to a byte, the lowest first.
fn push_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// As earlier versions wrote it.
#[derive(Deserialize)]
struct OldPosition {
    next: u64,
    recent: Vec<OldTaken>,
}

#[derive(Deserialize)]
struct OldTaken {
    #[serde(rename = "n", alias = "seq")]
    seq: u64,
    #[serde(rename = "l", alias = "last")]
    last: Seq,
    /// Hexadecimal.
    #[serde(rename = "d", alias = "digest")]
    digest: String,
}

impl OldTaken {
    fn read(&self) -> Option<TakenAppend> {
        let digest = u64::from_str_radix(&self.digest, 16).ok().filter(|_| self.digest.len() == 16)?;
        Some(TakenAppend { seq: self.seq, last: self.last, digest: digest.to_be_bytes() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// The items of one producer, and the position of the process that writes them.
    #[derive(Default)]
    struct Shelf {
        items: HashMap<String, Vec<u8>>,
        position: Position,
    }

    fn producer() -> ProducerId {
        ProducerId::parse("p").unwrap()
    }

    fn answer(seq: u64) -> (Seq, ChunkDigest) {
        // Some appends have no event of their own, and one of them came after numbers were lost.
        let last = if seq == 70 { 1 } else { seq / 3 * 5 + 1 };
        (Seq::new(last).unwrap(), seq.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes())
    }

    impl Shelf {
        fn commit(&mut self, appends: u64, kept_max: u64) -> usize {
            let before = self.position.next;
            for seq in before..before + appends {
                let (last, digest) = answer(seq);
                self.position.push(last, digest);
            }
            let mut items = Vec::new();
            self.position.store(&producer(), before, kept_max, &mut items);
            let mut bytes = 0;
            for Item { key, value } in items {
                bytes += key.len() + value.as_ref().map_or(0, bytes::Bytes::len);
                match value {
                    Some(value) => drop(self.items.insert(key, value.to_vec())),
                    None => drop(self.items.remove(&key)),
                }
            }
            bytes
        }

        /// As another process finds it.
        fn reopen(&mut self) {
            let small = self.items.get(&keys::producer(&producer())).map(Vec::as_slice);
            let (mut position, block) = Position::read(&producer(), small).unwrap();
            if let Some(block) = self.items.get(&block) {
                position.add_block(&read_block(block).unwrap());
            }
            self.position = position;
        }

        fn look_up(&self, seq: u64) -> Option<TakenAppend> {
            match self.position.find(&producer(), seq) {
                RememberedAppend::Here(taken) => Some(taken),
                RememberedAppend::InBlock(key) => find(&read_block(self.items.get(&key)?).unwrap(), seq),
            }
        }
    }

    proptest! {
        #[test]
        fn every_append_is_found_as_it_was_answered_until_so_many_newer_ones_are_kept(
            steps in proptest::collection::vec((1u64..100, any::<bool>()), 1..40),
            kept_max in prop_oneof![Just(1u64), Just(64), Just(100), Just(1000)],
        ) {
            let mut shelf = Shelf::default();
            for (appends, comes_back) in steps {
                shelf.commit(appends, kept_max);
                if comes_back {
                    shelf.reopen();
                }
                let next = shelf.position.next;
                for seq in next.saturating_sub(kept_max)..next {
                    let (last, digest) = answer(seq);
                    prop_assert_eq!(shelf.look_up(seq), Some(TakenAppend { seq, last, digest }), "{} of {}", seq, next);
                }
                prop_assert_eq!(shelf.look_up(next), None);
                prop_assert!(shelf.items.len() as u64 <= kept_max.div_ceil(BLOCK) + 2, "no more than needed are kept");
            }
        }

        #[test]
        fn no_bytes_at_all_are_a_reason_to_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let versioned: Vec<u8> = [VERSION].into_iter().chain(bytes.iter().copied()).collect();
            for bytes in [bytes, versioned] {
                let _ = (Position::read(&producer(), Some(&bytes)), read_block(&bytes));
            }
        }
    }

    #[test]
    fn one_append_writes_less_than_a_hundred_bytes_on_average() {
        let mut shelf = Shelf::default();
        let bytes: usize = (0..6400).map(|_| shelf.commit(1, 100_000)).sum();
        assert!(bytes / 6400 < 100, "{}", bytes / 6400);
    }

    #[test]
    fn what_an_older_version_wrote_is_read_and_kept() {
        let digests = ["00000000000000aa", "00000000000000bb"];
        for (seq, last, digest) in [("seq", "last", "digest"), ("n", "l", "d")] {
            let taken =
                |n: u64, at: u64| format!(r#"{{"{seq}":{n},"{last}":{at},"{digest}":"{}"}}"#, digests[n as usize % 2]);
            let small = format!(r#"{{"next":66,"recent":[{},{}]}}"#, taken(64, 3), taken(65, 4));
            let block = format!("[{},{}]", taken(62, 1), taken(63, 2));
            let items = [(keys::producer(&producer()), small), (keys::block(&producer(), 0), block)];
            let items = items.into_iter().map(|(key, text)| (key, text.into_bytes())).collect();
            let mut shelf = Shelf { items, position: Position::default() };
            shelf.reopen();
            for round in 0..3 {
                for (n, at) in [(62, 1), (63, 2), (64, 3), (65, 4)] {
                    let found = shelf.look_up(n).unwrap();
                    let digest = if n % 2 == 0 { 0xaa } else { 0xbb };
                    assert_eq!((found.last.get(), found.digest[7]), (at, digest), "{n} in round {round}");
                }
                shelf.commit(1, 1000);
                shelf.reopen();
            }
        }
    }
}
