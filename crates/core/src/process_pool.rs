//! Which client uses which process of a program that may run several times. A process does not say whose a question of its is, so only
//! one client that can be asked uses a process, as long as there are enough of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backoff::Backoff;

/// A client that has not called for so long may lose its process to another client.
pub const IDLE: Duration = Duration::from_secs(600);
/// A process that is no client's own ends after this time without a call.
pub const UNKEPT: Duration = Duration::from_secs(60);
/// For so long a process may still ask something on behalf of a call that was given up. As long as a question waits for a person.
pub const DOUBT: Duration = Duration::from_secs(600);
/// When processes could not be started, no other one is tried for so long.
pub const PAUSE: Duration = Duration::from_secs(60);
/// So often in a row; less may be chance.
const FAILURES_MAX: u32 = 2;
/// A first process that ends sooner than this after its start is not replaced at once, but after delays that double from here…
const RESTART_FIRST: Duration = Duration::from_secs(1);
/// …to here.
const RESTART_MAX: Duration = Duration::from_secs(60);

/// Which process. No two processes of a program have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u64);

/// What the end of a process means for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// It was known to have ended.
    Known,
    /// It was not the first, and others still run. Its clients are given another one with their next calls.
    NotFirst,
    /// It was the first, and others still run. This one is started in its place, at `due` at the earliest.
    Replaced { first: SlotId, due: Instant },
    /// No process is left that runs.
    ServerLost,
}

/// Who wants to make a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolClient {
    /// A client with a session. It keeps its process, and what that remembers of it, for as long as the session lasts.
    Client { name: Arc<str>, owner: Arc<str> },
    /// A client without a session that can be asked something: while it calls, it is alone.
    Alone { owner: Arc<str> },
    /// One that can be asked nothing, and so shares a process with its like.
    Mute { owner: Arc<str> },
}

impl PoolClient {
    fn owner(&self) -> &Arc<str> {
        match self {
            PoolClient::Client { owner, .. } | PoolClient::Alone { owner } | PoolClient::Mute { owner } => owner,
        }
    }
}

/// The process that a call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotChoice {
    Slot(SlotId),
    /// Shared with other clients, because no more may be started. It may not be known whose a question is.
    Overflow(SlotId),
}

/// How many processes there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// In all.
    pub max: usize,
    /// That are one owner's own, so that one owner cannot take all of them from the others.
    pub per_owner_max: usize,
}

impl SlotChoice {
    pub fn id(self) -> SlotId {
        let (SlotChoice::Slot(id) | SlotChoice::Overflow(id)) = self;
        id
    }

    pub fn is_overflow(self) -> bool {
        matches!(self, SlotChoice::Overflow(_))
    }
}

/// Who has used a process, as far as that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ProcessUse {
    Unused,
    By(Arc<str>),
    BySeveral,
}

impl ProcessUse {
    fn is_only_by(&self, owner: &Arc<str>) -> bool {
        match self {
            ProcessUse::Unused => true,
            ProcessUse::By(known) => known == owner,
            ProcessUse::BySeveral => false,
        }
    }

    fn note(&mut self, owner: &Arc<str>) {
        *self = if self.is_only_by(owner) { ProcessUse::By(owner.clone()) } else { ProcessUse::BySeveral };
    }
}

#[derive(Clone, Debug)]
struct ProcessSlot {
    keeper: Option<Arc<str>>,
    /// Whose it is, once a client has had it alone.
    owner: Option<Arc<str>>,
    /// Whom it may remember something of, and speak of later.
    users: ProcessUse,
    /// Calls under way, and whether one of them wants to be alone.
    calls: usize,
    alone: bool,
    used: Instant,
    /// Until then it may ask on behalf of a client that has left.
    doubtful_until: Option<Instant>,
}

impl ProcessSlot {
    fn new(now: Instant) -> ProcessSlot {
        let users = ProcessUse::Unused;
        ProcessSlot { keeper: None, owner: None, users, calls: 0, alone: false, used: now, doubtful_until: None }
    }

    /// Whether a client that can be asked may use it, as the only one.
    fn is_free_for(&self, owner: &Arc<str>, now: Instant) -> bool {
        let doubtful = self.doubtful_until.is_some_and(|until| until > now);
        self.keeper.is_none() && self.calls == 0 && self.users.is_only_by(owner) && !doubtful
    }

    /// Whether a client that can be asked nothing may use it.
    fn is_open_to(&self, owner: &Arc<str>) -> bool {
        let strange = self.owner.as_ref().is_some_and(|other| other != owner);
        self.keeper.is_none() && !self.alone && !strange
    }

    /// Whether it is no client's own, and never was.
    fn is_common(&self) -> bool {
        self.keeper.is_none() && !self.alone && self.owner.is_none()
    }

    fn is_quiet(&self, now: Instant, patience: Duration) -> bool {
        self.calls == 0 && now.saturating_duration_since(self.used) >= patience
    }

    /// Whether it may end to make room for another client. One that is no client's own may end at once.
    fn makes_room(&self, now: Instant) -> bool {
        self.is_quiet(now, if self.keeper.is_some() { IDLE } else { Duration::ZERO })
    }
}

/// The processes of one program.
#[derive(Clone, Debug)]
pub struct ProcessPool {
    slots: BTreeMap<SlotId, ProcessSlot>,
    /// The process that answers for the server and is for all clients without one of their own. It has a place from the
    /// beginning to the end, and does not run while it is replaced.
    first: SlotId,
    first_runs_since: Option<Instant>,
    first_due: Instant,
    restarts: Backoff,
    limits: PoolLimits,
    next: u64,
    /// How often in a row a process could not be started, and until when none is.
    failures: u32,
    paused_until: Option<Instant>,
    /// Clients that the program does not want to begin with.
    refused: BTreeSet<Arc<str>>,
}

impl ProcessPool {
    /// With a first process that runs.
    pub fn new(limits: PoolLimits, now: Instant) -> ProcessPool {
        let first = SlotId(0);
        ProcessPool {
            slots: BTreeMap::from([(first, ProcessSlot::new(now))]),
            first,
            first_runs_since: Some(now),
            first_due: now,
            restarts: Backoff::new(RESTART_FIRST, RESTART_MAX, 0.0),
            limits,
            next: 1,
            failures: 0,
            paused_until: None,
            refused: BTreeSet::new(),
        }
    }

    pub fn first(&self) -> SlotId {
        self.first
    }

    /// When the first process may be started again, if it does not run.
    pub fn first_due(&self) -> Instant {
        self.first_due
    }

    /// Whether no process is left that runs.
    pub fn is_lost(&self) -> bool {
        self.first_runs_since.is_none() && self.slots.len() == 1
    }

    /// A call begins. With the process that has to end to make room, if one has to.
    pub fn take(&mut self, client: &PoolClient, now: Instant) -> (SlotChoice, Option<SlotId>) {
        if let Some(id) = self.find(client, now) {
            self.occupy(id, client, now);
            return (SlotChoice::Slot(id), None);
        }
        let may_start = self.may_start(client, now);
        let evicted = if may_start { self.evictable(client, now) } else { None };
        if let Some(evicted) = evicted {
            self.slots.remove(&evicted);
        }
        if may_start && self.has_room() && self.has_share(client) {
            let id = self.add(now);
            self.occupy(id, client, now);
            return (SlotChoice::Slot(id), evicted);
        }
        (self.overflow(client, now), evicted)
    }

    /// Whether the client shares the first process and will go on doing so.
    pub fn shares(&self, client: &str) -> bool {
        self.limits.max <= 1 || self.refused.contains(client)
    }

    /// Whether there are as many processes as there may be.
    pub fn is_full(&self) -> bool {
        self.slots.len() >= self.limits.max
    }

    /// Whether an owner has as many processes of its own as it may have.
    pub fn is_at_share(&self, owner: &str) -> bool {
        let owns = |(id, slot): &(&SlotId, &ProcessSlot)| {
            // The first one goes on without its client. Until then it is held like any other.
            let held = **id != self.first || slot.keeper.is_some() || slot.alone;
            held && slot.owner.as_deref() == Some(owner)
        };
        self.slots.iter().filter(owns).count() >= self.limits.per_owner_max
    }

    /// Whether one more may be this client's own. One that can be asked nothing has none: others share what is started for it.
    fn has_share(&self, client: &PoolClient) -> bool {
        matches!(client, PoolClient::Mute { .. }) || !self.is_at_share(client.owner())
    }

    /// Whether one more may be a client's own. The last one is for all clients that find no other process, so that they need not use
    /// one that is.
    fn has_room(&self) -> bool {
        let reserved = if self.slots.values().any(ProcessSlot::is_common) { 0 } else { 1 };
        self.slots.len() + reserved < self.limits.max
    }

    fn may_start(&self, client: &PoolClient, now: Instant) -> bool {
        let refused = matches!(client, PoolClient::Client { name, .. } if self.refused.contains(name));
        !refused && self.paused_until.is_none_or(|until| until <= now)
    }

    fn add(&mut self, now: Instant) -> SlotId {
        let id = SlotId(self.next);
        self.next += 1;
        self.slots.insert(id, ProcessSlot::new(now));
        id
    }

    /// Gives the client a process that it shares: one that is no client's own, or else the first.
    fn overflow(&mut self, client: &PoolClient, now: Instant) -> SlotChoice {
        let id = match self.find_slot(|_, slot| slot.is_common()) {
            Some(id) => id,
            None if !self.is_full() && self.may_start(client, now) => self.add(now),
            None => self.first,
        };
        self.change(id, |slot| {
            slot.calls += 1;
            slot.used = now;
            slot.users.note(client.owner());
        });
        SlotChoice::Overflow(id)
    }

    /// A call is over, or was given up while the program may still be busy with it.
    pub fn leave(&mut self, taken: SlotChoice, given_up: bool, now: Instant) {
        self.change(taken.id(), |slot| {
            slot.calls = slot.calls.saturating_sub(1);
            slot.alone &= slot.calls > 0;
            slot.used = now;
            if given_up {
                slot.doubtful_until = Some(now + DOUBT);
            }
        });
    }

    /// The process that a client keeps, if it has one.
    pub fn kept_by(&self, client: &str) -> Option<SlotId> {
        let kept = |slot: &ProcessSlot| slot.keeper.as_deref() == Some(client);
        self.slots.iter().find(|(_, slot)| kept(slot)).map(|(id, _)| *id)
    }

    pub fn keeper(&self, id: SlotId) -> Option<&Arc<str>> {
        self.slots.get(&id)?.keeper.as_ref()
    }

    /// A client's session is over. The process that ends with it; the first one stays.
    pub fn handle_over(&mut self, client: &str) -> Option<SlotId> {
        self.refused.remove(client);
        let id = self.kept_by(client)?;
        self.change(id, |slot| slot.keeper = None);
        (id != self.first && self.slots.remove(&id).is_some()).then_some(id)
    }

    /// A process has ended by itself, or could not be started. Others are not touched by that: if it is the first, another one is
    /// started in its place.
    pub fn handle_ended(&mut self, id: SlotId, now: Instant) -> ProcessEnd {
        if self.slots.remove(&id).is_none() {
            return ProcessEnd::Known;
        }
        let was_first = id == self.first;
        if was_first {
            let ran = self.first_runs_since.take().map(|since| now.saturating_duration_since(since));
            let pause = if ran.is_some_and(|ran| ran >= RESTART_FIRST) {
                self.restarts.reset();
                Duration::ZERO
            } else {
                self.restarts.next(0.0)
            };
            self.first = self.add(now);
            self.first_due = now + pause;
        }
        match was_first {
            _ if self.is_lost() => ProcessEnd::ServerLost,
            true => ProcessEnd::Replaced { first: self.first, due: self.first_due },
            false => ProcessEnd::NotFirst,
        }
    }

    /// A process runs, and has begun with its client.
    pub fn handle_started(&mut self, id: SlotId, now: Instant) {
        if id == self.first {
            self.first_runs_since = Some(now);
        } else {
            (self.failures, self.paused_until) = (0, None);
        }
    }

    /// A process could not be started: perhaps the program can run only once, perhaps that passes. Until it is tried again, new clients
    /// share the processes that run.
    pub fn handle_failed(&mut self, id: SlotId, now: Instant) -> ProcessEnd {
        let of_first = id == self.first;
        let end = self.handle_ended(id, now);
        if !of_first && end != ProcessEnd::Known {
            self.failures += 1;
        }
        if self.failures >= FAILURES_MAX {
            self.paused_until = Some(now + PAUSE);
        }
        end
    }

    /// A process was started and refused to begin with its client, which says nothing of others.
    pub fn handle_refused(&mut self, id: SlotId, now: Instant) -> ProcessEnd {
        let keeper = self.keeper(id).filter(|_| id != self.first).cloned();
        self.refused.extend(keeper);
        self.handle_ended(id, now)
    }

    /// The processes that are no client's own and have not been used for a while: they end.
    pub fn sweep(&mut self, now: Instant) -> Vec<SlotId> {
        let unkept = |(id, slot): &(&SlotId, &ProcessSlot)| {
            **id != self.first && slot.keeper.is_none() && slot.is_quiet(now, UNKEPT)
        };
        let over: Vec<SlotId> = self.slots.iter().filter(unkept).map(|(id, _)| *id).collect();
        over.iter().for_each(|id| drop(self.slots.remove(id)));
        over
    }

    /// How many processes there are, or are being started.
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    fn find(&self, client: &PoolClient, now: Instant) -> Option<SlotId> {
        match client {
            PoolClient::Client { name, owner } => self.kept_by(name).or_else(|| {
                // Only the first one is given on: others end with their clients, and what they remember with them.
                let first = self.slots.get(&self.first)?;
                (first.is_free_for(owner, now) && !self.is_at_share(owner)).then_some(self.first)
            }),
            // A process that is the owner's already adds nothing to its share.
            PoolClient::Alone { owner } => {
                let may_add = !self.is_at_share(owner);
                let its_own = |id, slot: &ProcessSlot| id != self.first && slot.owner.as_ref() == Some(owner);
                self.find_slot(|id, slot| slot.is_free_for(owner, now) && (may_add || its_own(id, slot)))
            }
            PoolClient::Mute { owner } => self.find_slot(|_, slot| slot.is_open_to(owner)),
        }
    }

    /// A process of this kind: the first if it is one, or else the oldest.
    fn find_slot(&self, is: impl Fn(SlotId, &ProcessSlot) -> bool) -> Option<SlotId> {
        let first = self.slots.get_key_value(&self.first);
        let mut in_order = first.into_iter().chain(&self.slots);
        in_order.find(|(id, slot)| is(**id, slot)).map(|(id, _)| *id)
    }

    fn occupy(&mut self, id: SlotId, client: &PoolClient, now: Instant) {
        self.change(id, |slot| {
            slot.calls += 1;
            slot.used = now;
            slot.users.note(client.owner());
            match client {
                PoolClient::Client { name, owner } => {
                    slot.keeper = Some(name.clone());
                    slot.owner = Some(owner.clone());
                }
                PoolClient::Alone { owner } => {
                    slot.alone = true;
                    slot.owner = Some(owner.clone());
                }
                PoolClient::Mute { .. } => {}
            }
        });
    }

    /// The process that ends so that this client can have one: at the limit of its owner one of that owner's, else any if
    /// there is no room.
    fn evictable(&self, client: &PoolClient, now: Instant) -> Option<SlotId> {
        match (self.has_share(client), self.has_room()) {
            (false, _) => self.idlest(now, Some(client.owner())),
            (true, false) => self.idlest(now, None),
            (true, true) => None,
        }
    }

    fn idlest(&self, now: Instant, of: Option<&Arc<str>>) -> Option<SlotId> {
        let own = self.slots.iter().filter(|(id, slot)| **id != self.first && !slot.is_common());
        let wanted = own.filter(|(_, slot)| of.is_none_or(|owner| slot.owner.as_ref() == Some(owner)));
        let idle = wanted.filter(|(_, slot)| slot.makes_room(now));
        idle.min_by_key(|(_, slot)| (slot.keeper.is_some(), slot.used)).map(|(id, _)| *id)
    }

    fn change(&mut self, id: SlotId, act: impl FnOnce(&mut ProcessSlot)) {
        if let Some(slot) = self.slots.get_mut(&id) {
            act(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: SlotId = SlotId(0);

    /// Some moment.
    fn start() -> Instant {
        #[allow(clippy::disallowed_methods)]
        Instant::now()
    }

    /// All of them may be one owner's.
    fn limits(max: usize) -> PoolLimits {
        PoolLimits { max, per_owner_max: max }
    }

    fn client(name: &str, owner: &str) -> PoolClient {
        PoolClient::Client { name: name.into(), owner: owner.into() }
    }

    fn alone(owner: &str) -> PoolClient {
        PoolClient::Alone { owner: owner.into() }
    }

    fn mute(owner: &str) -> PoolClient {
        PoolClient::Mute { owner: owner.into() }
    }

    fn taken(pool: &mut ProcessPool, client: &PoolClient, now: Instant) -> SlotChoice {
        pool.take(client, now).0
    }

    #[test]
    fn one_client_needs_one_process_and_each_further_one_gets_its_own() {
        let now = start();
        let mut pool = ProcessPool::new(limits(4), now);
        let [alice, bob, carol] = ["a", "b", "c"].map(|name| client(name, "owner"));
        assert_eq!(taken(&mut pool, &alice, now), SlotChoice::Slot(FIRST));
        assert_eq!(taken(&mut pool, &alice, now), SlotChoice::Slot(FIRST));
        let bobs = taken(&mut pool, &bob, now);
        assert_eq!(bobs, SlotChoice::Slot(SlotId(1)));
        pool.leave(bobs, false, now);
        assert_eq!(taken(&mut pool, &bob, now), bobs, "it keeps what it has");
        assert_eq!(taken(&mut pool, &carol, now), SlotChoice::Slot(SlotId(2)));
        let common = SlotChoice::Overflow(SlotId(3));
        assert_eq!(taken(&mut pool, &client("d", "owner"), now), common);
        assert_eq!(taken(&mut pool, &client("e", "another"), now), common, "the last one is for all the rest");
        assert_eq!(pool.handle_over("b"), Some(SlotId(1)));
        assert_eq!(taken(&mut pool, &client("d", "owner"), now), SlotChoice::Slot(SlotId(4)), "none is given on");
    }

    #[test]
    fn the_first_process_is_given_on_to_the_same_owner_when_nothing_of_the_last_client_is_left() {
        let now = start();
        let mut pool = ProcessPool::new(limits(9), now);
        let first = taken(&mut pool, &client("a", "alice"), now);
        pool.leave(first, false, now);
        assert_eq!(pool.handle_over("a"), None);
        assert_ne!(taken(&mut pool, &client("b", "bob"), now), first);
        assert_eq!(taken(&mut pool, &client("a2", "alice"), now), first);
        pool.leave(first, true, now);
        pool.handle_over("a2");
        assert_ne!(taken(&mut pool, &client("a3", "alice"), now), first, "it may still ask on behalf of another");
        assert_eq!(taken(&mut pool, &alone("alice"), now + DOUBT), first);
    }

    #[test]
    fn those_who_can_be_asked_nothing_share_one_and_those_without_sessions_are_alone_while_they_call() {
        let now = start();
        let mut pool = ProcessPool::new(limits(9), now);
        let first = taken(&mut pool, &mute("alice"), now);
        assert_eq!(taken(&mut pool, &mute("bob"), now), first);
        let second = taken(&mut pool, &alone("alice"), now);
        assert_ne!(second, first);
        assert_eq!(taken(&mut pool, &mute("alice"), now), first);
        assert_ne!(taken(&mut pool, &alone("alice"), now), second);
        pool.leave(second, false, now);
        assert_eq!(taken(&mut pool, &alone("alice"), now), second, "who left makes room");
    }

    #[test]
    fn a_process_that_may_speak_of_another_client_is_no_clients() {
        let now = start();
        let mut pool = ProcessPool::new(limits(9), now);
        let first = taken(&mut pool, &mute("bob"), now);
        pool.leave(first, false, now);
        assert_ne!(taken(&mut pool, &client("a", "alice"), now), first, "it may still log what bob did");
        assert_eq!(taken(&mut pool, &client("b", "bob"), now), first);
        pool.leave(first, false, now);
        pool.handle_over("b");
        assert_ne!(taken(&mut pool, &mute("alice"), now), first, "it may remember what bob did");
    }

    #[test]
    fn what_is_not_used_makes_room() {
        let now = start();
        let mut pool = ProcessPool::new(limits(3), now);
        let first = taken(&mut pool, &client("a", "x"), now);
        let bobs = taken(&mut pool, &client("b", "x"), now);
        let common = taken(&mut pool, &client("c", "x"), now + IDLE);
        assert!(common.is_overflow() && common.id() != FIRST, "it is at work");
        for left in [first, bobs, common] {
            pool.leave(left, false, now);
        }
        let (carols, evicted) = pool.take(&client("c", "x"), now + IDLE);
        assert_eq!((carols.is_overflow(), evicted), (false, Some(bobs.id())), "who was quiet for long");
        assert_eq!(pool.sweep(now + IDLE * 2), [common.id()], "no client needs it now");
        assert_eq!(pool.handle_over("c"), Some(carols.id()));
        let visited = taken(&mut pool, &alone("y"), now);
        pool.leave(visited, false, now);
        assert_eq!(pool.take(&client("d", "x"), now).1, Some(visited.id()), "what is no client's own, at once");
    }

    #[test]
    fn a_program_that_cannot_run_twice_is_shared_and_tried_again_later() {
        let now = start();
        let mut pool = ProcessPool::new(limits(9), now);
        taken(&mut pool, &client("a", "x"), now);
        for _ in 0..FAILURES_MAX {
            let failed = taken(&mut pool, &client("b", "x"), now);
            assert!(!failed.is_overflow(), "once may be chance");
            pool.handle_failed(failed.id(), now);
        }
        assert_eq!(taken(&mut pool, &client("b", "x"), now), SlotChoice::Overflow(FIRST));
        assert!(!pool.shares("b"));
        assert!(!taken(&mut pool, &client("b", "x"), now + PAUSE).is_overflow());
    }

    #[test]
    fn whom_a_program_refuses_has_no_process_and_all_others_do() {
        let now = start();
        let mut pool = ProcessPool::new(limits(9), now);
        taken(&mut pool, &client("a", "x"), now);
        let refused = taken(&mut pool, &client("b", "y"), now);
        assert_eq!(pool.handle_refused(refused.id(), now), ProcessEnd::NotFirst);
        assert_eq!(taken(&mut pool, &client("b", "y"), now), SlotChoice::Overflow(FIRST));
        assert!(!taken(&mut pool, &client("c", "z"), now).is_overflow());
        assert!(pool.shares("b") && !pool.shares("c"));
    }

    #[test]
    fn one_owner_cannot_take_the_processes_of_all() {
        let now = start();
        let mut pool = ProcessPool::new(PoolLimits { max: 5, per_owner_max: 2 }, now);
        let first = taken(&mut pool, &client("a1", "alice"), now);
        let second = taken(&mut pool, &client("a2", "alice"), now);
        assert_eq!((first, second), (SlotChoice::Slot(FIRST), SlotChoice::Slot(SlotId(1))));
        let common = taken(&mut pool, &client("a3", "alice"), now);
        assert!(common.is_overflow() && common.id() == SlotId(2) && pool.is_at_share("alice"), "she has two");
        assert_eq!(taken(&mut pool, &alone("alice"), now), common, "without a session too");
        assert!(!taken(&mut pool, &client("b1", "bob"), now).is_overflow(), "the others still have theirs");
        assert!(!taken(&mut pool, &client("b2", "bob"), now).is_overflow());
        assert_eq!(taken(&mut pool, &client("c1", "carol"), now), common, "now there is no room");
        // What she does not use makes room for another client of hers, and bob keeps what he has.
        pool.leave(second, false, now);
        let (third, evicted) = pool.take(&client("a3", "alice"), now + IDLE);
        assert_eq!((third.is_overflow(), evicted), (false, Some(second.id())));
        assert_eq!(pool.handle_over("a1"), None);
        assert!(!pool.is_at_share("alice"), "the first process goes on, and is not hers");
    }

    #[test]
    fn a_first_process_that_ends_is_replaced_while_others_run_and_is_the_servers_end_when_none_does() {
        let now = start();
        let mut pool = ProcessPool::new(limits(9), now);
        let alices = taken(&mut pool, &client("a", "alice"), now);
        let bobs = taken(&mut pool, &client("b", "bob"), now);
        let later = now + RESTART_FIRST;
        let ProcessEnd::Replaced { first, due } = pool.handle_ended(alices.id(), later) else { panic!() };
        assert_eq!((due, pool.handle_ended(alices.id(), later)), (later, ProcessEnd::Known));
        assert_eq!(taken(&mut pool, &client("b", "bob"), later), bobs, "his is what it was");
        assert_eq!(taken(&mut pool, &client("a", "alice"), later), SlotChoice::Slot(first), "she is given the next");
        // A call that was cut at the old one leaves that one, and she is still at the new one.
        pool.leave(alices, false, later);
        assert_ne!(taken(&mut pool, &alone("carol"), later), SlotChoice::Slot(first));
        assert_eq!(pool.handle_ended(bobs.id(), later), ProcessEnd::NotFirst, "carol's may still run");
        assert!(!pool.is_lost());
        assert_eq!(pool.sweep(later + DOUBT), [], "she is at work");
        assert_eq!(pool.handle_ended(SlotId(3), later), ProcessEnd::ServerLost);
    }

    #[test]
    fn a_first_process_that_ends_again_and_again_is_started_ever_more_rarely() {
        let mut now = start();
        let mut pool = ProcessPool::new(limits(9), now);
        taken(&mut pool, &mute("alice"), now);
        taken(&mut pool, &alone("bob"), now);
        let mut pause = |pool: &mut ProcessPool, ran: Duration, starts: bool| {
            if starts {
                pool.handle_started(pool.first(), now);
            }
            now += ran;
            let end = if starts { pool.handle_ended(pool.first(), now) } else { pool.handle_failed(pool.first(), now) };
            let ProcessEnd::Replaced { due, .. } = end else { panic!("{end:?}") };
            assert_eq!(pool.first_due(), due);
            due - now
        };
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            let starts = expected % 3 == 1;
            assert_eq!(pause(&mut pool, Duration::from_millis(10), starts), Duration::from_secs(expected));
        }
        assert_eq!(pause(&mut pool, RESTART_FIRST, true), Duration::ZERO, "one that ran is replaced at once");
        assert_eq!(pause(&mut pool, Duration::ZERO, true), RESTART_FIRST);
        assert!(!taken(&mut pool, &alone("carol"), now).is_overflow(), "further ones are started all the same");
    }
}
