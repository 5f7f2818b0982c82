//! The tasks that a connection watches: their chunks come as frames, so that a page needs one connection for everything.

use std::cell::OnceCell;

use bowline_core::dialect::{FrameDialect, FrameProjection as _, FrameTask, Projection};
use bowline_env::clock;
use bowline_protocol::frame::server::TaskEnd;
use bowline_protocol::{Cursor, ErrorCode, Refusal, SessionId, StreamCursor, TaskId};
use bowline_store::FollowError;
use serde_json::json;

use super::{ClientIdentity, Connection};
use crate::auth::Identity;
use crate::live_streams::Encoded;
use crate::refusals;
use crate::resume_metrics::ResumeMetrics;
use crate::secret::Presented;
use crate::stream::reader::{ReaderOutput, StreamReader};
use crate::stream::{Proof, Watched};

pub struct Watching {
    pub(super) token: u64,
    task: TaskId,
    session: Option<SessionId>,
    reader: StreamReader<FrameDialect>,
    /// The token that showed the task to be the client's, if it needed one.
    shown: Option<Presented>,
    /// Until a reader that comes back has what it missed.
    resuming: Option<ResumeMetrics>,
}

impl Connection {
    pub(super) async fn watch_task(
        &mut self,
        task: &str,
        last_message_id: Option<&str>,
        shown: Option<Presented>,
        identity: &Identity,
    ) {
        if let Err(refusal) = self.start_watching(task, last_message_id.unwrap_or_default(), shown, identity).await {
            let details = json!({ "task_id": task });
            let refusal = if refusal.details.is_none() { refusal.details(details) } else { refusal };
            self.refuse(None, &refusal);
        }
    }

    async fn start_watching(
        &mut self,
        task: &str,
        cursor: &str,
        shown: Option<Presented>,
        identity: &Identity,
    ) -> Result<(), Refusal> {
        let id = TaskId::parse(task).ok_or_else(refusals::task_not_found)?;
        let cursor = StreamCursor::parse(cursor)
            .map_err(|_| Refusal::field("content.last_message_id", "must be `<epoch>-<seq>` or a number"))?;
        self.watches.retain(|watching| watching.task != id);
        self.watch_from(id, cursor, shown, identity).await
    }

    async fn watch_from(
        &mut self,
        id: TaskId,
        cursor: Option<StreamCursor>,
        shown: Option<Presented>,
        identity: &Identity,
    ) -> Result<(), Refusal> {
        let max = self.context.config.limits.watches_per_connection_max;
        if self.watches.len() >= max {
            self.context.metrics.limits_hit.inc("limits.watches_per_connection_max");
            let message = format!("This connection watches {max} tasks already. Send `user.unwatch_task` for one.");
            return Err(Refusal::new(ErrorCode::RateLimited, message).retry_after_ms(1000));
        }
        let watched =
            Watched::find_with(&self.context.streams, &id, &identity.principal, &self.proof(shown.clone())).await?;
        let fresh = cursor.is_none();
        let resuming = ResumeMetrics::begin(&self.context.metrics, &watched, cursor.as_ref());
        let start = watched.start(cursor, false).inspect_err(|refusal| {
            if !fresh {
                ResumeMetrics::refused(&self.context.metrics, &id, refusal);
            }
        })?;
        let Some(start) = start else {
            resuming.into_iter().for_each(|resuming| resuming.lacks_nothing(&self.context.metrics));
            let end = TaskEnd { task: &id, session: watched.session.as_ref(), status: watched.status().as_str() };
            self.push(end.encode(&clock::timestamp()));
            return Ok(());
        };
        let resuming = resuming.map(|resuming| resuming.admitted(&self.context.metrics));
        self.context.metrics.stream_starts.inc(if fresh { "fresh" } else { "resumed" });
        let token = self.next_token;
        self.next_token += 1;
        let follower = self.context.readers.logs.follow(&watched.log, watched.beginning(), &self.wake, token);
        let (readers, place) = (self.context.readers.clone(), watched.place());
        let reader = StreamReader::new(readers, follower, place, &watched.extent, start, fresh).await;
        let reader = reader.map_err(|error| refusals::of_task(&error))?;
        self.watches.push(Watching { token, task: id, session: watched.session, reader, shown, resuming });
        Ok(())
    }

    pub(super) fn unwatch_task(&mut self, task: &str) {
        self.watches.retain(|watching| watching.task.as_str() != task);
    }

    /// Where ownership has to be proven, attaching to the session has done that for its tasks too.
    fn proof(&self, shown: Option<Presented>) -> Proof<'static> {
        Proof::Attached(self.links.iter().map(|attached| attached.follower.log().clone()).collect(), shown)
    }

    /// A log that is watched may have grown.
    pub(super) fn wake_watched(&mut self, token: u64) {
        self.watches.iter_mut().filter(|watching| watching.token == token).for_each(|watching| watching.reader.wake());
    }

    /// In another epoch the task is watched anew from the position that was reached, which tells the client of the gap.
    /// After any other trouble the client is refused, and may watch it again.
    async fn cannot_watch(&mut self, at: usize, error: &FollowError) {
        let Watching { task, session, reader, shown, .. } = self.watches.swap_remove(at);
        let refused = match (error, &self.standing) {
            (FollowError::EpochChanged, ClientIdentity::Known { identity, .. }) => {
                let (identity, epoch) = (identity.clone(), Some(reader.epoch().clone()));
                let cursor = StreamCursor { cursor: Cursor { epoch, seq: reader.position() }, part: None };
                Box::pin(self.watch_from(task.clone(), Some(cursor), shown, &identity)).await
            }
            _ => Err(refusals::of_follower(error)),
        };
        if let Err(refusal) = refused {
            self.refuse(session, &refusal.details(json!({ "task_id": task })));
        }
    }

    /// Reads what watched tasks owe until the window is full.
    pub(super) async fn pump_watches(&mut self) {
        let window = self.window();
        let mut at = 0;
        while at < self.watches.len() && self.outbox_bytes < window && self.close.is_none() {
            match self.watches[at].reader.next(window).await {
                Ok(None) => {
                    let resuming = self.watches[at].resuming.take();
                    resuming.into_iter().for_each(|resuming| resuming.caught_up(&self.context.metrics));
                    at += 1;
                }
                Ok(Some(ReaderOutput::Over)) => self.end_watch(at).await,
                Ok(Some(piece)) => self.push_piece(at, &piece),
                Err(error) => self.cannot_watch(at, &error).await,
            }
        }
        // The task that filled the window goes last next time, so that the others get their turn.
        if at > 0 && at < self.watches.len() {
            self.watches.rotate_left(at);
        }
    }

    fn push_piece(&mut self, at: usize, piece: &ReaderOutput<FrameDialect>) {
        let Watching { task, session, reader, .. } = &self.watches[at];
        let session = session.as_ref();
        let named = FrameTask { task, session, epoch: reader.epoch() };
        // Most frames are there already, and need no time of their own.
        let time = OnceCell::new();
        let encode = |output: &<FrameDialect as Projection>::Output| {
            FrameDialect::encode_frame(output, &named, time.get_or_init(clock::timestamp))
        };
        let frames = match piece {
            ReaderOutput::Own(outputs) => outputs.iter().map(encode).collect(),
            ReaderOutput::Shared { batch, from } => Encoded::frames::<FrameDialect>(batch, *from, session, encode),
            ReaderOutput::Over => Vec::new(),
        };
        self.context.metrics.chunks_sent.inc_by(frames.len() as u64);
        frames.into_iter().for_each(|frame| self.push(frame));
    }

    async fn end_watch(&mut self, at: usize) {
        let Watching { task, session, shown, resuming, .. } = self.watches.swap_remove(at);
        resuming.into_iter().for_each(|resuming| resuming.caught_up(&self.context.metrics));
        let ended = match &self.standing {
            ClientIdentity::Known { identity, .. } => {
                Watched::find_with(&self.context.streams, &task, &identity.principal, &self.proof(shown)).await.ok()
            }
            ClientIdentity::Unknown { .. } => None,
        };
        let status = ended.map_or("expired", |watched| watched.status().as_str());
        let end = TaskEnd { task: &task, session: session.as_ref(), status };
        self.push(end.encode(&clock::timestamp()));
    }
}
