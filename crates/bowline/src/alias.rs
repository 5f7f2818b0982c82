//! Other names: of a session that was restored, of a chat or an operation that its client named. Each is a log without
//! events whose record says where to look, so that whoever is first to name something is decided by the store.

use bowline_protocol::{Epoch, LogId, Principal, Refusal, Seq};
use bowline_store::{Commit, Fence, Kind, Record, Start, StoreError};
use sha2::{Digest, Sha256};

use crate::decode::unreadable;
use crate::dice;
use crate::node::{self, Shared};

/// The log of a name that somebody chose. Principals cannot see each other's, whatever they call them.
pub fn log_of(owner: &Principal, what: &str, name: &str) -> Option<LogId> {
    LogId::parse(&format!("{what}_{:032x}", digest(&format!("{owner}\0{what}\0{name}"))))
}

pub fn digest(text: &str) -> u128 {
    let hash = Sha256::digest(text.as_bytes());
    hash.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
}

/// What a name of the owner's stands for. A name that stands for nothing that can be read is not a free one.
pub async fn target<T>(
    shared: &Shared,
    log: &LogId,
    owner: &Principal,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Refusal> {
    let alias = shared.store.record(log).await.map_err(|error| node::store_refusal(&error))?;
    let Some(alias) = alias.filter(|alias| alias.kind == Kind::Alias && alias.owner == *owner) else { return Ok(None) };
    match std::str::from_utf8(&alias.body).ok().and_then(parse) {
        Some(target) => Ok(Some(target)),
        None => Err(unreadable(log, "alias", &"it does not say what the name stands for")),
    }
}

/// Gives a name that nobody has given yet. False if it was given before, and stands for what it did.
pub async fn give(shared: &Shared, log: &LogId, owner: &Principal, target: &str) -> Result<bool, Refusal> {
    let mut commit = naming(shared, log, owner, target);
    commit.create = Some(Start { epoch: Epoch::from_random(dice::u64()), after: Seq::ZERO });
    match shared.commit(commit).await {
        Ok(_) => Ok(true),
        Err(StoreError::Exists) => Ok(false),
        Err(error) => Err(node::store_refusal(&error)),
    }
}

/// Lets a name stand for this, whatever it stood for before.
pub async fn point(shared: &Shared, log: &LogId, owner: &Principal, target: &str) -> Result<(), Refusal> {
    if give(shared, log, owner, target).await? {
        return Ok(());
    }
    let commit = naming(shared, log, owner, target);
    shared.write_once(commit).await.map(drop).map_err(|error| node::store_refusal(&error))
}

fn naming(shared: &Shared, log: &LogId, owner: &Principal, target: &str) -> Commit {
    let now_ms = shared.clock.now_ms();
    let mut commit = Commit::to(log.clone(), Fence::default(), now_ms);
    let body = target.as_bytes().to_vec().into();
    commit.record = Some(Record { kind: Kind::Alias, owner: owner.clone(), touched_ms: now_ms, body });
    commit
}
