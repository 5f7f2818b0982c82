//! One call of a tool through the hub, from its request to its one outcome.

use serde_json::{Value, json};

use super::back_off;
use super::mcp::{McpClient, McpSession, json_of};
use crate::dice::Dice;
use crate::mcp::STATELESS;
use crate::mcp::ledger::ToldOutcome;
use crate::mcp::tool::SimTool;
use crate::wire::{HttpAnswer, Lost, SseReader};

const INVALID_PARAMS: i64 = -32602;

/// How a call ended, as far as its client can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolCallEnd {
    /// The tool answered.
    Answered,
    /// It may have run.
    Unknown,
    NotExecuted,
    /// The session is not there, and the call did not run or may have.
    SessionGone,
}

#[derive(Debug)]
pub struct McpCall<'a> {
    client: &'a McpClient,
    session: &'a McpSession,
    id: u64,
    key: String,
    tool: SimTool,
    ms: u64,
    dice: Dice,
    /// Of its stream: where it begins, and how far it was read.
    first: Option<String>,
    cursor: Option<String>,
    /// How far the tool was said to be.
    progress: u64,
}

impl<'a> McpCall<'a> {
    pub fn new(client: &'a McpClient, session: &'a McpSession, tool: SimTool, ms: u64, dice: Dice) -> McpCall<'a> {
        let id = session.next_call();
        let key = session.key(id);
        McpCall { client, session, id, key, tool, ms, dice, first: None, cursor: None, progress: 0 }
    }

    fn note(&self, what: impl std::fmt::Display) {
        self.client.clients.trace.note(&self.client.caller.who, what);
    }

    fn violate(&self, what: impl std::fmt::Display) {
        self.client.clients.oracle.violate(&self.client.caller.who, what);
    }

    fn told(&self, outcome: ToldOutcome) {
        self.client.ledger.told(&self.client.caller.who, &self.key, outcome);
    }

    /// Makes the call, and reads its answer to the end.
    pub async fn make(self) -> ToolCallEnd {
        let arguments = json!({ "key": self.key, "ms": self.ms });
        let (name, mut meta) = (self.client.tool_name(self.tool), json!({ "progressToken": self.id }));
        let mut headers = self.session.headers();
        if self.session.id.is_none() {
            meta["io.modelcontextprotocol/protocolVersion"] = STATELESS.into();
            meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
            headers.push(("mcp-method", "tools/call".to_owned()));
            headers.push(("mcp-name", name.clone()));
        }
        let params = json!({ "name": name, "arguments": arguments, "_meta": meta });
        let body = json!({ "jsonrpc": "2.0", "id": self.id, "method": "tools/call", "params": params });
        self.note(format_args!("→ {} {}", self.tool.name(), self.key));
        let answer = Box::pin(self.client.caller.begin("POST", &self.client.path, &headers, Some(&body))).await;
        let Ok(mut answer) = answer else {
            self.note(format_args!("{} lost without an answer", self.key));
            return ToolCallEnd::Unknown;
        };
        self.note(format_args!("{} ← {}", self.key, answer.status));
        match answer.status {
            200 if is_stream(&answer) => self.read_to_the_end(answer).await,
            200 => match json_of(&mut answer).await {
                Ok(answer) => self.judge(&answer),
                Err(Lost) => ToolCallEnd::Unknown,
            },
            // Taken back, which it never asks for, or the hub has ended under it.
            202 => ToolCallEnd::Unknown,
            404 if self.session.id.is_some() => {
                self.told(ToldOutcome::NotExecuted);
                self.gone(404)
            }
            429 | 503 => {
                self.told(ToldOutcome::NotExecuted);
                ToolCallEnd::NotExecuted
            }
            status => {
                self.violate(format_args!("the call {} was answered {status}", self.key));
                ToolCallEnd::Unknown
            }
        }
    }

    /// Its session, or its place there, is not known any more.
    fn gone(&self, status: u16) -> ToolCallEnd {
        if self.client.clients.oracle.has_no_gaps() {
            self.violate(format_args!("{} is answered {status} where all is kept", self.key));
        }
        ToolCallEnd::SessionGone
    }

    async fn read_to_the_end(mut self, answer: HttpAnswer) -> ToolCallEnd {
        let mut stream = SseReader::new(answer);
        loop {
            if let Ok(Some(answer)) = self.read(&mut stream).await {
                let end = self.judge(&answer);
                if self.dice.percent(25) {
                    Box::pin(self.read_again(&answer)).await;
                }
                return end;
            }
            stream = loop {
                let caller = &self.client.caller;
                back_off(caller, &mut self.dice).await;
                let Some(cursor) = self.cursor.clone() else { return ToolCallEnd::Unknown };
                match Box::pin(self.take_up(&cursor)).await {
                    Ok(answer) if answer.status == 200 => break SseReader::new(answer),
                    Ok(answer) if [404, 400].contains(&answer.status) => return self.gone(answer.status),
                    Ok(answer) if ![429, 503].contains(&answer.status) => {
                        let status = answer.status;
                        self.violate(format_args!("the stream of {} is answered {status}", self.key));
                    }
                    Ok(_) | Err(Lost) => {}
                }
            };
        }
    }

    async fn take_up(&self, cursor: &str) -> Result<HttpAnswer, Lost> {
        let mut headers = self.session.headers();
        headers.push(("last-event-id", cursor.to_owned()));
        let answer = self.client.caller.begin("GET", &self.client.path, &headers, None).await?;
        self.note(format_args!("{} from {cursor} ← {}", self.key, answer.status));
        Ok(answer)
    }

    /// Reads on until the answer; none if the stream ends before, or if the client lets go of it.
    async fn read(&mut self, stream: &mut SseReader) -> Result<Option<Value>, Lost> {
        let leaves = self.dice.percent(30) && !self.client.clients.is_quiet();
        let mut patience = if leaves { self.dice.between(1, 4) } else { u64::MAX };
        while let Some((cursor, data)) = stream.next().await? {
            if let Some(cursor) = cursor {
                self.first.get_or_insert_with(|| cursor.clone());
                self.cursor = Some(cursor);
            }
            if let Some(answer) = self.hear(&data) {
                return Ok(Some(answer));
            }
            patience = patience.saturating_sub(1);
            if patience == 0 {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// One message of its stream; the answer, if it is that.
    fn hear(&mut self, data: &str) -> Option<Value> {
        // What a stream begins with says nothing.
        let message: Value = serde_json::from_str(data).ok()?;
        if message["method"].is_null() {
            return Some(message);
        }
        self.note(format_args!("{} ← {} {}", self.key, message["method"], message["params"]));
        if message["method"] == "notifications/progress" {
            let (token, progress) = (&message["params"]["progressToken"], &message["params"]["progress"]);
            if *token != self.id || message["params"]["message"] != self.key.as_str() {
                self.violate(format_args!("{} was told of the progress of another call: {data}", self.key));
            }
            let progress = progress.as_u64().unwrap_or(0);
            if progress <= self.progress {
                let before = self.progress;
                self.violate(format_args!("{} was told of progress {progress} after {before}", self.key));
            }
            self.progress = progress;
        }
        None
    }

    /// What it read once it must read again: a call has one outcome.
    async fn read_again(&mut self, known: &Value) {
        let Some(first) = self.first.clone() else { return };
        let Ok(answer) = self.take_up(&first).await else { return };
        if answer.status != 200 {
            return;
        }
        let mut stream = SseReader::new(answer);
        self.progress = 0;
        while let Ok(Some((_, data))) = stream.next().await {
            if let Some(answer) = self.hear(&data) {
                // Of a call whose answer the store has lost, the hub does not know more than that it was under way.
                if answer != *known && self.client.clients.oracle.has_no_gaps() {
                    self.violate(format_args!("{} was answered {known}, and then {answer}", self.key));
                }
                return;
            }
        }
    }

    /// What an answer says became of the call.
    fn judge(&self, answer: &Value) -> ToolCallEnd {
        if answer["id"] != self.id {
            self.violate(format_args!("{} got the answer to another request: {answer}", self.key));
            return ToolCallEnd::Unknown;
        }
        let (result, facts) = (&answer["result"], &answer["result"]["structuredContent"]);
        let code = facts["code"].as_str().unwrap_or_default();
        self.note(format_args!("{} ends: {} {code}{}", self.key, result["content"][0]["text"], answer["error"]));
        match facts["outcome"].as_str() {
            Some("not_executed") => {
                self.told(ToldOutcome::NotExecuted);
                return ToolCallEnd::NotExecuted;
            }
            Some("unknown") => {
                self.told(ToldOutcome::Unknown);
                return ToolCallEnd::Unknown;
            }
            _ => {}
        }
        // An error says nothing of whether it ran. That there is no such tool is never true.
        if answer["error"].is_object() {
            if answer["error"]["code"] == INVALID_PARAMS {
                self.violate(format_args!("{} was answered {}", self.key, answer["error"]));
            }
            return ToolCallEnd::Unknown;
        }
        let (text, failed) = (&result["content"][0]["text"], result["isError"] == true);
        if *text != self.tool.answer(&self.key).as_str() || failed != (self.tool == SimTool::Fail) {
            self.violate(format_args!("{} was answered {result}", self.key));
        }
        self.told(ToldOutcome::Answered);
        ToolCallEnd::Answered
    }
}

fn is_stream(answer: &HttpAnswer) -> bool {
    answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
}
