//! What the hub does for its tasks: it tells their sessions, and follows those that backends made of calls (the Tasks extension). Such a
//! task has a name on either side, and is asked for until it is over, also across the backend's restarts.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bowline_core::backend::{CallFailure, ResendPolicy};
use bowline_env::clock;
use bowline_protocol::{LogId, Principal};
use bowline_store::StoreError;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, notification_data};
use crate::call::outcome::ResultKind;
use crate::call::{BackendCall, CallEnd, CallReply, Exchange, Inbound, InboundSink, facts, outcome};
use crate::fields::{Fields, Raw, raw};
use crate::hub::Hub;
use crate::message::{self, RpcRequest, RpcResult};
use crate::relay::peer_requests::{self, SessionNotice};
use crate::relay::subscriptions::ACKNOWLEDGED;
use crate::relay::{self, ClientContext, call, hosted_task};
use crate::session::elicitation_and_sampling::PendingServerRequest;
use crate::session::{GONE, HubSession, OWN_STREAM};
use crate::tasks::{HubTaskRecord, TaskCall, TaskListener, UpstreamTask};

const SAID_MAX: usize = 64;

/// What the hub does for its tasks. It does not keep the hub.
pub struct TaskRelay(pub Weak<Hub>);

impl fmt::Debug for TaskRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskRelay")
    }
}

#[async_trait]
impl TaskListener for TaskRelay {
    async fn resume(
        &self,
        owner: &Principal,
        record: &HubTaskRecord,
        known: UpstreamTask,
        cancel: CancellationToken,
    ) -> Result<TaskCall, StoreError> {
        let hub = self.0.upgrade().ok_or(StoreError::Closed)?;
        let session = match &record.session {
            // A session on another node is notified of the end, but not of the progress.
            Some(session) => match hub.sessions.find(owner, session.as_str()).await {
                Err(StoreError::Held(_)) => None,
                found => found?,
            },
            None => None,
        };
        let client = relay::of_owner(owner, session.as_ref());
        let (sink, said) = mpsc::channel(SAID_MAX);
        let (unread, _) = mpsc::channel(1);
        let heard = session.map(OnceLock::from).unwrap_or_default();
        let server = record.server.clone();
        tokio::spawn(forward(said, unread, Arc::new(heard), server.clone()));
        let token = cancel.clone();
        let call = tokio::spawn(async move {
            let followed = follow(&hub, &client, &server, &known, &sink);
            token.run_until_cancelled(followed).await
        });
        let (_, upstream) = mpsc::channel(1);
        Ok(TaskCall { call, upstream, cancel })
    }

    async fn tell(&self, event: &str, id: &LogId, owner: &Principal, record: &HubTaskRecord) {
        if let Some(hub) = self.0.upgrade() {
            tell(&hub, event, id, owner, record).await;
        }
    }
}

/// Tells the session that asked for the task, if it is still there.
pub async fn tell(hub: &Hub, event: &str, id: &LogId, owner: &Principal, record: &HubTaskRecord) {
    let Some(session) = &record.session else { return };
    let data = json!({ "taskId": id, "tool": record.tool });
    let told = match hub.sessions.find(owner, session.as_str()).await {
        Ok(Some(session)) => session.tell(event, &record.server, &data).await.map(drop),
        Ok(None) => Ok(()),
        Err(StoreError::Held(node)) => {
            peer_requests::tell(hub, &node, SessionNotice::new(owner, session, event, &record.server, &data)).await;
            Ok(())
        }
        Err(error) => Err(error),
    };
    if let Err(error) = told {
        tracing::warn!(%session, %error, "cannot notify a session of its task");
    }
}

/// Passes on what a call says: to the caller as long as that one listens, and to its session afterwards, which a call that
/// becomes a task may get only then.
pub async fn forward(
    mut said: mpsc::Receiver<Inbound>,
    listening: InboundSink,
    session: Arc<OnceLock<Arc<HubSession>>>,
    server: String,
) {
    while let Some(inbound) = said.recv().await {
        let log = match &inbound {
            Inbound::Notification { method, params, .. } if method == "notifications/message" => {
                Some(notification_data(&server, method, params.as_ref()))
            }
            _ => None,
        };
        let sent = listening.send(inbound).await;
        let Some(session) = session.get() else { continue };
        // A client that knows only tools reads the logs by one, so they are kept also while a client listens.
        if let (Ok(()), Some(data)) = (&sent, &log) {
            let _ = session.tell_too(&server, data).await;
        }
        let Err(mpsc::error::SendError(inbound)) = sent else { continue };
        match inbound {
            Inbound::Notification { method, params, .. } => {
                let data = notification_data(&server, &method, params.as_ref());
                let _ = session.tell("notification", &server, &data).await;
            }
            Inbound::Request { server, method, params, reply } => {
                let native = session.can(&method, params.as_ref()).then_some(OWN_STREAM);
                let _ = session.ask(PendingServerRequest::new(&server, method, params, reply), native).await;
            }
        }
    }
}

/// Tells those who listen how a task stands.
pub const NOTIFICATION: &str = "notifications/tasks";

pub fn is_about_a_task(method: &str) -> bool {
    matches!(method, "tasks/get" | "tasks/update" | "tasks/cancel")
}

/// The server whose task it is, and what that calls it. Nothing if it does not exist or is another client's.
pub async fn whose<'a>(hub: &Hub, client: &ClientContext, name: &'a str) -> Option<(Backend, &'a str)> {
    let (server, own) = hub.task_names.resolve(&client.principal, name)?;
    hub.find_anywhere(&client.principal, server).await.map(|backend| (backend, own))
}

/// Passes a request about a task on to the server whose task it is; to no other than `only`.
pub async fn answer(
    hub: &Arc<Hub>,
    client: &ClientContext,
    only: Option<&Backend>,
    request: &RpcRequest,
    params: &Fields,
    sink: &InboundSink,
) -> CallReply {
    if !declares(client) {
        return extension_is_missing();
    }
    let id = params.text("taskId").unwrap_or_default();
    let found = whose(hub, client, &id).await;
    let found = found.filter(|(backend, _)| only.is_none_or(|only| only.key == backend.key));
    let Some((backend, own)) = found else { return unknown(&id) };
    if let Some(reply) = hosted_task::answer(hub, client, &backend, own, &request.method, params).await {
        return reply;
    }
    // One that was not reached yet may have it.
    if backend.snapshot().facts.is_some_and(|facts| !facts.offers(Exchange::Stateless)) {
        return unknown(&id);
    }
    let mut params = params.clone();
    params.put("taskId", own);
    let reply = call::pass(hub, client, &backend, &request.method, &params, sink).await;
    renamed(hub, client, &backend, reply)
}

/// The answer to a client that cannot follow tasks, where only a task would do.
pub fn extension_is_missing() -> CallReply {
    let data = json!({ "requiredCapabilities": { "extensions": { facts::TASKS_EXTENSION: {} } } });
    let error = message::error_with(message::MISSING_CAPABILITY, "the Tasks extension is needed", &data);
    CallReply::new(Err(error))
}

/// The answer about a task that does not exist, or is another client's.
pub fn unknown(id: &str) -> CallReply {
    let data = json!({ "taskId": id });
    CallReply::new(Err(message::error_with(message::INVALID_PARAMS, "there is no such task", &data)))
}

/// The reply to a call, which a server may have made a task of.
pub fn created(hub: &Hub, client: &ClientContext, backend: &Backend, reply: CallReply) -> CallReply {
    let is_task = reply.kind == ResultKind::Task && declares(client);
    if is_task { renamed(hub, client, backend, reply) } else { reply }
}

/// A reply about a task, in which the task has the name that its owner knows.
fn renamed(hub: &Hub, client: &ClientContext, backend: &Backend, reply: CallReply) -> CallReply {
    CallReply { answer: reply.answer.map(|result| named(hub, client, backend, &result)), ..reply }
}

fn named(hub: &Hub, client: &ClientContext, backend: &Backend, about: &Raw) -> Raw {
    let mut fields = Fields::of(Some(about));
    if let Some(own) = fields.text("taskId") {
        fields.put("taskId", &hub.task_names.name(&client.principal, backend.name(), &own));
    }
    fields.to_raw()
}

/// A subscription as its server is asked for it: with the server's own names of the client's own tasks.
pub fn asked_of(hub: &Hub, client: &ClientContext, backend: &Backend, params: Option<&Raw>) -> Option<Raw> {
    renamed_in_filter(params, |name| match hub.task_names.resolve(&client.principal, name) {
        Some((server, own)) if server == backend.name() => Some(own.to_owned()),
        _ => None,
    })
}

/// What a server says to one who listens, with the names that the client knows.
pub fn told_by(hub: &Hub, client: &ClientContext, backend: &Backend, method: &str, params: Option<Raw>) -> Option<Raw> {
    match method {
        NOTIFICATION => params.map(|params| named(hub, client, backend, &params)),
        ACKNOWLEDGED => {
            renamed_in_filter(params.as_ref(), |own| Some(hub.task_names.name(&client.principal, backend.name(), own)))
        }
        _ => params,
    }
}

fn renamed_in_filter(params: Option<&Raw>, rename: impl Fn(&str) -> Option<String>) -> Option<Raw> {
    let mut fields = Fields::of(params.map(|raw| &**raw));
    let mut filter = fields.object("notifications");
    let Some(tasks) = filter.read::<Vec<String>>("taskIds") else { return params.cloned() };
    filter.put("taskIds", &tasks.iter().filter_map(|name| rename(name)).collect::<Vec<_>>());
    fields.set("notifications", filter.to_raw());
    Some(fields.to_raw())
}

pub fn declares(client: &ClientContext) -> bool {
    facts::has_tasks(&client.caller.client.capabilities)
}

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
pub fn upstream_task(answer: &RpcResult) -> Option<UpstreamTask> {
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
