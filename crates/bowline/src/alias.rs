//! Other names: of a session that was restored, of a chat or an operation that its client named. Each is a log without
//! events whose record says where to look, so that the store decides which caller was first to use a name.

use std::sync::Arc;

use bowline_env::entropy;
use bowline_protocol::{Epoch, ErrorCode, LogId, Principal, Refusal, Seq};
use bowline_store::{Commit, Fence, LogKind, Record, Start, StoreError};

use crate::decode::unreadable;
use crate::logs::Logs;
pub use crate::logs::digest;
use crate::refusals;

/// Where tokens prove ownership, strangers are one principal, and each may have something of its own under one name. This many
/// may at a time: a look-up reads all of them.
const SHARED_MAX: usize = 64;
/// Between what a shared name stands for.
const AND: &str = "\n";

/// Names are given one at a time, so that two who choose the same one do not both get it.
#[derive(Debug)]
pub struct Naming {
    logs: Arc<Logs>,
    here: tokio::sync::Mutex<()>,
}

impl Naming {
    pub fn new(logs: Arc<Logs>) -> Naming {
        Naming { logs, here: tokio::sync::Mutex::default() }
    }

    /// Does something while no other caller gives this name, on this node or another.
    pub async fn alone<T>(&self, name: &str, work: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        self.logs.alone(&self.here, name, work).await
    }
}

/// The log of a name that a client chose. Principals cannot see each other's, whatever they call them.
pub fn log_of(owner: &Principal, what: &str, name: &str) -> Option<LogId> {
    LogId::parse(&format!("{what}_{:032x}", digest(&format!("{owner}\0{what}\0{name}"))))
}

/// What a name of the owner's stands for: one thing, or where strangers share it, each one's own. A name that stands for
/// something that cannot be read is not a free one.
pub async fn targets<T>(
    logs: &Logs,
    log: &LogId,
    owner: &Principal,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<String>, Refusal> {
    let alias = logs.store.record(log).await.map_err(|error| refusals::of_store(&error))?;
    let Some(alias) = alias.filter(|alias| alias.kind == LogKind::Alias && alias.owner == *owner) else {
        return Ok(Vec::new());
    };
    let named = listed(&alias);
    if named.is_empty() || named.iter().any(|name| parse(name).is_none()) {
        return Err(unreadable(log, "alias", &"it does not say what the name stands for"));
    }
    Ok(named)
}

/// What is written in the record of a name.
pub fn listed(alias: &Record) -> Vec<String> {
    std::str::from_utf8(&alias.body).map(|text| text.split(AND).map(str::to_owned).collect()).unwrap_or_default()
}

/// What is still there of what a name stands for.
pub async fn still_there(logs: &Logs, targets: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for target in targets {
        if let Some(log) = LogId::parse(target)
            && !matches!(logs.store.record(&log).await, Ok(None))
        {
            found.push(target.clone());
        }
    }
    found
}

/// Whether a name may stand for one thing more. Asked before that is made.
pub fn check_room(others: &[String]) -> Result<(), Refusal> {
    if others.len() < SHARED_MAX {
        return Ok(());
    }
    let message = "This name is in use too often at the same time. Choose another one.";
    Err(Refusal::new(ErrorCode::RateLimited, message).retry_after_ms(5000))
}

/// Lets a name stand for this beside the `others` that it goes on standing for.
pub async fn share(
    logs: &Logs,
    log: &LogId,
    owner: &Principal,
    others: Vec<String>,
    target: &str,
) -> Result<(), Refusal> {
    let mut all = others;
    all.push(target.to_owned());
    point(logs, log, owner, &all.join(AND)).await
}

/// Gives a name that is not given yet. False if it was given before, and stands for what it did.
pub async fn give(logs: &Logs, log: &LogId, owner: &Principal, target: &str) -> Result<bool, Refusal> {
    let mut commit = naming(logs, log, owner, target);
    commit.create = Some(Start { epoch: Epoch::from_random(entropy::u64()), after: Seq::ZERO });
    match logs.commit(commit).await {
        Ok(_) => Ok(true),
        Err(StoreError::Exists) => Ok(false),
        Err(error) => Err(refusals::of_store(&error)),
    }
}

/// Lets a name stand for this, whatever it stood for before.
pub async fn point(logs: &Logs, log: &LogId, owner: &Principal, target: &str) -> Result<(), Refusal> {
    if give(logs, log, owner, target).await? {
        return Ok(());
    }
    let commit = naming(logs, log, owner, target);
    logs.write_once(commit).await.map(drop).map_err(|error| refusals::of_store(&error))
}

fn naming(logs: &Logs, log: &LogId, owner: &Principal, target: &str) -> Commit {
    let now_ms = logs.clock.now_ms();
    let mut commit = Commit::to(log.clone(), Fence::default(), now_ms);
    let body = target.as_bytes().to_vec().into();
    commit.record = Some(Record { kind: LogKind::Alias, owner: owner.clone(), touched_ms: now_ms, body });
    commit
}
