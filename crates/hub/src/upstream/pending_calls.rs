//! What is under way on a pipe: messages on their way out (what is sent again must not have left), calls that wait and where what the
//! backend says goes (whose it is, `core::attribution` decides), and the backend's own requests, which it may cancel.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_core::attribution::{self, Attribution, CallNumber, ConnectionScope, RequestListener, ServerMessage};
use bowline_env::clock;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::call::{CallEnding, Caller, InboundSink, SHARED_SESSION, SUBSCRIPTION_ID};
use crate::catalogue::ListKind;
use crate::fields::{Fields, Raw};
use crate::message::RpcId;
use crate::scan::JsonScan;
use crate::upstream::inbound_queue::InboundQueue;
use crate::upstream::progress::{self, PROGRESS, named_call};

/// A call that waits for the response to its request.
pub(super) struct PendingCall {
    pub answered: oneshot::Sender<CallEnding>,
    /// Where messages go that belong to the call, if its caller listens.
    pub said: Option<Arc<InboundQueue>>,
    /// The client's session; the shared one if it has none.
    pub session_name: Arc<str>,
    /// What the caller called its progress.
    pub progress: Option<Raw>,
    /// It is a subscription: what belongs to it names it, and its answer is its end.
    pub listens: bool,
}

impl PendingCall {
    fn attributed(&self) -> attribution::AttributedRequest {
        let listener = match (&self.said, self.listens) {
            (None, _) => RequestListener::Absent,
            (Some(_), false) => RequestListener::Caller,
            (Some(_), true) => RequestListener::Subscriber,
        };
        let client = (self.said.is_some() && *self.session_name != *SHARED_SESSION).then(|| self.session_name.clone());
        attribution::AttributedRequest { client, listener, wants_progress: self.progress.is_some() }
    }
}

/// Whose something is that a backend says, and where it goes.
pub(super) enum InboundRecipient {
    Calls(Arc<InboundQueue>),
    /// One of several calls of one client: the newest, as likely as not.
    OneOfCalls(Arc<InboundQueue>),
    /// The only client's, but none of its calls'.
    Clients(InboundSink),
    Unaddressed,
    /// It belongs to a client that has left.
    Departed,
    /// One of several clients', and nothing says whose.
    Ambiguous,
}

/// What is at the other end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipeKind {
    /// A process, which knows nothing of others.
    Process,
    /// One of several sessions with one server.
    Session,
}

/// The calls that are under way on one pipe, by the ids that they have there.
pub(super) struct PendingCalls(Mutex<PendingState>);

struct PendingState {
    attribution: Attribution,
    calls: BTreeMap<CallNumber, PendingCall>,
    /// Where things go that belong to no call: to the client whose pipe this is, or to the only one that is here now.
    inbox: Option<InboundSink>,
}

impl PendingCalls {
    /// Of a pipe that all share, or of one client's own.
    pub fn new(client: Option<&Caller>, kind: PipeKind) -> PendingCalls {
        let inbox = client.and_then(|client| client.inbox.clone());
        let place = match (&inbox, kind) {
            (None, _) => ConnectionScope::Shared,
            (Some(_), PipeKind::Process) => ConnectionScope::OwnProcess,
            (Some(_), PipeKind::Session) => ConnectionScope::OwnSession,
        };
        PendingCalls(Mutex::new(PendingState { attribution: Attribution::new(place), calls: BTreeMap::new(), inbox }))
    }

    /// From now on, messages without an addressee go to this client, or to all clients that may see them.
    pub fn set_tenant(&self, client: Option<&Caller>) {
        let mut room = self.lock();
        room.attribution.set_tenant(client.map(|client| client.session_name.clone()));
        room.inbox = client.and_then(|client| client.inbox.clone());
    }

    /// A number for the next request.
    pub fn number(&self) -> CallNumber {
        self.lock().attribution.next_number()
    }

    pub fn enter(&self, number: CallNumber, waiting: PendingCall) {
        let mut room = self.lock();
        room.attribution.handle_sent(number, waiting.attributed());
        room.calls.insert(number, waiting);
    }

    pub fn leave(&self, number: CallNumber) -> Option<PendingCall> {
        let mut room = self.lock();
        room.attribution.handle_ended(number);
        room.calls.remove(&number)
    }

    /// A call's caller has walked away after it was sent.
    pub fn give_up(&self, number: CallNumber) {
        let mut room = self.lock();
        room.attribution.handle_given_up(clock::now(), number);
        room.calls.remove(&number);
    }

    /// All waiting callers are woken at once, by dropping their senders.
    pub fn clear(&self) {
        let mut room = self.lock();
        room.attribution.clear();
        room.calls.clear();
    }

    pub fn len(&self) -> usize {
        self.lock().calls.len()
    }

    /// The call that it names, or the only one that it can mean.
    pub fn whose_answer(&self, scan: &JsonScan) -> Option<PendingCall> {
        match scan.id() {
            Some(id) => self.leave(id.as_number()?),
            None => self.take(Attribution::handle_nameless_answer),
        }
    }

    /// The call that an answer to something that was never asked can mean.
    pub fn wrongly_named(&self, id: Option<&RpcId>) -> Option<PendingCall> {
        self.take(|attribution| attribution.handle_stray_answer(id.and_then(RpcId::as_number)))
    }

    fn take(&self, meant: impl FnOnce(&mut Attribution) -> Option<CallNumber>) -> Option<PendingCall> {
        let mut room = self.lock();
        let number = meant(&mut room.attribution)?;
        room.calls.remove(&number)
    }

    /// Whose a notification is, and what it says there.
    pub fn whose_notification(&self, method: &str, params: Option<Raw>) -> (InboundRecipient, Option<Raw>) {
        let fields = Fields::of(params.as_deref());
        let changes_list = ListKind::ALL.iter().any(|kind| kind.changed() == method);
        let said = match (fields.object("_meta").read(SUBSCRIPTION_ID), method) {
            (Some(number), _) => ServerMessage::OfSubscription { number, changes_list },
            _ if changes_list => ServerMessage::ListChanged,
            (_, PROGRESS) => return self.whose_progress(fields, params),
            (_, "notifications/message" | "notifications/elicitation/complete" | "notifications/tasks/status") => {
                ServerMessage::Word(named_call(&fields))
            }
            (_, "notifications/resources/updated") => ServerMessage::ResourceUpdated,
            _ => ServerMessage::Other,
        };
        (self.lock().whose(said), params)
    }

    /// Progress goes to the caller, under the token that the caller gave.
    fn whose_progress(&self, fields: Fields, params: Option<Raw>) -> (InboundRecipient, Option<Raw>) {
        let (number, mut room) = (progress::call_of(&fields), self.lock());
        let whose = room.whose(ServerMessage::Progress(number));
        let token = number.and_then(|number| room.calls.get(&number)?.progress.clone());
        match (&whose, token) {
            (InboundRecipient::Calls(_), Some(token)) => (whose, Some(progress::under_callers_token(fields, token))),
            _ => (whose, params),
        }
    }

    /// The call that a request or a word of the backend's belongs to: the one whose progress it names, or else as for
    /// everything that names none.
    pub fn whose_word(&self, params: Option<&Raw>) -> InboundRecipient {
        self.lock().whose(ServerMessage::Word(named_call(&Fields::of(params.map(|raw| &**raw)))))
    }

    /// The only client, if no message can be meant for another.
    pub fn only_client(&self) -> Option<Arc<str>> {
        self.lock().attribution.only_client(clock::now()).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, PendingState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingState {
    fn whose(&mut self, said: ServerMessage) -> InboundRecipient {
        let queue = |number: CallNumber| self.calls.get(&number).and_then(|call| call.said.clone());
        match self.attribution.whose(clock::now(), said) {
            attribution::Recipient::Call(number) => {
                queue(number).map_or(InboundRecipient::Unaddressed, InboundRecipient::Calls)
            }
            attribution::Recipient::OneOfCalls(number) => {
                queue(number).map_or(InboundRecipient::Unaddressed, InboundRecipient::OneOfCalls)
            }
            attribution::Recipient::Client => {
                self.inbox.clone().map_or(InboundRecipient::Unaddressed, InboundRecipient::Clients)
            }
            attribution::Recipient::Unaddressed => InboundRecipient::Unaddressed,
            attribution::Recipient::Departed => InboundRecipient::Departed,
            attribution::Recipient::Ambiguous => InboundRecipient::Ambiguous,
        }
    }
}

const QUEUED: u8 = 0;
/// It is being written, or has been: what is in doubt counts as sent.
const LEAVING: u8 = 1;
/// Nothing of it has left, and nothing will.
const STAYED: u8 = 2;

/// How far a message has come. The task that writes it and the one that waits for its answer may decide that at the same moment, so
/// only one of them can take the step out of the queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Departure(Arc<AtomicU8>);

impl Departure {
    /// Keeps the message back, if it has not left yet. Whether it has stayed.
    pub fn keep_back(&self) -> bool {
        match self.0.compare_exchange(QUEUED, STAYED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(now) => now == STAYED,
        }
    }
}

pub struct Outgoing {
    pub text: Raw,
    /// What it asks for is called this.
    pub number: Option<u64>,
    pub(super) departure: Departure,
}

impl Outgoing {
    pub fn new(text: Raw) -> Outgoing {
        Outgoing { text, number: None, departure: Departure::default() }
    }

    pub fn request(text: Raw, number: u64) -> Outgoing {
        Outgoing { number: Some(number), ..Outgoing::new(text) }
    }

    /// Called before the first byte is written. False if the message was withdrawn and must not be sent.
    pub fn leaves(&self) -> bool {
        let Departure(state) = &self.departure;
        state.compare_exchange(QUEUED, LEAVING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// It was tried, and not a byte went out.
    pub fn stayed(&self) {
        self.departure.0.store(STAYED, Ordering::Release);
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outgoing({} bytes)", self.text.get().len())
    }
}

pub(super) const TAKEN_BACK: &str = "notifications/cancelled";

#[derive(Default)]
pub(super) struct AskedByBackend(Mutex<HashMap<RpcId, CancellationToken>>);

impl AskedByBackend {
    /// The token fires when the request is taken back.
    pub fn begin(&self, id: &RpcId) -> CancellationToken {
        let token = CancellationToken::new();
        self.lock().insert(id.clone(), token.clone());
        token
    }

    pub fn end(&self, id: &RpcId) {
        self.lock().remove(id);
    }

    /// What the parameters of [`TAKEN_BACK`] name.
    pub fn take_back(&self, params: Option<&Raw>) {
        let fields = Fields::of(params.map(|raw| &**raw));
        let Some(id) = fields.get("requestId").and_then(|raw| RpcId::parse(raw.get())) else { return };
        if let Some(token) = self.lock().remove(&id) {
            token.cancel();
        }
    }

    /// Drops all of them: no answer is wanted any more.
    pub fn take_all_back(&self) {
        for (_, token) in self.lock().drain() {
            token.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RpcId, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::raw;
    use serde_json::{Value, json};

    fn enter(room: &PendingCalls, session_name: &str) -> (u64, Arc<InboundQueue>) {
        let (number, said) = (room.number(), Arc::new(InboundQueue::new(&"b".into())));
        let (answered, _) = oneshot::channel();
        let waiting = PendingCall {
            answered,
            said: Some(said.clone()),
            session_name: session_name.into(),
            progress: None,
            listens: false,
        };
        room.enter(number, waiting);
        (number, said)
    }

    fn whose(room: &PendingCalls, params: &Value) -> InboundRecipient {
        room.whose_notification("notifications/message", Some(raw(params))).0
    }

    #[test]
    fn a_log_line_that_may_be_one_clients_or_anothers_is_told_to_neither() {
        let room = PendingCalls::new(None, PipeKind::Process);
        let line = json!({ "level": "info", "data": "x" });
        assert!(
            matches!(whose(&room, &line), InboundRecipient::Unaddressed),
            "with no call under way it goes to all clients that may see it"
        );
        let (first, alices) = enter(&room, "alice");
        assert!(matches!(whose(&room, &line), InboundRecipient::Calls(said) if Arc::ptr_eq(&said, &alices)));
        let (second, bobs) = enter(&room, "bob");
        assert!(matches!(whose(&room, &line), InboundRecipient::Ambiguous));
        for (number, of) in [(first, alices), (second, bobs)] {
            let named = json!({ "level": "info", "data": "x", "_meta": { "progressToken": number } });
            assert!(matches!(whose(&room, &named), InboundRecipient::Calls(said) if Arc::ptr_eq(&said, &of)));
            room.leave(number);
            assert!(matches!(whose(&room, &named), InboundRecipient::Departed));
        }
    }

    #[test]
    fn what_belongs_to_no_call_is_the_tenants_unless_it_may_be_anothers() {
        let room = PendingCalls::new(None, PipeKind::Process);
        let line = json!({ "level": "info", "data": "x" });
        let (inbox, _said) = tokio::sync::mpsc::channel(1);
        room.set_tenant(Some(&Caller { session_name: "alice".into(), inbox: Some(inbox), ..Caller::hub() }));
        assert!(matches!(whose(&room, &line), InboundRecipient::Clients(_)));
        let (first, alices) = enter(&room, "alice");
        assert!(matches!(whose(&room, &line), InboundRecipient::Calls(said) if Arc::ptr_eq(&said, &alices)));
        room.leave(first);
        let (second, _) = enter(&room, "bob");
        assert!(matches!(whose(&room, &line), InboundRecipient::Ambiguous), "alice may be meant");
        room.give_up(second);
        assert!(matches!(whose(&room, &line), InboundRecipient::Ambiguous), "bob may still be meant");
        let updated = room.whose_notification("notifications/resources/updated", None).0;
        assert!(matches!(updated, InboundRecipient::Unaddressed), "others may have subscribed");
        room.set_tenant(None);
        assert!(matches!(whose(&room, &line), InboundRecipient::Unaddressed));
    }
}
