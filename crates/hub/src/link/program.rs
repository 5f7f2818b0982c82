//! A backend that is a program: one process that is always there, and further ones for clients that would otherwise share it. A
//! process is one session of the older era, and does not say whose its questions are.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bowline_core::backend::DialError;
use bowline_core::seats::{FIRST, Guest, SeatId, Seats, Taken, UNKEPT};
use tokio_util::sync::CancellationToken;

use super::pipe::Pipe;
use super::stdio::{self, Guests, Program};
use super::{Caller, Dial, Ending, Facts, SHARED_LANE, Upcall};
use crate::era::Era;
use crate::fields::{Fields, Raw, empty};
use crate::pending;

const CLOSED: &str = "the connection is closed";

pub struct ProgramLink {
    program: Program,
    dial: Dial,
    /// The process that is always there: it answers for the server, and its end is the loss of the link.
    first: Arc<Pipe>,
    room: Mutex<Room>,
    closed: CancellationToken,
}

struct Room {
    seats: Seats,
    /// The processes besides the first.
    chairs: HashMap<SeatId, Arc<Chair>>,
    /// Somebody had to share the first process, which may thus speak of more than one.
    crowded: bool,
}

/// A process besides the first.
struct Chair {
    client: Option<Arc<str>>,
    /// Started once, however many calls want it.
    pipe: tokio::sync::Mutex<Option<Arc<Pipe>>>,
    closed: CancellationToken,
}

/// Why a client has no process.
enum NoPipe {
    Left,
    Refused(String),
}

pub async fn dial(program: Program, dial: Dial) -> Result<Arc<ProgramLink>, DialError> {
    let closed = dial.over.child_token();
    let guard = closed.clone().drop_guard();
    let (first, _) = stdio::start(&program, &dial, Guests::Everybody, dial.era, closed.child_token()).await?;
    first.renew(dial.renewals.all()).await;
    tokio::spawn(first.clone().hold_subscription());
    guard.disarm();
    let seats = Seats::new(dial.processes_max, Instant::now());
    let room = Mutex::new(Room { seats, chairs: HashMap::new(), crowded: false });
    Ok(Arc::new(ProgramLink { program, dial, first, room, closed }))
}

impl ProgramLink {
    pub fn facts(&self) -> &Facts {
        self.first.facts()
    }

    pub async fn call(self: &Arc<Self>, call: &Upcall) -> Ending {
        let Some(guest) = self.guest(call) else { return self.call_in_passing(call).await };
        let mut again = false;
        loop {
            let mut visit = self.sit_down(&guest, &call.caller);
            let pipe = match self.pipe(visit.taken.id(), &call.caller).await {
                Ok(pipe) => pipe,
                Err(why) => {
                    visit.over = true;
                    match why {
                        _ if self.closed.is_cancelled() => return Ending::NotExecuted(CLOSED.into()),
                        NoPipe::Left => return Ending::failed("the client has left"),
                        // It is not started again, and so the next seat is at the first process.
                        NoPipe::Refused(why) => self.refused(visit.taken.id(), why),
                    }
                    continue;
                }
            };
            let ending = pipe.call(call).await;
            visit.over = true;
            match ending {
                // Only this client's process is gone. Nothing was sent, so the next one may carry it.
                Ending::NotExecuted(why) if visit.taken.id() != FIRST && !self.closed.is_cancelled() => {
                    self.ended(visit.taken.id()).await;
                    if again {
                        return Ending::failed(&format!("the program ends again and again: {why}"));
                    }
                    again = true;
                }
                ending => return ending,
            }
        }
    }

    /// Who calls, if it matters where: a modern program says whose everything is, and our own housekeeping and what only looks
    /// take no seat. Nor do subscriptions of clients without a session, who call from anywhere.
    fn guest(&self, call: &Upcall) -> Option<Guest> {
        let Upcall { method, caller, .. } = call;
        let looks = matches!(method.as_str(), "initialize" | "ping" | "logging/setLevel") || method.ends_with("/list");
        let subscribes = method.starts_with("resources/") && method.ends_with("subscribe");
        if self.facts().era == Era::Modern
            || *caller.lane == *SHARED_LANE
            || looks
            || (subscribes && caller.era == Era::Modern)
        {
            return None;
        }
        let (name, owner) = (caller.lane.clone(), caller.owner.clone());
        Some(match &caller.inbox {
            Some(_) => Guest::Client { name, owner },
            None if pending::can_answer_anything(&caller.client.capabilities) => Guest::Alone { owner },
            None => Guest::Mute,
        })
    }

    /// A call that is made wherever its client is, and starts nothing.
    async fn call_in_passing(self: &Arc<Self>, call: &Upcall) -> Ending {
        let seat = self.lock().seats.kept_by(&call.caller.lane);
        if let Some(pipe) = self.running(seat).await {
            return pipe.call(call).await;
        }
        let taken = self.lock().seats.keeper(FIRST).is_some();
        if call.method == "logging/setLevel" && taken && *call.caller.lane != *SHARED_LANE {
            // It is kept, and said to the client's own process when that begins.
            let knows = Fields::of(Some(&self.facts().capabilities)).has("logging");
            if knows {
                return Ending::answered(Ok(empty()));
            }
        }
        self.first.call(call).await
    }

    pub async fn notify(&self, caller: &Caller, method: &str, params: Option<Raw>) {
        let seat = self.lock().seats.kept_by(&caller.lane);
        let pipe = self.running(seat).await.unwrap_or_else(|| self.first.clone());
        pipe.notify(method, params).await;
    }

    pub async fn end_lane(&self, lane: &str) {
        let over = {
            let mut room = self.lock();
            let seat = room.seats.kept_by(lane);
            if seat == Some(FIRST) {
                self.first.set_tenant(None);
            }
            room.seats.handle_over(lane).and_then(|seat| room.chairs.remove(&seat))
        };
        if let Some(chair) = over {
            self.let_go(&chair);
        }
        self.first.end_unwanted().await;
    }

    pub fn close(&self) {
        self.closed.cancel();
    }

    fn sit_down(self: &Arc<Self>, guest: &Guest, caller: &Caller) -> Visit {
        let mut room = self.lock();
        let (taken, evicted) = room.seats.take(guest, Instant::now());
        let evicted = evicted.and_then(|seat| room.chairs.remove(&seat));
        let client = match guest {
            Guest::Client { name, .. } => Some(name.clone()),
            Guest::Alone { .. } | Guest::Mute => None,
        };
        match taken {
            Taken::Crowded if self.dial.processes_max > 1 => {
                self.dial.observer.limit_hit("hub.processes_per_server_max");
                room.crowded = true;
            }
            Taken::Crowded => room.crowded = true,
            Taken::Seat(FIRST) => {}
            Taken::Seat(seat) => {
                let chair = || {
                    Arc::new(Chair { client, pipe: tokio::sync::Mutex::default(), closed: self.closed.child_token() })
                };
                room.chairs.entry(seat).or_insert_with(chair);
            }
        }
        if room.crowded {
            self.first.set_tenant(None);
        } else if taken == Taken::Seat(FIRST) && caller.inbox.is_some() {
            self.first.set_tenant(Some(caller));
        }
        drop(room);
        if let Some(chair) = evicted {
            self.let_go(&chair);
        }
        Visit { link: self.clone(), taken, over: false }
    }

    /// The process in which somebody sits, which is started if need be.
    async fn pipe(self: &Arc<Self>, seat: SeatId, caller: &Caller) -> Result<Arc<Pipe>, NoPipe> {
        if seat == FIRST {
            return Ok(self.first.clone());
        }
        let Some(chair) = self.lock().chairs.get(&seat).cloned() else { return Err(NoPipe::Left) };
        let mut running = chair.pipe.lock().await;
        if let Some(pipe) = &*running {
            return Ok(pipe.clone());
        }
        let closed = chair.closed.child_token();
        // Whoever wants it may walk away before it is anybody's.
        let guard = closed.clone().drop_guard();
        let guests = if chair.client.is_some() { Guests::Client(caller.clone()) } else { Guests::Visitors };
        let started = stdio::start(&self.program, &self.dial, guests, Some(Era::Legacy), closed).await;
        let (pipe, ended) = started.map_err(|error| {
            if chair.closed.is_cancelled() {
                return NoPipe::Left;
            }
            let (DialError::Passing { reason, .. } | DialError::Fatal { reason }) = error;
            NoPipe::Refused(reason)
        })?;
        if let Some(client) = &chair.client {
            pipe.renew(self.dial.renewals.of(client)).await;
            self.dial.renewals.set_apart(client, true);
        }
        guard.disarm();
        *running = Some(pipe.clone());
        drop(running);
        let (link, kept) = (self.clone(), chair.client.is_some());
        tokio::spawn(async move {
            if ended.await.is_ok() {
                link.ended(seat).await;
            }
        });
        if kept {
            // What the client had subscribed to is its own process's now.
            let first = self.first.clone();
            tokio::spawn(async move { first.end_unwanted().await });
        } else {
            tokio::spawn(sweep(Arc::downgrade(self), chair.closed.clone()));
        }
        Ok(pipe)
    }

    /// A further process cannot be started. Perhaps the program can run only once.
    fn refused(&self, seat: SeatId, why: String) {
        let why = self.dial.secrets.hide(why);
        tracing::warn!(server = %self.dial.name, %why, "a second process cannot be started, so clients share the first");
        let chair = {
            let mut room = self.lock();
            room.seats.handle_refused(seat);
            room.chairs.remove(&seat)
        };
        if let Some(chair) = chair {
            self.let_go(&chair);
        }
    }

    /// A process besides the first has ended by itself. What its client waits for, the first one tells until the client calls
    /// again.
    async fn ended(&self, seat: SeatId) {
        let chair = {
            let mut room = self.lock();
            room.seats.handle_ended(seat);
            room.chairs.remove(&seat)
        };
        let Some(chair) = chair else { return };
        self.let_go(&chair);
        if let Some(client) = &chair.client {
            self.first.renew(self.dial.renewals.of(client)).await;
        }
    }

    fn let_go(&self, chair: &Chair) {
        chair.closed.cancel();
        if let Some(client) = &chair.client {
            self.dial.renewals.set_apart(client, false);
        }
    }

    async fn running(&self, seat: Option<SeatId>) -> Option<Arc<Pipe>> {
        let seat = seat?;
        if seat == FIRST {
            return Some(self.first.clone());
        }
        let chair = self.lock().chairs.get(&seat).cloned()?;
        let pipe = chair.pipe.lock().await.clone();
        pipe.filter(|pipe| !pipe.is_lost())
    }

    fn lock(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends processes that nobody uses, as long as there is this one.
async fn sweep(link: std::sync::Weak<ProgramLink>, closed: CancellationToken) {
    while closed.run_until_cancelled(tokio::time::sleep(UNKEPT)).await.is_some() {
        let Some(link) = link.upgrade() else { return };
        let over: Vec<Arc<Chair>> = {
            let mut room = link.lock();
            let over = room.seats.sweep(Instant::now());
            over.iter().filter_map(|seat| room.chairs.remove(seat)).collect()
        };
        over.iter().for_each(|chair| link.let_go(chair));
    }
}

/// A call at a process, whose caller may walk away.
struct Visit {
    link: Arc<ProgramLink>,
    taken: Taken,
    over: bool,
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.link.lock().seats.leave(self.taken, !self.over, Instant::now());
    }
}

impl fmt::Debug for ProgramLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProgramLink({} processes)", self.lock().seats.count())
    }
}
