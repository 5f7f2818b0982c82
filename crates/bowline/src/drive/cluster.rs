//! Drives this node's part among the others: its inbox, its signs of life, and what becomes of those who die.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_actor::ActorHost as _;
use bowline_core::Resume;
use bowline_core::peers::Sign;
use bowline_env::{clock, entropy};
use bowline_hub::{Hub, serve_neighbour};
use bowline_mutant::mutant;
use bowline_protocol::{Cursor, Epoch, LogId, Seq};
use bowline_store::{
    Commit, Committed, Fence, Followed, Follower, Holder, LogKind, ReadLimit, Record, Release, Start, StoreError,
    WakeSet,
};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::cluster::{Cluster, NodeRecord, PeerCommand, RemoteAsk, Seen, WIRE_VERSION, read_envelope};
use crate::hub;
use crate::lifecycle::Lifecycle;
use crate::maintenance::Maintenance;
use crate::metrics::Metrics;
use crate::session::Sessions;
use crate::task::Tasks;

/// What other nodes ask is done by so many workers at once, and for one session in order.
const WORKERS: usize = 16;
/// How often nodes that owe an answer are looked after.
const LOOK_AFTER: Duration = Duration::from_millis(100);
/// How long a session without a run may take to be given back by a node that leaves: a mark is written, and the lease.
const GIVEN_BACK: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// The inbox is looked at this often, also without a wake-up.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// This node among the others: what they may ask of it, and what it does for those who die.
pub struct ClusterMember {
    pub cluster: Arc<Cluster>,
    pub address: SocketAddr,
    pub lifecycle: Arc<Lifecycle>,
    pub metrics: Arc<Metrics>,
    pub sessions: Arc<Sessions>,
    pub tasks: Arc<Tasks>,
    pub hub: Arc<Hub>,
    pub maintenance: Arc<Maintenance>,
}

impl fmt::Debug for ClusterMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({})", self.cluster.name)
    }
}

/// Reads the inbox for ever.
pub async fn inbox(member: Arc<ClusterMember>) {
    let cluster = &member.cluster;
    let wake = WakeSet::new();
    let workers: Vec<mpsc::UnboundedSender<PeerCommand>> = (0..WORKERS).map(|_| spawn_worker(member.clone())).collect();
    let mut follower = follow_inbox(cluster, &wake).await;
    loop {
        match follower.next(ReadLimit { events: 1024, bytes: 4 << 20 }).await {
            Ok(Followed::Events(events)) => {
                for envelope in events.iter().filter_map(read_envelope) {
                    dispatch(&workers, cluster.handle(envelope));
                }
            }
            // The store has forgotten the inbox, or some of it, before it was read.
            Ok(Followed::Gap { .. }) => dispatch(&workers, cluster.renew("its inbox was lost")),
            Ok(Followed::Epoch(extent)) => {
                dispatch(&workers, cluster.renew("its inbox was lost"));
                // What was read before stays read: only numbers of the new epoch may have been given twice.
                let mark = Cursor { epoch: Some(follower.epoch().clone()), seq: follower.position().prev() };
                follower.seek(Resume::behind_mark(&extent, &mark).start(&extent));
                follower.enter(&extent.epoch);
            }
            Ok(Followed::Idle) => {
                // A node that was frozen may have slept through a wake-up.
                let woken = tokio::time::timeout(LOOK_EVERY, wake.woken()).await.is_ok();
                wake.take();
                if woken { follower.wake() } else { follower.doubt() }
            }
            Err(error) => {
                tracing::debug!(%error, "the inbox cannot be read yet");
                tokio::time::sleep(RETRY_EVERY).await;
            }
        }
    }
}

/// A reader of this node's inbox, as soon as the store can say where it begins.
async fn follow_inbox(cluster: &Cluster, wake: &Arc<WakeSet>) -> Follower {
    loop {
        match cluster.store.extent(&cluster.log).await {
            Ok(extent) => return Follower::new(&cluster.store, &cluster.log, (&extent.epoch, extent.first), wake, 0),
            Err(error) => tracing::debug!(%error, "the inbox cannot be read yet"),
        }
        tokio::time::sleep(RETRY_EVERY).await;
    }
}

fn dispatch(workers: &[mpsc::UnboundedSender<PeerCommand>], commands: Vec<PeerCommand>) {
    for command in commands {
        // A worker ends only with the loop that reads the inbox.
        let _ = workers[worker_for(&command)].send(command);
    }
}

fn worker_for(command: &PeerCommand) -> usize {
    let mut hasher = DefaultHasher::new();
    match command {
        PeerCommand::Session { session, .. } => session.hash(&mut hasher),
        PeerCommand::Remote(remote) => remote.session.hash(&mut hasher),
        PeerCommand::Task { task, .. } => task.hash(&mut hasher),
        PeerCommand::Hub { .. } | PeerCommand::Verify => {}
    }
    hasher.finish() as usize % WORKERS
}

fn spawn_worker(member: Arc<ClusterMember>) -> mpsc::UnboundedSender<PeerCommand> {
    let (commands, mut todo) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(command) = todo.recv().await {
            run(&member, command).await;
        }
    });
    commands
}

async fn run(member: &Arc<ClusterMember>, command: PeerCommand) {
    match command {
        PeerCommand::Session { session, asker, command } => member.sessions.deliver(&session, &asker, *command).await,
        PeerCommand::Remote(remote) => receive(member, *remote).await,
        PeerCommand::Task { task, asker, command } => member.tasks.deliver(&task, &asker, command).await,
        PeerCommand::Hub { ask, asker } => {
            // It may take as long as a tool does.
            let hub = member.hub.clone();
            tokio::spawn(async move { serve_neighbour(&hub, ask.get(), Box::new(asker)).await });
        }
        PeerCommand::Verify => member.sessions.verify_all(),
    }
}

/// Does what another node asks, unless that node can do it itself, since this one is leaving.
async fn receive(member: &Arc<ClusterMember>, remote: RemoteAsk) {
    let cluster = &member.cluster;
    if member.lifecycle.is_draining() && is_given_back(member, &remote).await {
        if remote.ask.is_awaited() {
            cluster.send_back(remote);
        }
        return;
    }
    let (session, asker) = (remote.session.clone(), remote.asker.clone());
    if let Some(command) = cluster.admit(remote) {
        member.sessions.deliver(&session, &asker, command).await;
    }
}

/// Whether a session is free for other nodes. One that has no run under way is about to be, and is waited for.
async fn is_given_back(member: &ClusterMember, remote: &RemoteAsk) -> bool {
    let cluster = &member.cluster;
    let until = clock::now() + GIVEN_BACK;
    while clock::now() < until {
        match member.sessions.presence(&remote.session) {
            Some(presence) if presence.at_work.load(Ordering::Relaxed) => return false,
            Some(_) => {}
            None => {
                let Ok((log, _)) = member.sessions.look_up(&remote.session, &remote.asker).await else { return false };
                match cluster.store.holder(&log).await {
                    Ok(holder) if holder.as_ref() != Some(&cluster.name) => return true,
                    Ok(_) => {}
                    Err(_) => return false,
                }
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    false
}

/// Shows this node's signs of life, and looks at those of the others, for ever.
pub async fn heartbeats(member: Arc<ClusterMember>) {
    let cluster = &member.cluster;
    let every = cluster.ttl / 8;
    let (mut beat, mut due, mut shown) = (1, clock::now(), cluster.clock.uptime());
    let (mut epoch, mut recovery): (Option<Epoch>, Option<AbortHandle>) = (None, None);
    loop {
        let now = clock::now();
        if now >= due {
            due = now + every;
            beat += 1;
            let mut given = send_heartbeat(&member, beat, false).await;
            if matches!(given, Err(StoreError::NoSuchLog)) {
                // The others have removed what they took for the last trace of a dead node, or the store has lost it.
                run_all(&member, cluster.renew("its record was gone"));
                given = register(&member, beat).await;
            }
            match &given {
                Ok(stored) => {
                    let was = epoch.replace(stored.epoch.clone());
                    if was.is_some_and(|was| was != stored.epoch) && !mutant("leave-what-a-loss-left") {
                        // The log of this node is in another epoch, so what the store had answered last may be gone.
                        let recovers = recover_from_loss(&member);
                        recovery.replace(recovers).inspect(AbortHandle::abort);
                    }
                    let uptime = cluster.clock.uptime();
                    if uptime.saturating_sub(shown) >= cluster.ttl * 3 / 4 {
                        // Others may have taken what was ours. Each session finds out for itself.
                        tracing::warn!("this node was away for longer than its leases last");
                        member.sessions.verify_all();
                    }
                    shown = uptime;
                }
                Err(error) => tracing::warn!(%error, "the heartbeat could not be written"),
            }
            let is_shown = given.is_ok();
            cluster.note_heartbeat(given.map(drop).map_err(|error| error.to_string()));
            look_at_peers(&member).await;
            if is_shown {
                cluster.settle_locks().await;
                cluster.give_back_leases().await;
                clean_up(cluster).await;
            }
        }
        for node in cluster.suspects(clock::now()) {
            if is_gone(cluster, &node).await {
                take_over(&member, node);
            }
        }
        if tokio::time::timeout(LOOK_AFTER.min(every), cluster.renewed.notified()).await.is_ok() {
            // The others wait to see it.
            due = clock::now();
        }
    }
}

/// Answers those who have waited for another node for too long, whatever the store does.
pub async fn deadlines(cluster: Arc<Cluster>) {
    let every = (cluster.answer_timeout / 16).min(LOOK_EVERY);
    loop {
        tokio::time::sleep(every).await;
        cluster.expire_waiting(clock::now());
    }
}

fn run_all(member: &Arc<ClusterMember>, commands: Vec<PeerCommand>) {
    let member = member.clone();
    tokio::spawn(async move {
        for command in commands {
            run(&member, command).await;
        }
    });
}

/// Whether a node does not listen at its inbox, seen often enough to believe it.
async fn is_gone(cluster: &Cluster, node: &Holder) -> bool {
    let Some(log) = LogId::parse(node.as_str()) else { return false };
    // If we do not listen either, it is the store that has just come back.
    let (theirs, ours) = (cluster.store.is_awaited(&log).await, cluster.store.is_awaited(&cluster.log).await);
    match (theirs, ours) {
        (Ok(theirs), Ok(true)) => cluster.heard(clock::now(), node, theirs),
        _ => {
            cluster.heard(clock::now(), node, true);
            false
        }
    }
}

fn take_over(member: &Arc<ClusterMember>, node: Holder) {
    tracing::warn!(%node, "a node is gone; what it held is taken over");
    member.metrics.nodes_lost.inc();
    let commands = member.cluster.declare_dead(&node);
    let member = member.clone();
    tokio::spawn(async move {
        for command in commands {
            run(&member, command).await;
        }
        if let Err(error) = member.maintenance.take_over(&node).await {
            tracing::warn!(%error, %node, "what a dead node held could not all be taken over");
        }
    });
}

/// Takes up what a loss of the store may have left behind, as often as it takes.
fn recover_from_loss(member: &Arc<ClusterMember>) -> AbortHandle {
    tracing::warn!("the store may have lost what it had answered; what that leaves behind is taken up");
    let (member, retry_every) = (member.clone(), member.cluster.ttl / 8);
    let recovers = tokio::spawn(async move {
        member.sessions.verify_all();
        member.tasks.verify_all();
        loop {
            match member.maintenance.take_up_after_loss().await {
                Ok(()) | Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!(%error, "not all could be taken up; it is tried again"),
            }
            tokio::time::sleep(retry_every).await;
        }
    });
    recovers.abort_handle()
}

/// Writes this node's record, which is its heartbeat.
pub async fn send_heartbeat(member: &ClusterMember, beat: u64, left: bool) -> Result<Committed, StoreError> {
    member.cluster.store.commit(sign(member, beat, left)).await
}

/// The same for one that has no record: makes its log.
async fn register(member: &ClusterMember, beat: u64) -> Result<Committed, StoreError> {
    let mut commit = sign(member, beat, false);
    commit.create = Some(Start { epoch: Epoch::from_random(entropy::u64()), after: Seq::ZERO });
    match member.cluster.store.commit(commit).await {
        // An earlier attempt was kept after all.
        Err(StoreError::Exists) => send_heartbeat(member, beat, false).await,
        done => done,
    }
}

fn sign(member: &ClusterMember, beat: u64, left: bool) -> Commit {
    let cluster = &member.cluster;
    let record = NodeRecord {
        beat,
        left,
        draining: member.lifecycle.is_draining(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        incarnation: cluster.incarnation(),
        wire: WIRE_VERSION,
        address: member.address.to_string(),
        started_ms: cluster.clock.started_ms(),
        backends: serde_json::to_value(hub::backend_views(&member.hub)).unwrap_or_default(),
    };
    let body = serde_json::to_vec(&record).unwrap_or_default().into();
    let now_ms = cluster.clock.now_ms();
    let mut commit = Commit::to(cluster.log.clone(), Fence::OPEN, now_ms);
    commit.record = Some(Record { kind: LogKind::Node, owner: cluster.owner.clone(), touched_ms: now_ms, body });
    commit
}

/// The records of all nodes but this one.
pub async fn others(cluster: &Cluster) -> Result<Vec<(Holder, NodeRecord)>, StoreError> {
    let records = cluster.store.list(LogKind::Node, None).await?;
    let nodes = records.into_iter().filter_map(|(log, record)| {
        Some((Holder::parse(log.as_str())?, serde_json::from_slice::<NodeRecord>(&record.body).ok()?))
    });
    Ok(nodes.filter(|(node, _)| *node != cluster.name).collect())
}

/// Looks who is there, and sees to what the dead have left.
pub async fn look_at_peers(member: &Arc<ClusterMember>) {
    match look(&member.cluster).await {
        Ok((dead, commands)) => {
            run_all(member, commands);
            dead.into_iter().for_each(|node| take_over(member, node));
        }
        Err(error) => tracing::debug!(%error, "the other nodes cannot be seen"),
    }
}

async fn look(cluster: &Arc<Cluster>) -> Result<(Vec<Holder>, Vec<PeerCommand>), StoreError> {
    let records = others(cluster).await?.into_iter();
    let seen = records.map(|(node, record)| {
        let sign = Sign { beat: record.beat, left: record.left };
        (node, Seen { sign, incarnation: record.incarnation })
    });
    Ok(cluster.handle_records(clock::now(), seen.collect()))
}

/// Begins: shows itself, and looks after all whose records are there, since they may be of the dead.
pub async fn join(member: &ClusterMember) -> Result<(), StoreError> {
    let cluster = &member.cluster;
    register(member, 1).await?;
    cluster.note_heartbeat(Ok(()));
    for (node, record) in others(cluster).await? {
        if !record.left {
            cluster.suspect(&node);
        }
    }
    look(cluster).await.map(drop)
}

/// The records of those who are long dead go.
async fn clean_up(cluster: &Cluster) {
    for node in cluster.forgettable(clock::now()) {
        let Some(log) = LogId::parse(node.as_str()) else { continue };
        let mut commit = Commit::to(log, Fence::OPEN, 0);
        commit.release = Some(Release::Log);
        if matches!(cluster.store.commit(commit).await, Ok(_) | Err(StoreError::NoSuchLog)) {
            cluster.forget(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Backends;

    /// What a node's record says of its backends, for operators who ask another node. A change that makes this fail breaks a rolling
    /// upgrade: what a node does not know is passed on, and what an older one does not say is left out.
    #[test]
    fn what_a_record_says_of_backends_is_written_as_it_was() {
        let record = serde_json::json!({
            "beat": 3, "version": "0.1.0", "incarnation": 2, "wire": 1, "address": "127.0.0.1:1", "started_ms": 5,
            "backends": {
                "backends": [
                    {
                        "name": "files", "owner": null, "configured": true, "command": "files", "status": "connected",
                        "connected": true, "connectedAt": "2026-01-01T00:00:00Z", "protocolVersion": "2025-11-25", "tools": 2,
                        "calls": { "total": 1, "open": 0, "outcomes": { "ok": 1 }, "meanMs": 1.5, "lastMs": 1.5 },
                        "serverInfo": { "name": "files" }, "newer": 1,
                    },
                    {
                        "name": "search", "owner": "ann", "url": "http://s", "status": "reconnecting", "connected": false,
                        "lastError": "refused", "reconnectAttempt": 2, "nextRetryMs": 500, "healthStatus": "degraded",
                        "consecutiveHealthFailures": 1, "tools": 0,
                    },
                ],
                "removed": [{ "name": "old", "url": "http://o", "removedAt": "2026-01-01T00:00:00Z" }],
            },
        });
        let read: NodeRecord = serde_json::from_value(record.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), record);
        let backends: Backends = serde_json::from_value(read.backends).unwrap();
        assert_eq!(serde_json::to_value(backends).unwrap(), record["backends"]);
        let older = serde_json::json!({ "backends": [{ "name": "files", "status": "connected", "connected": true }] });
        let older: Backends = serde_json::from_value(older).unwrap();
        assert_eq!(serde_json::to_value(older).unwrap()["removed"], serde_json::json!([]));
    }
}
