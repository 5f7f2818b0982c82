//! How far a producer has come, and how each of its appends was answered.
//!
//! The newest appends are in one small item that is written with every append; whenever a block of them is full, it
//! becomes an item of its own that is never written again. So memory for many costs no append more than memory for few.

use bowline_protocol::{ProducerId, Seq};
use bowline_store::Item;
use serde::{Deserialize, Serialize};

use super::record::keys;

/// Appends in one block: some 2 kB, which is what an append writes at most beside its chunks.
const BLOCK: u64 = 64;

/// What the store keeps of a producer, up to its last full block.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Position {
    pub next: u64,
    recent: Vec<Taken>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Taken {
    #[serde(rename = "n", alias = "seq")]
    seq: u64,
    /// The last event of the append.
    #[serde(rename = "l", alias = "last")]
    pub last: Seq,
    #[serde(rename = "d", alias = "digest")]
    pub digest: String,
}

/// Where an append that came before is remembered.
#[derive(Debug)]
pub enum Remembered<'a> {
    Here(&'a Taken),
    /// In the block under this key, if it is still kept.
    InBlock(String),
}

/// A block that is full.
#[derive(Clone, Debug)]
pub struct Block {
    pub key: String,
    pub taken: Vec<Taken>,
}

impl Position {
    /// Takes the next append. What that fills is to be stored with it.
    pub fn push(&mut self, producer: &ProducerId, last: Seq, digest: String) -> Option<Block> {
        let seq = self.next;
        self.recent.push(Taken { seq, last, digest });
        self.next += 1;
        self.next.is_multiple_of(BLOCK).then(|| {
            let mut taken = std::mem::take(&mut self.recent);
            taken.retain(|taken| taken.seq / BLOCK == seq / BLOCK);
            Block { key: keys::block(producer, seq / BLOCK), taken }
        })
    }

    pub fn find(&self, producer: &ProducerId, seq: u64) -> Remembered<'_> {
        match self.recent.iter().find(|taken| taken.seq == seq) {
            Some(taken) => Remembered::Here(taken),
            None => Remembered::InBlock(keys::block(producer, seq / BLOCK)),
        }
    }

    /// The block that is not kept any more once so many newer appends are.
    pub fn outlived(&self, producer: &ProducerId, kept_max: u64) -> Option<String> {
        let full = self.next / BLOCK;
        // The one before the oldest that holds one of the appends to be kept.
        full.checked_sub(kept_max.div_ceil(BLOCK) + 1).map(|block| keys::block(producer, block))
    }
}

impl Block {
    pub fn find(taken: &[Taken], seq: u64) -> Option<&Taken> {
        taken.iter().find(|taken| taken.seq == seq)
    }

    pub fn item(&self) -> Item {
        Item::put(self.key.clone(), serde_json::to_vec(&self.taken).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_append_is_found_until_so_many_newer_ones_are_kept() {
        let producer = ProducerId::parse("p").unwrap();
        for kept_max in [1, 64, 100, 1000] {
            let (mut position, mut blocks) = (Position::default(), std::collections::HashMap::new());
            for n in 0..2000u64 {
                let block = position.push(&producer, Seq::new(n + 1).unwrap(), n.to_string());
                if let Some(block) = block {
                    blocks.insert(block.key, block.taken);
                    position.outlived(&producer, kept_max).map(|key| blocks.remove(&key));
                }
                for age in [0, 1, kept_max / 2, kept_max.saturating_sub(1)] {
                    let Some(seq) = n.checked_sub(age) else { continue };
                    let digest = match position.find(&producer, seq) {
                        Remembered::Here(taken) => &taken.digest,
                        Remembered::InBlock(key) => &Block::find(&blocks[&key], seq).unwrap().digest,
                    };
                    assert_eq!(*digest, seq.to_string(), "kept_max {kept_max}, at {n}");
                }
                assert!(blocks.len() as u64 <= kept_max.div_ceil(BLOCK) + 1, "and no more than needed are kept");
            }
        }
    }

    #[test]
    fn what_an_older_version_wrote_is_read() {
        let old = r#"{"next":2,"recent":[{"seq":0,"last":3,"digest":"a"},{"seq":1,"last":4,"digest":"b"}]}"#;
        let position: Position = serde_json::from_str(old).unwrap();
        assert!(
            matches!(position.find(&ProducerId::parse("p").unwrap(), 1), Remembered::Here(taken) if taken.digest == "b")
        );
    }
}
