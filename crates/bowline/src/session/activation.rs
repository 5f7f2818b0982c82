//! The life of a session as an actor: how it is found and activated, what it finds after a crash, when it ends, and when it leaves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bowline_actor::{ActivationError, Actor, ActorHost as _, ActorLocation, Process, RunEvent};
use bowline_api::{Emission, RunResult};
use bowline_core::Hold;
use bowline_core::turn::{Active, AfterCrash};
use bowline_env::clock;
use bowline_mutant::mutant;
use bowline_protocol::event::names;
use bowline_protocol::{Cursor, Draft, ErrorCode, Principal, Recorded, Refusal, SessionId};
use bowline_store::StoreError;
use serde_json::json;

use super::actor::{SessionActor, SessionPresence};
use super::command::CommandResult;
use super::record::{SessionState, keys};
use super::registry::{Sessions, goes_by};
use super::run::{Cancel, Entry, RunEnd};
use super::{CommandOutcome, CommandSender, Life, Mail, SessionCommand, SessionRecord};
use crate::logs::Location;
use crate::refusals;

/// How long an actor without work stays, so that a client that comes right back finds it warm.
const LINGER: Duration = Duration::from_secs(2);

impl Actor for SessionActor {
    type Id = SessionId;
    type Command = Box<SessionCommand>;
    type Emission = Emission;
    type Ending = RunResult;
    type Presence = SessionPresence;
    type Refusal = Refusal;
    type Host = Sessions;

    const COMMANDS_AT_ONCE: usize = 1;

    fn not_found() -> Refusal {
        refusals::session_not_found()
    }

    fn unreachable() -> Refusal {
        Refusal::new(ErrorCode::Internal, "The session could not be woken. Try again.").retry_after_ms(1000)
    }

    fn is_final(refusal: &Refusal) -> bool {
        // The second is what the actor of a name gets that the session has given up.
        matches!(refusal.code, ErrorCode::SessionNotFound | ErrorCode::SessionInactive)
    }

    async fn find(
        sessions: &Arc<Sessions>,
        id: &SessionId,
        asker: &Principal,
        command: &Box<SessionCommand>,
    ) -> Result<ActorLocation<SessionActor>, Refusal> {
        // The nodes that a command came through may have believed what is not so any more.
        if command.hops == 0
            && let Some(node) = sessions.router.route(id, asker)
        {
            return Ok(ActorLocation::There(node));
        }
        let (log, record) = sessions.look_up(id, asker).await?;
        goes_by(sessions, &log, &record, id, command.from.is_admitted())?;
        let location = sessions.logs.placement.locate(&log).await;
        match location.map_err(|error| refusals::of_store(&error))? {
            Location::There(node) => Ok(ActorLocation::There(node)),
            Location::Here => Ok(ActorLocation::Here(SessionActor::new(sessions.clone(), log, asker.clone(), record))),
        }
    }

    fn refuse(id: &SessionId, command: Box<SessionCommand>, refusal: &Refusal) {
        command.refuse(id, refusal);
    }

    fn host(&self) -> &Arc<Sessions> {
        &self.shared
    }

    fn id(&self) -> &SessionId {
        &self.id
    }

    fn owner(&self) -> &Principal {
        &self.owner
    }

    fn presence(&self) -> Arc<SessionPresence> {
        self.presence.clone()
    }

    async fn activate(&mut self) -> Result<(), ActivationError<Refusal>> {
        if self.activated {
            return Ok(());
        }
        let refuse = |error: StoreError| ActivationError::from_lease(error, refusals::of_store);
        if !self.writer.is_leased() {
            self.writer.acquire().await.map_err(refuse)?;
            if !mutant("believe-what-was-read-before-the-lease") {
                Box::pin(self.read_record()).await?;
            }
        }
        let mark = self.shared.logs.store.item(&self.log, keys::MARK).await.map_err(refuse)?;
        self.mark = mark.and_then(|bytes| Cursor::parse(std::str::from_utf8(&bytes).ok()?));
        self.presence.acked.store(self.mark.as_ref().map_or(0, |mark| mark.seq.get()), Ordering::Relaxed);
        self.recover().await?;
        self.activated = true;
        self.count_work();
        Ok(())
    }

    /// All who are attached are cut, and come back; the run is ended or continued.
    async fn reactivate(&mut self) -> Result<(), ActivationError<Refusal>> {
        self.cut_all();
        if let Some(run) = &mut self.run
            && let Some(cancel) = run.cancelled.take()
        {
            self.cancel_owed = Some(Box::new((run.id.clone(), cancel)));
        }
        self.drop_run();
        self.reset();
        self.activate().await
    }

    fn is_in_doubt(&self) -> bool {
        self.activated && !self.writer.is_leased()
    }

    async fn handle(&mut self, commands: Vec<Box<SessionCommand>>) {
        self.idle_since = clock::now();
        for command in commands {
            self.handle_command(*command).await;
        }
    }

    fn process(&mut self) -> Option<&mut Process<Emission, RunResult>> {
        self.run.as_deref_mut().map(|run| &mut run.process)
    }

    async fn handle_run_event(&mut self, event: RunEvent<Emission, RunResult>) {
        match event {
            RunEvent::Emissions(emissions) => self.store_emissions(emissions).await,
            RunEvent::Ended(ending) => self.finish(ending).await,
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let idle = self.is_idle().then(|| self.idle_since + self.linger());
        let stuck = self.run.as_ref().and_then(|run| run.process.retry_at());
        [idle, self.hold.poll_timeout(), stuck, self.release_at, self.checkpoint_at, self.flush_at]
            .into_iter()
            .flatten()
            .min()
    }

    async fn handle_timeout(&mut self, now: Instant) {
        let outcome = self.hold.handle_timeout(now);
        self.settle_claims(outcome).await;
        if self.run.as_ref().and_then(|run| run.process.retry_at()).is_some_and(|at| at <= now) {
            self.retry_stuck().await;
        }
        if self.checkpoint_at.is_some_and(|at| at <= now) {
            Box::pin(self.checkpoint()).await;
        }
        if self.release_at.is_some_and(|at| at <= now) {
            self.release().await;
        }
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush().await;
        }
    }

    /// If only those who are attached keep the session from a node that can serve it, they are cut, and come back there.
    fn handle_draining(&mut self) {
        let kept = !self.members.is_empty() || !self.claims.is_empty() || self.run.is_some();
        if !kept || self.release_at.is_some() || self.is_in_doubt() || !self.is_another_nodes() {
            return;
        }
        self.cut_all();
        self.drop_run();
        if self.record.held {
            self.record.held = false;
            self.record.touched_ms = self.shared.logs.clock.now_ms();
            self.note_record();
        }
    }

    fn may_leave(&self, now: Instant) -> bool {
        self.is_idle() && now >= self.idle_since + self.linger()
    }

    async fn give_back(&mut self) {
        self.writer.give_back().await;
        if !self.record.queue.is_empty() {
            // This node leaves, and starts no more runs.
            self.shared.router.pass_on_work(&self.id, &self.owner);
        }
    }
}

impl SessionActor {
    /// Believes what the store has. That is certain only under a lease: until then the one who had it before, or a commit of
    /// this node that is in doubt, may still change it.
    async fn read_record(&mut self) -> Result<(), Refusal> {
        let stored = self.shared.logs.store.record(&self.log).await.map_err(|error| refusals::of_store(&error))?;
        let record = SessionRecord::decode(&stored.ok_or_else(refusals::session_not_found)?.body);
        let record = record.map_err(|why| {
            Refusal::new(ErrorCode::StoreUnavailable, format!("The session's record cannot be read: {why}."))
        })?;
        if self.record.life == Life::Active && record.life != Life::Active {
            self.shared.forget_live(&self.owner);
        }
        self.shared.metrics.session_moved(self.record.state().as_str(), record.state().as_str());
        self.record = record;
        self.count_work();
        self.adopt_name()
    }

    /// A restore that was stored meanwhile has given the session another name. Under two names it would have two actors.
    fn adopt_name(&mut self) -> Result<(), Refusal> {
        let current = self.record.current.clone().unwrap_or_else(|| SessionId::from(&self.log));
        if current != self.id && !self.shared.directory().rename(&self.id, &current) {
            return goes_by(&self.shared, &self.log, &self.record, &self.id, true);
        }
        self.id = current;
        Ok(())
    }

    /// Nothing is activated, owed or due any more.
    fn reset(&mut self) {
        (self.release_at, self.checkpoint_at, self.flush_at) = (None, None, None);
        self.indexer = None;
        (self.mark_dirty, self.activated) = (false, false);
        self.writer.reset();
    }

    /// No connection is attached and nothing runs: the store knows everything, so the actor may leave.
    fn is_idle(&self) -> bool {
        self.members.is_empty()
            && self.claims.is_empty()
            && self.run.is_none()
            && self.release_at.is_none()
            && self.flush_at.is_none()
    }

    /// A node that drains keeps nothing that another could have.
    fn linger(&self) -> Duration {
        if self.shared.logs.placement.is_shared() && self.shared.is_draining() { Duration::ZERO } else { LINGER }
    }

    /// Whether this node is about to leave and another can have the session, since no run is under way in it. One that waits
    /// for a person needs no process.
    pub(super) fn is_another_nodes(&self) -> bool {
        self.shared.logs.placement.has_peers()
            && self.shared.is_draining()
            && self.record.state() != SessionState::Running
    }

    fn cut_all(&mut self) {
        for member in std::mem::take(&mut self.members).into_values() {
            member.mailbox.send(Mail::Cut { session: self.id.clone() });
        }
        for attacher in std::mem::take(&mut self.claims).into_values() {
            attacher.mailbox.send(Mail::Cut { session: attacher.request.session });
        }
        self.hold = Hold::default();
        self.count_presence();
    }

    /// After this node was away for so long that others may have taken what is its own, or the store has lost what it had
    /// answered. A commit says whether the last one still stands.
    pub(super) async fn verify(&mut self) {
        match self.shared.logs.placement.locate(&self.log).await {
            Ok(Location::Here) => self.flush().await,
            Ok(Location::There(_)) => self.writer.reset(),
            // The store cannot say; the commit will, once it is back.
            Err(_) => self.flush_later(),
        }
    }
}

/// How long the last event of a session may take to reach its readers before its buffers are released all the same.
const LAST_WORD: Duration = Duration::from_secs(10);

impl SessionActor {
    pub(super) async fn end(&mut self, from: &CommandSender, by: &str) -> CommandResult {
        self.may_write(from)?;
        self.close("ended", Life::Ended, by).await?;
        self.shared.metrics.sessions_ended.inc();
        Ok(CommandOutcome::Done)
    }

    /// Quiet for its lifetime, without a holder, nothing at work in it or in its background: then it expires.
    pub(super) async fn expire(&mut self) {
        let now_ms = self.shared.logs.clock.now_ms();
        let now_ms = if mutant("lifetimes-follow-the-wall-clock") { clock::wall_ms() } else { now_ms };
        let quiet = now_ms.saturating_sub(self.record.touched_ms) >= self.shared.config.session.ttl.as_millis() as u64;
        let busy = self.hold.holder().is_some() || self.record.turn.active().is_some() || !self.record.queue.is_empty();
        if self.record.life != Life::Active || !quiet || busy {
            return;
        }
        match self.has_open_operations().await {
            Ok(false) => {}
            // The end of the last one is an event here, from which the session's lifetime counts.
            Ok(true) => return,
            Err(refusal) => {
                tracing::debug!(session = %self.id, %refusal, "whether a session is still at work cannot be seen now");
                return;
            }
        }
        match self.close("expired", Life::Expired, "expiry").await {
            Ok(()) => drop(self.shared.metrics.sessions_expired.inc()),
            Err(refusal) => tracing::warn!(session = %self.id, %refusal, "could not expire a session"),
        }
    }

    async fn close(&mut self, reason: &str, life: Life, by: &str) -> Result<(), Refusal> {
        if self.record.turn.active().is_some() {
            self.end_run(RunEnd::cancelled(by, Some("The session has ended."))).await?;
            self.drop_run();
        }
        self.cancel_operations(by).await?;
        let mut change = self.change();
        change.event(&Draft::new(names::SESSION_END, "The session is over.").metadata(&json!({ "reason": reason })));
        change.record.life = life;
        change.record.held = false;
        change.record.queue = super::record::MessageQueue::default();
        let last = self.commit(change).await?.first;
        self.shared.forget_live(&self.owner);
        for member in self.members.values() {
            member.mailbox.send(Mail::Over { session: self.id.clone(), last });
        }
        // Readers first get the last event, then the buffers go.
        self.release_at = Some(clock::now() + if self.members.is_empty() { Duration::ZERO } else { LAST_WORD });
        Ok(())
    }

    /// What an earlier process left behind: a run that waits for a person goes on waiting, any other is continued by an
    /// agent that can, or ended honestly.
    pub(super) async fn recover(&mut self) -> Result<(), Refusal> {
        if self.record.life != Life::Active {
            if !self.record.released {
                self.release_at = Some(clock::now());
            }
            return Ok(());
        }
        if self.record.held {
            // The holder is gone with the process; the session's lifetime counts from now.
            self.record.held = false;
            self.record.touched_ms = self.shared.logs.clock.now_ms();
            self.note_record();
        }
        if let Some(owed) = &self.cancel_owed
            && let (run, Cancel { by, reason }) = &**owed
            && self.record.turn.active().is_some_and(|active| active.run == *run)
        {
            let end = RunEnd::cancelled(by, reason.as_deref());
            self.end_run(end).await?;
        }
        self.cancel_owed = None;
        self.post_owed_webhooks().await?;
        match self.record.turn.after_crash() {
            AfterCrash::Nothing => self.start_next().await,
            AfterCrash::KeepWaiting if mutant("end-a-run-that-waits") => self.end_run(RunEnd::lost()).await?,
            AfterCrash::KeepWaiting => {}
            AfterCrash::Cut(active) => {
                self.recover_cut(active).await?;
                if self.run.is_none() {
                    self.start_next().await;
                }
            }
        }
        Ok(())
    }

    async fn recover_cut(&mut self, active: Active) -> Result<(), Refusal> {
        if self.shared.agents.get(&self.record.agent).is_some_and(|agent| agent.continues()) {
            let mut logged = self.logged_since(active.started).await?;
            if mutant("continue-a-run-from-its-start") {
                logged.clear();
            }
            let (input, conversation) = self.input_and_past().await?;
            let logged = logged.iter().filter_map(Recorded::decode).collect();
            self.launch(active.run, input, conversation, Entry::Continued(logged)).await;
            return Ok(());
        }
        if mutant("leave-a-lost-run-open") {
            return Ok(());
        }
        self.end_run(RunEnd::lost()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_actor::drive::drive;

    fn future_size<A, B, F: Future>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// A task keeps room for everything that lives across a wait, so one careless binding costs every idle session.
    #[test]
    fn what_an_idle_session_waits_in_is_small() {
        assert!(future_size(drive::<SessionActor>) <= 640, "{} bytes", future_size(drive::<SessionActor>));
    }
}
