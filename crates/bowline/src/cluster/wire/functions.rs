//! Outputs of functions that a run waits for, on their way to the node that has its session.

use bowline_api::{FunctionOutput, Functions};
use bowline_protocol::frame::client::Content;
use bowline_protocol::{Seq, StepId};
use serde::{Deserialize, Serialize};

use crate::session::Returned;

#[derive(Serialize, Deserialize)]
pub struct ReturnedOutputs {
    step_id: StepId,
    outputs: Vec<FunctionOutput>,
    functions: Functions,
    request: Content,
    #[serde(default)]
    announce: Option<Seq>,
}

impl From<&Returned> for ReturnedOutputs {
    fn from(returned: &Returned) -> ReturnedOutputs {
        let Returned { step_id, outputs, functions, request, announce } = returned;
        ReturnedOutputs {
            step_id: step_id.clone(),
            outputs: outputs.clone(),
            functions: functions.clone(),
            request: request.clone(),
            announce: *announce,
        }
    }
}

impl From<ReturnedOutputs> for Returned {
    fn from(outputs: ReturnedOutputs) -> Returned {
        let ReturnedOutputs { step_id, outputs, functions, request, announce } = outputs;
        Returned { step_id, outputs, functions, request, announce }
    }
}
