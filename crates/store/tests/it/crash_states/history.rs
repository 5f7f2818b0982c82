//! Small random histories of a store on a traced disk: commits alone and in groups, trims, restarts, kills, power cuts.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bowline_protocol::{Epoch, Seq};
use bowline_store::contract::{event, id, record};
use bowline_store::disk::Sync;
use bowline_store::{
    Claim, Commit, Committed, Directory, DiskOptions, DiskStore, EventLog, Fence, Item, Leased, OpenReport, Release,
    Retention, Start, StoreError,
};

use super::disk::{Entry, TracedDisk};
use super::expected::{Bounds, Crash, LOGS, Life, Note, Version, View};
use super::platter::Platter;
use crate::common::{Dice, Look, look};

const RETENTION: Retention = Retention { events_max: 6, age_max_ms: 40 };
const LIVES_MAX: u64 = 3;
const OPERATIONS_MAX: u64 = 7;

/// A run of the store, which a kill ends: everything of it is dropped where it stands.
pub struct Running {
    runtime: Option<tokio::runtime::Runtime>,
    pub store: Arc<DiskStore>,
    pub report: OpenReport,
}

impl Running {
    pub fn open(disk: &TracedDisk<Note>, sync: Sync) -> Result<Running, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let options = DiskOptions { sync, ..DiskOptions::new("/data", RETENTION) }.on(Arc::new(disk.clone()));
        let opened = runtime.block_on(async { DiskStore::open(options) });
        let (store, report) = opened.map_err(|error| format!("it cannot be opened: {error}"))?;
        Ok(Running { runtime: Some(runtime), store: Arc::new(store), report })
    }

    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.as_ref().unwrap().block_on(future)
    }

    pub fn view(&self) -> Result<View, String> {
        self.block_on(async {
            let mut view = View::new();
            for log in LOGS {
                view.push(match look(&*self.store, log).await {
                    Ok(look) => Some(look),
                    Err(StoreError::NoSuchLog) => None,
                    Err(error) => return Err(format!("{log} cannot be read: {error}")),
                });
            }
            Ok(view)
        })
    }
}

impl Drop for Running {
    /// The runtime first: the writer must not find out that its store was dropped, and tidy up.
    fn drop(&mut self) {
        drop(self.runtime.take());
    }
}

/// The lives of one history.
pub fn lives(seed: u64) -> Vec<Life> {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let sync = if dice.roll(4) == 0 { Sync::INTERVAL } else { Sync::Always };
    let mut lives = vec![live(Platter::default(), vec![None; LOGS.len()], BTreeMap::new(), sync, &mut dice)];
    for _ in 0..dice.roll(LIVES_MAX) {
        let next = after_a_power_cut(&lives[lives.len() - 1], &mut dice);
        lives.push(next);
    }
    lives
}

/// Goes on where a power cut at any moment of this life leaves any of what was not synced.
fn after_a_power_cut(life: &Life, dice: &mut Dice) -> Life {
    let mut platter = life.start.clone();
    let mut bounds = Bounds::new();
    for entry in &life.entries[..=dice.roll(life.entries.len() as u64) as usize] {
        match entry {
            Entry::Disk(step) => platter.apply(step),
            Entry::Note(note) => bounds.apply(note),
        }
        if platter.is_synced() {
            bounds.synced.clone_from(&bounds.answered);
        }
    }
    let chosen: Vec<usize> = platter.choices().iter().map(|ways| dice.roll(*ways as u64) as usize).collect();
    let left = platter.after_power_cut(&chosen);
    let view = Running::open(&TracedDisk::on(left.clone()), life.sync).and_then(|running| running.view()).unwrap();
    let versions = life.versions_of(&view, &bounds, Crash::PowerCut).unwrap();
    let mut epochs_left = BTreeMap::new();
    let known = versions.iter().enumerate().map(|(log, version)| {
        let version = life.versions[log][*version].clone()?;
        let found = view[log].clone()?;
        if found.epoch != version.look.epoch {
            epochs_left.insert(log, version.look.epoch.clone());
        }
        Some(version)
    });
    live(left, known.collect(), epochs_left, life.sync, dice)
}

fn live(
    start: Platter,
    known: Vec<Option<Version>>,
    epochs_left: BTreeMap<usize, String>,
    sync: Sync,
    dice: &mut Dice,
) -> Life {
    let disk = TracedDisk::on(start.clone());
    let mut user =
        User { versions: known.into_iter().map(|one| vec![one]).collect(), now_ms: 1000, disk: disk.clone() };
    let mut running = user.open(sync);
    for _ in 0..2 + dice.roll(OPERATIONS_MAX) {
        user.now_ms += 7;
        match dice.roll(12) {
            0 => {
                drop(running);
                running = user.open(sync);
            }
            1 => {
                running.block_on(running.store.close());
                drop(running);
                running = user.open(sync);
            }
            2 => user.sweep(&running),
            // Time enough for the sync of an interval.
            3 => running.block_on(async { tokio::time::sleep(Duration::from_millis(200)).await }),
            _ => user.commit_a_few(&running, dice),
        }
    }
    if dice.roll(3) == 0 {
        running.block_on(running.store.close());
    }
    drop(running);
    Life { sync, start, entries: disk.take_entries(), versions: user.versions, epochs_left }
}

/// Who uses the store, and knows what each log should hold.
struct User {
    versions: Vec<Vec<Option<Version>>>,
    now_ms: u64,
    disk: TracedDisk<Note>,
}

impl User {
    fn now(&self, log: usize) -> &Option<Version> {
        self.versions[log].last().unwrap()
    }

    fn open(&mut self, sync: Sync) -> Running {
        let running = Running::open(&self.disk, sync).unwrap();
        let view = running.view().unwrap();
        for (log, found) in view.iter().enumerate() {
            let now = self.versions[log].last_mut().unwrap();
            // The epoch is the store's to choose where it may have lost something; whether it may is judged elsewhere.
            if let (Some(version), Some(found)) = (now.as_mut(), found) {
                version.look.epoch.clone_from(&found.epoch);
            }
            let expected = now.as_ref().map(|version| &version.look);
            assert_eq!(expected, found.as_ref(), "{} after it was opened without a loss", LOGS[log]);
        }
        self.disk.note(Note::Opened { versions: self.versions.iter().map(|all| all.len() - 1).collect() });
        running
    }

    fn issue(&mut self, log: usize, version: Option<Version>) -> usize {
        self.versions[log].push(version);
        let version = self.versions[log].len() - 1;
        self.disk.note(Note::Issued { log, version });
        version
    }

    fn sweep(&mut self, running: &Running) {
        let oldest = self.now_ms.saturating_sub(RETENTION.age_max_ms);
        let mut issued = Vec::new();
        for log in 0..LOGS.len() {
            if let Some(mut version) = self.now(log).clone() {
                version.trim(version.at_ms.iter().take_while(|at_ms| **at_ms < oldest).count());
                issued.push((log, self.issue(log, Some(version))));
            }
        }
        running.block_on(running.store.sweep(self.now_ms)).unwrap();
        for (log, version) in issued {
            self.disk.note(Note::Answered { log, version });
        }
    }

    /// Up to five commits at once, which the store writes down together.
    fn commit_a_few(&mut self, running: &Running, dice: &mut Dice) {
        let mut fences = BTreeMap::new();
        for (log, name) in LOGS.iter().enumerate() {
            let leased = running.block_on(running.store.lease(&id(name), &Claim::alone()));
            fences.insert(log, leased.and_then(Leased::fence).unwrap_or(Fence(0)));
        }
        let mut waiting = Vec::new();
        for _ in 0..1 + dice.roll(5) {
            let log = dice.roll(LOGS.len() as u64) as usize;
            let (commit, version) = self.change(log, fences[&log], dice);
            if version.is_none() {
                // One that comes after it begins anew.
                fences.insert(log, Fence(0));
            }
            let version = self.issue(log, version);
            let store = running.store.clone();
            waiting.push((Note::Answered { log, version }, async move { store.commit(commit).await }));
        }
        running.block_on(all(waiting, &self.disk));
    }

    /// A change to a log, and what the log is afterwards.
    fn change(&self, log: usize, fence: Fence, dice: &mut Dice) -> (Commit, Option<Version>) {
        let mut commit = Commit::to(id(LOGS[log]), fence, self.now_ms);
        let mut version = match self.now(log) {
            Some(version) => version.clone(),
            None => {
                let epoch = Epoch::from_random(dice.roll(u64::MAX));
                let look = Look {
                    epoch: epoch.to_string(),
                    first: 1,
                    next: 1,
                    events: Vec::new(),
                    items: Vec::new(),
                    record: None,
                };
                commit.create = Some(Start { epoch, after: Seq::ZERO });
                Version { look, at_ms: Vec::new() }
            }
        };
        let exists = commit.create.is_none();
        match dice.roll(20) {
            0 if exists => {
                commit.release = Some(Release::Log);
                return (commit, None);
            }
            1 if exists => {
                commit.release = Some(Release::Contents);
                version.trim(version.at_ms.len());
                version.look.items.clear();
            }
            kind => {
                let (events, facts) = (kind > 6, kind % 3 == 0);
                for _ in 0..if events { 1 + dice.roll(3) } else { 0 } {
                    version.push(&mut commit, self.now_ms, dice);
                }
                if facts || !events {
                    version.put(&mut commit, dice);
                }
                let surplus = version.at_ms.len().saturating_sub(RETENTION.events_max as usize);
                version.trim(surplus);
            }
        }
        (commit, Some(version))
    }
}

impl Version {
    fn trim(&mut self, events: usize) {
        self.at_ms.drain(..events);
        self.look.events.drain(..events);
        self.look.first = self.look.events.first().map_or(self.look.next, |(seq, _)| *seq);
    }

    fn push(&mut self, commit: &mut Commit, now_ms: u64, dice: &mut Dice) {
        let len = [0, 30, 300, 1300][dice.roll(4) as usize];
        let text = format!("{:05}{}", dice.roll(100_000), "e".repeat(len));
        commit.events.push(event(&text));
        self.look.events.push((self.look.next, text));
        self.look.next += 1;
        self.at_ms.push(now_ms);
    }

    fn put(&mut self, commit: &mut Commit, dice: &mut Dice) {
        if dice.roll(2) == 0 {
            let body = format!("{:05}{}", dice.roll(100_000), "r".repeat(dice.roll(200) as usize));
            commit.record = Some(record("ann", &body));
            self.look.record = Some(body.into());
        }
        let key = format!("k{}", dice.roll(3));
        let place = self.look.items.binary_search_by(|(other, _)| other.cmp(&key));
        match (place, dice.roll(3)) {
            (Ok(at), 0) => {
                commit.items.push(Item::delete(key));
                self.look.items.remove(at);
            }
            (place, _) => {
                let value = vec![dice.roll(256) as u8; [4, 90, 700][dice.roll(3) as usize]];
                commit.items.push(Item::put(key.clone(), value.clone()));
                match place {
                    Ok(at) => self.look.items[at].1 = value,
                    Err(at) => self.look.items.insert(at, (key, value)),
                }
            }
        }
    }
}

/// Notes that a commit was answered in the moment in which the store answers it, and not when its caller next runs.
struct Answering {
    note: Note,
    disk: TracedDisk<Note>,
    caller: Waker,
}

impl Wake for Answering {
    fn wake(self: Arc<Self>) {
        self.disk.note(self.note.clone());
        self.caller.wake_by_ref();
    }
}

/// Makes these commits at once, in this order.
async fn all<F>(waiting: Vec<(Note, F)>, disk: &TracedDisk<Note>)
where
    F: Future<Output = Result<Committed, StoreError>> + 'static,
{
    let mut waiting: Vec<(Note, Pin<Box<F>>)> = waiting.into_iter().map(|(note, one)| (note, Box::pin(one))).collect();
    std::future::poll_fn(|cx| {
        waiting.retain_mut(|(note, commit)| {
            let (note, caller) = (note.clone(), cx.waker().clone());
            let waker = Waker::from(Arc::new(Answering { note, disk: disk.clone(), caller }));
            match commit.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Pending => true,
                Poll::Ready(done) => {
                    done.unwrap();
                    false
                }
            }
        });
        if waiting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
