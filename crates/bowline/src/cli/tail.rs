//! `bowline tail`: follows the events of one session or task, and comes back by itself to where it was.

use anyhow::bail;
use bowline_client::{EventFollower, FollowEvent, HttpClient, HttpError, StreamEvent};
use bowline_env::entropy;
use http::StatusCode;
use serde_json::Value;

use super::out;

#[derive(Debug)]
pub struct TailCommand {
    pub client: HttpClient,
    pub session: String,
    pub from: Option<String>,
    pub json: bool,
}

impl TailCommand {
    pub async fn run(self) -> anyhow::Result<()> {
        let mut follower = EventFollower::new(self.client, self.session.as_str(), self.from);
        loop {
            match follower.next(entropy::chance()).await {
                Ok(FollowEvent::Event(event)) => show(&event, self.json)?,
                Ok(FollowEvent::Lost { reason, delay, attempt }) => {
                    out::error(&out::dim(&format!(
                        "· {}; trying again in {:.1} s (attempt {attempt})",
                        reason.trim_end_matches('.'),
                        delay.as_secs_f64()
                    )));
                    tokio::time::sleep(delay).await;
                }
                Ok(FollowEvent::Refused { message }) => bail!("{}", out::harmless(&message)),
                Ok(FollowEvent::End) => return Ok(()),
                Err(HttpError::Refused { status: StatusCode::NOT_FOUND, .. }) => {
                    bail!("there is no session or task `{}`; `bowline status` lists those there are", self.session)
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn show(event: &StreamEvent, json: bool) -> std::io::Result<()> {
    if json {
        return out::line(&event.data);
    }
    match serde_json::from_str(&event.data) {
        Ok(value) => out::line(&summary(&value)),
        Err(_) => out::line(&out::harmless(&event.data)),
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
