//! Folding: on replay, neighbouring deltas of one part arrive as one.

use std::fmt;

use bowline_protocol::{Chunk, ChunkPosition};

use crate::dialect::Fold;

/// The most text in one folded chunk; a bit less than what browsers and proxies like to pass on in one piece.
pub const FOLDED_BYTES_MAX: usize = 64 * 1024;

/// Joins deltas that follow each other, and holds back at most one chunk.
///
/// Two deltas are joined only if they differ in nothing but their text, and nothing stands between them. The texts are
/// joined as they were written, escapes and all: what is between two JSON quotes can be put end to end.
#[derive(Debug, Default)]
pub struct DeltaFold {
    held: Option<FoldedChunk>,
}

enum FoldedChunk {
    /// One delta; it may stay alone, and then its bytes are passed on as they are.
    One(Chunk),
    Many(Joined),
}

struct Joined {
    /// The head, and the texts so far.
    json: Vec<u8>,
    head: usize,
    tail: Vec<u8>,
    at: Option<ChunkPosition>,
}

impl fmt::Debug for FoldedChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FoldedChunk::One(chunk) => chunk.fmt(f),
            FoldedChunk::Many(joined) => write!(f, "Joined({} bytes)", joined.json.len()),
        }
    }
}

impl Joined {
    fn of(chunk: &Chunk) -> Option<Joined> {
        let delta = chunk.delta()?;
        let json = [delta.head, delta.body].concat();
        Some(Joined { json, head: delta.head.len(), tail: delta.tail.to_vec(), at: chunk.at })
    }

    /// True if the chunk extends the same part and there is room for it.
    fn join(&mut self, chunk: &Chunk) -> bool {
        let Some(delta) = chunk.delta() else { return false };
        let same = delta.head == &self.json[..self.head] && delta.tail == self.tail;
        let fits = self.json.len() - self.head + delta.body.len() <= FOLDED_BYTES_MAX;
        // A chunk that was made up stands nowhere, and must not take another's place or lend it one.
        if !same || !fits || chunk.at.is_none() != self.at.is_none() {
            return false;
        }
        self.json.extend_from_slice(delta.body);
        self.at = chunk.at;
        true
    }

    fn finish(mut self) -> Chunk {
        let body = self.head..self.json.len();
        self.json.extend_from_slice(&self.tail);
        Chunk::joined(self.json, body, self.at)
    }
}

impl Fold<Chunk> for DeltaFold {
    fn push(&mut self, chunk: Chunk, out: &mut Vec<Chunk>) {
        if chunk.delta().is_none() {
            self.flush(out);
            return out.push(chunk);
        }
        let mut joined = match self.held.take() {
            None => return self.held = Some(FoldedChunk::One(chunk)),
            Some(FoldedChunk::Many(joined)) => joined,
            Some(FoldedChunk::One(first)) => match Joined::of(&first) {
                Some(joined) => joined,
                None => return out.push(first),
            },
        };
        if joined.join(&chunk) {
            self.held = Some(FoldedChunk::Many(joined));
        } else {
            out.push(joined.finish());
            self.held = Some(FoldedChunk::One(chunk));
        }
    }

    fn flush(&mut self, out: &mut Vec<Chunk>) {
        match self.held.take() {
            None => {}
            Some(FoldedChunk::One(chunk)) => out.push(chunk),
            Some(FoldedChunk::Many(joined)) => out.push(joined.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_protocol::Seq;

    fn chunk(json: &str, seq: u64) -> Chunk {
        let at = (seq > 0).then(|| ChunkPosition { seq: Seq::new(seq).unwrap(), part: None });
        let mut chunk = Chunk::verbatim(json);
        chunk.at = at;
        chunk
    }

    fn text(id: &str, body: &str, seq: u64) -> Chunk {
        chunk(&format!(r#"{{"type":"text-delta","id":"{id}","delta":"{body}"}}"#), seq)
    }

    fn fold(chunks: Vec<Chunk>) -> Vec<(String, Option<u64>)> {
        let (mut fold, mut out) = (DeltaFold::default(), Vec::new());
        chunks.into_iter().for_each(|chunk| fold.push(chunk, &mut out));
        fold.flush(&mut out);
        let shown =
            |chunk: Chunk| (String::from_utf8(chunk.json.to_vec()).unwrap(), chunk.at.map(|place| place.seq.get()));
        out.into_iter().map(shown).collect()
    }

    #[test]
    fn neighbours_become_one_with_the_last_id_and_all_the_text() {
        let folded = fold(vec![text("a", r"x\n", 1), text("a", r"\ud83d", 2), text("a", r#"\ude00\""#, 3)]);
        assert_eq!(folded, [(r#"{"type":"text-delta","id":"a","delta":"x\n\ud83d\ude00\""}"#.to_owned(), Some(3))]);
    }

    #[test]
    fn nothing_is_folded_across_something_else() {
        let reasoning = r#"{"type":"reasoning-delta","id":"a","delta":"r"}"#;
        let input = r#"{"type":"tool-input-delta","toolCallId":"a","inputTextDelta":"{"}"#;
        let other = r#"{"type":"data-x","data":1}"#;
        let tagged = r#"{"type":"text-delta","id":"a","delta":"t","providerMetadata":{"p":{"n":1}}}"#;
        let chunks = vec![
            text("a", "1", 1),
            text("b", "2", 2),
            chunk(reasoning, 3),
            chunk(input, 4),
            chunk(input, 5),
            text("a", "3", 6),
            chunk(other, 7),
            text("a", "4", 8),
            chunk(tagged, 9),
        ];
        let places: Vec<_> = fold(chunks).into_iter().map(|(_, seq)| seq.unwrap()).collect();
        assert_eq!(places, [1, 2, 3, 5, 6, 7, 8, 9], "only the two halves of the input are one");
    }

    #[test]
    fn a_made_up_delta_keeps_to_itself() {
        assert_eq!(fold(vec![text("a", "1", 0), text("a", "2", 1)]).len(), 2);
    }

    #[test]
    fn a_folded_chunk_has_a_limit_and_one_huge_delta_passes() {
        let huge = "x".repeat(FOLDED_BYTES_MAX * 2);
        let half = "y".repeat(FOLDED_BYTES_MAX / 2 + 1);
        let folded = fold(vec![text("a", &huge, 1), text("a", &half, 2), text("a", &half, 3)]);
        assert_eq!(folded.len(), 3);
        let small = fold((1..=5000).map(|seq| text("a", "word ", seq)).collect());
        assert_eq!(small.len(), 1, "25 kB in one chunk");
        assert_eq!(small[0].1, Some(5000));
    }
}
