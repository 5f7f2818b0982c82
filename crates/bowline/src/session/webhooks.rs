//! What a session owes to webhooks: noted in the commit that begins a response, and deleted once it was delivered.

use std::fmt;
use std::sync::Arc;

use bowline_protocol::{LogId, Refusal, Seq};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::actor::{PendingChange, SessionActor};
use super::command::CommandResult;
use super::record::keys;
use super::{CommandOutcome, SessionRequest};

/// Posts to webhooks how turns ended.
pub trait Announcer: fmt::Debug + Send + Sync + 'static {
    /// Posts it once it has ended, as often as it takes. `delivered` runs when that is done, and never if this process ends before.
    fn post(self: Arc<Self>, owed: OwedEnd, delivered: BoxFuture<'static, ()>);
}

/// The end of a turn, or of what follows a question of it, that is to be posted.
#[derive(Clone, Debug)]
pub struct OwedEnd {
    pub log: LogId,
    pub turn: Seq,
    pub question: Option<Seq>,
    /// The item beside the log that says so.
    pub key: String,
    pub agent: String,
}

/// The response whose end is owed, as it is kept beside the log.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Owed {
    pub turn: Seq,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<Seq>,
}

impl Owed {
    fn key(self) -> String {
        keys::webhook(self.turn, self.question)
    }
}

impl SessionActor {
    /// Notes that the end of a response is to be posted.
    pub(super) fn owe_webhook(&self, change: &mut PendingChange, turn: Seq, question: Option<Seq>) -> Option<Owed> {
        let max = self.shared.config.webhooks.as_ref()?.owed_per_session_max;
        // A receiver that is away for long costs no more than this.
        if change.record.webhooks >= max {
            self.shared.metrics.limits_hit.inc("webhooks.owed_per_session_max");
            return None;
        }
        let owed = Owed { turn, question };
        change.put(owed.key(), &owed);
        change.record.webhooks += 1;
        Some(owed)
    }

    /// The same for what follows the answer to the question, or the outputs of the calls, that this event is.
    pub(super) fn owe_answer(&self, change: &mut PendingChange, announce: Option<Seq>) -> Option<Owed> {
        let turn = self.record.turn.active()?.started;
        self.owe_webhook(change, turn, Some(announce?))
    }

    /// Has it posted; for that the session need not stay awake.
    pub(super) fn post_webhook(&self, owed: Option<Owed>) {
        let (Some(owed), Some(webhooks)) = (owed, &self.shared.webhooks) else { return };
        let Owed { turn, question } = owed;
        let end = OwedEnd { log: self.log.clone(), turn, question, key: owed.key(), agent: self.record.agent.clone() };
        let (sessions, session, owner) = (Arc::downgrade(&self.shared), self.id.clone(), self.owner.clone());
        let delivered = async move {
            let Some(sessions) = sessions.upgrade() else { return };
            let struck = match sessions.living(&session, &owner).await {
                Ok(Some(session)) => {
                    sessions.ask(&session, &owner, None, SessionRequest::WebhookDelivered(owed)).await.map(drop)
                }
                living => living.map(drop),
            };
            if let Err(refusal) = struck {
                tracing::debug!(%session, %refusal, "a webhook that was delivered may be delivered again");
            }
        };
        webhooks.clone().post(end, Box::pin(delivered));
    }

    /// Has everything posted that an earlier process owed.
    pub(super) async fn post_owed_webhooks(&self) -> Result<(), Refusal> {
        if self.record.webhooks == 0 || self.shared.webhooks.is_none() {
            return Ok(());
        }
        let items = self.shared.logs.store.items(&self.log, keys::WEBHOOKS).await;
        let items = items.map_err(|error| crate::refusals::of_store(&error))?;
        let owed = items.iter().filter_map(|(_, bytes)| serde_json::from_slice::<Owed>(bytes).ok());
        owed.for_each(|owed| self.post_webhook(Some(owed)));
        Ok(())
    }

    /// It was delivered, and is owed no more.
    pub(super) async fn webhook_delivered(&mut self, owed: Owed) -> CommandResult {
        if self.certain::<Owed>(&owed.key()).await?.is_some() {
            let mut change = self.change();
            change.delete(owed.key());
            change.record.webhooks = change.record.webhooks.saturating_sub(1);
            self.commit(change).await?;
        }
        Ok(CommandOutcome::Done)
    }
}
