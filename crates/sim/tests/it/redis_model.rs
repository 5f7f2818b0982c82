//! The model of Redis passes the suite that every store passes, as the real one does in the store's own tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bowline_env::clock;
use bowline_env::net::{Network, OsNetwork};
use bowline_protocol::Seq;
use bowline_sim::redis::server::{RedisKeeping, SimRedis};
use bowline_store::contract::{Fixture, PLENTY, create, event, id, seq};
use bowline_store::{
    Claim, Commit, Directory as _, EventLog as _, Fence, Holder, Leased, RedisOptions, RedisStore, RedisUrl,
    Retentions, Store, StoreError,
};

/// Stores on one model, with a prefix for each, so that each opens an empty one.
struct OnModel {
    address: SocketAddr,
    opened: AtomicUsize,
}

impl OnModel {
    async fn start() -> OnModel {
        let time = Arc::new(|| clock::wall_ms() * 1000);
        OnModel::of(SimRedis::new(RedisKeeping::Everything, time)).await
    }

    async fn of(redis: SimRedis) -> OnModel {
        let listener = OsNetwork.listen(([127, 0, 0, 1], 0).into()).await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        tokio::spawn(redis.serve(listener));
        OnModel { address, opened: AtomicUsize::new(0) }
    }

    async fn store(&self, retention: Retentions) -> Arc<dyn Store> {
        Arc::new(self.redis_store(retention).await)
    }

    async fn redis_store(&self, retention: Retentions) -> RedisStore {
        let url = format!("redis://{}?prefix=t{}", self.address, self.opened.load(Ordering::Relaxed));
        let url = RedisUrl::parse(&url).expect("it is a URL");
        RedisStore::open(RedisOptions::new(url, retention)).await.expect("the model is there")
    }
}

#[async_trait]
impl Fixture for OnModel {
    async fn open(&self, retention: Retentions) -> Arc<dyn Store> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.store(retention).await
    }

    async fn reopen(&self, store: Arc<dyn Store>, retention: Retentions) -> Option<Arc<dyn Store>> {
        store.close().await;
        assert_eq!(store.sweep(0).await, Err(StoreError::Closed));
        Some(self.store(retention).await)
    }
}

macro_rules! each {
    ($test:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            bowline_store::contract::$test(&OnModel::start().await).await;
        }
    };
}
bowline_store::contract!(each);

async fn lease(store: &RedisStore) -> Fence {
    store.lease(&id("log"), &Claim::alone()).await.and_then(Leased::fence).expect("nobody else has it")
}

async fn add(store: &RedisStore, fence: Fence, text: &str) -> Result<Seq, StoreError> {
    let commit = Commit { events: vec![event(text)], ..Commit::to(id("log"), fence, 0) };
    store.commit(commit).await.map(|done| done.first)
}

/// As `redis_faults` of the store has it with a real Redis, for those who have none.
#[tokio::test]
async fn who_builds_on_what_redis_has_lost_is_refused_and_has_to_look_again() {
    let now = Arc::new(AtomicUsize::new(1_000_000));
    let time = now.clone();
    let redis =
        SimRedis::new(RedisKeeping::AllButTheLast, Arc::new(move || time.load(Ordering::Relaxed) as u64 * 1000));
    let store = OnModel::of(redis.clone()).await.redis_store(PLENTY).await;
    store.commit(create("log")).await.unwrap();
    let fence = lease(&store).await;
    assert_eq!(add(&store, fence, "a").await, Ok(seq(1)));
    let before = store.extent(&id("log")).await.unwrap().epoch;

    // With everything in its file, whoever has the log goes on.
    redis.note_time();
    redis.die(0);
    assert_eq!(add(&store, fence, "b").await, Ok(seq(2)));
    let after = store.extent(&id("log")).await.unwrap().epoch;
    assert_ne!(before, after, "which is not known, and so told as a new epoch");

    now.fetch_add(100, Ordering::Relaxed);
    redis.note_time();
    assert_eq!(add(&store, fence, "c").await, Ok(seq(3)));
    redis.die(0);
    for _ in 0..2 {
        assert!(matches!(add(&store, fence, "d").await, Err(StoreError::InDoubt(_))), "`c` is gone");
    }
    assert_eq!(store.extent(&id("log")).await.unwrap().next, seq(3), "and nothing was done");
    assert_eq!(add(&store, lease(&store).await, "d").await, Ok(seq(3)));
    assert_ne!(store.extent(&id("log")).await.unwrap().epoch, after, "3 was `c` before");
}

#[tokio::test]
async fn a_holder_whose_lease_redis_has_lost_does_not_undo_what_the_one_before_wrote_since() {
    let redis = SimRedis::new(RedisKeeping::AllButTheLast, Arc::new(|| clock::wall_ms() * 1000));
    let model = OnModel::of(redis.clone()).await;
    let (one, other) = (model.redis_store(PLENTY).await, model.redis_store(PLENTY).await);
    let name = |name| Holder::parse(name).unwrap();
    one.commit(create("log")).await.unwrap();
    let first = one.lease(&id("log"), &Claim::by(name("one"))).await.and_then(Leased::fence).unwrap();
    assert_eq!(add(&one, first, "a").await, Ok(seq(1)));
    redis.note_time();
    let claim = Claim { instead_of: Some(name("one")), ..Claim::by(name("other")) };
    let second = other.lease(&id("log"), &claim).await.and_then(Leased::fence).unwrap();
    assert_eq!(add(&other, second, "b").await, Ok(seq(2)));
    redis.die(0);
    // Redis knows of no other holder than the first, which goes on.
    assert_eq!(add(&one, first, "c").await, Ok(seq(2)));
    assert!(matches!(add(&other, second, "d").await, Err(StoreError::InDoubt(_))), "it does not know of `c`");
    assert_eq!(add(&one, first, "e").await, Ok(seq(3)));
}
