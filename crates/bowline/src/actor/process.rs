//! A process that an actor has: what it emits, how it ends, and what of that the store has not taken yet.

use std::fmt;
use std::time::{Duration, Instant};

use bowline_env::clock;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

/// How long a process that was cancelled may take before it is aborted.
const STOP_GRACE: Duration = Duration::from_millis(500);
/// How often a store that cannot take an emission is asked again.
const RETRY_EVERY: Duration = Duration::from_millis(250);
/// Emissions that are heard together, and that may wait to be heard. More makes larger commits, less holds the process
/// back sooner.
pub const EMISSIONS_MAX: usize = 512;

pub struct Process<E, R> {
    pub cancel: CancellationToken,
    pub(super) emissions: mpsc::Receiver<E>,
    pub(super) task: JoinHandle<R>,
    /// How it ended, once it has; heard after everything that it emitted.
    pub(super) ending: Option<R>,
    /// What its ending is if it did not return.
    died: fn(&JoinError) -> R,
    stuck: Option<Stuck<E>>,
}

/// Emissions that the store would not take.
struct Stuck<E> {
    emissions: Vec<E>,
    since: Instant,
    retry_at: Instant,
}

/// What is heard of a process.
#[derive(Debug)]
pub enum RunEvent<E, R> {
    Emissions(Vec<E>),
    Ended(R),
}

impl<E, R: Send + 'static> Process<E, R> {
    pub fn new(
        cancel: CancellationToken,
        emissions: mpsc::Receiver<E>,
        task: JoinHandle<R>,
        died: fn(&JoinError) -> R,
    ) -> Process<E, R> {
        Process { cancel, emissions, task, ending: None, died, stuck: None }
    }

    pub(super) fn handle_returned(&mut self, returned: Result<R, JoinError>) {
        self.ending = Some(returned.unwrap_or_else(|error| (self.died)(&error)));
        // Emitters that the process left behind are not heard from here on.
        self.emissions.close();
    }

    /// Keeps what the store would not take; until then nothing more is heard. False once patience has run out.
    pub fn stick(&mut self, emissions: Vec<E>, patience: Duration) -> bool {
        let now = clock::now();
        let since = self.stuck.as_ref().map_or(now, |stuck| stuck.since);
        self.stuck = Some(Stuck { emissions, since, retry_at: now + RETRY_EVERY });
        now.duration_since(since) < patience
    }

    /// The store would not take the ending either; it is heard again in a while.
    pub fn put_back(&mut self, ending: R) {
        self.ending = Some(ending);
        let now = clock::now();
        self.stuck = Some(Stuck { emissions: Vec::new(), since: now, retry_at: now + RETRY_EVERY });
    }

    /// Aborts the process: what it emitted is not heard, and this is its ending.
    pub fn give_up(&mut self, ending: R) {
        self.cancel.cancel();
        self.task.abort();
        self.emissions.close();
        while self.emissions.try_recv().is_ok() {}
        self.put_back(ending);
    }

    /// Takes what was stuck, to try it again. Patience runs on until [`unstick`](Process::unstick).
    pub fn stuck_emissions(&mut self) -> Vec<E> {
        self.stuck.as_mut().map(|stuck| std::mem::take(&mut stuck.emissions)).unwrap_or_default()
    }

    pub fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    pub fn unstick(&mut self) {
        self.stuck = None;
    }

    pub fn retry_at(&self) -> Option<Instant> {
        self.stuck.as_ref().map(|stuck| stuck.retry_at)
    }

    /// Cancels the process, and aborts it after a moment. Nothing it emits from now on is heard.
    pub fn stop(self) {
        self.cancel.cancel();
        let task = self.task;
        drop(self.emissions);
        if task.is_finished() {
            return;
        }
        tokio::spawn(async move {
            let abort = task.abort_handle();
            if tokio::time::timeout(STOP_GRACE, task).await.is_err() {
                abort.abort();
            }
        });
    }
}

impl<E, R> fmt::Debug for Process<E, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({}running)", if self.task.is_finished() { "not " } else { "" })
    }
}
