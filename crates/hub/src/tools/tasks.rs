//! Calling tools by name, and what becomes of calls that take long.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{HubToolOutcome, ToolInvocation};
use crate::relay::task;
use crate::relay::{self, peer_requests};
use crate::session::HubSession;
use crate::tasks::{HubTaskRecord, TaskCall};

const SAID_MAX: usize = 64;
/// An answer waits this long at most for what was said before it; a store may be slow.
const SAID_WITHIN: Duration = Duration::from_secs(1);

pub(crate) async fn execute(call: &ToolInvocation<'_>) -> Result<HubToolOutcome, String> {
    let (server, tool) = (call.text("server")?, call.text("tool")?);
    let backend = call.hub.find_anywhere(&call.client.principal, &server).await;
    let backend = backend.ok_or_else(|| format!("there is no server named {server}"))?;
    let timeout = match call.arguments.get("timeout_ms").filter(|written| written.get() != "null") {
        None => call.hub.options.call_timeout.as_millis() as u64,
        Some(_) => call.timeout()?,
    };
    let at_once = call.arguments.read("as_task") == Some(true);
    let session = match call.known_session().await? {
        Some(session) => Some(session),
        None if at_once => Some(call.session().await?),
        None => None,
    };
    let mut params = call.params();
    params.put("name", &tool);
    params.set("arguments", call.arguments.get("args").map_or_else(crate::fields::empty, ToOwned::to_owned));
    let (hub, client) = (call.hub.clone(), call.client.clone());
    let (inner, said) = mpsc::channel(SAID_MAX);
    let heard: Arc<OnceLock<Arc<HubSession>>> = Arc::new(session.clone().map(OnceLock::from).unwrap_or_default());
    let forward = tokio::spawn(task::forward(said, call.sink.clone(), heard.clone(), server.clone()));
    let cancel = CancellationToken::new();
    let (token, spawned_session, named) = (cancel.clone(), session.clone(), server.clone());
    let guard = AbortOnDrop(forward.abort_handle());
    let (found, known) = mpsc::channel(1);
    let running = tokio::spawn(async move {
        let _guard = guard;
        let session = spawned_session.as_ref();
        let call = async {
            let reply = relay::to_backend(&hub, &client, session, &backend, "tools/call", &params, &inner).await;
            let Some(task) = task::upstream_task(&reply.answer) else { return reply };
            let _ = found.try_send(task.clone());
            let acting = relay::acting(&client, session);
            task::follow(&hub, &acting, &named, &task, &inner).await
        };
        let ended = token.run_until_cancelled(call).await;
        // What was said before the answer is passed on and kept before the answer.
        drop(inner);
        let _ = tokio::time::timeout(SAID_WITHIN, forward).await;
        ended
    });
    let mut work = TaskCall { call: running, upstream: known, cancel: cancel.clone() };
    if !at_once {
        // If the caller goes away before that, so does the call.
        let caller = cancel.clone().drop_guard();
        if let Ok(ended) = tokio::time::timeout(Duration::from_millis(timeout), &mut work.call).await {
            caller.disarm();
            return match ended {
                Ok(Some(reply)) => Ok(HubToolOutcome::Reply(reply)),
                Ok(None) | Err(_) => Err("the call was cancelled".into()),
            };
        }
        caller.disarm();
    }
    // From here on clients must be able to find it, and it must be able to ask its client.
    let caller = cancel.clone().drop_guard();
    let session = match session {
        Some(session) => session,
        None => call.session().await?,
    };
    let _ = heard.set(session.clone());
    caller.disarm();
    become_task(call, &session, &server, &tool, work).await
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The call goes on by itself; its result is kept.
async fn become_task(
    call: &ToolInvocation<'_>,
    session: &Arc<HubSession>,
    server: &str,
    tool: &str,
    mut work: TaskCall,
) -> Result<HubToolOutcome, String> {
    let upstream = work.upstream.try_recv().ok();
    let record = HubTaskRecord::new(server, tool, Some(session.id.clone()), upstream, call.hub.options.clock.now_ms());
    // Until the task is in the store, it is the caller's call, and goes with the caller.
    let caller = work.cancel.clone().drop_guard();
    let made = call.hub.tasks.create(&call.client.principal, record).await;
    let made = made.map_err(|error| format!("{error}; the call was cancelled"))?;
    let mut facts = made.record.shown(&made.id);
    if session.record.handle {
        facts["handle"] = json!(session.id);
    }
    caller.disarm();
    made.start(work).await;
    Ok(HubToolOutcome::Task(facts, session.id.clone()))
}

pub(crate) async fn list(call: &ToolInvocation<'_>) -> Result<HubToolOutcome, String> {
    let session = call.known_session().await?;
    let session = session.as_ref().map(|session| &session.id);
    let tasks = call.hub.tasks.list(&call.client.principal, session).await.map_err(|error| error.to_string())?;
    let shown: Vec<Value> = tasks.iter().map(|(id, task)| task.shown(id)).collect();
    Ok(HubToolOutcome::Facts(json!({ "tasks": shown })))
}

pub(crate) async fn about(call: &ToolInvocation<'_>, name: &str) -> Result<HubToolOutcome, String> {
    let id = call.text("task_id")?;
    let tasks = &call.hub.tasks;
    let session = call.known_session().await?;
    let found = tasks.find(&id, &call.client.principal).await.map_err(|error| error.to_string())?;
    let found = found.filter(|(_, task)| task.is_of(session.as_ref().map(|session| &session.id)));
    let (id, task) = found.ok_or_else(|| format!("there is no task {id}; results are kept for a time only"))?;
    match name {
        "get_task" => Ok(HubToolOutcome::Facts(task.shown(&id))),
        "cancel_task" => {
            let cancelled =
                tasks.cancel(&id).await || peer_requests::cancel(call.hub, &call.client.principal, &id).await;
            Ok(HubToolOutcome::Facts(json!({ "taskId": id, "cancelled": cancelled })))
        }
        _ => match tasks.result(&id).await.map_err(|error| error.to_string())? {
            Some(reply) => Ok(HubToolOutcome::Reply(reply)),
            None => Err(format!("the task has no result: it is {}", task.status.word())),
        },
    }
}
