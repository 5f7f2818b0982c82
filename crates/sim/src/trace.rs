//! What happened, in order: a hash of it to compare two runs by, and the lines for a person to read.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The history of one simulation. Clones share it.
#[derive(Clone, Debug)]
pub struct Trace(Arc<Mutex<History>>);

#[derive(Debug)]
struct History {
    now_ms: u64,
    hash: u64,
    lines: Option<Vec<String>>,
    faults: BTreeMap<&'static str, u64>,
    events: u64,
}

impl Trace {
    /// `readable` keeps the lines.
    pub fn new(readable: bool) -> Trace {
        let lines = readable.then(Vec::new);
        let hash = 0xCBF2_9CE4_8422_2325;
        Trace(Arc::new(Mutex::new(History { now_ms: 0, hash, lines, faults: BTreeMap::new(), events: 0 })))
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_now(&self, now_ms: u64) {
        self.history().now_ms = now_ms;
    }

    pub fn now_ms(&self) -> u64 {
        self.history().now_ms
    }

    /// Something happened to `who`.
    pub fn note(&self, who: &str, what: impl Display) {
        let mut history = self.history();
        let line = format!("{:>7} ms  {who:<12} {what}", history.now_ms);
        for byte in line.bytes() {
            history.hash = (history.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        history.events += 1;
        history.lines.iter_mut().for_each(|lines| lines.push(line.clone()));
    }

    /// A fault took effect. What was planned and never happened does not count.
    pub fn fault(&self, kind: &'static str, who: &str, what: impl Display) {
        *self.history().faults.entry(kind).or_default() += 1;
        self.note(who, format_args!("✂ {kind}: {what}"));
    }

    pub fn hash(&self) -> u64 {
        self.history().hash
    }

    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.history().faults.clone()
    }

    pub fn lines(&self) -> Vec<String> {
        self.history().lines.clone().unwrap_or_default()
    }
}
