//! This server, as agents and their emitters see it.

use std::sync::Arc;

use bowline_api::Host;
use bowline_env::entropy;
use bowline_protocol::StepId;

use crate::metrics::Labelled;

#[derive(Debug)]
struct AgentHost {
    limits_hit: Labelled,
}

/// What agents and emitters get. Limits that they hit are counted in `limits_hit`.
pub fn agent_host(limits_hit: &Labelled) -> Arc<dyn Host> {
    Arc::new(AgentHost { limits_hit: limits_hit.clone() })
}

impl Host for AgentHost {
    fn step_id(&self) -> StepId {
        StepId::from_random(entropy::u128())
    }

    fn limit_hit(&self, limit: &'static str) {
        self.limits_hit.inc(limit);
    }
}
