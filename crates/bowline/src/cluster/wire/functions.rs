//! Outputs of functions that a run waits for, on their way to the node that has its session.

use bowline_api::{FunctionChoice, FunctionOutput, FunctionSpec, Functions};
use bowline_protocol::frame::client::Content;
use bowline_protocol::{Seq, StepId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::session::Returned;

#[derive(Serialize, Deserialize)]
pub struct ReturnedOutputs {
    step_id: StepId,
    outputs: Vec<Output>,
    functions: Callable,
    request: Content,
    #[serde(default)]
    announce: Option<Seq>,
}

#[derive(Serialize, Deserialize)]
struct Output {
    step_id: StepId,
    text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
}

/// What the run may call from now on.
#[derive(Serialize, Deserialize)]
struct Callable {
    list: Vec<CallableFunction>,
    #[serde(default)]
    choice: Choice,
    parallel: bool,
}

#[derive(Serialize, Deserialize)]
struct CallableFunction {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default)]
    parameters: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Choice {
    #[default]
    Auto,
    Required,
    Function(String),
}

impl From<&Returned> for ReturnedOutputs {
    fn from(returned: &Returned) -> ReturnedOutputs {
        let Returned { step_id, outputs, functions, request, announce } = returned;
        ReturnedOutputs {
            step_id: step_id.clone(),
            outputs: outputs.iter().cloned().map(Output::from).collect(),
            functions: functions.clone().into(),
            request: request.clone(),
            announce: *announce,
        }
    }
}

impl From<ReturnedOutputs> for Returned {
    fn from(outputs: ReturnedOutputs) -> Returned {
        let ReturnedOutputs { step_id, outputs, functions, request, announce } = outputs;
        let outputs = outputs.into_iter().map(FunctionOutput::from).collect();
        Returned { step_id, outputs, functions: functions.into(), request, announce }
    }
}

impl From<FunctionOutput> for Output {
    fn from(FunctionOutput { step_id, text, data }: FunctionOutput) -> Output {
        Output { step_id, text, data }
    }
}

impl From<Output> for FunctionOutput {
    fn from(Output { step_id, text, data }: Output) -> FunctionOutput {
        FunctionOutput { step_id, text, data }
    }
}

impl From<Functions> for Callable {
    fn from(Functions { list, choice, parallel }: Functions) -> Callable {
        let one = |FunctionSpec { name, description, parameters, strict }| CallableFunction {
            name,
            description,
            parameters,
            strict,
        };
        let choice = match choice {
            FunctionChoice::Auto => Choice::Auto,
            FunctionChoice::Required => Choice::Required,
            FunctionChoice::Function(name) => Choice::Function(name),
        };
        Callable { list: list.into_iter().map(one).collect(), choice, parallel }
    }
}

impl From<Callable> for Functions {
    fn from(Callable { list, choice, parallel }: Callable) -> Functions {
        let one = |CallableFunction { name, description, parameters, strict }| FunctionSpec {
            name,
            description,
            parameters,
            strict,
        };
        let choice = match choice {
            Choice::Auto => FunctionChoice::Auto,
            Choice::Required => FunctionChoice::Required,
            Choice::Function(name) => FunctionChoice::Function(name),
        };
        Functions { list: list.into_iter().map(one).collect(), choice, parallel }
    }
}
