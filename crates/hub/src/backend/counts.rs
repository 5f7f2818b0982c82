//! What became of a backend's calls, counted since it was started.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bowline_env::clock;
use serde_json::{Value, json};

use crate::call::outcome::CallOutcome;

#[derive(Default)]
pub struct CallCounts {
    next_call: AtomicU64,
    open: AtomicU64,
    ended: [AtomicU64; CallOutcome::ALL.len()],
    micros: AtomicU64,
    last_micros: AtomicU64,
}

impl CallCounts {
    /// A number for each call.
    pub fn next_call(&self) -> u64 {
        self.next_call.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A call begins. Dropping what this gives without an ending means that its caller walked away.
    pub fn begin(&self) -> CountedCall<'_> {
        self.open.fetch_add(1, Ordering::Relaxed);
        CountedCall { counts: self, began: clock::now() }
    }

    /// Calls that are under way.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed) as usize
    }

    pub fn shown(&self) -> Value {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counted = CallOutcome::ALL.iter().zip(&self.ended);
        let outcomes: serde_json::Map<String, Value> =
            counted.map(|(outcome, count)| (outcome.as_str().to_owned(), of(count).into())).collect();
        let total: u64 = self.ended.iter().map(of).sum();
        let ms = |micros: u64| micros as f64 / 1000.0;
        json!({
            "total": total,
            "open": of(&self.open),
            "outcomes": outcomes,
            "meanMs": (total > 0).then(|| ms(of(&self.micros) / total)),
            "lastMs": (total > 0).then(|| ms(of(&self.last_micros))),
        })
    }
}

/// A call that is under way.
#[derive(Debug)]
pub struct CountedCall<'a> {
    counts: &'a CallCounts,
    began: Instant,
}

impl CountedCall<'_> {
    /// The call has ended so; returns how many seconds it took.
    pub fn end(&self, outcome: CallOutcome) -> f64 {
        let took = clock::since(self.began);
        if let Some(at) = CallOutcome::ALL.iter().position(|known| *known == outcome) {
            self.counts.ended[at].fetch_add(1, Ordering::Relaxed);
        }
        self.counts.micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        self.counts.last_micros.store(took.as_micros() as u64, Ordering::Relaxed);
        took.as_secs_f64()
    }
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for CallCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counts({})", self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_is_open_until_it_ends_and_counted_under_its_outcome() {
        let counts = CallCounts::default();
        let (first, second) = (counts.begin(), counts.begin());
        assert_eq!(counts.shown()["open"], 2);
        first.end(CallOutcome::Unknown);
        drop(first);
        drop(second);
        let shown = counts.shown();
        assert_eq!((&shown["open"], &shown["total"]), (&json!(0), &json!(1)));
        assert_eq!(
            shown["outcomes"],
            json!({ "result": 0, "tool_error": 0, "error": 0, "unknown": 1, "not_executed": 0 })
        );
        assert!(shown["meanMs"].is_number());
    }
}
