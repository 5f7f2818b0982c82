//! One ordered way in and one way out: a child's stdin and stdout, or HTTP+SSE; for one client, or for all who share it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backend::{DialError, Generation};
use futures_util::future::{BoxFuture, Either};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::inbound_queue::InboundQueue;
use super::pending_calls::{InboundRecipient, PendingCall, PendingCalls, PipeKind};
use super::subscriptions::{Subscriptions, UNSUBSCRIBE};
use super::{Dial, PROBE_TIMEOUT, RENEWAL_TIMEOUT, TransportEvent, TransportEvents, cancelled, passing, progress};
use crate::call::facts::ServerFacts;
use crate::call::server_request::{AnswerReceiver, no_recipient, own_answer};
use crate::call::{BackendCall, CallEnding, Caller, Exchange, Inbound, InboundSink, SHARED_SESSION};
use crate::catalogue::ListKind;
use crate::fields::Raw;
use crate::message::{self, RpcId, RpcMessage, RpcNotification, RpcRequest, RpcResponse, RpcResult};
use crate::revision::{self, Revision};
use crate::scan::JsonScan;
use crate::upstream::inbound_queue::{Unread, WRONGLY_NAMED};
use crate::upstream::pending_calls::{AskedByBackend, Departure, Outgoing, TAKEN_BACK};
use crate::upstream::subscriptions::RenewableRequest;

/// A subscription that ends again and again is not asked for faster than this.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// Messages that may wait to be written.
pub const OUT_QUEUE: usize = 256;

pub struct Pipe {
    facts: std::sync::OnceLock<ServerFacts>,
    out: mpsc::Sender<Outgoing>,
    waiting: PendingCalls,
    /// The only client, if clients do not share it.
    client: Option<Caller>,
    /// What all clients have subscribed to, if they share it.
    subscriptions: Option<Subscriptions>,
    /// Requests from the backend that are being answered.
    asked: AskedByBackend,
    name: Arc<str>,
    events: TransportEvents,
    generation: Generation,
    closed: CancellationToken,
}

impl Pipe {
    /// Shared by all clients, or for one client alone.
    pub fn new(
        out: mpsc::Sender<Outgoing>,
        dial: &Dial,
        closed: CancellationToken,
        client: Option<Caller>,
        kind: PipeKind,
    ) -> Pipe {
        Pipe {
            facts: std::sync::OnceLock::new(),
            out,
            waiting: PendingCalls::new(client.as_ref(), kind),
            subscriptions: client.is_none().then(|| Subscriptions::new(dial.renewals.clone(), dial.generation)),
            client,
            asked: AskedByBackend::default(),
            name: dial.name.clone(),
            events: dial.events.clone(),
            generation: dial.generation,
            closed,
        }
    }

    /// Finds out what the backend is: a probe that every stateless server must know, then the handshake of a session.
    pub async fn shake_hands(self: &Arc<Self>, remembered: Option<Exchange>) -> Result<(), DialError> {
        let facts = match remembered {
            Some(Exchange::Session) => self.initialize().await?,
            _ => self.find_out().await?,
        };
        let _ = self.facts.set(facts);
        Ok(())
    }

    /// A server with sessions may ignore the probe, and a program may take longer to start than the probe waits. So
    /// after a while both questions stand, and the first answer counts.
    async fn find_out(self: &Arc<Self>) -> Result<ServerFacts, DialError> {
        let mut probe = std::pin::pin!(self.discover());
        if let Ok(found) = tokio::time::timeout(PROBE_TIMEOUT, &mut probe).await {
            return match found? {
                Some(facts) => Ok(facts),
                None => self.initialize().await,
            };
        }
        let initialize = std::pin::pin!(self.initialize());
        match futures_util::future::select(probe, initialize).await {
            Either::Left((found, initialize)) => match found? {
                Some(facts) => Ok(facts),
                None => initialize.await,
            },
            Either::Right((facts, _)) => facts,
        }
    }

    /// After a reconnect: what clients had subscribed to and set, so that no client has to do anything.
    pub async fn renew(self: &Arc<Self>, kept: Vec<RenewableRequest>) {
        if let Some(subscriptions) = &self.subscriptions {
            subscriptions.renewed(&kept).await;
        }
        for (method, params) in kept {
            let shared_session = SHARED_SESSION.into();
            let _ = tokio::time::timeout(RENEWAL_TIMEOUT, self.send(&method, params.as_deref(), &shared_session, None))
                .await;
        }
    }

    /// A client has left: what only it had subscribed to is ended.
    pub async fn end_unwanted(self: &Arc<Self>) {
        let Some(subscriptions) = &self.subscriptions else { return };
        let (unwanted, order) = subscriptions.unwanted().await;
        let shared_session = SHARED_SESSION.into();
        let mut begun = Vec::new();
        for params in unwanted {
            begun.extend(self.begin(UNSUBSCRIBE, Some(&params), &shared_session, None).await);
        }
        drop(order);
        let all = futures_util::future::join_all(begun.into_iter().map(SentRequest::ended));
        let _ = tokio::time::timeout(RENEWAL_TIMEOUT, all).await;
    }

    async fn discover(self: &Arc<Self>) -> Result<Option<ServerFacts>, DialError> {
        let mut found = Ok(None);
        for revision in revision::exchanging(Exchange::Stateless) {
            found = match self.open(revision, &Caller::hub()).await {
                CallEnding::Answered { answer: Ok(result), .. } => return Ok(Some(revision.server_facts(&result))),
                // An older one may be known to it.
                CallEnding::Answered { answer: Err(error), .. } if revision.is_own_error(&error) => {
                    Err(passing(format!("it speaks no version that is known here: {}", message::message_of(&error))))
                }
                CallEnding::Answered { .. } => return Ok(None),
                CallEnding::Refused { why: reason, retry_after } => {
                    return Err(DialError::Passing { reason, retry_after });
                }
                CallEnding::NotExecuted(why) | CallEnding::Broken(why) => return Err(passing(why)),
            };
        }
        found
    }

    async fn open(self: &Arc<Self>, revision: &dyn Revision, caller: &Caller) -> CallEnding {
        let opening = revision.opening(caller);
        self.send(&opening.method, revision.params(&opening).as_deref(), &SHARED_SESSION.into(), None).await
    }

    async fn initialize(self: &Arc<Self>) -> Result<ServerFacts, DialError> {
        let client = self.client.clone().unwrap_or_else(Caller::hub);
        let revision = revision::newest(Exchange::Session);
        match self.open(revision, &client).await {
            CallEnding::Answered { answer: Ok(result), .. } => {
                self.notify("notifications/initialized", None).await;
                Ok(revision.server_facts(&result))
            }
            CallEnding::Answered { answer: Err(error), .. } => {
                Err(passing(format!("it refused to be initialized: {}", message::message_of(&error))))
            }
            CallEnding::Refused { why: reason, retry_after } => Err(DialError::Passing { reason, retry_after }),
            CallEnding::NotExecuted(why) | CallEnding::Broken(why) => Err(passing(why)),
        }
    }

    #[allow(clippy::expect_used)]
    pub fn facts(&self) -> &ServerFacts {
        self.facts.get().expect("a pipe is handed out only after the handshake")
    }

    fn revision(&self) -> &'static dyn Revision {
        let facts = self.facts();
        revision::of(&facts.version, facts.exchange)
    }

    pub async fn call(self: &Arc<Self>, call: &BackendCall) -> CallEnding {
        let BackendCall { method, caller, sink, .. } = call;
        if method == "initialize" {
            let facts = self.facts();
            let result = facts.initialized.clone().unwrap_or_else(|| revision::introduced_across(facts));
            return CallEnding::answered(Ok(result));
        }
        let params = self.revision().params(call);
        // Calls without a session cannot be told apart: each of them may be another client's.
        let shared_session: Arc<str> = SHARED_SESSION.into();
        let session_name = if caller.inbox.is_some() { &caller.session_name } else { &shared_session };
        let Some(subscriptions) = &self.subscriptions else {
            return self.send(method, params.as_deref(), session_name, sink.clone()).await;
        };
        let Some(mut turn) = subscriptions.turn(call).await else {
            return CallEnding::answered(Ok(crate::fields::empty()));
        };
        let ending = match self.begin(method, params.as_deref(), session_name, sink.clone()).await {
            Ok(begun) => {
                turn.sent();
                begun.ended().await
            }
            Err(why) => CallEnding::NotExecuted(why),
        };
        turn.ended(ending)
    }

    /// Whether hands were shaken.
    pub fn has_begun(&self) -> bool {
        self.facts.get().is_some()
    }

    /// From now on, messages that belong to no call go to this client, or to all clients that may see them.
    pub fn set_tenant(&self, client: Option<&Caller>) {
        self.waiting.set_tenant(client);
    }

    /// The only client that is here now, if there is one.
    pub fn tenant(&self) -> Option<Arc<str>> {
        self.waiting.only_client()
    }

    /// Whether its wire is known to be gone.
    pub fn is_lost(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Holds one subscription at a backend that tells of changes of its lists only so. What it says comes in like everything
    /// else; its answer is its end.
    pub async fn hold_subscription(self: Arc<Self>) {
        let Some(listen) = self.revision().watch() else { return };
        let params = self.revision().params(&listen);
        let shared_session: Arc<str> = SHARED_SESSION.into();
        let mut again = false;
        loop {
            let Ok(begun) = self.begin(&listen.method, params.as_deref(), &shared_session, None).await else {
                return;
            };
            if std::mem::replace(&mut again, true) {
                // No client was notified of what changed in between. Clients are notified only of a real difference.
                let (server, method) = (self.name.clone(), ListKind::Tools.changed().to_owned());
                let changed = Inbound::Notification { server, method, params: None };
                let _ = self.events.send((self.generation, TransportEvent::Inbound(changed))).await;
            }
            // It has no subscriptions, or it is gone.
            let CallEnding::Answered { answer: Ok(_), .. } = begun.ended().await else { return };
            tokio::time::sleep(REOPEN_PAUSE).await;
        }
    }

    pub async fn notify(&self, method: &str, params: Option<Raw>) {
        let _ = self.out.send(Outgoing::new(message::notification(method, params.as_ref()))).await;
    }

    pub fn close(&self) {
        self.closed.cancel();
    }

    async fn send(
        self: &Arc<Self>,
        method: &str,
        params: Option<&RawValue>,
        session_name: &Arc<str>,
        sink: Option<InboundSink>,
    ) -> CallEnding {
        match self.begin(method, params, session_name, sink).await {
            Ok(begun) => begun.ended().await,
            Err(why) => CallEnding::NotExecuted(why),
        }
    }

    /// Queues a request; what is begun after it goes out after it.
    async fn begin<'a>(
        self: &'a Arc<Self>,
        method: &str,
        params: Option<&RawValue>,
        session_name: &Arc<str>,
        sink: Option<InboundSink>,
    ) -> Result<SentRequest<'a>, String> {
        if self.closed.is_cancelled() {
            return Err("the connection is closed".into());
        }
        let number = self.waiting.number();
        let (params, progress) = progress::with_own_token(params, number);
        let (answered, ending) = oneshot::channel();
        let said = sink.map(|sink| (Arc::new(InboundQueue::new(&self.name)), sink));
        let heard = said.as_ref().map(|(said, _)| said.clone());
        let listens = method == "subscriptions/listen";
        self.waiting.enter(
            number,
            PendingCall { answered, said: heard, session_name: session_name.clone(), progress, listens },
        );
        let outgoing = Outgoing::request(message::request(&RpcId::number(number), method, params.as_deref()), number);
        let open = OpenRequest { pipe: self, number, departure: outgoing.departure.clone(), over: false };
        match self.out.send(outgoing).await {
            Ok(()) => Ok(SentRequest { open, ending, said }),
            Err(_) => Err("the connection is closed".into()),
        }
    }

    /// A message as it was written.
    pub async fn receive_text(self: &Arc<Self>, text: &[u8]) {
        match RpcMessage::parse_bytes(text) {
            Ok(message) => self.receive(message).await,
            Err(why) => self.pass_over(&JsonScan::of(text), Unread::Malformed(why)),
        }
    }

    /// A message that cannot be taken hurts only the call that it answers; a request is refused.
    pub fn pass_over(&self, scan: &JsonScan, why: Unread) {
        if let Some(refusal) = why.refusal(scan) {
            let _ = self.out.try_send(Outgoing::new(refusal));
        }
        let call = if why.may_answer(scan) { self.waiting.whose_answer(scan) } else { None };
        match call {
            Some(call) => {
                tracing::warn!(server = %self.name, %why, "a backend's answer was passed over");
                let _ = call.answered.send(CallEnding::failed(&why.to_string()));
            }
            None => tracing::warn!(server = %self.name, ?why, "a backend wrote something that was passed over"),
        }
    }

    /// An answer to something that was never asked.
    fn answered_wrongly(&self, id: Option<&RpcId>) {
        let call = self.waiting.wrongly_named(id);
        tracing::warn!(server = %self.name, failed = call.is_some(), "a backend answered something that was not asked");
        if let Some(call) = call {
            let _ = call.answered.send(CallEnding::failed(WRONGLY_NAMED));
        }
    }

    /// A call that will get no answer: how it ended, or nothing if it is not known whether it ran.
    pub fn give_up(&self, number: u64, ending: Option<CallEnding>) {
        if let (Some(call), Some(ending)) = (self.waiting.leave(number), ending) {
            let _ = call.answered.send(ending);
        }
    }

    /// For a request whose answer is not awaited.
    pub fn spare_id(&self) -> RpcId {
        RpcId::number(self.waiting.number())
    }

    /// Everything that comes in, in its order.
    pub async fn receive(self: &Arc<Self>, message: RpcMessage) {
        match message {
            RpcMessage::Response(RpcResponse { id, answer }) => {
                let number = id.as_ref().and_then(RpcId::as_number);
                match number.and_then(|number| self.waiting.leave(number)) {
                    Some(waiting) => drop(waiting.answered.send(CallEnding::answered(answer))),
                    None => self.answered_wrongly(id.as_ref()),
                }
            }
            RpcMessage::Notification(notification) => self.notified(notification).await,
            RpcMessage::Request(request) => self.requested(request),
        }
    }

    async fn notified(self: &Arc<Self>, RpcNotification { method, params }: RpcNotification) {
        if method == TAKEN_BACK {
            return self.asked.take_back(params.as_ref());
        }
        let (whose, params) = self.waiting.whose_notification(&method, params);
        let inbound = Inbound::Notification { server: self.name.clone(), method, params };
        match whose {
            InboundRecipient::Calls(said) | InboundRecipient::OneOfCalls(said) => said.put(inbound),
            InboundRecipient::Clients(inbox) => drop(inbox.send(inbound).await),
            InboundRecipient::Unaddressed => {
                drop(self.events.send((self.generation, TransportEvent::Inbound(inbound))).await);
            }
            InboundRecipient::Departed => {}
            InboundRecipient::Ambiguous => {
                tracing::debug!(server = %self.name, ?inbound, "a message of a server has no certain recipient");
            }
        }
    }

    fn requested(self: &Arc<Self>, request: RpcRequest) {
        let (pipe, id) = (self.clone(), request.id.clone());
        let token = self.asked.begin(&id);
        // Where it goes is settled here, so that it stands among what is said before and after it.
        let answer: BoxFuture<'static, RpcResult> = match own_answer(&request.method) {
            Some(answer) => Box::pin(std::future::ready(answer)),
            None => {
                let whose = self.waiting.whose_word(request.params.as_ref());
                let certain = !matches!(whose, InboundRecipient::OneOfCalls(_));
                let (question, answer) = AnswerReceiver::new(&self.name, request, certain);
                match whose {
                    InboundRecipient::Calls(said) | InboundRecipient::OneOfCalls(said) => {
                        said.put(question);
                        Box::pin(answer.given())
                    }
                    InboundRecipient::Clients(inbox) => Box::pin(async move {
                        match inbox.send(question).await {
                            Ok(()) => answer.given().await,
                            Err(_) => no_recipient(),
                        }
                    }),
                    InboundRecipient::Unaddressed | InboundRecipient::Departed | InboundRecipient::Ambiguous => {
                        Box::pin(std::future::ready(no_recipient()))
                    }
                }
            }
        };
        tokio::spawn(async move {
            let answer = token.run_until_cancelled(answer).await;
            pipe.asked.end(&id);
            if let Some(answer) = answer {
                let _ = pipe.out.send(Outgoing::new(message::response(&id, &answer))).await;
            }
        });
    }

    /// The connection is lost: all waiting callers are woken at once, by dropping their senders.
    pub fn lost(&self) {
        self.closed.cancel();
        self.waiting.clear();
        self.asked.take_all_back();
    }
}

/// A request on its way, or out already.
struct SentRequest<'a> {
    open: OpenRequest<'a>,
    ending: oneshot::Receiver<CallEnding>,
    said: Option<(Arc<InboundQueue>, InboundSink)>,
}

impl SentRequest<'_> {
    async fn ended(mut self) -> CallEnding {
        let ending = match &self.said {
            Some((said, sink)) => said.until(self.ending, sink).await,
            None => self.ending.await,
        };
        self.open.over = true;
        match ending {
            Ok(ending) => ending,
            Err(_) if self.open.departure.keep_back() => {
                CallEnding::NotExecuted("the connection closed before the call was sent".into())
            }
            Err(_) => CallEnding::Broken("the connection closed before the answer".into()),
        }
    }
}

/// A request whose caller may walk away.
struct OpenRequest<'a> {
    pipe: &'a Pipe,
    number: u64,
    departure: Departure,
    over: bool,
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        // What has not left has nothing to be taken back.
        let given_up = !self.over && !self.departure.keep_back();
        if !given_up {
            self.pipe.waiting.leave(self.number);
        } else {
            self.pipe.waiting.give_up(self.number);
            let params = cancelled(&RpcId::number(self.number));
            let taken_back = message::notification(TAKEN_BACK, Some(&params));
            let _ = self.pipe.out.try_send(Outgoing::new(taken_back));
        }
    }
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pipe({} waiting)", self.waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Fields;

    fn pipe() -> (Arc<Pipe>, mpsc::Receiver<Outgoing>) {
        let (out, outgoing) = mpsc::channel(OUT_QUEUE);
        let (events, _) = mpsc::channel(1);
        let dial = Dial {
            name: "b".into(),
            generation: Generation(1),
            exchange: None,
            only_exchange: false,
            events,
            http: crate::upstream::http::client(
                crate::config::spec::Reach::Anywhere,
                &bowline_env::Env::default().network,
            ),
            reach: crate::config::spec::Reach::Anywhere,
            renewals: Arc::default(),
            secrets: Arc::default(),
            programs: tokio_util::task::TaskTracker::new(),
            processes: bowline_core::process_pool::PoolLimits { max: 1, per_owner_max: 1 },
            limit_hit: Arc::new(|_| {}),
            over: CancellationToken::new(),
        };
        (Arc::new(Pipe::new(out, &dial, CancellationToken::new(), None, PipeKind::Process)), outgoing)
    }

    /// What becomes of a call whose wire is lost after its writer did this.
    async fn ending(write: impl FnOnce(&Outgoing)) -> (CallEnding, Outgoing) {
        let (pipe, mut outgoing) = pipe();
        let session_name: Arc<str> = "alice".into();
        let call = pipe.send("tools/call", None, &session_name, None);
        let fate = async {
            let message = outgoing.recv().await.unwrap();
            write(&message);
            pipe.lost();
            message
        };
        futures_util::future::join(call, fate).await
    }

    #[tokio::test]
    async fn a_call_of_which_nothing_left_did_not_run_and_any_other_may_have() {
        let (waited, message) = ending(|_| {}).await;
        assert!(matches!(waited, CallEnding::NotExecuted(_)), "it waited in the queue");
        assert!(!message.leaves(), "what is sent again elsewhere is not written here any more");
        let refused = |message: &Outgoing| {
            assert!(message.leaves());
            message.stayed();
        };
        assert!(matches!(ending(refused).await.0, CallEnding::NotExecuted(_)), "the first byte was refused");
        assert!(matches!(ending(|message| assert!(message.leaves())).await.0, CallEnding::Broken(_)));
    }

    #[tokio::test]
    async fn a_call_that_is_taken_back_before_it_left_stays() {
        let (pipe, mut outgoing) = pipe();
        let session_name: Arc<str> = "alice".into();
        for left in [false, true] {
            let begun = pipe.begin("tools/call", None, &session_name, None).await.unwrap();
            let message = outgoing.recv().await.unwrap();
            assert!(!left || message.leaves());
            drop(begun);
            assert!(!message.leaves());
            assert_eq!(outgoing.try_recv().is_ok(), left, "only what has left is taken back");
        }
    }

    #[tokio::test]
    async fn a_caller_that_does_not_listen_keeps_nobody_waiting() {
        let (pipe, _outgoing) = pipe();
        let (sink, mut said) = mpsc::channel(1);
        let (deaf, other): (Arc<str>, Arc<str>) = ("deaf".into(), "other".into());
        let params = crate::fields::raw(&serde_json::json!({ "_meta": { "progressToken": "mine" } }));
        let deaf = pipe.begin("tools/call", Some(&params), &deaf, Some(sink)).await.unwrap();
        let other = pipe.begin("tools/call", None, &other, None).await.unwrap();
        for step in 1..=1000 {
            let progress = format!(r#"{{"progressToken":1,"progress":{step}}}"#);
            let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{progress}}}"#);
            pipe.receive_text(text.as_bytes()).await;
        }
        for id in [2, 1] {
            pipe.receive_text(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#).as_bytes()).await;
        }
        assert!(matches!(other.ended().await, CallEnding::Answered { .. }));
        let mut last = None;
        let hearing = async {
            while let Some(inbound) = said.recv().await {
                let Inbound::Notification { params, .. } = inbound else { continue };
                last = Fields::of(params.as_deref()).read::<u64>("progress");
            }
        };
        let (ending, ()) = futures_util::future::join(deaf.ended(), hearing).await;
        assert!(matches!(ending, CallEnding::Answered { .. }));
        assert_eq!(last, Some(1000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_starts_slowly_is_known_by_its_first_answer() {
        let (pipe, mut outgoing) = pipe();
        let program = async {
            let (probe, handshake) = (outgoing.recv().await.unwrap(), outgoing.recv().await.unwrap());
            assert!(probe.text.get().contains("server/discover") && handshake.text.get().contains("initialize"));
            let facts = r#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}}"#;
            let refusal = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"no such method"}}"#;
            for answer in [facts, refusal] {
                pipe.receive(RpcMessage::parse(answer).unwrap()).await;
            }
        };
        let (shaken, ()) = futures_util::future::join(pipe.shake_hands(None), program).await;
        shaken.unwrap();
        assert_eq!(pipe.facts().exchange, Exchange::Stateless);
    }
}
