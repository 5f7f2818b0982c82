//! Follows a task that a backend made of a call: asks for it until it is over, also across the backend's restarts.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backend::{CallFailure, ResendPolicy};
use bowline_env::clock;
use serde_json::json;

use super::{ClientContext, call};
use crate::backend::Backend;
use crate::call::reply::{CallEnd, CallReply};
use crate::call::{BackendCall, InboundSink, outcome};
use crate::fields::{Fields, Raw, raw};
use crate::hub::Hub;
use crate::message::{self, RpcResult};
use crate::session::GONE;
use crate::tasks::UpstreamTask;

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
pub fn created(answer: &RpcResult) -> Option<UpstreamTask> {
    let fields = Fields::of(Some(answer.as_ref().ok()?));
    if fields.text("resultType").as_deref() != Some("task") {
        return None;
    }
    let poll_ms = fields.read("pollIntervalMs").unwrap_or(POLL_DEFAULT_MS);
    Some(UpstreamTask { task_id: fields.text("taskId")?, poll_ms })
}

/// Waits for the end of the task and gives what the call itself would have been answered with. Dropping the future
/// cancels the task.
pub async fn follow(
    hub: &Arc<Hub>,
    client: &ClientContext,
    server: &str,
    task: &UpstreamTask,
    sink: &InboundSink,
) -> CallReply {
    let mut open = PolledTask { hub, client, server, task, over: false };
    let reply = poll(hub, client, server, task, sink).await;
    open.over = true;
    reply
}

async fn poll(
    hub: &Arc<Hub>,
    client: &ClientContext,
    server: &str,
    task: &UpstreamTask,
    sink: &InboundSink,
) -> CallReply {
    let (mut questions, mut errors) = (Questions::default(), 0);
    let mut poll_ms = task.poll_ms;
    loop {
        tokio::time::sleep(Duration::from_millis(poll_ms.clamp(POLL_MIN_MS, POLL_MAX_MS))).await;
        let Some(backend) = appeared(hub, client, server).await else {
            return outcome::task_lost(server, "the server is not there any more");
        };
        hub.used(&backend, &client.principal);
        let call = about(client, "tasks/get", &raw(&json!({ "taskId": task.task_id })));
        let state = match backend.call_within(call, hub.options.call_timeout, ResendPolicy::Always).await {
            CallEnd::Answered { answer: Ok(state), .. } => Fields::of(Some(&state)),
            CallEnd::Answered { answer: Err(error), .. } => {
                errors += 1;
                // A server that was restarted may have forgotten it; then the outcome of the call is unknown.
                if message::code_of(&error) == message::INVALID_PARAMS || errors >= ERRORS_MAX {
                    return outcome::task_lost(server, &message::message_of(&error));
                }
                continue;
            }
            // It is there, and wants to be asked later.
            CallEnd::Failed(CallFailure::Refused { retry_after: Some(wait), .. }) => {
                tokio::time::sleep(wait.min(Duration::from_millis(POLL_MAX_MS))).await;
                continue;
            }
            CallEnd::Failed(CallFailure::Refused { reason, retry_after: None }) => {
                errors += 1;
                if errors >= ERRORS_MAX {
                    return outcome::task_lost(server, &reason);
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
            Some("completed") => {
                return CallReply::new(Ok(state.get("result").map_or_else(crate::fields::empty, ToOwned::to_owned)));
            }
            Some("failed") => {
                let unsaid = || message::error(message::INTERNAL_ERROR, "the task failed");
                return CallReply::new(Err(state.get("error").map_or_else(unsaid, ToOwned::to_owned)));
            }
            Some("cancelled") => {
                let facts = json!({ "error": format!("{server} cancelled the task."), "code": "CANCELLED" });
                return CallReply::new(Ok(outcome::tool_error(&facts)));
            }
            Some("input_required") => {
                if let Err(error) = questions.ask(&backend, &state.object("inputRequests"), sink).await {
                    return CallReply::new(Err(error));
                }
                let Some(responses) = questions.unsent() else { continue };
                let mut params = Fields::default();
                params.put("taskId", &task.task_id);
                params.set("inputResponses", responses);
                let call = about(client, "tasks/update", &params.to_raw());
                let end = backend.call_within(call, hub.options.call_timeout, ResendPolicy::Always).await;
                if let Some(why) = questions.handle_sent(&end) {
                    return outcome::task_lost(server, &why);
                }
            }
            _ => {}
        }
    }
}

/// What a task asked for: each question is put to the client once, and its answer sent until the server has taken it.
#[derive(Default)]
struct Questions {
    taken: HashSet<String>,
    /// Answered by the client, and not taken by the server yet.
    unsent: Fields,
    refusals: u32,
}

impl Questions {
    async fn ask(&mut self, backend: &Backend, asked: &Fields, sink: &InboundSink) -> Result<(), Raw> {
        let (mut new, mut unsent) = (asked.clone(), Fields::default());
        for (key, _) in asked.iter() {
            if let Some(answer) = self.unsent.get(key) {
                unsent.set(key, answer.to_owned());
            }
            if unsent.has(key) || self.taken.contains(key) {
                new.remove(key);
            }
        }
        // What the server does not ask for any more is not sent.
        self.unsent = unsent;
        for (key, question) in new.iter() {
            let mut one = Fields::default();
            one.set(key, question.to_owned());
            let responses = match call::ask_each(&backend.key.name, &one, sink).await {
                // It is asked again when the server is back, if that still wants to know.
                Err(error) if message::message_of(&error) == GONE => return Ok(()),
                responses => responses?,
            };
            responses.iter().for_each(|(key, answer)| self.unsent.set(key, answer.to_owned()));
        }
        Ok(())
    }

    fn unsent(&self) -> Option<Raw> {
        (!self.unsent.is_empty()).then(|| self.unsent.to_raw())
    }

    fn refused(&mut self, why: impl FnOnce() -> String) -> Option<String> {
        self.refusals += 1;
        (self.refusals >= ERRORS_MAX).then(why)
    }

    /// They were sent. Why they cannot be, if the server refuses them again and again.
    fn handle_sent(&mut self, end: &CallEnd) -> Option<String> {
        match end {
            CallEnd::Answered { answer: Ok(_), .. } => {
                self.taken.extend(self.unsent.iter().map(|(key, _)| key.to_owned()));
                (self.unsent, self.refusals) = (Fields::default(), 0);
                None
            }
            CallEnd::Answered { answer: Err(error), .. } => self.refused(|| message::message_of(error)),
            CallEnd::Failed(CallFailure::Refused { reason, .. }) => self.refused(|| reason.clone()),
            CallEnd::Failed(_) => None,
        }
    }
}

fn about(client: &ClientContext, method: &str, params: &Raw) -> BackendCall {
    BackendCall::new(client.caller.clone(), method, Some(params.clone()))
}

async fn appeared(hub: &Hub, client: &ClientContext, server: &str) -> Option<Backend> {
    // First listen, then look, so that it cannot come in between.
    let mut happenings = hub.happenings();
    let until = clock::now() + APPEAR;
    loop {
        if let Some(backend) = hub.find(&client.principal, server) {
            return Some(backend);
        }
        if tokio::time::timeout_at(until.into(), happenings.recv()).await.is_err() {
            return None;
        }
    }
}

/// A task whose caller may leave: then it is cancelled at the backend.
struct PolledTask<'a> {
    hub: &'a Arc<Hub>,
    client: &'a ClientContext,
    server: &'a str,
    task: &'a UpstreamTask,
    over: bool,
}

impl Drop for PolledTask<'_> {
    fn drop(&mut self) {
        // A hub that leaves takes nothing back: the next one goes on.
        if self.over || self.hub.tasks.closing.is_cancelled() {
            return;
        }
        let Some(backend) = self.hub.find(&self.client.principal, self.server) else { return };
        let call = about(self.client, "tasks/cancel", &raw(&json!({ "taskId": self.task.task_id })));
        let patience = self.hub.options.call_timeout;
        tokio::spawn(async move { backend.call_within(call, patience, ResendPolicy::Always).await });
    }
}
