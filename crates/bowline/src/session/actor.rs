//! The one place that changes a session: a record, who holds it, and the run that is at work in it.
//!
//! An actor lives while a connection is attached or a run has a process; everything it knows is in the store, so it can
//! leave at any time and be activated again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bowline_core::Hold;
use bowline_core::hold::ConnectionKey;
use bowline_env::clock;
use bowline_mutant::mutant;
use bowline_protocol::{Cursor, Draft, ErrorCode, LogId, Principal, Refusal, RunId, Seq, SessionId};
use bowline_store::{Commit, Committed, Fence, Item, LeasedLog, LogKind, Record, Release};
use serde::Serialize;

use super::command::CommandResult;
use super::record::{Queued, SessionRecord, SessionState, keys};
use super::registry::Sessions;
use super::run::{Cancel, LiveRun};
use super::turns::TurnIndexer;
use super::{Attacher, CommandOutcome, CommandSender, Mailbox, SessionCommand, SessionRequest};
use crate::config::Ownership;
use crate::refusals;

/// How long a mark or a touch may wait for a commit that takes it along.
const FLUSH_AFTER: Duration = Duration::from_millis(20);
const FLUSH_RETRY: Duration = Duration::from_millis(500);

pub struct SessionActor {
    pub(super) shared: Arc<Sessions>,
    pub(super) id: SessionId,
    pub(super) log: LogId,
    pub(super) owner: Principal,
    pub(super) writer: LeasedLog,
    pub(super) record: SessionRecord,
    pub(super) hold: Hold,
    pub(super) members: HashMap<ConnectionKey, SessionAttachment>,
    /// Claims that wait for a probe.
    pub(super) claims: HashMap<ConnectionKey, Attacher>,
    pub(super) mark: Option<Cursor>,
    pub(super) run: Option<Box<LiveRun>>,
    /// A run whose cancel the store has not taken, although its caller got the answer that it stops: who cancelled it, and why.
    pub(super) cancel_owed: Option<Box<(RunId, Cancel)>>,
    /// Follows the active turn as it is written.
    pub(super) indexer: Option<Box<TurnIndexer>>,
    /// When the contents of a session that is over are let go.
    pub(super) release_at: Option<Instant>,
    /// When the holder is sent its state next, if it asked for that.
    pub(super) checkpoint_at: Option<Instant>,
    /// Who was sent the state last, and up to where.
    pub(super) checkpointed: Option<(ConnectionKey, Seq)>,
    pub(super) presence: Arc<SessionPresence>,
    pub(super) idle_since: Instant,
    /// When marks and touches that no command waits for are written, unless another commit takes them along first.
    pub(super) flush_at: Option<Instant>,
    pub(super) mark_dirty: bool,
    pub(super) activated: bool,
}

#[derive(Debug)]
pub(super) struct SessionAttachment {
    pub mailbox: Mailbox,
    pub observe: bool,
}

/// What the admin API may see of a live actor without asking it.
#[derive(Debug, Default)]
pub struct SessionPresence {
    pub held: AtomicUsize,
    pub observers: AtomicUsize,
    pub acked: AtomicU64,
    /// Whether a run is under way here that does not wait for a person.
    pub at_work: AtomicBool,
}

impl SessionActor {
    /// An actor that still has to be activated.
    pub fn new(shared: Arc<Sessions>, log: LogId, owner: Principal, record: SessionRecord) -> SessionActor {
        let writer = shared.logs.writer(&log);
        SessionActor {
            shared,
            id: record.current.clone().unwrap_or_else(|| SessionId::from(&log)),
            writer,
            log,
            owner,
            record,
            hold: Hold::default(),
            members: HashMap::new(),
            claims: HashMap::new(),
            mark: None,
            run: None,
            cancel_owed: None,
            indexer: None,
            release_at: None,
            checkpoint_at: None,
            checkpointed: None,
            presence: Arc::default(),
            idle_since: clock::now(),
            flush_at: None,
            mark_dirty: false,
            activated: false,
        }
    }

    pub(super) async fn handle_command(&mut self, command: SessionCommand) {
        let SessionCommand { from, ask, .. } = command;
        if let CommandSender::Request(request) = &from
            && let Err(refusal) = self.note_use(request.proof.clone().as_ref()).await
        {
            return self.settle(from, Err(refusal));
        }
        let answered = match ask {
            SessionRequest::Message { message_id, also, behind, content } => {
                let also = also.filter(|also| message_id.as_ref() != Some(also));
                self.message(&from, Queued { content, message_id, also }, behind).await
            }
            SessionRequest::Regenerate { by, replaces } => self.regenerate(&from, by, replaces).await,
            SessionRequest::Response { step_id, reply, request, announce } => {
                self.response(&from, &step_id, reply, request, announce).await
            }
            SessionRequest::WebhookDelivered(owed) => self.webhook_delivered(owed).await,
            SessionRequest::Returned(returned) => self.returned(&from, *returned).await,
            SessionRequest::Cancel { .. } if mutant("ignore-a-cancel") => Ok(CommandOutcome::Cancelled { ran: true }),
            SessionRequest::Cancel { by, reason, turn } => self.cancel(&from, by, reason, turn).await,
            SessionRequest::Command { by, command } => self.command(&from, by, command).await,
            SessionRequest::Operate(order) => self.operate(&from, *order).await,
            SessionRequest::OperationEnded { task, content } => self.operation_ended(&task, &content).await,
            SessionRequest::End { by } => self.end(&from, &by).await,
            SessionRequest::Prove => self.may_write(&from).map(|()| CommandOutcome::Done),
            SessionRequest::Expire => return self.expire().await,
            SessionRequest::Verify => return self.verify().await,
            // The rest is between a session and the connections at it.
            ask => match from {
                CommandSender::Connection(mailbox) => return self.handle_connection(mailbox, ask).await,
                CommandSender::Request(_) | CommandSender::Internal => Ok(CommandOutcome::Done),
            },
        };
        self.settle(from, answered);
    }

    async fn handle_connection(&mut self, mailbox: Mailbox, ask: SessionRequest) {
        match ask {
            SessionRequest::Attach(request) => self.attach(Attacher { mailbox, request: *request }).await,
            SessionRequest::Detach => self.detach(mailbox.connection).await,
            SessionRequest::Alive => self.alive(mailbox.connection),
            SessionRequest::Ack { seq } => self.ack(mailbox.connection, seq),
            SessionRequest::Export(options) => self.export(&mailbox, options).await,
            _ => {}
        }
    }

    /// A change to this session's log, to be filled in.
    pub(super) fn change(&self) -> PendingChange {
        let now_ms = self.shared.logs.clock.now_ms();
        PendingChange {
            record: self.record.clone(),
            commit: Commit::to(self.log.clone(), Fence::default(), now_ms),
            session: self.id.clone(),
        }
    }

    /// Makes a change durable; only then does the actor believe it.
    pub(super) async fn commit(&mut self, change: PendingChange) -> Result<Committed, Refusal> {
        let PendingChange { mut record, mut commit, .. } = change;
        record.touched_ms = commit.at_ms;
        commit.record =
            Some(store_record(&self.owner, &record)).filter(|_| !mutant("leave-the-record-out-of-a-commit"));
        let (before, after) = (self.record.state().as_str(), record.state().as_str());
        let active = record.turn.active().or(self.record.turn.active()).map(|active| active.started);
        let indexer = self.index_events(&mut commit, active).await?;
        let committed = self.write_traced(commit).await?;
        // A turn that is over has no more events.
        self.indexer = indexer.filter(|_| record.turn.active().is_some());
        if before != after {
            self.shared.metrics.session_moved(before, after);
        }
        self.record = record;
        self.count_work();
        self.flush_at = None;
        Ok(committed)
    }

    /// Writes without touching the record.
    pub(super) async fn write(&mut self, mut commit: Commit) -> Result<Committed, Refusal> {
        let active = self.record.turn.active().map(|active| active.started);
        let indexer = self.index_events(&mut commit, active).await?;
        let committed = self.write_traced(commit).await?;
        self.indexer = indexer;
        Ok(committed)
    }

    /// Makes a commit durable. A mark that waits is taken along.
    async fn write_traced(&mut self, mut commit: Commit) -> Result<Committed, Refusal> {
        if self.mark_dirty
            && let Some(mark) = &self.mark
        {
            commit.items.push(Item::put(keys::MARK, mark.to_string().into_bytes()));
        }
        let events = commit.events.len() as u64;
        let committed = self.shared.logs.commit_leased(&mut self.writer, commit).await;
        let committed = committed.map_err(|error| refusals::of_store(&error))?;
        self.shared.metrics.events_appended.inc_by(events);
        if let Some(trimmed) = &committed.trimmed {
            let acked = self.mark.as_ref().map_or(Seq::ZERO, |mark| mark.seq);
            self.shared.logs.count_trimmed(trimmed, acked);
        }
        self.mark_dirty = false;
        Ok(committed)
    }

    /// The record changed in a way that no command needs to wait for.
    pub(super) fn note_record(&mut self) {
        self.flush_at.get_or_insert(clock::now() + FLUSH_AFTER);
    }

    pub(super) async fn flush(&mut self) {
        let change = self.change();
        if let Err(refusal) = self.commit(change).await {
            if refusal.code == ErrorCode::SessionNotFound {
                // Its log is gone, so there is nothing to try again. Activation finds the same, and turns all away.
                self.writer.reset();
                return;
            }
            tracing::debug!(session = %self.id, %refusal, "a mark cannot be stored yet");
            self.flush_at = Some(clock::now() + FLUSH_RETRY);
        } else if self.run.is_none() && self.record.turn.active().is_none() {
            // A queue that could not go on when the store was away goes on now.
            self.start_next().await;
        }
    }

    /// Something has to be tried again once the store is back.
    pub(super) fn flush_later(&mut self) {
        self.flush_at = Some(clock::now() + FLUSH_RETRY);
    }

    /// Only the holder's acks move the session's mark; lower ones are no-ops.
    fn ack(&mut self, connection: ConnectionKey, seq: Seq) {
        let known = self.mark.as_ref().map_or(Seq::ZERO, |mark| mark.seq);
        if !(self.hold.is_held_by(connection) || mutant("take-acks-of-observers")) || seq <= known {
            return;
        }
        let mark = Cursor { epoch: self.mark.as_ref().and_then(|mark| mark.epoch.clone()), seq };
        self.mark_dirty = true;
        self.note_record();
        self.presence.acked.store(seq.get(), Ordering::Relaxed);
        self.mark = Some(mark);
        self.shared.metrics.acks.inc();
    }

    fn settle(&self, from: CommandSender, answered: CommandResult) {
        from.settle(&self.id, self.record.turn.state(), answered);
    }

    /// Whether this caller may write, and the session can be written to. The rule of one holder binds connections: an
    /// owner may always write over HTTP.
    pub(super) fn may_write(&self, from: &CommandSender) -> Result<(), Refusal> {
        match from {
            CommandSender::Connection(mailbox) => self.may_hold_and_write(mailbox),
            CommandSender::Internal => self.alive_or_refusal(),
            CommandSender::Request(request) => {
                self.record.is_proven(self.shared.config.session.ownership, request.proof.as_ref())?;
                self.alive_or_refusal()
            }
        }
    }

    pub(super) fn may_hold_and_write(&self, from: &Mailbox) -> Result<(), Refusal> {
        if self.shared.config.session.ownership == Ownership::Token
            && !from.admitted
            && !self.members.contains_key(&from.connection)
        {
            // With resume tokens a name proves nothing: a client that was never attached is a stranger.
            return Err(refusals::session_not_found());
        }
        self.alive_or_refusal()?;
        if !self.hold.is_held_by(from.connection) && !mutant("let-the-loser-write") {
            let message = "This connection does not hold the session. Send `user.reconnect` to take it up.";
            return Err(Refusal::new(ErrorCode::SessionReadOnly, message));
        }
        Ok(())
    }

    pub(super) fn alive_or_refusal(&self) -> Result<(), Refusal> {
        self.record.is_alive()
    }

    pub(super) async fn release(&mut self) {
        self.release_at = None;
        let mut change = self.change();
        change.record = change.record.tombstone();
        change.commit.release = Some(Release::Contents);
        if let Err(refusal) = self.commit(change).await {
            tracing::debug!(session = %self.id, %refusal, "cannot let go of an ended session yet");
            self.release_at = Some(clock::now() + FLUSH_RETRY);
            return;
        }
        self.hold = Hold::default();
        self.members.clear();
        self.count_presence();
    }

    pub(super) fn count_work(&self) {
        self.presence.at_work.store(self.record.state() == SessionState::Running, Ordering::Relaxed);
    }

    pub(super) fn count_presence(&self) {
        let held = usize::from(self.hold.holder().is_some());
        let observers = self.members.values().filter(|member| member.observe).count();
        let was_held = self.presence.held.swap(held, Ordering::Relaxed);
        let had_observers = self.presence.observers.swap(observers, Ordering::Relaxed);
        self.shared.metrics.sessions_held.inc_by(held as i64 - was_held as i64);
        self.shared.metrics.observers.inc_by(observers as i64 - had_observers as i64);
    }
}

/// The record as the store keeps it.
pub fn store_record(owner: &Principal, record: &SessionRecord) -> Record {
    Record { kind: LogKind::Session, owner: owner.clone(), touched_ms: record.touched_ms, body: record.encode() }
}

/// A commit under construction, with the record as it will be.
pub(super) struct PendingChange {
    pub record: SessionRecord,
    pub commit: Commit,
    session: SessionId,
}

impl PendingChange {
    pub fn event(&mut self, draft: &Draft) {
        self.commit.events.push(draft.seal(&self.session, &clock::timestamp()));
    }

    pub fn put(&mut self, key: impl Into<String>, value: &impl Serialize) {
        // Our own types have string keys and finite numbers only, so this cannot fail.
        self.commit.items.push(Item::put(key, serde_json::to_vec(value).unwrap_or_default()));
    }

    pub fn delete(&mut self, key: impl Into<String>) {
        self.commit.items.push(Item::delete(key));
    }
}

impl std::fmt::Debug for SessionActor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SessionActor({}, {})", self.id, self.record.state().as_str())
    }
}
