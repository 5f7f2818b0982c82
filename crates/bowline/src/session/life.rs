//! How a session ends: by its owner, by age, or not at all; and what becomes of it after a crash.

use std::time::Duration;

use bowline_core::turn::{Active, AfterCrash};
use bowline_env::clock;
use bowline_protocol::event::names;
use bowline_protocol::{Draft, Recorded, Refusal};
use serde_json::json;

use super::actor::SessionActor;
use super::caller::Answered;
use super::ending::End;
use super::{Caller, Life, Mail, Outcome};

/// How long the last event of a session may take to reach its readers before its buffers are released all the same.
const LAST_WORD: Duration = Duration::from_secs(10);

impl SessionActor {
    pub(super) async fn end(&mut self, from: &Caller, by: &str) -> Answered {
        self.may_write(from)?;
        self.close("ended", Life::Ended, by).await?;
        self.shared.metrics.sessions_ended.inc();
        Ok(Outcome::Done)
    }

    /// Quiet for its lifetime, held by nobody, nothing at work in it or in its background: then it expires.
    pub(super) async fn expire(&mut self) {
        let now_ms = self.shared.logs.clock.now_ms();
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
            self.end_run(End::cancelled(by, Some("The session has ended."))).await?;
            self.drop_run();
        }
        self.cancel_operations(by).await?;
        let mut change = self.change();
        change.event(&Draft::new(names::SESSION_END, "The session is over.").metadata(&json!({ "reason": reason })));
        change.record.life = life;
        change.record.held = false;
        change.record.queue = super::record::Queue::default();
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
        match self.record.turn.after_crash() {
            AfterCrash::Nothing => self.start_next().await,
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
            let logged = self.logged_since(active.started).await?;
            let (input, conversation) = self.input_and_past().await?;
            let logged = logged.iter().filter_map(Recorded::decode).collect();
            self.launch(active.run, input, conversation, logged, None).await;
            return Ok(());
        }
        self.end_run(End::lost()).await
    }
}
