//! What backends ask a session, be it elicitation, sampling or roots: put to the client natively or by the tools, answered once, and
//! void when its time is over.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use bowline_env::clock;
use bowline_store::StoreError;
use serde_json::json;

use crate::call::outcome::CallOutcome;
use crate::call::server_request::Replier;
use crate::fields::{Fields, Raw, raw};
use crate::message::{self, RpcId, RpcResult};
use crate::session::{HubSession, OWN_STREAM, State};

/// Why a question is void whose server is gone.
pub(crate) const GONE: &str = "Server disconnected";

impl HubSession {
    /// Asks the client something on behalf of a backend: natively on a stream, or by the tools. Without either, no client
    /// can answer.
    pub async fn ask(&self, asked: PendingServerRequest, stream: Option<&str>) -> Result<(), StoreError> {
        if stream.is_none()
            && let Some(answer) = self.answer_without_client(&asked.method)
        {
            let _ = asked.reply.send(answer);
            return Ok(());
        }
        let id = {
            let mut state = self.state();
            state.next += 1;
            format!("bl-{:x}-{}", self.fence.0, state.next)
        };
        let (kind, server) = (asked.kind, asked.server.clone());
        let request = message::request(&RpcId::text(&id), &asked.method, asked.params.as_deref());
        let shown = asked.shown(&id);
        self.state()
            .pending
            .insert(id.clone(), PendingServerRequest { stream: stream.map(ToOwned::to_owned), ..asked });
        let put = match stream {
            Some(stream) => self.say(stream, Some(&request), false).await,
            None => self.tell(kind.event(), &server, &shown).await,
        };
        if put.is_err() {
            // No client was asked, so none will answer; dropping it answers the backend with an error.
            self.state().pending.remove(&id);
        }
        put.map(drop)
    }

    /// What is answered for a client that cannot do so natively, and has no tool for it.
    fn answer_without_client(&self, method: &str) -> Option<RpcResult> {
        match method {
            "roots/list" => Some(Ok(raw(&json!({ "roots": [] })))),
            _ if self.has_tools => None,
            _ => Some(Err(message::error(message::METHOD_NOT_FOUND, "the client cannot answer this"))),
        }
    }

    /// The client answers. An answer counts once.
    pub fn answer(&self, id: &str, answer: RpcResult) -> bool {
        let pending = self.state().pending.remove(id);
        pending.is_some_and(|pending| pending.reply.send(answer).is_ok())
    }

    /// The same by a tool, which is for questions of one kind.
    pub fn answer_as(&self, kind: ServerRequestKind, id: &str, answer: RpcResult) -> bool {
        let fits = self.state().pending.get(id).is_some_and(|pending| pending.kind == kind);
        fits && self.answer(id, answer)
    }

    /// What waits for an answer by the tools.
    pub fn pending(&self, kind: Option<ServerRequestKind>) -> Vec<Fields> {
        let mut state = self.state();
        state.pending.retain(|_, pending| !pending.reply.is_closed());
        let wanted = state.pending.iter().filter(|(_, pending)| kind.is_none_or(|kind| kind == pending.kind));
        let mut shown: Vec<_> = wanted.map(|(id, pending)| (pending.since, pending.shown(id))).collect();
        shown.sort_by_key(|(since, _)| *since);
        shown.into_iter().map(|(_, shown)| shown).collect()
    }

    /// Native requests that are not answered yet, for a client that has come back without a cursor. What was asked on a stream
    /// that is read now was seen there.
    pub async fn offer_again(&self) -> Result<(), StoreError> {
        let again = {
            let mut state = self.state();
            let State { pending, readers, .. } = &mut *state;
            requests(pending, |stream| stream == OWN_STREAM || !readers.see(stream))
        };
        self.offer(again).await
    }

    /// The last reader of this stream has left, and the client is on another connection already.
    pub(super) async fn offer_left_on(&self, stream: &str) {
        let left = requests(&self.state().pending, |asked_on| asked_on == stream);
        if let Err(error) = self.offer(left).await {
            tracing::warn!(session = %self.id, %error, "open questions could not be offered again");
        }
    }

    async fn offer(&self, requests: Vec<Raw>) -> Result<(), StoreError> {
        for request in requests {
            self.say(OWN_STREAM, Some(&request), false).await?;
        }
        Ok(())
    }

    /// A backend is gone: what it had asked is void, and the client is notified.
    pub async fn reject(&self, server: &str) -> Result<(), StoreError> {
        self.void(|pending| pending.server == server && !pending.foreign, GONE).await
    }

    /// A call is over, and what was asked on its stream with it. If its server went away, that is why. What another call of the
    /// client may have asked goes on without the stream.
    pub async fn withdraw(&self, stream: &str, outcome: Option<CallOutcome>) -> Result<(), StoreError> {
        let asked = |pending: &PendingServerRequest| pending.stream.as_deref() == Some(stream);
        if !self.state().pending.values().any(asked) {
            return Ok(());
        }
        let cut = outcome == Some(CallOutcome::Unknown);
        if !cut && self.running.count() > 1 {
            self.move_to_own_stream(|pending| asked(pending) && !pending.reply.certain);
        }
        self.void(asked, if cut { GONE } else { "The call is over" }).await
    }

    /// A call goes on without its stream: what was asked there is asked on the session's own from here on.
    pub fn ask_on_own_stream(&self, stream: &str) {
        self.move_to_own_stream(|pending| pending.stream.as_deref() == Some(stream));
    }

    fn move_to_own_stream(&self, which: impl Fn(&PendingServerRequest) -> bool) {
        for pending in self.state().pending.values_mut().filter(|pending| which(pending)) {
            pending.stream = Some(OWN_STREAM.to_owned());
        }
    }

    async fn void(&self, gone: impl Fn(&PendingServerRequest) -> bool, reason: &str) -> Result<(), StoreError> {
        let gone: Vec<(String, PendingServerRequest)> = {
            let mut state = self.state();
            let ids: Vec<String> = state.pending.iter().filter(|(_, p)| gone(p)).map(|(id, _)| id.clone()).collect();
            ids.into_iter().filter_map(|id| state.pending.remove(&id).map(|pending| (id, pending))).collect()
        };
        for (id, pending) in gone {
            match &pending.stream {
                Some(stream) => {
                    let params = raw(&json!({ "requestId": id, "reason": reason }));
                    self.say(stream, Some(&message::notification("notifications/cancelled", Some(&params))), false)
                        .await?;
                }
                None => {
                    let data = json!({ "id": id, "reason": reason });
                    self.tell(pending.kind.expired(), &pending.server, &data).await?;
                }
            }
            let _ = pending.reply.send(Err(message::error(message::INTERNAL_ERROR, reason)));
        }
        Ok(())
    }

    /// Questions that have waited too long are taken back, and so are those whose answer is not awaited any more.
    pub async fn expire(&self, patience: Duration) -> Result<(), StoreError> {
        self.void(|pending| pending.reply.is_closed(), "The server does not ask any more").await?;
        self.void(|pending| pending.since + patience <= clock::now(), "Expired").await
    }
}

/// What waits natively on streams that fit, as it was asked.
fn requests(pending: &HashMap<String, PendingServerRequest>, mut fits: impl FnMut(&str) -> bool) -> Vec<Raw> {
    let living = pending.iter().filter(|(_, pending)| !pending.reply.is_closed());
    let asked = living.filter(|(_, pending)| pending.stream.as_deref().is_some_and(&mut fits));
    asked.map(|(id, pending)| message::request(&RpcId::text(id), &pending.method, pending.params.as_deref())).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerRequestKind {
    Sampling,
    Elicitation,
    Other,
}

impl ServerRequestKind {
    pub fn of(method: &str) -> ServerRequestKind {
        match method {
            "sampling/createMessage" => ServerRequestKind::Sampling,
            "elicitation/create" => ServerRequestKind::Elicitation,
            _ => ServerRequestKind::Other,
        }
    }

    pub const fn event(self) -> &'static str {
        match self {
            ServerRequestKind::Sampling => "sampling_request",
            ServerRequestKind::Elicitation | ServerRequestKind::Other => "elicitation_request",
        }
    }

    pub const fn expired(self) -> &'static str {
        match self {
            ServerRequestKind::Sampling => "sampling_expired",
            ServerRequestKind::Elicitation | ServerRequestKind::Other => "elicitation_expired",
        }
    }
}

pub struct PendingServerRequest {
    pub kind: ServerRequestKind,
    pub server: String,
    pub method: String,
    pub params: Option<Raw>,
    pub reply: Replier,
    pub since: Instant,
    /// The stream on which the client itself was asked; without one the tools answer.
    pub stream: Option<String>,
    /// Its backend is another node's, so what happens to ours does not matter.
    pub foreign: bool,
}

impl PendingServerRequest {
    pub fn new(server: &str, method: String, params: Option<Raw>, reply: Replier) -> PendingServerRequest {
        let kind = ServerRequestKind::of(&method);
        PendingServerRequest {
            kind,
            server: server.to_owned(),
            method,
            params,
            reply,
            since: clock::now(),
            stream: None,
            foreign: false,
        }
    }

    pub fn shown(&self, id: &str) -> Fields {
        let shown = Fields::default().and("id", id).and("server", &self.server);
        shown.and("method", &self.method).and("params", &self.params)
    }
}

impl fmt::Debug for PendingServerRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({} of {})", self.method, self.server)
    }
}
