//! The store on Redis passes the suite that every store passes: on one server, and on a cluster of three masters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bowline_store::contract::Fixture;
use bowline_store::{RedisStore, Retentions, Store, StoreError};

use crate::real_redis::{Cluster, Redis, options};

/// Stores with a prefix for each, so that each opens an empty one.
struct OnRedis {
    url: String,
    opened: AtomicUsize,
}

impl OnRedis {
    fn at(url: String) -> OnRedis {
        OnRedis { url, opened: AtomicUsize::new(0) }
    }

    async fn start(&self, retention: Retentions) -> Arc<dyn Store> {
        let url = format!("{}?prefix=t{}", self.url, self.opened.load(Ordering::Relaxed));
        Arc::new(RedisStore::open(options(&url, retention)).await.unwrap())
    }
}

#[async_trait]
impl Fixture for OnRedis {
    async fn open(&self, retention: Retentions) -> Arc<dyn Store> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.start(retention).await
    }

    async fn reopen(&self, store: Arc<dyn Store>, retention: Retentions) -> Option<Arc<dyn Store>> {
        store.close().await;
        assert_eq!(store.sweep(0).await, Err(StoreError::Closed));
        Some(self.start(retention).await)
    }
}

mod one_server {
    use super::*;

    macro_rules! each {
        ($test:ident) => {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs Redis"]
            async fn $test() {
                let redis = Redis::start(&[]);
                bowline_store::contract::$test(&OnRedis::at(redis.url())).await;
            }
        };
    }
    bowline_store::contract!(each);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn the_documented_rights_are_enough_for_the_whole_suite() {
    let redis = Redis::start(&[]);
    redis.let_in_as_documented("t*");
    let fixture = OnRedis::at(format!("redis://bowline:PASSWORD@127.0.0.1:{}", redis.port));
    macro_rules! each {
        ($test:ident) => {
            println!("{}", stringify!($test));
            bowline_store::contract::$test(&fixture).await;
        };
    }
    bowline_store::contract!(each);
    assert_eq!(redis.cli(&["acl", "log"]), "", "nothing that was asked for was denied");
}

/// One cluster for all: to make one takes seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis"]
async fn a_cluster_of_three_masters_passes_the_whole_suite() {
    let cluster = Cluster::start();
    let fixture = OnRedis::at(cluster.0[0].url());
    macro_rules! each {
        ($test:ident) => {
            println!("{}", stringify!($test));
            bowline_store::contract::$test(&fixture).await;
        };
    }
    bowline_store::contract!(each);
    for redis in &cluster.0 {
        assert_ne!(redis.cli(&["dbsize"]), "0", "every master has a part of it");
    }
}
