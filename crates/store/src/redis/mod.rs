//! The store on Redis: each log is a stream, a hash for where it stands and its record, and a hash of items.
//!
//! ```text
//! commit ─▶ write queue of its server: gather ─▶ one round trip: a script for each ─▶ (replicas) ─▶ answer, wake
//! read ───▶ shared connection: a script that says where the log stands and what it holds
//! wake ───▶ one subscribed connection for all logs that are waited for
//! follow ─▶ follower cache, which reads once for all readers after a wake-up
//! ```
//!
//! **A log** is a stream whose ids are our numbers, a hash that says where it stands and holds its record, and a hash
//! of items. Their keys share the log's name as hash tag, so they lie in one slot and one Lua script may change them
//! all. The script checks everything that can refuse a commit before its first write, because Redis undoes nothing. It
//! writes the numbers into the events itself: only the log knows them.
//!
//! **A write queue** per server takes what is queued, at most one operation for each log, sends it in one piece and
//! waits. When an answer is lost, the log's newest commit is thus the only one in doubt, and the log remembers that one
//! by its id: sent again, it is answered as it was. If its time runs out first, the caller gets `InDoubt`, and its
//! fence is burnt: a writer that wants to go on needs a new lease, which shuts the doubtful commit out wherever it may still
//! be under way, and then looks. A session or task whose commit is in doubt begins anew from the store, as after a
//! crash. The crate's own cluster client repeats what it lost, which would commit twice; that is why slots are routed
//! here.
//!
//! **An epoch holds within one life of one server.** Each head notes who wrote it last: the server's run id and
//! replication id, and whether it synced before it answered. A commit that comes through another life gives the log a
//! new epoch, unless the last one synced first and this one began from its own file. So a restart from an old snapshot,
//! or the promotion of a replica that lagged, can give out no number twice. A writer under a lease says behind which
//! commit it writes. If that one went with another life, what the writer believes is not what is stored: its commit is
//! refused as one in doubt, and it begins anew from what is there. Fences are microseconds of Redis's clock, so that
//! those from before a `FLUSHALL` are shut out too.
//!
//! **Lists** of logs, by kind and by owner, lie in slots of their own and cannot change together with a log. A log is
//! entered before the commit that makes it belong there and taken out after the one that ends that. A crash in between
//! leaves an entry too many, never one too few; lists are checked against the records, and the sweep removes what has
//! been wrong for ten minutes. An entry has the time it was made, and is only removed by a node that saw that time: a log
//! that is made again under the same name meanwhile stays listed.
//!
//! **Wake-ups** come over sharded channels, one for each log, on one connection per server and node. Blocking reads of
//! thousands of streams, or one channel that carries every commit to every node, would cost Redis more. A reader that has
//! just been subscribed is woken once, and every five seconds the logs that are waited for are looked at, because Redis
//! does not repeat what it published before a subscription.
//!
//! **The follower cache** is for those who follow a log. What was read after the last wake-up is served to all of them
//! until the next one, so a thousand readers of a log cost Redis one read for each commit; those on the node that
//! commits cost none, because what it has just stored need not be read. Only logs whose wake-ups arrive are kept, up to
//! 64 MiB of events: when the connection is lost, so is everything that was known by it. Wake-ups say how far the log
//! has come, only to spare a reader that knows that already a look. All other reads ask Redis, which alone knows whether the
//! log is still what it was: `read` and `extent` are the truth, `follow` and `glance` are at least as new as the
//! reader's last wake-up, and as anything that this node has read.

#[cfg(feature = "testing")]
mod any_reply;
mod commit_script;
mod follow;
mod follower_cache;
mod health;
mod index;
mod keys;
mod listen;
mod local_cache;
mod operation;
mod options;
mod reply;
mod script;
mod server;
mod sweep;
mod topology;
mod write_queue;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bowline_env::entropy;
use bowline_protocol::{Extent, LogId, Principal, Seq};
use bytes::Bytes;
use redis::Value;
use tokio::sync::{Mutex as Gate, Semaphore, mpsc};
use tokio::task::JoinHandle;

use self::commit_script::{RECORD_FIELDS, ScriptReply};
use self::follower_cache::{Expected, Fetched, FollowerCache, News};
use self::health::HealthMonitor;
use self::index::Index;
use self::keys::RedisKeys;
use self::listen::{ListenerCommand, RedisListener};
use self::local_cache::LocalCache;
use self::operation::RedisOperation;
use self::reply::{bytes, list, text};
use self::script::Script;
use self::topology::Topology;
use crate::disk::COMMIT_BYTES_MAX;
use crate::follow::Tails;
use crate::{
    Batch, Claim, Commit, Committed, Directory, EventLog, Fence, Health, Holder, Leased, LogKind, ReadLimit, Record,
    Release, StoreError, TailGuard, Trimmed, WakeSet,
};

#[cfg(feature = "testing")]
#[doc(hidden)]
pub use any_reply::read_any_reply;
pub use options::{HostPort, RedisOptions, RedisUrl};

/// How many commits and leases may be under way; further ones wait where they are made.
const WRITES_MAX: usize = 4096;

/// How long the nodes' time is kept when none of them tells it any more. Then they are all gone, and what the next one
/// begins with is the time of Redis itself.
const TIME_KEPT_MS: u64 = 60_000;

/// Logs are spread over so many gates.
const GATES: usize = 64;

/// So many items are asked for in one command, so that none holds Redis up for long.
const ITEMS_AT_ONCE: usize = 1000;

/// Logs on Redis. Opened with [`RedisStore::open`].
pub struct RedisStore {
    topology: Arc<Topology>,
    keys: RedisKeys,
    index: Index,
    local: LocalCache,
    tails: Arc<Tails>,
    cache: Arc<FollowerCache>,
    health: Arc<HealthMonitor>,
    listener: mpsc::UnboundedSender<ListenerCommand>,
    /// Commits of one log pass their gate in the order in which they were called.
    gates: Vec<Gate<()>>,
    permits: Semaphore,
    /// Names this process in the ids of its commits.
    instance: u64,
    commits: AtomicU64,
    closed: AtomicBool,
    tasks: Vec<JoinHandle<()>>,
}

impl RedisStore {
    /// Connects, and fails if Redis cannot be used within the timeout.
    pub async fn open(options: RedisOptions) -> Result<RedisStore, StoreError> {
        let instance = entropy::u64();
        let keys = RedisKeys::new(&options.url.prefix);
        let cache = FollowerCache::new(options.cache_bytes);
        let topology = Topology::new(options);
        topology.open().await?;
        let index = Index { topology: topology.clone(), keys: keys.clone() };
        let health = Arc::new(HealthMonitor::default());
        health.note_logs(index.count_all().await?);
        let tails = Arc::new(Tails::default());
        let (listener, heard) = mpsc::unbounded_channel();
        let ear =
            RedisListener::new(topology.clone(), keys.clone(), tails.clone(), cache.clone(), listener.downgrade());
        let tasks = vec![tokio::spawn(health.clone().run(index.clone())), tokio::spawn(ear.run(heard))];
        Ok(RedisStore {
            topology,
            keys,
            index,
            local: LocalCache::default(),
            tails,
            cache,
            health,
            listener,
            gates: (0..GATES).map(|_| Gate::new(())).collect(),
            permits: Semaphore::new(WRITES_MAX),
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
        let _permit = self.permits.acquire().await.map_err(|_| StoreError::Closed)?;
        let keys = self.keys.of(log);
        let operation = args
            .into_iter()
            .fold(RedisOperation::script(script, vec![keys.head()]), |operation, arg| operation.arg(arg.to_owned()));
        let answered = self.topology.master(keys.slot).queue.send(log, operation, false, self.topology.options.timeout);
        answered.await.unwrap_or(Err(StoreError::Closed))
    }

    async fn apply(&self, commit: Commit) -> Result<Committed, StoreError> {
        let log = &commit.log;
        let keys = self.keys.of(log);
        let gate = self.gates[crc32fast::hash(log.as_str().as_bytes()) as usize % GATES].lock().await;
        if self.local.is_burnt(log, commit.fence) {
            return Err(StoreError::InDoubt("an earlier commit under this fence may still take effect".into()));
        }
        // Entered first, committed second, taken out third: see the index.
        let listed = commit.record.as_ref().map(|record| (record.kind, record.owner.clone()));
        let concerns_lists = commit.create.is_some() || commit.record.is_some();
        self.local.note_changes(self.topology.changes());
        let mut entered = None;
        if concerns_lists
            && commit.release != Some(Release::Log)
            && (commit.create.is_some() || !self.local.is_listed(log, &listed))
        {
            entered = Some(self.index.enter(log, &listed).await?);
        }
        let leaving = match commit.release {
            Some(Release::Log) => Some(self.leaving(log).await?),
            _ => None,
        };
        let nth = self.commits.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:x}.{nth};", self.instance);
        let after = self.local.last_commit(log, commit.fence);
        let operation = commit_script::operation(&commit, &keys, &self.topology.options.retention, (&id, after))?;
        let expected = Expected::begin(&self.cache, &self.tails, log, &id);
        let sent = self.topology.master(keys.slot).queue.send(log, operation, true, self.topology.options.timeout);
        drop(gate);
        let answer = sent.await.unwrap_or(Err(StoreError::Closed));
        let written = answer.and_then(|answer| commit_script::read(log, commit.fence, answer));
        match &written {
            Err(StoreError::InDoubt(_)) => self.local.burn(log, commit.fence),
            Err(StoreError::StaleFence { .. }) => self.local.forget_commits(log),
            Ok(_) if commit.release == Some(Release::Log) => self.local.forget_commits(log),
            Ok(_) => self.local.note_commit(log, commit.fence, nth, &id),
            Err(_) => {}
        }
        let ScriptReply { committed, was } = match written {
            Ok(written) => written,
            Err(error) => {
                expected.note_failed();
                if let Some(entries) = entered.filter(|_| !matches!(error, StoreError::InDoubt(_))) {
                    self.afterwards(self.index.leave(log, &listed, &entries).await);
                }
                if error == StoreError::NoSuchLog {
                    self.local.forget(log);
                }
                return Err(error);
            }
        };
        expected.note_done(&commit, &committed);
        match leaving {
            Some((listed, entries)) => {
                self.local.forget(log);
                self.health.note_released();
                self.afterwards(self.index.leave(log, &listed, &entries).await);
            }
            None if concerns_lists => {
                let was_there = entered.is_some_and(|entries| entries.contains(&None));
                if was_there && commit.create.is_some() {
                    // A node that removed an earlier log of this name may take this entry for the old one.
                    self.afterwards(self.index.enter(log, &listed).await.map(drop));
                }
                self.local.note_listed(log, listed.clone());
                if commit.create.is_some() {
                    self.health.note_created();
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
    async fn leaving(&self, log: &LogId) -> Result<(local_cache::Listed, Vec<Option<u64>>), StoreError> {
        let listed = self.record(log).await?.map(|record| (record.kind, record.owner));
        let entries = self.index.entries(log, &listed).await?;
        Ok((listed, entries))
    }

    async fn tell_time(&self, own: &str) -> Result<Value, StoreError> {
        self.check_open()?;
        let operation = RedisOperation::script(Script::Time, vec![self.keys.time()]);
        self.topology.call(&operation.arg(own.to_owned()).arg(TIME_KEPT_MS.to_string())).await
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
        let _permit = self.permits.acquire().await.map_err(|_| StoreError::Closed)?;
        self.apply(commit).await
    }

    async fn read(&self, log: &LogId, from: Seq, limit: ReadLimit) -> Result<Batch, StoreError> {
        let Fetched { extent, events, .. } = self.fetch(log, from, limit).await?;
        self.cache.note_change(log, Some(&News::from(&extent)));
        Ok(Batch { events, epoch: extent.epoch, first: extent.first, next: extent.next })
    }

    async fn extent(&self, log: &LogId) -> Result<Extent, StoreError> {
        let extent = self.fetch_extent(log).await?;
        self.cache.note_change(log, Some(&News::from(&extent)));
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
        let _ = self.listener.send(ListenerCommand::Want(log.clone()));
        guard
    }

    async fn is_awaited(&self, log: &LogId) -> Result<bool, StoreError> {
        let channel = self.keys.of(log).channel();
        let operation = RedisOperation::about("PUBSUB", &channel).arg("SHARDNUMSUB").arg(channel.clone().into_bytes());
        let Value::Array(reply) = self.topology.call(&operation).await? else { return Ok(false) };
        Ok(reply.into_iter().nth(1).is_some_and(|count| !matches!(count, Value::Int(0))))
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Commits under way are answered; each of them has a limited time.
        let _ = self.permits.acquire_many(WRITES_MAX as u32).await;
    }
}

#[async_trait]
impl Directory for RedisStore {
    async fn record(&self, log: &LogId) -> Result<Option<Record>, StoreError> {
        let operation = RECORD_FIELDS
            .into_iter()
            .fold(RedisOperation::command("HMGET", &self.keys.of(log).head()), RedisOperation::arg);
        Ok(commit_script::record(self.topology.call(&operation).await?))
    }

    async fn item(&self, log: &LogId, key: &str) -> Result<Option<Bytes>, StoreError> {
        let operation = RedisOperation::command("HGET", &self.keys.of(log).items()).arg(key.to_owned());
        Ok(bytes(self.topology.call(&operation).await?))
    }

    async fn items(&self, log: &LogId, prefix: &str) -> Result<Vec<(String, Bytes)>, StoreError> {
        let keys = self.keys.of(log);
        let operation = RedisOperation::script(Script::Items, vec![keys.head(), keys.items()]).arg(prefix.to_owned());
        let mut parts = list(self.topology.call(&operation).await?).into_iter();
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
            let operation = RedisOperation::command("HMGET", &self.keys.of(log).items());
            let operation = keys.iter().fold(operation, |operation, key| operation.arg(key.clone()));
            let values = list(self.topology.call(&operation).await?);
            found.extend(keys.iter().zip(values).filter_map(|(key, value)| Some((key.clone(), bytes(value)?))));
        }
        Ok(found)
    }

    async fn list(&self, kind: LogKind, owner: Option<&Principal>) -> Result<Vec<(LogId, Record)>, StoreError> {
        self.index.list(kind, owner).await
    }

    async fn count(&self, kind: LogKind, owner: Option<&Principal>) -> Result<usize, StoreError> {
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
                let fence = Fence(granted.parse().map_err(|_| strange())?);
                self.local.note_lease(log, fence, parts.next());
                Ok(Leased::Granted(fence))
            }
            _ => Err(strange()),
        }
    }

    async fn give_back(&self, log: &LogId, by: &Holder, fence: Fence) -> Result<(), StoreError> {
        self.local.forget_commits(log);
        self.write(log, Script::GiveBack, [by.as_str(), &fence.0.to_string()]).await.map(drop)
    }

    async fn holder(&self, log: &LogId) -> Result<Option<Holder>, StoreError> {
        let operation = RedisOperation::command("HGET", &self.keys.of(log).head()).arg("h");
        Ok(text(self.topology.call(&operation).await?).as_deref().and_then(Holder::parse))
    }

    async fn sweep(&self, now_ms: u64) -> Result<Vec<Trimmed>, StoreError> {
        self.check_open()?;
        let trimmed = sweep::sweep(&self.index, &self.local, &self.topology.options.retention, now_ms).await?;
        for Trimmed { log, .. } in &trimmed {
            self.cache.note_change(log, None);
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
        self.health.health(&self.topology)
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
        write!(f, "RedisStore({})", self.topology.options.url)
    }
}
