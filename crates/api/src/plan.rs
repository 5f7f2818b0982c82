//! Plans, the work of an agent that plans, solves tasks and sums up: its events, what commands mean to it, and how far it has come.

use std::collections::HashMap;

use bowline_protocol::event::names;
use bowline_protocol::frame::PlanCommand;
use serde_json::{Value, json};

use crate::{CommandEffect, CommandTarget, Emission, Emitter, Input, Stopped, Work, WorkCommand, WorkView};

/// Events of a plan.
impl Emitter {
    /// Planning has begun.
    pub async fn plan_start(&self, question: &str) -> Result<(), Stopped> {
        self.event(names::PLAN_START, &json!({ "question": question })).await
    }

    /// The plan is made: its tasks, each with `id`, `title` and `description`.
    pub async fn plan_completed(&self, tasks: &Value, summary: &str) -> Result<(), Stopped> {
        self.event(names::PLAN_COMPLETED, &json!({ "tasks": tasks, "plan_summary": summary })).await
    }

    /// The plan is given up.
    pub async fn plan_cancelled(&self, reason: &str) -> Result<(), Stopped> {
        self.event(names::PLAN_CANCELLED, &json!({ "reason": reason })).await
    }

    /// What a model returned as a plan is none.
    pub async fn plan_coercion_error(&self, message: &str, error: &str) -> Result<(), Stopped> {
        self.event(names::PLAN_COERCION_ERROR, &json!({ "message": message, "error": error })).await
    }

    /// Work on a task has begun.
    pub async fn solver_start(&self, task: &Value) -> Result<(), Stopped> {
        self.event(names::SOLVER_START, &json!({ "task": task })).await
    }

    /// How far a task has come.
    pub async fn solver_progress(&self, task_id: &str, step: u32, steps: u32) -> Result<(), Stopped> {
        let percent = u64::from(step) * 100 / u64::from(steps.max(1));
        let content =
            json!({ "task_id": task_id, "progress_percent": percent, "current_step": step, "total_steps": steps });
        self.event(names::SOLVER_PROGRESS, &content).await
    }

    /// A task is solved.
    pub async fn solver_completed(&self, task: &Value, output: &str, summary: &str) -> Result<(), Stopped> {
        let result = json!({ "output": output, "summary": summary });
        self.event(names::SOLVER_COMPLETED, &json!({ "task": task, "result": result })).await
    }

    /// A task failed.
    pub async fn solver_step_failed(&self, task: &Value, error: &str) -> Result<(), Stopped> {
        self.event(names::SOLVER_STEP_FAILED, &json!({ "task": task, "error": error })).await
    }

    /// A task was cancelled.
    pub async fn solver_cancelled(&self, task: &Value) -> Result<(), Stopped> {
        self.event(names::SOLVER_CANCELLED, &json!({ "task": task })).await
    }

    /// A task is solved once more.
    pub async fn solver_restarted(&self, task: &Value) -> Result<(), Stopped> {
        self.event(names::SOLVER_RESTARTED, &json!({ "task": task })).await
    }

    /// All tasks have ended; their results are being summed up.
    pub async fn aggregate_start(&self, solver_results: &Value) -> Result<(), Stopped> {
        self.event(names::AGGREGATE_START, &json!({ "solver_results": solver_results })).await
    }

    /// The sum of all results.
    pub async fn aggregate_completed(&self, output: &str) -> Result<(), Stopped> {
        self.event(names::AGGREGATE_COMPLETED, &json!({ "output": output })).await
    }

    /// The whole plan has ended; `status` is `completed` or `partial`.
    pub async fn pipeline_completed(&self, output: &str, status: &str) -> Result<(), Stopped> {
        self.event(names::PIPELINE_COMPLETED, &json!({ "output": output, "status": status })).await
    }
}

/// The run that a command asks for while none is active, given the last plan of the session.
fn input_for(command: PlanCommand, plan: Option<&Value>) -> Option<Input> {
    match command {
        PlanCommand::CancelTask { .. } | PlanCommand::CancelPlan { .. } => None,
        PlanCommand::Replan { question } => Some(Input::Replan { question }),
        PlanCommand::SolveTasks { tasks } => Some(Input::SolveTasks { tasks }),
        PlanCommand::RestartTask { task_id } => {
            let mut tasks = plan.and_then(|plan| plan["tasks"].as_array()).into_iter().flatten();
            tasks.any(|task| task["id"] == task_id.as_str()).then_some(Input::RestartTask { task_id })
        }
    }
}

/// How far one run has come with its plan, if it has one, as its emissions show it.
#[derive(Debug, Default)]
pub struct PlanProgress {
    /// Whether the agent takes commands about its plan.
    takes_commands: bool,
    /// The tasks, if there is a plan, and whether each is still open.
    tasks: Option<HashMap<String, bool>>,
    stage: Option<PlanStage>,
}

#[derive(Debug)]
enum PlanStage {
    Planning { question: Value },
    Solving,
    Aggregating,
}

impl Work for PlanProgress {
    fn handle_emission(&mut self, emission: &Emission) {
        match emission {
            Emission::Work(plan) => {
                let open = |task: &Value| matches!(task["status"].as_str(), None | Some("waiting" | "solving"));
                let listed = plan["tasks"].as_array().into_iter().flatten();
                let tasks = listed.filter_map(|task| Some((task["id"].as_str()?.to_owned(), open(task))));
                self.tasks = Some(tasks.collect());
            }
            Emission::Event(draft) => self.handle_event(draft.name.as_str(), draft.content.get()),
            Emission::Partial(..)
            | Emission::Ask { .. }
            | Emission::Call { .. }
            | Emission::Operate { .. }
            | Emission::State(_) => {}
        }
    }

    fn effect_of(&self, command: WorkCommand, target: CommandTarget<'_>) -> CommandEffect {
        if !self.takes_commands {
            return CommandEffect::Unsupported("does not plan");
        }
        let WorkCommand::Plan(command) = command;
        match target {
            CommandTarget::Run if matches!(command, PlanCommand::SolveTasks { .. }) => CommandEffect::Busy,
            CommandTarget::Run if self.accepts(&command) => {
                let calls_off = matches!(command, PlanCommand::CancelPlan { .. });
                CommandEffect::Pass { command: WorkCommand::Plan(command), calls_off }
            }
            CommandTarget::Run => CommandEffect::Nothing,
            CommandTarget::Idle(kept) => input_for(command, kept).map_or(CommandEffect::Nothing, CommandEffect::Start),
        }
    }

    /// `planning`, `solving` or `aggregating`.
    fn stage(&self) -> Option<&'static str> {
        self.stage.as_ref().map(|stage| match stage {
            PlanStage::Planning { .. } => "planning",
            PlanStage::Solving => "solving",
            PlanStage::Aggregating => "aggregating",
        })
    }

    /// The work with its status: what is being planned, or what the session last `kept`.
    fn describe(&self, kept: Option<Value>) -> WorkView {
        let plan = self.plan(kept);
        let tasks = plan["tasks"].as_array().map(Vec::as_slice).unwrap_or_default();
        let with = |status: &'static str| tasks.iter().filter(move |task| task["status"] == status).cloned();
        let (completed, current) = (with("completed").collect(), with("solving").chain(with("waiting")).next());
        WorkView { completed, current, context: plan }
    }
}

impl PlanProgress {
    /// Of a run that has just begun, of an agent that takes commands about its plan or does not.
    pub fn new(takes_commands: bool) -> PlanProgress {
        PlanProgress { takes_commands, tasks: None, stage: None }
    }

    fn handle_event(&mut self, name: &str, content: &str) {
        let content = || serde_json::from_str::<Value>(content).unwrap_or_default();
        match name {
            names::PLAN_START => {
                self.stage = Some(PlanStage::Planning { question: content()["question"].take() });
                self.tasks = Some(HashMap::new());
            }
            names::PLAN_COMPLETED => self.stage = Some(PlanStage::Solving),
            names::SOLVER_START | names::SOLVER_RESTARTED => {
                self.stage = Some(PlanStage::Solving);
                self.set_open(&content(), true);
            }
            names::SOLVER_COMPLETED | names::SOLVER_CANCELLED | names::SOLVER_STEP_FAILED => {
                self.set_open(&content(), false);
            }
            names::AGGREGATE_START => {
                self.stage = Some(PlanStage::Aggregating);
                self.tasks = None;
            }
            names::PLAN_CANCELLED => *self = PlanProgress::new(self.takes_commands),
            names::PIPELINE_COMPLETED => self.stage = None,
            _ => {}
        }
    }

    fn set_open(&mut self, content: &Value, open: bool) {
        if let (Some(tasks), Some(id)) = (&mut self.tasks, content["task"]["id"].as_str()) {
            tasks.insert(id.to_owned(), open);
        }
    }

    /// Whether a command has an effect on the run now.
    fn accepts(&self, command: &PlanCommand) -> bool {
        let Some(tasks) = &self.tasks else { return false };
        match command {
            PlanCommand::CancelTask { task_id } => tasks.get(task_id).copied().unwrap_or(false),
            PlanCommand::RestartTask { task_id } => tasks.contains_key(task_id),
            PlanCommand::CancelPlan { .. } | PlanCommand::Replan { .. } => true,
            PlanCommand::SolveTasks { .. } => false,
        }
    }

    fn plan(&self, kept: Option<Value>) -> Value {
        let mut plan = match &self.stage {
            Some(PlanStage::Planning { question }) => json!({ "question": question, "tasks": [] }),
            _ => kept.unwrap_or_default(),
        };
        let completed = |task: &Value| task["status"] == "completed";
        let all_completed = plan["tasks"].as_array().is_some_and(|tasks| tasks.iter().all(completed));
        if let Value::Object(fields) = &mut plan {
            let status = match self.stage {
                Some(_) => "in_progress",
                None if all_completed => "completed",
                None => "incomplete",
            };
            fields.insert("status".into(), status.into());
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_protocol::Draft;

    fn event(progress: &mut PlanProgress, name: &'static str, content: &Value) {
        progress.handle_emission(&Emission::Event(Draft::new(name, content)));
    }

    fn cancel_task(id: &str) -> PlanCommand {
        PlanCommand::CancelTask { task_id: id.into() }
    }

    #[test]
    fn a_command_has_an_effect_only_on_what_is_open() {
        let mut progress = PlanProgress::default();
        let replan = PlanCommand::Replan { question: None };
        assert!(!progress.accepts(&replan), "there is no plan yet");
        event(&mut progress, names::PLAN_START, &json!({ "question": "why" }));
        assert!(progress.accepts(&replan) && !progress.accepts(&cancel_task("a")));
        progress.handle_emission(&Emission::Work(
            json!({ "tasks": [{ "id": "a" }, { "id": "b", "status": "completed" }] }),
        ));
        assert!(progress.accepts(&cancel_task("a")) && !progress.accepts(&cancel_task("b")));
        assert!(progress.accepts(&PlanCommand::RestartTask { task_id: "b".into() }));
        event(&mut progress, names::SOLVER_COMPLETED, &json!({ "task": { "id": "a" } }));
        assert!(!progress.accepts(&cancel_task("a")));
        assert!(!progress.accepts(&PlanCommand::SolveTasks { tasks: json!([]) }));
        event(&mut progress, names::AGGREGATE_START, &json!({}));
        assert!(!progress.accepts(&replan), "it is too late to plan anew");
    }

    #[test]
    fn the_plan_that_is_being_made_replaces_the_one_that_was_kept() {
        let mut progress = PlanProgress::default();
        let kept = || Some(json!({ "question": "old", "tasks": [{ "id": "a", "status": "completed" }] }));
        assert_eq!(progress.plan(kept())["status"], "completed");
        assert_eq!(progress.plan(None), Value::Null);
        event(&mut progress, names::PLAN_START, &json!({ "question": "new" }));
        let planning = json!({ "question": "new", "tasks": [], "status": "in_progress" });
        assert_eq!((progress.plan(kept()), progress.stage()), (planning, Some("planning")));
        event(&mut progress, names::PLAN_COMPLETED, &json!({}));
        assert_eq!((&progress.plan(kept())["question"], progress.stage()), (&json!("old"), Some("solving")));
        event(&mut progress, names::PLAN_CANCELLED, &json!({}));
        assert_eq!(progress.stage(), None);
    }

    #[test]
    fn a_command_starts_a_run_only_where_there_is_something_to_do() {
        let plan = json!({ "tasks": [{ "id": "a" }] });
        let restart = |id: &str| PlanCommand::RestartTask { task_id: id.into() };
        assert!(matches!(input_for(restart("a"), Some(&plan)), Some(Input::RestartTask { .. })));
        assert!(input_for(restart("b"), Some(&plan)).is_none());
        assert!(input_for(restart("a"), None).is_none());
        assert!(input_for(cancel_task("a"), Some(&plan)).is_none());
        let replan = PlanCommand::Replan { question: Some("q".into()) };
        assert!(matches!(input_for(replan, None), Some(Input::Replan { question: Some(_) })));
    }
}
