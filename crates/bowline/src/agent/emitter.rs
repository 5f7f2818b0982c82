//! How a run speaks: one typed method for every event it may log. Nothing it says is seen before it is stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_protocol::event::names;
use bowline_protocol::{Draft, EventName, MessageId, Refusal, StepId, json};
use serde::Serialize;
use serde_json::{Map, Value, json as object};
use tokio::sync::{mpsc, oneshot};

use super::{Reply, ToolOutcome};
use crate::dice;
use crate::metrics::Labelled;
use crate::session::operations::{Order, OrderedBy};
use crate::task::Begun;

/// The run was cancelled or is over; what it says is no longer heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// What travels from a run to its session.
#[derive(Debug)]
pub enum Emission {
    Event(Draft),
    /// A piece of the answer: also added to what the conversation keeps if the run is cut short.
    Partial(Draft, Delta),
    Ask {
        step: StepId,
        draft: Draft,
        state: Value,
        reply: oneshot::Sender<Reply>,
    },
    /// The plan as it stands, kept beside the log.
    Plan(Value),
    /// What the agent itself keeps from run to run.
    State(Value),
    /// Work to be begun in the background.
    Operate {
        order: Box<Order>,
        reply: oneshot::Sender<Result<Begun, Refusal>>,
    },
}

impl Emission {
    /// About how many bytes it will take.
    pub fn len_hint(&self) -> usize {
        match self {
            Emission::Event(draft) | Emission::Partial(draft, _) => draft.len_hint(),
            Emission::Ask { draft, state, .. } => draft.len_hint() + json::raw(state).get().len(),
            Emission::Plan(value) | Emission::State(value) => json::raw(value).get().len(),
            Emission::Operate { order, .. } => json::raw(&order.args).get().len(),
        }
    }
}

/// A piece of the answer's text; `Debug` shows only its length.
pub struct Delta(pub String);

impl std::fmt::Debug for Delta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Delta({} bytes)", self.0.len())
    }
}

/// A question for a person.
#[derive(Clone)]
pub struct Confirm {
    pub question: String,
    /// `tool`, `plan` or `custom`.
    pub scope: &'static str,
    pub tool_name: Option<String>,
    pub tool_args: Option<Value>,
    pub plan_summary: Option<String>,
    pub tasks: Option<Value>,
    pub timeout_seconds: Option<u64>,
    /// What the agent needs to go on if this process is gone when the answer comes.
    pub state: Value,
}

impl std::fmt::Debug for Confirm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Confirm({}, {} bytes)", self.scope, self.question.len())
    }
}

impl Confirm {
    pub fn custom(question: impl Into<String>, state: Value) -> Confirm {
        Confirm {
            question: question.into(),
            scope: "custom",
            tool_name: None,
            tool_args: None,
            plan_summary: None,
            tasks: None,
            timeout_seconds: None,
            state,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Emitter {
    emissions: mpsc::Sender<Emission>,
    event_bytes_max: usize,
    limits_hit: Labelled,
    partials: Arc<AtomicU64>,
    thoughts: Arc<AtomicU64>,
}

/// A question that was put and is not answered yet.
#[derive(Debug)]
pub struct Pending {
    pub step: StepId,
    answer: oneshot::Receiver<Reply>,
}

impl Pending {
    /// Waits for the person. However long that takes, a connection that is lost meanwhile changes nothing.
    pub async fn answered(self) -> Result<Reply, Stopped> {
        self.answer.await.map_err(|_gone| Stopped)
    }
}

type Sent = Result<(), Stopped>;

impl Emitter {
    pub fn new(emissions: mpsc::Sender<Emission>, event_bytes_max: usize, limits_hit: Labelled) -> Emitter {
        Emitter { emissions, event_bytes_max, limits_hit, partials: Arc::default(), thoughts: Arc::default() }
    }

    async fn send(&self, emission: Emission) -> Sent {
        self.emissions.send(emission).await.map_err(|_closed| Stopped)
    }

    async fn event(&self, name: &'static str, content: &(impl Serialize + ?Sized)) -> Sent {
        self.send(Emission::Event(Draft::new(name, content))).await
    }

    pub async fn thinking(&self, text: &str, stage: &str) -> Sent {
        self.send(Emission::Event(Draft::new(names::THINKING, text).metadata(&object!({ "stage": stage })))).await
    }

    /// The next piece of what it thinks, as a model streams it.
    pub async fn thinking_delta(&self, delta: &str) -> Sent {
        let index = self.thoughts.fetch_add(1, Ordering::Relaxed);
        self.send(Emission::Event(Draft::new(names::THINKING, delta).metadata(&object!({ "index": index })))).await
    }

    /// Says that a tool is being called; the returned step pairs the result with it.
    pub async fn tool_call(
        &self,
        text: &str,
        tool: &str,
        args: &Value,
        server: Option<&str>,
    ) -> Result<StepId, Stopped> {
        let step = StepId::from_random(dice::u128());
        let mut facts = object!({ "tool": tool, "args": args, "status": "running" });
        if let Some(server) = server {
            facts["server"] = server.into();
        }
        self.send(Emission::Event(Draft::new(names::TOOL_CALL, text).step(step.clone()).metadata(&facts))).await?;
        Ok(step)
    }

    /// `facts` has `tool`, `status` (success, failed or unknown), `duration_ms`, and `error` or `data`.
    pub async fn tool_result(&self, step: StepId, text: &str, facts: &Value) -> Sent {
        self.send(Emission::Event(Draft::new(names::TOOL_RESULT, text).step(step).metadata(facts))).await
    }

    /// Tells how a call of a tool ended, and gives back what was told of it: of a result that is too large for one event,
    /// the beginning.
    pub async fn tool_ended(
        &self,
        step: StepId,
        tool: &str,
        outcome: ToolOutcome,
        duration_ms: u64,
    ) -> Result<ToolOutcome, Stopped> {
        let (outcome, facts) = outcome.fitted(self.event_bytes_max, tool, duration_ms);
        if facts.get("truncated").is_some() {
            self.limits_hit.inc("limits.event_bytes_max");
        }
        self.tool_result(step, outcome.text(), &facts).await?;
        Ok(outcome)
    }

    /// The next piece of the answer.
    pub async fn partial_answer(&self, delta: impl Into<String>) -> Sent {
        self.partial_answer_with(delta, Map::new()).await
    }

    /// The same, with facts of the agent's own.
    pub async fn partial_answer_with(&self, delta: impl Into<String>, mut facts: Map<String, Value>) -> Sent {
        let delta = delta.into();
        let index = self.partials.fetch_add(1, Ordering::Relaxed);
        facts.insert("index".into(), index.into());
        let draft = Draft::new(names::PARTIAL_ANSWER, &delta).metadata(&facts);
        self.send(Emission::Partial(draft, Delta(delta))).await
    }

    /// An event that was made elsewhere.
    pub(super) async fn draft(&self, draft: Draft) -> Sent {
        self.send(Emission::Event(draft)).await
    }

    /// A piece of the answer that was made elsewhere, and its text.
    pub(super) async fn piece(&self, draft: Draft, delta: String) -> Sent {
        self.send(Emission::Partial(draft, Delta(delta))).await
    }

    /// Asks a person and waits. The question and the wait outlive connections and this process.
    pub async fn confirm(&self, confirm: Confirm) -> Result<Reply, Stopped> {
        let mut facts = Map::new();
        facts.insert("scope".into(), confirm.scope.into());
        let mut fact = |key: &str, value: Option<Value>| value.map(|value| facts.insert(key.into(), value));
        fact("tool_name", confirm.tool_name.map(Value::from));
        fact("tool_args", confirm.tool_args);
        fact("plan_summary", confirm.plan_summary.map(Value::from));
        fact("tasks", confirm.tasks);
        fact("timeout_seconds", confirm.timeout_seconds.map(Value::from));
        self.ask(&confirm.question, &facts, confirm.state).await?.answered().await
    }

    /// Asks a person and goes on. `facts` has `scope` and what belongs to it.
    pub async fn ask(&self, question: &str, facts: &Map<String, Value>, state: Value) -> Result<Pending, Stopped> {
        let step = StepId::from_random(dice::u128());
        let draft = Draft::new(names::USER_CONFIRM, question).step(step.clone()).metadata(facts);
        let (reply, answer) = oneshot::channel();
        self.send(Emission::Ask { step: step.clone(), draft, state, reply }).await?;
        Ok(Pending { step, answer })
    }

    /// Keeps the plan beside the log, where a later run finds it.
    pub async fn keep_plan(&self, plan: Value) -> Sent {
        self.send(Emission::Plan(plan)).await
    }

    /// Keeps a small state of the agent's own. The next run finds it in [`Run::state`](super::Run::state), also after a
    /// crash, and after a restore from a signed state. It replaces what was kept before.
    pub async fn save_state(&self, state: Value) -> Sent {
        self.send(Emission::State(state)).await
    }

    pub async fn plan_start(&self, question: &str) -> Sent {
        self.event(names::PLAN_START, &object!({ "question": question })).await
    }

    pub async fn plan_completed(&self, tasks: &Value, summary: &str) -> Sent {
        self.event(names::PLAN_COMPLETED, &object!({ "tasks": tasks, "plan_summary": summary })).await
    }

    pub async fn plan_cancelled(&self, reason: &str) -> Sent {
        self.event(names::PLAN_CANCELLED, &object!({ "reason": reason })).await
    }

    pub async fn plan_coercion_error(&self, message: &str, error: &str) -> Sent {
        self.event(names::PLAN_COERCION_ERROR, &object!({ "message": message, "error": error })).await
    }

    pub async fn solver_start(&self, task: &Value) -> Sent {
        self.event(names::SOLVER_START, &object!({ "task": task })).await
    }

    pub async fn solver_progress(&self, task_id: &str, step: u32, steps: u32) -> Sent {
        let percent = u64::from(step) * 100 / u64::from(steps.max(1));
        let content =
            object!({ "task_id": task_id, "progress_percent": percent, "current_step": step, "total_steps": steps });
        self.event(names::SOLVER_PROGRESS, &content).await
    }

    pub async fn solver_completed(&self, task: &Value, output: &str, summary: &str) -> Sent {
        let result = object!({ "output": output, "summary": summary });
        self.event(names::SOLVER_COMPLETED, &object!({ "task": task, "result": result })).await
    }

    pub async fn solver_step_failed(&self, task: &Value, error: &str) -> Sent {
        self.event(names::SOLVER_STEP_FAILED, &object!({ "task": task, "error": error })).await
    }

    pub async fn solver_cancelled(&self, task: &Value) -> Sent {
        self.event(names::SOLVER_CANCELLED, &object!({ "task": task })).await
    }

    pub async fn solver_restarted(&self, task: &Value) -> Sent {
        self.event(names::SOLVER_RESTARTED, &object!({ "task": task })).await
    }

    pub async fn aggregate_start(&self, solver_results: &Value) -> Sent {
        self.event(names::AGGREGATE_START, &object!({ "solver_results": solver_results })).await
    }

    pub async fn aggregate_completed(&self, output: &str) -> Sent {
        self.event(names::AGGREGATE_COMPLETED, &object!({ "output": output })).await
    }

    pub async fn pipeline_completed(&self, output: &str, status: &str) -> Sent {
        self.event(names::PIPELINE_COMPLETED, &object!({ "output": output, "status": status })).await
    }

    /// Begins work in the background, and returns once that is durable. The agent's
    /// [`operate`](super::Agent::operate) then does it; `key` twice begins it once.
    pub async fn begin_operation(
        &self,
        tool: &str,
        args: Value,
        key: Option<MessageId>,
    ) -> Result<Result<Begun, Refusal>, Stopped> {
        let by = OrderedBy::Agent { step: None };
        let order = Box::new(Order {
            tool_name: Some(tool.to_owned()),
            args,
            key,
            idempotency_key: None,
            operation_id: None,
            by,
        });
        let (reply, begun) = oneshot::channel();
        self.send(Emission::Operate { order, reply }).await?;
        begun.await.map_err(|_gone| Stopped)
    }

    /// How far a background operation has come.
    pub async fn progress(&self, step: u64, steps: u64, message: &str) -> Sent {
        let percent = step * 100 / steps.max(1);
        let content =
            object!({ "current_step": step, "total_steps": steps, "progress_percent": percent, "message": message });
        self.event(names::PROGRESS, &content).await
    }

    /// An event of the agent's own kind; it passes through untouched. False if the name is not an agent's to use.
    pub async fn custom(&self, name: &str, content: &Value, metadata: &Value) -> Result<bool, Stopped> {
        let Some(name) = EventName::custom(name) else { return Ok(false) };
        let draft = Draft { name, step_id: None, content: json::raw(content), metadata: Some(json::raw(metadata)) };
        self.send(Emission::Event(draft)).await.map(|()| true)
    }
}
