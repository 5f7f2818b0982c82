//! The tasks that a connection watches: their chunks come as frames, so that a page needs one connection for everything.

use bowline_core::project::Trace;
use bowline_core::watch::{Output, Watch};
use bowline_protocol::chunk::Chunk;
use bowline_protocol::frame::server::{TaskChunk, TaskEnd};
use bowline_protocol::{Cursor, ErrorCode, Refusal, Seq, SessionId, StreamCursor, TaskId};
use bowline_store::{Batch, FollowError, Follower, ReadLimit};
use serde_json::json;

use super::{Connection, Standing};
use crate::auth::Identity;
use crate::node::Shared;
use crate::returning::Returning;
use crate::session::record::Presented;
use crate::stream::{Proof, Watched, trace};
use crate::{clock, node};

pub struct Watching {
    pub(super) token: u64,
    task: TaskId,
    session: Option<SessionId>,
    follower: Follower,
    trace_key: String,
    watch: Watch,
    /// The token that showed the task to be the client's, if it needed one.
    shown: Option<Presented>,
    /// Until a reader that comes back has what it missed.
    returning: Option<Returning>,
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
        let id = TaskId::parse(task).ok_or_else(node::task_not_found)?;
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
        let max = self.shared.config.limits.watches_per_connection_max;
        if self.watches.len() >= max {
            self.shared.metrics.limits_hit.inc("limits.watches_per_connection_max");
            let message = format!("This connection watches {max} tasks already. Send `user.unwatch_task` for one.");
            return Err(Refusal::new(ErrorCode::RateLimited, message).retry_after_ms(1000));
        }
        let watched = Watched::find_with(&self.shared, &id, &identity.principal, &self.proof(shown.clone())).await?;
        let fresh = cursor.is_none();
        let returning = Returning::begin(&self.shared, &watched, cursor.as_ref());
        let start = watched.start(cursor, false).inspect_err(|refusal| {
            if !fresh {
                Returning::refused(&self.shared, &id, refusal);
            }
        })?;
        let Some(start) = start else {
            returning.into_iter().for_each(|returning| returning.lacks_nothing(&self.shared));
            let end = TaskEnd { task: &id, session: watched.session.as_ref(), status: watched.status().as_str() };
            self.push(end.encode(&clock::timestamp()));
            return Ok(());
        };
        let returning = returning.map(|returning| returning.admitted(&self.shared));
        self.shared.metrics.stream_starts.inc(if fresh { "fresh" } else { "resumed" });
        let token = self.next_token;
        self.next_token += 1;
        let follower = self.shared.follow(&watched.log, &watched.extent.epoch, &self.wake, token);
        let trace = watched.trace(&self.shared).await.map_err(|error| node::task_refusal(&error))?;
        let mut watch = Watch::new(id.as_str(), watched.first, &watched.extent, start, fresh, trace.as_ref());
        // Subscribed first, looked second: an event in between is seen by one of the two.
        watch.handle_tail(follower.end().await.map_err(|error| node::follow_refusal(&error))?);
        let Watched { session, trace_key, .. } = watched;
        self.watches.push(Watching { token, task: id, session, follower, trace_key, watch, shown, returning });
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
    pub(super) async fn look_at_watched(&mut self, token: u64) {
        let Some(at) = self.watches.iter().position(|watching| watching.token == token) else { return };
        let Watching { follower, watch, .. } = &mut self.watches[at];
        match follower.end().await {
            Ok(next) => watch.handle_tail(next),
            Err(error) => self.cannot_watch(at, &error).await,
        }
    }

    /// In another epoch the task is watched anew from the position that was reached, which tells the client of the gap.
    /// After any other trouble the client is refused, and may watch it again.
    async fn cannot_watch(&mut self, at: usize, error: &FollowError) {
        let Watching { task, session, follower, watch, shown, .. } = self.watches.swap_remove(at);
        let refused = match (error, &self.standing) {
            (FollowError::EpochChanged, Standing::Known { identity, .. }) => {
                let (identity, epoch) = (identity.clone(), Some(follower.epoch().clone()));
                let cursor = StreamCursor { cursor: Cursor { epoch, seq: watch.position() }, part: None };
                Box::pin(self.watch_from(task.clone(), Some(cursor), shown, &identity)).await
            }
            _ => Err(node::follow_refusal(error)),
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
            match self.watches[at].watch.poll_output() {
                None => {
                    let returning = self.watches[at].returning.take();
                    returning.into_iter().for_each(|returning| returning.caught_up(&self.shared));
                    at += 1;
                }
                Some(Output::Chunks(chunks)) => self.push_chunks(at, &chunks),
                Some(Output::Over) => self.end_watch(at).await,
                Some(Output::Read { from, events_max }) => {
                    let limit = ReadLimit { events: events_max, bytes: window };
                    let Watching { follower, trace_key, watch, .. } = &mut self.watches[at];
                    match read(&self.shared, follower, trace_key, from, limit).await {
                        Ok((batch, trace)) => {
                            watch.handle_events(&batch.events, batch.first, batch.next, trace.as_ref());
                            if watch.take_gap() {
                                self.shared.metrics.gaps_told.inc();
                            }
                        }
                        Err(error) => self.cannot_watch(at, &error).await,
                    }
                }
            }
        }
        // The task that filled the window goes last next time, so that its neighbours get their turn.
        if at > 0 && at < self.watches.len() {
            self.watches.rotate_left(at);
        }
    }

    fn push_chunks(&mut self, at: usize, chunks: &[Chunk]) {
        let time = clock::timestamp();
        let watching = &self.watches[at];
        let frames: Vec<_> = chunks
            .iter()
            .map(|chunk| {
                let (task, session) = (&watching.task, watching.session.as_ref());
                TaskChunk { task, session, epoch: watching.follower.epoch(), chunk }.encode(&time)
            })
            .collect();
        self.shared.metrics.chunks_sent.inc_by(frames.len() as u64);
        frames.into_iter().for_each(|frame| self.push(frame));
    }

    async fn end_watch(&mut self, at: usize) {
        let Watching { task, session, shown, returning, .. } = self.watches.swap_remove(at);
        returning.into_iter().for_each(|returning| returning.caught_up(&self.shared));
        let ended = match &self.standing {
            Standing::Known { identity, .. } => {
                Watched::find_with(&self.shared, &task, &identity.principal, &self.proof(shown)).await.ok()
            }
            Standing::Unknown { .. } => None,
        };
        let status = ended.map_or("expired", |watched| watched.status().as_str());
        let end = TaskEnd { task: &task, session: session.as_ref(), status };
        self.push(end.encode(&clock::timestamp()));
    }
}

/// Reads on. If what was asked for is gone meanwhile, the trace says what was open behind it.
async fn read(
    shared: &Shared,
    follower: &Follower,
    trace_key: &str,
    from: Seq,
    limit: ReadLimit,
) -> Result<(Batch, Option<Trace>), FollowError> {
    let batch = shared.read(follower, from, limit).await?;
    let overtaken = batch.first > from;
    let trace = if overtaken { trace(shared, follower.log(), trace_key).await? } else { None };
    Ok((batch, trace))
}
