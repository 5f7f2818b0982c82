//! What all readers of one stream share once they have caught up: one projection, and the outputs of the newest events.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bowline_protocol::{Recorded, Seq};

use super::Projection;

/// A reader this far ahead of the shared projection takes it over: those who follow that are too slow to lead it.
const AHEAD_EVENTS_MAX: u64 = 256;
/// What a batch takes beside its outputs, about, and each event in it: without this, events that become nothing would be
/// kept without limit for a reader that has stopped reading.
const BATCH_BYTES: usize = 256;
const EVENT_BYTES: usize = 32;

/// A projection of a stream at its end, for readers that have read everything before their position.
///
/// Outputs are kept until every reader has taken them, within a limit. A reader that is slower than that is left behind,
/// and comes back with a projection of its own. `E` is what drivers keep beside a batch: its encoded forms.
pub struct Live<P: Projection, E> {
    projection: P,
    next: Seq,
    /// Oldest first, without holes between them.
    batches: VecDeque<KeptBatch<P::Output, E>>,
    readers: usize,
    bytes: usize,
    /// The next event needs what this projection has not seen.
    is_inexact: bool,
}

struct KeptBatch<O, E> {
    batch: Arc<LiveBatch<O, E>>,
    /// How many readers have not taken it yet.
    waiting: usize,
    bytes: usize,
}

/// The outputs of some events that were projected together.
pub struct LiveBatch<O, E> {
    first: Seq,
    next: Seq,
    pub outputs: Vec<O>,
    /// The events, and how many outputs there are up to the end of each.
    ends: Vec<(Seq, usize)>,
    pub encoded: E,
}

/// What is there for a reader at its position.
pub enum SharedOutputs<O, E> {
    /// These outputs, from the one with this number on; then the reader is at the batch's end.
    Outputs { batch: Arc<LiveBatch<O, E>>, from: usize },
    /// Nothing yet: the reader that has the next events adds them ([`Live::handle_events`]).
    AtEnd,
    /// Nothing, ever.
    Over,
    /// The reader must project for itself again.
    LeftBehind,
}

impl<O, E> LiveBatch<O, E> {
    /// Where a reader is that has taken it.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Where the outputs of the events from this one on begin.
    fn start_of(&self, seq: Seq) -> usize {
        let before = self.ends.partition_point(|(event, _)| *event < seq);
        before.checked_sub(1).and_then(|last| self.ends.get(last)).map_or(0, |(_, end)| *end)
    }
}

impl<P: Projection, E: Default> Live<P, E> {
    /// Begins with the projection of a reader that has read everything before `next`, and follows as its first reader.
    pub fn new(projection: P, next: Seq) -> Live<P, E> {
        Live { projection, next, batches: VecDeque::new(), readers: 1, bytes: 0, is_inexact: false }
    }

    /// Whether a reader at this position can [`join`](Live::join).
    pub fn can_follow(&self, at: Seq) -> bool {
        let oldest = self.batches.front().map_or(self.next, |kept| kept.batch.first);
        self.is_overtaken(at) || (!self.is_inexact && oldest <= at && at <= self.next)
    }

    fn is_overtaken(&self, at: Seq) -> bool {
        self.next.until(at) > AHEAD_EVENTS_MAX
    }

    /// One more reader, with the projection that it brought to `at`.
    pub fn join(&mut self, projection: P, at: Seq) {
        let readers = self.readers + 1;
        if self.is_overtaken(at) {
            *self = Live { readers, ..Live::new(projection, at) };
        } else {
            self.readers = readers;
            self.behind(at).for_each(|kept| kept.waiting += 1);
        }
    }

    /// A reader that has taken everything before `at` is gone.
    pub fn leave(&mut self, at: Seq) {
        self.readers -= 1;
        self.behind(at).for_each(|kept| kept.waiting -= 1);
        self.let_go();
    }

    /// What follows for a reader at this position, which takes it.
    pub fn read(&mut self, at: Seq) -> SharedOutputs<P::Output, E> {
        if at == self.next {
            let (is_over, is_inexact) = (self.projection.is_over() && !self.is_inexact, self.is_inexact);
            return if is_over {
                SharedOutputs::Over
            } else if is_inexact {
                SharedOutputs::LeftBehind
            } else {
                SharedOutputs::AtEnd
            };
        }
        let index = self.batches.partition_point(|kept| kept.batch.next <= at);
        let Some(kept) = self.batches.get_mut(index).filter(|kept| kept.batch.first <= at) else {
            return SharedOutputs::LeftBehind;
        };
        kept.waiting -= 1;
        let batch = kept.batch.clone();
        self.let_go();
        SharedOutputs::Outputs { from: batch.start_of(at), batch }
    }

    /// The number of the next event to be projected.
    pub fn next(&self) -> Seq {
        self.next
    }

    pub fn readers(&self) -> usize {
        self.readers
    }

    /// How much memory the outputs take, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes events that were read from the log, and keeps what they become for all readers, in about `bytes_max`.
    pub fn handle_events(&mut self, events: &[Recorded], bytes_max: usize) {
        let first = self.next;
        let (mut outputs, mut ends) = (Vec::new(), Vec::new());
        for event in events {
            // Another reader may have brought some of them already.
            if event.seq < self.next || self.is_inexact || self.projection.is_over() {
                continue;
            }
            let before = outputs.len();
            self.projection.handle_event(event, &mut outputs);
            if self.projection.is_inexact() {
                outputs.truncate(before);
                self.is_inexact = true;
                break;
            }
            self.next = event.seq.next();
            ends.push((event.seq, outputs.len()));
        }
        if ends.is_empty() {
            return;
        }
        // Beside the outputs, their encoded forms are kept. Events that become nothing take a little too.
        let bytes =
            BATCH_BYTES + EVENT_BYTES * ends.len() + outputs.iter().map(|output| 2 * P::len(output)).sum::<usize>();
        self.bytes += bytes;
        let batch = Arc::new(LiveBatch { first, next: self.next, outputs, ends, encoded: E::default() });
        self.batches.push_back(KeptBatch { batch, waiting: self.readers, bytes });
        while self.bytes > bytes_max && self.batches.len() > 1 {
            self.drop_oldest();
        }
    }

    /// The batches that a reader at this position has not taken.
    fn behind(&mut self, at: Seq) -> impl Iterator<Item = &mut KeptBatch<P::Output, E>> {
        self.batches.iter_mut().filter(move |kept| kept.batch.next > at)
    }

    fn let_go(&mut self) {
        while self.batches.front().is_some_and(|kept| kept.waiting == 0) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(kept) = self.batches.pop_front() {
            self.bytes -= kept.bytes;
        }
    }
}

impl<P: Projection, E> fmt::Debug for Live<P, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Live(next {}, {} batches, {} readers)", self.next, self.batches.len(), self.readers)
    }
}

impl<O, E> fmt::Debug for LiveBatch<O, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveBatch(from {}, {} outputs)", self.first, self.outputs.len())
    }
}

impl<O, E> fmt::Debug for SharedOutputs<O, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedOutputs::Outputs { batch, from } => write!(f, "Outputs({batch:?}, from {from})"),
            SharedOutputs::AtEnd => f.write_str("AtEnd"),
            SharedOutputs::Over => f.write_str("Over"),
            SharedOutputs::LeftBehind => f.write_str("LeftBehind"),
        }
    }
}
