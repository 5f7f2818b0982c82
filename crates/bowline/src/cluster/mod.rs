//! Many nodes on one store: who holds what, who is alive, and how what is asked reaches the node where it can be done.
//!
//! A session or task is changed by one actor, on the node that holds its log's lease. Every other node reads the log itself
//! and sends what is asked of it to that node's inbox, which is a log like any other. So nodes need no way to each other
//! but the store, and no address of their own.
//!
//! Nothing here is the truth. A node that is wrongly taken for dead is shut out by a fence; a message that is lost cuts the
//! connections that waited for it, and they come back.

mod forward;
mod liveness;
mod lock;
mod node_stream;
mod outbox;
mod peer_connections;
mod receive;
mod record;
mod router;
mod wire;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_core::hold::ConnectionKey;
use bowline_core::node_exchange::Overdue;
use bowline_core::{NodeExchange, Peers};
use bowline_env::{Clock, clock, entropy};
use bowline_mutant::mutant;
use bowline_protocol::{ErrorCode, LogId, Principal, Refusal, SessionId};
use bowline_store::{Claim, Fence, Holder, Leased, Store, StoreError};
use serde_json::json;
use tokio::sync::Notify;

use crate::logs::Location;
use crate::session::{AttachOrigin, Mail, Mailbox, SessionRequest};
pub use liveness::Seen;
pub use node_stream::HubPeers;
use node_stream::NodeStreams;
use outbox::SendQueue;
use peer_connections::PeerConnections;
pub use receive::{PeerCommand, RemoteAsk};
pub use record::NodeRecord;
pub use router::ClusterRouter;
pub(crate) use wire::{Envelope, VERSION as WIRE_VERSION, read as read_envelope};
use wire::{NodeAnswer, NodeMessage, SessionAsk};

/// Sessions elsewhere whose node is remembered.
const ROUTES_MAX: usize = 100_000;
/// Leases that wait to be given back. Of more, some stay with this node until another node wants the log.
const UNRETURNED_MAX: usize = 10_000;
/// How much is put right after each heartbeat, so that the next one is not late.
const SETTLED_AT_ONCE: usize = 64;
/// What a connection may ask of a session on another node before it is let in there, and have asked again elsewhere if
/// that node dies.
const REPEATABLE_MAX: usize = 16;
/// A node that has not answered for so long is looked after.
const OVERDUE: Duration = Duration::from_millis(50);
/// And for so long.
const LOOKED_AFTER: Duration = Duration::from_secs(2);

pub struct Cluster {
    /// This node. New with each process: a holder with an older name is dead.
    pub name: Holder,
    pub(crate) log: LogId,
    /// The principal of what nodes write.
    pub(crate) owner: Principal,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) ttl: Duration,
    /// No caller waits longer for another node without an answer.
    pub(crate) answer_timeout: Duration,
    /// This node has become another incarnation, and has to show it.
    pub(crate) renewed: Notify,
    numbers: AtomicU64,
    state: Mutex<State>,
}

struct State {
    peers: Peers<Holder>,
    exchange: NodeExchange<Holder>,
    queues: HashMap<Holder, SendQueue>,
    /// The beats of nodes that are dead to this one, as they were seen last: if one moves, its node has to be notified.
    dead_beats: HashMap<Holder, u64>,
    /// When this node last wrote its heartbeat, and why it could not since.
    last_heartbeat: Instant,
    heartbeat_error: Option<String>,
    /// Locks that this process has, or is about to have.
    locked: HashSet<LogId>,
    /// Locks of which it is not known whether this node still has them, and since when they look free.
    doubted_locks: HashMap<LogId, Option<Instant>>,
    /// Leases that could not be given back.
    unreturned: HashMap<LogId, Fence>,
    /// Requests of ours that wait for another node.
    waiting: HashMap<u64, AwaitedAnswer>,
    /// Connections here with a session elsewhere.
    connections: HashMap<ConnectionKey, RemoteConnection>,
    /// Connections of other nodes whose session is here.
    peer_connections: PeerConnections,
    /// Where sessions were found last, and whose they are.
    routes: HashMap<SessionId, (Holder, Principal)>,
    /// Nodes that owe us an answer since then.
    silent: HashMap<Holder, Instant>,
    streams: NodeStreams,
}

struct AwaitedAnswer {
    node: Holder,
    until: Instant,
    reply: Box<dyn FnOnce(Result<NodeAnswer, Refusal>) + Send + Sync>,
}

struct RemoteConnection {
    mailbox: Mailbox,
    sessions: HashMap<SessionId, RemoteSession>,
}

/// A session as a connection of another node knows it.
struct RemoteSession {
    node: Holder,
    /// What it asked when it came and right behind that, until the first of it is answered: it can be asked of another
    /// node. None if there is nothing like that, or something among it that must not be done twice.
    repeatable: Option<Vec<String>>,
    /// How it comes, until it is granted its link or refused.
    origin: Option<AttachOrigin>,
}

impl RemoteSession {
    fn at(node: &Holder) -> RemoteSession {
        RemoteSession { node: node.clone(), repeatable: None, origin: None }
    }

    fn attaching(node: &Holder, origin: AttachOrigin) -> RemoteSession {
        RemoteSession { node: node.clone(), repeatable: Some(Vec::new()), origin: Some(origin) }
    }

    /// Keeps what is asked of the session while it is not known whether its node has received any of it.
    fn keep(&mut self, ask: &SessionRequest) {
        let Some(repeatable) = &mut self.repeatable else { return };
        match serde_json::to_string(&SessionAsk::from(ask)) {
            Ok(ask_again) if ask.is_repeatable() && repeatable.len() < REPEATABLE_MAX => repeatable.push(ask_again),
            // The connection is cut if the node dies, and its client reconnects.
            _ => self.repeatable = None,
        }
    }
}

impl Cluster {
    pub fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        ttl: Duration,
        answer_timeout: Duration,
    ) -> anyhow::Result<Cluster> {
        let name = format!("node_{:032x}", entropy::u128());
        let (Some(holder), Some(log), Some(owner)) =
            (Holder::parse(&name), LogId::parse(&name), Principal::parse("node"))
        else {
            anyhow::bail!("`{name}` cannot be a node's name");
        };
        let state = State {
            // With beats and looks of an eighth each, a death is noticed within the lease.
            peers: Peers::new(ttl * 3 / 4),
            exchange: NodeExchange::default(),
            queues: HashMap::new(),
            dead_beats: HashMap::new(),
            last_heartbeat: clock::now(),
            heartbeat_error: None,
            locked: HashSet::new(),
            doubted_locks: HashMap::new(),
            unreturned: HashMap::new(),
            waiting: HashMap::new(),
            connections: HashMap::new(),
            peer_connections: PeerConnections::default(),
            routes: HashMap::new(),
            silent: HashMap::new(),
            streams: NodeStreams::default(),
        };
        Ok(Cluster {
            name: holder,
            log,
            owner,
            store,
            clock,
            ttl,
            answer_timeout,
            renewed: Notify::new(),
            numbers: AtomicU64::new(1),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to write to a log; a dead node's is taken.
    pub async fn lease(&self, log: &LogId) -> Result<Leased, StoreError> {
        let mut claim = Claim::by(self.name.clone());
        loop {
            match self.store.lease(log, &claim).await? {
                Leased::Held(holder) if self.may_take(&holder) && claim.instead_of.as_ref() != Some(&holder) => {
                    claim.instead_of = Some(holder);
                }
                leased => return Ok(leased),
            }
        }
    }

    /// Whether a lease of this node may be taken from it.
    fn may_take(&self, holder: &Holder) -> bool {
        let is_dead = self.is_dead(holder) && !mutant("leave-the-dead-their-leases");
        is_dead || mutant("take-the-leases-of-the-living")
    }

    /// A lease that is not needed here could not be given back: the store is away.
    pub(crate) fn give_back_later(&self, log: &LogId, fence: Fence) {
        let unreturned = &mut self.state().unreturned;
        if unreturned.len() < UNRETURNED_MAX {
            unreturned.insert(log.clone(), fence);
        }
    }

    /// Gives leases back that could not be given back before, as long as the store takes them.
    pub(crate) async fn give_back_leases(&self) {
        let unreturned: Vec<_> =
            self.state().unreturned.iter().take(SETTLED_AT_ONCE).map(|(log, fence)| (log.clone(), *fence)).collect();
        for (log, fence) in unreturned {
            if self.store.give_back(&log, &self.name, fence).await.is_err() {
                return;
            }
            let unreturned = &mut self.state().unreturned;
            if unreturned.get(&log) == Some(&fence) {
                unreturned.remove(&log);
            }
        }
    }

    /// Where a log can be written to. A dead node's can be taken here.
    pub async fn place(&self, log: &LogId) -> Result<Location, StoreError> {
        match self.store.holder(log).await? {
            Some(holder) if holder != self.name && !self.is_dead(&holder) => Ok(Location::There(holder)),
            _ => Ok(Location::Here),
        }
    }

    pub(crate) fn is_dead(&self, holder: &Holder) -> bool {
        let mut state = self.state();
        state.peers.handle_named(clock::now(), holder);
        state.peers.is_dead(holder)
    }

    /// Whether there is another node that could serve what this one has.
    pub fn has_peers(&self) -> bool {
        self.state().peers.living().next().is_some()
    }

    /// Where a session of the asker's was found the last time, if it was elsewhere.
    pub fn route(&self, session: &SessionId, asker: &Principal) -> Option<Holder> {
        let state = self.state();
        let (holder, owner) = state.routes.get(session)?;
        (owner == asker && !state.peers.is_dead(holder)).then(|| holder.clone())
    }

    /// No answer of this node will come: those who wait for one get an error.
    pub(crate) fn lose(&self, node: &Holder) {
        let (cut, waiting) = {
            let mut state = self.state();
            let State { connections, waiting, routes, silent, streams, exchange, .. } = &mut *state;
            streams.lose(node);
            exchange.handle_lost(node);
            let mut cut = Vec::new();
            for connection in connections.values_mut() {
                let lost = connection.sessions.extract_if(|_, remote| remote.node == *node);
                // One that asked for more than its link is cut: only that answers all of it.
                let refused = |remote: RemoteSession| remote.origin.filter(|_| remote.repeatable.is_some());
                cut.extend(lost.map(|(session, remote)| (connection.mailbox.clone(), session, refused(remote))));
            }
            connections.retain(|_, connection| !connection.sessions.is_empty());
            routes.retain(|_, (holder, _)| holder != node);
            silent.remove(node);
            let waiting: Vec<_> = waiting.extract_if(|_, waiting| waiting.node == *node).collect();
            (cut, waiting)
        };
        for (mailbox, session, origin) in cut {
            mailbox.send(match origin {
                // It has no link yet that could be cut, and waits for an answer.
                Some(origin) => Mail::Refused { session, refusal: in_doubt(), origin: Some(origin) },
                None => Mail::Cut { session },
            });
        }
        for (_, waiting) in waiting {
            (waiting.reply)(Err(in_doubt()));
        }
    }

    /// Answers those who have waited too long, and forgets connections that are gone.
    pub(crate) fn expire_waiting(self: &Arc<Self>, now: Instant) {
        let (late, overdue) = {
            let mut state = self.state();
            state.connections.retain(|_, connection| !connection.mailbox.is_closed());
            let late: Vec<_> = state.waiting.extract_if(|_, waiting| waiting.until <= now).collect();
            (late, state.exchange.poll_overdue(now, self.answer_timeout))
        };
        late.into_iter().for_each(|(_, waiting)| (waiting.reply)(Err(in_doubt())));
        for (node, overdue) in overdue {
            match overdue {
                Overdue::Ask => self.post(&node, &NodeMessage::Ping),
                Overdue::Lost => {
                    tracing::warn!(%node, "a node does not show that it reads what it is sent; its callers are cut");
                    self.lose(&node);
                }
            }
        }
    }

    /// Nodes of which an answer is overdue.
    pub(crate) fn suspects(&self, now: Instant) -> Vec<Holder> {
        let overdue = |since: &Instant| now.duration_since(*since) >= OVERDUE;
        self.state().silent.iter().filter(|(_, since)| overdue(since)).map(|(node, _)| node.clone()).collect()
    }

    /// Looks after a node that may have died.
    pub(crate) fn suspect(&self, node: &Holder) {
        self.state().silent.entry(node.clone()).or_insert_with(clock::now);
    }

    /// Whether a node listens at its inbox was seen. True if that means that it is dead.
    pub(crate) fn heard(&self, now: Instant, node: &Holder, any: bool) -> bool {
        let mut state = self.state();
        if any && state.silent.get(node).is_some_and(|since| now.duration_since(*since) >= LOOKED_AFTER) {
            // It lives, or looks as if it did; then only its beat tells.
            state.silent.remove(node);
        }
        state.peers.handle_listeners(now, node, any)
    }

    /// The last trace of these may go.
    pub(crate) fn forgettable(&self, now: Instant) -> Vec<Holder> {
        self.state().peers.forgettable(now, self.ttl * 6)
    }

    pub(crate) fn forget(&self, node: &Holder) {
        let mut state = self.state();
        state.peers.forget(node);
        state.exchange.forget(node);
        state.dead_beats.remove(node);
    }
}

/// The node that was asked did not answer; it may have done it all the same.
fn in_doubt() -> Refusal {
    let message = "The node that was asked went away, so this may or may not have been done. Look, or try again under \
                   the same id.";
    Refusal::new(ErrorCode::StoreUnavailable, message).retry_after_ms(1000).details(json!({ "in_doubt": true }))
}

fn unreachable() -> Refusal {
    let message = "The node where this lives could not be reached. Try again.";
    Refusal::new(ErrorCode::StoreUnavailable, message).retry_after_ms(1000)
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.name)
    }
}
