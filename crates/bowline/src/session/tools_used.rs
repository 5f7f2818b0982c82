//! The tools that a session has used: remembered beside its log, named in signed states, looked for after a restore.

use std::collections::BTreeMap;

use bowline_api::{Emission, Tools};
use bowline_protocol::event::names;
use bowline_protocol::{Principal, Refusal};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::actor::{PendingChange, SessionActor};
use super::record::keys;

/// One tool, as the session has called it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedTool {
    pub tool: String,
    /// The MCP server that has it; none for a tool of the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
}

impl UsedTool {
    /// `<server>__<tool>`, as tools are listed, or the name alone.
    fn name(&self) -> String {
        match &self.server {
            Some(server) => format!("{server}__{}", self.tool),
            None => self.tool.clone(),
        }
    }
}

/// By their names.
pub type UsedTools = BTreeMap<String, UsedTool>;

impl SessionActor {
    /// Adds the tools that these emissions call to what is remembered, in the commit that logs the calls.
    pub(super) async fn note_tools(&self, change: &mut PendingChange, emissions: &[Emission]) -> Result<(), Refusal> {
        let called: Vec<UsedTool> = emissions.iter().filter_map(called).collect();
        self.note_used(change, called).await
    }

    /// The same for an operation, if it is a tool of a server and not of the agent.
    pub(super) async fn note_listed(&self, change: &mut PendingChange, name: Option<&str>) -> Result<(), Refusal> {
        let Some(name) = name else { return Ok(()) };
        let listed = self.shared.tools.list(&self.owner).await.into_iter().find(|spec| spec.name == name);
        let used = listed.map(|spec| UsedTool { tool: spec.tool, server: Some(spec.server) });
        self.note_used(change, used.into_iter().collect()).await
    }

    async fn note_used(&self, change: &mut PendingChange, called: Vec<UsedTool>) -> Result<(), Refusal> {
        if called.is_empty() {
            return Ok(());
        }
        let mut known: UsedTools = self.item(keys::TOOLS).await?.unwrap_or_default();
        let before = known.len();
        for tool in called {
            if let Some(server) = &tool.server
                && self.shared.tools.server(&self.owner, server).await.is_none()
            {
                // A model may make servers up.
                continue;
            }
            if known.len() < self.shared.config.state.tools_max {
                known.entry(tool.name()).or_insert(tool);
            } else if !known.contains_key(&tool.name()) {
                self.shared.metrics.limits_hit.inc("state.tools_max");
            }
        }
        if known.len() > before {
            change.put(keys::TOOLS, &known);
        }
        Ok(())
    }

    /// What a signed state says of them: their names, their servers, and how those are reached, without secrets.
    pub(super) async fn tool_states(&self) -> Result<Map<String, Value>, Refusal> {
        let used: UsedTools = self.item(keys::TOOLS).await?.unwrap_or_default();
        let mut states = Map::new();
        for (name, UsedTool { tool, server }) in used {
            let mut state = Map::new();
            state.insert("name".into(), name.as_str().into());
            state.insert("tool".into(), tool.into());
            if let Some(server) = server {
                state.extend(self.shared.tools.server(&self.owner, &server).await.unwrap_or_default());
                state.insert("server".into(), server.into());
            }
            states.insert(name, state.into());
        }
        Ok(states)
    }
}

fn called(emission: &Emission) -> Option<UsedTool> {
    /// The part of a call's metadata that names the tool.
    #[derive(Deserialize)]
    struct CallMetadata {
        tool: String,
        server: Option<String>,
    }
    let Emission::Event(draft) = emission else { return None };
    let facts = draft.metadata.as_deref().filter(|_| draft.name.as_str() == names::TOOL_CALL)?;
    let CallMetadata { tool, server } = serde_json::from_str(facts.get()).ok()?;
    Some(UsedTool { tool, server })
}

/// Reads what a state says of the tools that its session has used.
pub fn from_states(states: &Map<String, Value>) -> UsedTools {
    let one = |(name, state): (&String, &Value)| {
        let text = |key: &str| state[key].as_str().map(str::to_owned);
        let tool = text("tool").or_else(|| text("name"))?;
        Some((name.clone(), UsedTool { tool, server: text("server") }))
    };
    states.iter().filter_map(one).collect()
}

/// One sentence for each server that was used and is not here.
pub async fn missing(tools: &dyn Tools, owner: &Principal, used: &UsedTools) -> Vec<String> {
    let mut servers: Vec<&str> = used.values().filter_map(|tool| tool.server.as_deref()).collect();
    servers.sort_unstable();
    servers.dedup();
    let mut warnings = Vec::new();
    for server in servers {
        if tools.server(owner, server).await.is_none() {
            warnings.push(format!("The session has used tools of the MCP server `{server}`, which is not here."));
        }
    }
    warnings
}
