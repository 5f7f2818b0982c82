//! The work that an agent of ours does for a task: what it says, on its way into the log.

use bowline_actor::{Process, RunEvent};
use bowline_api::{AgentError, Emission};
use bowline_protocol::{Draft, ErrorCode};
use serde_json::Value;
use tokio::task::JoinError;

use super::actor::TaskActor;
use super::command::TaskClose;

pub type TaskWork = Process<Emission, Result<Value, AgentError>>;

/// How a process of an agent ended that did not return.
pub fn died<T>(error: &JoinError) -> Result<T, AgentError> {
    let why = if error.is_panic() { "The agent crashed." } else { "The agent was stopped." };
    Err(AgentError::failed(why))
}

impl TaskActor {
    pub(super) async fn handle_work(&mut self, event: RunEvent<Emission, Result<Value, AgentError>>) {
        match event {
            RunEvent::Ended(Ok(result)) => self.end(TaskClose::Completed { result: Some(result), finish: None }).await,
            RunEvent::Ended(Err(error)) => self.end(error.into()).await,
            RunEvent::Emissions(emissions) => self.store_emissions(emissions).await,
        }
    }

    /// Stores what the work said. If the store cannot, the work waits; it does not die of it at once.
    async fn store_emissions(&mut self, emissions: Vec<Emission>) {
        let mut drafts: Vec<&Draft> = Vec::with_capacity(emissions.len());
        for emission in &emissions {
            match emission {
                Emission::Event(draft) | Emission::Partial(draft, _) => drafts.push(draft),
                Emission::Work(_) => {}
                Emission::Ask { .. } | Emission::Call { .. } | Emission::Operate { .. } | Emission::State(_) => {
                    let message =
                        "A background operation can neither ask, call functions, start another, nor save a state.";
                    return self.end(TaskClose::failed(ErrorCode::AgentFailed, message)).await;
                }
            }
        }
        let limit = self.shared.config.limits.event_bytes_max;
        if drafts.iter().any(|draft| draft.len_hint() > limit) {
            self.shared.metrics.limits_hit.inc("limits.event_bytes_max");
            let message = format!("It emitted more than {limit} bytes at once.");
            return self.end(TaskClose::failed(ErrorCode::AgentFailed, message)).await;
        }
        let stored = match self.refresh().await {
            Ok(()) => self.commit(drafts, Vec::new(), None).await,
            Err(refusal) => Err(refusal),
        };
        let Some(work) = self.work.as_deref_mut() else { return };
        let Err(refusal) = stored else { return work.unstick() };
        if !work.stick(emissions, self.shared.config.session.store_patience) {
            tracing::error!(task = %self.id, %refusal, "gave up a task: the store did not take its events in time");
            let message = "The store could not keep what it said, for too long.";
            self.end(TaskClose::failed(ErrorCode::AgentFailed, message)).await;
        }
    }

    pub(super) async fn retry_stuck(&mut self) {
        if let Some(work) = self.work.as_deref_mut() {
            let emissions = work.stuck_emissions();
            self.store_emissions(emissions).await;
        }
    }
}
