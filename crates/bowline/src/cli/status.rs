//! `bowline status`: the server and its sessions on one screen.

use std::fmt::Write;
use std::time::Duration;

use bowline_client::HttpClient;
use bowline_hub::outcome::CallOutcome;
use serde_json::{Value, json};

use super::out;
use crate::config::units::show_duration;

/// More rows than a screen has are of no help; `--json` has them all.
const ROWS_MAX: usize = 40;

pub async fn run(client: &HttpClient, json: bool) -> anyhow::Result<()> {
    let node = client.get_json("/api/admin/node").await?;
    let sessions = client.get_json("/api/admin/sessions").await?;
    let backends = client.get_json("/api/admin/backends").await?;
    if json {
        let both = json!({ "node": node, "sessions": sessions, "backends": backends["backends"], "removed": backends["removed"] });
        return Ok(out::line(&serde_json::to_string_pretty(&both)?)?);
    }
    Ok(out::write(&out::harmless(&screen(&node, &sessions, &backends)))?)
}

/// The screen. Fields that the server does not send are shown as `-`.
fn screen(node: &Value, sessions: &Value, backends: &Value) -> String {
    let mut text = String::new();
    let uptime =
        node["uptime_seconds"].as_f64().map(|seconds| show_duration(Duration::from_secs(seconds.max(0.0) as u64)));
    let draining = if node["draining"] == true { ", draining" } else { "" };
    let _ = writeln!(
        text,
        "bowline {} on {}, up {}{draining}",
        word(&node["version"]),
        word(&node["listen"]),
        uptime.as_deref().unwrap_or("-")
    );
    let _ = writeln!(text, "store        {}", store(&node["store"]));
    let _ = writeln!(text, "connections  {}", word(&node["connections"]));
    let states =
        ["idle", "running", "waiting", "ended"].map(|state| format!("{} {state}", word(&node["sessions"][state])));
    let _ = writeln!(text, "sessions     {}", states.join(", "));
    let tasks =
        ["running", "completed", "failed", "cancelled"].map(|state| format!("{} {state}", word(&node["tasks"][state])));
    let _ = writeln!(text, "tasks        {}", tasks.join(", "));
    let _ = writeln!(text, "streams      {}", word(&node["streams"]));
    let _ = writeln!(text, "events       {} appended", word(&node["events_appended"]));
    text.push_str(&servers(backends));
    let list = sessions["sessions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if list.is_empty() {
        text.push_str("\nno sessions; `bowline chat` starts one\n");
        return text;
    }
    text.push('\n');
    text.push_str(&table(&list[..list.len().min(ROWS_MAX)]));
    let total = sessions["total"].as_u64().unwrap_or(list.len() as u64);
    let more = total.saturating_sub(list.len().min(ROWS_MAX) as u64);
    if more > 0 {
        let _ = writeln!(text, "… and {more} more");
    }
    text
}

/// One line for each MCP server.
fn servers(backends: &Value) -> String {
    let mut text = String::new();
    for backend in backends["backends"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let mut line = format!("server       {} {}", word(&backend["name"]), word(&backend["status"]));
        if backend["healthStatus"] == "degraded" {
            line.push_str(", degraded");
        }
        if let (Some(attempt), Some(ms)) = (backend["reconnectAttempt"].as_u64(), backend["nextRetryMs"].as_u64()) {
            let _ = write!(line, ", attempt {attempt}, next in {}", show_duration(Duration::from_millis(ms)));
        }
        let calls = &backend["calls"];
        if let Some(total) = calls["total"].as_u64().filter(|total| *total > 0) {
            let ended = CallOutcome::ALL.iter().filter_map(|outcome| {
                let outcome = outcome.as_str();
                let count = calls["outcomes"][outcome].as_u64().filter(|count| *count > 0)?;
                Some(format!("{count} {outcome}"))
            });
            let (ended, mean) = (ended.collect::<Vec<_>>().join(", "), calls["meanMs"].as_f64().unwrap_or_default());
            let _ = write!(line, ", {total} calls ({ended}), {mean:.1} ms each");
        }
        if let Some(error) = backend["lastError"].as_str() {
            let _ = write!(line, ": {}", out::short(error, 60));
        }
        let _ = writeln!(text, "{line}");
    }
    for removed in backends["removed"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let _ = writeln!(text, "server       {} removed at {}", word(&removed["name"]), word(&removed["removedAt"]));
    }
    text
}

fn store(store: &Value) -> String {
    let mut text = format!("{}, sync {}", word(&store["url"]), word(&store["sync"]));
    if store["writable"] == false {
        text.push_str(", NOT WRITABLE");
    }
    if let Some(bytes) = store["bytes"].as_f64() {
        let _ = write!(text, ", {:.1} MiB in {} logs", bytes / f64::from(1 << 20), word(&store["logs"]));
    }
    let troubles = match &store["troubles"] {
        Value::Array(list) => list.iter().map(word).collect::<Vec<_>>().join("; "),
        other => word(other),
    };
    if !["-", "0", "", "none", "false"].contains(&troubles.as_str()) {
        let _ = write!(text, ", troubles: {troubles}");
    }
    if let Some(sentence) = store["loss_window"].as_str() {
        let _ = write!(text, "\nloss window  {sentence}");
    }
    text
}

fn table(list: &[Value]) -> String {
    let head = ["SESSION", "STATE", "HELD", "WATCHED", "LAST", "ACKED", "ACTIVE", "OWNER", "AGENT", "TITLE"]
        .map(ToOwned::to_owned);
    let row = |one: &Value| {
        let held = match &one["held"] {
            Value::Bool(held) => (if *held { "yes" } else { "no" }).to_owned(),
            other => word(other),
        };
        let active = word(&one["last_active_at"])
            .get(..19)
            .map_or_else(|| word(&one["last_active_at"]), |time| time.replace('T', " "));
        let cell = |key: &str, chars_max: usize| out::short(&word(&one[key]), chars_max);
        [
            cell("id", 40),
            cell("state", 10),
            held,
            cell("observers", 8),
            cell("last_seq", 12),
            cell("acked_seq", 12),
            active,
            cell("owner", 20),
            cell("agent", 16),
            cell("title", 40),
        ]
    };
    let rows: Vec<[String; 10]> = std::iter::once(head).chain(list.iter().map(row)).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            format!("{cell:<width$}")
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

/// A scalar as a word; `-` for what the server does not say.
fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_answer_fits_on_one_screen() {
        let node = json!({ "version": "0.1.0", "uptime_seconds": 3700, "listen": "127.0.0.1:8080", "draining": false, "connections": 2,
            "store": { "url": "disk:./d", "sync": "always", "writable": true, "loss_window": "none: synced", "troubles": [], "bytes": 3 << 20, "logs": 2 },
            "sessions": { "idle": 1, "running": 1, "waiting": 0, "ended": 0 }, "events_appended": 77 });
        let sessions = json!({ "total": 60, "sessions": [{ "id": "sess_1", "owner": "local", "agent": "demo", "state": "running", "held": true,
            "observers": 0, "last_seq": 77, "acked_seq": 70, "last_active_at": "2026-01-02T03:04:05Z", "title": "hello" }] });
        let backends = json!({ "backends": [{ "name": "files", "status": "reconnecting", "reconnectAttempt": 3, "nextRetryMs": 4000, "lastError": "refused",
            "calls": { "total": 7, "outcomes": { "result": 4, "tool_error": 1, "unknown": 2 }, "meanMs": 1.25 } }] });
        let text = screen(&node, &sessions, &backends);
        assert!(
            text.contains(
                "server       files reconnecting, attempt 3, next in 4s, 7 calls (4 result, 1 tool_error, 2 unknown), 1.2 ms each: refused\n"
            ),
            "{text}"
        );
        assert!(text.starts_with("bowline 0.1.0 on 127.0.0.1:8080, up 1h1m40s\n"), "{text}");
        assert!(text.contains("disk:./d, sync always, 3.0 MiB in 2 logs\nloss window  none: synced\n"), "{text}");
        assert!(text.contains("1 idle, 1 running, 0 waiting, 0 ended"), "{text}");
        assert!(text.contains("sess_1   running  yes   0"), "{text}");
        assert!(text.ends_with("… and 59 more\n"), "{text}");
    }

    #[test]
    fn a_server_that_tells_nothing_is_still_shown() {
        let text = screen(&json!({}), &json!(null), &json!(null));
        assert!(text.contains("no sessions") && text.contains("bowline - on -"), "{text}");
    }
}
