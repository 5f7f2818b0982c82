//! Drives one reader of a turn or task as server-sent events: reads, waits for more, and says when it is over.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_core::dialect::Projection;
use bowline_core::watch::WatchStart;
use bowline_env::clock;
use bowline_protocol::{LogId, MessageId, TaskId};
use bowline_store::budget::Pacer;
use bowline_store::{FollowError, Follower, StoreError, WakeSet};
use bytes::Bytes;
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::metrics::Metrics;
use crate::resume_metrics::ResumeMetrics;
use crate::session::record::keys;
use crate::stream::Watched;
use crate::stream::queued::{QueuedFate, QueuedMessage};
use crate::stream::reader::{ReaderContext, ReaderOutput, StreamPlace, StreamReader};

/// Quiet streams get a comment this often, so that proxies do not cut them.
const COMMENT_EVERY: Duration = Duration::from_secs(10);
const COMMENT: &[u8] = b": still here\n\n";
const READ_BYTES_MAX: usize = 256 << 10;

pub struct WatchedStream<P: Projection> {
    readers: Arc<ReaderContext>,
    stage: StreamPhase<P>,
    /// Until a reader that comes back has what it missed.
    resuming: Option<ResumeMetrics>,
    pacer: Pacer,
    wake: Arc<WakeSet>,
    /// When something was last sent, and when to look whether that is long ago.
    sent: Instant,
    quiet: Pin<Box<Sleep>>,
    /// Fires when the server leaves. Waited for in one piece, because each new wait takes a place in a list that all share.
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
    _counted: CountedStream,
}

enum StreamPhase<P: Projection> {
    /// The message was accepted, and its turn has not begun.
    Queued(QueuedMessage),
    Watching(Box<StreamReader<P>>),
    /// The session ended before the message had its turn.
    Dropped(Follower),
    Done,
}

impl<P: Projection> WatchedStream<P> {
    /// A reader of a task.
    pub async fn watch(
        readers: Arc<ReaderContext>,
        watched: &Watched,
        start: WatchStart,
        fold: bool,
    ) -> Result<WatchedStream<P>, FollowError> {
        let mut stream = WatchedStream::on(readers);
        let follower = stream.readers.logs.follow(&watched.log, watched.beginning(), &stream.wake, 0);
        let readers = stream.readers.clone();
        let reader = StreamReader::new(readers, follower, watched.place(), &watched.extent, start, fold).await?;
        stream.stage = StreamPhase::Watching(Box::new(reader));
        Ok(stream)
    }

    /// Notified when this reader has all that it missed.
    pub fn tell(&mut self, resuming: Option<ResumeMetrics>) {
        self.resuming = resuming.map(|resuming| resuming.admitted(&self.readers.metrics));
    }

    /// A reader of the turn that a message in the queue will get.
    pub async fn queued(
        readers: Arc<ReaderContext>,
        log: LogId,
        message: MessageId,
    ) -> Result<WatchedStream<P>, StoreError> {
        let mut stream = WatchedStream::on(readers);
        let queued = QueuedMessage::follow(&stream.readers.logs, &log, message, &stream.wake).await?;
        stream.stage = StreamPhase::Queued(queued);
        Ok(stream)
    }

    fn on(readers: Arc<ReaderContext>) -> WatchedStream<P> {
        let counted = CountedStream::new(&readers.metrics);
        WatchedStream {
            pacer: Pacer::new(&readers.budget),
            closing: Box::pin(readers.closing.clone().cancelled_owned()),
            readers,
            stage: StreamPhase::Done,
            resuming: None,
            wake: WakeSet::new(),
            sent: clock::now(),
            quiet: Box::pin(tokio::time::sleep(COMMENT_EVERY)),
            _counted: counted,
        }
    }

    async fn look(&mut self) -> Result<(), FollowError> {
        if let StreamPhase::Watching(reader) = &mut self.stage {
            reader.wake();
            return Ok(());
        }
        self.stage = match std::mem::replace(&mut self.stage, StreamPhase::Done) {
            StreamPhase::Queued(queued) => StreamPhase::of_message(&self.readers, queued).await?,
            stage => stage,
        };
        Ok(())
    }

    /// Whether nothing follows for this reader, ever. Looks ahead without waiting for the log to grow.
    pub async fn is_over(&mut self) -> Result<bool, FollowError> {
        match &mut self.stage {
            StreamPhase::Watching(reader) => reader.is_over().await,
            StreamPhase::Queued(..) | StreamPhase::Dropped(_) | StreamPhase::Done => Ok(false),
        }
    }

    /// How many outputs there are so far.
    pub async fn count(&mut self) -> Result<u64, FollowError> {
        match &mut self.stage {
            StreamPhase::Watching(reader) => reader.count().await,
            StreamPhase::Queued(..) | StreamPhase::Dropped(_) | StreamPhase::Done => Ok(0),
        }
    }

    /// The next piece; none when the stream is over. An error means that it was cut, and the reader must come back.
    pub async fn next(&mut self) -> Result<Option<Bytes>, FollowError> {
        loop {
            match &mut self.stage {
                StreamPhase::Done => return Ok(None),
                StreamPhase::Queued(..) => {}
                StreamPhase::Dropped(follower) => {
                    let mut bytes = Vec::new();
                    P::encode_sse(&P::dropped(), follower.epoch(), &mut bytes);
                    bytes.extend_from_slice(P::SSE_END);
                    self.stage = StreamPhase::Done;
                    return Ok(Some(bytes.into()));
                }
                StreamPhase::Watching(reader) => {
                    // A client that takes nothing is waited for here, until we leave.
                    let room = tokio::select! {
                        room = self.pacer.room(READ_BYTES_MAX) => room,
                        () = &mut self.closing => return Err(StoreError::Closed.into()),
                    };
                    match reader.next(room).await? {
                        Some(piece @ ReaderOutput::Over) => {
                            let bytes = piece.sse(reader.epoch());
                            self.has_returned();
                            self.stage = StreamPhase::Done;
                            return Ok(Some(bytes));
                        }
                        Some(piece) => {
                            self.readers.metrics.chunks_sent.inc_by(piece.count());
                            self.sent = clock::now();
                            return Ok(Some(self.pacer.piece(piece.sse(reader.epoch()))));
                        }
                        None => {}
                    }
                }
            }
            self.has_returned();
            self.pacer.rest();
            tokio::select! {
                () = self.wake.woken() => {
                    self.wake.take();
                    self.look().await?;
                }
                () = &mut self.quiet => {
                    let now = clock::now();
                    let is_due = now >= self.sent + COMMENT_EVERY;
                    self.sent = if is_due { now } else { self.sent };
                    self.quiet.as_mut().reset((self.sent + COMMENT_EVERY).into());
                    if is_due {
                        return Ok(Some(Bytes::from_static(COMMENT)));
                    }
                }
                () = &mut self.closing => return Err(StoreError::Closed.into()),
            }
        }
    }

    /// Everything that was there when the reader came has been handed out.
    fn has_returned(&mut self) {
        if let Some(resuming) = self.resuming.take() {
            resuming.caught_up(&self.readers.metrics);
        }
    }
}

impl<P: Projection> StreamPhase<P> {
    /// What has become of a message in the queue.
    async fn of_message(readers: &Arc<ReaderContext>, queued: QueuedMessage) -> Result<StreamPhase<P>, FollowError> {
        let fate = queued.fate(&readers.logs).await.map_err(|refusal| StoreError::Io(refusal.message))?;
        let turn = match fate {
            QueuedFate::Waiting => return Ok(StreamPhase::Queued(queued)),
            QueuedFate::Dropped => return Ok(StreamPhase::Dropped(queued.into_follower())),
            QueuedFate::Begun(turn) => turn,
        };
        let mut follower = queued.into_follower();
        let log = follower.log().clone();
        let extent = readers.logs.store.extent(&log).await?;
        follower.enter(&extent.epoch);
        let place = StreamPlace { id: TaskId::of_turn(&log, turn), first: turn, index_key: keys::index(turn) };
        let reader = StreamReader::new(readers.clone(), follower, place, &extent, WatchStart::Fresh, false).await?;
        Ok(StreamPhase::Watching(Box::new(reader)))
    }
}

impl<P: Projection> std::fmt::Debug for WatchedStream<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.stage {
            StreamPhase::Watching(reader) => write!(f, "Stream({reader:?})"),
            StreamPhase::Queued(queued) => write!(f, "Stream({:?})", queued.follower()),
            StreamPhase::Dropped(follower) => write!(f, "Stream({follower:?})"),
            StreamPhase::Done => f.write_str("WatchedStream(done)"),
        }
    }
}

/// Counts a stream for as long as it is there, however it ends.
struct CountedStream(Arc<Metrics>);

impl CountedStream {
    fn new(metrics: &Arc<Metrics>) -> CountedStream {
        metrics.streams.inc();
        CountedStream(metrics.clone())
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.0.streams.dec();
    }
}
