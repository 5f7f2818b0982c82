//! The memory of Bowline: append-only logs of events, and a directory of what they are for.
//!
//! No HTTP and no rules live here. All stores owe the same promises and pass the same [`contract`] suite.

pub mod budget;
pub mod clock;
pub mod commit;
#[doc(hidden)]
pub mod contract;
pub mod disk;
pub mod follow;
pub mod memory;
pub mod redis;
pub mod tail;
pub mod writer;

use std::sync::Arc;

use async_trait::async_trait;
use bowline_protocol::{Extent, LogId, Principal, Seq};
use bytes::Bytes;

pub use budget::ReadBudget;
pub use clock::Clock;
pub use commit::{
    Batch, Claim, Commit, Committed, Fence, Holder, Item, Kind, Leased, ReadLimit, Record, Release, Start, StoreError,
    Trimmed,
};
pub use disk::{DiskOptions, DiskStore, OpenError, OpenReport};
pub use follow::{FollowError, Follower};
pub use redis::{RedisOptions, RedisStore, RedisUrl};
pub use tail::{TailGuard, WakeSet};
pub use writer::{Changed, LeasedLog, Lessor, SharedLessor};

/// Append-only logs with numbered events.
///
/// What an implementor owes:
/// - **Stored before visible.** When [`commit`](EventLog::commit) returns `Ok`, its events survive whatever the store's
///   durability setting promises, and only then can [`read`](EventLog::read) return them.
/// - **All or nothing.** The events, the record and the items of one commit become visible together or not at all,
///   also across a crash.
/// - **Numbered once.** Numbers follow each other without holes within an epoch and are never given to other content.
/// - **Fenced.** A commit whose fence is lower than one already seen for its log changes nothing.
/// - **Wake-ups carry no truth.** They may come late, merged or twice; a reader looks at the extent after each.
#[async_trait]
pub trait EventLog: Send + Sync {
    /// Makes one change to one log. Commits of one log take effect in the order in which this was *called*.
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError>;

    /// Reads events from `from` on. The batch says where the log now begins, so that a reader that was trimmed past
    /// sees the hole. Reading at or past the end gives an empty batch.
    async fn read(&self, log: &LogId, from: Seq, limit: ReadLimit) -> Result<Batch, StoreError>;

    /// What the log holds now.
    async fn extent(&self, log: &LogId) -> Result<Extent, StoreError>;

    /// [`extent`](EventLog::extent) for those who hold a [`tail`](EventLog::tail) of this log: at least as new as their last
    /// wake-up, and if it is older than the log, they will be woken. All who follow a log may share one answer.
    async fn glance(&self, log: &LogId) -> Result<Extent, StoreError> {
        self.extent(log).await
    }

    /// [`read`](EventLog::read) in the same way. What is read was in the log at or after the last wake-up.
    async fn follow(&self, log: &LogId, from: Seq, limit: ReadLimit) -> Result<Batch, StoreError> {
        self.read(log, from, limit).await
    }

    /// Wakes `wake` with `token` whenever the log changes, until the guard is dropped.
    /// Subscribe first, then look at the extent once: the other order has a race.
    fn tail(&self, log: &LogId, wake: &Arc<WakeSet>, token: u64) -> TailGuard;

    /// Whether anybody has a [`tail`](EventLog::tail) on this log, in any process that shares the store. A new one may take
    /// a moment to count, and so may one that was dropped; those of a process that dies end with it.
    async fn is_awaited(&self, log: &LogId) -> Result<bool, StoreError>;

    /// Stops taking commits, makes what was taken durable, and returns.
    async fn close(&self);
}

/// What the logs are for, and small durable facts beside them. Changes go through [`EventLog::commit`].
#[async_trait]
pub trait Directory: Send + Sync {
    async fn record(&self, log: &LogId) -> Result<Option<Record>, StoreError>;

    /// One item, by its exact key.
    async fn item(&self, log: &LogId, key: &str) -> Result<Option<Bytes>, StoreError>;

    /// All items whose key starts with `prefix`, in the order of their keys.
    async fn items(&self, log: &LogId, prefix: &str) -> Result<Vec<(String, Bytes)>, StoreError>;

    /// The items under these keys, as far as they are there, in the order in which they were asked for. Like
    /// [`item`](Directory::item), it finds none in a log that is not there.
    async fn items_at(&self, log: &LogId, keys: &[String]) -> Result<Vec<(String, Bytes)>, StoreError>;

    /// Records of one kind, of one owner or of all, in no particular order.
    async fn list(&self, kind: Kind, owner: Option<&Principal>) -> Result<Vec<(LogId, Record)>, StoreError>;

    /// How many records [`list`](Directory::list) would give, without fetching them.
    async fn count(&self, kind: Kind, owner: Option<&Principal>) -> Result<usize, StoreError>;

    /// The right to write to a log, if nobody holds it, or the claimant does, or the one whom it names. Each grant is
    /// higher than all before it, and shuts the earlier ones out.
    ///
    /// The holder is who was granted the newest fence. So nobody holds a log that was written under a higher fence
    /// than was granted, as it may be after the store lost what it knew; and nobody holds a log of a store that one
    /// process has to itself, when that process begins.
    async fn lease(&self, log: &LogId, claim: &Claim) -> Result<Leased, StoreError>;

    /// Gives the right back if it is still `by`'s under that fence; nobody holds the log then. Its fence is not shut
    /// out by that, but by the next grant.
    async fn give_back(&self, log: &LogId, by: &Holder, fence: Fence) -> Result<(), StoreError>;

    /// Who holds the log, if anybody does.
    async fn holder(&self, log: &LogId) -> Result<Option<Holder>, StoreError>;

    /// Trims everything older than the retention allows at `now_ms` and frees what nobody can read any more.
    async fn sweep(&self, now_ms: u64) -> Result<Vec<Trimmed>, StoreError>;

    /// What time it is for all processes that share the store, in milliseconds since 1970; none if one process has it to
    /// itself. A process sets its [`Clock`] by this when it begins, so that all of them date alike whatever their wall
    /// clocks say.
    async fn shared_time(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    /// Tells processes that begin later what time it is. Without it they would have to believe the wall clock of the
    /// store's server, which may have jumped since this process began.
    async fn share_time(&self, _now_ms: u64) -> Result<(), StoreError> {
        Ok(())
    }

    /// What an operator should know.
    fn health(&self) -> Health;
}

/// Both halves, as the server holds them.
pub trait Store: EventLog + Directory {}
impl<T: EventLog + Directory> Store for T {}

/// How much of a log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub events_max: u64,
    /// `u64::MAX` for no limit.
    pub age_max_ms: u64,
}

impl Retention {
    /// That of a server's inbox. Whoever wrote to it waits for seconds, not minutes, and asks again after that; and a
    /// server which is so many letters behind is lost anyway.
    pub const NODES: Retention = Retention { events_max: 10_000, age_max_ms: 60_000 };
}

/// How much is kept of each kind of log. The record says of which kind a log is; one without a record counts as a
/// session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retentions {
    pub sessions: Retention,
    /// A task's events are kept while it runs and for a time after its end, which only the server knows: it releases
    /// them itself.
    pub tasks: Retention,
    pub nodes: Retention,
}

impl Retentions {
    pub fn of(&self, kind: Option<Kind>) -> Retention {
        match kind {
            Some(Kind::Task) => self.tasks,
            Some(Kind::Node) => self.nodes,
            None | Some(Kind::Session | Kind::Alias | Kind::Restored | Kind::Mcp | Kind::Hub) => self.sessions,
        }
    }
}

/// The same for all.
impl From<Retention> for Retentions {
    fn from(all: Retention) -> Retentions {
        Retentions { sessions: all, tasks: all, nodes: all }
    }
}

/// The store's own state, for `/readyz`, metrics and the start-up message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether commits can succeed now.
    pub writable: bool,
    /// Why not, or what else is wrong, in sentences.
    pub troubles: Vec<String>,
    /// What a crash or a power cut can lose, in one sentence.
    pub loss_window: String,
    /// Logs that were set aside because a record of theirs is damaged.
    pub quarantined: Vec<LogId>,
    /// Bytes on disk (or in memory).
    pub bytes: u64,
    pub logs: u64,
}
