//! Which format an upstream speaks, found out from what it answers.

use serde_json::Value;

use crate::agent::upstream::{UpstreamRecord, UpstreamResponse};
use crate::config::Format;

/// The format of an answer, by its header and else by its first record; none if neither tells.
pub fn of(received: &UpstreamResponse, first: &UpstreamRecord) -> Option<Format> {
    if received.says_ui {
        return Some(Format::Ui);
    }
    if received.is_lines() {
        return Some(Format::Events);
    }
    by_record(first)
}

fn by_record(first: &UpstreamRecord) -> Option<Format> {
    let value: Value = serde_json::from_str(&first.data).unwrap_or_default();
    let looks = [
        (value["choices"].is_array(), Format::OpenAi),
        (value["type"].is_string(), Format::Ui),
        (value["event"].is_string() || first.event.as_deref().is_some_and(|name| name.contains('.')), Format::Events),
    ];
    looks.into_iter().find(|(it, _)| *it).map(|(_, format)| format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_record_tells_the_format() {
        let record =
            |event: Option<&str>, data: &str| UpstreamRecord { event: event.map(Into::into), data: data.into() };
        let cases = [
            (record(None, r#"{"choices":[],"id":"x"}"#), Some(Format::OpenAi)),
            (record(None, r#"{"type":"start"}"#), Some(Format::Ui)),
            (record(None, r#"{"event":"agent.thinking","content":"x"}"#), Some(Format::Events)),
            (record(Some("agent.thinking"), r#"{"content":"x"}"#), Some(Format::Events)),
            (record(Some("message"), r#"{"content":"x"}"#), None),
            (record(None, "hello"), None),
        ];
        for (record, format) in cases {
            assert_eq!(by_record(&record), format, "{}", record.data);
        }
    }
}
