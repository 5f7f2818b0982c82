//! The store on disk against a plain map.

use std::collections::BTreeMap;

use bowline_store::disk::Sync;
use bowline_store::{DiskOptions, DiskStore, Store};
use proptest::prelude::*;

use crate::common::{opened, scratch};
use crate::model::{Model, RETENTION, Subject, World, op};

struct OnDisk {
    store: Option<DiskStore>,
    options: DiskOptions,
}

impl OnDisk {
    fn open(&mut self, model: &BTreeMap<u8, Model>) {
        let (store, report) = opened(|| DiskStore::open(self.options.clone()));
        assert_eq!((report.damage, report.epochs_changed, report.torn_bytes), (vec![], 0, 0));
        let events: usize = model.values().map(|model| model.events.len()).sum();
        assert_eq!((report.logs, report.events), (model.len() as u64, events as u64));
        self.store = Some(store);
    }
}

impl Subject for OnDisk {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    async fn reopen(&mut self, cleanly: bool, model: &BTreeMap<u8, Model>) {
        if cleanly {
            self.store().close().await;
        }
        self.store = None;
        self.open(model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_store_holds_what_a_map_would_hold(ops in proptest::collection::vec(op(), 1..120), interval: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let dir = scratch();
        let options = DiskOptions {
            sync: if interval { Sync::INTERVAL } else { Sync::Always },
            // So small that segments come and go, and most reads are cold.
            segment_bytes: 4 << 10,
            cache_bytes: 4 << 10,
            ..DiskOptions::new(dir.path(), RETENTION)
        };
        let mut subject = OnDisk { store: None, options };
        subject.open(&BTreeMap::new());
        runtime.block_on(async {
            let subject = World::live(subject, &ops).await;
            subject.store().close().await;
        });
    }
}
