//! Two nodes that write to each other while either is declared dead, forgotten or renewed, and messages are lost or
//! repeated: nothing is taken twice, nothing is taken by the wrong incarnation, and no node waits for what will not come.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

#[expect(clippy::disallowed_methods, reason = "a machine needs some instant to begin with")]
fn t0() -> Instant {
    Instant::now()
}

const LIMIT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
enum Body {
    Ask(u32),
    /// To the sender your incarnation is over.
    Dead(u64),
    /// Messages of yours were lost.
    Missed,
    Nothing,
}

type Message = (MessageStamp, Body);

#[derive(Default)]
struct Node {
    exchange: NodeExchange<usize>,
    inbox: VecDeque<Message>,
    /// What this node waits for.
    pending: BTreeSet<u32>,
    taken: BTreeSet<u32>,
}

#[derive(Default)]
struct World {
    nodes: [Node; 2],
    asks: u32,
    meant_for: BTreeMap<u32, u64>,
}

#[derive(Clone, Debug)]
enum Act {
    Ask(usize),
    Read(usize),
    DeclareDead(usize),
    /// The inbox is gone with the record, which its owner notices.
    LoseInbox(usize),
    /// One message vanishes unnoticed.
    LoseOne(usize, usize),
    Repeat(usize),
    Look(usize),
    Forget(usize),
}

impl World {
    fn post(&mut self, from: usize, body: Body) {
        let stamp = self.nodes[from].exchange.stamp(&(1 - from));
        self.nodes[1 - from].inbox.push_back((stamp, body));
    }

    fn ask(&mut self, from: usize) -> u32 {
        self.asks += 1;
        let ask = self.asks;
        self.nodes[from].pending.insert(ask);
        self.post(from, Body::Ask(ask));
        let (stamp, _) = self.nodes[1 - from].inbox.back().unwrap();
        self.meant_for.insert(ask, stamp.to_incarnation);
        ask
    }

    fn give_up(&mut self, node: usize) {
        self.nodes[node].pending.clear();
        self.nodes[node].exchange.handle_lost(&(1 - node));
    }

    fn renew(&mut self, node: usize) {
        self.nodes[node].exchange.renew();
        self.give_up(node);
    }

    fn read(&mut self, at: usize) {
        let Some((stamp, body)) = self.nodes[at].inbox.pop_front() else { return };
        let ReceivedStamp { verdict, renewed } = self.nodes[at].exchange.handle_message(&(1 - at), &stamp);
        if renewed {
            self.give_up(at);
        }
        if let Body::Dead(incarnation) = body {
            // Also from one that is dead to us: two who declared each other dead would tell each other for ever.
            if self.nodes[at].exchange.was_declared_dead(incarnation) {
                return self.renew(at);
            }
            if verdict != MessageVerdict::AfterGap {
                return;
            }
        }
        match verdict {
            MessageVerdict::Repeated => return,
            MessageVerdict::FromTheDead => return self.post(at, Body::Dead(stamp.incarnation)),
            MessageVerdict::ForAnother => return self.post(at, Body::Nothing),
            MessageVerdict::AfterGap => {
                self.give_up(at);
                self.post(at, Body::Missed);
            }
            MessageVerdict::Fresh => {}
        }
        match body {
            Body::Ask(ask) => {
                assert!(self.nodes[at].taken.insert(ask), "taken twice");
                let meant = self.meant_for[&ask];
                assert!(meant == 0 || meant == self.nodes[at].exchange.incarnation(), "taken by another incarnation");
                self.nodes[1 - at].pending.remove(&ask);
            }
            Body::Missed => self.give_up(at),
            Body::Dead(_) | Body::Nothing => {}
        }
    }

    /// As a node looks at the records of the others.
    fn look(&mut self, at: usize) {
        let theirs = self.nodes[1 - at].exchange.incarnation();
        if self.nodes[at].exchange.is_over(&(1 - at), theirs) {
            self.post(at, Body::Dead(theirs));
        } else if self.nodes[at].exchange.handle_seen(&(1 - at), theirs) {
            self.give_up(at);
        }
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Ask(from) => drop(self.ask(from)),
            Act::Read(at) => self.read(at),
            Act::DeclareDead(by) => {
                self.nodes[by].exchange.handle_death(&(1 - by));
                self.give_up(by);
            }
            Act::LoseInbox(at) => {
                self.nodes[at].inbox.clear();
                self.renew(at);
            }
            Act::LoseOne(at, which) => {
                let len = self.nodes[at].inbox.len();
                if len > 0 {
                    self.nodes[at].inbox.remove(which % len);
                }
            }
            Act::Repeat(at) => {
                let last = self.nodes[at].inbox.back().cloned();
                self.nodes[at].inbox.extend(last);
            }
            Act::Look(at) => self.look(at),
            Act::Forget(by) => self.nodes[by].exchange.forget(&(1 - by)),
        }
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.nodes.iter().all(|node| node.inbox.is_empty()) {
                return;
            }
            self.read(0);
            self.read(1);
        }
        panic!("they write to each other for ever");
    }
}

fn acts() -> impl Strategy<Value = Act> {
    let node = 0..2usize;
    prop_oneof![
        6 => node.clone().prop_map(Act::Ask),
        8 => node.clone().prop_map(Act::Read),
        1 => node.clone().prop_map(Act::DeclareDead),
        1 => node.clone().prop_map(Act::LoseInbox),
        1 => (node.clone(), 0..8usize).prop_map(|(node, which)| Act::LoseOne(node, which)),
        2 => node.clone().prop_map(Act::Repeat),
        2 => node.clone().prop_map(Act::Look),
        1 => node.prop_map(Act::Forget),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// After anything at all, a few looks and messages bring both back together, and until then no node is left waiting.
    #[test]
    fn two_nodes_find_each_other_again_and_no_caller_waits_in_vain(
        story in prop::collection::vec(acts(), 1..80),
    ) {
        let mut world = World::default();
        story.iter().for_each(|act| world.act(act));
        for _ in 0..3 {
            world.settle();
            world.look(0);
            world.look(1);
            world.settle();
            world.post(0, Body::Nothing);
            world.post(1, Body::Nothing);
        }
        world.settle();
        for node in &world.nodes {
            prop_assert!(node.pending.is_empty(), "{:?} are waited for in vain", node.pending);
        }
        for from in [0, 1] {
            let ask = world.ask(from);
            world.settle();
            prop_assert!(world.nodes[1 - from].taken.contains(&ask), "what is asked now is not heard");
        }
    }
}

#[test]
fn a_peer_that_does_not_show_that_it_reads_is_asked_and_then_given_up() {
    let (start, mut exchange) = (t0(), NodeExchange::default());
    exchange.handle_seen(&"b", 1);
    exchange.stamp(&"b");
    exchange.note_awaited(start, &"b", LIMIT);
    assert!(exchange.poll_overdue(start + LIMIT / 3, LIMIT).is_empty());
    assert_eq!(exchange.poll_overdue(start + LIMIT / 2, LIMIT), [("b", Overdue::Ask)]);
    assert!(exchange.poll_overdue(start + LIMIT * 2 / 3, LIMIT).is_empty(), "once");
    assert_eq!(exchange.poll_overdue(start + LIMIT, LIMIT), [("b", Overdue::Lost)]);
    assert!(exchange.poll_overdue(start + LIMIT * 2, LIMIT).is_empty(), "once");
}

#[test]
fn a_peer_that_shows_that_it_reads_may_take_its_time() {
    let (start, mut exchange) = (t0(), NodeExchange::default());
    exchange.handle_seen(&"b", 1);
    let sent = exchange.stamp(&"b");
    exchange.note_awaited(start, &"b", LIMIT);
    let mut answer = MessageStamp { incarnation: 1, to_incarnation: 1, since: 0, number: 1, read: sent.number - 1 };
    exchange.handle_message(&"b", &answer);
    assert_eq!(exchange.poll_overdue(start + LIMIT / 2, LIMIT).len(), 1, "it wrote before it read this");
    (answer.number, answer.read) = (2, sent.number);
    exchange.handle_message(&"b", &answer);
    assert!(exchange.poll_overdue(start + LIMIT * 9, LIMIT).is_empty());
}

#[test]
fn a_peer_without_incarnations_is_understood_as_it_was() {
    let mut exchange = NodeExchange::<&str>::default();
    let plain = |number| MessageStamp { incarnation: 0, to_incarnation: 0, since: 0, number, read: 0 };
    let mut verdict = |number| exchange.handle_message(&"old", &plain(number)).verdict;
    assert_eq!([1, 2, 2, 4, 1].map(&mut verdict), {
        use MessageVerdict::*;
        [Fresh, Fresh, Repeated, AfterGap, AfterGap]
    });
    exchange.renew();
    assert_eq!(
        exchange.handle_message(&"old", &plain(9)).verdict,
        MessageVerdict::Fresh,
        "whatever it counts from now"
    );
    let numbers = [exchange.stamp(&"old").number, {
        exchange.renew();
        exchange.stamp(&"old").number
    }];
    assert_eq!(numbers, [1, 2], "a number that went back would be dropped as old");
}
