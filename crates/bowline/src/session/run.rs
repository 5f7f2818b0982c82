//! A run that has a process: what it waits for, how far it has come, and what it has streamed.

use std::collections::HashMap;
use std::time::Instant;

use bowline_api::{Emission, Reply, RunProgress, RunResult};
use bowline_env::clock;
use bowline_protocol::frame::PlanCommand;
use bowline_protocol::{RunId, StepId};
use tokio::sync::{mpsc, oneshot};

use crate::actor::Process;

#[derive(Debug)]
pub struct LiveRun {
    pub id: RunId,
    pub process: Process<Emission, RunResult>,
    pub commands: mpsc::Sender<PlanCommand>,
    /// Those who wait in this process for a person's answer.
    pub answers: HashMap<StepId, oneshot::Sender<Reply>>,
    /// What was streamed so far, for the conversation if the run is cut short.
    pub partial: String,
    /// Whether it has said nothing but pieces of its answer, and all of them to this process.
    pub plain: bool,
    pub progress: RunProgress,
    /// Who called its work off: then it is they who cancelled the run, and not the agent that obeys.
    pub called_off_by: Option<String>,
    /// Who cancelled it, if the store could not be told yet.
    pub cancelled: Option<(String, Option<String>)>,
    pub started: Instant,
}

impl LiveRun {
    pub fn new(id: RunId, commands: mpsc::Sender<PlanCommand>, process: Process<Emission, RunResult>) -> LiveRun {
        LiveRun {
            id,
            process,
            commands,
            answers: HashMap::new(),
            partial: String::new(),
            plain: true,
            progress: RunProgress::default(),
            called_off_by: None,
            cancelled: None,
            started: clock::now(),
        }
    }
}
