//! The hub's own tools: fixed, so that any client that knows tools can use everything else.

pub(crate) mod activity;
pub(crate) mod elicitation;
pub(crate) mod lists;
pub(crate) mod servers;
pub(crate) mod tasks;

use std::sync::Arc;

use bowline_protocol::LogId;
use serde_json::{Value, json};

use crate::call::facts::no_capabilities;
use crate::call::reply::CallReply;
use crate::call::{InboundSink, outcome};
use crate::catalogue::hub_tools;
use crate::fields::{Fields, Raw, raw};
use crate::hub::Hub;
use crate::relay::ClientContext;
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
        "add_server" => servers::add(&call).await,
        "remove_server" => servers::remove(&call).await,
        "list_servers" => Ok(servers::list(&call)),
        "reconnect_server" => servers::reconnect(&call).await,
        "list_tools" | "list_resources" | "list_resource_templates" | "list_prompts" => lists::list(&call, name).await,
        "execute_tool" => tasks::execute(&call).await,
        "read_resource" | "subscribe_resource" | "unsubscribe_resource" | "get_prompt" => {
            lists::pass(&call, name).await
        }
        "await_activity" => activity::wait(&call).await,
        "get_notifications" | "get_logs" => activity::past(&call, name).await,
        "get_sampling_requests" | "get_elicitations" => elicitation::list(&call, name).await,
        "respond_to_sampling" | "respond_to_elicitation" => elicitation::respond(&call, name).await,
        "cancel_sampling_request" | "cancel_elicitation_request" => elicitation::cancel(&call, name).await,
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
