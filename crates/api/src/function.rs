//! Functions of the caller's: a run may call them, and the one who sent the message computes their outputs.

use std::fmt;

use bowline_protocol::StepId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a run may call of its caller's, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Functions {
    /// The functions. If there are none, the caller takes no calls.
    pub list: Vec<FunctionSpec>,
    /// Whether one has to be called.
    #[serde(default)]
    pub choice: FunctionChoice,
    /// Whether several may be called at once.
    pub parallel: bool,
}

impl Functions {
    /// The function of this name.
    pub fn find(&self, name: &str) -> Option<&FunctionSpec> {
        self.list.iter().find(|function| function.name == name)
    }
}

impl Default for Functions {
    fn default() -> Functions {
        Functions { list: Vec::new(), choice: FunctionChoice::Auto, parallel: true }
    }
}

/// One function, as its caller describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionSpec {
    /// Its name.
    pub name: String,
    /// What it does, for a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON Schema of its arguments, or null.
    #[serde(default)]
    pub parameters: Value,
    /// Whether arguments must follow the schema to the letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Whether an agent has to call a tool before it answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FunctionChoice {
    /// It decides.
    #[default]
    Auto,
    /// Any tool.
    Required,
    /// The function of this name.
    Function(String),
}

/// One call of a function, as the log shows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The step that pairs it with its output.
    pub step_id: StepId,
    /// The function.
    pub name: String,
    /// The arguments as the agent wrote them: JSON, if it comes from a model that keeps to the protocol.
    pub arguments: String,
}

impl fmt::Debug for FunctionCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FunctionCall({}, {} bytes)", self.name, self.arguments.len())
    }
}

/// Calls whose outputs a run waits for, as the server stores them beside the log.
#[derive(Clone, Serialize, Deserialize)]
pub struct OpenCalls {
    /// The step under which the run waits: that of the last call.
    pub step_id: StepId,
    /// The calls, in the order in which they were made.
    pub calls: Vec<FunctionCall>,
    /// What the agent gave to [`Emitter::call_functions`](crate::Emitter::call_functions).
    pub state: Value,
    /// When they were made, in Unix milliseconds.
    pub called_ms: u64,
}

impl fmt::Debug for OpenCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenCalls({}, {} calls)", self.step_id, self.calls.len())
    }
}

/// What a function returned.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionOutput {
    /// The call that it is the output of.
    pub step_id: StepId,
    /// What a model reads.
    pub text: String,
    /// What the output consists of, if that is more than its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl fmt::Debug for FunctionOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FunctionOutput({}, {} bytes)", self.step_id, self.text.len())
    }
}

/// The outputs of all calls that a run waited for, and what it may call next.
#[derive(Clone, Debug)]
pub struct FunctionOutputs {
    /// One for each call, in the order of the calls.
    pub outputs: Vec<FunctionOutput>,
    /// The functions that the caller takes calls of from now on.
    pub functions: Functions,
}
