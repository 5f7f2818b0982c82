//! The settings of `agents`: which there are, what each is, and where their secrets come from.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_protocol::frame::client::Secret;
use http::{HeaderName, HeaderValue};
use url::Url;

use super::error::{ConfigError, Source};
use super::key::{AGENT_KINDS, AGENT_NAME};
use super::lookup::keys;
use super::resolve::{Resolver, Result};

#[derive(Clone, Debug)]
pub struct AgentConfig {
    pub kind: AgentKind,
}

#[derive(Clone, Debug)]
pub enum AgentKind {
    Demo {
        /// The same seed gives the same plan and the same pauses.
        seed: u64,
        /// 1 is as a person would like it; larger is faster, 0 means no pauses at all.
        speed: f64,
    },
    OpenAi(OpenAiConfig),
    Http(HttpConfig),
}

impl AgentKind {
    /// The word that stands for it in settings.
    pub const fn name(&self) -> &'static str {
        match self {
            AgentKind::Demo { .. } => "demo",
            AgentKind::OpenAi(_) => "openai",
            AgentKind::Http(_) => "http",
        }
    }
}

/// A model behind an OpenAI-compatible endpoint.
#[derive(Clone, Debug)]
pub struct OpenAiConfig {
    /// Where `/chat/completions` lies.
    pub base_url: String,
    pub model: String,
    /// What the model reads before the conversation.
    pub system: Option<String>,
    /// Requests to the model in one run; each but the last may call tools.
    pub max_steps: u32,
    pub wire: WireConfig,
}

/// A program behind a URL.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    pub url: String,
    /// What it answers; none means that its answer tells.
    pub format: Option<Format>,
    pub wire: WireConfig,
}

/// What an upstream answers a POST with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Chunks of the AI SDK's UI message stream.
    Ui,
    /// Chunks of chat completions.
    OpenAi,
    /// Events of our own.
    Events,
}

/// How an upstream is spoken to.
#[derive(Clone, Debug)]
pub struct WireConfig {
    pub token: Option<Secret>,
    pub headers: Vec<(String, Secret)>,
    /// The longest silence before the upstream counts as lost.
    pub timeout: Duration,
    /// How often a request that may be sent again is.
    pub retries: u32,
    /// The longest answer, and the largest record of one.
    pub answer_bytes_max: usize,
}

/// As an upstream without settings of its own is spoken to.
impl Default for WireConfig {
    fn default() -> WireConfig {
        Resolver::of_defaults(|resolver| resolver.wire(URL_AGENT, "token_env"))
    }
}

/// The name of the agent that `default_agent = "https://…"` makes.
pub const URL_AGENT: &str = "http";

const KINDS: &str = "\"demo\", \"openai\" or \"http\"";

impl Resolver<'_> {
    /// Every agent, and which of them is the default.
    pub(super) fn agents(&self) -> Result<(BTreeMap<String, AgentConfig>, String)> {
        let mut names = self.written.agent_names();
        names.insert("demo".into());
        let agents: BTreeMap<String, AgentConfig> =
            names.into_iter().map(|name| self.agent(&name).map(|agent| (name, agent))).collect::<Result<_>>()?;
        let default: String = self.get("default_agent")?;
        if default.contains("://") {
            return self.agent_by_url(agents, &default);
        }
        if !agents.contains_key(&default) {
            let known: Vec<_> = agents.keys().map(|name| format!("\"{name}\"")).collect();
            let expected = format!("the name of a configured agent ({}), or a URL", known.join(", "));
            return Err(self.wrong("default_agent", &expected));
        }
        Ok((agents, default))
    }

    /// A URL in place of a name is an agent of kind `http` with nothing else set.
    fn agent_by_url(
        &self,
        mut agents: BTreeMap<String, AgentConfig>,
        url: &str,
    ) -> Result<(BTreeMap<String, AgentConfig>, String)> {
        if agents.contains_key(URL_AGENT) {
            return Err(ConfigError::conflict(
                format!("`default_agent` is a URL, which makes an agent `{URL_AGENT}`, and there is one of that name"),
                "Name the configured one, or rename it.",
            ));
        }
        let url = self.url("default_agent", url)?;
        let kind = AgentKind::Http(HttpConfig { url, format: None, wire: WireConfig::default() });
        agents.insert(URL_AGENT.into(), AgentConfig { kind });
        Ok((agents, URL_AGENT.into()))
    }

    fn agent(&self, name: &str) -> Result<AgentConfig> {
        let key = |word: &str| format!("agents.{name}.{word}");
        let plain = name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
        if !plain || name.is_empty() {
            let source_of = self.written.first_of_agent(name).unwrap_or(Source::Default);
            let expected = "an agent's name of letters, digits, _ and -".to_owned();
            return Err(ConfigError::Wrong { key: "agents".into(), source_of, given: name.to_owned(), expected });
        }
        if name != "demo" && !self.written.is_written(&key("kind")) {
            let source_of = self.written.first_of_agent(name).unwrap_or(Source::Default);
            return Err(ConfigError::Wrong {
                key: key("kind"),
                source_of,
                given: "nothing".into(),
                expected: KINDS.into(),
            });
        }
        let word: String = self.get(&key("kind"))?;
        self.refuse_settings_of_other_kinds(name, &word)?;
        let kind = match word.as_str() {
            "demo" => AgentKind::Demo { seed: self.get(&key("seed"))?, speed: self.get(&key("speed"))? },
            "openai" => AgentKind::OpenAi(OpenAiConfig {
                base_url: self.url(&key("base_url"), &self.get::<String>(&key("base_url"))?)?,
                model: self.get(&key("model"))?,
                system: self.get(&key("system"))?,
                max_steps: self.get(&key("max_steps"))?,
                wire: self.wire(name, "api_key_env")?,
            }),
            "http" => AgentKind::Http(HttpConfig {
                url: self.url(&key("url"), &self.get::<String>(&key("url"))?)?,
                format: self.format(&key("format"))?,
                wire: self.wire(name, "token_env")?,
            }),
            _ => return Err(self.wrong(&key("kind"), KINDS)),
        };
        Ok(AgentConfig { kind })
    }

    /// A model for an agent that has none is a slip worth telling.
    fn refuse_settings_of_other_kinds(&self, name: &str, kind: &str) -> Result<()> {
        let known = AGENT_KINDS.contains(&kind);
        let foreign = keys().filter(|key| known && !key.is_for(kind));
        let written = foreign.map(|key| key.name.replace(AGENT_NAME, name));
        match written.into_iter().find(|path| self.written.is_written(path)) {
            None => Ok(()),
            Some(path) => Err(ConfigError::conflict(
                format!("`{path}` ({}) means nothing to an agent of kind \"{kind}\"", self.written.get(&path).1),
                "Remove it, or change the kind.",
            )),
        }
    }

    fn wire(&self, name: &str, token_env: &str) -> Result<WireConfig> {
        let key = |word: &str| format!("agents.{name}.{word}");
        Ok(WireConfig {
            token: self.variable(&key(token_env))?.map(Secret::new),
            headers: self.headers(&key("headers_env"))?,
            timeout: self.get(&key("timeout"))?,
            retries: self.get(&key("retries"))?,
            answer_bytes_max: self.get(&key("answer_bytes_max"))?,
        })
    }

    /// The variable that a setting names must be there: a key that is missing would be found out by the first user.
    fn variable(&self, key: &str) -> Result<Option<String>> {
        let Some(name) = self.get::<Option<String>>(key)? else { return Ok(None) };
        let value = self.around.variables.get(&name).filter(|value| !value.trim().is_empty());
        let value = value.ok_or_else(|| self.wrong(key, "the name of an environment variable that is set"))?;
        let value = value.trim();
        if HeaderValue::from_str(value).is_err() && !value.contains('{') {
            return Err(self.wrong(key, "the name of a variable whose value can stand in a header"));
        }
        Ok(Some(value.to_owned()))
    }

    fn headers(&self, key: &str) -> Result<Vec<(String, Secret)>> {
        let Some(text) = self.variable(key)? else { return Ok(Vec::new()) };
        let expected = "the name of a variable that holds headers as JSON, such as {\"x-api-key\": \"…\"}";
        let headers: BTreeMap<String, String> = serde_json::from_str(&text).map_err(|_| self.wrong(key, expected))?;
        let sound = |(name, value): (&String, &String)| {
            HeaderName::from_bytes(name.as_bytes()).is_ok() && HeaderValue::from_str(value).is_ok()
        };
        if !headers.iter().all(sound) {
            return Err(self.wrong(key, expected));
        }
        Ok(headers.into_iter().map(|(name, value)| (name, Secret::new(value))).collect())
    }

    fn url(&self, key: &str, text: &str) -> Result<String> {
        let url: Url = text.parse().map_err(|_| self.wrong(key, "a URL such as \"https://api.example/v1\""))?;
        if !["http", "https"].contains(&url.scheme()) || !url.has_host() {
            return Err(self.wrong(key, "an http or https URL"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            let source_of = self.written.get(key).1;
            let (given, expected) =
                ("one with a name or password in it".into(), "a URL without; use `token_env`".into());
            return Err(ConfigError::Wrong { key: key.to_owned(), source_of, given, expected });
        }
        Ok(text.to_owned())
    }

    fn format(&self, key: &str) -> Result<Option<Format>> {
        Ok(match self.get::<String>(key)?.as_str() {
            "ui" => Some(Format::Ui),
            "openai" => Some(Format::OpenAi),
            "events" => Some(Format::Events),
            _ => None,
        })
    }
}
