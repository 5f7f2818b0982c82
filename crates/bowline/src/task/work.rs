//! The work that an agent of ours does for a task: its process, what it says, and what waits to be stored.

use std::time::{Duration, Instant};

use bowline_protocol::{Draft, ErrorCode};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::actor::{RETRY_EVERY, TaskActor};
use super::command::Ending;
use crate::agent::{AgentError, Emission};

/// How long an agent that was told to stop may take before it is dropped.
const STOP_GRACE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Work {
    pub cancel: CancellationToken,
    pub(crate) emissions: mpsc::Receiver<Emission>,
    pub(crate) process: JoinHandle<Result<Value, AgentError>>,
    /// How it ended, once it has; told after everything it said.
    pub(crate) result: Option<Result<Value, AgentError>>,
    stuck: Option<Stuck>,
}

#[derive(Debug)]
struct Stuck {
    drafts: Vec<Draft>,
    since: Instant,
    retry_at: Instant,
}

/// What the work has to say.
#[derive(Debug)]
pub enum Said {
    Emissions(Vec<Emission>),
    Ended(Box<Result<Value, AgentError>>),
}

impl Work {
    pub fn new(
        cancel: CancellationToken,
        emissions: mpsc::Receiver<Emission>,
        process: JoinHandle<Result<Value, AgentError>>,
    ) -> Work {
        Work { cancel, emissions, process, result: None, stuck: None }
    }

    pub fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    pub fn retry_at(&self) -> Option<Instant> {
        self.stuck.as_ref().map(|stuck| stuck.retry_at)
    }

    /// Stops the agent: politely, and after a moment for good.
    pub fn stop(self) {
        self.cancel.cancel();
        drop(self.emissions);
        if self.process.is_finished() {
            return;
        }
        let process = self.process;
        tokio::spawn(async move {
            let abort = process.abort_handle();
            if tokio::time::timeout(STOP_GRACE, process).await.is_err() {
                abort.abort();
            }
        });
    }
}

impl TaskActor {
    pub async fn handle_said(&mut self, said: Said) {
        match said {
            Said::Ended(result) => match *result {
                Ok(result) => self.end(Ending::Completed { result: Some(result), finish: None }).await,
                Err(error) => self.end(error.into()).await,
            },
            Said::Emissions(emissions) => {
                let mut drafts = Vec::with_capacity(emissions.len());
                for emission in emissions {
                    match emission {
                        Emission::Event(draft) | Emission::Partial(draft, _) => drafts.push(draft),
                        Emission::Plan(_) => {}
                        Emission::Ask { .. } | Emission::Operate { .. } | Emission::State(_) => {
                            let message = "A background operation can neither ask, start another, nor save a state.";
                            let message = message.to_owned();
                            return self.end(Ending::failed(ErrorCode::AgentFailed, message)).await;
                        }
                    }
                }
                self.store_said(drafts).await;
            }
        }
    }

    /// Stores what the work said. If the store cannot, the work waits; it does not die of it at once.
    async fn store_said(&mut self, drafts: Vec<Draft>) {
        let limit = self.shared.config.limits.event_bytes_max;
        if drafts.iter().any(|draft| draft.len_hint() > limit) {
            self.shared.metrics.limits_hit.inc("limits.event_bytes_max");
            let message = format!("It emitted more than {limit} bytes at once.");
            return self.end(Ending::failed(ErrorCode::AgentFailed, message)).await;
        }
        let stored = self.commit(&drafts, Vec::new(), self.record.clone()).await;
        let Some(work) = self.work.as_deref_mut() else { return };
        let Err(refusal) = stored else { return work.stuck = None };
        let now = Instant::now();
        let since = work.stuck.as_ref().map_or(now, |stuck| stuck.since);
        work.stuck = Some(Stuck { drafts, since, retry_at: now + RETRY_EVERY });
        if now.duration_since(since) >= self.shared.config.session.store_patience {
            tracing::error!(task = %self.id, %refusal, "gave up a task: the store did not take its events in time");
            let message = "The store could not keep what it said, for too long.".to_owned();
            self.end(Ending::failed(ErrorCode::AgentFailed, message)).await;
        }
    }

    pub(super) async fn retry_stuck(&mut self) {
        let stuck = self.work.as_deref_mut().and_then(|work| work.stuck.as_mut());
        if let Some(drafts) = stuck.map(|stuck| std::mem::take(&mut stuck.drafts)) {
            self.store_said(drafts).await;
        }
    }
}
