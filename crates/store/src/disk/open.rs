//! Opening a store: its options, what was found, and why it may be refused.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bowline_env::clock;
use bowline_env::files::{Files, FilesProfile, Lock, OsFiles};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, mpsc};

use super::commit_queue::{CommitQueue, WriterCommand};
use super::data_dir::DataDir;
use super::pace::Pace;
use super::recover::{LastRun, RecoverError, Recovered, recover};
use super::segment::segment_path;
use super::segment_writer::SegmentWriter;
use super::shared::DiskShared;
use super::state::{FoundState, State, Witness};
use super::tail_cache::TailCache;
use super::verdict::{RecoveryVerdict, recovery_verdict};
use super::write_group::WriteGroup;
use super::writer::Writer;
use super::{COLD_READS_MAX, DiskStore, Running};
use crate::sync::{Mutex, thread};
use crate::{Fence, Retentions, StoreError};

/// Larger segments would not be addressable with the offsets that the index keeps.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;
const SEGMENT_BYTES_MIN: u64 = 4 << 10;

#[derive(Clone, Debug)]
pub struct DiskOptions {
    pub dir: PathBuf,
    pub sync: Sync,
    pub retention: Retentions,
    pub segment_bytes: u64,
    /// How much memory the newest events may take.
    pub cache_bytes: usize,
    /// The operating system's, or what stands for them in a test.
    pub files: Arc<dyn Files>,
    pub runs: Runs,
}

/// Where the store waits for its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// On threads of its own, so that no task waits for a disk.
    OnThreads,
    /// In tasks of the runtime that it is opened in, and in those that read: for files that never wait, in a simulation where
    /// one thread does everything in an order that can be repeated.
    OnRuntime,
}

impl DiskOptions {
    pub fn new(dir: impl Into<PathBuf>, retention: impl Into<Retentions>) -> DiskOptions {
        DiskOptions {
            dir: dir.into(),
            sync: Sync::Always,
            retention: retention.into(),
            segment_bytes: FilesProfile::default().segment_bytes,
            cache_bytes: 64 << 20,
            files: Arc::new(OsFiles),
            runs: Runs::OnThreads,
        }
    }

    /// The same on these files, in the way that they ask for.
    pub fn on(self, files: Arc<dyn Files>) -> DiskOptions {
        let FilesProfile { blocks, segment_bytes } = files.profile();
        let runs = if blocks { Runs::OnThreads } else { Runs::OnRuntime };
        DiskOptions { files, segment_bytes, runs, ..self }
    }
}

/// When what was written is made to survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Before anyone sees it.
    Always,
    /// At most so much later. A killed process loses nothing either way.
    Interval { every: Duration },
}

impl Sync {
    pub const INTERVAL: Sync = Sync::Interval { every: Duration::from_millis(50) };

    fn loss_window(self) -> String {
        match self {
            Sync::Always => "none: every event is synced to disk before a client sees it".into(),
            Sync::Interval { every } => format!(
                "a power cut can lose up to {} ms (then the epoch changes); kill -9 loses nothing",
                every.as_millis()
            ),
        }
    }
}

/// What was found in the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    pub logs: u64,
    /// Events that can be read.
    pub events: u64,
    pub bytes: u64,
    pub segments: u64,
    /// Bytes at the end that were being written when the store stopped, and whose commits were not answered.
    pub torn_bytes: u64,
    /// What is damaged, in sentences.
    pub damage: Vec<String>,
    /// Logs that may have lost their end, and so go on in a new epoch.
    pub epochs_changed: u64,
    pub elapsed: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} is in use by another process; stop that one first, or give this one another directory", .0.display())]
    Locked(PathBuf),
    #[error("{} was written by a later version of this program (format {found}); open it with that version", .dir.display())]
    Newer { dir: PathBuf, found: String },
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("what was found could not be written down: {0}")]
    Amend(StoreError),
}

impl DiskStore {
    /// Reads the directory, or makes it. Blocks for as long as that takes.
    #[allow(clippy::needless_pass_by_value, reason = "options are made for one opening")]
    pub fn open(options: DiskOptions) -> Result<(DiskStore, OpenReport), OpenError> {
        let started = clock::now();
        let dir = &DataDir { path: options.dir.clone(), files: options.files.clone() };
        let failed = |error| OpenError::Io { path: dir.path.clone(), error };
        dir.files.make_dir(&dir.path).map_err(failed)?;
        let guard = lock_dir(dir)?;
        let past = PreviousRun::load(dir)?;
        let mut found = read_back(dir, &past)?;
        let verdict = recovery_verdict(&found.index, &mut found.space, found.lost_through).map_err(failed)?;
        let mut report = OpenReport::of(&found, &verdict);
        let cuts = std::mem::take(&mut found.cuts);
        let mut writer = begin(&options, dir, &past.state, found);

        // The new positions must be durable before the state says that this run began: should we die in between,
        // the next opening must come to the same verdict.
        let mut group = WriteGroup::new(writer.segment_writer.written_lsn() + 1);
        for (log, flags) in &verdict.amend {
            group.amend(log, *flags, &writer.shared.index, |_| {});
        }
        writer.write(group).map_err(OpenError::Amend)?;
        // The witness comes before the state, so that at no moment a run is known of that has none.
        if writer.state.interval {
            writer.witness = Witness::create(&*dir.files, &writer.state, writer.segment_writer.written_lsn());
        }
        writer.state.began_at = Some(writer.segment_writer.written_lsn());
        writer.state.save(dir).map_err(failed)?;
        // Only now: the length of the newest segment is what tells whether it has lost something.
        settle(&cuts, dir).map_err(failed)?;
        for sentence in &report.damage {
            writer.shared.note_damage(sentence.clone());
        }

        if let Sync::Interval { every } = options.sync {
            let ticker = start_ticker(every, options.runs, Arc::downgrade(&writer.queue));
            writer.ticks = Some(ticker.map_err(failed)?);
        }
        writer.release();
        let (shared, queue) = (writer.shared.clone(), writer.queue.clone());
        let (running, direct) = run(writer, guard, options.runs).map_err(failed)?;
        report.elapsed = clock::since(started);
        let cold_reads = Arc::new(Semaphore::new(COLD_READS_MAX));
        let (runs, writer) = (options.runs, Mutex::new(Some(running)));
        let store = DiskStore { shared, queue, runs, writer, direct, cold_reads };
        Ok((store, report))
    }
}

impl OpenReport {
    fn of(found: &Recovered, verdict: &RecoveryVerdict) -> OpenReport {
        let retained = found.index.collect(|_, log| Some(log.first.until(log.next)));
        OpenReport {
            logs: found.index.len() as u64,
            events: retained.iter().sum(),
            bytes: found.space.bytes(),
            segments: found.space.segments() as u64,
            torn_bytes: found.torn_bytes,
            damage: found.damage.iter().chain(&verdict.damage).cloned().collect(),
            epochs_changed: verdict.epochs_changed,
            elapsed: Duration::ZERO,
        }
    }
}

/// Reads the segments, and decides whether more is missing than they can tell themselves.
fn read_back(dir: &DataDir, past: &PreviousRun) -> Result<Recovered, OpenError> {
    let failed = |error| OpenError::Io { path: dir.path.clone(), error };
    let last_run = LastRun { durable: past.durable, unclosed: past.unclosed() };
    let mut found = recover(dir, &last_run).map_err(|error| match error {
        RecoverError::Newer(_, format) => OpenError::Newer { dir: dir.path.clone(), found: format.to_string() },
        RecoverError::Io(path, error) => OpenError::Io { path, error },
    })?;
    put_aside(&found.unborn, &found.unreadable, dir).map_err(failed)?;
    make_durable(&found, dir).map_err(failed)?;
    found.damage.extend(past.damage.iter().cloned());
    let last_lsn = found.next_lsn - 1;
    if last_lsn < past.durable {
        let sentence = format!("{} commits at the end are missing", past.durable - last_lsn);
        found.damage.push(sentence);
    }
    let is_empty = last_lsn == 0 && past.durable == 0 && found.unreadable.is_empty();
    if !is_empty && (past.unsure || last_lsn < past.durable) {
        found.lost_through = u64::MAX;
    }
    Ok(found)
}

/// The writer of a run that begins where the last one ended.
fn begin(options: &DiskOptions, dir: &DataDir, past: &State, found: Recovered) -> Writer {
    let state = State {
        generation: (past.generation + 1).max((found.fence_max >> 32) + 1).max(found.generation_max + 1),
        interval: options.sync != Sync::Always,
        closed_at: None,
        began_at: None,
        instance: past.instance,
    };
    // All fences from before this run are shut out.
    found.index.raise_fences(Fence(state.generation << 32));
    let segment_bytes = options.segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
    let segment_writer =
        SegmentWriter::new(dir.clone(), (segment_bytes, state.generation), found.last, found.next_lsn - 1);
    let shared = DiskShared::new(found.index, dir.clone(), options.sync.loss_window());
    shared.note_bytes(found.space.bytes());
    Writer {
        queue: Arc::new(CommitQueue::new(options.retention)),
        shared: Arc::new(shared),
        segment_writer,
        space: found.space,
        runtime: lively_runtime().filter(|_| options.runs == Runs::OnThreads),
        tail_cache: TailCache::new(options.cache_bytes),
        pace: Pace::default(),
        state,
        witness: None,
        ticks: None,
        retention: options.retention,
        segment_bytes,
        compaction: None,
        resting_until: None,
    }
}

/// What the last run left word of.
struct PreviousRun {
    state: State,
    /// Frames up to here were answered and cannot be torn.
    durable: u64,
    /// Frames behind that may have been answered and lost.
    unsure: bool,
    damage: Vec<String>,
}

impl PreviousRun {
    /// The run, if it was not closed and was of a version that notes how it began.
    fn unclosed(&self) -> Option<u64> {
        self.state.began_at.map(|_| self.state.generation)
    }

    fn load(dir: &DataDir) -> Result<PreviousRun, OpenError> {
        let failed = |error| OpenError::Io { path: dir.path.clone(), error };
        let unknown =
            |damage| Ok(PreviousRun { state: State::fresh().map_err(failed)?, durable: 0, unsure: true, damage });
        match State::load(dir).map_err(failed)? {
            FoundState::Nothing => unknown(Vec::new()),
            FoundState::Unreadable => {
                unknown(vec!["the STATE file is unreadable, so the last run counts as lost".into()])
            }
            FoundState::Newer(found) => Err(OpenError::Newer { dir: dir.path.clone(), found }),
            FoundState::State(state) => {
                let witnessed = || Witness::last_lsn(&*dir.files, &state);
                let durable = state.closed_at.or_else(|| witnessed().filter(|_| state.interval));
                Ok(PreviousRun {
                    unsure: state.interval && durable.is_none(),
                    durable: durable.max(state.began_at).unwrap_or(0),
                    state,
                    damage: Vec::new(),
                })
            }
        }
    }
}

fn lock_dir(dir: &DataDir) -> Result<Lock, OpenError> {
    let path = dir.path.join("LOCK");
    match dir.files.lock(&path) {
        Ok(lock) => lock.ok_or_else(|| OpenError::Locked(dir.path.clone())),
        Err(error) => Err(OpenError::Io { path, error }),
    }
}

fn put_aside(unborn: &[PathBuf], unreadable: &[PathBuf], dir: &DataDir) -> io::Result<()> {
    if unborn.is_empty() && unreadable.is_empty() {
        return Ok(());
    }
    for path in unborn {
        dir.files.remove(path)?;
    }
    let mut taken = dir.files.list(&dir.path)?;
    for path in unreadable {
        let mut names = (0..).map(|nth| path.with_extension(format!("damaged{nth}")));
        if let Some(aside) = names.find(|aside| !taken.contains(aside)) {
            dir.files.rename(path, &aside)?;
            taken.push(aside);
        }
    }
    dir.files.sync_dir(&dir.path)
}

/// Makes the newest segment durable: it will be served, and the last run may have been killed between a write and its sync.
fn make_durable(found: &Recovered, dir: &DataDir) -> io::Result<()> {
    let newest = found.last.map(|(segment, _)| dir.files.open_to_write(&segment_path(&dir.path, segment)));
    newest.transpose()?.map_or(Ok(()), |file| file.sync_data())
}

/// Gives back what segments do not use. Dying in here changes nothing, since what is cut did not count before either.
pub(super) fn settle(cuts: &[(u32, u64)], dir: &DataDir) -> io::Result<()> {
    for (segment, len) in cuts {
        let file = dir.files.open_to_write(&segment_path(&dir.path, *segment))?;
        file.truncate(*len)?;
        file.sync_data()?;
    }
    Ok(())
}

/// The runtime that the store is opened in, if it has threads of its own: one that only runs while a thread blocks on it
/// may stand still while others wait.
fn lively_runtime() -> Option<Handle> {
    Handle::try_current().ok().filter(|runtime| runtime.runtime_flavor() != RuntimeFlavor::CurrentThread)
}

/// Sets the writer going. A writer without a sync can be reached by callers that write in its place.
fn run(writer: Writer, guard: Lock, runs: Runs) -> io::Result<(Running, Weak<Mutex<Writer>>)> {
    match runs {
        Runs::OnThreads => {
            let (queue, is_direct) = (writer.queue.clone(), writer.ticks.is_some());
            let writer = Arc::new(Mutex::new(writer));
            let direct = if is_direct { Arc::downgrade(&writer) } else { Weak::new() };
            let thread = thread::Builder::new().name("store-writer".into());
            let thread = thread.spawn(move || {
                Writer::run(&writer, &queue);
                drop((writer, guard));
            })?;
            Ok((Running::Thread(thread), direct))
        }
        Runs::OnRuntime => {
            let task = tokio::spawn(async move {
                writer.run_as_task().await;
                drop(guard);
            });
            Ok((Running::Task(task), Weak::new()))
        }
    }
}

/// Asks the writer for a sync one interval after it first wrote something. Sleeps while nothing is written.
fn start_ticker(every: Duration, runs: Runs, queue: Weak<CommitQueue>) -> io::Result<mpsc::UnboundedSender<()>> {
    let (sender, mut wanted) = mpsc::unbounded_channel();
    let tick = move || queue.upgrade().is_some_and(|queue| queue.command(WriterCommand::Sync).is_ok());
    match runs {
        Runs::OnThreads => {
            let thread = thread::Builder::new().name("store-ticker".into());
            thread.spawn(move || {
                while wanted.blocking_recv().is_some() {
                    thread::sleep(every);
                    if !tick() {
                        return;
                    }
                }
            })?;
        }
        Runs::OnRuntime => drop(tokio::spawn(async move {
            while wanted.recv().await.is_some() {
                tokio::time::sleep(every).await;
                if !tick() {
                    return;
                }
            }
        })),
    }
    Ok(sender)
}
