//! One stateless request and everything that is said until its answer, whatever wire it comes over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bowline_env::clock;
use bowline_protocol::Principal;
use serde_json::json;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::begin;
use crate::call::facts::{self, is_answerable};
use crate::call::server_request::{Replier, SuspendedCall, SuspendedQuestion};
use crate::call::{CallReply, Caller, Conversation, ConversationStep, Exchange, Inbound, Requester, Sent, outcome};
use crate::fields::{Fields, Raw, raw};
use crate::hub::Hub;
use crate::message::{self, RpcRequest};
use crate::relay::peer_requests::{self, Asking};
use crate::relay::{ClientContext, call};
use crate::revision::{ClientIntroduction, Revision};
use crate::session::Route;

/// How often a client of a quiet call gets a keep-alive.
const QUIET_FOR: Duration = Duration::from_secs(15);
/// A backend that asks several things at once sends them within this time, and they are asked in one round.
const GATHER: Duration = Duration::from_millis(20);

/// Who sent a request, as far as the request itself says so.
pub fn client_of(
    who: &Requester,
    route: Route,
    revision: &dyn Revision,
    request: &RpcRequest,
    headers: Option<Vec<(String, String)>>,
) -> ClientContext {
    let ClientIntroduction { version, facts, log_level } = revision.client(&Fields::of(request.params.as_deref()));
    ClientContext {
        principal: who.principal.clone(),
        role: who.role,
        route,
        caller: Caller::without_session(&who.principal, facts),
        session: None,
        sent: Some(Sent { version, headers }),
        log_level,
    }
}

/// A request that is wrong in itself.
pub fn refused(code: i64, text: &str) -> CallReply {
    CallReply::with_status(Err(message::error(code, text)), 400)
}

/// What comes next in a call.
pub enum Next {
    Said(Raw),
    Quiet,
    Ended(CallReply),
}

/// Dropping it takes the call back.
pub struct StatelessCall {
    hub: Arc<Hub>,
    revision: &'static dyn Revision,
    client: ClientContext,
    request: Arc<RpcRequest>,
    conversation: Conversation,
    /// Messages that the client has not got yet.
    said: VecDeque<Raw>,
    /// Answers that came with the call itself, under the names that its server will ask for them.
    given: Fields,
    /// Fires when the client can never come back.
    gone: CancellationToken,
}

impl StatelessCall {
    /// The call as the client means it: a new one, or the rest of one that waits for input.
    pub fn take_up(
        hub: &Arc<Hub>,
        revision: &'static dyn Revision,
        mut client: ClientContext,
        request: RpcRequest,
        gone: CancellationToken,
    ) -> Result<StatelessCall, CallReply> {
        let request = Arc::new(request);
        let params = Fields::of(request.params.as_deref());
        let state = params.text("requestState").filter(|_| may_wait(&request.method));
        let (conversation, said, given) = match state {
            Some(state) if hub.suspended.node_of(&state).is_some() => {
                let suspended = answered(hub, &client, &request, &state)?;
                client.caller = client.caller.numbered(suspended.caller.number);
                (suspended.conversation, suspended.said, Fields::default())
            }
            // Only stateless servers give out states. To any other the call would be a new one, and it would run twice.
            Some(_)
                if !call::target(hub, &client, &request).is_some_and(|backend| backend.offers(Exchange::Stateless)) =>
            {
                return Err(stale());
            }
            _ => {
                if may_wait(&request.method) {
                    let caller = client.caller.clone();
                    client.caller = hub.suspended.apart(caller, || server_of(hub, &client, &request));
                }
                (
                    begin(hub, revision, client.clone(), request.clone()),
                    VecDeque::new(),
                    params.object("inputResponses"),
                )
            }
        };
        Ok(StatelessCall { hub: hub.clone(), revision, client, request, conversation, said, given, gone })
    }

    pub async fn next(&mut self) -> Next {
        loop {
            if let Some(said) = self.said.pop_front() {
                return Next::Said(said);
            }
            let Ok(step) = tokio::time::timeout(QUIET_FOR, self.conversation.next()).await else {
                return Next::Quiet;
            };
            match step {
                ConversationStep::Said(Inbound::Notification { method, params, .. }) => {
                    self.hear(&method, params.as_ref());
                }
                ConversationStep::Said(Inbound::Request { server, method, params, reply })
                    if self.can_answer(&method, params.as_ref()) =>
                {
                    let Some(reply) = self.unanswered(reply) else { continue };
                    let first = SuspendedQuestion::new(server, method, params, reply, |_| true);
                    return Next::Ended(self.suspend(first).await);
                }
                ConversationStep::Said(Inbound::Request { server, method, params, reply }) => {
                    self.elsewhere(&server, method, params, reply).await;
                }
                ConversationStep::Ended(reply) => return Next::Ended(self.adapt(reply)),
            }
        }
    }

    fn adapt(&self, reply: CallReply) -> CallReply {
        self.revision.reply(&self.request.method, reply)
    }

    /// A notification. Logs are for those who asked for them, from the level that they named.
    fn hear(&mut self, method: &str, params: Option<&Raw>) {
        let level = Fields::of(params.map(|raw| &**raw)).text("level");
        let wanted = self.client.log_level.as_deref();
        if method != "notifications/message" || facts::is_logged(level.as_deref(), wanted) {
            self.said.push_back(message::notification(method, params));
        }
    }

    /// Whether the client itself can be asked, which it can only in an answer.
    fn can_answer(&self, method: &str, params: Option<&Raw>) -> bool {
        may_wait(&self.request.method) && is_answerable(&self.client.caller.client.capabilities, method, params)
    }

    /// Answers a question whose answer came with the call; gives back the way to answer any other.
    fn unanswered(&mut self, reply: Replier) -> Option<Replier> {
        let name = reply.name.clone().filter(|_| reply.certain);
        let is_object = |given: &&RawValue| Fields::parse(given).is_some();
        let given = name.as_deref().and_then(|name| self.given.get(name)).filter(is_object).map(ToOwned::to_owned);
        let (Some(name), Some(given)) = (name, given) else { return Some(reply) };
        self.given.remove(&name);
        // A server that has stopped waiting needs no answer.
        let _ = reply.send(Ok(given));
        None
    }

    /// A backend asks in its session: the call waits, and its questions become the answer.
    async fn suspend(&mut self, first: SuspendedQuestion) -> CallReply {
        let mut questions = vec![first];
        while let Ok(step) = tokio::time::timeout(GATHER, self.conversation.next()).await {
            match step {
                ConversationStep::Said(Inbound::Notification { method, params, .. }) => {
                    self.hear(&method, params.as_ref());
                }
                ConversationStep::Said(Inbound::Request { server, method, params, reply })
                    if self.can_answer(&method, params.as_ref()) =>
                {
                    let Some(reply) = self.unanswered(reply) else { continue };
                    let free = |key: &str| questions.iter().all(|other| other.key != key);
                    questions.push(SuspendedQuestion::new(server, method, params, reply, free));
                }
                ConversationStep::Said(Inbound::Request { server, method, params, reply }) => {
                    self.elsewhere(&server, method, params, reply).await;
                }
                // It did not wait for the answers. If it goes on all the same, the tools give them.
                ConversationStep::Ended(reply) => {
                    if let Some(session) = &reply.goes_on_in {
                        for SuspendedQuestion { server, method, params, reply, .. } in questions {
                            let handle = Some(session.to_string());
                            let asking = Asking { handle, server: server.to_string(), method, params, reply };
                            peer_requests::ask_by_handle(&self.hub, &self.client.principal, asking).await;
                        }
                    }
                    return self.adapt(reply);
                }
            }
        }
        let nothing = Conversation::begin(|_| Box::pin(std::future::pending()));
        let suspended = SuspendedCall {
            conversation: std::mem::replace(&mut self.conversation, nothing),
            questions,
            said: std::mem::take(&mut self.said),
            principal: self.client.principal.clone(),
            caller: self.client.caller.clone(),
            server: server_of(&self.hub, &self.client, &self.request),
            subject: subject(&self.request),
            until: clock::now(),
            gone: self.gone.clone(),
        };
        ask(&self.hub, suspended)
    }

    /// A question that the client cannot answer by itself. It can by the tools, if it has a handle.
    async fn elsewhere(&mut self, server: &str, method: String, params: Option<Raw>, reply: Replier) {
        if method == "roots/list" {
            let _ = reply.send(Ok(raw(&json!({ "roots": [] }))));
            return;
        }
        // Only the handle that the call itself named: any other is another client's.
        let named = Fields::of(self.request.params.as_deref()).object("arguments").text("handle");
        let asking = Asking { handle: named, server: server.to_owned(), method, params, reply };
        peer_requests::ask_by_handle(&self.hub, &self.client.principal, asking).await;
    }
}

/// Whose the server of a call is, if it is one client's, and its name.
fn server_of(hub: &Arc<Hub>, client: &ClientContext, request: &RpcRequest) -> Option<(Option<Principal>, Arc<str>)> {
    call::target(hub, client, request).map(|backend| (backend.key.owner, backend.key.name))
}

/// Only these may be answered with a question.
fn may_wait(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

fn stale() -> CallReply {
    refused(message::INVALID_PARAMS, "`requestState` is not valid for this request, or it is too late")
}

/// Takes a parked call up with what its client answers. What is still open is asked again.
fn answered(hub: &Hub, client: &ClientContext, request: &RpcRequest, state: &str) -> Result<SuspendedCall, CallReply> {
    let (owner, subject) = (&client.principal, subject(request));
    let Some(mut suspended) = hub.suspended.take(state, owner, &subject) else {
        // It was sent once. A client that is told that its state is wrong would begin again.
        let was_sent = hub.suspended.has_known(state, owner, &subject);
        return Err(if was_sent { outcome::not_waiting(&request.method) } else { stale() });
    };
    let responses = Fields::of(request.params.as_deref()).object("inputResponses");
    let (answered, open): (Vec<SuspendedQuestion>, Vec<SuspendedQuestion>) =
        suspended.questions.into_iter().partition(|question| responses.has(&question.key));
    for question in answered {
        if let Some(response) = responses.get(&question.key) {
            let _ = question.reply.send(Ok(response.to_owned()));
        }
    }
    suspended.questions = open;
    if suspended.questions.is_empty() { Ok(suspended) } else { Err(ask(hub, suspended)) }
}

/// What a parked call was about; its answers count for nothing else.
fn subject(request: &RpcRequest) -> String {
    let params = Fields::of(request.params.as_deref());
    let name = params.text("name").or_else(|| params.text("uri")).unwrap_or_default();
    format!("{} {name}", request.method)
}

/// Parks the call and asks its questions.
fn ask(hub: &Hub, suspended: SuspendedCall) -> CallReply {
    let mut questions = Fields::default();
    for question in &suspended.questions {
        questions
            .put(&question.key, &Fields::default().and("method", &question.method).and("params", &question.params));
    }
    let here = hub.peers.as_ref().map(|peers| peers.name());
    let Some(state) = hub.suspended.suspend(suspended, here) else {
        return CallReply::new(Err(message::error(message::INTERNAL_ERROR, "too many calls wait for input already")));
    };
    let mut result = Fields::default();
    result.put("resultType", "input_required");
    result.set("inputRequests", questions.to_raw());
    result.put("requestState", &state);
    CallReply::new(Ok(result.to_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    use crate::call::BackendCall;
    use crate::call::facts::{ClientFacts, no_capabilities, our_info};
    use crate::call::server_request::AnswerReceiver;
    use crate::config::Options;
    use crate::revision;
    use crate::session::HubSessionRecord;
    use bowline_protocol::Principal;
    use bowline_store::Retention;
    use bowline_store::memory::MemoryStore;

    fn record() -> HubSessionRecord {
        HubSessionRecord {
            route: Route::All,
            version: String::new(),
            capabilities: no_capabilities(),
            info: our_info(),
            created_ms: 0,
            handle: true,
        }
    }

    fn call_of_a_client_that_can_be_asked(alice: &Principal) -> (&'static dyn Revision, RpcRequest) {
        let facts = ClientFacts { capabilities: raw(&json!({ "elicitation": {} })), info: our_info() };
        let call = BackendCall::new(Caller::without_session(alice, facts), "tools/call", None);
        let revision = revision::newest(Exchange::Stateless);
        (
            revision,
            RpcRequest {
                id: message::RpcId::number(1),
                params: revision.params(&call).map(Cow::into_owned),
                method: call.method,
            },
        )
    }

    #[tokio::test]
    async fn what_a_call_asked_just_before_it_became_a_task_waits_at_the_handle_of_the_task() {
        let store = Arc::new(MemoryStore::new(Retention { events_max: 100, age_max_ms: u64::MAX }));
        let hub = Hub::start(Options::default(), store, None, None).await.unwrap();
        let alice = Principal::parse("alice").unwrap();
        let handle = hub.sessions.create(&alice, record()).await.unwrap();
        let (revision, request) = call_of_a_client_that_can_be_asked(&alice);
        let (reply, mut answered) = tokio::sync::oneshot::channel();
        let goes_on_in = Some(handle.id.clone());
        let conversation = Conversation::begin(|sink| {
            Box::pin(async move {
                let method = "elicitation/create".to_owned();
                let _ =
                    sink.send(Inbound::Request { server: "b".into(), method, params: None, reply: reply.into() }).await;
                CallReply { goes_on_in, ..CallReply::new(Ok(raw(&json!({ "taskId": "t" })))) }
            })
        });
        let client = client_of(&(&alice).into(), Route::All, revision, &request, None);
        let gone = CancellationToken::new();
        let mut stateless_call = StatelessCall {
            hub,
            revision,
            client,
            request: request.into(),
            conversation,
            said: VecDeque::new(),
            given: Fields::default(),
            gone,
        };
        let Next::Ended(reply) = stateless_call.next().await else { panic!("it ends") };
        assert_eq!(Fields::of(reply.answer.ok().as_deref()).text("taskId").as_deref(), Some("t"));
        drop(stateless_call);
        let waits = handle.pending(None).remove(0);
        assert_eq!(waits.text("server").as_deref(), Some("b"));
        assert!(answered.try_recv().is_err());
        assert!(handle.answer(&waits.text("id").unwrap(), Ok(raw(&json!({ "action": "decline" })))));
        assert!(answered.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_question_has_the_name_that_its_server_gave_it_and_an_answer_that_came_with_the_call_is_given_once() {
        let store = Arc::new(MemoryStore::new(Retention { events_max: 100, age_max_ms: u64::MAX }));
        let hub = Hub::start(Options::default(), store, None, None).await.unwrap();
        let alice = Principal::parse("alice").unwrap();
        let (revision, request) = call_of_a_client_that_can_be_asked(&alice);
        let (answered, mut answers) = tokio::sync::mpsc::channel(3);
        let conversation = Conversation::begin(|sink| {
            Box::pin(async move {
                for (id, certain) in
                    [("\"name\"", true), ("\"name\"", true), ("\"garbled\"", true), ("7", true), ("\"other\"", false)]
                {
                    let id = message::RpcId::parse(id).unwrap();
                    let request = RpcRequest { id, method: "elicitation/create".to_owned(), params: None };
                    let (question, answer) = AnswerReceiver::new(&"b".into(), request, certain);
                    sink.send(question).await.unwrap();
                    let answered = answered.clone();
                    tokio::spawn(async move { answered.send(answer.given().await).await });
                }
                std::future::pending().await
            })
        });
        let client = client_of(&(&alice).into(), Route::All, revision, &request, None);
        let given =
            Fields::default().and("name", &json!({ "action": "accept" })).and("garbled", &5).and("7", &json!({}));
        let given = given.and("other", &json!({ "action": "accept" }));
        let gone = CancellationToken::new();
        let mut call = StatelessCall {
            hub,
            revision,
            client,
            request: request.into(),
            conversation,
            said: VecDeque::new(),
            given,
            gone,
        };
        let Next::Ended(reply) = call.next().await else { panic!("it asks") };
        let asked = Fields::of(reply.answer.ok().as_deref()).object("inputRequests");
        let keys: Vec<&str> = asked.iter().map(|(key, _)| key).collect();
        assert_eq!((keys[0], keys[1], keys[3]), ("name", "garbled", "other"));
        assert!(keys.len() == 4 && keys[2] != "7", "a number is no name: {keys:?}");
        assert_eq!(answers.recv().await.unwrap().unwrap().get(), r#"{"action":"accept"}"#);
        assert!(answers.try_recv().is_err(), "the second question of that name waits for an answer of its own");
    }
}
