//! Any bytes, read as each of the answers that Redis gives, for a fuzzer.

use bowline_protocol::LogId;
use redis::{Value, parse_redis_value};

use super::follower_cache::News;
use super::{commit_script, follow, listen, reply, server};
use crate::Fence;

/// A server that answers with anything costs at most an error.
pub fn read_any_reply(wire: &[u8]) {
    let Ok(value) = parse_redis_value(wire) else { return };
    let value = match reply::server_error(value) {
        Ok(value) => value,
        Err(refused) => return drop(refused.to_string()),
    };
    if let Some(log) = LogId::parse("log") {
        drop(commit_script::read(&log, Fence(1), value.clone()));
    }
    drop(commit_script::record(value.clone()));
    drop(follow::read_extent(&mut reply::list(value.clone()).into_iter()));
    drop(listen::read_news(&value));
    drop(server::pairs(value.clone()));
    let text = match value {
        Value::Push { data, .. } => data.into_iter().next_back().and_then(reply::text),
        other => reply::text(other),
    };
    drop(text.as_deref().and_then(News::parse).map(|(id, news)| (id.to_owned(), news)));
}
