//! A client that holds a session: it sends messages until each has its answer, and comes back in every way there is.

mod judges;

use std::collections::VecDeque;
use std::time::Duration;

use bowline_protocol::event::names as events;
use bowline_protocol::frame::names;
use serde_json::{Value, json};

use super::job::Job;
use super::{Clients, SharedSession, back_off, superseded_by};
use crate::dice::Dice;
use crate::oracle::{Reader, Return};
use crate::wire::{Lost, SimCaller, Wire};

pub struct HoldingClient {
    clients: Clients,
    caller: SimCaller,
    session: SharedSession,
    dice: Dice,
    client_id: String,
    reader: Reader,
    jobs: Vec<Job>,
    /// The message whose run the events belong to that come now.
    running: Option<String>,
    is_accepted: bool,
    said: String,
    /// What it had seen when it asked for states that have not come.
    states_asked: VecDeque<(String, u64)>,
    /// It sends nothing new before.
    rests_until: u64,
    /// The last state that was exported: its number, its messages, and the state itself.
    state: Option<(u64, u64, Value)>,
    takes_over: bool,
    /// The session that it was attached to last.
    attached: Option<String>,
    /// The step of a question that is not known to be answered, and when it will answer.
    question: Option<Value>,
    answers_at: u64,
    /// Messages that have had their end.
    done: Vec<Job>,
    /// It goes on writing after it has lost the session.
    is_rude: bool,
    /// A run ended whose beginning it has not seen: perhaps its own.
    asks_again: bool,
    /// The log has lost something, so all that is left of it has to be read.
    reads_again: bool,
}

/// What becomes of the connection.
enum Next {
    GoesOn,
    /// Let go of it and come back.
    Again,
}

impl HoldingClient {
    pub fn new(clients: &Clients, session: &SharedSession, who: &str, mut dice: Dice) -> HoldingClient {
        let count = dice.between(2, 6);
        let jobs = (0..count).map(|n| Job::draw(&mut dice, &format!("{who}-{n}"))).collect();
        HoldingClient {
            clients: clients.clone(),
            caller: clients.caller(who, session.owner()),
            session: session.clone(),
            client_id: who.to_owned(),
            reader: Reader::new(who),
            dice,
            jobs,
            running: None,
            is_accepted: false,
            said: String::new(),
            states_asked: VecDeque::new(),
            rests_until: 0,
            state: None,
            takes_over: false,
            attached: None,
            question: None,
            answers_at: 0,
            done: Vec::new(),
            is_rude: false,
            asks_again: false,
            reads_again: false,
        }
    }

    /// The first device makes the session, the others wait for its name.
    pub async fn run(mut self, makes: bool) {
        while !self.jobs.is_empty() {
            if self.session.id().is_none() && !self.session.makes(self.who(), makes) {
                self.caller.pause(100).await;
                continue;
            }
            let _lost = Box::pin(self.once()).await;
            back_off(&self.caller, &mut self.dice).await;
        }
        self.session.holder_is_done();
    }

    fn who(&self) -> &str {
        &self.caller.who
    }

    /// One connection, until it is lost, let go, or all is done.
    async fn once(&mut self) -> Result<(), Lost> {
        let mut wire = self.caller.connect().await?;
        self.states_asked.clear();
        if self.session.id().is_none() && !self.session.makes(self.who(), false) {
            // It was lost while this one dialled, and another device makes it anew.
            return Ok(());
        }
        if self.reads_again {
            return Box::pin(self.read_again(&mut wire)).await;
        }
        if !Box::pin(self.attach(&mut wire)).await? || self.reads_again {
            return Ok(());
        }
        self.is_rude = self.dice.percent(30);
        let (mut sent_ms, mut cancelled) = (None, false);
        // Some connections are let go on purpose, in the middle of anything.
        let mut patience = if self.dice.percent(30) { self.dice.between(1, 60) } else { u64::MAX };
        while let Some(job) = self.jobs.first().cloned() {
            if self.session.id().is_none() {
                // Another device has found that the session is gone.
                return Ok(());
            }
            let now = self.clients.trace.now_ms();
            let rests = now < self.rests_until && !self.clients.is_quiet();
            let due = sent_ms.is_none_or(|then| now > then + 1500 && !self.is_accepted) && !rests;
            if due || std::mem::take(&mut self.asks_again) {
                self.send_message(&mut wire, &job).await?;
                sent_ms = Some(now);
            }
            if let (Some(after), Some(then), false) = (job.cancel_after_ms, sent_ms, cancelled)
                && self.is_accepted
                && now > then + after
            {
                let id = self.session.id();
                wire.send(&json!({ "event": names::CANCEL, "session_id": id })).await?;
                self.session.note_cancel();
                cancelled = true;
            }
            if self.question.is_some() && (now >= self.answers_at || self.clients.is_quiet()) {
                self.answers_at = now + 1000;
                self.reply(&mut wire).await?;
            }
            self.do_something_else(&mut wire).await?;
            let think = Duration::from_millis(self.dice.between(20, 300));
            let Some(frame) = wire.next_within(think).await? else { continue };
            let before = self.jobs.len();
            if matches!(self.handle(&mut wire, &frame).await?, Next::Again) {
                return Ok(());
            }
            if self.jobs.len() < before {
                (sent_ms, cancelled) = (None, false);
            }
            patience = patience.saturating_sub(1);
            if patience == 0 && !self.clients.is_quiet() {
                self.clients.trace.note(self.who(), "lets go of the connection");
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads everything that is left, as one who only looks on: to such a one the server sends it, of whichever epoch.
    async fn read_again(&mut self, wire: &mut Wire) -> Result<(), Lost> {
        let seen = self.clients.oracle.seen();
        let content = json!({ "mode": "observe" });
        wire.send(&json!({ "event": names::RECONNECT, "session_id": self.session.id(), "content": content })).await?;
        loop {
            let frame = wire.next().await?;
            let name = frame["event"].as_str().unwrap_or_default();
            if frame["seq"].is_u64() {
                self.reader.event(&self.clients.oracle, &frame);
                self.handle_event(name, &frame);
                continue;
            }
            match name {
                names::SESSION_CREATED => {
                    self.reader.greeted(&self.clients.oracle, &frame, &Return::Everything, &seen);
                    (self.running, self.question, self.is_accepted) = (None, None, false);
                    self.said.clear();
                }
                names::NOTICE => {
                    self.reader.notice(&self.clients.oracle, &frame);
                    if frame["metadata"]["action"] == "replay" {
                        self.reads_again = false;
                        return Ok(());
                    }
                }
                names::HEARTBEAT => {}
                _ => {
                    self.refused(&frame);
                    return Ok(());
                }
            }
        }
    }

    async fn send_message(&mut self, wire: &mut Wire, job: &Job) -> Result<(), Lost> {
        let id = self.session.id().unwrap_or_default();
        self.clients.oracle.sent(&id, wire.link, &job.tag);
        let frame = json!({ "event": names::MESSAGE, "session_id": id, "message_id": job.tag, "content": job.text });
        wire.send(&frame).await
    }

    async fn reply(&self, wire: &mut Wire) -> Result<(), Lost> {
        let (id, step) = (self.session.id(), &self.question);
        let content = json!({ "confirmed": true });
        wire.send(&json!({ "event": names::RESPONSE, "session_id": id, "step_id": step, "content": content })).await
    }

    /// Acks, and wishes for a state.
    async fn do_something_else(&mut self, wire: &mut Wire) -> Result<(), Lost> {
        if self.dice.percent(15)
            && let Some((epoch, seq)) = self.reader.at.clone().filter(|(_, seq)| *seq > 0)
        {
            self.session.note_ack(seq);
            let cursor = format!("{epoch}-{seq}");
            let id = self.session.id();
            wire.send(&json!({ "event": names::ACK, "session_id": id, "content": { "last_event_id": cursor } }))
                .await?;
        }
        if !self.done.is_empty() && self.dice.percent(4) {
            // A copy of an old message comes late, as from a queue that forgot to forget it.
            let old = self.done[self.dice.below(self.done.len() as u64) as usize].clone();
            self.send_message(wire, &old).await?;
        }
        if self.dice.percent(6) {
            self.states_asked.extend(self.reader.at.clone());
            let id = self.session.id();
            wire.send(&json!({ "event": names::REQUEST_STATE, "session_id": id })).await?;
        }
        Ok(())
    }

    /// Makes the session, or comes back to it. False if it was refused.
    async fn attach(&mut self, wire: &mut Wire) -> Result<bool, Lost> {
        let claimed_ms = self.clients.trace.now_ms();
        let (frame, how) = self.approach();
        let seen = self.clients.oracle.seen();
        wire.send(&frame).await?;
        loop {
            let answer = wire.next().await?;
            match answer["event"].as_str().unwrap_or_default() {
                names::SESSION_CREATED | names::STATE_RESTORED => {
                    let id = answer["session_id"].as_str().unwrap_or_default().to_owned();
                    self.clients.oracle.owns(self.session.owner(), &id);
                    let is_restored = answer["event"] == names::STATE_RESTORED;
                    if is_restored {
                        self.judge_restore(&answer);
                    }
                    self.session.set_id(&id);
                    let how = match how {
                        // Another device may have acknowledged more while this one waited, or have lost the session since.
                        Return::Acked(asked) => Return::Acked(self.session.acked().max(asked)),
                        how => how,
                    };
                    let is_elsewhere = self.attached.replace(id.clone()).is_some_and(|before| before != id);
                    if is_elsewhere {
                        // A session that was made anew does not know them, and would take copies for new messages.
                        self.done.clear();
                    }
                    let verdict = answer["metadata"]["resume"]["verdict"].as_str().unwrap_or_default();
                    if is_elsewhere || ["other_epoch", "ahead_of_log"].contains(&verdict) {
                        // What was accepted may be lost; sent again, it is accepted once.
                        self.is_accepted = false;
                    }
                    // What it knows of the log may be lost: its question may be open again, or it may never have seen one.
                    self.reads_again |= ["other_epoch", "ahead_of_log"].contains(&verdict);
                    let was = self.reader.at.clone();
                    self.reader.greeted(&self.clients.oracle, &answer, &how, &seen);
                    if self.reader.at != was {
                        // It reads on elsewhere, perhaps in the middle of a run.
                        (self.running, self.said) = (None, String::new());
                    }
                    self.clients.oracle.granted(&id, wire.link, claimed_ms);
                    self.takes_over = false;
                    return Ok(true);
                }
                names::NOTICE | names::HEARTBEAT => {}
                _ => return Ok(self.refused(&answer)),
            }
        }
    }

    fn approach(&mut self) -> (Value, Return) {
        let Some(id) = self.session.id() else {
            let content = json!({ "client_id": self.client_id });
            return (json!({ "event": names::CREATE_SESSION, "content": content }), Return::New);
        };
        let mut content = json!({ "client_id": self.client_id });
        if self.takes_over || self.dice.percent(20) {
            content["take_over"] = true.into();
        }
        let roll = self.dice.below(10);
        // A session that was rebuilt has another past than its auditor could judge.
        if let (0..2, Some((seq, _, state)), false) = (roll, &self.state, self.clients.oracle.has_losses()) {
            let seq = *seq;
            // Without a cursor it would read on behind its state, and must not be in the middle of something.
            if let Some((epoch, at)) = self.reader.at.clone()
                && (self.is_accepted || self.running.is_some() || self.question.is_some() || roll == 0)
            {
                content["last_event_id"] = format!("{epoch}-{at}").into();
                let frame = json!({ "event": names::RECONNECT_WITH_STATE, "signed_state": state, "content": content });
                return (frame, Return::Cursor(epoch, at));
            }
            let frame = json!({ "event": names::RECONNECT_WITH_STATE, "signed_state": state, "content": content });
            return (frame, Return::State(seq));
        }
        let how = match self.reader.at.clone() {
            Some((epoch, seq)) if roll < 8 => {
                content["last_event_id"] = format!("{epoch}-{seq}").into();
                Return::Cursor(epoch, seq)
            }
            // A device that has never held the session begins where the last holder's acks are.
            Some(_) | None => Return::Acked(self.session.acked()),
        };
        (json!({ "event": names::RECONNECT, "session_id": id, "content": content }), how)
    }

    /// Learns from a refusal. False: come back later.
    fn refused(&mut self, answer: &Value) -> bool {
        let code = answer["metadata"]["error_code"].as_str().unwrap_or_default();
        match code {
            "SESSION_ALREADY_ACTIVE" => self.takes_over = true,
            "SESSION_INACTIVE" => match superseded_by(answer) {
                Some(id) => self.goes_on_as(&id),
                None => self.clients.oracle.violate(self.who(), format_args!("its session is over: {answer}")),
            },
            "SERVER_DRAINING" | "STORE_UNAVAILABLE" | "RATE_LIMITED" => {}
            "SESSION_NOT_FOUND" if self.is_gone(answer["session_id"].as_str()) => {}
            // A clock that was set back leaves states from its future.
            "STATE_EXPIRED" | "STATE_STALE" => self.state = None,
            _ => self.clients.oracle.violate(self.who(), format_args!("was refused its own session: {answer}")),
        }
        false
    }

    /// Whether its session may be gone with what was lost; then it begins anew.
    fn is_gone(&mut self, named: Option<&str>) -> bool {
        let Some(id) = self.session.id() else { return true };
        if named.is_some_and(|named| named != id && self.clients.oracle.may_be_gone(named)) {
            // Another device has made it anew meanwhile, or knows another name of it.
            return true;
        }
        if !self.clients.oracle.may_be_gone(&id) {
            return false;
        }
        self.clients.trace.note(self.who(), "its session is gone, and it begins anew");
        self.session.lose(&id);
        self.reader.at = None;
        (self.running, self.question, self.state, self.is_accepted) = (None, None, None, false);
        self.said.clear();
        self.reads_again = false;
        true
    }

    async fn handle(&mut self, wire: &mut Wire, frame: &Value) -> Result<Next, Lost> {
        if let Some(id) = frame["session_id"].as_str() {
            self.clients.oracle.shown(self.who(), self.session.owner(), id);
        }
        let name = frame["event"].as_str().unwrap_or_default();
        if frame["seq"].is_u64() {
            self.reader.event(&self.clients.oracle, frame);
            self.handle_event(name, frame);
            return Ok(Next::GoesOn);
        }
        match name {
            names::NOTICE => {
                let facts = &frame["metadata"];
                self.reader.notice(&self.clients.oracle, frame);
                if facts["code"] == "REPLAY_GAP" {
                    // The beginning of another run may be among what is gone.
                    (self.running, self.said) = (None, String::new());
                }
                if facts["action"] == "duplicate_message" {
                    self.handle_duplicate(facts);
                } else if facts["code"] == "SESSION_TAKEN_OVER" {
                    self.takes_over = true;
                    if let (true, false, Some(job)) = (self.is_rude, self.is_accepted, self.jobs.first().cloned()) {
                        self.send_message(wire, &job).await?;
                    }
                    self.caller.pause(self.dice.between(300, 2500)).await;
                    return Ok(Next::Again);
                }
            }
            names::STATE_EXPORTED => self.keep_state(frame),
            events::SESSION_END => {
                if let Some(id) = superseded_by(frame) {
                    self.goes_on_as(&id);
                }
                return Ok(Next::Again);
            }
            names::SYSTEM_ERROR | events::ERROR => return self.handle_refusal(frame).await,
            _ => {}
        }
        Ok(Next::GoesOn)
    }

    /// Its session has another name from now on, which may be all that it ever hears of that name.
    fn goes_on_as(&self, id: &str) {
        self.clients.oracle.owns(self.session.owner(), id);
        self.session.set_id(id);
    }

    async fn handle_refusal(&mut self, frame: &Value) -> Result<Next, Lost> {
        let code = frame["metadata"]["error_code"].as_str().unwrap_or_default();
        // What it asked again, since it had not seen the beginning of a run, is not answered yet.
        self.asks_again |= code == "STORE_UNAVAILABLE" && self.is_accepted && self.running.is_none();
        match code {
            "AGENT_BUSY" | "STORE_UNAVAILABLE" | "SERVER_DRAINING" | "RATE_LIMITED" | "UNKNOWN_STEP" => {
                Ok(Next::GoesOn)
            }
            "SESSION_READ_ONLY" | "CURSOR_AHEAD" => Ok(Next::Again),
            "SESSION_INACTIVE" | "SESSION_NOT_FOUND" => {
                self.refused(frame);
                Ok(Next::Again)
            }
            _ => {
                self.clients.oracle.violate(self.who(), format_args!("was refused: {frame}"));
                Ok(Next::Again)
            }
        }
    }

    fn handle_event(&mut self, name: &str, frame: &Value) {
        let first = self.jobs.first().map(|job| job.tag.clone());
        let own = |tag: &str| first.as_deref() == Some(tag);
        match name {
            events::USER_MESSAGE => {
                let tag = frame["metadata"]["message_id"].as_str().unwrap_or_default().to_owned();
                self.is_accepted |= own(&tag);
                (self.running, self.said) = (Some(tag), String::new());
            }
            events::PARTIAL_ANSWER => self.said.push_str(frame["content"].as_str().unwrap_or_default()),
            events::USER_CONFIRM => {
                self.question = Some(frame["step_id"].clone());
                // Some people think for a while, and the server may die meanwhile.
                let thinks = if self.dice.percent(50) { self.dice.between(100, 3000) } else { 0 };
                self.answers_at = self.clients.trace.now_ms() + thinks;
            }
            events::USER_RESPONSE => self.question = None,
            _ if events::TERMINAL.contains(&name) => {
                let tag = self.running.take();
                let was_asked = self.question.take().is_some();
                self.asks_again = tag.is_none();
                if tag.as_deref().is_some_and(own) {
                    self.judge_answer(name, frame, was_asked);
                    self.finish_job();
                }
            }
            _ => {}
        }
    }

    /// The first one's events are the answer; if its run is over, this client has them or was shown them before.
    fn handle_duplicate(&mut self, facts: &Value) {
        let tag = facts["message_id"].as_str().unwrap_or_default();
        if self.jobs.first().is_some_and(|job| job.tag == tag) {
            self.is_accepted = true;
            // Only what stands before the reader's own place is behind it for good.
            if facts["last_seq"].as_u64().is_some_and(|last| last <= self.reader.seq()) {
                self.finish_job();
            }
        }
    }

    fn finish_job(&mut self) {
        let job = self.jobs.remove(0);
        self.session.note_answered(&job.tag, &job.text);
        self.done.push(job);
        // Its question is over with it, also where the answer to that was never seen.
        (self.is_accepted, self.running, self.question) = (false, None, None);
        self.said.clear();
        // With pauses between the messages, faults find each of them at work.
        let pause = if self.dice.percent(40) { self.dice.between(100, 2500) } else { 0 };
        self.rests_until = self.clients.trace.now_ms() + pause;
    }
}

impl std::fmt::Debug for HoldingClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Holder({})", self.caller.who)
    }
}

#[cfg(test)]
#[path = "holder_tests.rs"]
mod tests;
