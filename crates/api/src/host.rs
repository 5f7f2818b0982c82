//! What an emitter needs of the server around it.

use std::fmt;

use bowline_protocol::StepId;

/// The server around an agent, as far as an agent can notice it. Only servers implement it.
pub trait Host: fmt::Debug + Send + Sync + 'static {
    /// An id that no other step has.
    fn step_id(&self) -> StepId;

    /// Counts that a limit was hit. `limit` is its name in the settings.
    fn limit_hit(&self, limit: &'static str);
}
