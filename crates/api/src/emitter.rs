//! How a run writes events: one typed method for each kind. No reader sees an event before the server has stored it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_protocol::event::names;
use bowline_protocol::{Draft, EventName, MessageId, Refusal, StepId, json};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json as object};
use tokio::sync::{mpsc, oneshot};

use crate::{
    Confirm, Delta, Emission, FunctionCall, FunctionOutputs, Host, OperationRequest, PendingReply, Reply,
    StartedOperation, Stopped, ToolOutcome,
};

/// Writes events into the log of a session, or of a background operation.
///
/// A method returns when the emission is queued. The queue is bounded, so an agent that emits faster than the store writes
/// waits in these methods.
#[derive(Clone, Debug)]
pub struct Emitter {
    emissions: mpsc::Sender<Emission>,
    event_bytes_max: usize,
    host: Arc<dyn Host>,
    partials: Arc<AtomicU64>,
    thoughts: Arc<AtomicU64>,
}

impl Emitter {
    /// Only servers make one: `emissions` is where they take what is emitted, and one event may have `event_bytes_max`
    /// bytes.
    pub fn new(emissions: mpsc::Sender<Emission>, event_bytes_max: usize, host: Arc<dyn Host>) -> Emitter {
        Emitter { emissions, event_bytes_max, host, partials: Arc::default(), thoughts: Arc::default() }
    }

    async fn send(&self, emission: Emission) -> Result<(), Stopped> {
        self.emissions.send(emission).await.map_err(|_closed| Stopped)
    }

    pub(crate) async fn event(&self, name: &'static str, content: &(impl Serialize + ?Sized)) -> Result<(), Stopped> {
        self.draft(Draft::new(name, content)).await
    }

    /// What the agent is thinking about, in a sentence; `stage` is a word for where it is.
    pub async fn thinking(&self, text: &str, stage: &str) -> Result<(), Stopped> {
        self.draft(Draft::new(names::THINKING, text).metadata(&object!({ "stage": stage }))).await
    }

    /// The next piece of a thought that a model streams.
    pub async fn thinking_delta(&self, delta: &str) -> Result<(), Stopped> {
        let index = self.thoughts.fetch_add(1, Ordering::Relaxed);
        self.draft(Draft::new(names::THINKING, delta).metadata(&object!({ "index": index }))).await
    }

    /// A tool is being called. The returned step pairs the result with the call.
    pub async fn tool_call(
        &self,
        text: &str,
        tool: &str,
        args: &Value,
        server: Option<&str>,
    ) -> Result<StepId, Stopped> {
        let step = self.host.step_id();
        let mut metadata = object!({ "tool": tool, "args": args, "status": "running" });
        if let Some(server) = server {
            metadata["server"] = server.into();
        }
        self.draft(Draft::new(names::TOOL_CALL, text).step(step.clone()).metadata(&metadata)).await?;
        Ok(step)
    }

    /// The result of a tool call. `metadata` has `tool`, `status` (`success`, `failed` or `unknown`), `duration_ms`, and
    /// `error` or `data`.
    pub async fn tool_result(&self, step: StepId, text: &str, metadata: &Value) -> Result<(), Stopped> {
        self.draft(Draft::new(names::TOOL_RESULT, text).step(step).metadata(metadata)).await
    }

    /// The result of a call of [`Tools`](crate::Tools). Returns what was logged of it: of a result that is too large for
    /// one event, the beginning.
    pub async fn tool_ended(
        &self,
        step: StepId,
        tool: &str,
        outcome: ToolOutcome,
        duration_ms: u64,
    ) -> Result<ToolOutcome, Stopped> {
        let (outcome, metadata) = outcome.truncated_to(self.event_bytes_max, tool, duration_ms);
        if metadata.get("truncated").is_some() {
            self.host.limit_hit("limits.event_bytes_max");
        }
        self.tool_result(step, outcome.text(), &metadata).await?;
        Ok(outcome)
    }

    /// The next piece of the answer.
    pub async fn partial_answer(&self, delta: impl Into<String>) -> Result<(), Stopped> {
        self.partial_answer_with(delta, Map::new()).await
    }

    /// The next piece of the answer, with metadata of the agent's own.
    pub async fn partial_answer_with(
        &self,
        delta: impl Into<String>,
        mut metadata: Map<String, Value>,
    ) -> Result<(), Stopped> {
        let delta = delta.into();
        let index = self.partials.fetch_add(1, Ordering::Relaxed);
        metadata.insert("index".into(), index.into());
        self.partial_draft(Draft::new(names::PARTIAL_ANSWER, &delta).metadata(&metadata), delta).await
    }

    /// An event that is already encoded. Agents that relay another protocol need it; others use the typed methods.
    pub async fn draft(&self, draft: Draft) -> Result<(), Stopped> {
        self.send(Emission::Event(draft)).await
    }

    /// A piece of the answer that is already encoded, and its text.
    pub async fn partial_draft(&self, draft: Draft, delta: String) -> Result<(), Stopped> {
        self.send(Emission::Partial(draft, Delta(delta))).await
    }

    /// Asks a person and waits for the reply. The question outlives connections and this process.
    pub async fn confirm(&self, confirm: Confirm) -> Result<Reply, Stopped> {
        let mut metadata = Map::new();
        metadata.insert("scope".into(), confirm.scope.into());
        let mut add = |key: &str, value: Option<Value>| value.map(|value| metadata.insert(key.into(), value));
        add("tool_name", confirm.tool_name.map(Value::from));
        add("tool_args", confirm.tool_args);
        add("plan_summary", confirm.plan_summary.map(Value::from));
        add("tasks", confirm.tasks);
        add("timeout_seconds", confirm.timeout_seconds.map(Value::from));
        self.ask(&confirm.question, &metadata, confirm.state).await?.reply().await
    }

    /// Asks a person and goes on. `metadata` has `scope` and what belongs to it.
    pub async fn ask(
        &self,
        question: &str,
        metadata: &Map<String, Value>,
        state: Value,
    ) -> Result<PendingReply, Stopped> {
        let step = self.host.step_id();
        let draft = Draft::new(names::USER_CONFIRM, question).step(step.clone()).metadata(metadata);
        let (sender, reply) = oneshot::channel();
        self.send(Emission::Ask { step: step.clone(), draft, state, reply: sender }).await?;
        Ok(PendingReply { step, reply })
    }

    /// Calls functions of the caller's, all at once, and waits for their outputs. `calls` are names with arguments as JSON
    /// text; `state` is what [`Agent::returned`](crate::Agent::returned) needs if this process is gone when the outputs
    /// come. Who watches the session sees calls that wait.
    pub async fn call_functions(
        &self,
        calls: impl IntoIterator<Item = (String, String)>,
        state: Value,
    ) -> Result<FunctionOutputs, Stopped> {
        let calls = calls.into_iter().map(|(name, arguments)| {
            let step_id = self.host.step_id();
            FunctionCall { step_id, name, arguments }
        });
        let calls: Vec<FunctionCall> = calls.collect();
        let steps: Vec<&StepId> = calls.iter().map(|call| &call.step_id).collect();
        let draft = |(at, call): (usize, &FunctionCall)| {
            // The last call says for which outputs the run waits.
            let awaits = (at + 1 == calls.len()).then_some(&*steps);
            call_draft(call, awaits)
        };
        let drafts = calls.iter().enumerate().map(draft).collect();
        let (sender, outputs) = oneshot::channel();
        self.send(Emission::Call { calls, drafts, state, reply: sender }).await?;
        outputs.await.map_err(|_gone| Stopped)
    }

    /// Stores a small state of the agent's own. The next run finds it in [`Run::state`](crate::Run::state), also after a
    /// crash, and after a restore from a signed state. It replaces the state that was stored before.
    pub async fn save_state(&self, state: Value) -> Result<(), Stopped> {
        self.send(Emission::State(state)).await
    }

    /// Stores the plan beside the log. The next run finds it in [`Run::work`](crate::Run::work).
    pub async fn keep_plan(&self, plan: Value) -> Result<(), Stopped> {
        self.send(Emission::Work(plan)).await
    }

    /// Starts work in the background, and returns once that is durable. The server then calls
    /// [`Agent::operate`](crate::Agent::operate). The same `key` twice starts one operation.
    pub async fn start_operation(
        &self,
        tool: &str,
        args: Value,
        key: Option<MessageId>,
    ) -> Result<Result<StartedOperation, Refusal>, Stopped> {
        let request = Box::new(OperationRequest { tool: tool.to_owned(), args, key });
        let (reply, started) = oneshot::channel();
        self.send(Emission::Operate { request, reply }).await?;
        started.await.map_err(|_gone| Stopped)
    }

    /// How far a background operation has come.
    pub async fn progress(&self, step: u64, steps: u64, message: &str) -> Result<(), Stopped> {
        let percent = step * 100 / steps.max(1);
        let content =
            object!({ "current_step": step, "total_steps": steps, "progress_percent": percent, "message": message });
        self.event(names::PROGRESS, &content).await
    }

    /// An event of the agent's own kind, which reaches clients unchanged. Returns false if the name is reserved.
    pub async fn custom(&self, name: &str, content: &Value, metadata: &Value) -> Result<bool, Stopped> {
        let Some(name) = EventName::custom(name) else { return Ok(false) };
        let draft = Draft { name, step_id: None, content: json::raw(content), metadata: Some(json::raw(metadata)) };
        self.draft(draft).await.map(|()| true)
    }
}

/// The event that shows a call of a function of the caller's.
fn call_draft(call: &FunctionCall, awaits: Option<&[&StepId]>) -> Draft {
    #[derive(Serialize)]
    struct Shown<'a> {
        tool: &'a str,
        args: Box<RawValue>,
        status: &'static str,
        caller: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        awaits: Option<&'a [&'a StepId]>,
    }
    let args = RawValue::from_string(json::one_line(&call.arguments).into_owned())
        .unwrap_or_else(|_| json::raw(&call.arguments));
    let shown = Shown { tool: &call.name, args, status: "waiting", caller: true, awaits };
    let text = format!("Calling {} of the caller's", call.name);
    Draft::new(names::TOOL_CALL, &text).step(call.step_id.clone()).metadata(&shown)
}
