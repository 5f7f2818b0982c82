//! The projections that the readers of each stream on this node share, with the encoded forms of their newest outputs.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bowline_core::dialect::{Live, LiveBatch, Projection, SharedOutputs};
use bowline_core::watch::Watch;
use bowline_protocol::{Epoch, LogId, Recorded, Seq, SessionId};
use bowline_store::ReadBudget;
use bowline_store::budget::HeldBytes;
use bytes::Bytes;

/// The most that is kept of one stream for readers that have not taken it yet. One that is slower reads the log again.
const LIVE_BYTES_MAX: usize = 512 << 10;

/// A dialect, a log, and the first event of the turn or task in it.
type StreamKey = (TypeId, LogId, Seq);

/// All of this node. A stream is here as long as it has readers that have caught up.
#[derive(Default)]
pub struct LiveStreams(Mutex<HashMap<StreamKey, Weak<dyn Any + Send + Sync>>>);

struct LiveStream<P: Projection> {
    epoch: Epoch,
    state: Mutex<State<P>>,
}

struct State<P: Projection> {
    live: Live<P, Encoded>,
    /// What it keeps counts against the memory of all readers.
    held: HeldBytes,
}

pub type StreamBatch<P> = LiveBatch<<P as Projection>::Output, Encoded>;

/// A batch as it travels. Each form is made when the first reader needs it.
#[derive(Default)]
pub struct Encoded {
    /// The server-sent events, and where each output ends.
    sse: OnceLock<(Bytes, Vec<usize>)>,
    /// The frames, with the session that they name.
    frames: OnceLock<(Option<SessionId>, Vec<Bytes>)>,
}

/// A reader that has caught up. It takes what others have projected, or projects for them.
pub struct LiveReader<P: Projection> {
    streams: Arc<LiveStreams>,
    key: StreamKey,
    stream: Arc<LiveStream<P>>,
    at: Seq,
}

impl LiveStreams {
    /// Lets a reader follow with all others, whose outputs from now on are theirs. One that they have not reached keeps its own projection.
    pub fn join<P: Projection>(
        self: &Arc<Self>,
        log: &LogId,
        first: Seq,
        epoch: &Epoch,
        watch: Box<Watch<P>>,
        budget: &Arc<ReadBudget>,
    ) -> Result<LiveReader<P>, Box<Watch<P>>> {
        let key = (TypeId::of::<P>(), log.clone(), first);
        let at = watch.position().next();
        let mut streams = lock(&self.0);
        let known = streams.get(&key).and_then(Weak::upgrade).and_then(|any| any.downcast::<LiveStream<P>>().ok());
        let stream = match known.filter(|stream| stream.epoch == *epoch) {
            Some(stream) => {
                let mut state = lock(&stream.state);
                if !state.live.can_follow(at) {
                    drop(state);
                    return Err(watch);
                }
                state.live.join(watch.into_projection(), at);
                drop(state);
                stream
            }
            None => {
                let state = State { live: Live::new(watch.into_projection(), at), held: HeldBytes::new(budget) };
                let stream = Arc::new(LiveStream { epoch: epoch.clone(), state: Mutex::new(state) });
                let any: Arc<dyn Any + Send + Sync> = stream.clone();
                streams.insert(key.clone(), Arc::downgrade(&any));
                stream
            }
        };
        drop(streams);
        Ok(LiveReader { streams: self.clone(), key, stream, at })
    }
}

impl<P: Projection> LiveReader<P> {
    /// The number of the next event that this reader has not taken.
    pub fn next(&self) -> Seq {
        self.at
    }

    pub fn read(&mut self) -> SharedOutputs<P::Output, Encoded> {
        let mut state = lock(&self.stream.state);
        let found = state.live.read(self.at);
        if let SharedOutputs::Outputs { batch, .. } = &found {
            self.at = batch.next();
        }
        state.count();
        found
    }

    /// Projects events for all readers.
    pub fn handle_events(&self, events: &[Recorded], budget: &ReadBudget) {
        let mut state = lock(&self.stream.state);
        state.live.handle_events(events, budget.window(LIVE_BYTES_MAX));
        state.count();
    }
}

impl<P: Projection> State<P> {
    fn count(&mut self) {
        self.held.set(self.live.bytes());
    }
}

impl<P: Projection> Drop for LiveReader<P> {
    fn drop(&mut self) {
        // Readers join under this lock too, so none is on its way to a stream whose last reader this is.
        let mut streams = lock(&self.streams.0);
        let mut state = lock(&self.stream.state);
        state.live.leave(self.at);
        state.count();
        let is_same = |known: &Weak<_>| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(&self.stream));
        if state.live.readers() == 0 && streams.get(&self.key).is_some_and(is_same) {
            streams.remove(&self.key);
        }
    }
}

impl Encoded {
    /// The outputs of a batch from this one on, as server-sent events.
    pub fn sse<P: Projection>(batch: &StreamBatch<P>, from: usize, epoch: &Epoch) -> Bytes {
        let (bytes, ends) = batch.encoded.sse.get_or_init(|| {
            let mut bytes = Vec::with_capacity(batch.outputs.iter().map(P::len).sum());
            let mut encode = |output: &P::Output| {
                P::encode_sse(output, epoch, &mut bytes);
                bytes.len()
            };
            let ends = batch.outputs.iter().map(&mut encode).collect();
            (bytes.into(), ends)
        });
        let start = from.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
        bytes.slice(start..)
    }

    /// The outputs of a batch from this one on, each as a frame that names this session.
    pub fn frames<P: Projection>(
        batch: &StreamBatch<P>,
        from: usize,
        session: Option<&SessionId>,
        encode: impl Fn(&P::Output) -> Bytes,
    ) -> Vec<Bytes> {
        let of_all = || (session.cloned(), batch.outputs.iter().map(&encode).collect());
        let (named, frames) = batch.encoded.frames.get_or_init(of_all);
        if named.as_ref() == session {
            return frames[from..].to_vec();
        }
        // The session got another name meanwhile, which readers that came later know it by.
        batch.outputs[from..].iter().map(encode).collect()
    }
}

/// A poisoned lock still guards sound data here: a projection that panicked has not moved on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for LiveStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveStreams({})", lock(&self.0).len())
    }
}

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Encoded(sse: {}, frames: {})", self.sse.get().is_some(), self.frames.get().is_some())
    }
}

impl<P: Projection> fmt::Debug for LiveReader<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveReader(at {})", self.at)
    }
}
