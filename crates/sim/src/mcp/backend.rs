//! The backend as a server: its connections, its sessions, and what it has forgotten after it died.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline_env::net::{Listener, Socket};
use tokio::task::JoinSet;

use super::exchange::respond;
use super::http::BackendConnection;
use super::ledger::CallLedger;
use super::stream::CallStream;
use crate::dice::Dice;
use crate::trace::Trace;

/// How often a process that stands still looks whether it may go on.
const STILL_FOR: Duration = Duration::from_millis(5);

/// A backend. Clones are the same one.
#[derive(Clone)]
pub struct SimBackend(Arc<Mutex<BackendState>>);

struct BackendState {
    ledger: CallLedger,
    trace: Trace,
    dice: Dice,
    /// Which life it is in.
    life: u64,
    is_stateless: bool,
    is_still: bool,
    next_session: u64,
    next_stream: u64,
    sessions: BTreeMap<String, BackendSession>,
    tasks: JoinSet<()>,
}

/// What it knows of one client of its own.
#[derive(Debug, Default)]
struct BackendSession {
    streams: BTreeMap<u64, Arc<CallStream>>,
    /// Whose calls are made in it: the hub gives each of its clients one.
    user: Option<String>,
}

impl SimBackend {
    pub fn new(ledger: CallLedger, trace: Trace, dice: Dice, is_stateless: bool) -> SimBackend {
        SimBackend(Arc::new(Mutex::new(BackendState {
            ledger,
            trace,
            dice,
            life: 1,
            is_stateless,
            is_still: false,
            next_session: 0,
            next_stream: 0,
            sessions: BTreeMap::new(),
            tasks: JoinSet::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, BackendState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes connections for as long as it lives.
    pub async fn serve(self, listener: Box<dyn Listener>) {
        while let Ok(socket) = listener.accept().await {
            self.take(socket);
        }
    }

    /// Serves a connection, on the current runtime.
    fn take(&self, socket: Socket) {
        let backend = self.clone();
        self.spawn(async move {
            let mut connection = BackendConnection::new(socket);
            while let Some(request) = connection.next().await {
                backend.gate().await;
                if respond(&backend, &mut connection, &request).await.is_err() {
                    return;
                }
            }
        });
    }

    /// Does something for as long as this life lasts.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.state();
        while state.tasks.try_join_next().is_some() {}
        state.tasks.spawn(work);
    }

    /// Waits while the process stands still.
    pub(super) async fn gate(&self) {
        while self.state().is_still {
            tokio::time::sleep(STILL_FOR).await;
        }
    }

    /// Whether it speaks the revision without sessions.
    pub(super) fn is_stateless(&self) -> bool {
        self.state().is_stateless
    }

    pub(super) fn roll(&self) -> Dice {
        let mut state = self.state();
        Dice::new(state.dice.draw())
    }

    pub(super) fn note(&self, what: impl fmt::Display) {
        self.state().trace.note("backend", what);
    }

    pub(super) fn busy(&self) {
        self.state().trace.fault("backend refuses", "backend", "a call that it does not run");
    }

    /// A call has its effect.
    pub(super) fn run(&self, key: &str) {
        self.note(format_args!("runs {key}"));
        let ledger = self.state().ledger.clone();
        ledger.ran(key);
    }

    pub(super) fn open_session(&self) -> String {
        let mut state = self.state();
        state.next_session += 1;
        let id = format!("life{}-session{}", state.life, state.next_session);
        state.sessions.insert(id.clone(), BackendSession::default());
        id
    }

    pub(super) fn knows(&self, session: &str) -> bool {
        self.state().sessions.contains_key(session)
    }

    pub(super) fn end_session(&self, session: &str) {
        self.state().sessions.remove(session);
    }

    /// A call begins, in a session if there are any. Its key begins with whose it is.
    pub(super) fn begin_call(&self, session: Option<&str>, key: &str) -> Arc<CallStream> {
        let mut state = self.state();
        state.next_stream += 1;
        let stream = Arc::new(CallStream::new(state.next_stream));
        let Some(session) = session else { return stream };
        let user = key.rsplit_once('/').map_or(key, |(user, _)| user);
        let known = state.sessions.entry(session.to_owned()).or_default();
        known.streams.insert(stream.number, stream.clone());
        let before = known.user.get_or_insert_with(|| user.to_owned()).clone();
        if before != user {
            state.ledger.mixes(session, &before, user);
        }
        stream
    }

    pub(super) fn stream(&self, session: &str, number: u64) -> Option<Arc<CallStream>> {
        self.state().sessions.get(session)?.streams.get(&number).cloned()
    }

    /// The process dies, and forgets everything but what its tools have done.
    pub fn die(&self) {
        let mut state = self.state();
        state.tasks.abort_all();
        state.sessions.clear();
        state.life += 1;
        state.is_still = false;
    }

    /// It forgets its sessions, and lives on.
    pub fn forget(&self) {
        self.state().sessions.clear();
    }

    /// SIGSTOP, or SIGCONT.
    pub fn stand_still(&self, is_still: bool) {
        self.state().is_still = is_still;
    }
}

impl fmt::Debug for SimBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimBackend(life {})", self.state().life)
    }
}
