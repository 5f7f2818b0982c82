//! The store on a disk: one segmented log for everything, one thread that writes it, an index of it in memory.
//!
//! ```text
//! commit ─▶ queue: number, encode ─▶ writer: one write ─▶ one sync ─▶ index + memory ─▶ wake, answer
//! read ──▶ index: new events from memory, older ones from the segments (off the runtime)
//! ```

#[cfg(test)]
mod any_bytes;
mod cached_frame;
mod codec;
mod commit_queue;
mod compact;
mod data_dir;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod faults;
mod frame;
mod index;
mod log;
mod log_head;
mod open;
mod pace;
mod read;
mod recency;
mod recover;
#[doc(hidden)]
pub mod reseal;
mod segment;
mod segment_writer;
mod shared;
mod space;
mod state;
mod tail_cache;
mod verdict;
mod write_group;
mod writer;

use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bowline_protocol::{Extent, LogId, Principal, Seq};
use bytes::Bytes;
use tokio::sync::{Semaphore, oneshot};

use self::commit_queue::{CommitQueue, QueuedRequest, WriterCommand};
use self::data_dir::DataDir;
use self::log::IndexedLog;
use self::read::{FetchError, ItemPlan, ReadPlan};
use self::shared::DiskShared;
use self::writer::Writer;
use crate::sync::thread::JoinHandle;
use crate::sync::{Mutex, joined, lock};
use crate::{
    Batch, Claim, Commit, Committed, Directory, EventLog, Fence, Health, Holder, Leased, LogKind, ReadLimit, Record,
    StoreError, TailGuard, Trimmed, Visit, WakeSet,
};

pub use open::{DiskOptions, OpenError, OpenReport, Runs, Sync};
pub use write_group::COMMIT_BYTES_MAX;

/// How often a read looks again when what it wanted has moved meanwhile. Each move takes a whole compaction.
const LOOKS_MAX: usize = 8;

/// Reads from the disk at once. Each takes a whole frame into memory, whatever it wants of it, so a crowd of readers must
/// wait; and more at once are no faster.
const COLD_READS_MAX: usize = 8;

/// Logs on disk. Opened with [`DiskStore::open`].
pub struct DiskStore {
    shared: Arc<DiskShared>,
    queue: Arc<CommitQueue>,
    runs: Runs,
    writer: Mutex<Option<Running>>,
    /// The writer, for callers that write in its place; none if each group is synced.
    direct: Weak<Mutex<Writer>>,
    cold_reads: Arc<Semaphore>,
}

/// The writer while it runs.
enum Running {
    Thread(JoinHandle<()>),
    Task(tokio::task::JoinHandle<()>),
}

impl DiskStore {
    /// Has the writer do something between two groups.
    async fn send<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> WriterCommand) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.queue.command(command(answer))?;
        answered.await.map_err(|_| StoreError::Closed)
    }

    /// Writes what is queued, if that takes no sync and the writer does nothing else.
    fn write_here(&self) -> bool {
        let Some(writer) = self.direct.upgrade() else { return false };
        writer.try_lock().is_ok_and(|mut writer| writer.write_here())
    }

    fn look<T>(&self, log: &LogId, look: impl FnOnce(&IndexedLog) -> T) -> Result<Option<T>, StoreError> {
        self.shared.index.read(log, |log| log.sound().map(look)).transpose()
    }

    /// Fetches what `plan` asks for, and looks again when it has moved or was found damaged.
    async fn fetch<P, T>(
        &self,
        log: &LogId,
        plan: impl Fn(&IndexedLog) -> P + Send,
        is_here: impl Fn(&P) -> bool + Send,
        fetch: impl Fn(P, &DataDir) -> Result<T, FetchError> + Copy + Send + 'static,
    ) -> Result<T, StoreError>
    where
        P: Send + 'static,
        T: Send + 'static,
    {
        for _ in 0..LOOKS_MAX {
            let planned = self.look(log, &plan)?.ok_or(StoreError::NoSuchLog)?;
            let fetched = if is_here(&planned) || self.runs == Runs::OnRuntime {
                fetch(planned, &self.shared.dir)
            } else {
                let shared = self.shared.clone();
                // The permit goes along, because a read whose caller has left still takes its memory.
                let permit = self.cold_reads.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
                let cold = tokio::task::spawn_blocking(move || {
                    let _permit = permit;
                    fetch(planned, &shared.dir)
                });
                cold.await.map_err(|error| StoreError::Io(error.to_string()))?
            };
            match fetched {
                Ok(fetched) => return Ok(fetched),
                Err(FetchError::Moved) => {}
                Err(FetchError::Damaged(place)) => {
                    self.send(|answer| WriterCommand::Damaged(log.clone(), place, answer)).await?;
                }
                Err(FetchError::Io(error)) => return Err(StoreError::Io(error.to_string())),
            }
        }
        Err(StoreError::Io("what was to be read keeps moving".into()))
    }
}

#[async_trait]
impl EventLog for DiskStore {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.queue.commit(commit, &self.shared, || self.write_here()).await
    }

    async fn read(&self, log: &LogId, from: Seq, limit: ReadLimit) -> Result<Batch, StoreError> {
        self.fetch(log, |log| ReadPlan::new(log, from, limit), ReadPlan::is_cached, ReadPlan::fetch).await
    }

    async fn extent(&self, log: &LogId) -> Result<Extent, StoreError> {
        self.look(log, IndexedLog::extent)?.ok_or(StoreError::NoSuchLog)
    }

    fn tail(&self, log: &LogId, wake: &Arc<WakeSet>, token: u64) -> TailGuard {
        self.shared.tails.subscribe(log, wake, token)
    }

    async fn is_awaited(&self, log: &LogId) -> Result<bool, StoreError> {
        Ok(self.shared.tails.has(log))
    }

    async fn close(&self) {
        // At a second close the writer is gone already, which is fine.
        let _ = self.send(WriterCommand::Close).await;
        let writer = lock(&self.writer).take();
        // It has answered and only lets go of the lock now. A panic there has been reported by the thread itself.
        match writer {
            Some(Running::Thread(thread)) => joined(thread).await,
            Some(Running::Task(task)) => drop(task.await),
            None => {}
        }
    }
}

#[async_trait]
impl Directory for DiskStore {
    async fn record(&self, log: &LogId) -> Result<Option<Record>, StoreError> {
        let record = self.look(log, |log| log.record.as_ref().and_then(|kept| kept.record.clone()))?;
        Ok(record.flatten())
    }

    async fn item(&self, log: &LogId, key: &str) -> Result<Option<Bytes>, StoreError> {
        let plan = |log: &IndexedLog| ItemPlan::new(log.items.get_key_value(key).into_iter());
        let found = self.fetch(log, plan, ItemPlan::is_inline, ItemPlan::fetch).await;
        match found {
            Ok(found) => Ok(found.into_iter().next().map(|(_, value)| value)),
            Err(StoreError::NoSuchLog) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn items(&self, log: &LogId, prefix: &str) -> Result<Vec<(String, Bytes)>, StoreError> {
        let plan = |log: &IndexedLog| {
            let from = log.items.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
            ItemPlan::new(from.take_while(|(key, _)| key.starts_with(prefix)))
        };
        self.fetch(log, plan, ItemPlan::is_inline, ItemPlan::fetch).await
    }

    async fn items_at(&self, log: &LogId, keys: &[String]) -> Result<Vec<(String, Bytes)>, StoreError> {
        let plan =
            |log: &IndexedLog| ItemPlan::new(keys.iter().filter_map(|key| log.items.get_key_value(key.as_str())));
        match self.fetch(log, plan, ItemPlan::is_inline, ItemPlan::fetch).await {
            Err(StoreError::NoSuchLog) => Ok(Vec::new()),
            found => found,
        }
    }

    async fn list(&self, kind: LogKind, owner: Option<&Principal>) -> Result<Vec<(LogId, Record)>, StoreError> {
        let record = |id: &LogId, log: &IndexedLog| wanted(log, kind, owner).map(|record| (id.clone(), record.clone()));
        Ok(self.shared.index.collect(record))
    }

    async fn count(&self, kind: LogKind, owner: Option<&Principal>) -> Result<usize, StoreError> {
        Ok(self.shared.index.count(kind, owner))
    }

    async fn newest(&self, kind: LogKind, owner: Option<&Principal>, visit: Visit<'_>) -> Result<(), StoreError> {
        self.shared.index.newest(kind, owner, |id, log| match wanted(log, kind, owner) {
            Some(record) => visit(id, record),
            // It has changed since it was looked up.
            None => ControlFlow::Continue(()),
        });
        Ok(())
    }

    async fn lease(&self, log: &LogId, claim: &Claim) -> Result<Leased, StoreError> {
        self.queue.ask(&self.shared, |answer| QueuedRequest::Lease(log.clone(), claim.clone(), answer)).await
    }

    async fn give_back(&self, log: &LogId, by: &Holder, fence: Fence) -> Result<(), StoreError> {
        self.queue.ask(&self.shared, |answer| QueuedRequest::GiveBack(log.clone(), by.clone(), fence, answer)).await
    }

    async fn holder(&self, log: &LogId) -> Result<Option<Holder>, StoreError> {
        Ok(self.look(log, |log| log.holder.clone())?.flatten())
    }

    async fn sweep(&self, now_ms: u64) -> Result<Vec<Trimmed>, StoreError> {
        self.send(|answer| WriterCommand::Sweep(now_ms, answer)).await?
    }

    fn health(&self) -> Health {
        self.shared.health()
    }
}

/// The log's record, if it is sound and of this kind and owner.
fn wanted<'a>(log: &'a IndexedLog, kind: LogKind, owner: Option<&Principal>) -> Option<&'a Record> {
    let record = log.sound().ok()?.record.as_ref()?.record.as_ref()?;
    (record.kind == kind && owner.is_none_or(|owner| *owner == record.owner)).then_some(record)
}

impl Drop for DiskStore {
    /// Waits for the writer, so that the directory can be opened again at once; but not for one that is a task, which lets
    /// go of the directory when it next runs. Without [`close`](EventLog::close) the next opening takes this for a crash,
    /// and loses nothing by it.
    fn drop(&mut self) {
        self.queue.shut();
        if let Some(Running::Thread(thread)) = lock(&self.writer).take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskStore({})", self.shared.dir.path.display())
    }
}
