//! Which other nodes are alive, judged by what is seen of them and never by their clocks.
//!
//! Each node counts up a beat in its record. Whoever sees the same beat for too long takes the node for dead. Being
//! wrong costs work and never truth: whoever is taken for dead is shut out by a fence before anybody else writes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A node at whose inbox nobody listens is dead if that stays so for this long: its process is gone, and its sockets with
/// it. Long enough for a listener that is just dialling anew.
pub const UNHEARD: Duration = Duration::from_millis(300);
/// How often it must have been looked at in that time.
const UNHEARD_LOOKS: u32 = 3;

/// What a node's record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sign {
    pub beat: u64,
    /// It said goodbye.
    pub left: bool,
}

#[derive(Debug)]
pub struct Peers<N> {
    /// How long a beat may stay the same.
    patience: Duration,
    peers: BTreeMap<N, Peer>,
}

#[derive(Debug)]
struct Peer {
    /// None for one that was only heard of.
    sign: Option<Sign>,
    seen: Instant,
    unheard: Option<Unheard>,
    dead: bool,
}

#[derive(Debug)]
struct Unheard {
    since: Instant,
    looks: u32,
}

impl<N: Ord + Clone> Peers<N> {
    pub fn new(patience: Duration) -> Peers<N> {
        Peers { patience, peers: BTreeMap::new() }
    }

    /// All records were looked at. Gives those who are dead since.
    pub fn handle_look(&mut self, now: Instant, signs: impl IntoIterator<Item = (N, Sign)>) -> Vec<N> {
        for (name, sign) in signs {
            let peer = self.peers.entry(name).or_insert_with(|| Peer::heard_of(now));
            if peer.sign != Some(sign) {
                *peer = Peer { sign: Some(sign), dead: peer.dead && sign.left, ..Peer::heard_of(now) };
            }
        }
        let dying: Vec<N> =
            self.peers.iter().filter(|(_, peer)| self.dies(peer, now)).map(|(name, _)| name.clone()).collect();
        dying.iter().for_each(|name| self.bury(name));
        dying
    }

    /// Whether somebody listens at this node's inbox, as it was just seen. True if that means that it is dead since.
    pub fn handle_listeners(&mut self, now: Instant, name: &N, any: bool) -> bool {
        let peer = self.peers.entry(name.clone()).or_insert_with(|| Peer::heard_of(now));
        if any {
            peer.unheard = None;
            return false;
        }
        let unheard = peer.unheard.get_or_insert(Unheard { since: now, looks: 0 });
        unheard.looks += 1;
        let gone = unheard.looks >= UNHEARD_LOOKS && now.duration_since(unheard.since) >= UNHEARD;
        gone && !std::mem::replace(&mut peer.dead, true)
    }

    /// It wrote to us, so it lives; for how long, its beat tells.
    pub fn handle_heard(&mut self, now: Instant, name: &N) {
        let peer = self.peers.entry(name.clone()).or_insert_with(|| Peer::heard_of(now));
        if !peer.sign.is_some_and(|sign| sign.left) {
            *peer = Peer { sign: peer.sign, ..Peer::heard_of(now) };
        }
    }

    /// Somebody was heard of whose record was not seen yet, or is gone.
    pub fn handle_named(&mut self, now: Instant, name: &N) {
        self.peers.entry(name.clone()).or_insert_with(|| Peer::heard_of(now));
    }

    pub fn is_dead(&self, name: &N) -> bool {
        self.peers.get(name).is_some_and(|peer| peer.dead)
    }

    pub fn living(&self) -> impl Iterator<Item = &N> {
        self.peers.iter().filter(|(_, peer)| !peer.dead).map(|(name, _)| name)
    }

    /// Dead nodes of which nothing was seen for so long that their last trace may go.
    pub fn forgettable(&self, now: Instant, after: Duration) -> Vec<N> {
        let old = |peer: &Peer| peer.dead && now.duration_since(peer.seen) >= after;
        self.peers.iter().filter(|(_, peer)| old(peer)).map(|(name, _)| name.clone()).collect()
    }

    pub fn forget(&mut self, name: &N) {
        self.peers.remove(name);
    }

    fn dies(&self, peer: &Peer, now: Instant) -> bool {
        let left = peer.sign.is_some_and(|sign| sign.left);
        !peer.dead && (left || now.duration_since(peer.seen) >= self.patience)
    }

    fn bury(&mut self, name: &N) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.dead = true;
        }
    }
}

impl Peer {
    fn heard_of(now: Instant) -> Peer {
        Peer { sign: None, seen: now, unheard: None, dead: false }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(7500);

    #[expect(clippy::disallowed_methods, reason = "a machine needs some instant to begin with")]
    fn t0() -> Instant {
        Instant::now()
    }

    fn beat(beat: u64) -> Sign {
        Sign { beat, left: false }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_node_whose_beat_stands_still_is_dead_once_and_alive_again_when_it_moves() {
        let (start, mut peers) = (t0(), Peers::new(PATIENCE));
        assert!(peers.handle_look(start, [("a", beat(1))]).is_empty());
        assert!(peers.handle_look(start + ms(7499), [("a", beat(1))]).is_empty());
        assert_eq!(peers.handle_look(start + ms(7500), [("a", beat(1))]), ["a"]);
        assert!(peers.handle_look(start + ms(9000), [("a", beat(1))]).is_empty(), "it dies once");
        assert!(peers.is_dead(&"a"));
        peers.handle_look(start + ms(9500), [("a", beat(2))]);
        assert!(!peers.is_dead(&"a"));
        assert_eq!(peers.handle_look(start + ms(17_000), [("a", beat(2))]), ["a"]);
    }

    #[test]
    fn a_node_that_says_goodbye_is_dead_at_once() {
        let (start, mut peers) = (t0(), Peers::new(PATIENCE));
        peers.handle_look(start, [("a", beat(1))]);
        assert_eq!(peers.handle_look(start + ms(1), [("a", Sign { beat: 1, left: true })]), ["a"]);
        assert!(peers.handle_look(start + ms(2), [("a", Sign { beat: 1, left: true })]).is_empty());
    }

    #[test]
    fn a_node_that_was_only_heard_of_has_the_same_patience() {
        let (start, mut peers) = (t0(), Peers::new(PATIENCE));
        peers.handle_named(start, &"a");
        assert!(peers.handle_look(start + ms(7000), []).is_empty());
        assert_eq!(peers.handle_look(start + ms(7500), []), ["a"]);
    }

    #[test]
    fn nobody_at_the_inbox_is_death_only_if_it_stays_so() {
        let (start, mut peers) = (t0(), Peers::new(PATIENCE));
        peers.handle_look(start, [("a", beat(1))]);
        assert!(!peers.handle_listeners(start, &"a", false));
        assert!(!peers.handle_listeners(start + ms(200), &"a", false));
        assert!(!peers.handle_listeners(start + ms(210), &"a", true), "it was only dialling");
        assert!(!peers.handle_listeners(start + ms(400), &"a", false));
        assert!(!peers.handle_listeners(start + ms(600), &"a", false));
        peers.handle_look(start + ms(650), [("a", beat(2))]);
        assert!(!peers.handle_listeners(start + ms(800), &"a", false), "a beat in between starts it anew");
        assert!(!peers.handle_listeners(start + ms(1000), &"a", false));
        assert!(peers.handle_listeners(start + ms(1200), &"a", false));
        assert!(!peers.handle_listeners(start + ms(1400), &"a", false), "it dies once");
    }

    #[test]
    fn a_dead_node_that_writes_lives_unless_it_said_goodbye() {
        let (start, mut peers) = (t0(), Peers::new(PATIENCE));
        peers.handle_look(start, [("a", beat(1)), ("b", Sign { beat: 1, left: true })]);
        peers.handle_look(start + ms(8000), []);
        assert!(peers.is_dead(&"a") && peers.is_dead(&"b"));
        peers.handle_heard(start + ms(8001), &"a");
        peers.handle_heard(start + ms(8001), &"b");
        assert!(!peers.is_dead(&"a") && peers.is_dead(&"b"));
        assert_eq!(peers.handle_look(start + ms(15_501), []), ["a"], "its beat has to move again");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Whoever beats at least once within the patience is never taken for dead by looks; whoever stops is dead at the
        /// first look after it.
        #[test]
        fn the_living_live_and_the_dead_die(
            steps in prop::collection::vec((1u64..3000, any::<bool>()), 1..60),
        ) {
            let (start, mut peers) = (t0(), Peers::new(PATIENCE));
            let (mut now, mut count, mut moved) = (start, 0, start);
            peers.handle_look(now, [("a", beat(0))]);
            for (wait, beats) in steps {
                now += ms(wait);
                if beats {
                    count += 1;
                    moved = now;
                }
                let dead = peers.handle_look(now, [("a", beat(count))]);
                let silent = now.duration_since(moved) >= PATIENCE;
                prop_assert_eq!(peers.is_dead(&"a"), silent);
                prop_assert!(dead.is_empty() || silent);
            }
        }
    }
}
