//! What agents inside the server use: the tools of an owner, and one call with one honest ending.

use std::fmt;
use std::sync::Arc;

use bowline_protocol::Principal;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::catalogue::ListKind;
use crate::fields::{Fields, raw};
use crate::front::{Client, pass};
use crate::hub::Hub;
use crate::link::Inbound;
use crate::outcome;

const SAID_MAX: usize = 16;

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

/// What an owner's agents may call now. Answers at once: a server that is away is listed as it was.
pub fn tools(hub: &Hub, owner: &Principal) -> Vec<AgentTool> {
    let mut found = Vec::new();
    for backend in hub.visible(owner) {
        for entry in backend.catalogue().list(ListKind::Tools) {
            let fields = Fields::of(Some(entry));
            let tool = fields.text("name").unwrap_or_default();
            found.push(AgentTool {
                name: format!("{}__{tool}", backend.name()),
                server: backend.name().to_owned(),
                tool,
                description: fields.text("description").unwrap_or_default(),
                input_schema: fields.read("inputSchema").unwrap_or_else(|| json!({ "type": "object" })),
            });
        }
    }
    found
}

/// Calls `<server>__<tool>`. `lane` names the agent's session, which has its own session at the server. Dropping the
/// future takes the call back.
pub async fn call(hub: &Arc<Hub>, owner: &Principal, lane: &str, name: &str, arguments: &Value) -> AgentEnd {
    let failed = |error: String| AgentEnd::Failed { error, result: Value::Null };
    let Some((server, tool)) = name.split_once("__") else { return failed(format!("There is no tool {name}.")) };
    let Some(backend) = hub.find(owner, server) else { return failed(format!("There is no server {server}.")) };
    let client = Client::absent(owner, format!("agent {lane}"));
    let mut params = Fields::default();
    params.put("name", tool);
    params.set("arguments", raw(arguments));
    // An agent has nobody to ask, so questions are answered with "nobody" by dropping them.
    let (sink, mut said) = mpsc::channel::<Inbound>(SAID_MAX);
    let calling = pass::as_client(hub, &client, &backend, "tools/call", &params, &sink);
    let draining = async { while said.recv().await.is_some() {} };
    let (calling, draining) = (std::pin::pin!(calling), std::pin::pin!(draining));
    let reply = match futures_util::future::select(calling, draining).await {
        futures_util::future::Either::Left((reply, _)) => reply,
        futures_util::future::Either::Right(((), calling)) => calling.await,
    };
    match reply.answer {
        Err(error) => {
            let told: Value = serde_json::from_str(error.get()).unwrap_or_default();
            AgentEnd::Failed { error: crate::message::message_of(&error), result: told }
        }
        Ok(result) => ending(serde_json::from_str(result.get()).unwrap_or_default()),
    }
}

fn ending(result: Value) -> AgentEnd {
    let parts = result["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    let text = text.join("\n");
    if result["isError"] != true {
        return AgentEnd::Success { text, result };
    }
    let told = &result["structuredContent"];
    let error = told["error"].as_str().map_or(text, ToOwned::to_owned);
    if told["code"] == outcome::OUTCOME_UNKNOWN {
        return AgentEnd::Unknown { error };
    }
    AgentEnd::Failed { error, result }
}
