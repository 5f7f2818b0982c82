//! Tasks that the hub runs itself, before servers that do not know the Tasks extension: the hub waits for the call, and the client
//! asks the hub about it.

use std::sync::Arc;

use bowline_env::clock;
use bowline_protocol::LogId;
use bowline_store::StoreError;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
use crate::call::facts::is_answerable;
use crate::call::server_request::OpenQuestions;
use crate::call::server_request::no_recipient;
use crate::call::{CallReply, Conversation, ConversationStep, Exchange, Inbound, done};
use crate::catalogue::ListKind;
use crate::fields::{Fields, Raw, empty, raw};
use crate::hub::Hub;
use crate::message;
use crate::relay::task;
use crate::relay::{ClientContext, call};
use crate::tasks::{HubTaskRecord, TaskCall, TaskStatus, is_ours};

/// How often a client should ask. Asking costs one read of the store.
const POLL_INTERVAL_MS: u64 = 500;

/// What a server says of a tool of its own, in the revisions in which it could.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TaskSupport {
    Optional,
    Required,
}

/// The answer to a call that becomes a task of ours, or that only a task could answer; `None` if the server answers it.
pub async fn begin(
    hub: &Arc<Hub>,
    client: &ClientContext,
    backend: &Backend,
    method: &str,
    params: impl FnOnce() -> Fields + Send,
) -> Option<CallReply> {
    if method != "tools/call" || client.exchange() != Exchange::Stateless || backend.offers(Exchange::Stateless) {
        return None;
    }
    let params = params();
    match (support(backend, &params)?, task::declares(client)) {
        (_, true) => Some(Box::pin(start(hub, client, backend, &params)).await),
        (TaskSupport::Required, false) => Some(task::extension_is_missing()),
        (TaskSupport::Optional, false) => None,
    }
}

fn support(backend: &Backend, params: &Fields) -> Option<TaskSupport> {
    let catalogue = backend.catalogue();
    let tool = Fields::of(catalogue.find(ListKind::Tools, &params.text("name")?).map(|tool| &**tool));
    match tool.object("execution").text("taskSupport")?.as_str() {
        "optional" => Some(TaskSupport::Optional),
        "required" => Some(TaskSupport::Required),
        _ => None,
    }
}

async fn start(hub: &Arc<Hub>, client: &ClientContext, backend: &Backend, params: &Fields) -> CallReply {
    let tool = params.text("name").unwrap_or_default();
    let record = HubTaskRecord::new(backend.name(), &tool, None, None, hub.options.clock.now_ms());
    let task = match hub.tasks.create(&client.principal, record).await {
        Ok(task) => task,
        Err(error) => return CallReply::new(Err(message::error(message::INTERNAL_ERROR, &error.to_string()))),
    };
    let created = envelope(hub, client, backend, &task.id, &task.record).and("status", TaskStatus::Working.word());
    let (cancel, mut params) = (CancellationToken::new(), params.clone());
    // Of the tasks of older revisions this is none.
    params.remove("task");
    let conversing = converse(hub.clone(), client.clone(), backend.clone(), params, task.questions());
    let token = cancel.clone();
    let call = tokio::spawn(async move { token.run_until_cancelled(conversing).await });
    let (_, upstream) = mpsc::channel(1);
    task.start(TaskCall { call, upstream, cancel }).await;
    done(created.and("resultType", "task").to_raw())
}

/// Makes the call. What its server asks waits for the client, for `ask_timeout` at most.
async fn converse(
    hub: Arc<Hub>,
    client: ClientContext,
    backend: Backend,
    params: Fields,
    questions: Arc<OpenQuestions>,
) -> CallReply {
    let (patience, capabilities) = (hub.options.ask_timeout, client.caller.client.clone());
    let mut conversation = Conversation::begin(|sink| {
        Box::pin(async move { call::pass(&hub, &client, &backend, "tools/call", &params, &sink).await })
    });
    loop {
        let until = clock::now() + questions.expire(patience).unwrap_or(patience);
        let Ok(step) = tokio::time::timeout_at(until.into(), conversation.next()).await else { continue };
        match step {
            // Progress is the task's own matter: its client asks how it stands.
            ConversationStep::Said(Inbound::Notification { .. }) => {}
            ConversationStep::Said(Inbound::Request { server, method, params, reply })
                if is_answerable(&capabilities.capabilities, &method, params.as_ref()) =>
            {
                questions.put(server, method, params, reply);
            }
            // A server that has stopped waiting needs no answer.
            ConversationStep::Said(Inbound::Request { method, reply, .. }) if method == "roots/list" => {
                let _ = reply.send(Ok(raw(&json!({ "roots": [] }))));
            }
            ConversationStep::Said(Inbound::Request { reply, .. }) => drop(reply.send(no_recipient())),
            ConversationStep::Ended(reply) => return reply,
        }
    }
}

/// Answers a request about such a task; `None` if the hub has none that its server knows by this name.
pub async fn answer(
    hub: &Arc<Hub>,
    client: &ClientContext,
    backend: &Backend,
    own: &str,
    method: &str,
    params: &Fields,
) -> Option<CallReply> {
    if !is_ours(own) {
        return None;
    }
    let (id, record) = match hub.tasks.find(own, &client.principal).await {
        // A server can give a task of its own the name of another one.
        Ok(found) => found.filter(|(_, record)| record.server == backend.name())?,
        Err(error) => return Some(CallReply::new(Err(message::error(message::INTERNAL_ERROR, &error.to_string())))),
    };
    Some(match method {
        "tasks/get" => match detailed(hub, client, backend, &id, &record).await {
            Ok(shown) => done(shown),
            Err(error) => CallReply::new(Err(message::error(message::INTERNAL_ERROR, &error.to_string()))),
        },
        "tasks/update" => {
            if let Some(questions) = hub.tasks.questions(&id) {
                questions.answer(&params.object("inputResponses"));
            }
            done(empty())
        }
        // One that is over stays as it is, and the answer is the same.
        _ => {
            hub.tasks.cancel(&id).await;
            done(empty())
        }
    })
}

async fn detailed(
    hub: &Hub,
    client: &ClientContext,
    backend: &Backend,
    id: &LogId,
    record: &HubTaskRecord,
) -> Result<Raw, StoreError> {
    let shown = envelope(hub, client, backend, id, record);
    let shown = match record.status {
        TaskStatus::Working => match hub.tasks.questions(id).map(|questions| questions.shown()) {
            Some(asked) if !asked.is_empty() => shown.and("status", "input_required").and("inputRequests", &asked),
            _ => shown.and("status", TaskStatus::Working.word()),
        },
        TaskStatus::Cancelled => shown.and("status", TaskStatus::Cancelled.word()),
        // A tool that says that it failed has answered; only a call without a result has failed.
        TaskStatus::Completed | TaskStatus::Failed => match hub.tasks.result(id).await?.map(|reply| reply.answer) {
            Some(Ok(result)) => shown.and("status", TaskStatus::Completed.word()).and("result", &result),
            Some(Err(error)) => shown.and("status", TaskStatus::Failed.word()).and("error", &error),
            None => {
                let lost = message::error(message::INTERNAL_ERROR, "the result was not kept");
                shown.and("status", TaskStatus::Failed.word()).and("error", &lost)
            }
        },
    };
    Ok(shown.to_raw())
}

/// What every message about a task says of it. How long it is kept, from its beginning on, is known when it has ended.
fn envelope(hub: &Hub, client: &ClientContext, backend: &Backend, id: &LogId, record: &HubTaskRecord) -> Fields {
    let lasted = record.ended_ms.map(|ended| ended.saturating_sub(record.created_ms));
    let ttl_ms = lasted.map(|lasted| lasted + hub.options.task_result_ttl.as_millis() as u64);
    Fields::default()
        .and("taskId", &hub.task_names.name(&client.principal, backend.name(), id.as_str()))
        .and("createdAt", &clock::rfc3339(record.created_ms))
        .and("lastUpdatedAt", &clock::rfc3339(record.ended_ms.unwrap_or(record.created_ms)))
        .and("ttlMs", &ttl_ms)
        .and("pollIntervalMs", &POLL_INTERVAL_MS)
}
