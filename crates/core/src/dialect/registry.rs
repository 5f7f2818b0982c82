//! Which dialects are kept as turns and tasks are written. Only this file, the folders beside it and their endpoints name a dialect.

use bowline_protocol::{EventView, Recorded, Seq};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{IndexerState, Projection, ProjectionIndex, ProjectionIndexer, ai_sdk, index_key};

/// What producers write, and the message that is kept of a turn.
pub use ai_sdk::{
    AnnouncedOperation, Imported, Importer, OperationCalls, OwedChunk, UpstreamEnd, UpstreamEnding, answer_chunk,
    message_parts,
};

/// The dialect of the frames in which a connection gets the tasks that it watches.
pub type FrameDialect = ai_sdk::Projector;

/// Follows a stream as it is written, and keeps the index of each dialect that has one.
///
/// Another such dialect is a field, and a line in each of the first six functions.
#[derive(Clone, Debug)]
pub struct StreamIndexer {
    /// The number of the next event.
    next: Seq,
    ai_sdk: KeptIndexer<ai_sdk::Projector>,
}

/// How far a stream was followed: all that its writer knows of it beside the indexes. Another dialect that is indexed is a
/// field here too.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamIndexerState {
    next: Seq,
    ai_sdk: IndexerState<ai_sdk::Projector>,
}

impl StreamIndexerState {
    /// The number of the next event.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Takes note of an event that the indexes hold already.
    pub fn pass_event(&mut self, event: &Recorded) {
        if event.seq >= self.next {
            self.next = event.seq.next();
            self.ai_sdk.pass_event(event);
        }
    }
}

/// An indexer, and whether its index has changed since it was last taken.
#[derive(Clone, Debug)]
struct KeptIndexer<P: Projection> {
    indexer: ProjectionIndexer<P>,
    changed: bool,
}

impl StreamIndexer {
    /// The keys under which the indexes of a stream are kept, beginning with `base`.
    pub fn keys(base: &str) -> Vec<String> {
        [index_key::<ai_sdk::Projector>(base)].into_iter().flatten().collect()
    }

    /// A stream whose first event will be `first`.
    pub fn new(first: Seq) -> StreamIndexer {
        StreamIndexer { next: first, ai_sdk: KeptIndexer::new(first) }
    }

    /// A stream of which the beginning is gone: the first event that is left is `retained`. `stored` is what was kept under
    /// its [`keys`](StreamIndexer::keys).
    pub fn late<B: AsRef<[u8]>>(base: &str, stored: &[(String, B)], retained: Seq) -> StreamIndexer {
        StreamIndexer { next: retained, ai_sdk: KeptIndexer::late(base, stored, retained) }
    }

    /// A stream that was followed up to its end, with what is kept there under its [`keys`](StreamIndexer::keys).
    pub fn resumed<B: AsRef<[u8]>>(state: StreamIndexerState, base: &str, stored: &[(String, B)]) -> StreamIndexer {
        StreamIndexer { next: state.next, ai_sdk: KeptIndexer::resumed(state.ai_sdk, base, stored) }
    }

    /// What has to be kept of it beside its indexes.
    pub fn state(&self) -> StreamIndexerState {
        StreamIndexerState { next: self.next, ai_sdk: self.ai_sdk.indexer.state().clone() }
    }

    fn each(&mut self) -> [&mut dyn Indexed; 1] {
        [&mut self.ai_sdk]
    }

    /// The number of the next event.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Takes the next event.
    pub fn handle_event(&mut self, event: &Recorded) {
        if event.seq >= self.next {
            self.next = event.seq.next();
            self.each().into_iter().for_each(|indexed| indexed.handle_event(event));
        }
    }

    /// The same with an event that is not encoded yet.
    pub fn handle_view(&mut self, seq: Seq, view: &EventView<'_>) {
        if seq >= self.next {
            self.next = seq.next();
            self.each().into_iter().for_each(|indexed| indexed.handle_view(seq, view));
        }
    }

    /// The indexes that have changed since this was last asked, each with its key.
    pub fn take_changed(&mut self, base: &str) -> Vec<(String, Vec<u8>)> {
        self.each().into_iter().filter_map(|indexed| indexed.take_changed(base)).collect()
    }

    /// How much of this whole answer was streamed before, as the event that brings it should say: so many bytes, or
    /// `false` if that was something else. None if that is not known.
    pub fn streamed(&self, answer: &str) -> Option<Value> {
        self.ai_sdk.indexer.streamed(answer)
    }
}

/// One dialect's index, whichever it is.
trait Indexed {
    fn handle_event(&mut self, event: &Recorded);
    fn handle_view(&mut self, seq: Seq, view: &EventView<'_>);
    fn take_changed(&mut self, base: &str) -> Option<(String, Vec<u8>)>;
}

impl<P: Projection> KeptIndexer<P> {
    fn new(first: Seq) -> KeptIndexer<P> {
        KeptIndexer { indexer: ProjectionIndexer::new(first), changed: false }
    }

    fn late<B: AsRef<[u8]>>(base: &str, stored: &[(String, B)], retained: Seq) -> KeptIndexer<P> {
        KeptIndexer {
            indexer: ProjectionIndexer::late(KeptIndexer::<P>::stored(base, stored), retained),
            changed: false,
        }
    }

    fn resumed<B: AsRef<[u8]>>(state: IndexerState<P>, base: &str, stored: &[(String, B)]) -> KeptIndexer<P> {
        KeptIndexer {
            indexer: ProjectionIndexer::resumed(state, KeptIndexer::<P>::stored(base, stored)),
            changed: false,
        }
    }

    fn stored<B: AsRef<[u8]>>(base: &str, stored: &[(String, B)]) -> Option<ProjectionIndex<P::Mark>> {
        let key = index_key::<P>(base);
        let stored = stored.iter().find(|(at, _)| Some(at) == key.as_ref());
        stored.and_then(|(_, bytes)| ProjectionIndex::decode(bytes.as_ref()))
    }
}

impl<P: Projection> Indexed for KeptIndexer<P> {
    fn handle_event(&mut self, event: &Recorded) {
        self.changed |= self.indexer.handle_event(event);
    }

    fn handle_view(&mut self, seq: Seq, view: &EventView<'_>) {
        self.changed |= self.indexer.handle_view(seq, view);
    }

    fn take_changed(&mut self, base: &str) -> Option<(String, Vec<u8>)> {
        let changed = std::mem::take(&mut self.changed);
        let index = self.indexer.index().filter(|_| changed)?;
        Some((index_key::<P>(base)?, index.encode()))
    }
}
