//! Calling tools by name, and what becomes of calls that take long.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Call, Outcome};
use crate::drive::conversation::Reply;
use crate::fields::Fields;
use crate::front::pass;
use crate::link::Inbound;
use crate::session::Session;

const SAID_MAX: usize = 64;

pub(crate) async fn execute(call: &Call<'_>) -> Result<Outcome, String> {
    let (server, tool) = (call.text("server")?, call.text("tool")?);
    let backend = call.hub.find_anywhere(&call.client.principal, &server).await;
    let backend = backend.ok_or_else(|| format!("there is no server named {server}"))?;
    let default = call.hub.options.call_timeout.as_millis() as u64;
    let timeout: u64 = call.arguments.read("timeout_ms").unwrap_or(default);
    let at_once = call.arguments.read("as_task") == Some(true);
    let session = match call.known_session().await? {
        Some(session) => Some(session),
        None if at_once => Some(call.session().await?),
        None => None,
    };
    let mut params = Fields::default();
    params.put("name", &tool);
    params.set("arguments", call.arguments.get("args").map_or_else(crate::fields::empty, ToOwned::to_owned));
    let (hub, client) = (call.hub.clone(), call.client.clone());
    // What the call says goes to the caller as long as that one listens, and to its session afterwards.
    let (inner, said) = mpsc::channel(SAID_MAX);
    let (listening, owner) = (call.sink.clone(), session.clone());
    let named = server.clone();
    let forward = tokio::spawn(forward(said, listening, owner, named));
    let cancel = CancellationToken::new();
    let (token, spawned_session) = (cancel.clone(), session.clone());
    let guard = AbortOnDrop(forward.abort_handle());
    let mut work = tokio::spawn(async move {
        let _guard = guard;
        let session = spawned_session;
        let call = pass::to_backend(&hub, &client, session.as_ref(), &backend, "tools/call", &params, &inner);
        token.run_until_cancelled(call).await
    });
    if !at_once {
        // If the caller goes away before that, so does the call.
        let caller = cancel.clone().drop_guard();
        if let Ok(ended) = tokio::time::timeout(Duration::from_millis(timeout), &mut work).await {
            caller.disarm();
            return match ended {
                Ok(Some(reply)) => Ok(Outcome::Reply(reply)),
                Ok(None) | Err(_) => Err("the call was cancelled".into()),
            };
        }
        caller.disarm();
    }
    become_task(call, session, &server, &tool, cancel, work).await
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Passes on what a call says.
async fn forward(
    mut said: mpsc::Receiver<Inbound>,
    listening: crate::link::Sink,
    session: Option<Arc<Session>>,
    server: String,
) {
    while let Some(inbound) = said.recv().await {
        let Err(mpsc::error::SendError(inbound)) = listening.send(inbound).await else { continue };
        let Some(session) = &session else { continue };
        match inbound {
            Inbound::Notification { method, params } => {
                let data = json!({ "name": server, "method": method, "params": params });
                let _ = session.tell("notification", &server, &data).await;
            }
            Inbound::Request { method, params, reply } => {
                let native = session.can(&method).then_some(crate::session::OWN_STREAM);
                let _ = session.ask(crate::pending::Pending::new(&server, method, params, reply), native).await;
            }
        }
    }
}

/// The call goes on by itself; its result is kept.
async fn become_task(
    call: &Call<'_>,
    session: Option<Arc<Session>>,
    server: &str,
    tool: &str,
    cancel: CancellationToken,
    work: tokio::task::JoinHandle<Option<Reply>>,
) -> Result<Outcome, String> {
    let Some(id) = call.hub.tasks.create(&call.client.principal, server, tool, cancel.clone()) else {
        cancel.cancel();
        return Err("there are too many tasks; the call was cancelled".into());
    };
    if let Some(session) = &session {
        let _ = session.tell("task_created", server, &json!({ "taskId": id, "tool": tool })).await;
    }
    let (hub, task, server) = (call.hub.clone(), id.clone(), server.to_owned());
    let (owner, told) = (call.client.principal.clone(), session.clone());
    tokio::spawn(async move {
        let word = match work.await {
            Ok(Some(reply)) => hub.tasks.finish(&task, reply.answer),
            Ok(None) | Err(_) => {
                hub.tasks.cancel(&task, &owner);
                Some("cancelled")
            }
        };
        let kind = match word {
            Some("completed") => "task_completed",
            Some("failed") => "task_failed",
            Some(_) => "task_cancelled",
            // It was cancelled before it ended; that was told already.
            None => return,
        };
        if let Some(session) = told {
            let _ = session.tell(kind, &server, &json!({ "taskId": task })).await;
        }
    });
    let mut facts = json!({ "taskId": id, "status": "working", "server": call.text("server")?, "tool": tool });
    if let Some(session) = session.filter(|session| session.record.handle) {
        facts["handle"] = json!(session.id);
    }
    Ok(Outcome::Facts(facts))
}

pub(crate) async fn about(call: &Call<'_>, name: &str) -> Result<Outcome, String> {
    let id = call.text("task_id")?;
    let (tasks, owner) = (&call.hub.tasks, &call.client.principal);
    let unknown = || format!("there is no task {id}");
    match name {
        "get_task" => tasks.shown(&id, owner).map(Outcome::Facts).ok_or_else(unknown),
        "cancel_task" => {
            tasks.shown(&id, owner).ok_or_else(unknown)?;
            Ok(Outcome::Facts(json!({ "taskId": id, "cancelled": tasks.cancel(&id, owner) })))
        }
        _ => match tasks.result(&id, owner).ok_or_else(unknown)? {
            Ok(result) => Ok(Outcome::Result(result)),
            Err(status) => Err(format!("the task has no result: it is {status}")),
        },
    }
}
