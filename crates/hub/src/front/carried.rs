//! Requests that reach a node where their session is not: carried to its node whole, and the response carried back.

use std::convert::Infallible;
use std::sync::Arc;

use bowline_protocol::{LogId, Principal};
use bowline_store::{Holder, StoreError};
use bytes::Bytes;
use futures_util::future::Either;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::http::{Body, SESSION, answer, event_stream, json, problem, text};
use super::names;
use crate::fields::{Fields, Raw, raw};
use crate::hub::Hub;
use crate::link::Replier;
use crate::message::{self, Id, Message};
use crate::neighbours::{Asker, Heard, Talk};
use crate::outcome;
use crate::pending::Pending;
use crate::requester::{Requester, Role};
use crate::session::{self, Route};
use crate::sse;

/// Nodes that a request may come through: a session that moves faster cannot be followed.
const HOPS_MAX: u8 = 4;
/// How much of a response is sent at once, if so much is there.
const PART_BYTES: usize = 64 << 10;

/// What one node asks of another.
#[derive(Serialize, Deserialize)]
enum Errand {
    Request(Carried),
    Question(Question),
    Tell(Told),
    Cancel { principal: Principal, task: LogId },
}

#[derive(Serialize, Deserialize)]
struct Carried {
    principal: Principal,
    /// A node of an older version does not say.
    #[serde(default)]
    role: Role,
    route: Route,
    method: String,
    headers: Vec<(String, String)>,
    body: String,
    hops: u8,
}

/// A backend's question, for a client that has its handle on the other node.
#[derive(Serialize, Deserialize)]
struct Question {
    principal: Principal,
    handle: LogId,
    server: String,
    method: String,
    params: Option<Box<RawValue>>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    status: u16,
    headers: Vec<(String, String)>,
}

/// The other node where a request can be answered, if it cannot be here.
pub async fn home(hub: &Hub, headers: &HeaderMap, message: Option<&Message>) -> Result<Option<Holder>, StoreError> {
    let Some(neighbours) = &hub.neighbours else { return Ok(None) };
    let request = message.and_then(Message::request);
    let params = Fields::of(request.and_then(|request| request.params.as_deref()));
    if let Some(state) = params.text("requestState")
        && let Some(node) = hub.parked.node_of(&state).and_then(Holder::parse)
    {
        return Ok(Some(node).filter(|node| node != neighbours.name() && !neighbours.is_dead(node)));
    }
    let by_tool = params.text("name").filter(|name| names::is_shown_of_ours(&hub.options, name));
    let handle = by_tool.and_then(|_| params.object("arguments").text("handle"));
    let named = text(headers, &SESSION).map(ToOwned::to_owned).or(handle);
    match named.as_deref().and_then(session::log_of) {
        Some(log) if !hub.sessions.is_awake(&log) => neighbours.elsewhere(&log).await,
        _ => Ok(None),
    }
}

/// Carries a request to the node where it can be answered.
pub async fn carry(
    hub: &Hub,
    to: &Holder,
    who: &Requester,
    route: Route,
    request: &Request<Bytes>,
    hops: u8,
) -> Response<Body> {
    let Some(neighbours) = hub.neighbours.as_ref().filter(|_| hops < HOPS_MAX) else {
        let text = "The session is moving between servers. Try again.";
        return problem(StatusCode::SERVICE_UNAVAILABLE, message::INTERNAL_ERROR, text);
    };
    let wanted = |name: &HeaderName| {
        *name == ACCEPT || *name == CONTENT_TYPE || name == "last-event-id" || name.as_str().starts_with("mcp-")
    };
    let carried = Carried {
        principal: who.principal.clone(),
        role: who.role,
        route,
        method: request.method().to_string(),
        headers: listed(request.headers(), wanted),
        body: String::from_utf8_lossy(request.body()).into_owned(),
        hops: hops + 1,
    };
    let asked = Asked::of(request);
    let mut talk = neighbours.talk(to, raw(&Errand::Request(carried)));
    let Heard::Part(head) = talk.next().await else { return asked.lost() };
    let Ok(head) = serde_json::from_str::<Head>(&head) else { return asked.lost() };
    let streamed = head.headers.iter().any(|(name, value)| name == "content-type" && value == sse::CONTENT_TYPE);
    let mut response = if streamed {
        event_stream(rest(talk, asked))
    } else {
        match whole(talk).await {
            Some(body) => Response::new(super::http::full(body)),
            None => return asked.lost(),
        }
    };
    *response.status_mut() = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
    for (name, value) in head.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

async fn whole(mut talk: Box<dyn Talk>) -> Option<String> {
    let mut body = String::new();
    loop {
        match talk.next().await {
            Heard::Part(part) => body.push_str(&part),
            Heard::Ended => return Some(body),
            Heard::Lost => return None,
        }
    }
}

/// The rest of a stream. A client with a session takes it up again elsewhere, if it has seen where it was; any other is
/// told the end at once.
fn rest(talk: Box<dyn Talk>, asked: Asked) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send {
    futures_util::stream::unfold(Some((talk, asked)), |state| async {
        let (mut talk, mut asked) = state?;
        match talk.next().await {
            Heard::Part(part) => {
                asked.can_return = asked.in_session;
                Some((Ok(Bytes::from(part)), Some((talk, asked))))
            }
            Heard::Ended => None,
            Heard::Lost if asked.can_return => None,
            Heard::Lost => asked.unknown().map(|end| (Ok(Bytes::from(sse::encode(None, end.get()))), None)),
        }
    })
}

/// What a client asked, as far as its answer needs it if the other node dies.
struct Asked {
    request: Option<(Id, String)>,
    in_session: bool,
    can_return: bool,
}

impl Asked {
    fn of(request: &Request<Bytes>) -> Asked {
        let message = Message::parse_bytes(request.body()).ok();
        let named = message.as_ref().and_then(Message::request);
        Asked {
            request: named.map(|named| (named.id.clone(), named.method.clone())),
            in_session: request.headers().contains_key(SESSION),
            can_return: false,
        }
    }

    /// Nobody knows whether it was done.
    fn unknown(&self) -> Option<Raw> {
        let (id, method) = self.request.as_ref()?;
        Some(message::response(id, &outcome::cut_by_restart(method).answer))
    }

    fn lost(&self) -> Response<Body> {
        match self.unknown() {
            Some(end) => json(StatusCode::OK, &end),
            None => {
                let text = "The server that has the session went away. Try again.";
                problem(StatusCode::SERVICE_UNAVAILABLE, message::INTERNAL_ERROR, text)
            }
        }
    }
}

fn listed(headers: &HeaderMap, wanted: impl Fn(&HeaderName) -> bool) -> Vec<(String, String)> {
    let wanted = headers.iter().filter(|(name, _)| wanted(name));
    wanted.filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned()))).collect()
}

/// Does here what another node asks.
pub async fn serve(hub: &Arc<Hub>, errand: &str, asker: Box<dyn Asker>) {
    match serde_json::from_str(errand) {
        Ok(Errand::Request(carried)) => respond(hub, carried, &*asker).await,
        Ok(Errand::Question(question)) => put(hub, question, &*asker).await,
        Ok(Errand::Tell(Told { principal, session, event, server, data })) => {
            if let Ok(Some(session)) = hub.sessions.find(&hub.store, &principal, session.as_str()).await {
                let _ = session.tell(&event, &server, &data).await;
            }
        }
        Ok(Errand::Cancel { principal, task }) => {
            let known = hub.tasks.find(task.as_str(), &principal).await.is_ok_and(|found| found.is_some());
            let cancelled = known && hub.tasks.cancel(&task).await;
            asker.say(cancelled.to_string()).await;
        }
        Err(error) => tracing::warn!(%error, "what another node asks cannot be read"),
    }
}

async fn respond(hub: &Arc<Hub>, carried: Carried, asker: &dyn Asker) {
    let Carried { principal, role, route, method, headers, body, hops } = carried;
    let mut request = Request::builder().method(method.as_str());
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let Ok(request) = request.body(Bytes::from(body)) else { return };
    let who = Requester { principal, role };
    let answering = answer(hub, &who, route, request, hops);
    let Some(response) = asker.left().run_until_cancelled(answering).await else { return };
    let (parts, mut body) = response.into_parts();
    let head = Head { status: parts.status.as_u16(), headers: listed(&parts.headers, |_| true) };
    if !asker.say(raw(&head).get().to_owned()).await {
        return;
    }
    let mut more = true;
    while more && let Some(Some(frame)) = asker.left().run_until_cancelled(body.frame()).await {
        let mut part = data(frame);
        while part.len() < PART_BYTES
            && let Some(next) = futures_util::FutureExt::now_or_never(body.frame())
        {
            more = next.is_some();
            let Some(frame) = next else { break };
            part.push_str(&data(frame));
        }
        more &= asker.say(part).await;
    }
}

fn data(frame: Result<http_body::Frame<Bytes>, Infallible>) -> String {
    let Ok(data) = frame.map(|frame| frame.into_data().unwrap_or_default());
    String::from_utf8_lossy(&data).into_owned()
}

/// An answer as it travels between nodes.
#[derive(Serialize, Deserialize)]
enum Answered {
    Result(Box<RawValue>),
    Error(Box<RawValue>),
}

/// Asks a client by the tools, on whichever node its handle is. Without one it cannot answer.
pub async fn ask_by_handle(hub: &Arc<Hub>, principal: &Principal, asked: Asking) {
    // Another handle of the same principal's is another client's.
    let Some(log) = asked.handle.as_deref().and_then(session::log_of) else {
        let error = message::error(message::METHOD_NOT_FOUND, "the client cannot answer this");
        let _ = asked.reply.send(Err(error));
        return;
    };
    let there = match &hub.neighbours {
        Some(neighbours) if !hub.sessions.is_awake(&log) => neighbours.elsewhere(&log).await.ok().flatten(),
        _ => None,
    };
    let Asking { server, method, params, reply, .. } = asked;
    let (Some(neighbours), Some(node)) = (&hub.neighbours, there) else {
        // If the question cannot be kept it is dropped, and the backend told that nobody answers.
        if let Ok(Some(session)) = hub.sessions.find(&hub.store, principal, log.as_str()).await {
            let _ = session.ask(Pending::new(&server, method, params, reply), None).await;
        }
        return;
    };
    let question = Question { principal: principal.clone(), handle: log, server, method, params };
    let mut talk = neighbours.talk(&node, raw(&Errand::Question(question)));
    tokio::spawn(async move {
        let mut reply = reply;
        let heard = match futures_util::future::select(talk.next(), std::pin::pin!(reply.closed())).await {
            Either::Left((heard, _)) => heard,
            // The call that asked is over.
            Either::Right(_) => return,
        };
        let answer = match heard {
            Heard::Part(part) => match serde_json::from_str(&part) {
                Ok(Answered::Result(result)) => Ok(result),
                Ok(Answered::Error(error)) => Err(error),
                Err(_) => Err(message::error(message::INTERNAL_ERROR, "the answer cannot be read")),
            },
            Heard::Ended | Heard::Lost => Err(message::error(message::INTERNAL_ERROR, "nobody could be asked")),
        };
        let _ = reply.send(answer);
    });
}

/// A question without the one who is asked.
pub struct Asking {
    /// The handle that the call named.
    pub handle: Option<String>,
    pub server: String,
    pub method: String,
    pub params: Option<Raw>,
    pub reply: Replier,
}

/// Puts a question of another node's backend to a client whose handle is here.
async fn put(hub: &Arc<Hub>, question: Question, asker: &dyn Asker) {
    let Question { principal, handle, server, method, params } = question;
    let Ok(Some(session)) = hub.sessions.find(&hub.store, &principal, handle.as_str()).await else { return };
    let (reply, answered) = oneshot::channel();
    let pending = Pending { foreign: true, ..Pending::new(&server, method, params, reply.into()) };
    if session.ask(pending, None).await.is_err() {
        return;
    }
    let answer = match asker.left().run_until_cancelled(answered).await {
        Some(Ok(Ok(result))) => Answered::Result(result),
        Some(Ok(Err(error))) => Answered::Error(error),
        Some(Err(_)) | None => return,
    };
    asker.say(raw(&answer).get().to_owned()).await;
}

/// Something that a session on another node is to be told.
#[derive(Serialize, Deserialize)]
pub struct Told {
    principal: Principal,
    session: LogId,
    event: String,
    server: String,
    data: Value,
}

impl Told {
    pub fn new(principal: &Principal, session: &LogId, event: &str, server: &str, data: &Value) -> Told {
        Told {
            principal: principal.clone(),
            session: session.clone(),
            event: event.to_owned(),
            server: server.to_owned(),
            data: data.clone(),
        }
    }
}

pub async fn tell(hub: &Hub, node: &Holder, told: Told) {
    if let Some(neighbours) = &hub.neighbours {
        let mut talk = neighbours.talk(node, raw(&Errand::Tell(told)));
        while let Heard::Part(_) = talk.next().await {}
    }
}

/// Cancels a task that another node works on. True if it was still working.
pub async fn cancel(hub: &Hub, principal: &Principal, task: &LogId) -> bool {
    let Some(neighbours) = &hub.neighbours else { return false };
    let Ok(Some(node)) = neighbours.elsewhere(task).await else { return false };
    let errand = Errand::Cancel { principal: principal.clone(), task: task.clone() };
    neighbours.talk(&node, raw(&errand)).next().await == Heard::Part("true".into())
}
