//! Our own events as an upstream writes them, one object each: what may be logged, what asks, and what ends the run.

use bowline_api::{AgentError, Answer};
use bowline_protocol::event::names;
use bowline_protocol::{Draft, ErrorCode, EventName, StepId, json};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::agent::upstream::UpstreamRecord;

/// How deeply an event may nest. Readers build trees of them, and give up at about twice this.
const DEPTH_MAX: usize = 64;

/// What one event of an upstream means.
pub enum UpstreamEvent {
    /// A piece of the answer, and what the agent adds to it.
    Piece(String, Map<String, Value>),
    /// An event that is logged as it stands.
    Event(Draft),
    Question(UpstreamQuestion),
    /// What the agent keeps from run to run.
    State(Value),
    Answered(Answer),
    Ended(AgentError),
}

/// A question for a person.
pub struct UpstreamQuestion {
    pub text: String,
    pub facts: Map<String, Value>,
    /// The upstream's own name for it.
    pub step_id: Option<String>,
    /// What the upstream wants back with the answer. Clients do not see it.
    pub state: Value,
}

#[derive(Deserialize)]
struct WrittenEvent<'a> {
    event: Option<String>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    step_id: Option<String>,
    #[serde(default)]
    state: Value,
}

/// Reads one event; the error says what is wrong with it.
pub fn read(record: &UpstreamRecord) -> Result<UpstreamEvent, String> {
    if json::depth(&record.data, DEPTH_MAX) > DEPTH_MAX {
        return Err(format!("an event that nests deeper than {DEPTH_MAX}"));
    }
    let written: WrittenEvent<'_> =
        serde_json::from_str(&record.data).map_err(|_| "something that is no event: it must be a JSON object")?;
    let name = written.event.as_deref().or(record.event.as_deref());
    let name = name.ok_or("an event without a name: it must have `event`")?;
    match name {
        names::PARTIAL_ANSWER => Ok(UpstreamEvent::Piece(written.text(name)?, written.facts(name)?)),
        names::USER_CONFIRM => written.question(name).map(UpstreamEvent::Question),
        names::STATE => written.state(name).map(UpstreamEvent::State),
        names::FINAL_ANSWER => {
            let mut metadata = written.facts(name)?;
            // That word belongs to upstreams that speak in chunks.
            metadata.remove("finish");
            let usage = metadata.remove("usage");
            let model = metadata.remove("model").and_then(|model| model.as_str().map(str::to_owned));
            Ok(UpstreamEvent::Answered(Answer { text: written.text(name)?, usage, model, metadata, finish: None }))
        }
        names::ERROR => {
            let facts = written.facts(name)?;
            let named = facts.get("error_code").and_then(Value::as_str);
            let known = [ErrorCode::AgentUnreachable, ErrorCode::OutcomeUnknown];
            let code = known.into_iter().find(|code| named == Some(code.as_str()));
            let stage = facts.get("stage").and_then(Value::as_str).map(str::to_owned);
            let failed = AgentError::failed(written.text(name)?);
            Ok(UpstreamEvent::Ended(AgentError { code: code.unwrap_or(failed.code), stage, ..failed }))
        }
        names::CANCELLED => Ok(UpstreamEvent::Ended(AgentError::cancelled(written.text(name)?))),
        _ => written.draft(name).map(UpstreamEvent::Event),
    }
}

impl WrittenEvent<'_> {
    fn text(&self, name: &str) -> Result<String, String> {
        let text = self.content.and_then(|content| serde_json::from_str(content.get()).ok());
        text.ok_or_else(|| format!("`{name}` whose `content` is no text"))
    }

    /// It stands in `content`; `null` is a state too.
    fn state(&self, name: &str) -> Result<Value, String> {
        let content = self.content.ok_or_else(|| format!("`{name}` without `content`"))?;
        serde_json::from_str(content.get()).map_err(|_| format!("`{name}` whose `content` cannot be kept"))
    }

    fn facts(&self, name: &str) -> Result<Map<String, Value>, String> {
        let read = |raw: &RawValue| serde_json::from_str(raw.get());
        let facts: Option<Option<Map<String, Value>>> = self.metadata.map(read).transpose().map_err(|_| wrong(name))?;
        Ok(facts.flatten().unwrap_or_default())
    }

    fn question(&self, name: &str) -> Result<UpstreamQuestion, String> {
        let mut facts = self.facts(name)?;
        facts.entry("scope").or_insert_with(|| "custom".into());
        Ok(UpstreamQuestion { text: self.text(name)?, facts, step_id: self.step_id.clone(), state: self.state.clone() })
    }

    /// Content and metadata stay as they were written, to the byte.
    fn draft(&self, name: &str) -> Result<Draft, String> {
        let shown: String = name.chars().take(80).collect();
        let name = EventName::of_agent(name).ok_or_else(|| format!("`{shown}`, which is not an agent's to say"))?;
        self.facts(name.as_str())?;
        let step_id = match &self.step_id {
            None => None,
            Some(step) => Some(StepId::parse(step).ok_or("a `step_id` that is no name")?),
        };
        let content = self.content.unwrap_or(RawValue::NULL);
        let metadata = self.metadata.filter(|raw| raw.get() != "null");
        let on_one_line =
            |raw: &RawValue| RawValue::from_string(json::compact(raw.get())).unwrap_or_else(|_| raw.to_owned());
        Ok(Draft { name, step_id, content: on_one_line(content), metadata: metadata.map(on_one_line) })
    }
}

fn wrong(name: &str) -> String {
    format!("`{name}` whose `metadata` is no object")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(event: &Value) -> Result<UpstreamEvent, String> {
        read(&UpstreamRecord { event: None, data: event.to_string() })
    }

    fn refused(event: &Value) -> String {
        parsed(event).err().unwrap_or_else(|| panic!("this must be refused: {event}"))
    }

    #[test]
    fn work_passes_through_untouched_and_kinds_of_the_agents_own_too() {
        let data = r#"{"event":"agent.mood","content":{"b":1.0,"a":[1e2]},"metadata":{"z":1,"a":2},"step_id":"s"}"#;
        let Ok(UpstreamEvent::Event(draft)) = read(&UpstreamRecord { event: None, data: data.into() }) else {
            panic!()
        };
        assert_eq!(draft.content.get(), r#"{"b":1.0,"a":[1e2]}"#);
        assert_eq!(draft.metadata.unwrap().get(), r#"{"z":1,"a":2}"#);
        assert_eq!(draft.step_id.unwrap().as_str(), "s");
        for name in ["solver.start", "weird.ns"] {
            assert!(
                matches!(parsed(&json!({ "event": name, "content": { "task": {} } })), Ok(UpstreamEvent::Event(_))),
                "{name}"
            );
        }
    }

    #[test]
    fn an_event_stream_may_name_its_events_itself() {
        let record = UpstreamRecord { event: Some("agent.partial_answer".into()), data: r#"{"content":"x"}"#.into() };
        assert!(matches!(read(&record), Ok(UpstreamEvent::Piece(text, _)) if text == "x"));
    }

    #[test]
    fn what_is_not_an_agents_to_say_is_refused() {
        for name in ["user.message", "agent.session_end", "system.notice", "agent.session_created", "y", "error.x"] {
            let why = refused(&json!({ "event": name, "content": "x" }));
            assert!(why.contains("not an agent's to say"), "{name}: {why}");
        }
        refused(&json!({ "content": "x" }));
        refused(&json!({ "event": "agent.partial_answer", "content": { "text": "x" } }));
        refused(&json!({ "event": "agent.mood", "metadata": "x" }));
        refused(&json!({ "event": "agent.mood", "step_id": "" }));
        refused(&json!([1]));
        let deep = format!("{{\"event\":\"agent.mood\",\"content\":{}{}}}", "[".repeat(100), "]".repeat(100));
        assert!(read(&UpstreamRecord { event: None, data: deep }).is_err());
    }

    #[test]
    fn a_state_is_kept_and_not_logged() {
        let state = json!({ "step": 2, "seen": ["a"] });
        assert!(
            matches!(parsed(&json!({ "event": "agent.state", "content": state })), Ok(UpstreamEvent::State(kept)) if kept == state)
        );
        assert!(refused(&json!({ "event": "agent.state" })).contains("without `content`"));
    }

    #[test]
    fn endings_and_questions_are_told_apart_from_events() {
        let facts = json!({ "usage": { "total_tokens": 1 }, "model": "m", "mood": "good" });
        let Ok(UpstreamEvent::Answered(answer)) =
            parsed(&json!({ "event": "agent.final_answer", "content": "a", "metadata": facts }))
        else {
            panic!()
        };
        assert_eq!((answer.text.as_str(), answer.model.as_deref()), ("a", Some("m")));
        assert_eq!(answer.metadata.get("mood"), Some(&json!("good")));
        let error =
            json!({ "event": "agent.error", "content": "no", "metadata": { "error_code": "SESSION_NOT_FOUND" } });
        assert!(matches!(parsed(&error), Ok(UpstreamEvent::Ended(error)) if error.code == ErrorCode::AgentFailed));
        assert!(
            matches!(parsed(&json!({ "event": "agent.cancelled", "content": "x" })), Ok(UpstreamEvent::Ended(e)) if e.cancelled)
        );
        let asks = json!({ "event": "agent.user_confirm", "content": "Shall I?", "step_id": "q", "state": { "n": 1 } });
        let Ok(UpstreamEvent::Question(question)) = parsed(&asks) else { panic!() };
        assert_eq!((question.step_id.as_deref(), question.state["n"].as_u64()), (Some("q"), Some(1)));
        assert_eq!(question.facts["scope"], "custom");
    }
}
