//! What a backend offers: fetched when it is time, one list beside the other, and told where it differs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_core::backend::Generation;
use futures_util::future::join_all;

use super::{Driver, Note};
use crate::backend::{BackendEvent, Lists};
use crate::catalogue::{self, Fetched, ListKind};
use crate::clock::chance;

/// How long a list may take to be fetched.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

impl Driver {
    pub(super) fn want_lists(&mut self) {
        if self.listing.handle_wanted(Instant::now()) {
            self.fetch();
        }
    }

    pub(super) fn fetch(&mut self) {
        let Some((generation, link)) = self.desk.live() else { return self.listing.reset() };
        let notes = self.notes.clone();
        tokio::spawn(async move {
            // One that is not answered holds up none of the others.
            let groups = ListKind::GROUPS.map(|kinds| {
                let (link, notes) = (&link, &notes);
                async move {
                    let fetched = kinds.iter().map(|kind| catalogue::fetch(link, *kind, FETCH_TIMEOUT));
                    let _ = notes.send(Note::Listed(generation, join_all(fetched).await)).await;
                }
            });
            join_all(groups).await;
            let _ = notes.send(Note::Fetched(generation)).await;
        });
    }

    pub(super) fn listed(&mut self, generation: Generation, mut fetched: Vec<Fetched>) {
        if !self.desk.is_live(generation) {
            return;
        }
        for (_, came) in &mut fetched {
            if let Err(why) = came {
                *why = self.secrets.hide(std::mem::take(why));
            }
        }
        let catalogue = self.snapshot.borrow().catalogue.with(fetched);
        let changes = self.snapshot.borrow().catalogue.changes(&catalogue);
        self.snapshot.send_modify(|now| {
            now.catalogue = Arc::new(catalogue);
            if now.lists != Lists::Fetched {
                now.lists = Lists::Arriving;
            }
        });
        for method in changes {
            // If the hub's queue is full it is far behind, and will look at the lists anyway.
            let _ = self.around.events.try_send((self.key.clone(), BackendEvent::ListChanged(method)));
        }
    }

    pub(super) fn fetched(&mut self, generation: Generation) {
        if self.desk.is_live(generation) {
            let whole = self.snapshot.borrow().catalogue.is_whole();
            self.listing.handle_fetched(Instant::now(), whole, chance());
            self.snapshot.send_modify(|now| {
                now.lists = Lists::Fetched;
                now.fetches += 1;
            });
        }
    }
}
