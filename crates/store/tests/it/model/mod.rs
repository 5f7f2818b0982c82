//! Random histories against a plain map: whatever happens, and however often the store is reopened, both agree.

use std::collections::BTreeMap;

use bowline_store::contract::{append_at, create, event, id, record};
use bowline_store::{Claim, Commit, Fence, Item, Leased, LogKind, Release, Retention, Store, StoreError};
use bytes::Bytes;
use proptest::prelude::*;

use crate::common::look;

pub const RETENTION: Retention = Retention { events_max: 8, age_max_ms: 50 };

#[derive(Clone, Debug)]
pub enum Op {
    Create(u8),
    Append {
        log: u8,
        count: usize,
        size: usize,
    },
    Record(u8, usize),
    Put {
        log: u8,
        key: u8,
        size: usize,
    },
    Delete {
        log: u8,
        key: u8,
    },
    /// Everything at once.
    Mixed {
        log: u8,
        key: u8,
        size: usize,
    },
    Stale(u8),
    ReleaseContents(u8),
    ReleaseLog(u8),
    Sweep,
    Reopen {
        cleanly: bool,
    },
}

pub fn op() -> impl Strategy<Value = Op> {
    let log = 0u8..4;
    let key = 0u8..5;
    let size = prop_oneof![0usize..100, 500usize..2000];
    prop_oneof![
        3 => log.clone().prop_map(Op::Create),
        9 => (log.clone(), 0usize..5, size.clone()).prop_map(|(log, count, size)| Op::Append { log, count, size }),
        2 => (log.clone(), size.clone()).prop_map(|(log, size)| Op::Record(log, size)),
        4 => (log.clone(), key.clone(), size.clone()).prop_map(|(log, key, size)| Op::Put { log, key, size }),
        2 => (log.clone(), key.clone()).prop_map(|(log, key)| Op::Delete { log, key }),
        2 => (log.clone(), key, size).prop_map(|(log, key, size)| Op::Mixed { log, key, size }),
        1 => log.clone().prop_map(Op::Stale),
        1 => log.clone().prop_map(Op::ReleaseContents),
        1 => log.prop_map(Op::ReleaseLog),
        1 => Just(Op::Sweep),
        2 => any::<bool>().prop_map(|cleanly| Op::Reopen { cleanly }),
    ]
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    next: u64,
    first: u64,
    pub events: BTreeMap<u64, (u64, String)>,
    items: BTreeMap<String, Vec<u8>>,
    record: Option<Vec<u8>>,
}

impl Model {
    fn push(&mut self, at_ms: u64, text: &str) {
        self.events.insert(self.next, (at_ms, text.to_owned()));
        self.next += 1;
        while self.events.len() as u64 > RETENTION.events_max {
            self.events.pop_first();
            self.first += 1;
        }
    }

    fn sweep(&mut self, now_ms: u64) {
        let oldest = now_ms.saturating_sub(RETENTION.age_max_ms);
        while self.events.first_key_value().is_some_and(|(_, (at, _))| *at < oldest) {
            self.events.pop_first();
            self.first += 1;
        }
    }

    fn release(&mut self) {
        self.events.clear();
        self.items.clear();
        self.first = self.next;
    }
}

/// A store that is compared, and how it is opened again.
pub trait Subject {
    fn store(&self) -> &dyn Store;

    /// Opens it again, after a close or without. `model` is what it should hold.
    fn reopen(&mut self, cleanly: bool, model: &BTreeMap<u8, Model>) -> impl Future<Output = ()>;
}

pub struct World<S> {
    pub subject: S,
    model: BTreeMap<u8, Model>,
    now_ms: u64,
}

fn name(log: u8) -> String {
    format!("log-{log}")
}

impl<S: Subject> World<S> {
    /// Applies a history, and compares on the way and at the end.
    pub async fn live(subject: S, ops: &[Op]) -> S {
        let mut world = World { subject, model: BTreeMap::new(), now_ms: 0 };
        for (step, op) in ops.iter().enumerate() {
            world.apply(op).await;
            if step % 8 == 7 {
                world.compare().await;
            }
        }
        world.compare().await;
        world.apply(&Op::Reopen { cleanly: true }).await;
        world.compare().await;
        world.subject
    }

    fn store(&self) -> &dyn Store {
        self.subject.store()
    }

    async fn commit(&self, log: u8, change: impl FnOnce(&mut Commit)) -> bool {
        let id = id(&name(log));
        let there = self.model.contains_key(&log);
        let leased = self.store().lease(&id, &Claim::alone()).await.and_then(Leased::fence);
        assert_eq!(leased.is_ok(), there);
        let mut commit = Commit::to(id, leased.unwrap_or_default(), self.now_ms);
        change(&mut commit);
        let done = self.store().commit(commit).await;
        match there {
            true => drop(done.unwrap()),
            false => assert_eq!(done, Err(StoreError::NoSuchLog)),
        }
        there
    }

    async fn apply(&mut self, op: &Op) {
        self.now_ms += 7;
        let now_ms = self.now_ms;
        match *op {
            Op::Create(log) => {
                let done = self.store().commit(create(&name(log))).await;
                assert_eq!(done.is_ok(), !self.model.contains_key(&log));
                let new = Model { next: 1, first: 1, ..Model::default() };
                self.model.entry(log).or_insert(new);
            }
            Op::Append { log, count, size } => {
                let text = format!("{now_ms}{}", "e".repeat(size));
                let done = append_at(self.store(), &name(log), now_ms, &vec![text.as_str(); count]).await;
                let Some(model) = self.model.get_mut(&log) else {
                    return assert_eq!(done, Err(StoreError::NoSuchLog));
                };
                assert_eq!(done.unwrap().first.get(), model.next);
                (0..count).for_each(|_| model.push(now_ms, &text));
            }
            Op::Record(log, size) => {
                let body = "r".repeat(size);
                if self.commit(log, |commit| commit.record = Some(record("ann", &body))).await {
                    self.model.get_mut(&log).unwrap().record = Some(body.into());
                }
            }
            Op::Put { log, key, size } => {
                let (key, value) = (key.to_string(), vec![key; size]);
                let item = Item::put(key.clone(), value.clone());
                if self.commit(log, |commit| commit.items = vec![item]).await {
                    self.model.get_mut(&log).unwrap().items.insert(key, value);
                }
            }
            Op::Delete { log, key } => {
                if self.commit(log, |commit| commit.items = vec![Item::delete(key.to_string())]).await {
                    self.model.get_mut(&log).unwrap().items.remove(&key.to_string());
                }
            }
            Op::Mixed { log, key, size } => {
                let (key, value) = (key.to_string(), vec![9; size]);
                let change = |commit: &mut Commit| {
                    commit.events = vec![event("mixed")];
                    commit.record = Some(record("bob", "mixed"));
                    commit.items = vec![Item::put(key.clone(), Bytes::from(value.clone()))];
                };
                if self.commit(log, change).await {
                    let model = self.model.get_mut(&log).unwrap();
                    model.push(now_ms, "mixed");
                    model.record = Some("mixed".into());
                    model.items.insert(key, value);
                }
            }
            Op::Stale(log) => {
                if self.store().lease(&id(&name(log)), &Claim::alone()).await.and_then(Leased::fence).is_ok() {
                    let done = self.store().commit(Commit::to(id(&name(log)), Fence(0), now_ms)).await;
                    assert!(matches!(done, Err(StoreError::StaleFence { .. })));
                }
            }
            Op::ReleaseContents(log) => {
                if self.commit(log, |commit| commit.release = Some(Release::Contents)).await {
                    self.model.get_mut(&log).unwrap().release();
                }
            }
            Op::ReleaseLog(log) => {
                if self.commit(log, |commit| commit.release = Some(Release::Log)).await {
                    self.model.remove(&log);
                }
            }
            Op::Sweep => {
                self.store().sweep(now_ms).await.unwrap();
                self.model.values_mut().for_each(|model| model.sweep(now_ms));
            }
            Op::Reopen { cleanly } => self.subject.reopen(cleanly, &self.model).await,
        }
    }

    async fn compare(&self) {
        for log in 0..4 {
            let found = look(self.store(), &name(log)).await;
            let Some(model) = self.model.get(&log) else {
                assert_eq!(found, Err(StoreError::NoSuchLog));
                continue;
            };
            let found = found.unwrap();
            assert_eq!((found.first, found.next), (model.first, model.next));
            let events: Vec<_> = model.events.iter().map(|(n, (_, text))| (*n, text.clone())).collect();
            assert_eq!(found.events, events);
            assert_eq!(found.items, model.items.clone().into_iter().collect::<Vec<_>>());
            assert_eq!(found.record, model.record);
        }
        let records = self.model.values().filter(|model| model.record.is_some()).count();
        assert_eq!(self.store().count(LogKind::Session, None).await, Ok(records));
    }
}
