//! The durable storage of Bowline: append-only logs of events, and a directory of what they are for.
//!
//! No HTTP and no rules live here. All stores owe the same promises and pass the same contract suite (`contract`, for tests).
//!
//! | module | has |
//! |---|---|
//! | [`disk`], [`redis`], [`memory`] | the three stores |
//! | [`commit`] | the one way to change a log, its record and its items |
//! | [`leased_log`] | a log under a lease, which takes a new lease after a commit in doubt |
//! | [`follow`] | reading a log to its end and waiting for more; the wake-ups |
//! | [`read_through`](mod@read_through) | reading a log to its end, without waiting |
//! | [`budget`] | the memory that readers may take together |
//!
//! ## The store on a disk
//!
//! ```text
//! commit ─▶ queue: number, encode ─▶ writer: one write ─▶ one sync ─▶ index + memory ─▶ wake, answer
//! read ──▶ index: new events from memory, older ones from the segments (off the runtime)
//! ```
//!
//! **One writer, group commit.** Callers number and encode their commits into one group, on the queue. The writer's thread
//! takes it (up to 4 096 events or 1 MiB), writes it in one piece and syncs once; only then is any of it shown or answered.
//! Meanwhile callers make the next group, which stands on this one and fails with it. Nothing but the writer changes the
//! index. Recovery applies the same frames in the same order, and so arrives at the same index. While commits come in a
//! crowd, the writer lets half a millisecond pass between two groups, since a sync costs as much processor time as
//! several commits; one who commits alone never waits for that. Where each group is not synced (`interval`), a caller that
//! finds the writer asleep writes its group itself, under the writer's lock, instead of waking the thread.
//!
//! **Every file is reached through `Files`**, in the options, so that tests make them fail and a simulation replaces them.
//! There, [`Runs::OnRuntime`](disk::Runs::OnRuntime) makes the writer a task of the caller's runtime, and reads happen where they are
//! asked for; only opening reads ahead on a second thread.
//!
//! **One commit is one frame.** Events, record and items stand in one frame with checksums over its header, its
//! description and its content. It is valid as a whole or not at all; that is what makes a commit atomic. A segment's
//! salt begins the checksum of each of its frame headers, so that leftovers from elsewhere are not taken for frames.
//!
//! **Each frame states where its log stands:** epoch, first and next number, fence, whether there is a record, how many
//! items, the log's frame before this one, and the newest before it that held record or items. So the newest frame that
//! survives is enough to know the position, and a lost one is noticed by its successor.
//!
//! **Frames are numbered across the store** (LSN), and each says how many right before it were not yet known to be
//! synced. What lies further back was synced: if it cannot be read now, it is damaged and not torn.
//!
//! **Segments** of 32 MiB are reserved ahead (smaller ones when the disk is nearly full) and cut to their length when
//! the next one is durable, when the store was closed, or when it was opened again. Until then the newest one is as
//! long as its header says that it was made, so one that is shorter was cut by something else. A segment gets its name
//! once its header is durable. Each header, kept twice, says where the segment before it ended; what lies behind that
//! was never answered and does not count. So a failed write needs no repair: the next frames go to a new segment.
//!
//! What opening finds, and what it makes of it:
//!
//! | what cannot be read | verdict |
//! |---|---|
//! | the end of the newest segment, and nothing says that it was ever synced | torn: it is cut. No caller was answered |
//! | the end of the newest segment, because the file is shorter than it was made and the store was not closed | numbers may have been given out that are gone: every log goes on in a new epoch |
//! | anything else | damage: reported in `Health`; it affects only the logs that it touches, as follows |
//! | a log's events | gap: the log begins after them now, and its readers get a gap notice |
//! | a log's record or an item, or a frame that changed them | quarantine: the log is set aside and answers `Quarantined`; all others go on |
//! | frames whose log is unknown | every log without a newer frame may have lost its end, and goes on in a new epoch |
//! | the header of a segment, both copies | as above for all that was in it; the file is renamed and kept |
//!
//! The verdict is written down and synced before the store serves, so that dying in between leads to the same one. A
//! reader that meets damage later has it judged in the same way.
//!
//! **`interval`** answers after the write and syncs within 50 ms. A killed process loses nothing by that, a power cut
//! may. To tell the two apart, the writer notes its last LSN in a small file on tmpfs (`/dev/shm`), the *witness*,
//! which only the loss of power (or a reboot) erases. If it is there after a crash, it says how far the row must reach.
//! If it is not, numbers may have been given out whose events are lost, and every log goes on in a new epoch.
//!
//! **Room.** The oldest segment goes when nothing in it is alive, when more than half of everything is dead, or when
//! there are more than 64 segments beyond twice what the bytes would fill: each restart begins one, and they must not
//! pile up. What is alive in it is carried to the head first, in steps of 1 MiB between groups of commits. Strictly
//! oldest first, so that a deletion in the oldest segment has nothing older left to kill, and may be dropped with it.
//!
//! **The tail cache.** The newest 64 MiB of events stay in memory, as the bytes that were written. Older ones are read
//! from the segments and checked against their checksum each time. Records and values up to 64 bytes are always in
//! memory.
//!
//! ## When it fails
//!
//! How problems surface is the same for all stores: `Full` refuses the commit and heals when there is room, which each
//! sweep looks for; `ReadOnly` follows a failed sync and lasts until a restart, because a second sync may say "yes"
//! about pages that the kernel has already dropped; `Quarantined` concerns one log; `Unavailable` did nothing and heals
//! when Redis is back, and `InDoubt` may have done something (see [`redis`]). `Health` tells the operator, and says in one
//! sentence what a crash or a power cut can lose.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test is no part of a node"))]

pub mod budget;
pub mod commit;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod contract;
pub mod disk;
pub mod follow;
pub mod leased_log;
pub mod memory;
pub mod read_through;
pub mod redis;
mod sync;

use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_protocol::{Extent, LogId, Principal, Seq};
use bytes::Bytes;

pub use bowline_env::Clock;
pub use budget::ReadBudget;
pub use commit::{
    Batch, Claim, Commit, Committed, Fence, Holder, Item, Leased, LogKind, ReadLimit, Record, Release, Start,
    StoreError, Trimmed,
};
pub use disk::{DiskOptions, DiskStore, OpenError, OpenReport};
pub use follow::{FollowError, Followed, Follower, TailGuard, WakeSet};
pub use leased_log::{Changed, LeasedLog, Lessor, SharedLessor};
pub use read_through::{Passed, read_through};
pub use redis::{RedisOptions, RedisStore, RedisUrl};

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

    /// Whether there is a [`tail`](EventLog::tail) on this log, in any process that shares the store. A new one may take
    /// a moment to count, and so may one that was dropped; those of a process that dies end with it.
    async fn is_awaited(&self, log: &LogId) -> Result<bool, StoreError>;

    /// Stops taking commits, makes what was taken durable, and returns.
    async fn close(&self);
}

/// Sees one record of a list, and says whether it wants more; it may not wait.
pub type Visit<'a> = &'a mut (dyn FnMut(&LogId, &Record) -> ControlFlow<()> + Send);

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
    async fn list(&self, kind: LogKind, owner: Option<&Principal>) -> Result<Vec<(LogId, Record)>, StoreError>;

    /// Visits the records of one kind, of one owner or of all, the most recently touched first, until `visit` breaks off. A
    /// store that keeps no such order sorts what it lists; one that does visits no more than it must.
    async fn newest(&self, kind: LogKind, owner: Option<&Principal>, visit: Visit<'_>) -> Result<(), StoreError> {
        let mut listed = self.list(kind, owner).await?;
        listed.sort_by_key(|(_, record)| std::cmp::Reverse(record.touched_ms));
        let _ = listed.iter().try_for_each(|(log, record)| visit(log, record));
        Ok(())
    }

    /// How many records [`list`](Directory::list) would give, without fetching them.
    async fn count(&self, kind: LogKind, owner: Option<&Principal>) -> Result<usize, StoreError>;

    /// The right to write to a log, if it has no holder, or the claim is by the holder, or names it. Each grant is
    /// higher than all before it, and shuts the earlier ones out.
    ///
    /// The holder is who was granted the newest fence. So a log has no holder if it was written under a higher fence
    /// than was granted, as it may be after the store lost what it knew; and in a store that one process has to itself,
    /// no log has a holder when that process starts.
    async fn lease(&self, log: &LogId, claim: &Claim) -> Result<Leased, StoreError>;

    /// Gives the right back if it is still `by`'s under that fence; the log has no holder then. Its fence is not shut
    /// out by that, but by the next grant.
    async fn give_back(&self, log: &LogId, by: &Holder, fence: Fence) -> Result<(), StoreError>;

    /// Who holds the log, if it has a holder.
    async fn holder(&self, log: &LogId) -> Result<Option<Holder>, StoreError>;

    /// Trims everything older than the retention allows at `now_ms` and frees what cannot be read any more.
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

/// A clock for a process on this store: set by the time that all its processes share, or by the wall clock if one has it
/// to itself.
pub async fn clock_of(store: &dyn Store) -> Result<Clock, StoreError> {
    Ok(store.shared_time().await?.map_or_else(Clock::start, Clock::start_at))
}

/// How much of a log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub events_max: u64,
    /// `u64::MAX` for no limit.
    pub age_max_ms: u64,
}

impl Retention {
    /// That of a server's inbox. Its writers wait for seconds, not minutes, and send again after that; and a
    /// server that is so many messages behind is lost anyway.
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
    pub fn of(&self, kind: Option<LogKind>) -> Retention {
        match kind {
            Some(LogKind::Task) => self.tasks,
            Some(LogKind::Node) => self.nodes,
            None | Some(LogKind::Session | LogKind::Alias | LogKind::Restored | LogKind::Mcp | LogKind::Hub) => {
                self.sessions
            }
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
    pub problems: Vec<String>,
    /// What a crash or a power cut can lose, in one sentence.
    pub loss_window: String,
    /// Logs that were set aside because a record of theirs is damaged.
    pub quarantined: Vec<LogId>,
    /// Bytes on disk (or in memory).
    pub bytes: u64,
    pub logs: u64,
}
