//! Follows a task that a backend made of a call: asks for it until it is over, also across the backend's restarts.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_core::backend::Resend;
use serde_json::json;

use crate::backend::{Backend, CallEnd};
use crate::fields::{Fields, Raw, raw};
use crate::front::{Client, bridge};
use crate::hub::Hub;
use crate::link::{Sink, Upcall};
use crate::message::{self, Answer};
use crate::outcome;
use crate::tasks::Upstream;

/// What the backend asks for is honoured between these.
const POLL_MIN_MS: u64 = 50;
const POLL_MAX_MS: u64 = 60_000;
const POLL_DEFAULT_MS: u64 = 1000;
/// How long a server may be missing from the configuration, as it is when it is replaced or when we have just begun.
const APPEAR: Duration = Duration::from_secs(30);
/// While a backend is away it is looked at this often, besides when it returns.
const AWAY: Duration = Duration::from_secs(30);
/// Errors in a row that are not about the task itself.
const ERRORS_MAX: u32 = 5;

/// The task, if that is what a call was answered with.
pub fn created(answer: &Answer) -> Option<Upstream> {
    let fields = Fields::of(Some(answer.as_ref().ok()?));
    if fields.text("resultType").as_deref() != Some("task") {
        return None;
    }
    let poll_ms = fields.read("pollIntervalMs").unwrap_or(POLL_DEFAULT_MS);
    Some(Upstream { task_id: fields.text("taskId")?, poll_ms })
}

/// Waits for the end of the task and gives what the call itself would have been answered with. Dropping the future
/// cancels the task.
pub async fn follow(hub: &Arc<Hub>, client: &Client, server: &str, task: &Upstream, sink: &Sink) -> Answer {
    let mut open = Open { hub, client, server, task, over: false };
    let answer = poll(hub, client, server, task, sink).await;
    open.over = true;
    answer
}

async fn poll(hub: &Arc<Hub>, client: &Client, server: &str, task: &Upstream, sink: &Sink) -> Answer {
    let (mut answered, mut errors) = (HashSet::new(), 0);
    let mut poll_ms = task.poll_ms;
    loop {
        tokio::time::sleep(Duration::from_millis(poll_ms.clamp(POLL_MIN_MS, POLL_MAX_MS))).await;
        let Some(backend) = appeared(hub, client, server).await else {
            return Ok(outcome::task_lost(server, "the server is not there any more"));
        };
        let deadline = Instant::now() + hub.options.call_timeout;
        let call = about(client, "tasks/get", &raw(&json!({ "taskId": task.task_id })));
        let state = match backend.call(call, deadline, Resend::Always).await {
            CallEnd::Answered { answer: Ok(state), .. } => Fields::of(Some(&state)),
            CallEnd::Answered { answer: Err(error), .. } => {
                errors += 1;
                // A server that was restarted may have forgotten it; then nobody knows what became of the call.
                if message::code_of(&error) == message::INVALID_PARAMS || errors >= ERRORS_MAX {
                    return Ok(outcome::task_lost(server, &message::message_of(&error)));
                }
                continue;
            }
            CallEnd::Failed(_) => {
                let mut snapshot = backend.snapshot.clone();
                let _ = tokio::time::timeout(AWAY, snapshot.wait_for(|now| now.is_connected())).await;
                continue;
            }
        };
        errors = 0;
        poll_ms = state.read("pollIntervalMs").unwrap_or(poll_ms);
        match state.text("status").as_deref() {
            Some("completed") => return Ok(state.get("result").map_or_else(crate::fields::empty, ToOwned::to_owned)),
            Some("failed") => {
                let unsaid = || message::error(message::INTERNAL_ERROR, "the task failed");
                return Err(state.get("error").map_or_else(unsaid, ToOwned::to_owned));
            }
            Some("cancelled") => {
                let facts = json!({ "error": format!("{server} cancelled the task."), "code": "CANCELLED" });
                return Ok(outcome::tool_error(&facts));
            }
            Some("input_required") => {
                let mut asked = state.object("inputRequests");
                answered.iter().for_each(|key: &String| asked.remove(key));
                answered.extend(asked.iter().map(|(key, _)| key.to_owned()));
                if !asked.is_empty() {
                    let responses = bridge::ask_each(&backend.key.name, &asked, sink).await?;
                    let mut params = Fields::default();
                    params.put("taskId", &task.task_id);
                    params.set("inputResponses", responses.to_raw());
                    let call = about(client, "tasks/update", &params.to_raw());
                    backend.call(call, Instant::now() + hub.options.call_timeout, Resend::Always).await;
                }
            }
            _ => {}
        }
    }
}

fn about(client: &Client, method: &str, params: &Raw) -> Upcall {
    Upcall {
        method: method.to_owned(),
        params: Some(params.clone()),
        caller: client.caller.clone(),
        sink: None,
        headers: None,
        param_headers: Vec::new(),
        log_level: None,
    }
}

async fn appeared(hub: &Hub, client: &Client, server: &str) -> Option<Backend> {
    // First listen, then look, so that it cannot come in between.
    let mut happenings = hub.happenings();
    let until = tokio::time::Instant::now() + APPEAR;
    loop {
        if let Some(backend) = hub.find(&client.principal, server) {
            return Some(backend);
        }
        if tokio::time::timeout_at(until, happenings.recv()).await.is_err() {
            return None;
        }
    }
}

/// A task whose caller may walk away: the backend is told.
struct Open<'a> {
    hub: &'a Arc<Hub>,
    client: &'a Client,
    server: &'a str,
    task: &'a Upstream,
    over: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // A hub that leaves takes nothing back: the next one goes on.
        if self.over || self.hub.tasks.closing.is_cancelled() {
            return;
        }
        let Some(backend) = self.hub.find(&self.client.principal, self.server) else { return };
        let call = about(self.client, "tasks/cancel", &raw(&json!({ "taskId": self.task.task_id })));
        let deadline = Instant::now() + self.hub.options.call_timeout;
        tokio::spawn(async move { backend.call(call, deadline, Resend::Always).await });
    }
}
