//! Clients of a program that come and go in any order: a process serves one client that can be asked, and none inherits another's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_core::process_pool::{PoolClient, PoolLimits, ProcessEnd, ProcessPool, SlotChoice, SlotId};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Act {
    Client(u8),
    Alone(u8),
    Mute(u8),
    Leave(usize, bool),
    Over(u8),
    Ended(usize),
    FirstEnded,
    FirstStarted,
    Sweep,
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0u8..6).prop_map(Act::Client),
        4 => (0u8..3).prop_map(Act::Alone),
        2 => (0u8..3).prop_map(Act::Mute),
        8 => (0usize..8, prop::bool::weighted(0.2)).prop_map(|(at, given_up)| Act::Leave(at, given_up)),
        2 => (0u8..6).prop_map(Act::Over),
        1 => (0usize..4).prop_map(Act::Ended),
        1 => Just(Act::FirstEnded),
        2 => Just(Act::FirstStarted),
        1 => Just(Act::Sweep),
        2 => (0u64..700).prop_map(Act::Pass),
    ]
}

/// Two clients have the same owner.
fn owner_of(client: u8) -> Arc<str> {
    format!("owner {}", client / 2).into()
}

/// A call that is under way.
#[derive(Debug)]
struct Call {
    client: PoolClient,
    taken: SlotChoice,
    number: u64,
}

#[derive(Default)]
struct World {
    calls: Vec<Call>,
    next: u64,
    /// Whom a process has served so far.
    served: BTreeMap<SlotId, BTreeSet<Arc<str>>>,
    /// Whose it was alone.
    owners: BTreeMap<SlotId, BTreeSet<Arc<str>>>,
    /// Where each client was last.
    slots: BTreeMap<Arc<str>, SlotId>,
    gone: BTreeSet<SlotId>,
}

impl World {
    fn ended(&mut self, id: SlotId) {
        assert!(self.gone.insert(id), "a process ends once");
        self.calls.retain(|call| call.taken.id() != id);
        self.slots.retain(|_, home| *home != id);
    }

    fn entered(&mut self, client: PoolClient, taken: SlotChoice) {
        self.next += 1;
        let (id, number) = (taken.id(), self.next);
        assert!(!self.gone.contains(&id), "no client is sent to a process that has ended");
        let (PoolClient::Client { owner, .. } | PoolClient::Alone { owner } | PoolClient::Mute { owner }) = &client;
        let kept = matches!(&client, PoolClient::Client { name, .. } if self.slots.contains_key(name));
        let served = self.served.entry(id).or_default();
        if !taken.is_overflow() {
            let strangers = served.iter().any(|other| other != owner);
            match &client {
                PoolClient::Mute { .. } => {
                    let others = self.owners.get(&id).is_some_and(|owners| owners.iter().any(|other| other != owner));
                    assert!(!others, "no client inherits another's process");
                }
                // Who has been here when others were sent here too stays.
                PoolClient::Client { .. } if kept => {}
                _ => {
                    assert!(!strangers, "a process that may speak of others is no client's");
                    self.owners.entry(id).or_default().insert(owner.clone());
                }
            }
            if let PoolClient::Client { name, .. } = &client {
                let home = *self.slots.entry(name.clone()).or_insert(id);
                assert_eq!(home, id, "a client stays where it is");
            }
        }
        served.insert(owner.clone());
        self.calls.push(Call { client, taken, number });
    }

    /// Whom a question of each process could be for.
    fn check(&self) {
        let mut askable: BTreeMap<SlotId, BTreeSet<String>> = BTreeMap::new();
        for call in &self.calls {
            let SlotChoice::Slot(id) = call.taken else { continue };
            let whom = match &call.client {
                PoolClient::Client { name, .. } => name.to_string(),
                PoolClient::Alone { .. } => format!("call {}", call.number),
                PoolClient::Mute { .. } => "no client".to_owned(),
            };
            askable.entry(id).or_default().insert(whom);
        }
        for (id, whom) in &askable {
            assert!(whom.len() == 1, "at {id:?} a question may be for {whom:?}");
        }
        for (id, owners) in &self.owners {
            assert!(owners.len() == 1, "{id:?} has seen {owners:?}");
        }
    }

    /// How many processes an owner has to itself now: those that its clients keep, and those that its calls are alone at.
    fn held_by(&self, owner: u8) -> usize {
        let (clients, owner) = ([owner * 2, owner * 2 + 1].map(|n| format!("client {n}")), owner_of(owner * 2));
        let kept = self.slots.iter().filter(|(name, _)| clients.iter().any(|its| **its == ***name)).map(|(_, id)| *id);
        let alone = self.calls.iter().filter_map(|call| match (&call.client, call.taken) {
            (PoolClient::Alone { owner: its }, SlotChoice::Slot(id)) if *its == owner => Some(id),
            _ => None,
        });
        kept.chain(alone).collect::<BTreeSet<SlotId>>().len()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn a_process_has_one_client_that_can_be_asked_and_no_owner_has_more_than_a_share(
        max in 1usize..6,
        per_owner_max in 1usize..6,
        acts in prop::collection::vec(act(), 1..60),
    ) {
        #[allow(clippy::disallowed_methods)]
        let mut now = Instant::now();
        let (mut pool, mut world) = (ProcessPool::new(PoolLimits { max, per_owner_max }, now), World::default());
        for act in acts {
            let client = match &act {
                Act::Client(n) => Some(PoolClient::Client { name: format!("client {n}").into(), owner: owner_of(*n) }),
                Act::Alone(n) => Some(PoolClient::Alone { owner: owner_of(*n * 2) }),
                Act::Mute(n) => Some(PoolClient::Mute { owner: owner_of(*n * 2) }),
                _ => None,
            };
            if let Some(client) = client {
                let (taken, evicted) = pool.take(&client, now);
                if let Some(evicted) = evicted {
                    prop_assert_ne!(evicted, pool.first());
                    prop_assert!(!world.calls.iter().any(|call| call.taken.id() == evicted), "it was at work");
                    world.ended(evicted);
                }
                world.entered(client, taken);
            }
            match act {
                Act::Leave(at, given_up) if !world.calls.is_empty() => {
                    let call = world.calls.remove(at % world.calls.len());
                    pool.leave(call.taken, given_up, now);
                }
                Act::Over(n) => {
                    let name: Arc<str> = format!("client {n}").into();
                    world.calls.retain(|call| {
                        let its = matches!(&call.client, PoolClient::Client { name: other, .. } if *other == name);
                        if its {
                            pool.leave(call.taken, true, now);
                        }
                        !its
                    });
                    let over = pool.handle_over(&name);
                    prop_assert!(over.is_none_or(|id| world.slots.get(&name) == Some(&id)));
                    world.slots.remove(&name);
                    if let Some(id) = over {
                        prop_assert_ne!(id, pool.first(), "the first process does not end with a client");
                        world.ended(id);
                    }
                }
                Act::Ended(at) => {
                    let slots: Vec<SlotId> = world.slots.values().copied().filter(|id| *id != pool.first()).collect();
                    if !slots.is_empty() {
                        let id = slots[at % slots.len()];
                        let end = pool.handle_ended(id, now);
                        prop_assert_eq!(end == ProcessEnd::ServerLost, pool.is_lost());
                        let other = matches!(end, ProcessEnd::NotFirst | ProcessEnd::ServerLost);
                        prop_assert!(other, "{end:?}");
                        prop_assert_eq!(pool.handle_ended(id, now), ProcessEnd::Known);
                        world.ended(id);
                    }
                }
                Act::FirstEnded => {
                    let (old, others) = (pool.first(), pool.count() - 1);
                    let end = pool.handle_ended(old, now);
                    prop_assert_ne!(pool.first(), old);
                    match end {
                        ProcessEnd::ServerLost => prop_assert_eq!(others, 0),
                        ProcessEnd::Replaced { first, due } => {
                            prop_assert!(first == pool.first() && due >= now && others > 0);
                        }
                        ProcessEnd::Known | ProcessEnd::NotFirst => prop_assert!(false, "{end:?}"),
                    }
                    prop_assert_eq!(pool.count(), others + 1, "others are not touched");
                    world.ended(old);
                }
                Act::FirstStarted => pool.handle_started(pool.first(), now),
                Act::Sweep => {
                    for id in pool.sweep(now) {
                        prop_assert_ne!(id, pool.first());
                        prop_assert!(!world.calls.iter().any(|call| call.taken.id() == id), "it was at work");
                        prop_assert!(!world.slots.values().any(|home| *home == id), "it is kept");
                        world.ended(id);
                    }
                }
                Act::Pass(seconds) => now += Duration::from_secs(seconds),
                _ => {}
            }
            prop_assert!(pool.count() <= max.max(1));
            for owner in 0..3 {
                prop_assert!(world.held_by(owner) <= per_owner_max, "owner {owner} holds {}", world.held_by(owner));
            }
            world.check();
        }
    }
}
