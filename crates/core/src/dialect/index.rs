//! The index of a stream, kept beside its log: which parts were open at each event, so that a reader can begin in the middle.

use std::collections::BTreeMap;
use std::fmt;

use bowline_protocol::{EventView, Recorded, Seq};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{OpenParts, Projection};

/// The most that is kept of one stream, as JSON. An ordinary change (a text begins, a call is made or answered) takes
/// about a hundred bytes, so these are the last few hundred; older ones are added up, and no reader can begin there. It is
/// written with each commit that changes it, so it should not be longer than what it stands beside.
pub const INDEX_BYTES_MAX: usize = 32 << 10;

/// The open parts of a stream at each of its events, from some event on.
///
/// A set of open parts holds from its event until the next change, so the set at any event since the first is known, however
/// few changes are kept.
#[derive(Clone, Serialize, Deserialize)]
#[serde(bound = "M: Serialize + DeserializeOwned")]
pub struct ProjectionIndex<M> {
    /// The first event at which the open parts are known, and these parts.
    since: Seq,
    base: OpenParts<M>,
    #[serde(default)]
    changes: Vec<(Seq, IndexChange<M>)>,
    /// Behind this event nothing is known any more: so much was open that it would not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Seq>,
}

/// What was opened or changed, and what is gone.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent, bound = "M: Serialize + DeserializeOwned")]
struct IndexChange<M>(BTreeMap<String, Option<M>>);

impl<M> fmt::Debug for ProjectionIndex<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProjectionIndex(since {}, {} changes)", self.since, self.changes.len())
    }
}

impl<M: Clone + PartialEq + Serialize> IndexChange<M> {
    fn between(old: &OpenParts<M>, new: &OpenParts<M>) -> IndexChange<M> {
        let gone = old.0.keys().filter(|key| !new.0.contains_key(*key)).map(|key| (key.clone(), None));
        let put = new.0.iter().filter(|(key, mark)| old.0.get(*key) != Some(mark));
        IndexChange(gone.chain(put.map(|(key, mark)| (key.clone(), Some(mark.clone())))).collect())
    }

    fn apply(&self, open_parts: &mut OpenParts<M>) {
        for (key, mark) in &self.0 {
            match mark {
                Some(mark) => drop(open_parts.0.insert(key.clone(), mark.clone())),
                None => drop(open_parts.0.remove(key)),
            }
        }
    }

    fn bytes(&self) -> usize {
        serde_json::to_vec(&self.0).map_or(0, |json| json.len() + 24)
    }
}

impl<M: Clone + PartialEq + Serialize + DeserializeOwned> ProjectionIndex<M> {
    /// The open parts right behind this event, if they are known.
    pub fn at(&self, seq: Seq) -> Option<OpenParts<M>> {
        if seq < self.since || self.until.is_some_and(|until| seq > until) {
            return None;
        }
        let mut open_parts = self.base.clone();
        self.changes.iter().take_while(|(at, _)| *at <= seq).for_each(|(_, change)| change.apply(&mut open_parts));
        Some(open_parts)
    }

    /// Where a reader of what is retained can begin, and the open parts there.
    pub fn from(&self, retained: Seq) -> Option<(Seq, OpenParts<M>)> {
        let from = retained.max(self.since.next());
        Some((from, self.at(from.prev())?))
    }

    /// About how many bytes it takes: the same for the same index, however it was made.
    fn bytes(&self) -> usize {
        let base = serde_json::to_vec(&self.base).map_or(0, |json| json.len() + 64);
        base + self.changes.iter().map(|(_, change)| change.bytes()).sum::<usize>()
    }

    pub fn encode(&self) -> Vec<u8> {
        // Text keys and whole numbers only, so this cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub fn decode(bytes: &[u8]) -> Option<ProjectionIndex<M>> {
        serde_json::from_slice(bytes).ok()
    }
}

/// How far a stream was followed: all that its writer knows of it beside the index.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "P: Serialize + DeserializeOwned")]
pub struct IndexerState<P> {
    projection: P,
    next: Seq,
    /// It cannot tell any more.
    lost: bool,
}

impl<P: Projection> IndexerState<P> {
    /// The number of the next event.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Takes note of an event that the index holds already.
    pub fn pass_event(&mut self, event: &Recorded) {
        if event.seq >= self.next {
            self.next = event.seq.next();
            self.projection.pass_event(event);
        }
    }
}

/// Follows a stream as it is written, and keeps its index.
#[derive(Clone, Debug)]
pub struct ProjectionIndexer<P: Projection> {
    state: IndexerState<P>,
    index: Option<ProjectionIndex<P::Mark>>,
    /// The open parts at the last event.
    newest: OpenParts<P::Mark>,
    /// About how long the index is.
    bytes: usize,
}

impl<P: Projection> ProjectionIndexer<P> {
    /// A stream whose first event will be `first`.
    pub fn new(first: Seq) -> ProjectionIndexer<P> {
        let state = IndexerState { projection: P::new(""), next: first, lost: false };
        ProjectionIndexer { state, index: None, newest: OpenParts::default(), bytes: 0 }
    }

    /// A stream of which the beginning is gone: the first event that is left is `retained`.
    pub fn late(index: Option<ProjectionIndex<P::Mark>>, retained: Seq) -> ProjectionIndexer<P> {
        let Some((next, newest)) = index.as_ref().and_then(|index| index.from(retained)) else {
            let mut projection = P::new("");
            projection.lose();
            let state = IndexerState { projection, next: retained, lost: true };
            return ProjectionIndexer { state, index: None, newest: OpenParts::default(), bytes: 0 };
        };
        let projection = P::resumed("", &newest);
        // What happened since is about to be replayed.
        let index = index.map(|mut index| {
            index.changes.retain(|(at, _)| *at < next);
            index
        });
        let bytes = index.as_ref().map_or(0, ProjectionIndex::bytes);
        ProjectionIndexer { state: IndexerState { projection, next, lost: false }, index, newest, bytes }
    }

    /// A stream that was followed up to its end, where this is its index.
    pub fn resumed(mut state: IndexerState<P>, index: Option<ProjectionIndex<P::Mark>>) -> ProjectionIndexer<P> {
        state.projection.take_changed();
        // One that has lost sight keeps no index, or one that ends where it lost it.
        state.lost |= index.as_ref().is_some_and(|index| index.until.is_some());
        let newest = if index.is_some() { state.projection.open_parts() } else { OpenParts::default() };
        let bytes = index.as_ref().map_or(0, ProjectionIndex::bytes);
        ProjectionIndexer { state, index, newest, bytes }
    }

    /// What has to be kept of it beside its index.
    pub fn state(&self) -> &IndexerState<P> {
        &self.state
    }

    /// The number of the next event.
    pub fn next(&self) -> Seq {
        self.state.next
    }

    /// Takes the next event. True if the index has changed by it.
    pub fn handle_event(&mut self, event: &Recorded) -> bool {
        self.handle_with(event.seq, |projection| projection.pass_event(event))
    }

    /// The same with an event that is not encoded yet.
    pub fn handle_view(&mut self, seq: Seq, view: &EventView<'_>) -> bool {
        self.handle_with(seq, |projection| projection.pass_view(seq, view))
    }

    fn handle_with(&mut self, seq: Seq, pass: impl FnOnce(&mut P)) -> bool {
        if seq < self.state.next {
            return false;
        }
        self.state.next = seq.next();
        let projection = &mut self.state.projection;
        pass(projection);
        // No reader begins after the terminal event.
        if projection.is_over() || !projection.take_changed() || self.state.lost {
            return false;
        }
        let open_parts = projection.open_parts();
        match &mut self.index {
            None => {
                let base = open_parts.clone();
                let index = ProjectionIndex { since: seq, base, changes: Vec::new(), until: None };
                self.bytes = index.bytes();
                self.index = Some(index);
            }
            Some(index) => {
                let change = IndexChange::between(&self.newest, &open_parts);
                if change.0.is_empty() {
                    return false;
                }
                self.bytes += change.bytes();
                index.changes.push((seq, change));
            }
        }
        self.newest = open_parts;
        if self.bytes > INDEX_BYTES_MAX {
            self.add_up();
        }
        true
    }

    /// Adds up the older half of the changes.
    fn add_up(&mut self) {
        let Some(index) = &mut self.index else { return };
        let half = index.changes.len().div_ceil(2);
        for (at, change) in index.changes.drain(..half) {
            change.apply(&mut index.base);
            index.since = at;
        }
        self.bytes = index.bytes();
        if self.bytes > INDEX_BYTES_MAX {
            // What is open at this one point is too much already.
            index.until = Some(index.since);
            index.changes.clear();
            self.bytes = index.bytes();
            self.state.lost = true;
        }
    }

    pub fn index(&self) -> Option<&ProjectionIndex<P::Mark>> {
        self.index.as_ref()
    }

    /// The projection behind the last event.
    pub fn projection(&self) -> &P {
        &self.state.projection
    }
}
