//! What clients saw, and what it comes to.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

/// What one client saw, or all of them.
#[derive(Debug, Default)]
pub struct Tally {
    pub events: u64,
    /// Events that were missing, and events that came again.
    pub lost: u64,
    pub twice: u64,
    /// From a message to its first event, and to its last.
    pub firsts: Vec<Duration>,
    pub answers: Vec<Duration>,
    /// From the cut to the moment when everything missed was there.
    pub returns: Vec<Duration>,
    /// What the server said no to, by code, and what else stopped a client.
    pub refused: BTreeMap<String, u64>,
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.events += other.events;
        self.lost += other.lost;
        self.twice += other.twice;
        self.firsts.extend(other.firsts);
        self.answers.extend(other.answers);
        self.returns.extend(other.returns);
        for (code, times) in other.refused {
            *self.refused.entry(code).or_default() += times;
        }
    }

    pub fn refuse(&mut self, code: &str) {
        *self.refused.entry(code.to_owned()).or_default() += 1;
    }

    pub fn report(mut self, took: Duration) -> Report {
        let spread = |times: &mut Vec<Duration>| {
            times.sort_unstable();
            Spread::of(times)
        };
        Report {
            took,
            answers: self.answers.len() as u64,
            first: spread(&mut self.firsts),
            whole: spread(&mut self.answers),
            back: spread(&mut self.returns),
            returns: self.returns.len() as u64,
            seen: self,
        }
    }
}

/// Milliseconds at the 50th and 99th percentile, and the longest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    p50: f64,
    p99: f64,
    max: f64,
}

impl Spread {
    /// `None` of nothing. The times are sorted.
    fn of(sorted: &[Duration]) -> Option<Spread> {
        let at = |part: usize| sorted.get((sorted.len() * part / 100).min(sorted.len().checked_sub(1)?));
        let ms = |time: &Duration| time.as_secs_f64() * 1000.0;
        Some(Spread { p50: ms(at(50)?), p99: ms(at(99)?), max: ms(sorted.last()?) })
    }

    fn to_json(self) -> Value {
        json!({ "p50_ms": self.p50, "p99_ms": self.p99, "max_ms": self.max })
    }
}

#[derive(Debug)]
pub struct Report {
    took: Duration,
    answers: u64,
    returns: u64,
    first: Option<Spread>,
    whole: Option<Spread>,
    back: Option<Spread>,
    seen: Tally,
}

impl Report {
    /// Whether everything came once, in order, and no client was stopped.
    pub fn is_sound(&self) -> bool {
        self.seen.lost == 0 && self.seen.twice == 0 && self.seen.refused.is_empty()
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.took.as_secs_f64().max(f64::EPSILON)
    }

    pub fn to_json(&self) -> Value {
        json!({
            "seconds": self.took.as_secs_f64(),
            "answers": self.answers,
            "answers_per_second": self.per_second(self.answers),
            "events": self.seen.events,
            "events_per_second": self.per_second(self.seen.events),
            "first_event": self.first.map(Spread::to_json),
            "whole_answer": self.whole.map(Spread::to_json),
            "reconnects": self.returns,
            "caught_up": self.back.map(Spread::to_json),
            "lost": self.seen.lost,
            "twice": self.seen.twice,
            "refused": self.seen.refused,
        })
    }

    pub fn to_table(&self) -> String {
        let mut rows = vec![
            ("answers".to_owned(), format!("{} in {:.1} s", self.answers, self.took.as_secs_f64())),
            ("events".to_owned(), format!("{} ({:.0}/s)", self.seen.events, self.per_second(self.seen.events))),
        ];
        let spreads = [("first event", self.first), ("whole answer", self.whole), ("caught up after a cut", self.back)];
        for (name, spread) in spreads {
            if let Some(Spread { p50, p99, max }) = spread {
                rows.push((name.to_owned(), format!("{p50:.2} ms p50, {p99:.2} ms p99, {max:.2} ms longest")));
            }
        }
        rows.push(("reconnects".to_owned(), self.returns.to_string()));
        rows.push(("lost, twice".to_owned(), format!("{}, {}", self.seen.lost, self.seen.twice)));
        rows.extend(self.seen.refused.iter().map(|(code, times)| (format!("refused: {code}"), times.to_string())));
        let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
        rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_seen_and_nothing_has_none() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(Spread::of(&times), Some(Spread { p50: 51.0, p99: 100.0, max: 100.0 }));
        assert_eq!(Spread::of(&times[..1]), Some(Spread { p50: 1.0, p99: 1.0, max: 1.0 }));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn a_lost_event_a_repeated_one_or_a_refusal_is_not_sound() {
        let report = |tally: Tally| tally.report(Duration::from_secs(1)).is_sound();
        assert!(report(Tally { events: 3, ..Tally::default() }));
        assert!(!report(Tally { lost: 1, ..Tally::default() }));
        assert!(!report(Tally { twice: 1, ..Tally::default() }));
        let mut refused = Tally::default();
        refused.refuse("RATE_LIMITED");
        let mut all = Tally::default();
        all.add(refused);
        assert!(!report(all));
    }
}
