//! A page of a caller's sessions, the most recently used first.

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::sync::Arc;

use bowline_protocol::{LogId, Principal, Refusal};
use bowline_store::{LogKind, Record};

use super::record::{Life, SessionRecord};
use super::registry::Sessions;
use crate::config::Ownership;
use crate::refusals;
use crate::secret::Presented;

#[derive(Debug)]
pub struct ListedSessions {
    pub sessions: Vec<(LogId, SessionRecord)>,
    /// How many there are on all pages.
    pub total: usize,
}

impl Sessions {
    /// Sessions of the asker's own that are not over. If the store keeps the order and this node the count, that costs what
    /// the page shows. Else all of the asker's sessions are looked at: on a shared store other nodes' changes are counted
    /// late, and where secrets prove ownership, only the records know which sessions the asker's secret opens.
    pub async fn page(
        self: &Arc<Self>,
        asker: &Principal,
        proof: Option<&Presented>,
        offset: usize,
        limit: usize,
    ) -> Result<ListedSessions, Refusal> {
        let ownership = self.config.session.ownership;
        let is_counted = ownership != Ownership::Token && !self.logs.placement.is_shared();
        let known_total = is_counted.then(|| self.live_count(asker));
        let (mut found, mut sessions, mut first_uses) = (0, Vec::new(), Vec::new());
        let mut visit = |log: &LogId, stored: &Record| {
            let Ok(record) = SessionRecord::decode(&stored.body) else { return ControlFlow::Continue(()) };
            if record.life != Life::Active || record.is_proven(ownership, proof).is_err() {
                return ControlFlow::Continue(());
            }
            found += 1;
            if record.is_first_use(ownership, proof) {
                first_uses.push((log.clone(), record.clone()));
            }
            if found > offset && sessions.len() < limit {
                sessions.push((log.clone(), record));
            }
            match known_total {
                Some(_) if sessions.len() == limit => ControlFlow::Break(()),
                Some(_) | None => ControlFlow::Continue(()),
            }
        };
        let visited = self.logs.store.newest(LogKind::Session, Some(asker), &mut visit).await;
        visited.map_err(|error| refusals::of_store(&error))?;
        for (log, record) in &first_uses {
            self.prove(log, record, asker, proof).await?;
        }
        sessions.sort_by_key(|(_, record)| Reverse((record.touched_ms, record.created_ms)));
        Ok(ListedSessions { sessions, total: known_total.unwrap_or(found) })
    }
}
