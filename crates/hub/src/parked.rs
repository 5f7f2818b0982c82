//! Calls of clients without sessions that wait for input: the call goes on, and its handle is what the client brings back.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_protocol::Principal;
use bowline_store::Holder;
use tokio::sync::oneshot;

use crate::clock;
use crate::drive::conversation::Conversation;
use crate::fields::Raw;
use crate::message::Answer;

/// How long a client may take to answer.
const PATIENCE: Duration = Duration::from_secs(600);
const PARKED_MAX: usize = 10_000;
const PREFIX: &str = "bl1.";

/// A question of the backend's, with the name under which the client answers it.
pub struct Question {
    pub key: String,
    pub method: String,
    pub params: Option<Raw>,
    pub reply: oneshot::Sender<Answer>,
}

impl Question {
    pub fn new(method: String, params: Option<Raw>, reply: oneshot::Sender<Answer>) -> Question {
        Question { key: format!("q{:x}", clock::random_bits() as u64), method, params, reply }
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
    /// Events that came after the questions, for the stream of the rest.
    pub said: VecDeque<String>,
    pub principal: Principal,
    /// The method and the name of what was called; an answer counts only for the same.
    pub subject: String,
    pub until: Instant,
}

impl fmt::Debug for ParkedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ParkedCall({} questions)", self.questions.len())
    }
}

#[derive(Default)]
pub struct ParkedCalls(Mutex<HashMap<String, ParkedCall>>);

impl ParkedCalls {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, ParkedCall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the call and returns the state for the client: 128 random bits, which nobody can guess and which mean
    /// nothing to another principal or another call, and the node where the call waits. `None` if there is no room.
    pub fn park(&self, mut call: ParkedCall, node: Option<&Holder>) -> Option<String> {
        let node = node.map_or("", Holder::as_str);
        let state = format!("{PREFIX}{:032x}.{node}", clock::random_bits());
        call.until = Instant::now() + PATIENCE;
        let mut parked = self.lock();
        parked.retain(|_, call| call.until > Instant::now());
        if parked.len() >= PARKED_MAX {
            return None;
        }
        parked.insert(state.clone(), call);
        Some(state)
    }

    pub fn is_ours(state: &str) -> bool {
        state.starts_with(PREFIX)
    }

    /// The node where a call waits, if its state is one of ours.
    pub fn node_of(state: &str) -> Option<&str> {
        state.strip_prefix(PREFIX)?.split_once('.').map(|(_, node)| node)
    }

    pub fn take(&self, state: &str, principal: &Principal, subject: &str) -> Option<ParkedCall> {
        let mut parked = self.lock();
        parked.retain(|_, call| call.until > Instant::now());
        let mine = parked.get(state).is_some_and(|call| call.principal == *principal && call.subject == subject);
        if mine { parked.remove(state) } else { None }
    }
}

impl fmt::Debug for ParkedCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ParkedCalls({})", self.lock().len())
    }
}
