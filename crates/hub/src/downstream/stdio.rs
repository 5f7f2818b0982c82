//! The stdio face: the same hub for a client that spawns us, one message a line.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::stateless::{self, Next, StatelessCall};
use super::{begin, revision_of, session_http};
use crate::call::{ConversationStep, Inbound, Requester};
use crate::fields::{Fields, Raw};
use crate::hub::Hub;
use crate::message::{self, RpcId, RpcMessage, RpcNotification, RpcRequest};
use crate::relay::ClientContext;
use crate::revision::{self, Revision};
use crate::scan::{InputLine, JsonScan, Lines};
use crate::session::cancellation::{CallGuard, CancellableCalls};
use crate::session::elicitation_and_sampling::PendingServerRequest;
use crate::session::stream_reader::{SessionStreamItem, SessionStreamReader};
use crate::session::{HubSession, OWN_STREAM, Route};

const OUT_MAX: usize = 256;
/// While the store cannot be read, it is tried again this often.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Serves one client until its input ends. Then its calls are cancelled: no client is left to answer.
pub async fn serve<R, W>(
    hub: Arc<Hub>,
    who: impl Into<Requester>,
    route: Route,
    line_bytes_max: usize,
    input: R,
    output: W,
) -> std::io::Result<()>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (out, outgoing) = mpsc::channel::<Raw>(OUT_MAX);
    let writing = tokio::spawn(write(output, outgoing));
    let over = CancellationToken::new();
    let mut server = StdioServer {
        hub,
        who: who.into(),
        route,
        line_bytes_max,
        out,
        session: None,
        running: CancellableCalls::new(&over),
        over,
    };
    let mut lines = Lines::new(input, line_bytes_max);
    let ended = loop {
        match lines.next().await {
            Ok(Some(InputLine::Whole(line))) if line.trim_ascii().is_empty() => {}
            Ok(Some(InputLine::Whole(line))) => server.take(&line).await,
            Ok(Some(InputLine::TooLong(scan))) => server.pass_over(&scan).await,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    server.leave().await;
    let _ = writing.await;
    ended
}

async fn write<W: AsyncWrite + Unpin>(mut output: W, mut outgoing: mpsc::Receiver<Raw>) {
    while let Some(message) = outgoing.recv().await {
        let mut line = bowline_protocol::json::compact(message.get());
        line.push('\n');
        if output.write_all(line.as_bytes()).await.is_err() || output.flush().await.is_err() {
            return;
        }
    }
}

struct StdioServer {
    hub: Arc<Hub>,
    who: Requester,
    route: Route,
    line_bytes_max: usize,
    out: mpsc::Sender<Raw>,
    /// Begun by `initialize`.
    session: Option<Arc<HubSession>>,
    running: CancellableCalls,
    over: CancellationToken,
}

impl StdioServer {
    async fn take(&mut self, line: &[u8]) {
        self.revive().await;
        match RpcMessage::parse_bytes(line) {
            Err(why) => {
                let text = format!("This is no message: {why}.");
                let _ = self.out.send(message::nameless_error(why.code(), &text)).await;
            }
            Ok(RpcMessage::Request(request)) if request.method == "initialize" => self.initialize(request).await,
            Ok(RpcMessage::Request(request)) => self.request(request).await,
            Ok(RpcMessage::Notification(notification)) => self.notified(notification).await,
            Ok(RpcMessage::Response(response)) => {
                let id = response.id.and_then(|id| serde_json::from_str::<String>(id.as_json()).ok());
                if let (Some(session), Some(id)) = (&self.session, id) {
                    session.answer(&id, response.answer);
                }
            }
        }
    }

    /// A session that cannot go on as it was is woken anew. Over HTTP its client's next request does that; here it is one wire for
    /// one session.
    async fn revive(&mut self) {
        let Some(lost) = self.session.as_ref().filter(|session| session.is_lost()) else { return };
        match self.hub.sessions.find(&self.who.principal, lost.id.as_str()).await {
            Ok(woken) => self.session = woken,
            Err(error) => return tracing::warn!(session = %lost.id, %error, "a session could not be woken"),
        }
        if let Some(session) = &self.session {
            tokio::spawn(follow(session.clone(), self.out.clone(), self.over.clone()));
        }
    }

    /// A line that is too long is refused as the request that it is, as far as that can be seen.
    async fn pass_over(&self, scan: &JsonScan) {
        let text = format!("This line is longer than hub.body_bytes_max ({} bytes).", self.line_bytes_max);
        let refusal = match scan.id().filter(|_| !scan.may_be_response()) {
            Some(id) => message::response(id, &Err(message::error(message::INVALID_REQUEST, &text))),
            None => message::nameless_error(message::INVALID_REQUEST, &text),
        };
        let _ = self.out.send(refusal).await;
    }

    async fn notified(&self, notification: RpcNotification) {
        let fields = Fields::of(notification.params.as_deref());
        match (notification.method.as_str(), &self.session) {
            // Here it is the cancel of both exchanges: there is no response that could be closed.
            ("notifications/cancelled", _) => {
                if let Some(id) = fields.get("requestId").and_then(|raw| RpcId::parse(raw.get())) {
                    self.running.take_back(&id);
                }
            }
            (_, Some(session)) => session_http::notified(&self.hub, session, notification).await,
            (_, None) => {}
        }
    }

    async fn initialize(&mut self, request: RpcRequest) {
        let params = Fields::of(request.params.as_deref());
        let answer = match session_http::open(&self.hub, &self.who.principal, self.route.clone(), &params).await {
            Ok(session) => {
                let reply = session_http::greet(&self.hub, &session).await;
                tokio::spawn(follow(session.clone(), self.out.clone(), self.over.clone()));
                // One wire has one session; the newest is meant.
                if let Some(older) = self.session.replace(session) {
                    self.hub.end_session(&older).await;
                }
                reply.answer
            }
            Err(error) => Err(message::error(message::INTERNAL_ERROR, &error.to_string())),
        };
        let _ = self.out.send(message::response(&request.id, &answer)).await;
    }

    async fn request(&mut self, request: RpcRequest) {
        let answer = match (revision::standing_alone(&request), &self.session) {
            (Some(revision), _) => match revision.check(&Fields::of(request.params.as_deref())) {
                Ok(()) => return self.begin_stateless(revision, request),
                Err(reply) => reply.answer,
            },
            (None, Some(session)) => {
                let under_way = self.running.begin(&request.id);
                let client = ClientContext::of_session(session).with_role(self.who.role);
                tokio::spawn(run(self.hub.clone(), session.clone(), client, request, self.out.clone(), under_way));
                return;
            }
            (None, None) if request.method == "ping" => Ok(crate::fields::empty()),
            (None, None) => Err(message::error(message::INVALID_REQUEST, "Begin with `initialize`.")),
        };
        let _ = self.out.send(message::response(&request.id, &answer)).await;
    }

    fn begin_stateless(&self, revision: &'static dyn Revision, request: RpcRequest) {
        let client = stateless::client_of(&self.who, self.route.clone(), revision, &request, None);
        let under_way = self.running.begin(&request.id);
        let (hub, out, gone) = (self.hub.clone(), self.out.clone(), self.over.clone());
        tokio::spawn(async move {
            let id = request.id.clone();
            let talking = async {
                match StatelessCall::take_up(&hub, revision, client, request, gone) {
                    Ok(call) => converse(call, &id, &out).await,
                    Err(reply) => drop(out.send(message::response(&id, &reply.answer)).await),
                }
            };
            under_way.token().run_until_cancelled(talking).await;
        });
    }

    async fn leave(self) {
        self.over.cancel();
        self.hub.suspended.sweep();
        if let Some(session) = &self.session {
            self.hub.end_session(session).await;
        }
    }
}

/// One call of a stateless client.
async fn converse(mut call: StatelessCall, id: &RpcId, out: &mpsc::Sender<Raw>) {
    loop {
        let message = match call.next().await {
            Next::Said(said) => said,
            // A pipe needs no sign of life.
            Next::Quiet => continue,
            Next::Ended(reply) => return drop(out.send(message::response(id, &reply.answer)).await),
        };
        if out.send(message).await.is_err() {
            return;
        }
    }
}

/// One call of a client with a session.
async fn run(
    hub: Arc<Hub>,
    session: Arc<HubSession>,
    client: ClientContext,
    request: RpcRequest,
    out: mpsc::Sender<Raw>,
    under_way: CallGuard,
) {
    let request = Arc::new(request);
    let mut conversation = begin(&hub, revision_of(&session), client, request.clone());
    while let Some(step) = under_way.token().run_until_cancelled(conversation.next()).await {
        match step {
            ConversationStep::Said(Inbound::Notification { method, params, .. }) => {
                let _ = out.send(message::notification(&method, params.as_ref())).await;
            }
            ConversationStep::Said(Inbound::Request { server, method, params, reply }) => {
                let native = session.can(&method, params.as_ref());
                let asked = PendingServerRequest::new(&server, method, params, reply);
                let _ = session.ask(asked, native.then_some(OWN_STREAM)).await;
            }
            ConversationStep::Ended(reply) => {
                let _ = out.send(message::response(&request.id, &reply.answer)).await;
                return;
            }
        }
    }
}

/// What a session is sent outside of its calls.
async fn follow(session: Arc<HubSession>, out: mpsc::Sender<Raw>, over: CancellationToken) {
    let mut reader = loop {
        match session.store().extent(&session.id).await {
            Ok(extent) => break SessionStreamReader::new(&session, OWN_STREAM, extent.last(), over),
            Err(_) if over.is_cancelled() || session.over.is_cancelled() => return,
            Err(_) => tokio::time::sleep(READ_AGAIN).await,
        }
    };
    // There is no other wire that the client could come back on, so what cannot be read now is read later.
    while !reader.is_over() {
        let messages = match reader.next().await {
            Some(SessionStreamItem::Messages(messages)) => messages,
            Some(SessionStreamItem::Quiet) => continue,
            None => {
                tokio::time::sleep(READ_AGAIN).await;
                continue;
            }
        };
        for (_, message) in messages {
            if out.send(message).await.is_err() {
                return;
            }
        }
    }
}
