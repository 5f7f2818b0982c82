//! What agents inside the server use: the tools of an owner, and one call with one honest ending.

use std::fmt;
use std::sync::Arc;

use bowline_protocol::Principal;
use futures_util::future::Either;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
use crate::call::outcome::CallOutcome;
use crate::call::{CallReply, Inbound};
use crate::catalogue::{ListKind, hub_tools};
use crate::fields::{Fields, Raw, lossy, raw};
use crate::hub::Hub;
use crate::relay::{ClientContext, call};
use crate::tasks::{CreatedTask, HubTaskRecord, TaskCall};
use crate::{message, tools};

const SAID_MAX: usize = 16;
/// Under this name agents find the hub itself, unless it is the name of a server.
const OURS: &str = "hub";
const OUR_TOOLS: [&str; 3] = ["get_task", "get_task_result", "cancel_task"];

/// One tool of one server.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentTool {
    /// `<server>__<tool>`.
    pub name: String,
    pub server: String,
    pub tool: String,
    pub description: String,
    pub input_schema: Value,
}

/// How an agent's call ended. Results hold what tools wrote, so `Debug` shows only which it was.
pub enum AgentEnd {
    Success {
        text: String,
        result: Value,
    },
    /// It did not run, or it ran and said that it failed.
    Failed {
        error: String,
        result: Value,
    },
    /// It was cut in flight, and may have run.
    Unknown {
        error: String,
    },
}

impl fmt::Debug for AgentEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AgentEnd::Success { .. } => "Success",
            AgentEnd::Failed { .. } => "Failed",
            AgentEnd::Unknown { .. } => "Unknown",
        })
    }
}

/// How long an agent waits for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As other clients do: a call that takes longer than `hub.call_timeout` becomes a task.
    Usual,
    /// To the end: the caller itself is work in the background.
    Endless,
}

/// What an owner's agents may call now. Answers at once: a server that is away is listed as it was.
pub fn tools(hub: &Hub, owner: &Principal) -> Vec<AgentTool> {
    let mut found = Vec::new();
    for backend in hub.visible(owner) {
        for entry in backend.catalogue().list(ListKind::Tools) {
            found.push(described(backend.name(), entry));
        }
    }
    if !found.is_empty() && hub.find(owner, OURS).is_none() {
        let ours = |entry: &Raw| OUR_TOOLS.contains(&Fields::of(Some(entry)).text("name").unwrap_or_default().as_str());
        found.extend(hub_tools::schemas().iter().filter(|entry| ours(entry)).map(|entry| described(OURS, entry)));
    }
    found
}

fn described(server: &str, entry: &Raw) -> AgentTool {
    let fields = Fields::of(Some(entry));
    let tool = fields.text("name").unwrap_or_default();
    AgentTool {
        name: format!("{server}__{tool}"),
        server: server.to_owned(),
        tool,
        description: fields.text("description").unwrap_or_default(),
        input_schema: fields.get("inputSchema").map_or_else(|| json!({ "type": "object" }), lossy),
    }
}

/// Calls `<server>__<tool>`. `session` names the agent's session, which has its own session at the server. Dropping the
/// future takes the call back, unless it has become a task.
pub async fn call(
    hub: &Arc<Hub>,
    owner: &Principal,
    session: &str,
    name: &str,
    arguments: &Value,
    patience: Patience,
) -> AgentEnd {
    let failed = |error: String| AgentEnd::Failed { error, result: Value::Null };
    let Some((server, tool)) = name.split_once("__") else { return failed(format!("There is no tool {name}.")) };
    let client = ClientContext::absent(owner, format!("agent {session}"));
    let Some(backend) = hub.find(owner, server) else {
        if server == OURS && OUR_TOOLS.contains(&tool) {
            return about_a_task(hub, &client, tool, arguments).await;
        }
        return failed(format!("There is no server {server}."));
    };
    let mut params = Fields::default();
    params.put("name", tool);
    params.set("arguments", raw(arguments));
    let cancel = CancellationToken::new();
    let caller = cancel.clone().drop_guard();
    let mut running = tokio::spawn(run(hub.clone(), client, backend.clone(), params, cancel.clone()));
    let ended = match patience {
        Patience::Endless => Ok((&mut running).await),
        Patience::Usual => tokio::time::timeout(hub.options.call_timeout, &mut running).await,
    };
    let reply = match ended {
        Ok(Ok(Some(reply))) => reply,
        Ok(_) => return AgentEnd::Unknown { error: "The call was cancelled while it was under way.".into() },
        Err(_) => {
            let record = HubTaskRecord::new(server, tool, None, None, hub.options.clock.now_ms());
            return match hub.tasks.create(owner, record).await {
                Ok(made) => {
                    caller.disarm();
                    let (_, upstream) = mpsc::channel(1);
                    goes_on(made, TaskCall { call: running, upstream, cancel }).await
                }
                // It goes with its caller, and may have run.
                Err(error) => AgentEnd::Unknown { error: format!("{error}; the call was cancelled.") },
            };
        }
    };
    caller.disarm();
    ending(&reply)
}

/// The call itself. An agent has no person to ask, so questions from the server are dropped, which answers them with an error.
async fn run(
    hub: Arc<Hub>,
    client: ClientContext,
    backend: Backend,
    params: Fields,
    cancel: CancellationToken,
) -> Option<CallReply> {
    let (sink, mut said) = mpsc::channel::<Inbound>(SAID_MAX);
    let calling = call::pass(&hub, &client, &backend, "tools/call", &params, &sink);
    let draining = async { while said.recv().await.is_some() {} };
    let both = async {
        match futures_util::future::select(std::pin::pin!(calling), std::pin::pin!(draining)).await {
            Either::Left((reply, _)) => reply,
            Either::Right(((), calling)) => calling.await,
        }
    };
    Box::pin(cancel.run_until_cancelled(both)).await
}

/// The call has become a task: that is its result for now.
async fn goes_on(made: CreatedTask, work: TaskCall) -> AgentEnd {
    let facts = made.record.shown(&made.id);
    let text = format!(
        "The call takes long and goes on as the task {}. Its result is to be had from {OURS}__get_task_result.",
        made.id
    );
    made.start(work).await;
    AgentEnd::Success { text, result: json!({ "structuredContent": facts }) }
}

/// The hub's own tools, as far as agents need them: what became of a call that took long.
async fn about_a_task(hub: &Arc<Hub>, client: &ClientContext, tool: &str, arguments: &Value) -> AgentEnd {
    let (sink, _) = mpsc::channel(1);
    let mut params = Fields::default();
    params.set("arguments", raw(arguments));
    ending(&tools::call(hub, client, tool, &params, &sink).await)
}

/// What became of the call is what its reply says of it; the answer itself is only shown.
fn ending(reply: &CallReply) -> AgentEnd {
    let (text, result) = match &reply.answer {
        Ok(result) => told(lossy(result), reply.outcome),
        Err(error) => (message::message_of(error), lossy(error)),
    };
    match reply.outcome {
        CallOutcome::Result => AgentEnd::Success { text, result },
        CallOutcome::Unknown => AgentEnd::Unknown { error: text },
        CallOutcome::ToolError | CallOutcome::Error | CallOutcome::NotExecuted => {
            AgentEnd::Failed { error: text, result }
        }
    }
}

/// What a model reads of a result. One that failed may say so in a sentence of its own.
fn told(result: Value, outcome: CallOutcome) -> (String, Value) {
    let sentence = result["structuredContent"]["error"].as_str().filter(|_| outcome != CallOutcome::Result);
    let parts = result["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = || parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<&str>>().join("\n");
    (sentence.map_or_else(texts, ToOwned::to_owned), result)
}
