//! Whose something is that a server says where several calls share one connection: an answer, a question, progress, a log line.
//!
//! A server with sessions often does not say. What one client may not see is then decided by what else could be meant: if
//! all that is under way, or was given up a while ago, is one client's, it is that client's; otherwise no client gets it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For so long a server may go on with a call whose caller has left. As long as a question waits for a person.
pub const GIVEN_UP_FOR: Duration = Duration::from_secs(600);
/// Calls that were given up and still count. The oldest make room for newer ones.
const GIVEN_UP_MAX: usize = 1000;

/// The number that a request has on the connection.
pub type CallNumber = u64;

/// Whose connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionScope {
    /// All clients share it.
    Shared,
    /// One client has a session of its own, at a server that has others.
    OwnSession,
    /// One client has a process of its own, which knows nothing of others.
    OwnProcess,
}

/// Who listens to what a server says on behalf of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestListener {
    /// No client: the request is housekeeping.
    Absent,
    /// A client, while its call is under way.
    Caller,
    /// A client, for a subscription: what belongs to that names it, and its answer is its end.
    Subscriber,
}

/// A request that is under way.
#[derive(Clone, Debug)]
pub struct AttributedRequest {
    /// Its client, if it has a session. Requests without one may each be another client's.
    pub client: Option<Arc<str>>,
    pub listener: RequestListener,
    /// Its caller wants to hear of its progress.
    pub wants_progress: bool,
}

/// What a server says of its own accord, as far as it says whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerMessage {
    /// It names its subscription.
    OfSubscription {
        number: CallNumber,
        changes_list: bool,
    },
    /// One of the server's lists is another now.
    ListChanged,
    /// Progress, under the number of a call.
    Progress(Option<CallNumber>),
    /// A question or a log line. It may name a call.
    Word(Option<CallNumber>),
    /// A resource is another now. Who has subscribed to it is known elsewhere.
    ResourceUpdated,
    Other,
}

/// Whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    Call(CallNumber),
    /// One of several calls of one client: the newest, as likely as not.
    OneOfCalls(CallNumber),
    /// The only client's, and none of its calls'.
    Client,
    /// No client's in particular.
    Unaddressed,
    /// A call's that is over.
    Departed,
    /// One of several clients', and nothing says whose.
    Ambiguous,
}

/// The calls under way on one connection.
#[derive(Debug)]
pub struct Attribution {
    place: ConnectionScope,
    /// On a shared connection: the only client that is here now.
    tenant: Option<Arc<str>>,
    calls: BTreeMap<CallNumber, AttributedRequest>,
    next: CallNumber,
    /// Calls whose callers have left while the server may go on with them, and until when they count.
    given_up: BTreeMap<CallNumber, (Option<Arc<str>>, Instant)>,
}

impl Attribution {
    pub fn new(place: ConnectionScope) -> Attribution {
        Attribution { place, tenant: None, calls: BTreeMap::new(), next: 1, given_up: BTreeMap::new() }
    }

    /// From now on, messages without an addressee go to this client, or to all clients that may see them.
    pub fn set_tenant(&mut self, client: Option<Arc<str>>) {
        self.tenant = client;
    }

    /// A number for the next request.
    pub fn next_number(&mut self) -> CallNumber {
        self.next += 1;
        self.next - 1
    }

    pub fn handle_sent(&mut self, number: CallNumber, waiting: AttributedRequest) {
        self.calls.insert(number, waiting);
        self.next = self.next.max(number + 1);
    }

    /// A request is answered, or will never be. False if it is not under way.
    pub fn handle_ended(&mut self, number: CallNumber) -> bool {
        self.calls.remove(&number).is_some()
    }

    /// The caller has left after the request was sent. The server may still speak on its behalf, but not on behalf of our own
    /// housekeeping; what belongs to a subscription names it.
    pub fn handle_given_up(&mut self, now: Instant, number: CallNumber) {
        let Some(call) = self.calls.remove(&number) else { return };
        let is_silent = match call.listener {
            RequestListener::Absent => call.client.is_none(),
            RequestListener::Caller => false,
            RequestListener::Subscriber => true,
        };
        // Where one client is alone, what is left of its calls is its own.
        if is_silent || self.place != ConnectionScope::Shared {
            return;
        }
        self.given_up.insert(number, (call.client, now + GIVEN_UP_FOR));
        if self.given_up.len() > GIVEN_UP_MAX {
            self.given_up.pop_first();
        }
    }

    /// An answer that names no request under way. What was asked once may be answered late or twice; anything else can only
    /// be the answer to the one call that it can mean, under a wrong name. That call is over with it.
    pub fn handle_stray_answer(&mut self, number: Option<CallNumber>) -> Option<CallNumber> {
        match number.filter(|number| (1..self.next).contains(number)) {
            Some(late) => {
                // The server has nothing more to say on its behalf.
                self.given_up.remove(&late);
                None
            }
            None => self.handle_nameless_answer(),
        }
    }

    /// An answer without a name: the only call's. Housekeeping is not what a server answers so badly, unless there is
    /// nothing else.
    pub fn handle_nameless_answer(&mut self) -> Option<CallNumber> {
        let callers: Vec<CallNumber> = self.callers().map(|(number, _)| number).collect();
        let number = match (callers.as_slice(), self.calls.len()) {
            ([only], _) => *only,
            ([], 1) => *self.calls.keys().next()?,
            _ => return None,
        };
        self.calls.remove(&number);
        Some(number)
    }

    /// All is over at once.
    pub fn clear(&mut self) {
        self.calls.clear();
    }

    pub fn len(&self) -> usize {
        self.calls.len()
    }

    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub fn whose(&mut self, now: Instant, said: ServerMessage) -> Recipient {
        self.given_up.retain(|_, (_, until)| *until > now);
        match said {
            ServerMessage::OfSubscription { number, changes_list } => match self.calls.get(&number) {
                Some(call) => of_call(number, call),
                // A change of a list is looked up for all clients, whichever was notified.
                None if changes_list => Recipient::Unaddressed,
                None => Recipient::Departed,
            },
            // What changes in one client's process changes there alone. Each session tells of a change; whether there is
            // one is found out once, for all.
            ServerMessage::ListChanged if self.place == ConnectionScope::OwnProcess => Recipient::Client,
            ServerMessage::ListChanged => Recipient::Unaddressed,
            ServerMessage::Progress(number) => {
                let call = number.and_then(|number| Some((number, self.calls.get(&number)?)));
                call.filter(|(_, call)| call.wants_progress)
                    .map_or(Recipient::Unaddressed, |(number, call)| of_call(number, call))
            }
            ServerMessage::Word(Some(number)) => {
                self.calls.get(&number).map_or(Recipient::Departed, |call| of_call(number, call))
            }
            ServerMessage::Word(None) => self.whose_word(),
            ServerMessage::ResourceUpdated if self.place == ConnectionScope::Shared => Recipient::Unaddressed,
            ServerMessage::ResourceUpdated | ServerMessage::Other => self.only_clients(),
        }
    }

    /// The tenant, if no message can be meant for another client.
    pub fn only_client(&mut self, now: Instant) -> Option<&Arc<str>> {
        self.given_up.retain(|_, (_, until)| *until > now);
        self.tenant.as_ref().filter(|tenant| self.is_alone(tenant))
    }

    /// What names no call belongs to the newest one if all are one client's; otherwise guessing would show one client what is
    /// another's.
    fn whose_word(&self) -> Recipient {
        let Some((newest, call)) = self.callers().next_back() else { return self.only_clients() };
        let (count, client) = (self.callers().count(), call.client.as_ref());
        if self.place == ConnectionScope::Shared {
            let is_other = |tenant: &Arc<str>| client != Some(tenant);
            let is_one_clients =
                count == 1 || client.is_some() && self.callers().all(|(_, call)| call.client.as_ref() == client);
            if self.tenant.as_ref().is_some_and(is_other) || !is_one_clients || !self.left_only(client) {
                return Recipient::Ambiguous;
            }
        }
        if count > 1 { Recipient::OneOfCalls(newest) } else { Recipient::Call(newest) }
    }

    /// What belongs to no call.
    fn only_clients(&self) -> Recipient {
        match (self.place, &self.tenant) {
            (ConnectionScope::OwnSession | ConnectionScope::OwnProcess, _) => Recipient::Client,
            (ConnectionScope::Shared, Some(tenant)) if self.is_alone(tenant) => Recipient::Client,
            (ConnectionScope::Shared, Some(_)) => Recipient::Ambiguous,
            (ConnectionScope::Shared, None) => Recipient::Unaddressed,
        }
    }

    /// Whether all that is under way, or was given up, is this client's.
    fn is_alone(&self, client: &Arc<str>) -> bool {
        self.left_only(Some(client)) && self.callers().all(|(_, call)| call.client.as_ref() == Some(client))
    }

    /// Requests that something without a name can belong to.
    fn callers(&self) -> impl DoubleEndedIterator<Item = (CallNumber, &AttributedRequest)> {
        let all = self.calls.iter().map(|(number, call)| (*number, call));
        all.filter(|(_, call)| call.listener == RequestListener::Caller)
    }

    /// Whether all calls that were given up are this client's.
    fn left_only(&self, client: Option<&Arc<str>>) -> bool {
        self.given_up.values().all(|(other, _)| other.is_some() && other.as_ref() == client)
    }
}

fn of_call(number: CallNumber, call: &AttributedRequest) -> Recipient {
    if call.listener == RequestListener::Absent { Recipient::Unaddressed } else { Recipient::Call(number) }
}

#[cfg(test)]
#[path = "attribution_tests.rs"]
mod tests;
