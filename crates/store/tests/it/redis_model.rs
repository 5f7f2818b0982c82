//! The store on Redis against a plain map.

use std::collections::BTreeMap;

use bowline_store::{RedisOptions, RedisStore, Store};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::model::{Model, RETENTION, Subject, World, op};
use crate::real_redis::{Redis, options};

struct OnRedis {
    store: RedisStore,
    options: RedisOptions,
}

impl Subject for OnRedis {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn reopen(&mut self, cleanly: bool, model: &BTreeMap<u8, Model>) {
        if cleanly {
            self.store().close().await;
        }
        self.store = RedisStore::open(self.options.clone()).await.unwrap();
        assert_eq!(self.store().health().logs, model.len() as u64);
    }
}

/// One server for all cases; each has a prefix of its own.
#[test]
#[ignore = "needs Redis"]
fn a_store_holds_what_a_map_would_hold() {
    let redis = Redis::start(&[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
    let case = std::cell::Cell::new(0);
    TestRunner::new(config)
        .run(&proptest::collection::vec(op(), 1..80), |ops| {
            case.set(case.get() + 1);
            let url = format!("{}?prefix=case{}", redis.url(), case.get());
            runtime.block_on(async {
                let options = options(&url, RETENTION);
                let store = RedisStore::open(options.clone()).await.unwrap();
                World::live(OnRedis { store, options }, &ops).await;
            });
            Ok(())
        })
        .unwrap();
}
