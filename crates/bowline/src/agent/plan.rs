//! The demo agent's plan → solve → aggregate: several tasks at once, with progress, each cancellable and restartable.

use std::time::Duration;

use bowline_api::{AgentError, Answer, Run, RunResult, Stopped, WorkCommand};
use bowline_protocol::frame::PlanCommand;
use serde_json::{Value, json};

const AT_ONCE: usize = 2;
const STEPS: u32 = 4;

/// What the demo agent can find to do; which three, and in which order, follows from the seed.
const TRADES: &[(&str, &str)] = &[
    ("Gather", "Collect what is known about"),
    ("Compare", "Weigh the alternatives for"),
    ("Check", "Look for what could go wrong with"),
    ("Estimate", "Put numbers on"),
    ("Draft", "Write a first version of"),
];

#[derive(Clone, Debug)]
pub struct Task {
    pub id: String,
    title: String,
    description: String,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Solving { step: u32 },
    Solved { output: String },
    Cancelled,
}

impl Task {
    fn new(id: impl Into<String>, title: impl Into<String>, description: impl Into<String>) -> Task {
        Task { id: id.into(), title: title.into(), description: description.into(), state: State::Waiting }
    }

    /// A task as a client wrote it: an object with any of id, title, description, or just a title.
    pub fn from_client((at, value): (usize, &Value)) -> Task {
        let field = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let title = value.as_str().map(str::to_owned).or_else(|| field("title"));
        Task::new(
            field("id").unwrap_or_else(|| format!("task_{}", at + 1)),
            title.unwrap_or_else(|| format!("Task {}", at + 1)),
            field("description").unwrap_or_default(),
        )
    }

    /// The tasks of a kept plan, as far as they had come.
    pub fn list(plan: Option<&Value>) -> Vec<Task> {
        let kept = |(at, value): (usize, &Value)| {
            let state = match value["status"].as_str() {
                Some("completed") => State::Solved { output: value["output"].as_str().unwrap_or_default().to_owned() },
                _ => State::Cancelled,
            };
            Task { state, ..Task::from_client((at, value)) }
        };
        let tasks = plan.and_then(|plan| plan["tasks"].as_array());
        tasks.map(|tasks| tasks.iter().enumerate().map(kept).collect()).unwrap_or_default()
    }

    pub fn restart(&mut self) {
        self.state = State::Waiting;
    }

    pub fn shown(&self) -> Value {
        json!({ "id": self.id, "title": self.title, "description": self.description })
    }

    fn status(&self) -> &'static str {
        match self.state {
            State::Waiting => "waiting",
            State::Solving { .. } => "solving",
            State::Solved { .. } => "completed",
            State::Cancelled => "cancelled",
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::Waiting | State::Solving { .. })
    }
}

/// One plan from question to answer.
#[derive(Debug)]
pub struct PlanRun {
    seed: u64,
    pause: Duration,
}

/// What a command made of the plan.
enum Turned {
    Onward,
    Replan(String),
}

impl PlanRun {
    pub fn new(seed: u64, pause: Duration) -> PlanRun {
        PlanRun { seed, pause }
    }

    pub async fn plan(&self, run: &mut Run, question: &str) -> RunResult {
        let mut question = question.to_owned();
        loop {
            run.emit.thinking(&format!("How would one go about “{question}”?"), "planning").await?;
            run.emit.plan_start(&question).await?;
            run.pause(self.pause).await?;
            let tasks = self.tasks_for(&question);
            let shown: Value = tasks.iter().map(Task::shown).collect();
            run.emit.plan_completed(&shown, &format!("{} tasks, {AT_ONCE} at a time", tasks.len())).await?;
            match self.solve_all(run, &question, tasks).await? {
                Ok(answer) => return Ok(answer),
                Err(anew) => question = anew,
            }
        }
    }

    pub async fn solve(&self, run: &mut Run, question: &str, tasks: Vec<Task>) -> RunResult {
        match self.solve_all(run, question, tasks).await? {
            Ok(answer) => Ok(answer),
            Err(anew) => self.plan(run, &anew).await,
        }
    }

    fn tasks_for(&self, question: &str) -> Vec<Task> {
        let first = (self.seed as usize).wrapping_mul(7) % TRADES.len();
        let trades = TRADES.iter().cycle().skip(first).take(3).enumerate();
        trades
            .map(|(n, (title, about))| Task::new(format!("task_{}", n + 1), *title, format!("{about} {question}")))
            .collect()
    }

    /// Solves all tasks, or returns the question to plan anew.
    async fn solve_all(
        &self,
        run: &mut Run,
        question: &str,
        mut tasks: Vec<Task>,
    ) -> Result<Result<Answer, String>, AgentError> {
        keep(run, question, &tasks).await?;
        let mut kept: Vec<&str> = tasks.iter().map(Task::status).collect();
        while tasks.iter().any(Task::is_open) {
            if let Turned::Replan(anew) = self.obey(run, question, &mut tasks).await? {
                return Ok(Err(anew));
            }
            for at in 0..AT_ONCE.min(tasks.len()) {
                // The first open tasks are the ones at work.
                let Some(index) = tasks.iter().enumerate().filter(|(_, t)| t.is_open()).map(|(i, _)| i).nth(at) else {
                    break;
                };
                advance(run, &mut tasks[index]).await?;
            }
            let now: Vec<&str> = tasks.iter().map(Task::status).collect();
            if now != kept {
                kept = now;
                keep(run, question, &tasks).await?;
            }
            run.pause(self.pause).await?;
        }
        self.aggregate(run, question, &tasks).await.map(Ok)
    }

    /// Takes what the client asked for since the last step.
    async fn obey(&self, run: &mut Run, question: &str, tasks: &mut [Task]) -> Result<Turned, AgentError> {
        while let Ok(WorkCommand::Plan(command)) = run.commands.try_recv() {
            match command {
                PlanCommand::CancelTask { task_id } => {
                    if let Some(task) = tasks.iter_mut().find(|task| task.id == task_id && task.is_open()) {
                        task.state = State::Cancelled;
                        run.emit.solver_cancelled(&task.shown()).await?;
                    }
                }
                PlanCommand::RestartTask { task_id } => {
                    if let Some(task) = tasks.iter_mut().find(|task| task.id == task_id) {
                        task.state = State::Waiting;
                        run.emit.solver_restarted(&task.shown()).await?;
                    }
                }
                PlanCommand::CancelPlan { reason } => {
                    let reason = reason.unwrap_or_else(|| "asked for by the user".into());
                    run.emit.plan_cancelled(&reason).await?;
                    return Err(AgentError::cancelled(reason));
                }
                PlanCommand::Replan { question: anew } => {
                    run.emit.plan_cancelled("replanned").await?;
                    return Ok(Turned::Replan(anew.unwrap_or_else(|| question.to_owned())));
                }
                // The session starts a run of its own for these.
                PlanCommand::SolveTasks { .. } => {}
            }
        }
        Ok(Turned::Onward)
    }

    async fn aggregate(&self, run: &Run, question: &str, tasks: &[Task]) -> RunResult {
        let solved = |task: &Task| match &task.state {
            State::Solved { output } => Some(json!({ "task_id": task.id, "output": output })),
            _ => None,
        };
        let results: Value = tasks.iter().filter_map(solved).collect();
        let count = results.as_array().map_or(0, Vec::len);
        run.emit.aggregate_start(&results).await?;
        let mut output = String::new();
        let intro = format!("On “{question}”: {count} of {} tasks are done.\n", tasks.len());
        let lines = tasks.iter().map(|task| format!("- {}: {}\n", task.title, task.status()));
        for delta in std::iter::once(intro).chain(lines) {
            output.push_str(&delta);
            run.emit.partial_answer(delta).await?;
            run.pause(self.pause / 4).await?;
        }
        run.emit.aggregate_completed(&output).await?;
        run.emit.pipeline_completed(&output, if count == tasks.len() { "completed" } else { "partial" }).await?;
        Ok(Answer::text(output))
    }
}

/// One step of one task.
async fn advance(run: &Run, task: &mut Task) -> Result<(), Stopped> {
    let step = match task.state {
        State::Solving { step } => step + 1,
        _ => {
            run.emit.solver_start(&task.shown()).await?;
            1
        }
    };
    run.emit.solver_progress(&task.id, step, STEPS).await?;
    task.state = State::Solving { step };
    if step >= STEPS {
        let output = format!("{} — done in {STEPS} steps", task.description);
        run.emit.solver_completed(&task.shown(), &output, &format!("{} done", task.title)).await?;
        task.state = State::Solved { output };
    }
    Ok(())
}

async fn keep(run: &Run, question: &str, tasks: &[Task]) -> Result<(), Stopped> {
    let with_status = tasks.iter().map(|task| {
        let mut shown = task.shown();
        shown["status"] = task.status().into();
        if let State::Solved { output } = &task.state {
            shown["output"] = output.as_str().into();
        }
        shown
    });
    let tasks: Value = with_status.collect();
    run.emit.keep_plan(json!({ "question": question, "tasks": tasks })).await
}
