//! Who sits where at a program that may run several times: a process does not say whose a question of its is, so only one client
//! that can be asked is at one process, as long as there are enough of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A client that has not called for so long may lose its process to another one.
pub const IDLE: Duration = Duration::from_secs(600);
/// A process that nobody keeps ends after this time without a call.
pub const UNKEPT: Duration = Duration::from_secs(60);
/// For so long a process may still ask something on behalf of a call that was given up. As long as a question waits for a person.
pub const DOUBT: Duration = Duration::from_secs(600);

/// Which process. The first one is always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeatId(pub u64);

pub const FIRST: SeatId = SeatId(0);

/// Who wants to make a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guest {
    /// A client with a session. It keeps its process, and what that remembers of it, for as long as the session lasts.
    Client { name: Arc<str>, owner: Arc<str> },
    /// A client without a session that can be asked something: while it calls, it is alone.
    Alone { owner: Arc<str> },
    /// One that can be asked nothing, and so shares a process with its like.
    Mute,
}

/// Where the guest sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Seat(SeatId),
    /// At the first process with others, because no more may be started. Nobody may know whose a question is.
    Crowded,
}

impl Taken {
    pub fn id(self) -> SeatId {
        match self {
            Taken::Seat(id) => id,
            Taken::Crowded => FIRST,
        }
    }
}

#[derive(Clone, Debug)]
struct Seat {
    keeper: Option<Arc<str>>,
    /// Whose clients it may remember something of. None before anybody with something to remember was there.
    owner: Option<Arc<str>>,
    /// Calls under way, and whether one of them wants to be alone.
    calls: usize,
    alone: bool,
    used: Instant,
    /// Until then it may ask on behalf of somebody who has left.
    doubtful_until: Option<Instant>,
}

impl Seat {
    fn new(now: Instant) -> Seat {
        Seat { keeper: None, owner: None, calls: 0, alone: false, used: now, doubtful_until: None }
    }

    /// Whether one that can be asked may sit down here and be the only one.
    fn is_free_for(&self, owner: &Arc<str>, now: Instant) -> bool {
        let strange = self.owner.as_ref().is_some_and(|other| other != owner);
        let doubtful = self.doubtful_until.is_some_and(|until| until > now);
        self.keeper.is_none() && self.calls == 0 && !strange && !doubtful
    }

    fn is_idle(&self, now: Instant) -> bool {
        let patience = if self.keeper.is_some() { IDLE } else { UNKEPT };
        self.calls == 0 && now.saturating_duration_since(self.used) >= patience
    }
}

/// The processes of one program.
#[derive(Clone, Debug)]
pub struct Seats {
    seats: BTreeMap<SeatId, Seat>,
    max: usize,
    next: u64,
}

impl Seats {
    pub fn new(max: usize, now: Instant) -> Seats {
        Seats { seats: BTreeMap::from([(FIRST, Seat::new(now))]), max, next: 1 }
    }

    /// A call begins. With the process that has to end to make room, if one has to.
    pub fn take(&mut self, guest: &Guest, now: Instant) -> (Taken, Option<SeatId>) {
        if let Some(id) = self.find(guest, now) {
            self.sit_down(id, guest, now);
            return (Taken::Seat(id), None);
        }
        let evicted = if self.seats.len() < self.max { None } else { self.idlest(now) };
        if let Some(evicted) = evicted {
            self.seats.remove(&evicted);
        }
        if self.seats.len() >= self.max {
            self.change(FIRST, |first| first.calls += 1);
            return (Taken::Crowded, None);
        }
        let id = SeatId(self.next);
        self.next += 1;
        self.seats.insert(id, Seat::new(now));
        self.sit_down(id, guest, now);
        (Taken::Seat(id), evicted)
    }

    /// A call is over, or was given up while the program may still be busy with it.
    pub fn leave(&mut self, taken: Taken, given_up: bool, now: Instant) {
        self.change(taken.id(), |seat| {
            seat.calls = seat.calls.saturating_sub(1);
            seat.alone &= seat.calls > 0;
            seat.used = now;
            if given_up {
                seat.doubtful_until = Some(now + DOUBT);
            }
        });
    }

    /// Where a client sits, if it has a process.
    pub fn kept_by(&self, client: &str) -> Option<SeatId> {
        let kept = |seat: &Seat| seat.keeper.as_deref() == Some(client);
        self.seats.iter().find(|(_, seat)| kept(seat)).map(|(id, _)| *id)
    }

    pub fn keeper(&self, id: SeatId) -> Option<&Arc<str>> {
        self.seats.get(&id)?.keeper.as_ref()
    }

    /// A client's session is over. The process that ends with it; the first one stays.
    pub fn handle_over(&mut self, client: &str) -> Option<SeatId> {
        let id = self.kept_by(client)?;
        self.change(id, |seat| seat.keeper = None);
        (id != FIRST && self.seats.remove(&id).is_some()).then_some(id)
    }

    /// A process has ended by itself. Whoever kept it is given another one with its next call.
    pub fn handle_ended(&mut self, id: SeatId) {
        if id != FIRST {
            self.seats.remove(&id);
        }
    }

    /// A further process cannot be started, so from now on the first one is all there is, besides those that run already.
    pub fn handle_refused(&mut self, id: SeatId) {
        self.handle_ended(id);
        self.max = self.seats.len();
    }

    /// The processes that nobody keeps and nobody has used for a while: they end.
    pub fn sweep(&mut self, now: Instant) -> Vec<SeatId> {
        let unkept = |(id, seat): &(&SeatId, &Seat)| **id != FIRST && seat.keeper.is_none() && seat.is_idle(now);
        let over: Vec<SeatId> = self.seats.iter().filter(unkept).map(|(id, _)| *id).collect();
        over.iter().for_each(|id| drop(self.seats.remove(id)));
        over
    }

    /// How many processes there are, or are being started.
    pub fn count(&self) -> usize {
        self.seats.len()
    }

    fn find(&self, guest: &Guest, now: Instant) -> Option<SeatId> {
        let unkept = || self.seats.iter().filter(|(_, seat)| seat.keeper.is_none());
        match guest {
            Guest::Client { name, owner } => self.kept_by(name).or_else(|| {
                // Only the first one is given on: others end with their clients, and what they remember with them.
                let first = self.seats.get(&FIRST)?;
                first.is_free_for(owner, now).then_some(FIRST)
            }),
            Guest::Alone { owner } => unkept().find(|(_, seat)| seat.is_free_for(owner, now)).map(|(id, _)| *id),
            Guest::Mute => unkept().find(|(_, seat)| !seat.alone).map(|(id, _)| *id),
        }
    }

    fn sit_down(&mut self, id: SeatId, guest: &Guest, now: Instant) {
        self.change(id, |seat| {
            seat.calls += 1;
            seat.used = now;
            match guest {
                Guest::Client { name, owner } => {
                    seat.keeper = Some(name.clone());
                    seat.owner = Some(owner.clone());
                }
                Guest::Alone { owner } => {
                    seat.alone = true;
                    seat.owner = Some(owner.clone());
                }
                Guest::Mute => {}
            }
        });
    }

    fn idlest(&self, now: Instant) -> Option<SeatId> {
        let idle = self.seats.iter().filter(|(id, seat)| **id != FIRST && seat.is_idle(now));
        idle.min_by_key(|(_, seat)| seat.used).map(|(id, _)| *id)
    }

    fn change(&mut self, id: SeatId, act: impl FnOnce(&mut Seat)) {
        if let Some(seat) = self.seats.get_mut(&id) {
            act(seat);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some moment.
    fn start() -> Instant {
        #[allow(clippy::disallowed_methods)]
        Instant::now()
    }

    fn client(name: &str, owner: &str) -> Guest {
        Guest::Client { name: name.into(), owner: owner.into() }
    }

    fn alone(owner: &str) -> Guest {
        Guest::Alone { owner: owner.into() }
    }

    fn taken(seats: &mut Seats, guest: &Guest, now: Instant) -> Taken {
        seats.take(guest, now).0
    }

    #[test]
    fn one_client_needs_one_process_and_each_further_one_gets_its_own() {
        let now = start();
        let mut seats = Seats::new(3, now);
        let [alice, bob, carol] = ["a", "b", "c"].map(|name| client(name, "owner"));
        assert_eq!(taken(&mut seats, &alice, now), Taken::Seat(FIRST));
        assert_eq!(taken(&mut seats, &alice, now), Taken::Seat(FIRST));
        let bobs = taken(&mut seats, &bob, now);
        assert_eq!(bobs, Taken::Seat(SeatId(1)));
        seats.leave(bobs, false, now);
        assert_eq!(taken(&mut seats, &bob, now), bobs, "it keeps what it has");
        assert_eq!(taken(&mut seats, &carol, now), Taken::Seat(SeatId(2)));
        assert_eq!(taken(&mut seats, &client("d", "owner"), now), Taken::Crowded);
        assert_eq!(seats.handle_over("b"), Some(SeatId(1)));
        assert_eq!(taken(&mut seats, &client("d", "owner"), now), Taken::Seat(SeatId(3)), "none is given on");
    }

    #[test]
    fn the_first_process_is_given_on_to_the_same_owner_when_nothing_of_the_last_client_is_left() {
        let now = start();
        let mut seats = Seats::new(9, now);
        let first = taken(&mut seats, &client("a", "alice"), now);
        seats.leave(first, false, now);
        assert_eq!(seats.handle_over("a"), None);
        assert_ne!(taken(&mut seats, &client("b", "bob"), now), first);
        assert_eq!(taken(&mut seats, &client("a2", "alice"), now), first);
        seats.leave(first, true, now);
        seats.handle_over("a2");
        assert_ne!(taken(&mut seats, &client("a3", "alice"), now), first, "it may still ask on behalf of another");
        assert_eq!(taken(&mut seats, &alone("alice"), now + DOUBT), first);
    }

    #[test]
    fn those_who_can_be_asked_nothing_share_one_and_those_without_sessions_are_alone_while_they_call() {
        let now = start();
        let mut seats = Seats::new(9, now);
        let first = taken(&mut seats, &Guest::Mute, now);
        assert_eq!(taken(&mut seats, &Guest::Mute, now), first);
        let second = taken(&mut seats, &alone("alice"), now);
        assert_ne!(second, first);
        assert_eq!(taken(&mut seats, &Guest::Mute, now), first);
        assert_ne!(taken(&mut seats, &alone("alice"), now), second);
        seats.leave(second, false, now);
        assert_eq!(taken(&mut seats, &alone("alice"), now), second, "who left makes room");
    }

    #[test]
    fn what_is_not_used_makes_room() {
        let now = start();
        let mut seats = Seats::new(2, now);
        let first = taken(&mut seats, &client("a", "x"), now);
        let bobs = taken(&mut seats, &client("b", "x"), now);
        assert_eq!(taken(&mut seats, &client("c", "x"), now + IDLE), Taken::Crowded, "it is at work");
        seats.leave(first, false, now);
        seats.leave(bobs, false, now);
        assert_eq!(seats.take(&client("c", "x"), now + IDLE), (Taken::Seat(SeatId(2)), Some(bobs.id())));
        assert!(seats.sweep(now + IDLE * 2).is_empty(), "it is kept");
        seats.handle_over("c");
        let visited = taken(&mut seats, &alone("y"), now);
        seats.leave(visited, false, now);
        assert_eq!(seats.sweep(now + UNKEPT), [visited.id()]);
        assert_eq!(seats.count(), 1);
    }

    #[test]
    fn a_program_that_cannot_run_twice_is_shared() {
        let now = start();
        let mut seats = Seats::new(9, now);
        taken(&mut seats, &client("a", "x"), now);
        let refused = taken(&mut seats, &client("b", "x"), now);
        seats.handle_refused(refused.id());
        assert_eq!(taken(&mut seats, &client("b", "x"), now), Taken::Crowded);
    }
}
