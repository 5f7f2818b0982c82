//! What a run has said of its answer so far, which may not grow without end.

use std::fmt;
use std::sync::Arc;

use bowline_api::{AgentError, Emitter, Host};
use serde_json::{Map, Value};

/// The limit on one answer, as it is counted.
pub const ANSWER_LIMIT: &str = "agents.answer_bytes_max";

pub struct AccumulatedText {
    text: String,
    bytes_max: usize,
    host: Arc<dyn Host>,
}

impl AccumulatedText {
    pub fn new(bytes_max: usize, host: Arc<dyn Host>) -> AccumulatedText {
        AccumulatedText { text: String::new(), bytes_max, host }
    }

    /// Emits a piece and keeps it.
    pub async fn say(&mut self, emit: &Emitter, delta: String) -> Result<(), AgentError> {
        self.say_with(emit, delta, Map::new()).await
    }

    /// The same, with facts that go with the piece.
    pub async fn say_with(
        &mut self,
        emit: &Emitter,
        delta: String,
        facts: Map<String, Value>,
    ) -> Result<(), AgentError> {
        self.keep(&delta)?;
        Ok(emit.partial_answer_with(delta, facts).await?)
    }

    /// Keeps a piece that is emitted otherwise.
    pub fn keep(&mut self, delta: &str) -> Result<(), AgentError> {
        self.allow(self.text.len() + delta.len())?;
        self.text.push_str(delta);
        Ok(())
    }

    /// Whether an answer of so many bytes may be given.
    pub fn allow(&self, bytes: usize) -> Result<(), AgentError> {
        if bytes <= self.bytes_max {
            return Ok(());
        }
        self.host.limit_hit(ANSWER_LIMIT);
        Err(AgentError::failed(format!("Its answer is longer than {} bytes.", self.bytes_max)))
    }

    /// Sets what comes next apart from what was said before a tool was called.
    pub async fn paragraph(&mut self, emit: &Emitter) -> Result<(), AgentError> {
        if self.text.is_empty() || self.text.ends_with("\n\n") {
            return Ok(());
        }
        self.say(emit, "\n\n".into()).await
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The whole answer. The run is over with it.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }
}

impl fmt::Debug for AccumulatedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccumulatedText({} bytes)", self.text.len())
    }
}
