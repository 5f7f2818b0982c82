//! Letting go of what is too old, in every log that may hold such; and putting the lists right on the way.

use bowline_protocol::{LogId, Principal, Seq};
use redis::Value;

use super::index::Index;
use super::local_cache::{Listed, LocalCache};
use super::operation::RedisOperation;
use super::reply::{list, number, text};
use super::script::Script;
use crate::{LogKind, Retentions, StoreError, Trimmed};

/// What the script found in one log.
struct Looked {
    from: Seq,
    first: Seq,
    /// When the oldest event that stays was written.
    since: Option<u64>,
    more: bool,
    is: Listed,
}

/// Trims all logs at `now_ms`. A log is looked at again only when its oldest event may have become too old: times do not
/// run backwards, so nothing in it can be before that.
pub async fn sweep(
    index: &Index,
    local: &LocalCache,
    retention: &Retentions,
    now_ms: u64,
) -> Result<Vec<Trimmed>, StoreError> {
    let mut trimmed: Vec<Trimmed> = Vec::new();
    let all = index.all().await?;
    let mut due: Vec<(LogId, Listed)> = all.into_iter().filter(|(log, _)| local.is_due(log, now_ms)).collect();
    let oldest = |kind| now_ms.saturating_sub(retention.of(kind).age_max_ms).to_string();
    let (others, tasks, nodes) = (oldest(None), oldest(Some(LogKind::Task)), oldest(Some(LogKind::Node)));
    while !due.is_empty() {
        let ask = |(log, _): &(LogId, Listed)| {
            let keys = index.keys.of(log);
            let operation = RedisOperation::script(Script::Trim, vec![keys.head(), keys.events(), keys.channel()]);
            operation.arg(others.clone()).arg(tasks.clone()).arg(nodes.clone())
        };
        let operations: Vec<RedisOperation> = due.iter().map(ask).collect();
        let answers = index.topology.call_each(&operations).await?;
        let mut again = Vec::new();
        for ((log, listed), answer) in due.into_iter().zip(answers) {
            let Some(looked) = read(answer) else {
                index.heal(&log, &listed).await?;
                continue;
            };
            if looked.is != listed {
                index.heal(&log, &listed).await?;
            }
            if looked.from < looked.first {
                match trimmed.last_mut().filter(|last| last.log == log && last.to == looked.from) {
                    Some(last) => last.to = looked.first,
                    None => trimmed.push(Trimmed { log: log.clone(), from: looked.from, to: looked.first }),
                }
            }
            if looked.more {
                again.push((log, listed));
                continue;
            }
            let age_max_ms = retention.of(looked.is.as_ref().map(|(kind, _)| *kind)).age_max_ms;
            local.note_due(&log, looked.since.unwrap_or(now_ms).saturating_add(age_max_ms).saturating_add(1));
        }
        due = again;
    }
    Ok(trimmed)
}

fn read(answer: Value) -> Option<Looked> {
    let mut parts = list(answer).into_iter();
    if text(parts.next()?)? != "done" {
        return None;
    }
    Some(Looked {
        from: Seq::new(number(parts.next()?)?)?,
        first: Seq::new(number(parts.next()?)?)?,
        since: parts.next().and_then(number),
        more: text(parts.next()?)? == "1",
        is: number(parts.next()?)
            .and_then(|kind| LogKind::from_byte(kind as u8))
            .zip(parts.next().and_then(text).as_deref().and_then(Principal::parse)),
    })
}
