//! A commit as the script takes it, and what the script answers.

use bowline_env::entropy;
use bowline_protocol::{Epoch, LogId, Principal, Seq};
use bytes::Bytes;
use redis::Value;

use super::keys::{LogKeys, kind_digit};
use super::local_cache::Listed;
use super::operation::RedisOperation;
use super::reply::{bytes, list, number, text};
use super::script::Script;
use crate::{Commit, Committed, Fence, LogKind, Record, Release, Retentions, StoreError, Trimmed};

/// Writes a commit down for the script: under its id, and behind the one that its writer knows as the last.
pub fn operation(
    commit: &Commit,
    keys: &LogKeys,
    retention: &Retentions,
    (id, after): (&str, Option<String>),
) -> Result<RedisOperation, StoreError> {
    let fresh = Epoch::from_random(entropy::u64());
    let mut operation = RedisOperation::script(
        Script::Commit,
        vec![keys.head(), keys.events(), keys.items(), keys.ghost(), keys.channel()],
    )
    .arg(id.to_owned())
    .arg(after.unwrap_or_default())
    .arg(commit.fence.0.to_string())
    .arg(fresh.as_str().to_owned())
    .arg(commit.at_ms.to_string())
    .arg(retention.sessions.events_max.to_string())
    .arg(retention.tasks.events_max.to_string())
    .arg(retention.nodes.events_max.to_string());
    match &commit.create {
        Some(start) => {
            operation.push(start.epoch.as_str().to_owned());
            operation.push(start.after.to_string());
        }
        None => {
            operation.push("");
            operation.push("");
        }
    }
    operation.push(match commit.release {
        None => "",
        Some(Release::Contents) => "contents",
        Some(Release::Log) => "log",
    });
    operation.push(commit.events.len().to_string());
    for event in &commit.events {
        let (before, behind) = event.around_slot();
        operation.push(Bytes::copy_from_slice(before));
        operation.push(Bytes::copy_from_slice(behind));
    }
    match &commit.record {
        None => operation.push("0"),
        Some(record) => {
            operation.push("1");
            operation.push(kind_digit(Some(record.kind)).to_string());
            operation.push(record.owner.as_str().to_owned());
            operation.push(record.touched_ms.to_string());
            operation.push(record.body.clone());
        }
    }
    operation.push(commit.items.len().to_string());
    for item in &commit.items {
        operation.push(item.key.clone());
        match &item.value {
            Some(value) => {
                operation.push("1");
                operation.push(value.clone());
            }
            None => operation.push("0"),
        }
    }
    Ok(operation)
}

/// What a commit came to, and where the log was listed before it.
#[derive(Debug)]
pub struct ScriptReply {
    pub committed: Committed,
    pub was: Listed,
}

pub fn read(log: &LogId, given: Fence, value: Value) -> Result<ScriptReply, StoreError> {
    let mut parts = list(value).into_iter();
    let strange = || StoreError::Io("Redis answered a commit with something strange".into());
    let verdict = parts.next().and_then(text).ok_or_else(strange)?;
    match verdict.as_str() {
        "none" => return Err(StoreError::NoSuchLog),
        "exists" => return Err(StoreError::Exists),
        "spent" => return Err(StoreError::Io("the log has used up its numbers".into())),
        "lost" => {
            return Err(StoreError::InDoubt(
                "Redis has lost an earlier commit, so its writer has to look again".into(),
            ));
        }
        "late" => {
            return Err(StoreError::InDoubt("a later commit of the same writer was done before this one".into()));
        }
        "stale" => {
            let current = Fence(parts.next().and_then(number).ok_or_else(strange)?);
            return Err(StoreError::StaleFence { given, current });
        }
        _ => {}
    }
    let epoch = parts.next().and_then(text).as_deref().and_then(Epoch::parse).ok_or_else(strange)?;
    let mut seq = || parts.next().and_then(number).and_then(Seq::new).ok_or_else(strange);
    let (first, next, from, to) = (seq()?, seq()?, seq()?, seq()?);
    let kind = parts.next().and_then(number).and_then(|kind| LogKind::from_byte(kind as u8));
    let owner = parts.next().and_then(text).as_deref().and_then(Principal::parse);
    let trimmed = (from < to).then(|| Trimmed { log: log.clone(), from, to });
    Ok(ScriptReply { committed: Committed { epoch, first, next, trimmed }, was: kind.zip(owner) })
}

/// The fields of a head that make a record.
pub const RECORD_FIELDS: [&str; 4] = ["k", "o", "t", "b"];

pub fn record(value: Value) -> Option<Record> {
    let mut parts = list(value).into_iter();
    let kind = LogKind::from_byte(number(parts.next()?)? as u8)?;
    let owner = Principal::parse(&text(parts.next()?)?)?;
    Some(Record { kind, owner, touched_ms: number(parts.next()?)?, body: bytes(parts.next()?)? })
}
