//! What the hub reports to the program around it, for metrics.

use super::Backend;
use crate::call::outcome::CallOutcome;

/// What the hub counts, for the metrics of the server around it.
pub trait Observer: Send + Sync {
    fn call_ended(&self, backend: &Backend, outcome: CallOutcome, seconds: f64);
    fn backend_event(&self, name: &'static str);
    /// A limit was reached; the name is that of its setting.
    fn limit_hit(&self, _name: &'static str) {}
}

pub(crate) struct NoObserver;

impl Observer for NoObserver {
    fn call_ended(&self, _backend: &Backend, _outcome: CallOutcome, _seconds: f64) {}
    fn backend_event(&self, _name: &'static str) {}
}
