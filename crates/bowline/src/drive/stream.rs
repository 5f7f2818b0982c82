//! Drives one reader of a turn or task as server-sent events: reads, waits for more, and says when it is over.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::watch::{Output, Start, Watch};
use bowline_protocol::chunk::DONE;
use bowline_protocol::{Chunk, ChunkKind, Epoch, LogId, MessageId, Seq, TaskId};
use bowline_store::budget::Pacer;
use bowline_store::{FollowError, Follower, ReadLimit, StoreError, WakeSet};
use bytes::Bytes;

use crate::decode::decode;
use crate::node::Shared;
use crate::returning::Returning;
use crate::session::record::{Accepted, keys};
use crate::session::{Life, SessionRecord};
use crate::stream::{Watched, trace};

/// Quiet streams get a comment this often, so that proxies do not cut them.
const COMMENT_EVERY: Duration = Duration::from_secs(10);
const READ_BYTES_MAX: usize = 256 << 10;

pub struct Stream {
    shared: Arc<Shared>,
    follower: Follower,
    /// Where the trace of what is read is kept.
    trace_key: String,
    stage: Stage,
    /// Until a reader that comes back has what it missed.
    returning: Option<Returning>,
    pacer: Pacer,
    wake: Arc<WakeSet>,
    _counted: Counted,
}

enum Stage {
    /// The message was accepted, and its turn has not begun.
    Queued(MessageId),
    Watching(Box<Watch>),
    /// The session ended before the message had its turn.
    Dropped,
    Done,
}

impl Stream {
    /// A reader of a task. Subscribes, then looks once, so that nothing slips in between.
    pub async fn watch(
        shared: Arc<Shared>,
        watched: &Watched,
        start: Start,
        fold: bool,
    ) -> Result<Stream, FollowError> {
        let mut stream = Stream::on(shared, &watched.log, &watched.extent.epoch);
        let trace = watched.trace(&stream.shared).await?;
        let watch = Watch::new(watched.id.as_str(), watched.first, &watched.extent, start, fold, trace.as_ref());
        stream.trace_key.clone_from(&watched.trace_key);
        stream.stage = Stage::Watching(Box::new(watch));
        stream.look().await?;
        Ok(stream)
    }

    /// It is told when this reader has all that it missed.
    pub fn tell(&mut self, returning: Option<Returning>) {
        self.returning = returning.map(|returning| returning.admitted(&self.shared));
    }

    /// A reader of the turn that a message in the queue will get.
    pub async fn queued(shared: Arc<Shared>, log: LogId, message: MessageId) -> Result<Stream, StoreError> {
        let epoch = shared.store.extent(&log).await?.epoch;
        let mut stream = Stream::on(shared, &log, &epoch);
        stream.stage = Stage::Queued(message);
        Ok(stream)
    }

    fn on(shared: Arc<Shared>, log: &LogId, epoch: &Epoch) -> Stream {
        let wake = WakeSet::new();
        let follower = shared.follow(log, epoch, &wake, 0);
        let counted = Counted::new(&shared);
        Stream {
            pacer: Pacer::new(&shared.reading),
            shared,
            follower,
            trace_key: String::new(),
            stage: Stage::Done,
            returning: None,
            wake,
            _counted: counted,
        }
    }

    async fn look(&mut self) -> Result<(), FollowError> {
        let log = self.follower.log();
        match &mut self.stage {
            Stage::Watching(watch) => watch.handle_tail(self.follower.end().await?),
            Stage::Queued(message) => {
                let key = keys::idempotency(message);
                let item = self.shared.store.item(log, &key).await?;
                let accepted: Option<Accepted> =
                    decode(log, &key, item).map_err(|refusal| StoreError::Io(refusal.message))?;
                if let Some(turn) = accepted.and_then(|accepted| accepted.seq).and_then(Seq::new) {
                    let extent = self.shared.store.extent(log).await?;
                    let task = TaskId::of_turn(log, turn);
                    self.trace_key = keys::trace(turn);
                    let trace = trace(&self.shared, log, &self.trace_key).await?;
                    let watch = Watch::new(task.as_str(), turn, &extent, Start::Fresh, false, trace.as_ref());
                    self.follower.enter(&extent.epoch);
                    self.stage = Stage::Watching(Box::new(watch));
                } else if !self.is_session_alive().await? {
                    self.stage = Stage::Dropped;
                }
            }
            Stage::Dropped | Stage::Done => {}
        }
        Ok(())
    }

    async fn is_session_alive(&self) -> Result<bool, StoreError> {
        let stored = self.shared.store.record(self.follower.log()).await?;
        let record = stored.and_then(|stored| SessionRecord::decode(&stored.body).ok());
        Ok(record.is_some_and(|record| record.life == Life::Active))
    }

    /// Whether nothing follows for this reader, ever. Looks ahead without waiting for the log to grow.
    pub async fn is_over(&mut self) -> Result<bool, FollowError> {
        loop {
            let Stage::Watching(watch) = &mut self.stage else { return Ok(false) };
            if !watch.is_ready() {
                return Ok(false);
            }
            match watch.poll_output() {
                Some(Output::Over) => return Ok(true),
                Some(Output::Chunks(chunks)) => {
                    watch.put_back(chunks);
                    return Ok(false);
                }
                Some(Output::Read { from, events_max }) => self.read(from, events_max).await?,
                None => return Ok(false),
            }
        }
    }

    async fn read(&mut self, from: Seq, events_max: usize) -> Result<(), FollowError> {
        // A client that takes nothing is waited for here, until we leave.
        let room = self.shared.closing.run_until_cancelled(self.pacer.room(READ_BYTES_MAX)).await;
        let limit = ReadLimit { events: events_max, bytes: room.ok_or(StoreError::Closed)? };
        let batch = self.shared.read(&self.follower, from, limit).await?;
        let overtaken = batch.first > from;
        let trace = if overtaken { trace(&self.shared, self.follower.log(), &self.trace_key).await? } else { None };
        if let Stage::Watching(watch) = &mut self.stage {
            watch.handle_events(&batch.events, batch.first, batch.next, trace.as_ref());
            if watch.take_gap() {
                self.shared.metrics.gaps_told.inc();
            }
        }
        Ok(())
    }

    /// The next piece; none when the stream is over. An error means that it was cut, and the reader must come back.
    pub async fn next(&mut self) -> Result<Option<Bytes>, FollowError> {
        loop {
            let output = match &mut self.stage {
                Stage::Done => return Ok(None),
                Stage::Queued(_) => None,
                Stage::Dropped => {
                    self.stage = Stage::Done;
                    let mut bytes = Vec::new();
                    Chunk::bare(ChunkKind::Abort).encode(self.follower.epoch(), &mut bytes);
                    bytes.extend_from_slice(DONE);
                    return Ok(Some(bytes.into()));
                }
                Stage::Watching(watch) => watch.poll_output(),
            };
            match output {
                Some(Output::Chunks(chunks)) => {
                    let mut bytes = Vec::with_capacity(chunks.iter().map(|chunk| chunk.json.len() + 48).sum());
                    chunks.iter().for_each(|chunk| chunk.encode(self.follower.epoch(), &mut bytes));
                    self.shared.metrics.chunks_sent.inc_by(chunks.len() as u64);
                    return Ok(Some(self.pacer.piece(bytes)));
                }
                Some(Output::Read { from, events_max }) => self.read(from, events_max).await?,
                Some(Output::Over) => {
                    self.has_returned();
                    self.stage = Stage::Done;
                    return Ok(Some(Bytes::from_static(DONE)));
                }
                None => {
                    self.has_returned();
                    self.pacer.rest();
                    tokio::select! {
                        () = self.wake.woken() => {
                            self.wake.take();
                            self.look().await?;
                        }
                        () = tokio::time::sleep(COMMENT_EVERY) => return Ok(Some(Bytes::from_static(b": still here\n\n"))),
                        () = self.shared.closing.cancelled() => return Err(StoreError::Closed.into()),
                    }
                }
            }
        }
    }

    /// Everything that was there when the reader came has been handed out.
    fn has_returned(&mut self) {
        if let Some(returning) = self.returning.take() {
            returning.caught_up(&self.shared);
        }
    }

    /// How many chunks there are so far.
    pub async fn count(&mut self) -> Result<u64, FollowError> {
        loop {
            let Stage::Watching(watch) = &mut self.stage else { return Ok(0) };
            match watch.poll_output() {
                Some(Output::Chunks(_)) => {}
                Some(Output::Read { from, events_max }) => self.read(from, events_max).await?,
                Some(Output::Over) | None => return Ok(watch.seen()),
            }
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({:?})", self.follower)
    }
}

/// Counts a stream for as long as it is there, however it ends.
struct Counted(Arc<Shared>);

impl Counted {
    fn new(shared: &Arc<Shared>) -> Counted {
        shared.metrics.streams.inc();
        Counted(shared.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.metrics.streams.dec();
    }
}
