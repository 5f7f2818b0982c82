//! An MCP client: it calls tools through the hub, and holds what it is told against what the backend has done. One of revision
//! 2025-11-25 has a session, and takes the stream of an answer up again where it was cut; one of 2026-07-28 has neither.
//!
//! It never repeats a call that may have run. One that did not run is made again under another key.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::mcp_call::{McpCall, ToolCallEnd};
use super::{Clients, back_off};
use crate::dice::Dice;
use crate::mcp::ledger::CallLedger;
use crate::mcp::tool::{SERVER, SimTool};
use crate::mcp::{STATELESS, WITH_SESSIONS};
use crate::wire::{HttpAnswer, Lost, SimCaller};

/// One client, and how it comes to its backend.
#[derive(Debug)]
pub struct McpClient {
    pub clients: Clients,
    pub caller: SimCaller,
    pub ledger: CallLedger,
    owner: String,
    /// All servers as one, or the backend alone.
    pub path: String,
    is_stateless: bool,
    /// How many sessions it has had.
    sessions: u64,
}

/// A session of such a client at the hub, or what stands for one.
#[derive(Debug)]
pub struct McpSession {
    pub id: Option<String>,
    /// What the keys of its calls begin with: those that may be made in one session of the backend, and no others, begin alike.
    name: String,
    who: String,
    calls: AtomicU64,
}

impl McpSession {
    /// The number of the next call. Two clients count alike, so that what is one's and comes to the other has a name that it knows.
    pub fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// No other call has this key.
    pub fn key(&self, call: u64) -> String {
        format!("{}/{}-{call}", self.name, self.who)
    }

    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = accepting();
        headers.extend(self.id.iter().map(|id| ("mcp-session-id", id.clone())));
        let revision = if self.id.is_some() { WITH_SESSIONS } else { STATELESS };
        headers.push(("mcp-protocol-version", revision.to_owned()));
        headers
    }
}

pub fn accepting() -> Vec<(&'static str, String)> {
    vec![("accept", "application/json, text/event-stream".to_owned())]
}

/// Makes some calls while things break, and more once they do not, until one was answered then.
pub async fn call_tools(clients: Clients, ledger: CallLedger, owner: String, who: String, mut dice: Dice) {
    let path = if dice.percent(30) { format!("/mcp/{SERVER}") } else { "/mcp".to_owned() };
    let is_stateless = dice.percent(35);
    let caller = clients.caller(&who, &owner);
    let mut client = McpClient { clients, caller, ledger, owner, path, is_stateless, sessions: 0 };
    let wanted = dice.between(2, 14);
    let mut session = client.begin(&mut dice).await;
    let mut done = 0;
    loop {
        let is_last = done >= wanted;
        while is_last && !client.clients.is_quiet() {
            client.caller.pause(50).await;
        }
        let mut calls = vec![client.draw(&session, is_last, &mut dice)];
        if !is_last && dice.percent(25) {
            calls.push(client.draw(&session, false, &mut dice));
        }
        let ends = futures_util::future::join_all(calls.into_iter().map(|call| Box::pin(call.make()))).await;
        if is_last && ends.contains(&ToolCallEnd::Answered) {
            break;
        }
        if ends.contains(&ToolCallEnd::SessionGone) {
            session = client.begin(&mut dice).await;
        }
        done += ends.iter().filter(|end| matches!(end, ToolCallEnd::Answered | ToolCallEnd::Unknown)).count() as u64;
        if ends.contains(&ToolCallEnd::NotExecuted) {
            back_off(&client.caller, &mut dice).await;
        }
        client.caller.pause(dice.below(200)).await;
    }
    if session.id.is_some() && dice.percent(50) {
        // Whether it arrives is not waited for.
        let _ = Box::pin(client.caller.request("DELETE", &client.path, &session.headers(), None)).await;
    }
}

impl McpClient {
    fn draw<'a>(&'a self, session: &'a McpSession, is_last: bool, dice: &mut Dice) -> McpCall<'a> {
        let tool = if is_last { SimTool::Count } else { SimTool::draw(dice) };
        let ms = [30, 150, 600, 2500][dice.below(4) as usize];
        McpCall::new(self, session, tool, ms, Dice::new(dice.draw()))
    }

    /// How a tool is called here.
    pub fn tool_name(&self, tool: SimTool) -> String {
        if self.path == "/mcp" { format!("{SERVER}__{}", tool.name()) } else { tool.name().to_owned() }
    }

    /// A session, however often it has to be asked for.
    async fn begin(&mut self, dice: &mut Dice) -> McpSession {
        let (who, calls) = (self.caller.who.clone(), AtomicU64::default());
        if self.is_stateless {
            // Those of one person are one to a backend with sessions.
            return McpSession { id: None, name: format!("{} alone", self.owner), who, calls };
        }
        loop {
            if let Ok(Some(id)) = Box::pin(self.initialize()).await {
                self.sessions += 1;
                let name = format!("session {} of {who}", self.sessions);
                self.ledger.knows(&self.owner, &id, &self.path);
                let session = McpSession { id: Some(id), name, who, calls };
                let told = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
                // One that is lost is not missed.
                let _ = Box::pin(self.caller.request("POST", &self.path, &session.headers(), Some(&told))).await;
                return session;
            }
            back_off(&self.caller, dice).await;
        }
    }

    async fn initialize(&self) -> Result<Option<String>, Lost> {
        let client = json!({ "name": self.caller.who, "version": "1" });
        let params = json!({ "protocolVersion": WITH_SESSIONS, "capabilities": {}, "clientInfo": client });
        let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let mut answer = self.caller.begin("POST", &self.path, &accepting(), Some(&body)).await?;
        let (status, id) = (answer.status, answer.header("mcp-session-id").map(str::to_owned));
        let said = json_of(&mut answer).await?;
        self.clients
            .trace
            .note(&self.caller.who, format_args!("initialize ← {status} {}", id.as_deref().unwrap_or("-")));
        match status {
            200 if said["result"]["protocolVersion"] == WITH_SESSIONS => Ok(id),
            // Behind its own path the backend itself has to be there.
            200 if said["error"].is_object() && self.path != "/mcp" => Ok(None),
            429 | 503 => Ok(None),
            status => {
                self.clients.oracle.violate(&self.caller.who, format_args!("initialize was answered {status}: {said}"));
                Ok(None)
            }
        }
    }
}

/// The whole of an answer that is no stream.
pub async fn json_of(answer: &mut HttpAnswer) -> Result<Value, Lost> {
    Ok(serde_json::from_slice(&answer.body().await?).unwrap_or(Value::Null))
}
