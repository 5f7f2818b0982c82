//! What is due without a request: questions that waited too long, results and sessions whose time is over, and work
//! that was left lying.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bowline_store::{LogKind, StoreError};

use super::Hub;
use crate::config::options::Options;
use crate::relay::task;
use crate::tasks::Orphans;

pub(super) async fn for_ever(hub: Weak<Hub>) {
    loop {
        let shortest = |options: &Options| options.session_ttl.min(options.ask_timeout).min(options.task_result_ttl);
        let Some(every) = hub.upgrade().map(|hub| shortest(&hub.options) / 4) else { return };
        tokio::time::sleep(every.clamp(Duration::from_millis(100), Duration::from_secs(30))).await;
        let Some(hub) = hub.upgrade() else { return };
        hub.sweep().await;
    }
}

impl Hub {
    /// What fails is tried again with the next sweep, and does not keep the rest from being done.
    async fn sweep(self: &Arc<Self>) {
        self.suspended.sweep();
        self.settle_lost_sessions().await;
        for session in self.sessions.awake() {
            if let Err(error) = session.expire(self.options.ask_timeout).await {
                tracing::warn!(session = %session.id, %error, "questions could not be taken back");
            }
        }
        if let Err(error) = self.sweep_tasks().await {
            tracing::warn!(%error, "the hub's tasks could not be swept");
        }
        if let Err(error) = self.sweep_sessions().await {
            tracing::warn!(%error, "the hub's sessions could not be swept");
        }
    }

    async fn sweep_tasks(self: &Arc<Self>) -> Result<(), StoreError> {
        for (id, owner, record) in self.tasks.expire(self.options.task_result_ttl).await? {
            task::tell(self, "task_expired", &id, &owner, &record).await;
        }
        task::take_up(self, Orphans::Dropped).await
    }

    async fn sweep_sessions(&self) -> Result<(), StoreError> {
        let ttl_ms = self.options.session_ttl.as_millis() as u64;
        for (log, stored) in self.store.list(LogKind::Mcp, None).await? {
            let awake = self.sessions.get(&log);
            let touched = awake.as_ref().map_or(stored.touched_ms, |session| session.touched_ms());
            let age_ms = self.options.clock.now_ms().saturating_sub(touched);
            if let Some(session) = awake.filter(|session| session.is_read()) {
                // A client that only listens uses its session too. Written seldom, and long before other nodes would
                // take it for quiet.
                if age_ms >= ttl_ms / 4 {
                    session.touch_now().await;
                }
                continue;
            }
            if age_ms < ttl_ms {
                continue;
            }
            match self.sessions.find(&stored.owner, log.as_str()).await {
                Ok(Some(session)) => self.end_session(&session).await,
                Ok(None) => tracing::warn!(session = %log, "a session of the hub that has expired cannot be read"),
                // The node that has it ends it.
                Err(StoreError::Held(_)) => {}
                Err(error) => tracing::warn!(session = %log, %error, "a session that has expired could not be ended"),
            }
        }
        Ok(())
    }
}
