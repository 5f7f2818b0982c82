//! Where a backend's loop and its callers meet: the machine that decides, behind one lock that nobody holds while waiting.
//!
//! A call of a connected backend is decided here and now, in its caller's task. Only what takes time is left to the loop.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_core::Health;
use bowline_core::backend::{Backend as Machine, Call, CallId, Generation, Outcome, Output, Ticket, Told};
use bowline_core::health::Pulse;
use tokio::sync::{Notify, oneshot};

use crate::clock::chance;
use crate::link::Link;

/// What a call that waits is told next.
pub enum Turn {
    /// It goes out on this transport. What comes after that comes by `next`.
    Go {
        generation: Generation,
        link: Arc<Link>,
        next: oneshot::Receiver<Turn>,
    },
    Failed(Outcome),
}

/// How a call ended on a transport, as far as the machine wants to know.
pub enum Report {
    /// `well` if the server answered as one does that is well.
    Answered {
        well: bool,
    },
    NotExecuted(String),
    Refused {
        why: String,
        retry_after: Option<Duration>,
    },
    Broken(String),
}

/// What only the loop can do.
pub enum Order {
    Dial(Generation),
    Retire(Generation),
    Redialled { ticket: Ticket, success: bool },
    Tell(Told),
    TellHealth(Pulse),
}

pub struct Desk {
    books: Mutex<Books>,
    /// Rings when a caller left an order, or when the loop sleeps too long.
    bell: Notify,
}

pub struct Books {
    pub machine: Machine,
    pub health: Health,
    pub links: HashMap<Generation, Arc<Link>>,
    /// The calls that are not over, and how they learn what comes next.
    calls: HashMap<CallId, oneshot::Sender<Turn>>,
    orders: VecDeque<Order>,
    /// Until when the loop sleeps.
    due: Option<Instant>,
}

impl Desk {
    pub fn new(machine: Machine, health: Health) -> Desk {
        let books =
            Books { machine, health, links: HashMap::new(), calls: HashMap::new(), orders: VecDeque::new(), due: None };
        Desk { books: Mutex::new(books), bell: Notify::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call begins. Where it may go out at once, its first turn is there already.
    pub fn begin(&self, call: Call) -> oneshot::Receiver<Turn> {
        let (turn, told) = oneshot::channel();
        self.feed(|books| {
            books.calls.insert(call.id, turn);
            books.machine.handle_call(Instant::now(), call);
        });
        told
    }

    /// A call ended on a transport. If it has no answer yet, what becomes of it is told by its next turn.
    pub fn ended(&self, generation: Generation, id: CallId, report: &Report) {
        let now = Instant::now();
        self.feed(|books| match report {
            Report::Answered { well } => {
                books.calls.remove(&id);
                books.machine.handle_answered(id);
                let pulse = if *well { books.health.handle_good(now, chance()) } else { None };
                books.orders.extend(pulse.map(Order::TellHealth));
            }
            Report::NotExecuted(why) => books.machine.handle_not_executed(now, generation, id, why, chance()),
            Report::Refused { why, retry_after } => books.machine.handle_refused(generation, id, why, *retry_after),
            Report::Broken(why) => books.machine.handle_broken(now, generation, id, why),
        });
    }

    /// The caller does not want it any more.
    pub fn cancelled(&self, id: CallId) {
        self.feed(|books| {
            books.calls.remove(&id);
            books.machine.handle_cancelled(id);
        });
    }

    /// The next thing that only the loop can do.
    pub fn order(&self) -> Option<Order> {
        let mut books = self.lock();
        books.settle();
        books.orders.pop_front()
    }

    /// When the loop has to look again although nothing rings.
    pub fn sleep(&self, other: Option<Instant>) -> Option<Instant> {
        let mut books = self.lock();
        books.due = [books.timeout(), other].into_iter().flatten().min();
        books.due
    }

    pub async fn rung(&self) {
        self.bell.notified().await;
    }

    /// The transport that calls go out on now.
    pub fn live(&self) -> Option<(Generation, Arc<Link>)> {
        let books = self.lock();
        let live = books.machine.live()?;
        Some((live, books.links.get(&live)?.clone()))
    }

    pub fn is_live(&self, generation: Generation) -> bool {
        self.lock().machine.live() == Some(generation)
    }

    fn feed(&self, act: impl FnOnce(&mut Books)) {
        let mut books = self.lock();
        act(&mut books);
        books.settle();
        let sooner = books.timeout().is_some_and(|timeout| books.due.is_none_or(|due| timeout < due));
        let ring = sooner || !books.orders.is_empty();
        drop(books);
        if ring {
            self.bell.notify_one();
        }
    }
}

impl Books {
    /// Tells calls what the machine decided about them, and puts the rest aside for the loop.
    fn settle(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send { generation, call } => self.send(generation, call),
                Output::Fail { call, outcome } => {
                    if let Some(turn) = self.calls.remove(&call) {
                        let _ = turn.send(Turn::Failed(outcome));
                    }
                }
                Output::Dial(generation) => self.orders.push_back(Order::Dial(generation)),
                Output::Retire(generation) => self.orders.push_back(Order::Retire(generation)),
                Output::Redialled { ticket, success } => self.orders.push_back(Order::Redialled { ticket, success }),
                Output::Tell(told) => self.orders.push_back(Order::Tell(told)),
            }
        }
    }

    fn send(&mut self, generation: Generation, call: CallId) {
        let (Some(turn), Some(link)) = (self.calls.get_mut(&call), self.links.get(&generation)) else { return };
        let (later, next) = oneshot::channel();
        let go = Turn::Go { generation, link: link.clone(), next };
        let _ = std::mem::replace(turn, later).send(go);
    }

    fn timeout(&self) -> Option<Instant> {
        [self.machine.poll_timeout(), self.health.poll_timeout()].into_iter().flatten().min()
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Desk({:?})", self.lock().machine.calls())
    }
}
