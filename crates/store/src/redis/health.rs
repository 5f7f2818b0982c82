//! How Redis is doing: asked every few seconds, reported by [`Health`](crate::Health) at any moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_env::clock;

use super::index::Index;
use super::server::{Keeping, ServerInfo};
use super::topology::Topology;
use crate::Health;

const ASK_EVERY: Duration = Duration::from_secs(2);
/// Counting walks the lists of all servers, and a figure for an operator may be a little old.
const COUNT_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct HealthMonitor {
    logs: AtomicU64,
}

impl HealthMonitor {
    pub fn note_logs(&self, logs: u64) {
        self.logs.store(logs, Ordering::Relaxed);
    }

    pub fn note_created(&self) {
        self.logs.fetch_add(1, Ordering::Relaxed);
    }

    pub fn note_released(&self) {
        // Never below zero: a count that is taken meanwhile may know it already.
        let _ = self.logs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |logs| logs.checked_sub(1));
    }

    /// Asks for ever. The slot map of a cluster is fetched again whenever an operation found it wrong.
    pub async fn run(self: Arc<Self>, index: Index) {
        let topology = index.topology.clone();
        let mut count_at = clock::now() + COUNT_EVERY;
        loop {
            let moved = tokio::time::timeout(ASK_EVERY, topology.moved.notified()).await.is_ok();
            if moved
                || (topology.is_cluster() && topology.masters().iter().any(|master| master.server.outage().is_some()))
            {
                // It fails while no server can be reached, and is tried again then.
                let _ = topology.refresh().await;
            }
            for master in topology.masters() {
                let Ok(mut wire) = master.server.reader().await else { continue };
                let before = wire.facts.run.clone();
                match wire.ask(&topology.options.url.era, topology.options.timeout).await {
                    Ok(facts) => {
                        if facts.run != before {
                            // All connections to it are made anew, so that nothing is committed in the name of its past.
                            master.server.drop_reader();
                        }
                        master.server.note_facts(facts);
                        master.server.note_fine();
                    }
                    Err(why) => {
                        master.server.note_outage(&format!("Redis at {} cannot be used: {why}", master.server));
                        master.server.drop_reader();
                    }
                }
            }
            if clock::now() >= count_at {
                if let Ok(logs) = index.count_all().await {
                    self.note_logs(logs);
                }
                count_at = clock::now() + COUNT_EVERY;
            }
        }
    }

    pub fn health(&self, topology: &Topology) -> Health {
        let masters = topology.masters();
        let away = masters.iter().filter_map(|master| master.server.outage().map(|(_, why)| why));
        let mut problems: Vec<String> =
            away.chain(masters.iter().filter_map(|master| master.server.refusal())).collect();
        let writable = problems.is_empty();
        let facts: Vec<ServerInfo> = masters.iter().map(|master| master.server.facts()).collect();
        let wanted = u64::from(topology.options.wait_replicas);
        if facts.iter().any(|facts| facts.replicas < wanted) {
            problems.push(format!("fewer than {wanted} replicas are connected, so commits cannot be answered"));
        }
        Health {
            writable,
            problems,
            loss_window: loss_window(&facts, wanted),
            quarantined: Vec::new(),
            bytes: facts.iter().map(|facts| facts.bytes).sum(),
            logs: self.logs.load(Ordering::Relaxed),
        }
    }
}

/// What the servers' own settings leave to chance. The worst of them counts.
fn loss_window(facts: &[ServerInfo], wait_replicas: u64) -> String {
    let worst = facts.iter().map(|facts| &facts.keeping).min_by_key(|keeping| match keeping {
        Keeping::Nothing => 0,
        Keeping::Snapshots => 1,
        Keeping::File { sync: None } => 2,
        Keeping::File { sync: Some(sync) } => match sync.as_str() {
            "no" => 3,
            "everysec" => 4,
            _ => 5,
        },
    });
    let restart = match worst {
        None | Some(Keeping::Nothing) => "Redis keeps nothing on disk: everything is lost when it stops".to_owned(),
        Some(Keeping::Snapshots) => {
            "Redis keeps snapshots only: what came after the last one is lost when it stops".to_owned()
        }
        Some(Keeping::File { sync }) => match sync.as_deref() {
            Some("always") => "Redis syncs its file before it answers: its restart loses nothing".to_owned(),
            Some("everysec") => "Redis syncs its file every second: a crash can lose about the last second".to_owned(),
            Some("no") => "Redis leaves syncing to the kernel: a power cut can lose half a minute".to_owned(),
            _ => "Redis keeps a file and does not tell how it syncs it".to_owned(),
        },
    };
    let replicas = facts.iter().map(|facts| facts.replicas).min().unwrap_or(0);
    let failover = match (wait_replicas, replicas) {
        (0, 0) => "it has no replica".to_owned(),
        (0, _) => "a failover can lose what the replica had not received yet".to_owned(),
        (wanted, _) => format!("what was answered had reached {wanted} replicas"),
    };
    format!("{restart}; {failover}; a loss shows as a new epoch")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_window_is_that_of_the_worst_server() {
        let facts = |keeping, replicas| ServerInfo { keeping, replicas, ..ServerInfo::default() };
        let file = |sync: &str| Keeping::File { sync: Some(sync.into()) };
        for (servers, wanted, expected) in [
            (vec![facts(file("always"), 1), facts(Keeping::Nothing, 1)], 0, "everything is lost"),
            (vec![facts(file("always"), 0), facts(file("everysec"), 1)], 0, "about the last second; it has no replica"),
            (vec![facts(file("always"), 2)], 0, "a failover can lose"),
            (vec![facts(file("always"), 2)], 2, "loses nothing; what was answered had reached 2 replicas"),
            (vec![facts(Keeping::Snapshots, 0)], 0, "after the last one"),
        ] {
            let said = loss_window(&servers, wanted);
            assert!(said.contains(expected), "{said}");
        }
    }
}
