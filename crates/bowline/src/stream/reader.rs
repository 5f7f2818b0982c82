//! One reader of a turn or task: with a projection of its own until it has caught up, then with the one that all readers share.

use std::fmt;
use std::sync::Arc;

use bowline_core::dialect::{Projection, SharedOutputs as Found};
use bowline_core::watch::{Output, Watch, WatchStart};
use bowline_protocol::{Cursor, Epoch, Extent, LogId, Seq, StreamCursor, TaskId};
use bowline_store::{FollowError, Followed, Follower, ReadBudget, ReadLimit, StoreError};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::stored_index;
use crate::live_streams::{Encoded, LiveReader, LiveStreams, StreamBatch};
use crate::logs::Logs;
use crate::metrics::Metrics;

/// What one look ahead reads at a time.
const LOOK_BYTES_MAX: usize = 256 << 10;
/// The most events that are projected for all readers at once.
const LIVE_EVENTS_MAX: usize = 512;

/// What all readers of logs share.
#[derive(Debug)]
pub struct ReaderContext {
    pub logs: Arc<Logs>,
    pub metrics: Arc<Metrics>,
    /// What they hold in memory, all together.
    pub budget: Arc<ReadBudget>,
    /// The projections of those who read the same stream.
    pub live: Arc<LiveStreams>,
    /// Fires when the server leaves: they end.
    pub closing: CancellationToken,
}

pub struct StreamReader<P: Projection> {
    readers: Arc<ReaderContext>,
    follower: Follower,
    place: StreamPlace,
    /// Until it has caught up, and while it gets something else than the others.
    own: Option<Box<Watch<P>>>,
    live: Option<LiveReader<P>>,
}

/// Which stream it is, and where it is kept.
#[derive(Clone, Debug)]
pub struct StreamPlace {
    pub id: TaskId,
    /// Its first event.
    pub first: Seq,
    /// Where its index is kept, beside its log.
    pub index_key: String,
}

/// What a reader is given next.
pub enum ReaderOutput<P: Projection> {
    /// Outputs for this reader alone.
    Own(Vec<P::Output>),
    /// Outputs that all readers get, from the one with this number on.
    Shared { batch: Arc<StreamBatch<P>>, from: usize },
    /// Nothing follows, ever.
    Over,
}

impl<P: Projection> StreamReader<P> {
    /// A reader that compared its position with this extent.
    pub async fn new(
        readers: Arc<ReaderContext>,
        follower: Follower,
        place: StreamPlace,
        extent: &Extent,
        start: WatchStart,
        fold: bool,
    ) -> Result<StreamReader<P>, StoreError> {
        let watch = own(&readers, follower.log(), &place, extent, start, fold).await?;
        Ok(StreamReader { readers, follower, place, own: Some(watch), live: None })
    }

    pub fn log(&self) -> &LogId {
        self.follower.log()
    }

    pub fn epoch(&self) -> &Epoch {
        self.follower.epoch()
    }

    /// The last event that was looked at, or the one before the first.
    pub fn position(&self) -> Seq {
        match (&self.own, &self.live) {
            (Some(watch), _) => watch.position(),
            (None, Some(live)) => live.next().prev(),
            (None, None) => self.place.first.prev(),
        }
    }

    /// The log may have grown.
    pub fn wake(&mut self) {
        self.follower.wake();
    }

    /// What is there for the reader now; none if it has everything. Reads about so many bytes at most.
    pub async fn next(&mut self, bytes_max: usize) -> Result<Option<ReaderOutput<P>>, FollowError> {
        loop {
            if let Some(live) = &mut self.live {
                match live.read() {
                    Found::Outputs { batch, from } if from < batch.outputs.len() => {
                        return Ok(Some(ReaderOutput::Shared { batch, from }));
                    }
                    // Events that say nothing in this dialect.
                    Found::Outputs { .. } => {}
                    Found::Over => return Ok(Some(ReaderOutput::Over)),
                    Found::AtEnd if self.project(bytes_max).await? => {}
                    Found::AtEnd => return Ok(None),
                    Found::LeftBehind => self.leave().await?,
                }
                continue;
            }
            match self.own.as_mut().and_then(|watch| watch.poll_output()) {
                Some(Output::Outputs(outputs)) => return Ok(Some(ReaderOutput::Own(outputs))),
                Some(Output::Over) => return Ok(Some(ReaderOutput::Over)),
                None if self.read(bytes_max).await? => {}
                None if self.join() => {}
                None => return Ok(None),
            }
        }
    }

    /// Reads on for this reader alone. False if there is nothing more.
    async fn read(&mut self, bytes: usize) -> Result<bool, FollowError> {
        let Some(watch) = &mut self.own else { return Ok(false) };
        let Some((from, events)) = watch.poll_read() else { return Ok(false) };
        self.follower.seek(from);
        match self.readers.logs.next(&mut self.follower, ReadLimit { events, bytes }).await? {
            Followed::Events(events) => watch.handle_events(&events),
            Followed::Gap { to, .. } => {
                // The index says what was open behind what is gone.
                let index = stored_index::<P>(&self.readers.logs, self.follower.log(), &self.place.index_key).await?;
                watch.handle_gap(to, index.as_ref());
            }
            Followed::Epoch(_) => return Err(FollowError::EpochChanged),
            Followed::Idle => return Ok(false),
        }
        if watch.take_gap() {
            self.readers.metrics.gaps_reported.inc();
        }
        Ok(true)
    }

    /// Reads the next events, and projects them for all readers. False if there are none.
    async fn project(&mut self, bytes: usize) -> Result<bool, FollowError> {
        let Some(live) = &self.live else { return Ok(false) };
        self.follower.seek(live.next());
        let limit = ReadLimit { events: LIVE_EVENTS_MAX, bytes };
        match self.readers.logs.next(&mut self.follower, limit).await? {
            Followed::Events(events) => live.handle_events(&events, &self.readers.budget),
            Followed::Gap { .. } => self.leave().await?,
            Followed::Epoch(_) => return Err(FollowError::EpochChanged),
            Followed::Idle => return Ok(false),
        }
        Ok(true)
    }

    /// Follows with all others from now on, if this reader gets what they get.
    fn join(&mut self) -> bool {
        let Some(watch) = self.own.take_if(|watch| watch.is_shareable()) else { return false };
        let (log, epoch) = (self.follower.log(), self.follower.epoch());
        match self.readers.live.join(log, self.place.first, epoch, watch, &self.readers.budget) {
            Ok(live) => self.live = Some(live),
            Err(watch) => self.own = Some(watch),
        }
        self.live.is_some()
    }

    /// The others are too far ahead, or what they share does not do any more: the reader goes on by itself, like one that comes
    /// back with its position.
    async fn leave(&mut self) -> Result<(), FollowError> {
        let at = self.position();
        let extent = self.readers.logs.store.extent(self.follower.log()).await?;
        if extent.epoch != *self.follower.epoch() {
            return Err(FollowError::EpochChanged);
        }
        let start = if at < self.place.first {
            WatchStart::Fresh
        } else {
            let cursor = Cursor { epoch: Some(extent.epoch.clone()), seq: at };
            WatchStart::After(StreamCursor { cursor, part: None })
        };
        let watch = own(&self.readers, self.follower.log(), &self.place, &extent, start, false).await?;
        (self.own, self.live) = (Some(watch), None);
        Ok(())
    }

    /// Whether nothing follows for this reader, ever. Looks ahead without waiting for the log to grow.
    pub async fn is_over(&mut self) -> Result<bool, FollowError> {
        loop {
            let Some(watch) = &mut self.own else { return Ok(false) };
            match watch.poll_output() {
                Some(Output::Over) => return Ok(true),
                Some(Output::Outputs(outputs)) => {
                    watch.put_back(outputs);
                    return Ok(false);
                }
                None if self.look_ahead().await? => {}
                None => return Ok(false),
            }
        }
    }

    /// How many outputs there are so far.
    pub async fn count(&mut self) -> Result<u64, FollowError> {
        loop {
            let Some(watch) = &mut self.own else { return Ok(0) };
            match watch.poll_output() {
                Some(Output::Outputs(_)) => {}
                Some(Output::Over) => return Ok(watch.seen()),
                None if self.look_ahead().await? => {}
                None => return Ok(self.own.as_ref().map_or(0, |watch| watch.seen())),
            }
        }
    }

    async fn look_ahead(&mut self) -> Result<bool, FollowError> {
        self.read(self.readers.budget.window(LOOK_BYTES_MAX)).await
    }
}

async fn own<P: Projection>(
    readers: &ReaderContext,
    log: &LogId,
    place: &StreamPlace,
    extent: &Extent,
    start: WatchStart,
    fold: bool,
) -> Result<Box<Watch<P>>, StoreError> {
    // One that begins with the first event, and finds it, needs no index.
    let index = match start {
        WatchStart::Fresh | WatchStart::Index(_) if place.first >= extent.first => None,
        _ => stored_index::<P>(&readers.logs, log, &place.index_key).await?,
    };
    Ok(Box::new(Watch::new(place.id.as_str(), place.first, extent, start, fold, index.as_ref())))
}

impl<P: Projection> ReaderOutput<P> {
    /// How many outputs it has.
    pub fn count(&self) -> u64 {
        match self {
            ReaderOutput::Own(outputs) => outputs.len() as u64,
            ReaderOutput::Shared { batch, from } => (batch.outputs.len() - from) as u64,
            ReaderOutput::Over => 0,
        }
    }

    /// As server-sent events.
    pub fn sse(&self, epoch: &Epoch) -> Bytes {
        match self {
            ReaderOutput::Own(outputs) => {
                let mut bytes = Vec::with_capacity(outputs.iter().map(P::len).sum());
                outputs.iter().for_each(|output| P::encode_sse(output, epoch, &mut bytes));
                bytes.into()
            }
            ReaderOutput::Shared { batch, from } => Encoded::sse::<P>(batch, *from, epoch),
            ReaderOutput::Over => Bytes::from_static(P::SSE_END),
        }
    }
}

impl<P: Projection> fmt::Debug for StreamReader<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamReader({:?} at {})", self.follower, self.position())
    }
}

impl<P: Projection> fmt::Debug for ReaderOutput<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} outputs)", self.count())
    }
}
