//! How the shape of a stream changed, event by event: what is kept beside a log, so that trimming its head does not change
//! what its readers get.

use std::collections::BTreeMap;
use std::fmt;

use bowline_protocol::{Recorded, Seq, json};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Projector;
use super::shape::{Mark, Shape};

/// The most that is kept of one stream, as JSON. An ordinary change (a text begins, a call is made or answered) takes
/// about a hundred bytes, so these are the last few hundred; older ones are added up, and there nobody can begin. It is
/// written with each commit that changes it, so it should not be longer than what it stands beside.
pub const TRACE_BYTES_MAX: usize = 32 << 10;

/// The shapes of a stream at each of its events, from some event on.
///
/// A shape holds from its event until the next change, so the shape at any event since the first one is known, however
/// few changes are kept.
#[derive(Clone, Serialize, Deserialize)]
pub struct Trace {
    /// The first event at which the shape is known, and the shape there.
    since: Seq,
    base: Shape,
    #[serde(default)]
    changes: Vec<(Seq, Change)>,
    /// Behind this event nothing is known any more: so much was open that it would not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Seq>,
}

/// What was opened or changed, and what is gone.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct Change(BTreeMap<String, Option<Mark>>);

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace(since {}, {} changes)", self.since, self.changes.len())
    }
}

impl Change {
    fn between(old: &Shape, new: &Shape) -> Change {
        let gone = old.0.keys().filter(|key| !new.0.contains_key(*key)).map(|key| (key.clone(), None));
        let put = new.0.iter().filter(|(key, mark)| old.0.get(*key) != Some(mark));
        Change(gone.chain(put.map(|(key, mark)| (key.clone(), Some(mark.clone())))).collect())
    }

    fn apply(&self, shape: &mut Shape) {
        for (key, mark) in &self.0 {
            match mark {
                Some(mark) => drop(shape.0.insert(key.clone(), mark.clone())),
                None => drop(shape.0.remove(key)),
            }
        }
    }

    fn bytes(&self) -> usize {
        serde_json::to_vec(self).map_or(0, |json| json.len() + 24)
    }
}

impl Trace {
    /// The shape right behind this event, if it is known.
    pub fn at(&self, seq: Seq) -> Option<Shape> {
        if seq < self.since || self.until.is_some_and(|until| seq > until) {
            return None;
        }
        let mut shape = self.base.clone();
        self.changes.iter().take_while(|(at, _)| *at <= seq).for_each(|(_, change)| change.apply(&mut shape));
        Some(shape)
    }

    /// Where a reader of what is retained can begin, and the shape there.
    pub fn from(&self, retained: Seq) -> Option<(Seq, Shape)> {
        let from = retained.max(self.since.next());
        Some((from, self.at(from.prev())?))
    }

    pub fn encode(&self) -> Vec<u8> {
        // Text keys and whole numbers only, so this cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub fn decode(bytes: &[u8]) -> Option<Trace> {
        serde_json::from_slice(bytes).ok()
    }
}

/// Follows a stream as it is written, and keeps its trace.
#[derive(Clone, Debug)]
pub struct Scribe {
    projector: Projector,
    trace: Option<Trace>,
    /// The shape at the last event.
    newest: Shape,
    /// About how long the trace is.
    bytes: usize,
    next: Seq,
    /// It cannot tell any more.
    lost: bool,
}

impl Scribe {
    /// A stream whose first event will be `first`.
    pub fn new(first: Seq) -> Scribe {
        Scribe {
            projector: Projector::turn(""),
            trace: None,
            newest: Shape::default(),
            bytes: 0,
            next: first,
            lost: false,
        }
    }

    /// A stream of which the beginning is gone: the first event that is left is `retained`.
    pub fn late(trace: Option<Trace>, retained: Seq) -> Scribe {
        let Some((next, newest)) = trace.as_ref().and_then(|trace| trace.from(retained)) else {
            let mut projector = Projector::turn("");
            projector.lose();
            return Scribe { projector, trace: None, newest: Shape::default(), bytes: 0, next: retained, lost: true };
        };
        let projector = Projector::resumed("", &newest);
        // What happened since is about to be told once more.
        let trace = trace.map(|mut trace| {
            trace.changes.retain(|(at, _)| *at < next);
            trace
        });
        let bytes = trace.as_ref().map_or(0, |trace| trace.encode().len());
        Scribe { projector, trace, newest, bytes, next, lost: false }
    }

    /// The number of the next event.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Takes the next event. True if the trace has changed by it.
    pub fn handle_event(&mut self, event: &Recorded) -> bool {
        if event.seq < self.next {
            return false;
        }
        self.next = event.seq.next();
        self.projector.pass_event(event);
        // Behind the terminal nobody begins.
        if self.projector.is_over() || !self.projector.take_changed() || self.lost {
            return false;
        }
        let shape = self.projector.shape();
        let change = Change::between(&self.newest, &shape);
        match &mut self.trace {
            None => {
                self.trace = Some(Trace { since: event.seq, base: shape.clone(), changes: Vec::new(), until: None });
            }
            Some(_) if change.0.is_empty() => return false,
            Some(trace) => {
                self.bytes += change.bytes();
                trace.changes.push((event.seq, change));
            }
        }
        self.newest = shape;
        if self.bytes > TRACE_BYTES_MAX {
            self.add_up();
        }
        true
    }

    /// Adds up the older half of the changes.
    fn add_up(&mut self) {
        let Some(trace) = &mut self.trace else { return };
        let half = trace.changes.len().div_ceil(2);
        for (at, change) in trace.changes.drain(..half) {
            change.apply(&mut trace.base);
            trace.since = at;
        }
        self.bytes = trace.encode().len();
        if self.bytes > TRACE_BYTES_MAX {
            // What is open at this one point is too much already.
            trace.until = Some(trace.since);
            trace.changes.clear();
            self.lost = true;
        }
    }

    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// How much of this whole answer was streamed before, as the event that brings it should say: so many bytes, or
    /// `false` if that was something else. None if nobody knows.
    pub fn streamed(&self, answer: &str) -> Option<Value> {
        let literal = json::raw(answer);
        self.projector.streamed_of(literal.get()).map(|bytes| bytes.map_or(Value::Bool(false), Value::from))
    }
}
