//! The hub's own tools: fixed, so that any client that knows tools can use everything else. Those about the servers and what they offer
//! are here.

pub(crate) mod activity;
pub(crate) mod tasks;

use std::sync::Arc;
use std::time::Duration;

use bowline_protocol::{ErrorCode, LogId};
use serde_json::{Value, json};

use crate::backend::Backend;
use crate::call::facts::no_capabilities;
use crate::call::{CallReply, InboundSink, RequesterRole, outcome};
use crate::catalogue::{ListKind, hub_tools};
use crate::fields::{Fields, Raw, raw};
use crate::hub::{AddError, Hub};
use crate::relay::{self, ClientContext, call};
use crate::session::{HubSession, HubSessionRecord, Route};

/// What a tool comes to: facts, a server's result as it is, or a reason why not.
pub(crate) enum HubToolOutcome {
    Facts(Value),
    /// The same of a call that goes on as a task of this session's.
    Task(Value, LogId),
    /// Facts that stay as they were written.
    Exact(Raw),
    Result(Raw),
    Reply(CallReply),
    Refused(String),
    /// A limit of the hub's was reached; the facts say which, and when to try again.
    RateLimited(Value),
}

pub(crate) struct ToolInvocation<'a> {
    pub hub: &'a Arc<Hub>,
    pub client: &'a ClientContext,
    pub arguments: &'a Fields,
    /// What the client put into `_meta` besides what its request must have.
    pub meta: &'a Fields,
    pub sink: &'a InboundSink,
}

impl ToolInvocation<'_> {
    pub fn text(&self, name: &str) -> Result<String, String> {
        self.arguments.text(name).ok_or_else(|| format!("`{name}` is missing or not text"))
    }

    pub fn timeout(&self) -> Result<u64, String> {
        let timeout: u64 = self.arguments.read("timeout_ms").ok_or("`timeout_ms` is missing or not a whole number")?;
        let range = hub_tools::TIMEOUT_MS;
        if range.contains(&timeout) {
            return Ok(timeout);
        }
        Err(format!("`timeout_ms` must be from {} to {}", range.start(), range.end()))
    }

    /// What a request to a server begins with: the client's own `_meta`.
    pub fn params(&self) -> Fields {
        let mut params = Fields::default();
        if !self.meta.is_empty() {
            params.set("_meta", self.meta.to_raw());
        }
        params
    }

    /// The session whose events and questions are meant: the client's own, the one that `handle` names, or a new one.
    pub async fn session(&self) -> Result<Arc<HubSession>, String> {
        if let Some(handle) = self.arguments.text("handle") {
            let found = self.hub.sessions.find(&self.client.principal, &handle).await;
            let found = found.map_err(|error| error.to_string())?;
            return found.ok_or_else(|| "there is no such handle; call without one to get a new one".to_owned());
        }
        if let Some(session) = &self.client.session {
            return Ok(session.clone());
        }
        let record = HubSessionRecord {
            route: Route::All,
            version: String::new(),
            capabilities: no_capabilities(),
            info: self.client.caller.client.info.clone(),
            created_ms: self.hub.options.clock.now_ms(),
            handle: true,
        };
        let made = self.hub.sessions.create(&self.client.principal, record).await;
        made.map_err(|error| error.to_string())
    }

    /// The session if there is one, without making any.
    pub async fn known_session(&self) -> Result<Option<Arc<HubSession>>, String> {
        if self.client.session.is_none() && self.arguments.text("handle").is_none() {
            return Ok(None);
        }
        self.session().await.map(Some)
    }
}

/// Calls one of them, with the parameters of the client's `tools/call`.
pub async fn call(
    hub: &Arc<Hub>,
    client: &ClientContext,
    name: &str,
    params: &Fields,
    sink: &InboundSink,
) -> CallReply {
    let (arguments, meta) = (&params.object("arguments"), &params.object("_meta"));
    if let Some(flaw) = hub_tools::flaw(name, arguments) {
        return refused(&flaw);
    }
    let call = ToolInvocation { hub, client, arguments, meta, sink };
    let came_to = match name {
        "add_server" => add(&call).await,
        "remove_server" => remove(&call).await,
        "list_servers" => Ok(list_servers(&call)),
        "reconnect_server" => reconnect(&call).await,
        "list_tools" | "list_resources" | "list_resource_templates" | "list_prompts" => list(&call, name).await,
        "execute_tool" => tasks::execute(&call).await,
        "read_resource" | "subscribe_resource" | "unsubscribe_resource" | "get_prompt" => pass(&call, name).await,
        "await_activity" => activity::wait(&call).await,
        "get_notifications" | "get_logs" => activity::past(&call, name).await,
        "get_sampling_requests" | "get_elicitations" => activity::list(&call, name).await,
        "respond_to_sampling" | "respond_to_elicitation" => activity::respond(&call, name).await,
        "cancel_sampling_request" | "cancel_elicitation_request" => activity::cancel(&call, name).await,
        "list_tasks" => tasks::list(&call).await,
        "get_task" | "get_task_result" | "cancel_task" => tasks::about(&call, name).await,
        _ => Err(format!("there is no tool {name}")),
    };
    match came_to.unwrap_or_else(HubToolOutcome::Refused) {
        HubToolOutcome::Facts(facts) => CallReply::new(Ok(outcome::in_both_ways(&raw(&facts)).to_raw())),
        HubToolOutcome::Task(facts, session) => {
            CallReply { goes_on_in: Some(session), ..CallReply::new(Ok(outcome::in_both_ways(&raw(&facts)).to_raw())) }
        }
        HubToolOutcome::Exact(facts) => CallReply::new(Ok(outcome::in_both_ways(&facts).to_raw())),
        HubToolOutcome::Result(result) => CallReply::new(Ok(result)),
        HubToolOutcome::Reply(reply) => reply,
        HubToolOutcome::Refused(why) => refused(&why),
        HubToolOutcome::RateLimited(facts) => CallReply::new(Ok(outcome::tool_error(&facts))),
    }
}

fn refused(why: &str) -> CallReply {
    CallReply::new(Ok(outcome::tool_error(&json!({ "error": why }))))
}

pub(crate) async fn list(call: &ToolInvocation<'_>, name: &str) -> Result<HubToolOutcome, String> {
    let kind = match name {
        "list_tools" => ListKind::Tools,
        "list_resources" => ListKind::Resources,
        "list_resource_templates" => ListKind::Templates,
        _ => ListKind::Prompts,
    };
    let (server, wanted) = (call.arguments.text("server"), call.arguments.text("tool"));
    let backends = call.hub.visible(&call.client.principal).into_iter();
    let backends: Vec<_> = backends.filter(|backend| fits(server.as_deref(), backend.name())).collect();
    let patience = Duration::from_secs(5);
    futures_util::future::join_all(backends.iter().map(|backend| backend.settled(patience))).await;
    let (mut entries, mut any_stale) = (Vec::<Raw>::new(), false);
    for backend in &backends {
        let stale = !backend.snapshot().is_connected();
        for entry in backend.catalogue().list(kind) {
            let mut shown = Fields::of(Some(entry));
            if fits(wanted.as_deref(), &shown.text("name").unwrap_or_default()) {
                shown.put("server", backend.name());
                if stale {
                    shown.put("stale", &true);
                    any_stale = true;
                }
                entries.push(shown.to_raw());
            }
        }
    }
    let mut facts = Fields::default();
    facts.put(kind.member(), &entries);
    if any_stale {
        facts.put("ttlMs", &0);
    }
    let failed = call::troubles(&backends, kind);
    if !failed.is_empty() {
        facts.put("failed", &failed);
    }
    Ok(HubToolOutcome::Exact(facts.to_raw()))
}

/// Whether a name fits a pattern, in which `*` stands for anything. Case does not matter, and no pattern fits all.
fn fits(pattern: Option<&str>, name: &str) -> bool {
    let Some(pattern) = pattern else { return true };
    let (pattern, name) = (pattern.to_lowercase(), name.to_lowercase());
    let parts: Vec<&str> = pattern.split('*').collect();
    let [first, middle @ .., last] = parts.as_slice() else { return pattern == name };
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Requests that only need to know which server is meant.
pub(crate) async fn pass(call: &ToolInvocation<'_>, name: &str) -> Result<HubToolOutcome, String> {
    let server = call.text("server")?;
    let backend = call.hub.find_anywhere(&call.client.principal, &server).await;
    let backend = backend.ok_or_else(|| format!("there is no server named {server}"))?;
    let mut params = call.params();
    let method = match name {
        "get_prompt" => {
            params.put("name", &call.text("name")?);
            if let Some(arguments) = call.arguments.get("arguments") {
                params.set("arguments", arguments.to_owned());
            }
            "prompts/get"
        }
        other => {
            params.put("uri", &call.text("uri")?);
            match other {
                "read_resource" => "resources/read",
                "subscribe_resource" => "resources/subscribe",
                _ => "resources/unsubscribe",
            }
        }
    };
    let session = match (call.known_session().await?, name) {
        // Its updates are read by this.
        (None, "subscribe_resource") => Some(call.session().await?),
        (None, "unsubscribe_resource") => {
            return Err("`handle` is missing: nothing is subscribed to without one".into());
        }
        (known, _) => known,
    };
    let reply = relay::to_backend(call.hub, call.client, session.as_ref(), &backend, method, &params, call.sink).await;
    match reply.answer {
        Ok(result) => {
            let handle = session.filter(|session| session.record.handle && name == "subscribe_resource");
            Ok(HubToolOutcome::Exact(match handle {
                Some(session) => Fields::of(Some(&result)).and("handle", &session.id).to_raw(),
                None => result,
            }))
        }
        // Our own facts have the same form as those of a tool.
        Err(error) if reply.outcome.is_unanswered() => {
            let facts = Fields::of(Some(&error)).object("data").to_raw();
            Ok(HubToolOutcome::Reply(CallReply { answer: Ok(outcome::tool_error_as(&facts)), ..reply }))
        }
        Err(error) => {
            let error = Fields::of(Some(&error));
            let mut told = Fields::default();
            told.put("error", &error.text("message").unwrap_or_else(|| "the server refused".to_owned()));
            for member in ["code", "data"] {
                if let Some(value) = error.get(member) {
                    told.set(member, value.to_owned());
                }
            }
            Ok(HubToolOutcome::Result(outcome::tool_error_as(&told.to_raw())))
        }
    }
}

pub(crate) async fn add(call: &ToolInvocation<'_>) -> Result<HubToolOutcome, String> {
    let name = call.text("name")?;
    let entry: Value = serde_json::from_str(call.arguments.to_raw().get()).unwrap_or_default();
    let restored = restore(call, &name, &entry).await?;
    let added = match restored {
        Some(restored) => restored,
        None => call.hub.add(&call.client.principal, &name, &entry).await.map_err(|error| error.to_string())?,
    };
    // Long enough for a server that is there; one that is not goes on being dialled.
    added.settled(Duration::from_secs(10)).await;
    Ok(HubToolOutcome::Exact(added.shown().to_raw()))
}

/// The name alone brings back what an operator removed of the configuration, which is the only thing that knows where it leads.
async fn restore(call: &ToolInvocation<'_>, name: &str, entry: &Value) -> Result<Option<Backend>, String> {
    let name_alone = entry.as_object().is_some_and(|members| members.keys().all(|member| member == "name"));
    if !name_alone || call.client.role != RequesterRole::Operator {
        return Ok(None);
    }
    match call.hub.restore(name).await {
        Ok(restored) => Ok(Some(restored)),
        Err(AddError::NotRemoved(_)) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) async fn remove(call: &ToolInvocation<'_>) -> Result<HubToolOutcome, String> {
    let name = call.text("name")?;
    call.hub.remove(&call.client.requester(), &name).await.map_err(|error| error.to_string())?;
    Ok(HubToolOutcome::Facts(json!({ "removed": true, "name": name })))
}

pub(crate) fn list_servers(call: &ToolInvocation<'_>) -> HubToolOutcome {
    let servers: Vec<Fields> = call.hub.visible(&call.client.principal).iter().map(|backend| backend.shown()).collect();
    HubToolOutcome::Exact(Fields::default().and("servers", &servers).to_raw())
}

pub(crate) async fn reconnect(call: &ToolInvocation<'_>) -> Result<HubToolOutcome, String> {
    let name = call.text("name")?;
    let backend = call.hub.find_anywhere(&call.client.principal, &name).await;
    let backend = backend.ok_or_else(|| format!("there is no server named {name}"))?;
    let success = match call.hub.force_reconnect(&call.client.requester(), &backend).await {
        Ok(success) => success,
        Err(retry_after) => return Ok(HubToolOutcome::RateLimited(limited(&name, retry_after))),
    };
    let snapshot = backend.snapshot();
    Ok(HubToolOutcome::Facts(
        json!({ "success": success, "status": snapshot.status.as_str(), "lastError": snapshot.last_error }),
    ))
}

fn limited(name: &str, retry_after: Duration) -> Value {
    let seconds = retry_after.as_secs() + 1;
    let error = format!(
        "{name} is shared by all clients, and you have forced its reconnect too often; try again in {seconds} s, or ask an operator. \
         While it is away, the hub dials it again by itself"
    );
    let ms = retry_after.as_millis() as u64 + 1;
    json!({ "error": error, "code": ErrorCode::RateLimited.as_str(), "retryAfterMs": ms, "limit": "hub.forced_reconnects_per_minute_max" })
}

#[cfg(test)]
mod lists_tests {
    use super::fits;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name, expected) in [
            ("git*", "github", true),
            ("*hub", "GitHub", true),
            ("g*t*b", "github", true),
            ("github", "github", true),
            ("git", "github", false),
            ("*", "", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(fits(Some(pattern), name), expected, "{pattern} {name}");
        }
        assert!(fits(None, "x"));
    }
}
