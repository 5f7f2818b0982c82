//! Messages between nodes, numbered within incarnations: what is repeated, lost, or meant for a node that has restarted.
//!
//! A node that was declared dead comes back as another incarnation of itself, because what others remember of the old one,
//! and it of them, does not fit together any more. Each message says from which incarnation it comes and for which it is
//! meant, and counts on from a number that both sides know to be the beginning. So a message is taken once, a loss is
//! noticed by the next one, and what is meant for an earlier incarnation is refused, never dropped in silence.
//!
//! Numbers of one sender to one receiver only grow, across incarnations too: a peer that knows no incarnations (it sends
//! zeros) then sees at most a gap.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Peers that are remembered; of more, the ones that are long gone are forgotten.
const PEERS_MAX: usize = 4096;
/// Awaited messages that were sent within this part of the limit are waited for together.
const TOGETHER: u32 = 8;
/// And no more than this many groups of them: a peer that never says what it has read cannot make the list grow.
const AWAITED_MAX: usize = 64;
/// After this part of the limit, the receiver is asked for a sign that it reads.
const ASK_AFTER: u32 = 2;

/// What is written on each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageStamp {
    /// The sender's. Zero for one that knows none.
    pub incarnation: u64,
    /// The receiver's, as far as the sender knows; zero if it does not.
    pub to_incarnation: u64,
    /// The number before the first message between these two incarnations.
    pub since: u64,
    pub number: u64,
    /// The last number that the sender has read from the receiver.
    pub read: u64,
}

/// What a message is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageVerdict {
    Fresh,
    /// It counts, but messages before it were lost: what was expected of them will not come, and the sender must know.
    AfterGap,
    /// It was read before.
    Repeated,
    /// It is meant for an earlier incarnation of this node. The sender must know.
    ForAnother,
    /// It comes from an incarnation that is over. The sender must know.
    FromTheDead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedStamp {
    pub verdict: MessageVerdict,
    /// The sender is another incarnation than before: what the earlier one owed will not come.
    pub renewed: bool,
}

/// A peer that has not shown for too long that it reads what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// It may have had no reason to write: it has to be asked.
    Ask,
    /// What it owes will not come.
    Lost,
}

#[derive(Debug)]
pub struct NodeExchange<N> {
    incarnation: u64,
    peers: BTreeMap<N, PeerNumbers>,
}

#[derive(Debug, Default)]
struct PeerNumbers {
    /// The newest that was seen. Zero before that, and for one that knows none.
    incarnation: u64,
    /// Up to here its incarnations were declared dead.
    over: u64,
    written: u64,
    since: u64,
    read: Option<ReadMark>,
    /// Messages whose answer is awaited and that were not acknowledged yet, by number and time.
    awaited: VecDeque<(u64, Instant)>,
    asked: bool,
    forgotten: bool,
}

#[derive(Clone, Copy, Debug)]
struct ReadMark {
    since: u64,
    last: u64,
}

impl<N: Ord + Clone> Default for NodeExchange<N> {
    fn default() -> NodeExchange<N> {
        NodeExchange { incarnation: 1, peers: BTreeMap::new() }
    }
}

impl<N: Ord + Clone> NodeExchange<N> {
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The stamp for the next message.
    pub fn stamp(&mut self, to: &N) -> MessageStamp {
        let incarnation = self.incarnation;
        let peer = self.peer(to);
        peer.written += 1;
        MessageStamp {
            incarnation,
            to_incarnation: peer.incarnation,
            since: peer.since,
            number: peer.written,
            read: peer.read.map_or(0, |read| read.last),
        }
    }

    /// A stamp without a number, for what is sent beside the others: it is neither counted nor missed.
    pub fn uncounted_stamp(&mut self, to: &N) -> MessageStamp {
        let incarnation = self.incarnation;
        let peer = self.peer(to);
        let read = peer.read.map_or(0, |read| read.last);
        MessageStamp { incarnation, to_incarnation: peer.incarnation, since: peer.since, number: 0, read }
    }

    /// The answer to the message that was stamped last is awaited.
    pub fn note_awaited(&mut self, now: Instant, to: &N, limit: Duration) {
        let peer = self.peer(to);
        let full = peer.awaited.len() >= AWAITED_MAX;
        match peer.awaited.back_mut() {
            Some((number, since)) if full || now.duration_since(*since) < limit / TOGETHER => *number = peer.written,
            _ => peer.awaited.push_back((peer.written, now)),
        }
    }

    /// Who has not shown for too long that it reads. Each is asked once, and lost once.
    pub fn poll_overdue(&mut self, now: Instant, limit: Duration) -> Vec<(N, Overdue)> {
        let mut overdue = Vec::new();
        for (name, peer) in &mut self.peers {
            // One that knows no incarnations does not say either what it has read.
            let Some((_, since)) = peer.awaited.front().filter(|_| peer.incarnation != 0) else { continue };
            let waited = now.duration_since(*since);
            if waited >= limit {
                peer.awaited.clear();
                peer.asked = false;
                overdue.push((name.clone(), Overdue::Lost));
            } else if waited >= limit / ASK_AFTER && !std::mem::replace(&mut peer.asked, true) {
                overdue.push((name.clone(), Overdue::Ask));
            }
        }
        overdue
    }

    /// A message was read.
    pub fn handle_message(&mut self, from: &N, stamp: &MessageStamp) -> ReceivedStamp {
        let own = self.incarnation;
        let peer = self.peer(from);
        if stamp.incarnation == 0 {
            return ReceivedStamp { verdict: peer.take_uncounted(stamp.number), renewed: false };
        }
        if stamp.incarnation <= peer.over || stamp.incarnation < peer.incarnation {
            return ReceivedStamp { verdict: MessageVerdict::FromTheDead, renewed: false };
        }
        let renewed = peer.meet(stamp.incarnation);
        if stamp.to_incarnation != 0 && stamp.to_incarnation != own {
            return ReceivedStamp { verdict: MessageVerdict::ForAnother, renewed };
        }
        peer.confirm(stamp.read);
        ReceivedStamp { verdict: peer.take(stamp), renewed }
    }

    /// A peer's record says which incarnation it is. True if that is another than before: what the earlier one owed will
    /// not come.
    pub fn handle_seen(&mut self, peer: &N, incarnation: u64) -> bool {
        self.peer(peer).meet(incarnation)
    }

    /// This node declares a peer dead. If it knows incarnations, only another one counts from here on.
    pub fn handle_death(&mut self, peer: &N) {
        let peer = self.peer(peer);
        peer.over = peer.incarnation;
        peer.begin_anew();
    }

    /// The newest incarnation of a peer that was seen; zero if it knows none, or was never seen.
    pub fn incarnation_of(&self, peer: &N) -> u64 {
        self.peers.get(peer).map_or(0, |peer| peer.incarnation)
    }

    /// This node's incarnation and the newest one of a peer: while they are the same, so is what each knows of the other.
    pub fn incarnations_with(&self, peer: &N) -> (u64, u64) {
        (self.incarnation, self.incarnation_of(peer))
    }

    /// Whether this incarnation of a peer was declared dead here.
    pub fn is_over(&self, peer: &N, incarnation: u64) -> bool {
        incarnation != 0 && self.peers.get(peer).is_some_and(|peer| incarnation <= peer.over)
    }

    /// A peer says that it has declared this incarnation of this node dead. True if that is the one which reads it: it
    /// has to [`renew`](NodeExchange::renew) itself.
    pub fn was_declared_dead(&self, incarnation: u64) -> bool {
        incarnation >= self.incarnation
    }

    /// This node goes on as another incarnation. Nothing that was owed to or by the earlier one will come.
    pub fn renew(&mut self) {
        self.incarnation += 1;
        self.peers.values_mut().for_each(PeerNumbers::begin_anew);
    }

    /// What a peer owed was given up.
    pub fn handle_lost(&mut self, peer: &N) {
        let peer = self.peer(peer);
        peer.awaited.clear();
        peer.asked = false;
    }

    /// A peer is long gone. Its numbers are kept as long as there is room, since it may come back all the same.
    pub fn forget(&mut self, peer: &N) {
        self.peer(peer).forgotten = true;
        if self.peers.len() > PEERS_MAX {
            self.peers.retain(|_, peer| !peer.forgotten);
        }
    }

    pub fn peers(&self) -> impl Iterator<Item = &N> {
        self.peers.keys()
    }

    fn peer(&mut self, name: &N) -> &mut PeerNumbers {
        self.peers.entry(name.clone()).or_default()
    }
}

impl PeerNumbers {
    /// True if it is another incarnation than the one that was known.
    fn meet(&mut self, incarnation: u64) -> bool {
        self.forgotten = false;
        if incarnation <= self.incarnation {
            return false;
        }
        let known = self.incarnation != 0;
        self.incarnation = incarnation;
        if known {
            self.begin_anew();
        }
        known
    }

    /// The messages from here on have nothing to do with those before.
    fn begin_anew(&mut self) {
        (self.since, self.read, self.asked) = (self.written, None, false);
        self.awaited.clear();
    }

    fn take(&mut self, stamp: &MessageStamp) -> MessageVerdict {
        let last = match self.read {
            Some(read) if stamp.since < read.since => return MessageVerdict::Repeated,
            Some(read) if stamp.since == read.since => read.last,
            _ => stamp.since,
        };
        if stamp.number <= last {
            return MessageVerdict::Repeated;
        }
        self.read = Some(ReadMark { since: stamp.since, last: stamp.number });
        if stamp.number == last + 1 { MessageVerdict::Fresh } else { MessageVerdict::AfterGap }
    }

    /// From a sender that says nothing but a number, and counts from 1 again when it has forgotten this node.
    fn take_uncounted(&mut self, number: u64) -> MessageVerdict {
        let last = self.read.map(|read| read.last);
        let verdict = match last {
            None => MessageVerdict::Fresh,
            Some(last) if number == last + 1 => MessageVerdict::Fresh,
            Some(last) if number > last || (number == 1 && last > 1) => MessageVerdict::AfterGap,
            Some(_) => return MessageVerdict::Repeated,
        };
        self.read = Some(ReadMark { since: 0, last: number });
        verdict
    }

    /// It has read up to here.
    fn confirm(&mut self, read: u64) {
        while self.awaited.front().is_some_and(|(number, _)| *number <= read) {
            self.awaited.pop_front();
            self.asked = false;
        }
    }
}

#[cfg(test)]
#[path = "node_exchange_tests.rs"]
mod tests;
