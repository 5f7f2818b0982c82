//! Requests that reach a node where their session is not: carried to its node whole, and the response carried back.

use std::convert::Infallible;
use std::sync::Arc;

use bowline_mutant::mutant;
use bowline_protocol::{LogId, Principal};
use bowline_store::{Holder, StoreError};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::sync::oneshot;

use super::streamable_http::{self, ResponseBody, SESSION, answer, event_stream, json, problem, text};
use crate::call::{Requester, outcome};
use crate::fields::{Fields, Raw, raw};
use crate::hub::Hub;
use crate::message::{self, RpcId, RpcMessage};
use crate::peers::{PeerNodes, PeerResponder, PeerStream, PeerStreamItem};
use crate::relay::peer_requests::{
    CarriedRequest, PeerRequest, RemoteQuestion, ResponseHead, SessionNotice, VERSION, WireAnswer,
};
use crate::relay::{call, task};
use crate::session::elicitation_and_sampling::PendingServerRequest;
use crate::session::{self, Route};
use crate::{sse, tasks};

/// Nodes that a request may come through: a session that moves faster cannot be followed.
const HOPS_MAX: u8 = 4;
/// How much of a response is sent at once, if so much is there.
const PART_BYTES: usize = 64 << 10;

/// The other node where a request can be answered, if it cannot be here.
pub async fn home(
    hub: &Hub,
    who: &Principal,
    headers: &HeaderMap,
    message: Option<&RpcMessage>,
) -> Result<Option<Holder>, StoreError> {
    let Some(peers) = &hub.peers else { return Ok(None) };
    let request = message.and_then(RpcMessage::request);
    let params = Fields::of(request.and_then(|request| request.params.as_deref()));
    if let Some(state) = params.text("requestState")
        && let Some(node) = hub.suspended.node_of(&state).and_then(Holder::parse)
    {
        return Ok(Some(node).filter(|node| node != peers.name() && !peers.is_dead(node)));
    }
    if request.is_some_and(|request| task::is_about_a_task(&request.method))
        && let Some(log) = tasks::names::hosted_log(&params.text("taskId").unwrap_or_default())
    {
        return owned_elsewhere(hub, &**peers, who, &log).await;
    }
    let by_tool = params.text("name").filter(|name| call::is_shown_of_ours(&hub.options, name));
    let handle = by_tool.and_then(|_| params.object("arguments").text("handle"));
    let named = text(headers, &SESSION).map(ToOwned::to_owned).or(handle);
    match named.as_deref().and_then(session::log_of) {
        Some(log) if !hub.sessions.is_awake(&log) => owned_elsewhere(hub, &**peers, who, &log).await,
        _ => Ok(None),
    }
}

/// The other node that has a log, for its owner. What a stranger asks is refused here, as for a log that is not there: carried to a node that
/// dies, it would be answered with a doubt, and for nothing there is none.
async fn owned_elsewhere(
    hub: &Hub,
    peers: &dyn PeerNodes,
    who: &Principal,
    log: &LogId,
) -> Result<Option<Holder>, StoreError> {
    let Some(node) = peers.elsewhere(log).await? else { return Ok(None) };
    if mutant("carry-for-strangers") {
        return Ok(Some(node));
    }
    let stored = hub.store.record(log).await?;
    Ok(stored.filter(|stored| stored.owner == *who).map(|_| node))
}

/// Carries a request to the node where it can be answered.
pub async fn carry(
    hub: &Hub,
    to: &Holder,
    who: &Requester,
    route: Route,
    request: &Request<Bytes>,
    hops: u8,
) -> Response<ResponseBody> {
    let Some(peers) = hub.peers.as_ref().filter(|_| hops < HOPS_MAX) else {
        let text = "The session is moving between servers. Try again.";
        return problem(StatusCode::SERVICE_UNAVAILABLE, message::INTERNAL_ERROR, text);
    };
    let wanted = |name: &HeaderName| {
        *name == ACCEPT || *name == CONTENT_TYPE || name == "last-event-id" || name.as_str().starts_with("mcp-")
    };
    let carried = CarriedRequest {
        version: VERSION,
        principal: who.principal.clone(),
        role: who.role.into(),
        route: route.into(),
        method: request.method().to_string(),
        headers: listed(request.headers(), wanted),
        body: String::from_utf8_lossy(request.body()).into_owned(),
        hops: hops + 1,
    };
    let asked = ForwardedRequest::of(request);
    let mut stream = peers.open_stream(to, raw(&PeerRequest::Request(carried)));
    let PeerStreamItem::Part(head) = stream.next().await else { return asked.lost() };
    let Ok(head) = serde_json::from_str::<ResponseHead>(&head) else { return asked.lost() };
    let streamed = head.headers.iter().any(|(name, value)| name == "content-type" && value == sse::CONTENT_TYPE);
    let mut response = if streamed {
        event_stream(rest(stream, asked))
    } else {
        match whole(stream).await {
            Some(body) => Response::new(streamable_http::full(body.into())),
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

async fn whole(mut stream: Box<dyn PeerStream>) -> Option<String> {
    let mut body = String::new();
    loop {
        match stream.next().await {
            PeerStreamItem::Part(part) => body.push_str(&part),
            PeerStreamItem::Ended => return Some(body),
            PeerStreamItem::Lost => return None,
        }
    }
}

/// The rest of a stream. A client with a session takes it up again elsewhere, if it has seen where it was; any other is
/// told the end at once.
fn rest(
    stream: Box<dyn PeerStream>,
    asked: ForwardedRequest,
) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send {
    futures_util::stream::unfold(Some((stream, asked)), |state| async {
        let (mut stream, mut asked) = state?;
        match stream.next().await {
            PeerStreamItem::Part(part) => {
                asked.can_return = asked.in_session;
                Some((Ok(Bytes::from(part)), Some((stream, asked))))
            }
            PeerStreamItem::Ended => None,
            PeerStreamItem::Lost if asked.can_return => None,
            PeerStreamItem::Lost => asked.unknown().map(|end| (Ok(Bytes::from(sse::encode(None, end.get()))), None)),
        }
    })
}

/// What a client asked, as far as its answer needs it if the other node dies.
struct ForwardedRequest {
    request: Option<(RpcId, String)>,
    in_session: bool,
    can_return: bool,
}

impl ForwardedRequest {
    fn of(request: &Request<Bytes>) -> ForwardedRequest {
        let message = RpcMessage::parse_bytes(request.body()).ok();
        let named = message.as_ref().and_then(RpcMessage::request);
        ForwardedRequest {
            request: named.map(|named| (named.id.clone(), named.method.clone())),
            in_session: request.headers().contains_key(SESSION),
            can_return: false,
        }
    }

    /// It is not known whether it was done.
    fn unknown(&self) -> Option<Raw> {
        let (id, method) = self.request.as_ref()?;
        Some(message::response(id, &outcome::cut_by_restart(method).answer))
    }

    fn lost(&self) -> Response<ResponseBody> {
        match self.unknown() {
            Some(end) => json(StatusCode::OK, end),
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
pub async fn serve(hub: &Arc<Hub>, request: &str, asker: Box<dyn PeerResponder>) {
    let request = serde_json::from_str(request);
    if let Some(version) = request.as_ref().ok().map(PeerRequest::version).filter(|version| *version > VERSION) {
        // What is known of it is done: a request that is dropped would leave its client in doubt.
        tracing::debug!(version, reads = VERSION, "another node asks in a newer version");
    }
    match request {
        Ok(PeerRequest::Request(carried)) => respond(hub, carried, &*asker).await,
        Ok(PeerRequest::Question(question)) => put(hub, question, &*asker).await,
        Ok(PeerRequest::Tell(SessionNotice { principal, session, event, server, data, .. })) => {
            if let Ok(Some(session)) = hub.sessions.find(&principal, session.as_str()).await {
                let _ = session.tell(&event, &server, &data).await;
            }
        }
        Ok(PeerRequest::Cancel { principal, task, .. }) => {
            let known = hub.tasks.find(task.as_str(), &principal).await.is_ok_and(|found| found.is_some());
            let cancelled = known && hub.tasks.cancel(&task).await;
            asker.say(cancelled.to_string()).await;
        }
        Err(error) => tracing::warn!(%error, "what another node asks cannot be read"),
    }
}

async fn respond(hub: &Arc<Hub>, carried: CarriedRequest, asker: &dyn PeerResponder) {
    let CarriedRequest { principal, role, route, method, headers, body, hops, .. } = carried;
    let mut request = Request::builder().method(method.as_str());
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let Ok(request) = request.body(Bytes::from(body)) else { return };
    let who = Requester { principal, role: role.into() };
    let answering = answer(hub, &who, route.into(), request, hops);
    let Some(response) = asker.left().run_until_cancelled(answering).await else { return };
    let (parts, mut body) = response.into_parts();
    let head =
        ResponseHead { version: VERSION, status: parts.status.as_u16(), headers: listed(&parts.headers, |_| true) };
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

/// Puts a question of another node's backend to a client whose handle is here.
async fn put(hub: &Arc<Hub>, question: RemoteQuestion, asker: &dyn PeerResponder) {
    let RemoteQuestion { principal, handle, server, method, params, .. } = question;
    let Ok(Some(session)) = hub.sessions.find(&principal, handle.as_str()).await else { return };
    let (reply, answered) = oneshot::channel();
    let pending =
        PendingServerRequest { foreign: true, ..PendingServerRequest::new(&server, method, params, reply.into()) };
    if session.ask(pending, None).await.is_err() {
        return;
    }
    let answer = match asker.left().run_until_cancelled(answered).await {
        Some(Ok(Ok(result))) => WireAnswer::Result(result),
        Some(Ok(Err(error))) => WireAnswer::Error(error),
        Some(Err(_)) | None => return,
    };
    asker.say(raw(&answer).get().to_owned()).await;
}
