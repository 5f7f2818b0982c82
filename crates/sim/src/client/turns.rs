//! A client that knows HTTP alone: it starts turns, reads them as server-sent events, and reads on where it was cut.

use serde_json::{Value, json};

use super::{Clients, SharedSession, back_off};
use crate::agent::answer;
use crate::dice::Dice;
use crate::wire::{Lost, SimCaller, SseReader};

/// Makes a session, and has a few turns in it.
pub async fn converse(clients: Clients, shared: SharedSession, who: String, mut dice: Dice) {
    let caller = clients.caller(&who, shared.owner());
    let session = loop {
        match Box::pin(caller.request("POST", "/api/chat/sessions", &[], Some(&json!({})))).await {
            Ok((201, made)) => break made["id"].as_str().unwrap_or_default().to_owned(),
            Ok((429 | 503, _)) | Err(Lost) => {}
            Ok((status, answer)) => clients.oracle.violate(&who, format_args!("no session: {status} {answer}")),
        }
        back_off(&caller, &mut dice).await;
    };
    clients.oracle.owns(shared.owner(), &session);
    shared.set_id(&session);
    let mut may_come_late = false;
    for n in 0..dice.between(1, 4) {
        let (count, pause) = (dice.between(1, 30), [0, 5, 30][dice.below(3) as usize]);
        let text = format!("say {who}-{n} {count} {pause}");
        let mut turn = Turn {
            clients: &clients,
            session: &session,
            tag: format!("{who}-{n}"),
            text,
            task: None,
            cursor: None,
            heard: String::new(),
            ends: Vec::new(),
            cancels: dice.percent(25),
            was_cancelled: may_come_late,
            is_cancel_open: false,
            is_stopped: false,
            has_gap: false,
        };
        while !matches!(Box::pin(turn.once(&caller, &mut dice)).await, Ok(true)) {
            back_off(&caller, &mut dice).await;
        }
        may_come_late |= turn.is_cancel_open;
    }
}

struct Turn<'a> {
    clients: &'a Clients,
    session: &'a str,
    tag: String,
    text: String,
    task: Option<String>,
    cursor: Option<String>,
    heard: String,
    /// How it was said to have ended.
    ends: Vec<String>,
    /// It means to cancel it, and has not.
    cancels: bool,
    /// A cancel was sent, for this turn or in doubt for one before.
    was_cancelled: bool,
    /// A cancel was sent, and its answer did not say whether it was done. It is of the session and names no turn, so it may stop
    /// one that is begun later.
    is_cancel_open: bool,
    /// The server said that it was stopped.
    is_stopped: bool,
    has_gap: bool,
}

impl Turn<'_> {
    /// One request that streams; true when the turn is over.
    async fn once(&mut self, caller: &SimCaller, dice: &mut Dice) -> Result<bool, Lost> {
        if self.task.is_some() && self.cancels {
            (self.was_cancelled, self.is_cancel_open) = (true, true);
            let path = format!("/api/chat/sessions/{}/cancel", self.session);
            let (status, answer) = caller.request("POST", &path, &[], Some(&json!({}))).await?;
            (self.cancels, self.is_cancel_open) = (false, status >= 500);
            self.is_stopped |= answer["cancelled"] == true;
        }
        let answer = match (self.task.clone(), self.cursor.clone()) {
            (Some(task), Some(cursor)) if dice.percent(80) => {
                let path = format!("/api/chat/tasks/{task}/stream");
                caller.begin("GET", &path, &[("last-event-id", cursor)], None).await?
            }
            _ => {
                (self.cursor, self.heard) = (None, String::new());
                self.ends.clear();
                let path = format!("/api/chat/sessions/{}/stream", self.session);
                let body = json!({ "message": self.text, "message_id": self.tag });
                caller.begin("POST", &path, &[], Some(&body)).await?
            }
        };
        match answer.status {
            200 => {}
            // It has everything, and the turn is over.
            204 if self.cursor.is_some() => {
                self.judge(caller);
                return Ok(true);
            }
            409 | 429 | 503 => return Ok(false),
            status => {
                self.clients.oracle.violate(&caller.who, format_args!("{} was answered {status}", self.text));
                return Ok(false);
            }
        }
        if let Some(task) = answer.header("x-workflow-run-id") {
            let known = self.task.get_or_insert_with(|| task.to_owned());
            if known != task {
                self.clients.oracle.violate(&caller.who, format_args!("{} is {known} and {task}", self.tag));
            }
        }
        let mut stream = SseReader::new(answer);
        // A turn that it means to cancel it leaves for that.
        let leaves = self.cancels || dice.percent(40);
        let mut patience = if leaves { dice.between(1, 25) } else { u64::MAX };
        while let Some((cursor, data)) = stream.next().await? {
            self.clients.trace.note(&caller.who, format_args!("← {} {data}", cursor.as_deref().unwrap_or("-")));
            if data == "[DONE]" {
                self.judge(caller);
                return Ok(true);
            }
            let chunk: Value = serde_json::from_str(&data)?;
            match chunk["type"].as_str().unwrap_or_default() {
                "text-delta" => {
                    let delta = chunk["delta"].as_str().unwrap_or_default();
                    // Where events are let go, the whole answer is told without a place to one who may lack some of it.
                    let is_whole = cursor.is_none() && !self.clients.oracle.promises().keeps_all;
                    if is_whole && delta == crate::agent::answer(&self.text) {
                        self.heard.clear();
                    }
                    self.heard.push_str(delta);
                }
                kind @ ("finish" | "abort" | "error") => self.ends.push(kind.to_owned()),
                "data-gap" => {
                    if self.clients.oracle.has_no_gaps() {
                        let what = format_args!("was told of a gap where all is kept: {data}");
                        self.clients.oracle.violate(&caller.who, what);
                    }
                    self.has_gap = true;
                }
                _ => {}
            }
            if cursor.is_some() {
                self.cursor = cursor;
            }
            patience = patience.saturating_sub(1);
            if patience == 0 && !self.clients.is_quiet() {
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn judge(&self, caller: &SimCaller) {
        let (expected, heard, ends) = (answer(&self.text), &self.heard, &self.ends);
        // What was stopped while the store was away is written down later, and a crash may come before.
        let is_stopped = self.is_stopped && !self.clients.oracle.store_failed();
        let fits = match ends.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["finish"] | ["error", "finish"] if is_stopped => false,
            ["finish"] => *heard == expected,
            ["error", "finish"] => expected.starts_with(heard.as_str()),
            ["abort"] => expected.starts_with(heard.as_str()) && self.was_cancelled,
            // What it lacks it had been told before its last position.
            [] | ["error"] => expected.starts_with(heard.as_str()),
            _ => false,
        };
        if !fits && !self.has_gap {
            let oracle = &self.clients.oracle;
            oracle.violate(&caller.who, format_args!("{} was {heard:?}, and ended with {ends:?}", self.text));
        }
    }
}
