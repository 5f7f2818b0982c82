//! The store on Redis: each log is a stream, a hash for where it stands and its record, and a hash of items.
//!
//! ```text
//! commit ─▶ lane of its server: gather ─▶ one round trip: a script for each ─▶ (replicas) ─▶ answer, wake
//! read ───▶ shared connection: a script that says where the log stands and what it holds
//! wake ───▶ one subscribed connection for all logs that are waited for
//! follow ─▶ hot tail, which reads once for all readers after a wake-up
//! ```

mod act;
mod fleet;
mod follow;
mod hot;
mod index;
mod keys;
mod known;
mod lane;
mod listen;
mod options;
mod pulse;
mod reply;
mod script;
mod server;
mod sweep;
mod writing;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bowline_protocol::{Extent, LogId, Principal, Seq};
use bytes::Bytes;
use redis::Value;
use tokio::sync::{Mutex as Gate, Semaphore, mpsc};
use tokio::task::JoinHandle;

use self::act::Act;
use self::fleet::Fleet;
use self::hot::{Expected, Fetched, Hot, News};
use self::index::Index;
use self::keys::Keys;
use self::known::Known;
use self::listen::{Heard, Listener};
use self::pulse::Pulse;
use self::reply::{bytes, list, text};
use self::script::Script;
use self::writing::{RECORD_FIELDS, Written};
use crate::disk::COMMIT_BYTES_MAX;
use crate::disk::files::random_bits;
use crate::tail::Tails;
use crate::{
    Batch, Claim, Commit, Committed, Directory, EventLog, Fence, Health, Holder, Kind, Leased, ReadLimit, Record,
    Release, StoreError, TailGuard, Trimmed, WakeSet,
};

pub use options::{Address, RedisOptions, RedisUrl};

/// How many commits and leases may be under way; further ones wait where they are made.
const ERRANDS_MAX: usize = 4096;

/// How long the nodes' time is kept when none of them tells it any more. Then they are all gone, and what the next one
/// begins with is the time of Redis itself.
const TIME_KEPT_MS: u64 = 60_000;

/// Logs are spread over so many gates.
const GATES: usize = 64;

/// So many items are asked for in one command, so that none holds Redis up for long.
const ITEMS_AT_ONCE: usize = 1000;

/// Logs on Redis. Opened with [`RedisStore::open`].
pub struct RedisStore {
    fleet: Arc<Fleet>,
    keys: Keys,
    index: Index,
    known: Known,
    tails: Arc<Tails>,
    hot: Arc<Hot>,
    pulse: Arc<Pulse>,
    listener: mpsc::UnboundedSender<Heard>,
    /// Commits of one log pass their gate in the order in which they were called.
    gates: Vec<Gate<()>>,
    errands: Semaphore,
    /// Names this process in the ids of its commits.
    instance: u64,
    commits: AtomicU64,
    closed: AtomicBool,
    tasks: Vec<JoinHandle<()>>,
}

impl RedisStore {
    /// Connects, and fails if Redis cannot be used within the timeout.
    pub async fn open(options: RedisOptions) -> Result<RedisStore, StoreError> {
        let instance = random_bits().map_err(|error| StoreError::Io(error.to_string()))?;
        let keys = Keys::new(&options.url.prefix);
        let hot = Hot::new(options.hot_bytes);
        let fleet = Fleet::new(options);
        fleet.open().await?;
        let index = Index { fleet: fleet.clone(), keys: keys.clone() };
        let pulse = Arc::new(Pulse::default());
        pulse.note_logs(index.count_all().await?);
        let tails = Arc::new(Tails::default());
        let (listener, heard) = mpsc::unbounded_channel();
        let ear = Listener::new(fleet.clone(), keys.clone(), tails.clone(), hot.clone(), listener.downgrade());
        let tasks = vec![tokio::spawn(pulse.clone().run(index.clone())), tokio::spawn(ear.run(heard))];
        Ok(RedisStore {
            fleet,
            keys,
            index,
            known: Known::default(),
            tails,
            hot,
            pulse,
            listener,
            gates: (0..GATES).map(|_| Gate::new(())).collect(),
            errands: Semaphore::new(ERRANDS_MAX),
            instance,
            commits: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            tasks,
        })
    }

    fn check_open(&self) -> Result<(), StoreError> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(StoreError::Closed),
            false => Ok(()),
        }
    }

    /// Changes the head of a log, behind the writes to it that came before.
    async fn write(&self, log: &LogId, script: Script, args: [&str; 2]) -> Result<Value, StoreError> {
        self.check_open()?;
        let _errand = self.errands.acquire().await.map_err(|_| StoreError::Closed)?;
        let keys = self.keys.of(log);
        let act = args.into_iter().fold(Act::script(script, vec![keys.head()]), |act, arg| act.arg(arg.to_owned()));
        let answered = self.fleet.post(keys.slot).lane.send(log, act, false, self.fleet.options.timeout);
        answered.await.unwrap_or(Err(StoreError::Closed))
    }

    async fn apply(&self, commit: Commit) -> Result<Committed, StoreError> {
        let log = &commit.log;
        let keys = self.keys.of(log);
        let gate = self.gates[crc32fast::hash(log.as_str().as_bytes()) as usize % GATES].lock().await;
        if self.known.is_burnt(log, commit.fence) {
            return Err(StoreError::InDoubt("an earlier commit under this fence may still take effect".into()));
        }
        // Entered first, committed second, taken out third: see the index.
        let listed = commit.record.as_ref().map(|record| (record.kind, record.owner.clone()));
        let concerns_lists = commit.create.is_some() || commit.record.is_some();
        self.known.note_changes(self.fleet.changes());
        let mut entered = None;
        if concerns_lists
            && commit.release != Some(Release::Log)
            && (commit.create.is_some() || !self.known.is_listed(log, &listed))
        {
            entered = Some(self.index.enter(log, &listed).await?);
        }
        let leaving = match commit.release {
            Some(Release::Log) => Some(self.leaving(log).await?),
            _ => None,
        };
        let id = format!("{:x}.{};", self.instance, self.commits.fetch_add(1, Ordering::Relaxed));
        let act = writing::act(&commit, &keys, &self.fleet.options.retention, &id)?;
        let expected = Expected::begin(&self.hot, &self.tails, log, &id);
        let sent = self.fleet.post(keys.slot).lane.send(log, act, true, self.fleet.options.timeout);
        drop(gate);
        let answer = sent.await.unwrap_or(Err(StoreError::Closed));
        if matches!(answer, Err(StoreError::InDoubt(_))) {
            self.known.burn(log, commit.fence);
        }
        let written = answer.and_then(|answer| writing::read(log, commit.fence, answer));
        let Written { committed, was } = match written {
            Ok(written) => written,
            Err(error) => {
                expected.note_failed();
                if let Some(entries) = entered.filter(|_| !matches!(error, StoreError::InDoubt(_))) {
                    self.afterwards(self.index.leave(log, &listed, &entries).await);
                }
                if error == StoreError::NoSuchLog {
                    self.known.forget(log);
                }
                return Err(error);
            }
        };
        expected.note_done(&commit, &committed);
        match leaving {
            Some((listed, entries)) => {
                self.known.forget(log);
                self.pulse.note_released();
                self.afterwards(self.index.leave(log, &listed, &entries).await);
            }
            None if concerns_lists => {
                let was_there = entered.is_some_and(|entries| entries.contains(&None));
                if was_there && commit.create.is_some() {
                    // Somebody who removed an earlier log of this name may take this entry for the old one.
                    self.afterwards(self.index.enter(log, &listed).await.map(drop));
                }
                self.known.note_listed(log, listed.clone());
                if commit.create.is_some() {
                    self.pulse.note_created();
                } else if was != listed {
                    let entries = self.index.entries(log, &was).await;
                    match entries {
                        Ok(entries) => self.afterwards(self.index.leave(log, &was, &entries).await),
                        Err(error) => self.afterwards(Err(error)),
                    }
                }
            }
            None => {}
        }
        Ok(committed)
    }

    /// Where a log is listed that is about to go, and since when.
    async fn leaving(&self, log: &LogId) -> Result<(known::Listed, Vec<Option<u64>>), StoreError> {
        let listed = self.record(log).await?.map(|record| (record.kind, record.owner));
        let entries = self.index.entries(log, &listed).await?;
        Ok((listed, entries))
    }

    async fn tell_time(&self, own: &str) -> Result<Value, StoreError> {
        self.check_open()?;
        let act = Act::script(Script::Time, vec![self.keys.time()]);
        self.fleet.call(&act.arg(own.to_owned()).arg(TIME_KEPT_MS.to_string())).await
    }

    /// The commit stands, whatever became of the lists; the sweep puts them right.
    fn afterwards(&self, done: Result<(), StoreError>) {
        if let Err(error) = done {
            tracing::debug!(%error, "a list is put right later");
        }
    }
}

#[async_trait]
impl EventLog for RedisStore {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.check_open()?;
        let bytes = commit.len_hint();
        if bytes > COMMIT_BYTES_MAX {
            return Err(StoreError::TooLarge { bytes, max: COMMIT_BYTES_MAX });
        }
        commit.check_names()?;
        let _errand = self.errands.acquire().await.map_err(|_| StoreError::Closed)?;
        self.apply(commit).await
    }

    async fn read(&self, log: &LogId, from: Seq, limit: ReadLimit) -> Result<Batch, StoreError> {
        let Fetched { extent, events, .. } = self.fetch(log, from, limit).await?;
        self.hot.note_change(log, Some(&News::from(&extent)));
        Ok(Batch { events, epoch: extent.epoch, first: extent.first, next: extent.next })
    }

    async fn extent(&self, log: &LogId) -> Result<Extent, StoreError> {
        let extent = self.fetch_extent(log).await?;
        self.hot.note_change(log, Some(&News::from(&extent)));
        Ok(extent)
    }

    async fn glance(&self, log: &LogId) -> Result<Extent, StoreError> {
        self.glance_at(log).await
    }

    async fn follow(&self, log: &LogId, from: Seq, limit: ReadLimit) -> Result<Batch, StoreError> {
        self.follow_from(log, from, limit).await
    }

    fn tail(&self, log: &LogId, wake: &Arc<WakeSet>, token: u64) -> TailGuard {
        let guard = self.tails.subscribe(log, wake, token);
        // The listener ends only with the store.
        let _ = self.listener.send(Heard::Want(log.clone()));
        guard
    }

    async fn is_awaited(&self, log: &LogId) -> Result<bool, StoreError> {
        let channel = self.keys.of(log).channel();
        let act = Act::about("PUBSUB", &channel).arg("SHARDNUMSUB").arg(channel.clone().into_bytes());
        let Value::Array(told) = self.fleet.call(&act).await? else { return Ok(false) };
        Ok(told.into_iter().nth(1).is_some_and(|count| !matches!(count, Value::Int(0))))
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Whoever was under way is answered; each of them has a limited time.
        let _ = self.errands.acquire_many(ERRANDS_MAX as u32).await;
    }
}

#[async_trait]
impl Directory for RedisStore {
    async fn record(&self, log: &LogId) -> Result<Option<Record>, StoreError> {
        let act = RECORD_FIELDS.into_iter().fold(Act::command("HMGET", &self.keys.of(log).head()), Act::arg);
        Ok(writing::record(self.fleet.call(&act).await?))
    }

    async fn item(&self, log: &LogId, key: &str) -> Result<Option<Bytes>, StoreError> {
        let act = Act::command("HGET", &self.keys.of(log).items()).arg(key.to_owned());
        Ok(bytes(self.fleet.call(&act).await?))
    }

    async fn items(&self, log: &LogId, prefix: &str) -> Result<Vec<(String, Bytes)>, StoreError> {
        let keys = self.keys.of(log);
        let act = Act::script(Script::Items, vec![keys.head(), keys.items()]).arg(prefix.to_owned());
        let mut parts = list(self.fleet.call(&act).await?).into_iter();
        if parts.next().and_then(text).as_deref() == Some("none") {
            return Err(StoreError::NoSuchLog);
        }
        let mut found = parts.next().map(list).unwrap_or_default().into_iter();
        let mut items = Vec::new();
        while let (Some(key), Some(value)) = (found.next(), found.next()) {
            items.extend(text(key).zip(bytes(value)));
        }
        items.sort();
        Ok(items)
    }

    async fn items_at(&self, log: &LogId, keys: &[String]) -> Result<Vec<(String, Bytes)>, StoreError> {
        let mut found = Vec::with_capacity(keys.len());
        for keys in keys.chunks(ITEMS_AT_ONCE) {
            let act = Act::command("HMGET", &self.keys.of(log).items());
            let act = keys.iter().fold(act, |act, key| act.arg(key.clone()));
            let values = list(self.fleet.call(&act).await?);
            found.extend(keys.iter().zip(values).filter_map(|(key, value)| Some((key.clone(), bytes(value)?))));
        }
        Ok(found)
    }

    async fn list(&self, kind: Kind, owner: Option<&Principal>) -> Result<Vec<(LogId, Record)>, StoreError> {
        self.index.list(kind, owner).await
    }

    async fn count(&self, kind: Kind, owner: Option<&Principal>) -> Result<usize, StoreError> {
        self.index.count(kind, owner).await
    }

    async fn lease(&self, log: &LogId, claim: &Claim) -> Result<Leased, StoreError> {
        let instead_of = claim.instead_of.as_ref().map_or("", Holder::as_str);
        let answer = self.write(log, Script::Lease, [claim.by.as_str(), instead_of]).await?;
        let mut parts = list(answer).into_iter().filter_map(text);
        match (parts.next().as_deref(), parts.next()) {
            (Some("none"), _) => Err(StoreError::NoSuchLog),
            (Some("held"), Some(by)) => Ok(Leased::Held(Holder::parse(&by).ok_or_else(strange)?)),
            (Some("done"), Some(granted)) => {
                self.known.note_lease(log);
                Ok(Leased::Granted(Fence(granted.parse().map_err(|_| strange())?)))
            }
            _ => Err(strange()),
        }
    }

    async fn give_back(&self, log: &LogId, by: &Holder, fence: Fence) -> Result<(), StoreError> {
        self.write(log, Script::GiveBack, [by.as_str(), &fence.0.to_string()]).await.map(drop)
    }

    async fn holder(&self, log: &LogId) -> Result<Option<Holder>, StoreError> {
        let act = Act::command("HGET", &self.keys.of(log).head()).arg("h");
        Ok(text(self.fleet.call(&act).await?).as_deref().and_then(Holder::parse))
    }

    async fn sweep(&self, now_ms: u64) -> Result<Vec<Trimmed>, StoreError> {
        self.check_open()?;
        let trimmed = sweep::sweep(&self.index, &self.known, &self.fleet.options.retention, now_ms).await?;
        for Trimmed { log, .. } in &trimmed {
            self.hot.note_change(log, None);
            self.tails.wake(log);
        }
        Ok(trimmed)
    }

    async fn shared_time(&self) -> Result<Option<u64>, StoreError> {
        let said = self.tell_time("").await?;
        Ok(text(said).and_then(|ms| ms.parse().ok()))
    }

    async fn share_time(&self, now_ms: u64) -> Result<(), StoreError> {
        self.tell_time(&now_ms.to_string()).await.map(drop)
    }

    fn health(&self) -> Health {
        self.pulse.health(&self.fleet)
    }
}

fn strange() -> StoreError {
    StoreError::Io("Redis answered with something strange".into())
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisStore({})", self.fleet.options.url)
    }
}
