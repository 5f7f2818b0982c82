//! How connections come to hold or observe a session, and how they lose it.

use std::sync::atomic::Ordering;

use bowline_core::Resume;
use bowline_core::hold::{ClaimAnswer, ConnectionKey, ProbeOutcome};
use bowline_core::resume_token::ResumeToken;
use bowline_env::{clock, entropy};
use bowline_mutant::mutant;
use bowline_protocol::frame::{Control, names};
use bowline_protocol::{Cursor, ErrorCode, Extent, Refusal, Seq};
use serde_json::{Value, json};

use super::actor::{SessionActor, SessionAttachment};
use super::registry::goes_by;
use super::restore::{Restored, RestoredFrom};
use super::{AttachOrigin, AttachRequest, Attacher, Grant, Mail};
use crate::config::Ownership;
use crate::refusals;
use crate::secret::Presented;

impl SessionActor {
    pub(super) async fn attach(&mut self, attacher: Attacher) {
        // It may have expired a moment ago, unnoticed.
        self.expire().await;
        if let Err(refusal) = self.admits(&attacher) {
            return self.refuse(&attacher, refusal);
        }
        let connection = attacher.mailbox.connection;
        let held_by_another = self.hold.holder().is_some_and(|holder| holder != connection);
        // A new holder is given a new secret anyway.
        if (attacher.request.observe || held_by_another)
            && let Err(refusal) = self.note_use(attacher.request.proof.as_ref()).await
        {
            return self.refuse(&attacher, refusal);
        }
        if attacher.request.observe {
            // A holder that only wants to watch gives up its hold.
            let left = self.hold.handle_gone(connection);
            self.grant(attacher, None).await;
            return self.settle_claims(left).await;
        }
        // If the claim cannot be granted after all, everything is as it was.
        let before = self.hold.clone();
        match self.hold.claim(clock::now(), connection, attacher.request.client_id.clone(), attacher.request.take_over)
        {
            ClaimAnswer::Granted { superseded, refused } => {
                if self.grant(attacher, superseded).await {
                    refused.into_iter().for_each(|connection| self.refuse_held(connection));
                } else {
                    self.hold = before;
                }
            }
            ClaimAnswer::Wait => drop(self.claims.insert(connection, attacher)),
            ClaimAnswer::Probe { holder } => {
                self.claims.insert(connection, attacher);
                match self.members.get(&holder) {
                    Some(member) => member.mailbox.send(Mail::Probe { session: self.id.clone() }),
                    None => self.detach(holder).await,
                }
            }
        }
    }

    /// Whether the session exists for this caller. Unknown and foreign are answered alike.
    fn admits(&self, attacher: &Attacher) -> Result<(), Refusal> {
        let proven = match self.shared.config.session.ownership {
            // A signed state is proof enough: it was given to the owner only.
            Ownership::Token if matches!(attacher.request.origin, AttachOrigin::Created | AttachOrigin::Restored) => {
                Ok(())
            }
            ownership => self.record.is_proven(ownership, attacher.request.proof.as_ref()),
        };
        if self.owner != attacher.request.principal && !mutant("skip-the-owner-of-a-session") {
            return Err(refusals::session_not_found());
        }
        proven.and_then(|()| self.alive_or_refusal())?;
        // It would be sent away again at once.
        if self.is_another_nodes() { Err(refusals::draining()) } else { Ok(()) }
    }

    /// A client was let in with this secret. If it is the newest one and shown for the first time, then it has arrived, and
    /// the one before it is given up.
    pub(super) async fn note_use(&mut self, shown: Option<&Presented>) -> Result<(), Refusal> {
        let Some(shown) = shown.filter(|_| self.record.is_first_use(self.shared.config.session.ownership, shown))
        else {
            return Ok(());
        };
        let mut change = self.change();
        change.record.resume_token.iter_mut().for_each(|token| token.handle_used(&shown.0));
        self.commit(change).await.map(drop)
    }

    pub(super) fn alive(&mut self, connection: ConnectionKey) {
        let Some(outcome) = self.hold.handle_alive(connection) else { return };
        for connection in outcome.refused {
            self.refuse_held(connection);
        }
    }

    pub(super) async fn detach(&mut self, connection: ConnectionKey) {
        self.members.remove(&connection);
        self.claims.remove(&connection);
        let was_held = self.hold.is_held_by(connection);
        let outcome = self.hold.handle_gone(connection);
        self.settle_claims(outcome).await;
        if was_held && self.hold.holder().is_none() {
            self.record.held = false;
            self.record.touched_ms = self.shared.logs.clock.now_ms();
            self.note_record();
        }
        if let Some(at) = &mut self.release_at
            && self.members.is_empty()
        {
            // All readers have read the last event.
            *at = clock::now();
        }
        self.count_presence();
    }

    /// Answers those who waited for a probe.
    pub(super) async fn settle_claims(&mut self, outcome: Option<ProbeOutcome>) {
        let Some(outcome) = outcome else { return };
        outcome.refused.into_iter().for_each(|connection| self.refuse_held(connection));
        let Some(attacher) = outcome.granted.and_then(|connection| self.claims.remove(&connection)) else { return };
        if let Err(refusal) = self.alive_or_refusal() {
            // The session ended while the claim waited.
            self.hold.handle_gone(attacher.mailbox.connection);
            return self.refuse(&attacher, refusal);
        }
        self.shared.metrics.takeovers.inc("probed_dead");
        let connection = attacher.mailbox.connection;
        if !self.grant(attacher, outcome.superseded).await {
            self.hold.handle_gone(connection);
            self.count_presence();
        }
    }

    fn refuse_held(&mut self, connection: ConnectionKey) {
        let Some(attacher) = self.claims.remove(&connection) else { return };
        self.shared.metrics.takeovers.inc("refused");
        let message =
            "Another live connection holds the session. Send again with `content.take_over: true` to take it over.";
        self.refuse(&attacher, Refusal::new(ErrorCode::SessionAlreadyActive, message));
    }

    fn refuse(&self, attacher: &Attacher, refusal: Refusal) {
        self.shared.metrics.reconnect_refusals.inc(refusal.code.as_str());
        let AttachRequest { session, origin, .. } = &attacher.request;
        attacher.mailbox.send(Mail::Refused { session: session.clone(), refusal, origin: Some(*origin) });
    }

    /// Hands over the right to read, and to write unless it only observes. The previous holder is notified only
    /// once that has succeeded; false if it has not.
    async fn grant(&mut self, attacher: Attacher, superseded: Option<ConnectionKey>) -> bool {
        let grant = match self.prepare(&attacher).await {
            Ok(grant) => grant,
            Err(refusal) => {
                self.refuse(&attacher, refusal);
                return false;
            }
        };
        if let Some(member) = superseded.and_then(|connection| self.members.remove(&connection)) {
            self.shared.metrics.takeovers.inc("granted");
            member.mailbox.send(Mail::TakenOver { session: self.id.clone() });
        }
        if let Some(restored) = &attacher.request.restored {
            self.shared.metrics.state_restores.inc(restored.source.word());
        }
        let Attacher { mailbox, request: AttachRequest { observe, .. } } = attacher;
        self.claims.remove(&mailbox.connection);
        self.members.insert(mailbox.connection, SessionAttachment { mailbox: mailbox.clone(), observe });
        mailbox.send(Mail::Granted(Box::new(grant)));
        self.count_presence();
        true
    }

    async fn prepare(&mut self, attacher: &Attacher) -> Result<Grant, Refusal> {
        let claimed = attacher.request.session.clone();
        // It was restored while this claim waited; the answer is the one for a client that comes now.
        goes_by(&self.shared, &self.log, &self.record, &claimed, attacher.mailbox.admitted)?;
        if let Some(restored) =
            attacher.request.restored.as_deref().filter(|restored| restored.source == RestoredFrom::Live)
        {
            self.supersede(restored).await?;
        }
        if !attacher.request.observe {
            self.mark_held().await?;
        }
        let extent = self.shared.logs.store.extent(&self.log).await.map_err(|error| refusals::of_store(&error))?;
        let extent = as_restored(extent, attacher.request.restored.as_deref());
        let mut resume_token = None;
        if !attacher.request.observe && self.shared.config.session.ownership == Ownership::Token {
            resume_token = Some(self.rotate_token(attacher).await?);
        }
        let resume = match (&attacher.request.cursor, attacher.request.observe) {
            (Some(cursor), _) => Resume::decide(&extent, cursor),
            (None, true) if mutant("observers-begin-at-the-end") => Resume::CaughtUp,
            (None, true) => Resume::from_the_start(&extent),
            (None, false) => {
                let mark = self.mark.clone().unwrap_or_else(|| self.before_everything(&extent));
                Resume::behind_mark(&extent, &mark)
            }
        };
        if !attacher.request.observe {
            self.adopt_epoch(&extent);
        }
        Ok(Grant {
            session: self.id.clone(),
            claimed,
            log: self.log.clone(),
            observe: attacher.request.observe,
            origin: attacher.request.origin,
            greeting: self.greeting(attacher, &extent, resume, resume_token),
            resume,
            position: attacher.request.cursor.as_ref().map(|cursor| cursor.seq),
            extent,
            since: attacher.request.since,
        })
    }

    /// A mark from another incarnation of the log stands for what that had in common with this one. It moves no further:
    /// what no holder has acknowledged is owed to the next one that comes without a cursor.
    fn adopt_epoch(&mut self, extent: &Extent) {
        let mark = match &self.mark {
            None => self.before_everything(extent),
            Some(mark) if mark.epoch.as_ref() == Some(&extent.epoch) => mark.clone(),
            Some(mark) => {
                let acked = if mutant("forget-what-was-not-acked") { extent.epoch_first.prev() } else { mark.seq };
                let common = acked.min(extent.epoch_first.prev());
                // Stored before another change of epoch makes it mean something else.
                self.mark_dirty = true;
                self.note_record();
                Cursor { epoch: Some(extent.epoch.clone()), seq: common }
            }
        };
        self.mark = Some(mark);
        let acked = self.mark.as_ref().map_or(0, |mark| mark.seq.get());
        self.presence.acked.store(acked, Ordering::Relaxed);
    }

    /// Where a holder stands that has acknowledged nothing. A log that was rebuilt from a state did not begin at 1: its
    /// past is elsewhere and not owed.
    fn before_everything(&self, extent: &Extent) -> Cursor {
        let rebuilt = self.record.lineage.is_some();
        let began = if rebuilt { extent.first.min(extent.epoch_first) } else { Seq::FIRST };
        Cursor { epoch: Some(extent.epoch.clone()), seq: began.prev() }
    }

    /// Writes down the new resume token before a client is given it, and with it that the session is held.
    async fn rotate_token(&mut self, attacher: &Attacher) -> Result<String, Refusal> {
        let token = entropy::secret();
        let (hash, shown) = (Presented::hash(&token).0, attacher.request.proof.as_ref().map(|shown| shown.0.as_str()));
        let mut change = self.change();
        change.record.resume_token = Some(match &self.record.resume_token {
            Some(known) => known.rotated(hash, shown),
            None => ResumeToken::first(hash),
        });
        self.commit(change).await?;
        Ok(token)
    }

    /// Writes down that the session is held. The grant must be true: where nodes share the store, another one may
    /// have had the session since this one stood still, and only a commit shows that. It also shows what Redis has lost, before
    /// the attacher gets its position.
    async fn mark_held(&mut self) -> Result<(), Refusal> {
        self.record.held = true;
        if self.shared.config.session.ownership == Ownership::Token {
            // That follows with the new token.
            return Ok(());
        }
        self.record.touched_ms = self.shared.logs.clock.now_ms();
        if !self.shared.logs.placement.is_shared() || mutant("grant-without-a-lease") {
            self.note_record();
            return Ok(());
        }
        let change = self.change();
        match self.commit(change).await {
            Err(refusal) if !self.writer.is_leased() => Err(refusal),
            // A store that is full keeps no client out.
            Err(_) => {
                self.note_record();
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    fn greeting(&self, attacher: &Attacher, extent: &Extent, resume: Resume, resume_token: Option<String>) -> Control {
        let mut facts = json!({
            "server_version": env!("CARGO_PKG_VERSION"),
            "capabilities": capabilities(),
            "epoch": extent.epoch,
            "last_seq": extent.last(),
            "session_ttl_hours": self.shared.config.session.ttl.as_secs_f64() / 3600.0,
            "agent_name": self.record.agent,
            "session_state": self.record.turn.state(),
        });
        if let Some(token) = resume_token {
            facts["resume_token"] = token.into();
        }
        if let Some(restored) = attacher.request.restored.as_deref() {
            if let (Value::Object(facts), Value::Object(more)) = (&mut facts, SessionActor::restored_facts(restored)) {
                facts.extend(more);
            }
            facts["resume"] = resume.facts(extent);
            let content = "Session restored successfully".into();
            return Control::new(names::STATE_RESTORED, Some(self.id.clone()), content, facts);
        }
        let content = if attacher.request.origin == AttachOrigin::Created {
            json!({ "session_id": self.id, "created_at": clock::rfc3339(self.record.created_ms) })
        } else {
            facts["reconnected"] = true.into();
            facts["resume"] = resume.facts(extent);
            Value::from("Session reconnected successfully")
        };
        Control::new(names::SESSION_CREATED, Some(self.id.clone()), content, facts)
    }
}

/// A rebuilt log is to its restorer as it was when it began. If its run was ended as lost, that is an event like any other
/// that comes afterwards, and not one that the client's position is behind.
fn as_restored(extent: Extent, restored: Option<&Restored>) -> Extent {
    match restored {
        Some(restored) if restored.source == RestoredFrom::Snapshot => {
            Extent { next: restored.last_seq.next(), ..extent }
        }
        _ => extent,
    }
}

/// The capabilities of this server, as clients get them.
pub fn capabilities() -> Value {
    json!([
        "reconnect",
        "replay",
        "observe",
        "take_over",
        "idempotent_messages",
        "confirmations",
        "plans",
        "authenticate",
        "signed_state",
        "checkpoints",
        "watch_task",
        "operations"
    ])
}
