//! What a turn waits for, as its events say it: a person's answer, or outputs of functions that the caller has.

use bowline_protocol::event::names;
use bowline_protocol::{EventView, StepId};
use serde::Deserialize;

/// An event after which the turn waits, and which ends a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    Question,
    /// The steps of all calls that were made together, of which this is the last.
    Outputs(Vec<StepId>),
}

#[derive(Deserialize)]
struct Facts {
    caller: bool,
    awaits: Vec<StepId>,
}

impl Wait {
    /// What the turn waits for after this event; none if it goes on.
    pub fn of(view: &EventView<'_>) -> Option<Wait> {
        match view.event {
            names::USER_CONFIRM => Some(Wait::Question),
            names::TOOL_CALL => {
                let object = view.metadata.filter(|raw| raw.get().starts_with('{'))?;
                let facts: Facts = serde_json::from_str(object.get()).ok()?;
                Some(Wait::Outputs(facts.awaits)).filter(|_| facts.caller)
            }
            _ => None,
        }
    }
}
