//! Which logs there are: lists by kind and by owner, in keys of their own.
//!
//! A list may lie on another server than the log, so the two cannot change together. The order is therefore: a log is
//! entered *before* the commit that makes it belong there, and taken out *after* the commit that ends that. A crash in
//! between leaves an entry too many, never one too few. Lists are checked against the records, so that such an entry
//! shows nowhere but in a count, and the sweep removes it once it is older than any commit can take.

use std::collections::HashMap;
use std::sync::Arc;

use bowline_protocol::{LogId, Principal};
use redis::Value;

use super::commit_script::{self, RECORD_FIELDS};
use super::keys::{BUCKETS, RedisKeys, bucket};
use super::local_cache::Listed;
use super::operation::RedisOperation;
use super::reply::{list, number, text};
use super::script::Script;
use super::topology::Topology;
use crate::{LogKind, Record, StoreError};

/// Kinds that have a list, and those without a record.
const KINDS: [Option<LogKind>; 8] = [
    None,
    Some(LogKind::Session),
    Some(LogKind::Task),
    Some(LogKind::Alias),
    Some(LogKind::Restored),
    Some(LogKind::Mcp),
    Some(LogKind::Hub),
    Some(LogKind::Node),
];

#[derive(Clone, Debug)]
pub struct Index {
    pub topology: Arc<Topology>,
    pub keys: RedisKeys,
}

/// The lists that a log is in: the key of each, and what it is called there.
type Places = Vec<(String, String)>;

impl Index {
    fn places(&self, log: &LogId, listed: &Listed) -> Places {
        let (kind, owner) = match listed {
            Some((kind, owner)) => (Some(*kind), owner.as_str()),
            None => (None, ""),
        };
        // Names hold no control characters. The owner stands here too, so that an entry can be removed from both lists.
        let by_kind = (self.keys.by_kind(kind, bucket(log)), format!("{log}\n{owner}"));
        let by_owner = listed.as_ref().map(|(kind, owner)| (self.keys.by_owner(*kind, owner), log.to_string()));
        std::iter::once(by_kind).chain(by_owner).collect()
    }

    /// Enters a log. Says when, list by list, where it is new.
    pub async fn enter(&self, log: &LogId, listed: &Listed) -> Result<Vec<Option<u64>>, StoreError> {
        let enter = |(key, name)| RedisOperation::script(Script::Enter, vec![key]).arg(name);
        let operations: Vec<RedisOperation> = self.places(log, listed).into_iter().map(enter).collect();
        Ok(self.topology.call_each(&operations).await?.into_iter().map(number).collect())
    }

    /// When the log was entered, list by list.
    pub async fn entries(&self, log: &LogId, listed: &Listed) -> Result<Vec<Option<u64>>, StoreError> {
        let score = |(key, name): (String, String)| RedisOperation::command("ZSCORE", &key).arg(name);
        let operations: Vec<RedisOperation> = self.places(log, listed).into_iter().map(score).collect();
        Ok(self.topology.call_each(&operations).await?.into_iter().map(number).collect())
    }

    /// Takes a log out, unless it was entered anew since `entries` were looked up.
    pub async fn leave(&self, log: &LogId, listed: &Listed, entries: &[Option<u64>]) -> Result<(), StoreError> {
        let places = self.places(log, listed).into_iter().zip(entries);
        let operations: Vec<RedisOperation> = places
            .filter_map(|((key, name), entry)| {
                Some(RedisOperation::script(Script::Leave, vec![key]).arg(name).arg((*entry)?.to_string()))
            })
            .collect();
        self.topology.call_each(&operations).await.map(drop)
    }

    /// Takes a log out that is not there, if it has been listed for longer than any commit can take.
    pub async fn heal(&self, log: &LogId, listed: &Listed) -> Result<(), StoreError> {
        let leave = |(key, name)| RedisOperation::script(Script::Leave, vec![key]).arg(name).arg("");
        let operations: Vec<RedisOperation> = self.places(log, listed).into_iter().map(leave).collect();
        self.topology.call_each(&operations).await.map(drop)
    }

    fn lists(&self, kind: LogKind, owner: Option<&Principal>) -> Vec<String> {
        match owner {
            Some(owner) => vec![self.keys.by_owner(kind, owner)],
            None => (0..BUCKETS).map(|bucket| self.keys.by_kind(Some(kind), bucket)).collect(),
        }
    }

    pub async fn count(&self, kind: LogKind, owner: Option<&Principal>) -> Result<usize, StoreError> {
        self.count_in(&self.lists(kind, owner)).await.map(|count| count as usize)
    }

    /// How many logs there are.
    pub async fn count_all(&self) -> Result<u64, StoreError> {
        let buckets = |kind| (0..BUCKETS).map(move |bucket| self.keys.by_kind(kind, bucket));
        let keys: Vec<String> = KINDS.into_iter().flat_map(buckets).collect();
        self.count_in(&keys).await
    }

    async fn count_in(&self, keys: &[String]) -> Result<u64, StoreError> {
        let operations: Vec<RedisOperation> = keys.iter().map(|key| RedisOperation::command("ZCARD", key)).collect();
        Ok(self.topology.call_each(&operations).await?.into_iter().filter_map(number).sum())
    }

    async fn names(&self, keys: &[String]) -> Result<Vec<Value>, StoreError> {
        let operations: Vec<RedisOperation> =
            keys.iter().map(|key| RedisOperation::command("ZRANGE", key).arg("0").arg("-1")).collect();
        Ok(self.topology.call_each(&operations).await?.into_iter().flat_map(list).collect())
    }

    pub async fn list(&self, kind: LogKind, owner: Option<&Principal>) -> Result<Vec<(LogId, Record)>, StoreError> {
        let names = self.names(&self.lists(kind, owner)).await?;
        let log = |name| LogId::parse(text(name)?.split('\n').next()?);
        // A log whose record has just changed may be listed twice.
        let logs: HashMap<LogId, ()> = names.into_iter().filter_map(log).map(|log| (log, ())).collect();
        let logs: Vec<LogId> = logs.into_keys().collect();
        let ask = |log: &LogId| {
            let operation = RedisOperation::command("HMGET", &self.keys.of(log).head());
            RECORD_FIELDS.into_iter().fold(operation, RedisOperation::arg)
        };
        let operations: Vec<RedisOperation> = logs.iter().map(ask).collect();
        let records = self.topology.call_each(&operations).await?.into_iter().map(commit_script::record);
        let found = logs.into_iter().zip(records).filter_map(|(log, record)| Some((log, record?)));
        Ok(found.filter(|(_, r)| r.kind == kind && owner.is_none_or(|owner| *owner == r.owner)).collect())
    }

    /// Every log, and where it is listed.
    pub async fn all(&self) -> Result<Vec<(LogId, Listed)>, StoreError> {
        let mut all = Vec::new();
        for kind in KINDS {
            let keys: Vec<String> = (0..BUCKETS).map(|bucket| self.keys.by_kind(kind, bucket)).collect();
            for name in self.names(&keys).await?.into_iter().filter_map(text) {
                let Some((log, owner)) = name.split_once('\n') else { continue };
                let Some(log) = LogId::parse(log) else { continue };
                all.push((log, kind.zip(Principal::parse(owner))));
            }
        }
        Ok(all)
    }
}
