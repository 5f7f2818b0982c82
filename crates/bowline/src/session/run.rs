//! A run that has a process: the agent's task, what it says, and what it is waiting to have stored.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bowline_protocol::event::names;
use bowline_protocol::frame::PlanCommand;
use bowline_protocol::{RunId, StepId};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agent::{AgentError, Emission, Ending, Reply};

/// What a run may say before its session has stored it. More makes larger commits, less holds the agent back sooner.
pub const EMISSIONS_MAX: usize = 512;
/// How long an agent that was told to stop may take before it is dropped.
const STOP_GRACE: Duration = Duration::from_millis(500);
/// How often a store that cannot take an event is asked again.
const RETRY_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct LiveRun {
    pub id: RunId,
    pub cancel: CancellationToken,
    pub commands: mpsc::Sender<PlanCommand>,
    /// Those who wait in this process for a person's answer.
    pub answers: HashMap<StepId, oneshot::Sender<Reply>>,
    /// What was streamed so far, for the conversation if the run is cut short.
    pub partial: String,
    /// Whether it has said nothing but pieces of its answer, and all of them to this process.
    pub plain: bool,
    /// The tasks of its plan, if it has one, and whether each is still open.
    pub tasks: Option<HashMap<String, bool>>,
    /// Where in its plan it is, if it follows one.
    pub stage: Option<Stage>,
    /// Who called its plan off: then it is they who cancelled the run, and not the agent that obeys.
    pub called_off_by: Option<String>,
    /// Who cancelled it, if the store could not be told yet.
    pub cancelled: Option<(String, Option<String>)>,
    pub started: Instant,
    pub(crate) emissions: mpsc::Receiver<Emission>,
    pub(crate) task: JoinHandle<Ending>,
    /// How the agent ended, once it has; told after everything it said.
    pub(crate) ending: Option<Ending>,
    stuck: Option<Stuck>,
}

/// Where a run is that plans, solves and sums up.
#[derive(Clone, Debug)]
pub enum Stage {
    Planning { question: Value },
    Solving,
    Aggregating,
}

impl Stage {
    pub fn word(&self) -> &'static str {
        match self {
            Stage::Planning { .. } => "planning",
            Stage::Solving => "solving",
            Stage::Aggregating => "aggregating",
        }
    }
}

/// Emissions that the store would not take.
#[derive(Debug)]
struct Stuck {
    emissions: Vec<Emission>,
    since: Instant,
    retry_at: Instant,
}

/// What a run has to say.
#[derive(Debug)]
pub enum Said {
    Emissions(Vec<Emission>),
    Ended(Ending),
}

impl LiveRun {
    pub fn new(
        id: RunId,
        cancel: CancellationToken,
        commands: mpsc::Sender<PlanCommand>,
        emissions: mpsc::Receiver<Emission>,
        task: JoinHandle<Ending>,
    ) -> LiveRun {
        LiveRun {
            id,
            cancel,
            commands,
            answers: HashMap::new(),
            partial: String::new(),
            plain: true,
            tasks: None,
            stage: None,
            called_off_by: None,
            cancelled: None,
            started: Instant::now(),
            emissions,
            task,
            ending: None,
            stuck: None,
        }
    }

    /// Keeps what the store would not take. False once patience has run out.
    pub fn stick(&mut self, emissions: Vec<Emission>, patience: Duration) -> bool {
        let now = Instant::now();
        let since = self.stuck.as_ref().map_or(now, |stuck| stuck.since);
        self.stuck = Some(Stuck { emissions, since, retry_at: now + RETRY_EVERY });
        now.duration_since(since) < patience
    }

    /// The store would not take the ending either; it is offered again until it does.
    pub fn put_back(&mut self, ending: Ending) {
        self.ending = Some(ending);
        let now = Instant::now();
        self.stuck = Some(Stuck { emissions: Vec::new(), since: now, retry_at: now + RETRY_EVERY });
    }

    /// Patience has run out: the agent is stopped, what it said is not heard, and its ending is the given error.
    pub fn give_up(&mut self, error: AgentError) {
        self.cancel.cancel();
        self.task.abort();
        self.emissions.close();
        while self.emissions.try_recv().is_ok() {}
        self.put_back(Err(error));
    }

    /// Whether a plan command would find something to do here.
    pub fn would_obey(&self, command: &PlanCommand) -> bool {
        let Some(tasks) = &self.tasks else { return false };
        match command {
            PlanCommand::CancelTask { task_id } => tasks.get(task_id).copied().unwrap_or(false),
            PlanCommand::RestartTask { task_id } => tasks.contains_key(task_id),
            PlanCommand::CancelPlan { .. } | PlanCommand::Replan { .. } => true,
            PlanCommand::SolveTasks { .. } => false,
        }
    }

    /// Follows the plan as the run tells it.
    pub fn note(&mut self, emission: &Emission) {
        match emission {
            Emission::Plan(plan) => {
                let open = |task: &Value| matches!(task["status"].as_str(), None | Some("waiting" | "solving"));
                let listed = plan["tasks"].as_array().into_iter().flatten();
                let tasks = listed.filter_map(|task| Some((task["id"].as_str()?.to_owned(), open(task))));
                self.tasks = Some(tasks.collect());
            }
            Emission::Event(draft) => {
                let (name, content) = (draft.name.as_str(), draft.content.get());
                self.note_stage(name, content);
                let open = match name {
                    names::SOLVER_START | names::SOLVER_RESTARTED => true,
                    names::SOLVER_COMPLETED | names::SOLVER_CANCELLED | names::SOLVER_STEP_FAILED => false,
                    names::PLAN_START => return self.tasks = Some(HashMap::new()),
                    names::AGGREGATE_START | names::PLAN_CANCELLED => return self.tasks = None,
                    _ => return,
                };
                let task = serde_json::from_str::<Value>(content).unwrap_or_default();
                if let (Some(tasks), Some(id)) = (&mut self.tasks, task["task"]["id"].as_str()) {
                    tasks.insert(id.to_owned(), open);
                }
            }
            Emission::Partial(..) | Emission::Ask { .. } | Emission::Operate { .. } | Emission::State(_) => {}
        }
    }

    fn note_stage(&mut self, name: &str, content: &str) {
        match name {
            names::PLAN_START => {
                let content: Value = serde_json::from_str(content).unwrap_or_default();
                self.stage = Some(Stage::Planning { question: content["question"].clone() });
            }
            names::PLAN_COMPLETED | names::SOLVER_START | names::SOLVER_RESTARTED => self.stage = Some(Stage::Solving),
            names::AGGREGATE_START => self.stage = Some(Stage::Aggregating),
            names::PLAN_CANCELLED | names::PIPELINE_COMPLETED => self.stage = None,
            _ => {}
        }
    }

    /// Takes back what was stuck, to try it again. The clock of patience runs on until [`unstick`](LiveRun::unstick).
    pub fn stuck_emissions(&mut self) -> Vec<Emission> {
        self.stuck.as_mut().map(|stuck| std::mem::take(&mut stuck.emissions)).unwrap_or_default()
    }

    pub fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    pub fn unstick(&mut self) {
        self.stuck = None;
    }

    pub fn retry_at(&self) -> Option<Instant> {
        self.stuck.as_ref().map(|stuck| stuck.retry_at)
    }

    /// Stops the agent: politely, and after a moment for good. Nothing it says from now on is heard.
    pub fn stop(self) {
        self.cancel.cancel();
        let task = self.task;
        drop(self.emissions);
        if task.is_finished() {
            return;
        }
        tokio::spawn(async move {
            let abort = task.abort_handle();
            if tokio::time::timeout(STOP_GRACE, task).await.is_err() {
                abort.abort();
            }
        });
    }
}

/// What an agent's task left behind when it did not return.
pub fn died(error: &tokio::task::JoinError) -> AgentError {
    let why = if error.is_panic() { "The agent crashed." } else { "The agent was stopped." };
    AgentError::failed(why)
}
