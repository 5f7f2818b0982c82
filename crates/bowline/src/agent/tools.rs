//! Tools: what agents may call. Whoever has tools to offer implements [`Tools`]; an agent finds them in its run.

use std::fmt;

use async_trait::async_trait;
use bowline_protocol::{Principal, RunId, SessionId, StepId};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

/// Something that has tools.
///
/// What an implementor owes:
/// - [`list`](Tools::list) tells what this owner may call now, and answers at once: a server that is away does not hold
///   an agent up.
/// - [`call`](Tools::call) ends by itself, whatever happens to the server behind it, and soon after `cancel` has fired.
/// - A call that may have run is never sent twice. If nobody can say whether it has, the outcome is
///   [`Unknown`](ToolOutcome::Unknown).
#[async_trait]
pub trait Tools: Send + Sync + 'static {
    async fn list(&self, owner: &Principal) -> Vec<ToolSpec>;

    async fn call(&self, call: ToolCall, cancel: CancellationToken) -> ToolOutcome;
}

impl fmt::Debug for dyn Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tools")
    }
}

/// One tool, as its server describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// `<server>__<tool>`.
    pub name: String,
    pub server: String,
    pub tool: String,
    pub description: String,
    /// A JSON Schema.
    pub input_schema: Value,
}

/// One call, and on whose behalf.
#[derive(Clone)]
pub struct ToolCall {
    /// `<server>__<tool>`, as listed.
    pub name: String,
    pub args: Map<String, Value>,
    pub owner: Principal,
    pub session: SessionId,
    pub run: RunId,
    /// The step under which the log shows the call.
    pub step: StepId,
}

impl fmt::Debug for ToolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolCall({}, {} arguments)", self.name, self.args.len())
    }
}

/// How a call ended.
#[derive(Clone, PartialEq)]
pub enum ToolOutcome {
    Success {
        /// What a model or a person reads.
        text: String,
        /// What the tool answered, for programs.
        data: Option<Value>,
    },
    /// It did not run, or it ran and said that it failed.
    Failed { error: String, data: Option<Value> },
    /// It was cut in flight, and may have run.
    Unknown { error: String },
}

impl ToolOutcome {
    pub fn failed(error: impl Into<String>) -> ToolOutcome {
        ToolOutcome::Failed { error: error.into(), data: None }
    }

    pub const fn status(&self) -> &'static str {
        match self {
            ToolOutcome::Success { .. } => "success",
            ToolOutcome::Failed { .. } => "failed",
            ToolOutcome::Unknown { .. } => "unknown",
        }
    }

    /// The sentence or text for people.
    pub fn text(&self) -> &str {
        match self {
            ToolOutcome::Success { text, .. } => text,
            ToolOutcome::Failed { error, .. } | ToolOutcome::Unknown { error } => error,
        }
    }

    /// The metadata of the event that tells this outcome.
    pub fn facts(&self, tool: &str, duration_ms: u64) -> Value {
        let mut facts = json!({ "tool": tool, "status": self.status(), "duration_ms": duration_ms });
        let (error, data) = match self {
            ToolOutcome::Success { data, .. } => (None, data.as_ref()),
            ToolOutcome::Failed { error, data } => (Some(error), data.as_ref()),
            ToolOutcome::Unknown { error } => (Some(error), None),
        };
        if let Some(error) = error {
            facts["error"] = error.as_str().into();
        }
        if let Some(data) = data {
            facts["data"] = data.clone();
        }
        facts
    }
}

impl fmt::Debug for ToolOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolOutcome({}, {} bytes)", self.status(), self.text().len())
    }
}

/// No tools at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTools;

#[async_trait]
impl Tools for NoTools {
    async fn list(&self, _owner: &Principal) -> Vec<ToolSpec> {
        Vec::new()
    }

    async fn call(&self, call: ToolCall, _cancel: CancellationToken) -> ToolOutcome {
        ToolOutcome::failed(format!("There is no tool `{}`.", call.name))
    }
}
