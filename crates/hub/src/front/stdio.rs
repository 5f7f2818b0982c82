//! The stdio face: the same hub for a client that spawns us, one message a line.

use std::sync::Arc;

use bowline_protocol::Principal;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::reader::{Piece, Reader};
use super::{Client, begin, legacy};
use crate::drive::conversation::Step;
use crate::era;
use crate::fields::{Fields, Raw};
use crate::hub::Hub;
use crate::link::{Caller, ClientFacts, Inbound};
use crate::message::{self, Message, Request};
use crate::pending::Pending;
use crate::session::{OWN_STREAM, Route, Session};

const OUT_MAX: usize = 256;

/// Serves one client until its input ends.
pub async fn serve<R, W>(hub: Arc<Hub>, principal: Principal, route: Route, input: R, output: W) -> std::io::Result<()>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (out, outgoing) = mpsc::channel::<Raw>(OUT_MAX);
    let writing = tokio::spawn(write(output, outgoing));
    let mut front = Front { hub, principal, route, out, session: None, over: CancellationToken::new() };
    let mut lines = input.lines();
    while let Some(line) = lines.next_line().await? {
        if !line.trim().is_empty() {
            front.take(&line).await;
        }
    }
    front.over.cancel();
    if let Some(session) = &front.session {
        front.hub.sessions.end(&front.hub, session).await;
    }
    drop(front);
    let _ = writing.await;
    Ok(())
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

struct Front {
    hub: Arc<Hub>,
    principal: Principal,
    route: Route,
    out: mpsc::Sender<Raw>,
    session: Option<Arc<Session>>,
    over: CancellationToken,
}

impl Front {
    async fn take(&mut self, line: &str) {
        match Message::parse(line) {
            Err(why) => {
                let text = format!("This is no message: {why}.");
                let _ = self.out.send(message::nameless_error(why.code(), &text)).await;
            }
            Ok(Message::Request(request)) if request.method == "initialize" => self.initialize(request).await,
            Ok(Message::Request(request)) => self.request(request).await,
            Ok(Message::Notification(notification)) => {
                if let Some(session) = &self.session {
                    legacy::notified(&self.hub, session, notification).await;
                }
            }
            Ok(Message::Response(response)) => {
                let id = response.id.and_then(|id| serde_json::from_str::<String>(id.as_json()).ok());
                if let (Some(session), Some(id)) = (&self.session, id) {
                    session.answer(&id, response.answer);
                }
            }
        }
    }

    async fn initialize(&mut self, request: Request) {
        let params = Fields::of(request.params.as_deref());
        let answer = match legacy::open(&self.hub, &self.principal, self.route.clone(), &params).await {
            Ok(session) => {
                let reply = legacy::greet(&self.hub, &session).await;
                tokio::spawn(follow(session.clone(), self.out.clone(), self.over.clone()));
                self.session = Some(session);
                reply.answer
            }
            Err(error) => Err(message::error(message::INTERNAL_ERROR, &error.to_string())),
        };
        let _ = self.out.send(message::response(&request.id, &answer)).await;
    }

    async fn request(&mut self, request: Request) {
        let meta = Fields::of(request.params.as_deref()).object("_meta");
        let modern = meta.has(era::META_VERSION) || request.method == "server/discover";
        let client = if modern {
            match meta.text(era::META_VERSION) {
                Some(version) if !era::MODERN_VERSIONS.contains(&version.as_str()) => {
                    let data = serde_json::json!({ "supported": era::versions(), "requested": version });
                    let error =
                        message::error_with(message::UNSUPPORTED_VERSION, "this version is not spoken here", &data);
                    let _ = self.out.send(message::response(&request.id, &Err(error))).await;
                    return;
                }
                _ => self.modern_client(&meta).await,
            }
        } else {
            match &self.session {
                Some(session) => Client::of_session(session),
                None if request.method == "ping" => {
                    let _ = self.out.send(message::response(&request.id, &Ok(crate::fields::empty()))).await;
                    return;
                }
                None => {
                    let error = message::error(message::INVALID_REQUEST, "Begin with `initialize`.");
                    let _ = self.out.send(message::response(&request.id, &Err(error))).await;
                    return;
                }
            }
        };
        let session = client.session.clone();
        tokio::spawn(run(self.hub.clone(), client, session, request, self.out.clone()));
    }

    /// A modern client over stdio has one wire, so what it can do is kept as a session's would be.
    async fn modern_client(&mut self, meta: &Fields) -> Client {
        let capabilities = meta.get(era::META_CAPABILITIES).map_or_else(era::no_capabilities, ToOwned::to_owned);
        let info = meta.get(era::META_CLIENT).map_or_else(era::our_info, ToOwned::to_owned);
        let facts = ClientFacts { capabilities, info };
        Client {
            principal: self.principal.clone(),
            route: self.route.clone(),
            caller: Caller::without_session(&self.principal, facts),
            session: None,
            headers: None,
            log_level: meta.text(era::META_LOG_LEVEL),
        }
    }
}

/// One call of a client over stdio.
async fn run(hub: Arc<Hub>, client: Client, session: Option<Arc<Session>>, request: Request, out: mpsc::Sender<Raw>) {
    let taken_back = session.as_ref().map_or_else(CancellationToken::new, |session| session.started(&request.id));
    let mut conversation = begin(&hub, client, request.clone());
    while let Some(step) = taken_back.run_until_cancelled(conversation.next()).await {
        match step {
            Step::Said(Inbound::Notification { method, params }) => {
                let _ = out.send(message::notification(&method, params.as_ref())).await;
            }
            Step::Said(Inbound::Request { server, method, params, reply }) => match &session {
                Some(session) if method != "roots/list" || session.can("roots/list") => {
                    let stream = session.can(&method).then_some(OWN_STREAM);
                    let _ = session.ask(Pending::new(&server, method, params, reply), stream).await;
                }
                _ => drop(reply),
            },
            Step::Ended(reply) => {
                let _ = out.send(message::response(&request.id, &reply.answer)).await;
                break;
            }
        }
    }
    if let Some(session) = &session {
        session.finished(&request.id);
    }
}

/// What a session is told outside of its calls.
async fn follow(session: Arc<Session>, out: mpsc::Sender<Raw>, over: CancellationToken) {
    let Ok(extent) = session.store().extent(&session.id).await else { return };
    let mut reader = Reader::new(&session, OWN_STREAM, extent.last(), over);
    while let Some(piece) = reader.next().await {
        let Piece::Messages(messages) = piece else { continue };
        for (_, message) in messages {
            if out.send(message).await.is_err() {
                return;
            }
        }
    }
}
