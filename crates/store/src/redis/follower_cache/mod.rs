//! The newest events of logs that are followed here, in memory, so that a thousand readers of one log cost Redis one read
//! for each change and not a thousand.
//!
//! What is here was read after the last wake-up of its log, and is served until the next one. So only those logs are here
//! whose wake-ups arrive: an entry is made when a log is subscribed to, and gone when the connection is. Commits of this
//! node add what they have just stored. A log is asked for by one reader at a time, and all others wait for its answer.

mod news;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use bowline_protocol::{Extent, LogId, Recorded, Seq};
use tokio::sync::watch;

use crate::sync::{Mutex, lock};
use crate::{Batch, Commit, Committed, ReadLimit, StoreError};

pub use news::{Expected, News};

/// So that one busy log does not drive out all others. A reader that is further behind asks Redis.
const LOG_BYTES_MAX: usize = 4 << 20;
/// What an event costs beside its bytes, about.
const EVENT_OVERHEAD: usize = 64;

/// What a flight came to: nothing yet, what is now in memory, or why not.
type FlightOutcome = Option<Result<(), StoreError>>;

pub struct FollowerCache {
    logs: Mutex<CachedLogs>,
    /// Commits of this node that are under way. They report what they change.
    own: Mutex<HashSet<String>>,
    bytes_max: usize,
}

#[derive(Default)]
struct CachedLogs {
    /// Counts changes of all logs, so that moments can be compared although entries come and go.
    clock: u64,
    entries: HashMap<LogId, CacheEntry>,
    /// What came in, oldest first: up to where, and how many bytes. Some of it may have gone with its entry.
    order: VecDeque<(LogId, Seq, usize)>,
    bytes: usize,
}

struct CacheEntry {
    /// When the log was last said to have changed.
    changed: u64,
    state: State,
    flight: Option<(u64, watch::Receiver<FlightOutcome>)>,
}

enum State {
    Unknown,
    /// It was not there.
    Gone {
        asked: u64,
    },
    Known(Known),
}

/// What a log held when it was asked for, at or after that moment.
struct Known {
    asked: u64,
    extent: Extent,
    /// The number behind the last event here.
    end: Seq,
    events: VecDeque<Recorded>,
    bytes: usize,
}

/// What can be said of a log from memory.
pub enum CacheAnswer<T> {
    /// Nothing: Redis must be asked.
    Cold,
    Warm(Result<T, StoreError>),
    /// A fetch is under way; look again when it is done.
    Wait(watch::Receiver<FlightOutcome>),
    /// Ask Redis for this, and tell [`Flight::land`]; all others wait for it.
    Fetch(Flight),
}

/// What memory has for one reader.
enum CachedPart<T> {
    Here(T),
    /// It ends before what this reader wants, and can be read on.
    Short,
    Elsewhere,
}

/// What was read of a log.
pub struct Fetched {
    pub extent: Extent,
    /// The number of the first event, if there is one.
    pub from: Seq,
    pub events: Vec<Recorded>,
}

impl FollowerCache {
    pub fn new(bytes_max: usize) -> Arc<FollowerCache> {
        Arc::new(FollowerCache { logs: Mutex::default(), own: Mutex::default(), bytes_max })
    }

    /// What one log may take of it.
    fn log_bytes_max(&self) -> usize {
        LOG_BYTES_MAX.min(self.bytes_max / 4)
    }

    /// From now on wake-ups of these logs arrive. What was there before them is not known yet.
    pub fn note_subscribed(&self, logs: &[LogId]) {
        let mut cache = lock(&self.logs);
        for log in logs {
            cache.clock += 1;
            let entry = CacheEntry { changed: cache.clock, state: State::Unknown, flight: None };
            cache.entries.insert(log.clone(), entry);
        }
    }

    pub fn note_unsubscribed(&self, log: &LogId) {
        lock(&self.logs).entries.remove(log);
    }

    /// No wake-up arrives any more.
    pub fn clear(&self) {
        let mut cache = lock(&self.logs);
        (cache.entries, cache.order, cache.bytes) = Default::default();
    }

    /// The log has changed, or may have. News that are known already change nothing.
    pub fn note_change(&self, log: &LogId, news: Option<&News>) {
        lock(&self.logs).note_change(log, news);
    }

    /// Whether this is a commit of this node, which tells itself what it did.
    pub fn is_expected(&self, id: &str) -> bool {
        lock(&self.own).contains(id)
    }

    /// What was committed here needs not be read again.
    fn note_commit(&self, commit: &Commit, done: &Committed) {
        let mut cache = lock(&self.logs);
        let Some(entry) = cache.entries.get_mut(&commit.log) else { return };
        let plain = commit.create.is_none() && commit.release.is_none();
        let State::Known(known) = &mut entry.state else { return cache.note_change(&commit.log, None) };
        let first = done.trimmed.as_ref().map_or(known.extent.first, |trimmed| trimmed.to);
        if !plain || known.extent.epoch != done.epoch || known.extent.next != done.first {
            let news = News { epoch: done.epoch.clone(), first, next: done.next };
            return cache.note_change(&commit.log, Some(&news).filter(|_| plain));
        }
        known.extent.next = done.next;
        let numbered = |(n, event): (usize, &bowline_protocol::Unnumbered)| {
            let seq = Seq::new(done.first.get() + n as u64)?;
            Some(Recorded { seq, bytes: event.number(&done.epoch, seq) })
        };
        let events = match known.end == done.first {
            true => commit.events.iter().enumerate().filter_map(numbered).collect(),
            false => Vec::new(),
        };
        let came = known.take_in(first, events, self.log_bytes_max());
        cache.note_bytes(&commit.log, came, self.bytes_max);
    }

    /// Where the log stood at the last wake-up, or later. `since` is when the reader began to ask; it is filled in.
    pub fn extent(self: &Arc<Self>, log: &LogId, since: &mut Option<u64>) -> CacheAnswer<Extent> {
        self.look(log, since, |known| CachedPart::Here(known.extent.clone()))
    }

    pub fn read(
        self: &Arc<Self>,
        log: &LogId,
        since: &mut Option<u64>,
        from: Seq,
        limit: ReadLimit,
    ) -> CacheAnswer<Batch> {
        self.look(log, since, |known| known.read(from, limit))
    }

    fn look<T>(
        self: &Arc<Self>,
        log: &LogId,
        since: &mut Option<u64>,
        part: impl Fn(&Known) -> CachedPart<T>,
    ) -> CacheAnswer<T> {
        let mut cache = lock(&self.logs);
        let Some(entry) = cache.entries.get_mut(log) else { return CacheAnswer::Cold };
        let since = *since.get_or_insert(entry.changed);
        let mut from = None;
        match &entry.state {
            State::Gone { asked } if *asked >= since => return CacheAnswer::Warm(Err(StoreError::NoSuchLog)),
            State::Known(known) if known.asked >= since => match part(known) {
                CachedPart::Here(found) => return CacheAnswer::Warm(Ok(found)),
                CachedPart::Elsewhere => return CacheAnswer::Cold,
                CachedPart::Short => from = Some(known.end),
            },
            State::Known(known) => from = Some(known.end),
            State::Gone { .. } | State::Unknown => {}
        }
        if let Some((_, landed)) = &entry.flight {
            return CacheAnswer::Wait(landed.clone());
        }
        let (tell, landed) = watch::channel(None);
        let asked = entry.changed;
        cache.clock += 1;
        let id = cache.clock;
        if let Some(entry) = cache.entries.get_mut(log) {
            entry.flight = Some((id, landed));
        }
        CacheAnswer::Fetch(Flight { cache: self.clone(), log: log.clone(), id, asked, from, tell })
    }

    fn land(&self, log: &LogId, id: u64, asked: u64, fetched: Result<Fetched, StoreError>) -> Result<(), StoreError> {
        let mut cache = lock(&self.logs);
        let entry = cache.entries.get_mut(log).filter(|entry| entry.flight.as_ref().is_some_and(|(own, _)| *own == id));
        // Subscribed anew in the meantime: what was read before that may be old.
        let Some(entry) = entry else { return fetched.map(drop) };
        entry.flight = None;
        match fetched {
            Ok(Fetched { extent, from, events }) => {
                let known = match &mut entry.state {
                    State::Known(known) if known.extent.epoch == extent.epoch && from <= known.end => {
                        known.extent.next = known.extent.next.max(extent.next);
                        known
                    }
                    state => {
                        *state = State::Known(Known {
                            asked,
                            extent: extent.clone(),
                            end: from.min(extent.next),
                            events: VecDeque::new(),
                            bytes: 0,
                        });
                        let State::Known(known) = state else { return Ok(()) };
                        known
                    }
                };
                known.asked = asked;
                let came = known.take_in(extent.first, events, self.log_bytes_max());
                cache.note_bytes(log, came, self.bytes_max);
                Ok(())
            }
            Err(StoreError::NoSuchLog) => {
                entry.state = State::Gone { asked };
                Err(StoreError::NoSuchLog)
            }
            Err(error) => Err(error),
        }
    }
}

impl CachedLogs {
    fn note_change(&mut self, log: &LogId, news: Option<&News>) {
        let Some(entry) = self.entries.get_mut(log) else { return };
        let known = match &entry.state {
            State::Known(known) => news.is_some_and(|news| known.has(news)),
            State::Unknown | State::Gone { .. } => false,
        };
        if !known {
            self.clock += 1;
            entry.changed = self.clock;
        }
    }

    /// Something came in for this log; what came first makes room for it.
    fn note_bytes(&mut self, log: &LogId, came: Option<(Seq, usize)>, bytes_max: usize) {
        let Some((end, bytes)) = came else { return };
        self.order.push_back((log.clone(), end, bytes));
        self.bytes += bytes;
        while self.bytes > bytes_max
            && let Some((log, end, bytes)) = self.order.pop_front()
        {
            self.bytes -= bytes;
            if let Some(CacheEntry { state: State::Known(known), .. }) = self.entries.get_mut(&log) {
                known.forget_before(end);
            }
        }
    }
}

impl Known {
    /// Within one epoch a log only grows at its end and shrinks at its beginning.
    fn has(&self, news: &News) -> bool {
        self.extent.epoch == news.epoch && news.next <= self.extent.next && news.first <= self.extent.first
    }

    /// Takes in events that follow those which are here, or overlap with them. Says up to where and how much that was.
    fn take_in(&mut self, first: Seq, events: Vec<Recorded>, bytes_max: usize) -> Option<(Seq, usize)> {
        let mut came = 0;
        for event in events {
            if event.seq == self.end {
                self.end = event.seq.next();
                came += cost(&event);
                self.events.push_back(event);
            }
        }
        self.bytes += came;
        self.extent.first = self.extent.first.max(first);
        self.end = self.end.max(self.extent.first);
        self.forget_before(self.extent.first);
        while self.bytes > bytes_max {
            self.forget_one();
        }
        (came > 0).then_some((self.end, came))
    }

    fn forget_before(&mut self, seq: Seq) {
        while self.events.front().is_some_and(|event| event.seq < seq) {
            self.forget_one();
        }
    }

    fn forget_one(&mut self) {
        self.bytes -= self.events.pop_front().as_ref().map_or(self.bytes, cost);
    }

    fn read(&self, from: Seq, limit: ReadLimit) -> CachedPart<Batch> {
        let Extent { epoch, first, next, .. } = &self.extent;
        if from >= *next {
            // The reader knows of more events than the cache, from elsewhere.
            return CachedPart::Elsewhere;
        }
        let from = from.max(*first);
        let begin = self.events.front().map_or(self.end, |event| event.seq);
        let mut events = Vec::new();
        if from < *next {
            if from == self.end {
                return CachedPart::Short;
            }
            if !(begin..self.end).contains(&from) {
                return CachedPart::Elsewhere;
            }
            let mut bytes = 0;
            for event in self.events.range(begin.until(from) as usize..).take(limit.events) {
                bytes += event.bytes.len();
                if !events.is_empty() && bytes > limit.bytes {
                    break;
                }
                events.push(event.clone());
            }
        }
        CachedPart::Here(Batch { events, epoch: epoch.clone(), first: *first, next: *next })
    }
}

fn cost(event: &Recorded) -> usize {
    event.bytes.len() + EVENT_OVERHEAD
}

/// One fetch from Redis for all readers that wait. If it is dropped without an answer, another reader fetches.
pub struct Flight {
    cache: Arc<FollowerCache>,
    log: LogId,
    id: u64,
    asked: u64,
    /// From where on to read; without it, only where the log stands is asked.
    pub from: Option<Seq>,
    tell: watch::Sender<FlightOutcome>,
}

impl Flight {
    pub fn land(self, fetched: Result<Fetched, StoreError>) -> Result<(), StoreError> {
        let landed = self.cache.land(&self.log, self.id, self.asked, fetched);
        self.tell.send_replace(Some(landed.clone()));
        landed
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut cache = lock(&self.cache.logs);
        if let Some(entry) = cache.entries.get_mut(&self.log)
            && entry.flight.as_ref().is_some_and(|(own, _)| *own == self.id)
        {
            entry.flight = None;
        }
    }
}

impl fmt::Debug for FollowerCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cache = lock(&self.logs);
        write!(f, "FollowerCache({} logs, {} bytes)", cache.entries.len(), cache.bytes)
    }
}

#[cfg(test)]
mod tests;
