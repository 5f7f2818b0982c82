//! The agents that the settings name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Agent;
use super::demo::Demo;
use super::http::Http;
use super::openai::OpenAi;
use crate::config::{AgentKind, Config};
use crate::metrics::Metrics;

/// Every configured agent, ready to work.
pub fn configured(config: &Config, metrics: &Metrics) -> anyhow::Result<BTreeMap<String, Arc<dyn Agent>>> {
    let limits_hit = &metrics.limits_hit;
    let make = |name: &str, kind: &AgentKind| -> anyhow::Result<Arc<dyn Agent>> {
        Ok(match kind {
            AgentKind::Demo { seed, speed } => Arc::new(Demo::new(*seed, *speed)),
            AgentKind::OpenAi(openai) => Arc::new(OpenAi::new(name, openai, limits_hit)?),
            AgentKind::Http(http) => Arc::new(Http::new(name, http, limits_hit)?),
        })
    };
    config.agents.iter().map(|(name, agent)| Ok((name.clone(), make(name, &agent.kind)?))).collect()
}
