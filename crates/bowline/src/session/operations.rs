//! Background operations of a session: begun once for each key, at work in a task of their own, and their end is logged.

use std::sync::Arc;

use bowline_actor::EMISSIONS_MAX;
use bowline_api::{
    Agent, AgentError, Emitter, Operation, OperationRequest, StartedOperation, ToolCall, ToolOutcome, Tools,
};
use bowline_env::{clock, entropy};
use bowline_protocol::event::names;
use bowline_protocol::{
    Draft, ErrorCode, LogId, MessageId, OperationId, Principal, Refusal, RunId, Seq, StepId, TaskId,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::actor::{PendingChange, SessionActor};
use super::background::OperationEnd;
use super::command::CommandResult;
use super::record::keys;
use super::{CommandOutcome, CommandSender};
use crate::agent_host::agent_host;
use crate::decode::decode;
use crate::logs::Logs;
use crate::refusals;
use crate::task;
use crate::task::record::{TaskRecord, Worker};
use crate::task::status::Status;
use crate::task::work::{TaskWork, died};
use crate::task::{AcceptedOperation, TaskClose};

/// What is to be done in the background.
pub struct Order {
    pub tool_name: Option<String>,
    pub args: Value,
    /// The tool call that it is for: the same one twice is one operation.
    pub key: Option<MessageId>,
    /// The caller's key for the request, of which the same holds. The two kinds of key have nothing to do with each other.
    pub idempotency_key: Option<MessageId>,
    /// What the operation is to be called; a new name if this says nothing.
    pub operation_id: Option<OperationId>,
    pub by: OrderedBy,
}

/// Who does the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderedBy {
    /// A client asked for one of the operations that the session's agent offers.
    Caller,
    /// The session's agent itself, in the middle of a run; `step` is its tool call.
    Agent { step: Option<StepId> },
    /// A program outside will do the work.
    Producer,
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Order({:?}, {:?})", self.tool_name, self.by)
    }
}

/// One operation, as its session remembers it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OperationEntry {
    pub task_id: TaskId,
    pub operation_id: OperationId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<MessageId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<MessageId>,
    digest: String,
    pub status: Status,
    /// The event of the session's log that announced its beginning.
    #[serde(default)]
    pub started: Seq,
    /// What the session keeps of its end, in bytes.
    #[serde(default)]
    pub(super) result_bytes: u64,
}

impl OperationEntry {
    fn is_named_by(&self, order: &Order) -> bool {
        let same = |known: &Option<MessageId>, given: &Option<MessageId>| given.is_some() && known == given;
        same(&self.key, &order.key) || same(&self.idempotency_key, &order.idempotency_key)
    }

    /// The same with the keys that it has only now; none if there is nothing new.
    fn also_named(&self, order: &Order) -> Option<OperationEntry> {
        let key = self.key.clone().or_else(|| order.key.clone());
        let idempotency_key = self.idempotency_key.clone().or_else(|| order.idempotency_key.clone());
        let new = key != self.key || idempotency_key != self.idempotency_key;
        new.then(|| OperationEntry { key, idempotency_key, ..self.clone() })
    }

    /// The same once it has ended, and the session keeps so much of its end.
    pub(super) fn ended(&self, status: Status, result_bytes: u64) -> OperationEntry {
        OperationEntry { status, result_bytes, ..self.clone() }
    }

    fn begun(&self) -> AcceptedOperation {
        let OperationEntry { task_id, operation_id, tool_name, .. } = self.clone();
        AcceptedOperation { task_id, operation_id, tool_name }
    }
}

/// An operation on its way into the log.
pub(super) struct Prepared {
    pub begun: AcceptedOperation,
    /// Lets the work begin, once the session knows of it. Dropped, it never does.
    go: Option<oneshot::Sender<()>>,
}

/// Who does the work, and the process that waits to begin it if that is ours.
struct Assigned {
    worker: Worker,
    work: Option<TaskWork>,
    go: Option<oneshot::Sender<()>>,
}

impl Prepared {
    pub fn go(self) -> AcceptedOperation {
        if let Some(go) = self.go {
            let _ = go.send(());
        }
        self.begun
    }

    /// The same, as the agent that asked for it sees it.
    pub fn start(self) -> StartedOperation {
        let AcceptedOperation { task_id, operation_id, .. } = self.go();
        StartedOperation { operation_id, task_id }
    }
}

impl SessionActor {
    pub(super) async fn operate(&mut self, from: &CommandSender, order: Order) -> CommandResult {
        self.may_write(from)?;
        let mut change = self.change();
        let prepared = self.prepare_operation(&mut change, &order).await?;
        if !change.commit.events.is_empty() || !change.commit.items.is_empty() {
            self.commit(change).await?;
        }
        Ok(CommandOutcome::Operation(Box::new(prepared.go())))
    }

    /// Makes the task of an operation and adds its beginning to a change, unless the same was begun before.
    pub(super) async fn prepare_operation(
        &self,
        change: &mut PendingChange,
        order: &Order,
    ) -> Result<Prepared, Refusal> {
        let (entries, unread) = self.read_operations().await?;
        let mut known = entries.iter().filter(|(_, entry)| entry.is_named_by(order));
        if let Some((item, entry)) = known.next() {
            // Two keys of two operations say two things.
            if entry.digest != order.digest() || known.next().is_some() {
                let message = "This key was used before for another operation. Use a new one.";
                return Err(Refusal::new(ErrorCode::IdempotencyConflict, message));
            }
            self.shared.metrics.duplicates_avoided.inc();
            if let Some(named) = entry.also_named(order) {
                change.put(item.clone(), &named);
            }
            return Ok(Prepared { begun: entry.begun(), go: None });
        }
        // It may be this very one.
        if let Some(refusal) = unread.filter(|_| order.key.is_some() || order.idempotency_key.is_some()) {
            return Err(refusal);
        }
        if self.shared.is_draining() {
            return Err(refusals::draining());
        }
        let running = running(&entries);
        if running >= self.shared.config.limits.operations_per_session_max as u64 {
            self.shared.metrics.limits_hit.inc("limits.operations_per_session_max");
            let message = format!("{running} operations of this session are running already. Wait for one to end.");
            return Err(Refusal::new(ErrorCode::RateLimited, message).retry_after_ms(1000));
        }
        let begun = AcceptedOperation::new(entropy::u128(), order.operation_id.clone(), order.tool_name.clone());
        let Assigned { worker, work, go } = self.work_for(&begun, order).await?;
        let session = Some(bowline_protocol::SessionId::from(&self.log));
        let record = TaskRecord::new(&begun, worker, session, self.shared.logs.clock.now_ms());
        let record = TaskRecord { call: order.call(), ..record };
        let next = self.next_seq().await?;
        // All that can fail comes before the task is made: one that its session does not know would be begun twice.
        self.note_listed(change, order.tool_name.as_deref()).await?;
        self.shared.tasks.create(&self.owner, &begun.task_id, record, work).await?;
        self.remember_operation(change, &entries, order, &begun, next);
        Ok(Prepared { begun, go })
    }

    fn remember_operation(
        &self,
        change: &mut PendingChange,
        entries: &[(String, OperationEntry)],
        order: &Order,
        begun: &AcceptedOperation,
        next: Seq,
    ) {
        let started = next.plus(change.commit.events.len() as u64);
        let mut facts = json!({ "args": order.args });
        let step = match &order.by {
            OrderedBy::Agent { step } => step.clone(),
            OrderedBy::Caller | OrderedBy::Producer => None,
        };
        if let Some(call) = order.call().filter(|_| step.is_none()) {
            facts["tool_call_id"] = call.as_str().into();
        }
        let draft = Draft::new(names::OPERATION_STARTED, &begun.content()).metadata(&facts);
        change.event(&step.into_iter().fold(draft, Draft::step));
        let entry = OperationEntry {
            task_id: begun.task_id.clone(),
            operation_id: begun.operation_id.clone(),
            tool_name: begun.tool_name.clone(),
            key: order.key.clone(),
            idempotency_key: order.idempotency_key.clone(),
            digest: order.digest(),
            status: Status::Running,
            started,
            result_bytes: 0,
        };
        change.put(keys::operation(change.record.operations), &entry);
        change.record.operations += 1;
        change.record.operations_running = Some(change.record.operations_running.unwrap_or(running(entries)) + 1);
        if entries.len() >= self.shared.config.limits.operations_kept_max
            && let Some((key, oldest)) = entries.iter().find(|(_, entry)| entry.status != Status::Running)
        {
            self.shared.metrics.limits_hit.inc("limits.operations_kept_max");
            change.delete(key.clone());
            change.delete(keys::result(&oldest.task_id));
        }
    }

    /// The process that will do the work, if it is ours to do.
    async fn work_for(&self, begun: &AcceptedOperation, order: &Order) -> Result<Assigned, Refusal> {
        if order.by == OrderedBy::Producer {
            return Ok(Assigned { worker: Worker::Producer, work: None, go: None });
        }
        let name = self.record.agent.clone();
        let tool = order.tool_name.clone().unwrap_or_default();
        let doer = self.doer(&tool, &order.by).await?;
        let (emit, emissions) = mpsc::channel(EMISSIONS_MAX);
        let cancel = CancellationToken::new();
        let (go, begin) = oneshot::channel();
        let operation = Operation {
            session: self.id.clone(),
            task: begun.task_id.clone(),
            call: order.call().unwrap_or_else(|| task::own_call(&begun.operation_id)),
            tool,
            args: order.args.clone(),
            cancel: cancel.clone(),
            emit: Emitter::new(
                emit,
                self.shared.config.limits.event_bytes_max,
                agent_host(&self.shared.metrics.limits_hit),
            ),
        };
        let owner = self.owner.clone();
        let process = tokio::spawn(async move {
            if begin.await.is_err() {
                return Err(AgentError::cancelled("It was never begun."));
            }
            match doer {
                Doer::Agent(agent) => agent.operate(operation).await,
                Doer::Tools(tools) => call_tool(&*tools, owner, operation).await,
            }
        });
        let worker = Worker::Agent { name, args: order.args.clone() };
        Ok(Assigned { worker, work: Some(TaskWork::new(cancel, emissions, process, died)), go: Some(go) })
    }

    /// Who does what is asked for: the session's agent, or a tool of the hub.
    async fn doer(&self, tool: &str, by: &OrderedBy) -> Result<Doer, Refusal> {
        let name = &self.record.agent;
        let agent = self.shared.agents.get(name);
        let offered = agent.map(|agent| agent.operations()).unwrap_or_default();
        if let Some(agent) = agent.filter(|_| *by != OrderedBy::Caller || offered.contains(&tool)) {
            return Ok(Doer::Agent(agent.clone()));
        }
        if self.shared.tools.list(&self.owner).await.iter().any(|known| known.name == tool) {
            return Ok(Doer::Tools(self.shared.tools.clone()));
        }
        let known = if offered.is_empty() { "none".to_owned() } else { offered.join(", ") };
        let problem =
            format!("is neither an operation of the agent `{name}` (it offers: {known}) nor a tool of the hub");
        Err(Refusal::field("tool_name", &problem))
    }

    /// An operation's task has ended: the log says so, once.
    pub(super) async fn operation_ended(&mut self, task: &TaskId, content: &Value) -> CommandResult {
        self.alive_or_refusal()?;
        let entries = self.operation_entries().await?;
        let open = |(_, entry): &(String, OperationEntry)| entry.task_id == *task && entry.status == Status::Running;
        let Some(at) = entries.iter().position(open) else { return Ok(CommandOutcome::Done) };
        let mut change = self.change();
        change.event(&Draft::new(names::OPERATION_COMPLETED, content));
        self.keep_end(&mut change, &entries, at, OperationEnd::from_content(content));
        change.record.operations_running = Some(running(&entries) - 1);
        self.commit(change).await?;
        Ok(CommandOutcome::Done)
    }

    /// The session is over, and its work with it.
    pub(super) async fn cancel_operations(&self, by: &str) -> Result<(), Refusal> {
        for (_, entry) in self.operation_entries().await? {
            if entry.status != Status::Running {
                continue;
            }
            let (tasks, owner, by) = (self.shared.tasks.clone(), self.owner.clone(), by.to_owned());
            // Not waited for: a task that ends wants to tell its session, and must not find it waiting.
            tokio::spawn(async move {
                let ending = TaskClose::cancelled(by, Some("The session has ended.".into()));
                if let Err(refusal) = tasks.end(&entry.task_id, &owner, ending).await {
                    tracing::warn!(task = %entry.task_id, %refusal, "an operation could not be cancelled");
                }
            });
        }
        Ok(())
    }

    /// Whether work goes on in the background. The tasks know first: the session does not wait for one that is over or gone.
    pub(super) async fn has_open_operations(&self) -> Result<bool, Refusal> {
        for (_, entry) in self.operation_entries().await? {
            if entry.status != Status::Running {
                continue;
            }
            let stored = self.shared.logs.store.record(&LogId::from(&entry.task_id)).await;
            let stored = stored.map_err(|error| refusals::of_store(&error))?;
            let record = stored.and_then(|stored| TaskRecord::decode(&stored.body).ok());
            if record.is_some_and(|record| record.is_running() || record.untold) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn operation_entries(&self) -> Result<Vec<(String, OperationEntry)>, Refusal> {
        self.read_operations().await.map(|(entries, _)| entries)
    }

    async fn read_operations(&self) -> Result<(Vec<(String, OperationEntry)>, Option<Refusal>), Refusal> {
        if self.record.operations == 0 {
            return Ok((Vec::new(), None));
        }
        read_entries(&self.shared.logs, &self.log).await
    }
}

/// The operations that a session remembers, oldest first, each with its key.
pub async fn entries(logs: &Logs, log: &LogId) -> Result<Vec<(String, OperationEntry)>, Refusal> {
    read_entries(logs, log).await.map(|(entries, _)| entries)
}

/// Those that can be read, and the refusal for a caller that needs all of them, if one cannot.
async fn read_entries(logs: &Logs, log: &LogId) -> Result<(Vec<(String, OperationEntry)>, Option<Refusal>), Refusal> {
    let items = logs.store.items(log, keys::OPERATIONS).await.map_err(|error| refusals::of_store(&error))?;
    let (mut entries, mut unread) = (Vec::new(), None);
    for (key, bytes) in items {
        match decode(log, &key, Some(bytes)) {
            Ok(entry) => entries.extend(entry.map(|entry| (key, entry))),
            Err(refusal) => unread = Some(refusal),
        }
    }
    Ok((entries, unread))
}

fn running(entries: &[(String, OperationEntry)]) -> u64 {
    entries.iter().filter(|(_, entry)| entry.status == Status::Running).count() as u64
}

enum Doer {
    Agent(Arc<dyn Agent>),
    Tools(Arc<dyn Tools>),
}

/// One call of a tool, as work in the background.
async fn call_tool(tools: &dyn Tools, owner: Principal, operation: Operation) -> Result<Value, AgentError> {
    let Operation { session, call: step, tool, args, cancel, emit, .. } = operation;
    let fields = args.as_object().cloned().unwrap_or_default();
    let run = RunId::from_random(entropy::u128());
    let call = ToolCall { name: tool.clone(), args: fields, owner, session, run, step: step.clone(), to_the_end: true };
    let began = clock::now();
    let outcome = tools.call(call, cancel).await;
    let outcome = emit.tool_ended(step, &tool, outcome, clock::since(began).as_millis() as u64).await?;
    match outcome {
        ToolOutcome::Success { text, data } => Ok(data.unwrap_or(Value::String(text))),
        ToolOutcome::Failed { error, .. } => Err(AgentError::failed(error)),
        ToolOutcome::Unknown { error } => {
            Err(AgentError { code: ErrorCode::OutcomeUnknown, ..AgentError::failed(error) })
        }
    }
}

impl Order {
    /// What a run of the session's agent asks for.
    pub(super) fn by_agent(request: &OperationRequest) -> Order {
        Order {
            tool_name: Some(request.tool.clone()),
            args: request.args.clone(),
            key: request.key.clone(),
            idempotency_key: None,
            operation_id: None,
            by: OrderedBy::Agent { step: None },
        }
    }

    /// The id that the caller gave its call.
    fn call(&self) -> Option<StepId> {
        match &self.by {
            OrderedBy::Agent { step: Some(step) } => Some(step.clone()),
            _ => StepId::parse(self.key.as_ref()?.as_str()),
        }
    }

    fn digest(&self) -> String {
        let plain = json!([self.tool_name, self.args]).to_string();
        Sha256::digest(plain.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}
