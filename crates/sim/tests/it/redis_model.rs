//! The model of Redis passes the suite that every store passes, as the real one does in the store's own tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bowline_env::clock;
use bowline_env::net::{Network, OsNetwork};
use bowline_sim::redis::server::{RedisKeeping, SimRedis};
use bowline_store::contract::Fixture;
use bowline_store::{RedisOptions, RedisStore, RedisUrl, Retentions, Store, StoreError};

/// Stores on one model, with a prefix for each, so that each opens an empty one.
struct OnModel {
    address: SocketAddr,
    opened: AtomicUsize,
}

impl OnModel {
    async fn start() -> OnModel {
        let time = Arc::new(|| clock::wall_ms() * 1000);
        let redis = SimRedis::new(RedisKeeping::Everything, time);
        let listener = OsNetwork.listen(([127, 0, 0, 1], 0).into()).await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        tokio::spawn(redis.serve(listener));
        OnModel { address, opened: AtomicUsize::new(0) }
    }

    async fn store(&self, retention: Retentions) -> Arc<dyn Store> {
        let url = format!("redis://{}?prefix=t{}", self.address, self.opened.load(Ordering::Relaxed));
        let url = RedisUrl::parse(&url).expect("it is a URL");
        Arc::new(RedisStore::open(RedisOptions::new(url, retention)).await.expect("the model is there"))
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
