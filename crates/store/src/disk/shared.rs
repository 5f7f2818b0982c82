//! What the writer and the readers of a disk store share: the index, the waiters, and how the store is doing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bowline_protocol::LogId;

use super::data_dir::DataDir;
use super::index::LogIndex;
use crate::follow::Tails;
use crate::sync::{Mutex, lock};
use crate::{Health, StoreError};

/// More sentences than this about damage tell an operator nothing new.
const DAMAGE_SENTENCES_MAX: usize = 100;

#[derive(Debug)]
pub struct DiskShared {
    pub index: LogIndex,
    pub tails: Arc<Tails>,
    pub dir: DataDir,
    pub loss_window: String,
    status: Mutex<StoreStatus>,
    /// Whether `status` says so, for those who ask often.
    is_read_only: AtomicBool,
    bytes: AtomicU64,
    any_quarantined: AtomicBool,
}

#[derive(Debug, Default)]
struct StoreStatus {
    read_only: Option<String>,
    full: Option<String>,
    /// Why old segments cannot be freed at the moment.
    obstacle: Option<String>,
    damage: Vec<String>,
}

impl DiskShared {
    pub fn new(index: LogIndex, dir: DataDir, loss_window: String) -> DiskShared {
        let any_quarantined = !index.collect(|_, log| log.quarantined.is_some().then_some(())).is_empty();
        DiskShared {
            index,
            tails: Arc::default(),
            dir,
            loss_window,
            status: Mutex::default(),
            is_read_only: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            any_quarantined: AtomicBool::new(any_quarantined),
        }
    }

    pub fn read_only(&self) -> Option<String> {
        self.is_read_only().then(|| lock(&self.status).read_only.clone()).flatten()
    }

    pub fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Acquire)
    }

    pub fn is_full(&self) -> bool {
        lock(&self.status).full.is_some()
    }

    pub fn note_failure(&self, error: &StoreError) {
        let mut status = lock(&self.status);
        match error {
            StoreError::Full(why) => {
                if status.full.is_none() {
                    tracing::error!(%why, "the disk is full; commits are refused until there is space");
                }
                status.full = Some(why.clone());
            }
            StoreError::ReadOnly(why) => {
                if status.read_only.is_none() {
                    tracing::error!(%why, "the store is read-only until it is restarted");
                }
                status.read_only.get_or_insert_with(|| why.clone());
                self.is_read_only.store(true, Ordering::Release);
            }
            other => tracing::error!(error = %other, "a group of commits could not be written"),
        }
    }

    pub fn note_success(&self) {
        lock(&self.status).full = None;
    }

    /// Tells once why no room can be made, until there is room again or the reason is another one.
    pub fn note_obstacle(&self, why: &str) {
        let obstacle = &mut lock(&self.status).obstacle;
        if obstacle.as_deref() != Some(why) {
            tracing::warn!(%why, "cannot make room; this is tried again from time to time");
            *obstacle = Some(why.into());
        }
    }

    pub fn note_room(&self) {
        lock(&self.status).obstacle = None;
    }

    pub fn note_damage(&self, sentence: String) {
        tracing::error!(damage = %sentence, "the store is damaged");
        let damage = &mut lock(&self.status).damage;
        if damage.len() < DAMAGE_SENTENCES_MAX && !damage.contains(&sentence) {
            damage.push(sentence);
        }
    }

    pub fn quarantine(&self, id: &LogId, why: &str) {
        self.index.change(id, |log| log.quarantined = Some(why.into()));
        self.any_quarantined.store(true, Ordering::Relaxed);
        self.note_damage(format!("log {id} is set aside: {why}"));
    }

    pub fn note_bytes(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub fn health(&self) -> Health {
        let quarantined = match self.any_quarantined.load(Ordering::Relaxed) {
            true => self.index.collect(|id, log| log.quarantined.is_some().then(|| id.clone())),
            false => Vec::new(),
        };
        let status = lock(&self.status);
        let read_only = status.read_only.iter().map(|why| format!("read-only: {why}"));
        let full = status.full.iter().map(|why| format!("no space left: {why}"));
        let obstacle = status.obstacle.iter().map(|why| format!("cannot make room: {why}"));
        Health {
            writable: status.read_only.is_none() && status.full.is_none(),
            problems: read_only.chain(full).chain(obstacle).chain(status.damage.iter().cloned()).collect(),
            loss_window: self.loss_window.clone(),
            quarantined,
            bytes: self.bytes.load(Ordering::Relaxed),
            logs: self.index.len() as u64,
        }
    }
}
