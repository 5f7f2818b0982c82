//! A client that only looks on, and one that looks once at the end: whether all that was ever seen is still there.

use std::time::Duration;

use bowline_protocol::event::names as events;
use bowline_protocol::frame::names;
use serde_json::{Value, json};

use super::{Clients, SharedSession, back_off, superseded_by};
use crate::dice::Dice;
use crate::oracle::{Reader, Return};
use crate::wire::{Lost, Wire};

#[derive(Debug)]
pub struct ObservingClient {
    clients: Clients,
    session: SharedSession,
    who: String,
    reader: Reader,
    dice: Dice,
    /// The session was lost, as it may be.
    is_gone: bool,
}

impl ObservingClient {
    pub fn new(clients: &Clients, session: &SharedSession, who: &str, dice: Dice) -> ObservingClient {
        let (clients, session, who) = (clients.clone(), session.clone(), who.to_owned());
        ObservingClient { clients, session, reader: Reader::new(who.clone()), who, dice, is_gone: false }
    }

    /// Looks on, with breaks, until nothing more will be written and all of it was seen.
    pub async fn run(mut self) {
        let caller = self.clients.caller(&self.who, self.session.owner());
        loop {
            if self.session.id().is_some()
                && let Ok(true) = Box::pin(self.once(&caller)).await
            {
                return;
            }
            // Whether this one or another has found that it is gone, nobody makes it anew any more.
            if (self.is_gone || self.session.id().is_none()) && self.session.is_over() {
                return;
            }
            back_off(&caller, &mut self.dice).await;
        }
    }

    /// Reads everything from the start; returns the epochs that there are, and the last number of each.
    pub async fn audit(mut self) -> Vec<(String, u64)> {
        let caller = self.clients.caller(&self.who, self.session.owner());
        loop {
            self.reader.at = None;
            let mut epochs: Vec<(String, u64)> = Vec::new();
            let read: Result<bool, Lost> = async {
                let mut wire = caller.connect().await?;
                if !self.attach(&mut wire).await? {
                    return Ok(false);
                }
                let mut is_owed = true;
                loop {
                    epochs.extend(self.reader.at.clone());
                    epochs.dedup_by(|next, kept| {
                        let is_same = next.0 == kept.0;
                        kept.1 = if is_same { next.1 } else { kept.1 };
                        is_same
                    });
                    // A run whose end Redis has lost is ended when somebody comes, and that may be this one.
                    let Some(frame) = wire.next_within(Duration::from_millis(700)).await? else {
                        if is_owed {
                            continue;
                        }
                        return Ok(true);
                    };
                    self.handle(&frame);
                    is_owed &= frame["metadata"]["action"] != "replay";
                }
            }
            .await;
            if let Ok(true) = read {
                // The greeting names the epoch that the log is in now, and events may follow of those before.
                let first = epochs.first().map_or(0, |(_, seq)| *seq);
                if epochs.len() > 1 && first == 0 && !self.reader.is_in(&epochs[0].0) {
                    epochs.remove(0);
                }
                return epochs;
            }
            if self.is_gone {
                return Vec::new();
            }
            back_off(&caller, &mut self.dice).await;
        }
    }

    async fn once(&mut self, caller: &crate::wire::SimCaller) -> Result<bool, Lost> {
        let mut wire = caller.connect().await?;
        if self.session.id().is_none() || !self.attach(&mut wire).await? {
            return Ok(false);
        }
        let mut patience = if self.dice.percent(50) { self.dice.between(1, 80) } else { u64::MAX };
        let mut is_owed = true;
        loop {
            let over = self.session.is_over();
            match wire.next_within(Duration::from_millis(700)).await? {
                // Nothing came for a while after the last word was written.
                None if over && !is_owed => return Ok(true),
                None => {}
                Some(frame) => {
                    if frame["metadata"]["action"] == "replay" {
                        is_owed = false;
                    }
                    if frame["event"] == events::SESSION_END && frame["seq"].is_null() {
                        if let Some(id) = superseded_by(&frame) {
                            self.goes_on_as(&id);
                        }
                        return Ok(false);
                    }
                    if frame["metadata"]["error_code"] == "SESSION_NOT_FOUND" && frame["seq"].is_null() {
                        self.handle_not_found(frame["session_id"].as_str(), &frame);
                        return Ok(false);
                    }
                    self.handle(&frame);
                    self.ack(&mut wire).await?;
                    if self.dice.percent(2) && !self.clients.is_quiet() {
                        // It reads nothing for a while, and the server has to wait for it, or to let go of what it lacks.
                        caller.pause(self.dice.between(200, 2500)).await;
                    }
                }
            }
            patience = patience.saturating_sub(1);
            if patience == 0 && !self.clients.is_quiet() {
                return Ok(false);
            }
        }
    }

    /// An observer may say what it has; that moves nothing for the holder.
    async fn ack(&mut self, wire: &mut Wire) -> Result<(), Lost> {
        let Some((epoch, seq)) = self.reader.at.clone().filter(|(_, seq)| *seq > 0) else { return Ok(()) };
        if !self.dice.percent(10) {
            return Ok(());
        }
        let content = json!({ "last_event_id": format!("{epoch}-{seq}") });
        wire.send(&json!({ "event": names::ACK, "session_id": self.session.id(), "content": content })).await
    }

    async fn attach(&mut self, wire: &mut Wire) -> Result<bool, Lost> {
        let mut content = json!({ "mode": "observe" });
        let how = match self.reader.at.clone() {
            Some((epoch, seq)) if self.dice.percent(85) => {
                content["last_event_id"] = format!("{epoch}-{seq}").into();
                Return::Cursor(epoch, seq)
            }
            _ => Return::Everything,
        };
        let id = self.session.id();
        self.is_gone = false;
        let seen = self.clients.oracle.seen();
        wire.send(&json!({ "event": names::RECONNECT, "session_id": id, "content": content })).await?;
        loop {
            let answer = wire.next().await?;
            match answer["event"].as_str().unwrap_or_default() {
                names::SESSION_CREATED => {
                    self.reader.greeted(&self.clients.oracle, &answer, &how, &seen);
                    return Ok(true);
                }
                names::NOTICE | names::HEARTBEAT => {}
                _ => {
                    let code = answer["metadata"]["error_code"].as_str().unwrap_or_default();
                    match (code, superseded_by(&answer)) {
                        ("SESSION_INACTIVE", Some(id)) => self.goes_on_as(&id),
                        ("SERVER_DRAINING" | "STORE_UNAVAILABLE" | "RATE_LIMITED", _) => {}
                        ("SESSION_NOT_FOUND", _) => self.handle_not_found(id.as_deref(), &answer),
                        _ => self.clients.oracle.violate(&self.who, format_args!("may not look: {answer}")),
                    }
                    return Ok(false);
                }
            }
        }
    }

    /// The session has another name from now on, which may be all that it ever hears of that name.
    fn goes_on_as(&self, id: &str) {
        self.clients.oracle.owns(self.session.owner(), id);
        self.session.set_id(id);
    }

    /// Its session may be gone with what was lost; another may take its place.
    fn handle_not_found(&mut self, session: Option<&str>, answer: &Value) {
        if session.is_none_or(|id| self.clients.oracle.may_be_gone(id)) {
            self.reader.at = None;
            let is_newest = self.session.id().as_deref() == session;
            session.filter(|_| is_newest).into_iter().for_each(|id| self.session.lose(id));
            self.is_gone = self.session.id().is_none();
        } else {
            self.clients.oracle.violate(&self.who, format_args!("may not look: {answer}"));
        }
    }

    fn handle(&mut self, frame: &Value) {
        if let Some(id) = frame["session_id"].as_str() {
            self.clients.oracle.shown(&self.who, self.session.owner(), id);
        }
        if frame["seq"].is_u64() {
            self.reader.event(&self.clients.oracle, frame);
        } else if frame["event"] == names::NOTICE {
            self.reader.notice(&self.clients.oracle, frame);
        }
    }
}
