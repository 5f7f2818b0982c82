//! Reconnects of one backend: it is dialled when its machine says so, and what comes of that is told to all who wait for it.

use std::sync::Arc;

use bowline_core::backend::{BackendNotice, Generation};
use bowline_env::{clock, entropy};

use super::{Note, Supervisor, limit_hit};
use crate::backend::BackendEvent;
use crate::catalogue::Catalogue;
use crate::fields::empty;
use crate::upstream::{self, Dial};

impl Supervisor {
    pub(super) fn dial(&mut self, generation: Generation) {
        let dial = Dial {
            name: self.key.name.clone(),
            generation,
            exchange: self.spec.exchange.or(self.exchange),
            only_exchange: self.spec.exchange.is_some(),
            events: self.transport_events.clone(),
            http: self.context.http.clone(),
            reach: self.reach,
            renewals: self.renewals.clone(),
            secrets: self.secrets.clone(),
            programs: self.context.programs.clone(),
            processes: self.context.processes,
            limit_hit: limit_hit(self.context.observer.clone()),
            over: self.over.clone(),
        };
        let (spec, notes, over) = (self.spec.clone(), self.notes.clone(), self.over.clone());
        self.context.programs.spawn(async move {
            let Some(dialled) = over.run_until_cancelled(upstream::dial(&spec, dial)).await else { return };
            let dialled = dialled.map(Arc::new);
            let _ = notes.send(Note::Dialled(generation, dialled)).await;
        });
    }

    pub(super) async fn told(&mut self, told: BackendNotice) {
        let capabilities =
            self.dispatcher.live().map_or_else(empty, |(_, transport)| transport.facts().capabilities.clone());
        let event = match told {
            BackendNotice::Connected => BackendEvent::Connected { capabilities },
            BackendNotice::Reconnected { attempts_taken, down } => {
                BackendEvent::Reconnected { capabilities, attempts_taken, down }
            }
            BackendNotice::Disconnected { intentional } => BackendEvent::Disconnected { intentional },
            BackendNotice::Reconnecting { attempt, next_retry } => BackendEvent::Reconnecting { attempt, next_retry },
            BackendNotice::Removed => BackendEvent::Removed,
        };
        match &event {
            BackendEvent::Connected { .. } | BackendEvent::Reconnected { .. } => self.connected(),
            BackendEvent::Disconnected { .. } => self.dispatcher.lock().health.pause(),
            BackendEvent::Removed => self.removed = true,
            _ => {}
        }
        self.publish();
        self.tell(event).await;
        if self.removed {
            // What it offered is gone with it.
            let offered = self.snapshot.borrow().catalogue.changes(&Catalogue::default());
            for method in offered {
                self.tell(BackendEvent::ListChanged(method)).await;
            }
        }
    }

    fn connected(&mut self) {
        self.dispatcher.lock().health.resume(clock::now(), entropy::chance());
        self.snapshot.send_modify(|now| now.connected_at_ms = Some(clock::wall_ms()));
        self.listing.reset();
        let Some((generation, transport)) = self.dispatcher.live() else { return };
        self.connected = Some(generation);
        self.want_lists();
        tokio::spawn(async move { transport.warm().await });
    }
}
