//! A request of a backend's that wants an answer, and the way back for that. The call of a client without a session goes on while it
//! waits for input, and its handle is what the client brings back.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_env::{clock, entropy};
use bowline_protocol::Principal;
use bowline_store::Holder;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::call::{Caller, Conversation, Inbound, InboundSink};
use crate::fields::{Fields, Raw};
use crate::message::{self, RpcRequest, RpcResult};
use crate::seal::Seal;

/// Where the answer goes. Dropping it says that there is none.
pub struct Replier {
    answer: oneshot::Sender<RpcResult>,
    /// Which of its client's calls it belongs to is known. If not, it may outlive the one that it was asked in.
    pub certain: bool,
    /// The id that the server gave its question, if that is a text: then it may be a name that clients know.
    pub name: Option<String>,
}

impl Replier {
    pub fn send(self, answer: RpcResult) -> Result<(), RpcResult> {
        self.answer.send(answer)
    }

    /// Resolves once the answer is not awaited any more.
    pub async fn closed(&mut self) {
        self.answer.closed().await;
    }

    /// Whether the answer is not awaited any more.
    pub fn is_closed(&self) -> bool {
        self.answer.is_closed()
    }
}

impl From<oneshot::Sender<RpcResult>> for Replier {
    fn from(answer: oneshot::Sender<RpcResult>) -> Replier {
        Replier { answer, certain: true, name: None }
    }
}

impl fmt::Debug for Replier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Replier")
    }
}

/// A request of the backend's that we can answer ourselves.
pub fn own_answer(method: &str) -> Option<RpcResult> {
    (method == "ping").then(|| Ok(crate::fields::empty()))
}

/// The answer to a request from the backend that has no recipient.
pub fn no_recipient() -> RpcResult {
    Err(message::error(message::METHOD_NOT_FOUND, "no client here can answer this"))
}

/// The receiving side of the answer to a request from the backend.
pub struct AnswerReceiver(oneshot::Receiver<RpcResult>);

impl AnswerReceiver {
    pub fn new(server: &Arc<str>, request: RpcRequest, certain: bool) -> (Inbound, AnswerReceiver) {
        let (answer, answered) = oneshot::channel();
        let RpcRequest { id, method, params } = request;
        let reply = Replier { answer, certain, name: id.as_text() };
        (Inbound::Request { server: server.clone(), method, params, reply }, AnswerReceiver(answered))
    }

    pub async fn given(self) -> RpcResult {
        self.0.await.unwrap_or_else(|_| Err(message::error(message::INTERNAL_ERROR, "the client did not answer")))
    }
}

impl fmt::Debug for AnswerReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnswerReceiver")
    }
}

/// Hands a question to `sink` and waits for the answer.
pub async fn ask(sink: Option<&InboundSink>, question: (Inbound, AnswerReceiver)) -> RpcResult {
    let (Some(sink), (question, answer)) = (sink, question) else { return no_recipient() };
    if sink.send(question).await.is_err() {
        return no_recipient();
    }
    answer.given().await
}

const PARKED_MAX: usize = 10_000;
/// So that one of many cannot take all of the room; as many as it may have tasks.
const PER_PRINCIPAL_MAX: usize = 1000;
/// Sessions at one server for calls of clients that look alike, since each costs the server something.
const SESSIONS_MAX: usize = 8;
/// A longer id of a server's is no name for its question.
const KEY_BYTES_MAX: usize = 256;
/// What a state of ours begins with; what makes it ours is its seal.
const PREFIX: &str = "bl1";

/// A question of the backend's, with the name under which the client answers it.
pub struct SuspendedQuestion {
    pub key: String,
    pub server: Arc<str>,
    pub method: String,
    pub params: Option<Raw>,
    pub reply: Replier,
}

impl SuspendedQuestion {
    /// Its key is the server's own name for it, where it has one that is `free` among the other questions of the call.
    pub fn new(
        server: Arc<str>,
        method: String,
        params: Option<Raw>,
        reply: Replier,
        free: impl Fn(&str) -> bool,
    ) -> SuspendedQuestion {
        let is_key = |name: &&String| name.len() <= KEY_BYTES_MAX && free(name);
        let own = reply.name.as_ref().filter(is_key).cloned();
        let key = own.unwrap_or_else(|| format!("q{:x}", entropy::u128() as u64));
        SuspendedQuestion { key, server, method, params, reply }
    }
}

impl fmt::Debug for SuspendedQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Question({}, {})", self.key, self.method)
    }
}

pub struct SuspendedCall {
    pub conversation: Conversation,
    pub questions: Vec<SuspendedQuestion>,
    /// What came after the questions, for the request that resumes the call.
    pub said: VecDeque<Raw>,
    pub principal: Principal,
    /// By whom it was made, and at which server. Until its questions are answered, their names are taken in the caller's session there.
    pub caller: Caller,
    pub server: Option<ServerId>,
    /// The method and the name of what was called; an answer counts only for the same.
    pub subject: String,
    pub until: Instant,
    /// Fires when its client can never come back.
    pub gone: CancellationToken,
}

impl SuspendedCall {
    fn is_awaited(&self) -> bool {
        self.until > clock::now() && !self.gone.is_cancelled()
    }
}

impl fmt::Debug for SuspendedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SuspendedCall({} questions)", self.questions.len())
    }
}

/// Whose a server is, if it is one client's, and its name.
type ServerId = (Option<Principal>, Arc<str>);

pub struct SuspendedCalls {
    calls: Mutex<HashMap<String, SuspendedCall>>,
    /// States that were answered, and until when that is remembered.
    used: Mutex<HashMap<String, Instant>>,
    /// How long a client may take to answer.
    patience: Duration,
    seal: Arc<Seal>,
}

impl SuspendedCalls {
    pub fn new(patience: Duration, seal: Arc<Seal>) -> SuspendedCalls {
        SuspendedCalls { calls: Mutex::default(), used: Mutex::default(), patience, seal }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, SuspendedCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the call and returns the state for the client: 128 random bits, which cannot be guessed and which mean
    /// nothing to another principal or another call, the node where the call waits, and a seal over both: a server behind us may
    /// be another hub, whose states look like ours and are not. `None` if there is no room.
    pub fn suspend(&self, mut call: SuspendedCall, node: Option<&Holder>) -> Option<String> {
        let node = node.map_or("", Holder::as_str);
        let secret = format!("{:032x}", entropy::u128());
        // Whose it is, and of what, is known again also when the call itself is not.
        let secret = format!("{secret}{}", self.seal.of(&[&secret, call.principal.as_str(), &call.subject]));
        let state = format!("{PREFIX}.{secret}.{}.{node}", self.seal.of(&[PREFIX, &secret, node]));
        call.until = clock::now() + self.patience;
        let mut suspended = self.lock();
        suspended.retain(|_, call| call.is_awaited());
        let own = suspended.values().filter(|other| other.principal == call.principal).count();
        if suspended.len() >= PARKED_MAX || own >= PER_PRINCIPAL_MAX {
            return None;
        }
        suspended.insert(state.clone(), call);
        Some(state)
    }

    /// The caller in a session in which none of these calls waits at this server: there is no telling which of two calls a question there
    /// would be of, and a name is free only once. Where all are taken, it is the one that it would be anyway. Calls that are made while none
    /// waits share a session all the same.
    pub fn apart(&self, caller: Caller, server: impl FnOnce() -> Option<ServerId>) -> Caller {
        let suspended = self.lock();
        let alike = suspended.values().filter(|call| call.is_awaited() && call.caller.is_alike(&caller));
        let alike: Vec<(usize, Option<ServerId>)> =
            alike.map(|call| (call.caller.number, call.server.clone())).collect();
        drop(suspended);
        if alike.is_empty() {
            return caller;
        }
        let server = server();
        let taken: Vec<usize> = alike.into_iter().filter(|(_, at)| *at == server).map(|(number, _)| number).collect();
        let free = (0..SESSIONS_MAX).find(|number| !taken.contains(number));
        caller.numbered(free.unwrap_or_default())
    }

    /// Ends the calls that no client can resume any more.
    pub fn sweep(&self) {
        self.lock().retain(|_, call| call.is_awaited());
    }

    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// The node where a call waits, or waited, if this is a state of ours. Without nodes it is empty.
    pub fn node_of<'a>(&self, state: &'a str) -> Option<&'a str> {
        let mut parts = state.splitn(4, '.');
        let (prefix, secret, seal, node) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        (prefix == PREFIX && self.seal.fits(&[PREFIX, secret, node], seal)).then_some(node)
    }

    /// Whether such a call of this principal's waited once, under this state, and was not taken up.
    pub fn has_known(&self, state: &str, principal: &Principal, subject: &str) -> bool {
        if self.used.lock().unwrap_or_else(PoisonError::into_inner).contains_key(state) {
            return false;
        }
        let secret = state.split('.').nth(1).and_then(|secret| secret.split_at_checked(32));
        let own = |(secret, seal): (&str, &str)| self.seal.fits(&[secret, principal.as_str(), subject], seal);
        self.node_of(state).is_some() && secret.is_some_and(own)
    }

    pub fn take(&self, state: &str, principal: &Principal, subject: &str) -> Option<SuspendedCall> {
        let mut suspended = self.lock();
        suspended.retain(|_, call| call.is_awaited());
        let mine = suspended.get(state).is_some_and(|call| call.principal == *principal && call.subject == subject);
        if !mine {
            return None;
        }
        let now = clock::now();
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|_, until| *until > now);
        if used.len() < PARKED_MAX {
            used.insert(state.to_owned(), now + self.patience);
        }
        suspended.remove(state)
    }
}

impl fmt::Debug for SuspendedCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SuspendedCalls({})", self.lock().len())
    }
}

/// A server that asks more than this at once gets an error.
const OPEN_MAX: usize = 64;

/// What the server of a task has asked and its client has not answered yet.
#[derive(Default)]
pub struct OpenQuestions(Mutex<Vec<(Instant, SuspendedQuestion)>>);

impl OpenQuestions {
    /// Those that are still awaited.
    fn lock(&self) -> MutexGuard<'_, Vec<(Instant, SuspendedQuestion)>> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, question)| !question.reply.is_closed());
        open
    }

    pub fn put(&self, server: Arc<str>, method: String, params: Option<Raw>, reply: Replier) {
        let mut open = self.lock();
        if open.len() >= OPEN_MAX {
            let _ = reply.send(Err(message::error(message::INTERNAL_ERROR, "too many questions are open already")));
            return;
        }
        let question =
            SuspendedQuestion::new(server, method, params, reply, |key| open.iter().all(|(_, other)| other.key != key));
        open.push((clock::now(), question));
    }

    /// The questions by their keys.
    pub fn shown(&self) -> Fields {
        self.lock().iter().fold(Fields::default(), |shown, (_, question)| {
            let one = Fields::default().and("method", &question.method).and("params", &question.params);
            shown.and(&question.key, &one)
        })
    }

    /// Gives the answers to those who asked. An answer to anything else is passed over.
    pub fn answer(&self, responses: &Fields) {
        let mut open = self.lock();
        for (_, question) in open.extract_if(.., |(_, question)| responses.has(&question.key)) {
            if let Some(response) = responses.get(&question.key) {
                // A server that has stopped waiting needs no answer.
                let _ = question.reply.send(Ok(response.to_owned()));
            }
        }
    }

    /// Takes back what was asked `patience` ago. How long until the next is due; `None` if nothing is open.
    pub fn expire(&self, patience: Duration) -> Option<Duration> {
        let (mut open, now) = (self.lock(), clock::now());
        for (_, question) in open.extract_if(.., |(asked, _)| *asked + patience <= now) {
            let _ = question.reply.send(Err(message::error(message::INTERNAL_ERROR, "Expired")));
        }
        open.first().map(|(asked, _)| (*asked + patience).saturating_duration_since(now))
    }
}

impl fmt::Debug for OpenQuestions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenQuestions({})", self.lock().len())
    }
}

#[cfg(test)]
mod suspended_tests {
    use super::*;
    use crate::call::facts::{ClientFacts, no_capabilities, our_info};

    fn caller(principal: &Principal) -> Caller {
        Caller::without_session(principal, ClientFacts { capabilities: no_capabilities(), info: our_info() })
    }

    fn server(name: &str) -> ServerId {
        (None, name.into())
    }

    fn waiting(principal: &Principal, caller: Caller, subject: &str) -> SuspendedCall {
        SuspendedCall {
            conversation: Conversation::begin(|_| Box::pin(std::future::pending())),
            questions: Vec::new(),
            said: VecDeque::new(),
            principal: principal.clone(),
            caller,
            server: Some(server("one")),
            subject: subject.to_owned(),
            until: clock::now(),
            gone: CancellationToken::new(),
        }
    }

    #[test]
    fn a_call_is_made_in_a_session_in_which_no_call_of_its_client_waits_for_an_answer() {
        let suspended = SuspendedCalls::new(Duration::from_secs(600), Seal::with_key(vec![7; 32]));
        let [alice, bob] = ["alice", "bob"].map(|name| Principal::parse(name).unwrap());
        let mut states = Vec::new();
        for expected in (0..SESSIONS_MAX).chain([0]) {
            let caller = suspended.apart(caller(&alice), || Some(server("one")));
            assert_eq!(caller.number, expected);
            states.extend(suspended.suspend(waiting(&alice, caller, ""), None));
        }
        let number = |who, at| suspended.apart(caller(who), || Some(server(at))).number;
        assert_eq!(number(&bob, "one"), 0, "another client has sessions of its own");
        assert_eq!(number(&alice, "two"), 0, "at another server none of them waits");
        suspended.take(&states[3], &alice, "").unwrap();
        assert_eq!(number(&alice, "one"), 3);
    }

    #[test]
    fn one_who_parks_many_calls_leaves_room_for_others() {
        let suspended = SuspendedCalls::new(Duration::from_secs(600), Seal::with_key(vec![7; 32]));
        let park = |name: &str| {
            let principal = Principal::parse(name).unwrap();
            suspended.suspend(waiting(&principal, caller(&principal), ""), None).is_some()
        };
        assert!((0..PER_PRINCIPAL_MAX).all(|_| park("alice")));
        assert!(!park("alice") && park("bob"));
    }

    #[test]
    fn a_state_is_known_again_by_its_owner_for_the_same_call_alone() {
        let seal = Seal::with_key(vec![7; 32]);
        let [alice, bob] = ["alice", "bob"].map(|name| Principal::parse(name).unwrap());
        let call = waiting(&alice, caller(&alice), "tools/call one");
        let state = SuspendedCalls::new(Duration::from_secs(600), seal.clone()).suspend(call, None).unwrap();
        let later = SuspendedCalls::new(Duration::from_secs(600), seal);
        assert!(later.take(&state, &alice, "tools/call one").is_none());
        assert!(later.has_known(&state, &alice, "tools/call one"));
        assert!(!later.has_known(&state, &bob, "tools/call one") && !later.has_known(&state, &alice, "tools/call two"));
        for at in 0..state.len() {
            let mut other = state.clone().into_bytes();
            other[at] ^= 1;
            let other = String::from_utf8(other).unwrap();
            assert!(!later.has_known(&other, &alice, "tools/call one"), "{other}");
        }
    }
}
