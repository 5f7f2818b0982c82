//! Drives a read-only reader of one log as a stream of pieces, for Server-Sent Events.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::link::{Link, Output};
use bowline_protocol::frame::Control;
use bowline_protocol::{Epoch, LogId, Recorded};
use bowline_store::budget::Pacer;
use bowline_store::{FollowError, Followed, Follower, ReadLimit, StoreError, WakeSet};

use crate::stream::reader::ReaderContext;

/// Quiet streams get a comment this often, so that proxies do not cut them.
const COMMENT_EVERY: Duration = Duration::from_secs(10);
const READ_BYTES_MAX: usize = 256 << 10;

/// What a reader of a stream is given next.
#[derive(Debug)]
pub enum TailItem {
    Events(Vec<Recorded>),
    Notice(Control),
    Quiet,
}

#[derive(Debug)]
pub struct LogTail {
    readers: Arc<ReaderContext>,
    follower: Follower,
    link: Link,
    /// What this reader holds.
    pub pacer: Pacer,
    wake: Arc<WakeSet>,
}

impl LogTail {
    pub fn new(readers: Arc<ReaderContext>, log: &LogId, link: Link) -> LogTail {
        let (wake, (from, _)) = (WakeSet::new(), link.poll_read());
        let follower = readers.logs.follow(log, (link.epoch(), from), &wake, 0);
        let pacer = Pacer::new(&readers.budget);
        LogTail { readers, follower, link, pacer, wake }
    }

    /// The epoch that positions in this stream belong to.
    pub fn epoch(&self) -> &Epoch {
        self.follower.epoch()
    }

    /// The next event that will be read.
    pub fn position(&self) -> bowline_protocol::Seq {
        self.link.sent().next()
    }

    /// The next piece; an error ends the stream (the log is gone, goes on in another epoch, or cannot be read).
    pub async fn next(&mut self) -> Result<TailItem, FollowError> {
        loop {
            match self.link.poll_output() {
                Some(Output::Events(events)) => return Ok(TailItem::Events(events)),
                Some(Output::Control(notice)) => return Ok(TailItem::Notice(notice)),
                Some(Output::Replayed { .. } | Output::Skipped { .. }) => continue,
                None => {}
            }
            let room = self.readers.closing.run_until_cancelled(self.pacer.room(READ_BYTES_MAX)).await;
            let (_, events) = self.link.poll_read();
            let limit = ReadLimit { events, bytes: room.ok_or(StoreError::Closed)? };
            match self.readers.logs.next(&mut self.follower, limit).await? {
                Followed::Events(events) => self.link.handle_events(events),
                Followed::Gap { to, .. } => self.link.handle_gap(to),
                Followed::Epoch(_) => return Err(FollowError::EpochChanged),
                Followed::Idle => {
                    self.pacer.rest();
                    tokio::select! {
                        () = self.wake.woken() => {
                            self.wake.take();
                            self.follower.wake();
                        }
                        () = tokio::time::sleep(COMMENT_EVERY) => return Ok(TailItem::Quiet),
                        () = self.readers.closing.cancelled() => return Err(StoreError::Closed.into()),
                    }
                }
            }
        }
    }
}
