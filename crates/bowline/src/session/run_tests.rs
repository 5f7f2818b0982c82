//! A cancel that was confirmed to its caller stops its run, whatever becomes of the commit that says so.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::{Agent, AgentError, NoTools, OpenQuestion, Reply, Run, RunResult};
use bowline_env::Clock;
use bowline_protocol::event::names;
use bowline_protocol::frame::client::Content;
use bowline_protocol::{Extent, LogId, Principal, Seq, SessionId, json};
use bowline_store::memory::MemoryStore;
use bowline_store::{
    Batch, Claim, Commit, Committed, Directory, EventLog, Fence, Followed, Health, Holder, Leased, LogKind, ReadLimit,
    Record, Retention, Store, StoreError, TailGuard, Trimmed, WakeSet,
};
use bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::super::registry::{NewSession, SessionParts, Sessions};
use super::super::{CommandOutcome, SessionRequest};
use crate::config::{Config, StoreUrl};
use crate::keys::LoadedKeys;
use crate::live_keyring::LiveKeyring;
use crate::logs::Logs;
use crate::logs::SingleNode;
use crate::metrics::Metrics;
use crate::task::Tasks;

/// A store whose next commits fail like this, and are not kept.
struct Faulty {
    behind: MemoryStore,
    faults: Mutex<VecDeque<StoreError>>,
}

#[async_trait]
impl EventLog for Faulty {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        let fault = self.faults.lock().unwrap().pop_front();
        match fault {
            Some(fault) => Err(fault),
            None => self.behind.commit(commit).await,
        }
    }

    async fn read(&self, log: &LogId, from: Seq, limit: ReadLimit) -> Result<Batch, StoreError> {
        self.behind.read(log, from, limit).await
    }

    async fn extent(&self, log: &LogId) -> Result<Extent, StoreError> {
        self.behind.extent(log).await
    }

    fn tail(&self, log: &LogId, wake: &Arc<WakeSet>, token: u64) -> TailGuard {
        self.behind.tail(log, wake, token)
    }

    async fn is_awaited(&self, log: &LogId) -> Result<bool, StoreError> {
        self.behind.is_awaited(log).await
    }

    async fn close(&self) {
        self.behind.close().await;
    }
}

#[async_trait]
impl Directory for Faulty {
    async fn record(&self, log: &LogId) -> Result<Option<Record>, StoreError> {
        self.behind.record(log).await
    }

    async fn item(&self, log: &LogId, key: &str) -> Result<Option<Bytes>, StoreError> {
        self.behind.item(log, key).await
    }

    async fn items(&self, log: &LogId, prefix: &str) -> Result<Vec<(String, Bytes)>, StoreError> {
        self.behind.items(log, prefix).await
    }

    async fn items_at(&self, log: &LogId, keys: &[String]) -> Result<Vec<(String, Bytes)>, StoreError> {
        self.behind.items_at(log, keys).await
    }

    async fn list(&self, kind: LogKind, owner: Option<&Principal>) -> Result<Vec<(LogId, Record)>, StoreError> {
        self.behind.list(kind, owner).await
    }

    async fn count(&self, kind: LogKind, owner: Option<&Principal>) -> Result<usize, StoreError> {
        self.behind.count(kind, owner).await
    }

    async fn lease(&self, log: &LogId, claim: &Claim) -> Result<Leased, StoreError> {
        self.behind.lease(log, claim).await
    }

    async fn give_back(&self, log: &LogId, by: &Holder, fence: Fence) -> Result<(), StoreError> {
        self.behind.give_back(log, by, fence).await
    }

    async fn holder(&self, log: &LogId) -> Result<Option<Holder>, StoreError> {
        self.behind.holder(log).await
    }

    async fn sweep(&self, now_ms: u64) -> Result<Vec<Trimmed>, StoreError> {
        self.behind.sweep(now_ms).await
    }

    fn health(&self) -> Health {
        self.behind.health()
    }
}

/// Works until it is stopped, and goes on after a crash.
#[derive(Default)]
struct Endless {
    runs: AtomicUsize,
    began: Notify,
}

#[async_trait]
impl Agent for Endless {
    async fn run(&self, run: Run) -> RunResult {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.began.notify_one();
        run.cancel.cancelled().await;
        Err(AgentError::cancelled("stopped"))
    }

    async fn answered(&self, _: Run, _: OpenQuestion, _: Reply) -> RunResult {
        Err(AgentError::failed("It asks nothing."))
    }

    fn continues(&self) -> bool {
        true
    }
}

fn sessions(store: Arc<dyn Store>, agent: Arc<Endless>) -> (Arc<Sessions>, Arc<Logs>) {
    let mut config = Config::default();
    config.store.url = StoreUrl::Memory;
    let (config, metrics, draining) = (Arc::new(config), Arc::new(Metrics::new()), CancellationToken::new());
    let alone = Arc::new(SingleNode(store.clone()));
    let logs = Arc::new(Logs::new(store, Clock::start(), alone.clone(), metrics.clone()));
    let tasks = Tasks::new(config.clone(), logs.clone(), metrics.clone(), alone.clone(), draining.clone());
    let ring = LiveKeyring::new(LoadedKeys::load(&config).unwrap(), config.env.files.clone());
    let agents: BTreeMap<String, Arc<dyn Agent>> = [("endless".to_owned(), agent as Arc<dyn Agent>)].into();
    let (tasks, tools, router) = (Arc::new(tasks), Arc::new(NoTools), alone);
    let webhooks = None;
    let logs_of_all = logs.clone();
    let parts =
        SessionParts { config, logs: logs_of_all, metrics, router, tasks, agents, tools, webhooks, ring, draining };
    (Sessions::new(parts), logs)
}

/// The names of the events that ended runs, once there is one.
async fn endings(logs: &Logs, id: &SessionId) -> Vec<String> {
    let (log, wake) = (LogId::from(id), WakeSet::new());
    let epoch = logs.store.extent(&log).await.unwrap().epoch;
    let mut follower = logs.follow(&log, (&epoch, Seq::FIRST), &wake, 0);
    loop {
        match follower.next(ReadLimit { events: 100, bytes: 1 << 20 }).await.unwrap() {
            Followed::Events(events) => {
                let names = events.iter().filter_map(|event| Some(event.view()?.event.to_owned()));
                let ended: Vec<String> = names.filter(|name| names::TERMINAL.contains(&name.as_str())).collect();
                if !ended.is_empty() {
                    return ended;
                }
            }
            Followed::Idle => {
                wake.changed().await;
                follower.wake();
            }
            other => panic!("{other:?} where nothing is lost"),
        }
    }
}

#[tokio::test]
async fn a_cancel_that_is_owed_outlives_a_commit_in_doubt() {
    let plenty = Retention { events_max: 1000, age_max_ms: u64::MAX };
    let store = Arc::new(Faulty { behind: MemoryStore::new(plenty), faults: Mutex::default() });
    let agent = Arc::new(Endless::default());
    let (sessions, logs) = sessions(store.clone(), agent.clone());
    let owner = Principal::parse("ann").unwrap();
    let new = NewSession {
        owner: owner.clone(),
        agent: Some("endless".into()),
        client_id: None,
        app_version: None,
        config: serde_json::Map::new(),
    };
    let (id, _) = sessions.create_unheld(new, None, None).await.unwrap();
    let message =
        SessionRequest::Message { message_id: None, also: None, behind: None, content: Content(json::raw("work")) };
    assert!(matches!(sessions.ask(&id, &owner, None, message).await, Ok(CommandOutcome::Started { .. })));
    agent.began.notified().await;

    // The store is away, so the cancel is owed; when it is tried again, it is not known what became of it. It was not kept.
    let faults = [StoreError::Unavailable("away".into()), StoreError::InDoubt("cut off".into())];
    store.faults.lock().unwrap().extend(faults);
    let cancel = SessionRequest::Cancel { by: "ann".into(), reason: None, turn: None };
    assert!(matches!(sessions.ask(&id, &owner, None, cancel).await, Ok(CommandOutcome::Cancelled { ran: true })));

    // Only a hang reaches the limit.
    let endings = tokio::time::timeout(Duration::from_secs(30), endings(&logs, &id)).await;
    assert_eq!(endings.expect("the run ends"), [names::CANCELLED]);
    assert_eq!(agent.runs.load(Ordering::Relaxed), 1, "what was cancelled did not run again");
}
