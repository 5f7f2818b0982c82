//! Dialects: the forms in which readers get the events of a turn or task. Each is a folder, and a [`Projection`].

pub mod ai_sdk;
mod index;
mod live;
mod registry;
pub mod responses;

use std::collections::BTreeMap;
use std::fmt;

use bowline_protocol::{Epoch, EventView, Recorded, Seq, SessionId, TaskId};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use index::{INDEX_BYTES_MAX, IndexerState, ProjectionIndex, ProjectionIndexer};
pub use live::{Live, LiveBatch, SharedOutputs};
pub use registry::{
    AnnouncedOperation, FrameDialect, Imported, Importer, OperationCalls, OwedChunk, StreamIndexer, StreamIndexerState,
    UpstreamEnd, UpstreamEnding, answer_chunk, message_parts,
};

/// Turns the events of one turn or task into the outputs of one dialect, for one reader.
///
/// It is given every event from the first on, so that all readers count the same outputs: what a reader already has is
/// passed ([`pass_event`](Projection::pass_event)), the rest is handled. Where it cannot begin with the first event, the
/// parts that were open ([`OpenParts`]) stand for what came before.
pub trait Projection: Clone + fmt::Debug + Send + 'static {
    /// One piece of the stream.
    type Output: Clone + fmt::Debug + Send + Sync;
    /// One thing that is open between two events, as it is kept in a [`ProjectionIndex`].
    type Mark: Clone + PartialEq + fmt::Debug + Serialize + DeserializeOwned + Send;
    /// How neighbouring outputs are merged on replay.
    type Fold: Fold<Self::Output>;

    /// If those who write turns and tasks keep the index of this dialect, what its key beside the log ends with.
    const INDEX: Option<&'static str>;
    /// The last bytes of a stream of server-sent events.
    const SSE_END: &'static [u8];

    /// From the first event on. The reader knows the turn or task as `name`.
    fn new(name: &str) -> Self;

    /// From the middle on, where these parts are open, for a parser that has read everything up to there.
    fn resumed(name: &str, open: &OpenParts<Self::Mark>) -> Self;

    /// Whether [`resumed`](Projection::resumed) can frame a fresh parser exactly as the events before would.
    fn can_frame(open: &OpenParts<Self::Mark>) -> bool;

    /// Adds the outputs of the next event to `out`.
    fn handle_event(&mut self, event: &Recorded, out: &mut Vec<Self::Output>);

    /// Takes note of an event whose outputs the reader already has.
    fn pass_event(&mut self, event: &Recorded);

    /// The same with an event that is not encoded yet. A dialect that looks at views need not have it encoded for this.
    fn pass_view(&mut self, seq: Seq, view: &EventView<'_>) {
        // Texts only, so this cannot fail.
        let bytes = serde_json::to_vec(view).unwrap_or_default().into();
        self.pass_event(&Recorded { seq, bytes });
    }

    /// Takes an event of which the reader has the first `has` outputs, and adds the others to `out`; before them, if its
    /// parser is a fresh one, the framing of that very point.
    fn split_event(&mut self, event: &Recorded, has: u32, framed: bool, out: &mut Vec<Self::Output>);

    /// Adds what a fresh parser needs to follow from here. From now on the reader is that parser.
    fn framing(&mut self, out: &mut Vec<Self::Output>);

    /// Says that events are lost without changing anything else.
    fn gap_notice(lost: u64, first_retained: Seq, parser: ClientParser) -> Self::Output;

    /// Events were lost here: says so, and frames the reader's parser anew, with what is open at the first event that is
    /// left if that is known.
    fn gap(
        &mut self,
        parser: ClientParser,
        lost: u64,
        first_retained: Seq,
        open: Option<&OpenParts<Self::Mark>>,
        out: &mut Vec<Self::Output>,
    );

    /// Events were lost here, and the reader knows it. Nothing that follows refers to what was open.
    fn lose(&mut self);

    /// Whether nothing follows.
    fn is_over(&self) -> bool;

    /// Whether the last event would have been projected otherwise, had all events before it been seen.
    fn is_inexact(&self) -> bool;

    /// Whether every reader who has read everything up to here gets the same outputs from now on.
    fn is_shareable(&self) -> bool;

    /// What is open now.
    fn open_parts(&self) -> OpenParts<Self::Mark>;

    /// Whether something was opened or closed since this was last asked.
    fn take_changed(&mut self) -> bool;

    /// What a reader gets whose turn or task was given up before it began.
    fn dropped() -> Self::Output;

    /// Writes an output as a server-sent event.
    fn encode_sse(output: &Self::Output, epoch: &Epoch, out: &mut Vec<u8>);

    /// About how many bytes an output takes.
    fn len(output: &Self::Output) -> usize;
}

/// A dialect whose outputs can also travel as frames of a connection.
pub trait FrameProjection: Projection {
    /// Writes an output of this task as a frame.
    fn encode_frame(output: &Self::Output, task: &FrameTask<'_>, timestamp: &str) -> Bytes;
}

/// The task that a frame names.
#[derive(Clone, Copy, Debug)]
pub struct FrameTask<'a> {
    pub task: &'a TaskId,
    pub session: Option<&'a SessionId>,
    pub epoch: &'a Epoch,
}

/// Where the index of this dialect is kept beside a log, in which the keys of all indexes of a stream begin with `base`.
pub fn index_key<P: Projection>(base: &str) -> Option<String> {
    P::INDEX.map(|end| format!("{base}{end}"))
}

/// Merges outputs that follow each other, and holds back at most one.
pub trait Fold<O>: Default + fmt::Debug + Send {
    /// Takes the next output, and adds to `out` what can no longer be extended.
    fn push(&mut self, output: O, out: &mut Vec<O>);

    /// Adds what was held back.
    fn flush(&mut self, out: &mut Vec<O>);
}

/// What the reader reads with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientParser {
    /// One that has no message yet. A notice that stays would make one of its own, so it is given one that passes.
    Fresh,
    /// The one that read what came before.
    Same,
}

/// What is open between two events of a stream, small enough to be kept: with it a reader can begin there.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent, bound = "M: Serialize + DeserializeOwned")]
pub struct OpenParts<M>(pub BTreeMap<String, M>);

impl<M> Default for OpenParts<M> {
    fn default() -> Self {
        OpenParts(BTreeMap::new())
    }
}

/// Marks may hold what people wrote.
impl<M> fmt::Debug for OpenParts<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenParts({} marks)", self.0.len())
    }
}
