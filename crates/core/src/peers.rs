//! Which other nodes are alive, judged by what is seen of them and never by their clocks.
//!
//! Each node counts up a beat in its record. A node that sees the same beat for too long takes that peer for dead. Only time in
//! which one looks counts: an observer that could not read has seen no peer stand still. Being
//! wrong costs work and never truth: a node that is taken for dead is shut out by a fence before another writes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A node that does not listen at its inbox is dead if that stays so for this long: its process is gone, and its sockets with
/// it. Long enough for a listener that is just dialling anew.
pub const UNHEARD: Duration = Duration::from_millis(300);
/// How often it must have been looked at in that time.
const UNHEARD_LOOKS: u32 = 3;

/// What one look may add to the time that a beat was seen standing still, as a part of the patience. Looks are meant to
/// come at a sixth of it; whatever is longer than this was a stall, of the observer or of what both write to.
const LOOK_COUNTS: u32 = 4;

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
    /// When all were looked at last.
    looked: Option<Instant>,
    peers: BTreeMap<N, Peer>,
}

#[derive(Debug)]
struct Peer {
    /// None for one that was only heard of.
    sign: Option<Sign>,
    seen: Instant,
    /// For how long it was watched since then.
    still: Duration,
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
        Peers { patience, looked: None, peers: BTreeMap::new() }
    }

    /// All records were looked at. Gives those who are dead since.
    pub fn handle_look(&mut self, now: Instant, signs: impl IntoIterator<Item = (N, Sign)>) -> Vec<N> {
        let gap = self.looked.replace(now).map_or(Duration::ZERO, |looked| now.duration_since(looked));
        let counted = gap.min(self.patience / LOOK_COUNTS);
        for peer in self.peers.values_mut() {
            // One that was first heard of, or wrote to us, since the last look was watched from then on.
            peer.still += counted.min(now.duration_since(peer.seen));
            if counted < gap {
                // Whether it listened meanwhile was not seen either.
                peer.unheard = None;
            }
        }
        for (name, sign) in signs {
            let peer = self.peers.entry(name).or_insert_with(|| Peer::heard_of(now));
            if peer.sign != Some(sign) {
                *peer = Peer { sign: Some(sign), dead: peer.dead && sign.left, ..Peer::heard_of(now) };
            }
        }
        let dying: Vec<N> =
            self.peers.iter().filter(|(_, peer)| self.dies(peer)).map(|(name, _)| name.clone()).collect();
        dying.iter().for_each(|name| self.mark_dead(name));
        dying
    }

    /// Whether this node listens at its inbox, as it was just seen. True if that means that it is dead.
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

    /// A node was named whose record was not seen yet, or is gone.
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

    fn dies(&self, peer: &Peer) -> bool {
        let left = peer.sign.is_some_and(|sign| sign.left);
        !peer.dead && (left || peer.still >= self.patience)
    }

    fn mark_dead(&mut self, name: &N) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.dead = true;
        }
    }
}

impl Peer {
    fn heard_of(now: Instant) -> Peer {
        Peer { sign: None, seen: now, still: Duration::ZERO, unheard: None, dead: false }
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

    /// Looks as often as a node does, until then.
    fn watch(
        peers: &mut Peers<&'static str>,
        start: Instant,
        from_to: (u64, u64),
        signs: &[(&'static str, Sign)],
    ) -> Vec<&'static str> {
        let (from, to) = from_to;
        let times = (from..to).step_by(1250).chain([to]);
        times.flat_map(|at| peers.handle_look(start + ms(at), signs.iter().copied())).collect()
    }

    #[test]
    fn a_node_whose_beat_stands_still_is_dead_once_and_alive_again_when_it_moves() {
        let (start, mut peers) = (t0(), Peers::new(PATIENCE));
        assert!(watch(&mut peers, start, (0, 7499), &[("a", beat(1))]).is_empty());
        assert_eq!(peers.handle_look(start + ms(7500), [("a", beat(1))]), ["a"]);
        assert!(peers.handle_look(start + ms(9000), [("a", beat(1))]).is_empty(), "it dies once");
        assert!(peers.is_dead(&"a"));
        peers.handle_look(start + ms(9500), [("a", beat(2))]);
        assert!(!peers.is_dead(&"a"));
        assert!(watch(&mut peers, start, (10_750, 16_999), &[("a", beat(2))]).is_empty());
        assert_eq!(peers.handle_look(start + ms(17_000), [("a", beat(2))]), ["a"]);
    }

    #[test]
    fn a_node_is_not_dead_because_no_node_could_look() {
        let (start, mut peers) = (t0(), Peers::new(PATIENCE));
        assert!(watch(&mut peers, start, (0, 2500), &[("a", beat(1))]).is_empty());
        assert!(peers.handle_look(start + ms(60_000), [("a", beat(1))]).is_empty(), "it could not beat either");
        peers.handle_look(start + ms(61_250), [("a", beat(2))]);
        assert!(!peers.is_dead(&"a"));
        // One that is dead indeed is found out by looking on, however slow the looks are.
        let dead = (1..5).map(|n| peers.handle_look(start + ms(61_250 + n * 20_000), [("a", beat(2))]).len());
        assert_eq!(dead.collect::<Vec<_>>(), [0, 0, 0, 1]);
    }

    #[test]
    fn a_stall_is_no_silence_at_an_inbox() {
        let (start, mut peers) = (t0(), Peers::new(PATIENCE));
        peers.handle_look(start, [("a", beat(1))]);
        assert!(!peers.handle_listeners(start + ms(100), &"a", false));
        assert!(!peers.handle_listeners(start + ms(200), &"a", false));
        peers.handle_look(start + ms(5000), [("a", beat(1))]);
        assert!(!peers.handle_listeners(start + ms(5001), &"a", false));
        assert!(!peers.handle_listeners(start + ms(5100), &"a", false));
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
        peers.handle_look(start, []);
        peers.handle_named(start, &"a");
        assert!(watch(&mut peers, start, (1250, 7000), &[]).is_empty());
        assert_eq!(peers.handle_look(start + ms(7500), []), ["a"]);
    }

    #[test]
    fn an_inbox_without_readers_is_death_only_if_it_stays_so() {
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
        watch(&mut peers, start, (1250, 8000), &[]);
        assert!(peers.is_dead(&"a") && peers.is_dead(&"b"));
        peers.handle_heard(start + ms(8001), &"a");
        peers.handle_heard(start + ms(8001), &"b");
        assert!(!peers.is_dead(&"a") && peers.is_dead(&"b"));
        assert!(watch(&mut peers, start, (9250, 15_500), &[]).is_empty());
        assert_eq!(peers.handle_look(start + ms(15_501), []), ["a"], "its beat has to move again");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// A node that beats at least once within the patience is never taken for dead by looks; one that stops is dead at the
        /// first look after it. Of a look that comes late, only a part counts.
        #[test]
        fn the_living_live_and_the_dead_die(
            steps in prop::collection::vec((1u64..5000, any::<bool>()), 1..60),
        ) {
            let (start, mut peers) = (t0(), Peers::new(PATIENCE));
            let (mut now, mut count, mut still) = (start, 0, Duration::ZERO);
            peers.handle_look(now, [("a", beat(0))]);
            for (wait, beats) in steps {
                now += ms(wait);
                still += ms(wait).min(PATIENCE / 4);
                if beats {
                    count += 1;
                    still = Duration::ZERO;
                }
                let dead = peers.handle_look(now, [("a", beat(count))]);
                prop_assert_eq!(peers.is_dead(&"a"), still >= PATIENCE);
                prop_assert!(dead.is_empty() || still >= PATIENCE);
            }
        }
    }
}
