//! A client that sends a session's old messages once more, after everything else: each must be known still.

use std::time::Duration;

use bowline_protocol::frame::names;
use serde_json::{Value, json};

use super::{Clients, SharedSession, back_off, superseded_by};
use crate::dice::Dice;
use crate::wire::{Lost, SimCaller, Wire};

#[derive(Debug)]
pub struct RepeatingClient {
    caller: SimCaller,
    session: SharedSession,
    dice: Dice,
    /// What has not been answered yet: key and text.
    left: Vec<(String, String)>,
}

impl RepeatingClient {
    pub fn new(clients: &Clients, session: &SharedSession, who: &str, dice: Dice) -> RepeatingClient {
        let caller = clients.caller(who, session.owner());
        RepeatingClient { caller, session: session.clone(), dice, left: session.answered() }
    }

    /// Until each has been answered as one that came before.
    pub async fn run(mut self) {
        while !self.left.is_empty() {
            let _lost = self.once().await;
            back_off(&self.caller, &mut self.dice).await;
        }
    }

    async fn once(&mut self) -> Result<(), Lost> {
        let mut wire = self.caller.connect().await?;
        let content = json!({ "client_id": self.caller.who, "take_over": true });
        let frame = json!({ "event": names::RECONNECT, "session_id": self.session.id(), "content": content });
        wire.send(&frame).await?;
        let Some(greeting) = self.next(&mut wire, |frame| frame["event"] == names::SESSION_CREATED).await? else {
            return Ok(());
        };
        let session = greeting["session_id"].clone();
        while let Some((key, text)) = self.left.last().cloned() {
            let frame = json!({ "event": names::MESSAGE, "session_id": session, "message_id": key, "content": text });
            wire.send(&frame).await?;
            let is_known = |frame: &Value| {
                let facts = &frame["metadata"];
                facts["action"] == "duplicate_message" && facts["message_id"] == key.as_str()
            };
            // One that is taken again is never answered so, and the auditor finds it in the log twice.
            if self.next(&mut wire, is_known).await?.is_none() {
                return Ok(());
            }
            self.left.pop();
        }
        Ok(())
    }

    /// The frame that is waited for; none if something else says that it will not come on this connection.
    async fn next(&self, wire: &mut Wire, wanted: impl Fn(&Value) -> bool) -> Result<Option<Value>, Lost> {
        while let Some(frame) = wire.next_within(Duration::from_secs(5)).await? {
            if wanted(&frame) {
                return Ok(Some(frame));
            }
            if frame["seq"].is_null() && !frame["metadata"]["error_code"].is_null() {
                if let Some(id) = superseded_by(&frame) {
                    self.session.set_id(&id);
                }
                return Ok(None);
            }
        }
        Ok(None)
    }
}
