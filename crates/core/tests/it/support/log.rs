//! A log in memory: events as JSON, numbered and encoded as a store would.

use bowline_protocol::{Draft, Epoch, EventName, Recorded, Seq, SessionId, StepId, json};
use serde_json::{Value, json};

#[derive(Default)]
pub struct Log {
    pub events: Vec<Recorded>,
}

/// A test's events are nobody's secrets.
impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.events.iter().try_for_each(|event| writeln!(f, "{}", String::from_utf8_lossy(&event.bytes)))
    }
}

impl Log {
    pub fn epoch() -> Epoch {
        Epoch::parse("e").unwrap()
    }

    /// Takes `{event, step_id?, content, metadata?}`.
    pub fn push(&mut self, event: &Value) {
        let name = event["event"].as_str().unwrap();
        // The catalogue's names are not an agent's to invent, but a test may write them.
        let name = EventName::custom(name).unwrap_or_else(|| EventName::known(name.to_owned().leak()));
        self.push_draft(&Draft {
            name,
            step_id: event["step_id"].as_str().and_then(StepId::parse),
            content: json::raw(&event["content"]),
            metadata: event.get("metadata").map(json::raw),
        });
    }

    pub fn push_draft(&mut self, draft: &Draft) {
        let seq = Seq::new(self.events.len() as u64 + 1).unwrap();
        let unnumbered = draft.seal(&SessionId::from_random(1), "2026-01-01T00:00:00Z");
        self.events.push(Recorded { seq, bytes: unnumbered.number(&Log::epoch(), seq) });
    }
}

pub fn event(name: &str, content: impl Into<Value>) -> Value {
    json!({ "event": name, "content": content.into() })
}

pub fn step_event(name: &str, step: &str, content: impl Into<Value>) -> Value {
    json!({ "event": name, "step_id": step, "content": content.into() })
}
