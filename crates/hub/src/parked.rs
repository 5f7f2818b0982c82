//! Calls of clients without sessions that wait for input: the call goes on, and its handle is what the client brings back.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_protocol::Principal;
use bowline_store::Holder;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::drive::conversation::Conversation;
use crate::fields::Raw;
use crate::message::Answer;
use crate::seal::Seal;

const PARKED_MAX: usize = 10_000;
/// So that one of many cannot take all of the room; as many as it may have tasks.
const PER_PRINCIPAL_MAX: usize = 1000;
/// What a state of ours begins with; what makes it ours is its seal.
const PREFIX: &str = "bl1";

/// A question of the backend's, with the name under which the client answers it.
pub struct Question {
    pub key: String,
    pub server: Arc<str>,
    pub method: String,
    pub params: Option<Raw>,
    pub reply: oneshot::Sender<Answer>,
}

impl Question {
    pub fn new(server: Arc<str>, method: String, params: Option<Raw>, reply: oneshot::Sender<Answer>) -> Question {
        Question { key: format!("q{:x}", clock::random_bits() as u64), server, method, params, reply }
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Question({}, {})", self.key, self.method)
    }
}

pub struct ParkedCall {
    pub conversation: Conversation,
    pub questions: Vec<Question>,
    /// What came after the questions, for whoever takes up the rest.
    pub said: VecDeque<Raw>,
    pub principal: Principal,
    /// The method and the name of what was called; an answer counts only for the same.
    pub subject: String,
    pub until: Instant,
    /// Fires when its client can never come back.
    pub gone: CancellationToken,
}

impl ParkedCall {
    fn is_awaited(&self) -> bool {
        self.until > Instant::now() && !self.gone.is_cancelled()
    }
}

impl fmt::Debug for ParkedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ParkedCall({} questions)", self.questions.len())
    }
}

pub struct ParkedCalls {
    calls: Mutex<HashMap<String, ParkedCall>>,
    /// How long a client may take to answer.
    patience: Duration,
    seal: Arc<Seal>,
}

impl ParkedCalls {
    pub fn new(patience: Duration, seal: Arc<Seal>) -> ParkedCalls {
        ParkedCalls { calls: Mutex::default(), patience, seal }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, ParkedCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the call and returns the state for the client: 128 random bits, which nobody can guess and which mean
    /// nothing to another principal or another call, the node where the call waits, and a seal over both: a server behind us may
    /// be another hub, whose states look like ours and are not. `None` if there is no room.
    pub fn park(&self, mut call: ParkedCall, node: Option<&Holder>) -> Option<String> {
        let node = node.map_or("", Holder::as_str);
        let secret = format!("{:032x}", clock::random_bits());
        let state = format!("{PREFIX}.{secret}.{}.{node}", self.seal.of(&[PREFIX, &secret, node]));
        call.until = Instant::now() + self.patience;
        let mut parked = self.lock();
        parked.retain(|_, call| call.is_awaited());
        let own = parked.values().filter(|other| other.principal == call.principal).count();
        if parked.len() >= PARKED_MAX || own >= PER_PRINCIPAL_MAX {
            return None;
        }
        parked.insert(state.clone(), call);
        Some(state)
    }

    /// Ends the calls that nobody can take up any more.
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

    pub fn take(&self, state: &str, principal: &Principal, subject: &str) -> Option<ParkedCall> {
        let mut parked = self.lock();
        parked.retain(|_, call| call.is_awaited());
        let mine = parked.get(state).is_some_and(|call| call.principal == *principal && call.subject == subject);
        if mine { parked.remove(state) } else { None }
    }
}

impl fmt::Debug for ParkedCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ParkedCalls({})", self.lock().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_parks_many_calls_leaves_room_for_others() {
        let parked = ParkedCalls::new(Duration::from_secs(600), Seal::with_key(vec![7; 32]));
        let park = |name: &str| {
            let call = ParkedCall {
                conversation: Conversation::begin(|_| Box::pin(std::future::pending())),
                questions: Vec::new(),
                said: VecDeque::new(),
                principal: Principal::parse(name).unwrap(),
                subject: String::new(),
                until: Instant::now(),
                gone: CancellationToken::new(),
            };
            parked.park(call, None).is_some()
        };
        assert!((0..PER_PRINCIPAL_MAX).all(|_| park("alice")));
        assert!(!park("alice") && park("bob"));
    }
}
