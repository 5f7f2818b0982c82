//! `bowline tail`: follows the events of one session or task, and comes back by itself to where it was.

use std::time::Duration;

use anyhow::bail;
use bowline_core::Backoff;
use http::StatusCode;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::timeout;

use super::address::segment;
use super::http::{Client, HttpError};
use super::out;
use super::sse::{SseEvent, SseReader};

/// Longer than any keep-alive of the server; asking again from the last event costs nothing.
const SILENCE_MAX: Duration = Duration::from_secs(90);

#[derive(Debug)]
pub struct Tail {
    pub client: Client,
    pub session: String,
    pub from: Option<String>,
    pub json: bool,
}

/// Why the reading of one response stopped.
enum Stopped {
    End,
    Lost(String),
}

impl Tail {
    pub async fn run(mut self) -> anyhow::Result<()> {
        let mut backoff = super::BACKOFF;
        loop {
            let reason = match self.client.get(&self.path(), "text/event-stream").await {
                Ok(response) => match self.read(response.into_body(), &mut backoff).await? {
                    Stopped::End => return Ok(()),
                    Stopped::Lost(reason) => reason,
                },
                Err(error) if error.is_passing() => error.to_string(),
                Err(HttpError::Refused { status: StatusCode::NOT_FOUND, .. }) => {
                    bail!("there is no session or task `{}`; `bowline status` lists those there are", self.session)
                }
                Err(error) => return Err(error.into()),
            };
            let delay = backoff.next(super::chance());
            out::error(&out::dim(&format!(
                "· {}; trying again in {:.1} s (attempt {})",
                reason.trim_end_matches('.'),
                delay.as_secs_f64(),
                backoff.attempt()
            )));
            tokio::time::sleep(delay).await;
        }
    }

    fn path(&self) -> String {
        // Tasks are told from sessions by how their names begin.
        let is_task = self.session.starts_with("task_") || self.session.starts_with("turn_");
        let room = if is_task { "tasks" } else { "sessions" };
        let base = format!("/api/admin/{room}/{}/events", segment(&self.session));
        match &self.from {
            Some(cursor) => format!("{base}?from={}", segment(cursor)),
            None => base,
        }
    }

    async fn read(&mut self, mut body: hyper::body::Incoming, backoff: &mut Backoff) -> anyhow::Result<Stopped> {
        let mut reader = SseReader::default();
        loop {
            let frame = match timeout(SILENCE_MAX, body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return Ok(Stopped::Lost(format!("the connection broke: {error}"))),
                Ok(None) => return Ok(Stopped::Lost("the server closed the connection".into())),
                Err(_) => return Ok(Stopped::Lost("nothing was heard for a while".into())),
            };
            let Some(bytes) = frame.data_ref() else { continue };
            for event in reader.push(bytes) {
                backoff.reset();
                if event.name == "end" {
                    return Ok(Stopped::End);
                }
                if event.name == "error" {
                    let told: Value = serde_json::from_str(&event.data).unwrap_or_default();
                    bail!("{}", out::harmless(told["message"].as_str().unwrap_or("the server ended the stream")));
                }
                self.show(&event)?;
                // Only what was shown counts as read.
                self.from = event.id.or(self.from.take());
            }
        }
    }

    fn show(&self, event: &SseEvent) -> std::io::Result<()> {
        if self.json {
            return out::line(&event.data);
        }
        match serde_json::from_str(&event.data) {
            Ok(value) => out::line(&summary(&value)),
            Err(_) => out::line(&out::harmless(&event.data)),
        }
    }
}

/// Time, number, name and the beginning of the content, on one line.
fn summary(event: &Value) -> String {
    let text = |key: &str| event.get(key).and_then(Value::as_str).unwrap_or_default();
    let time = text("timestamp").get(11..19).unwrap_or("--:--:--");
    let seq = event.get("seq").and_then(Value::as_u64).map(|seq| seq.to_string()).unwrap_or_default();
    let content = match event.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    };
    let name = out::short(text("event"), 40);
    format!("{} {seq:>7}  {name:<24} {}", out::harmless(time), out::short(&content, 100)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_one_line_whatever_it_holds() {
        let event = json!({ "event": "agent.thinking", "seq": 12, "timestamp": "2026-01-02T03:04:05.678Z", "content": "one\ntwo" });
        assert_eq!(summary(&event), "03:04:05      12  agent.thinking           one two");
        assert_eq!(summary(&json!({})), "--:--:--");
        assert!(summary(&json!({ "content": { "a": [1] } })).ends_with(r#"{"a":[1]}"#));
    }
}
