//! The agents that the settings name.

mod accumulated_text;
pub mod demo;
pub mod http;
pub mod openai;
mod plan;
mod upstream;
mod upstream_error;

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_api::{Agent, Host};

use self::demo::Demo;
use self::http::Http;
use self::openai::OpenAi;
use crate::config::{AgentKind, Config};

/// Every configured agent.
pub fn configured(config: &Config, host: &Arc<dyn Host>) -> anyhow::Result<BTreeMap<String, Arc<dyn Agent>>> {
    let network = &config.env.network;
    let make = |name: &str, kind: &AgentKind| -> anyhow::Result<Arc<dyn Agent>> {
        Ok(match kind {
            AgentKind::Demo { seed, speed } => Arc::new(Demo::new(*seed, *speed)),
            AgentKind::OpenAi(openai) => Arc::new(OpenAi::new(name, openai, network, host)?),
            AgentKind::Http(http) => Arc::new(Http::new(name, http, network, host)?),
        })
    };
    config.agents.iter().map(|(name, agent)| Ok((name.clone(), make(name, &agent.kind)?))).collect()
}
