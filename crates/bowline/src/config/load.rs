//! Loading: gather what was written, settle what it means, and remember where every value came from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bowline_env::Env;
use bowline_env::files::read_text;
use schemars::JsonSchema;
use serde::Serialize;

use super::Config;
use super::choice::Choice;
use super::error::{ConfigError, Source};
use super::key::AGENT_NAME;
use super::lookup::keys;
use super::reread::Reread;
use super::resolve::{ReadSection, Resolver};
use super::value::Value;
use super::written::Written;

/// Read when no file is named and it exists.
pub const FILE_NAME: &str = "bowline.toml";

/// The settings that have a flag, and the file to read.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    pub config: Option<PathBuf>,
    pub listen: Option<String>,
    pub store: Option<String>,
    pub agent: Option<String>,
    pub insecure_no_auth: bool,
}

/// The settings in force, and where each came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: Config,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    pub settings: Vec<Setting>,
    /// How to read them again, unless they were made in code.
    pub reread: Option<Reread>,
}

/// One setting in force. The value never holds a secret.
#[derive(Clone, Debug)]
pub struct Setting {
    pub key: String,
    pub value: serde_json::Value,
    pub source: Source,
}

/// The settings in force, without secrets.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Settings")]
pub struct EffectiveSettings {
    /// The file that was read, if any.
    file: Option<String>,
    settings: BTreeMap<String, EffectiveSetting>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Setting")]
struct EffectiveSetting {
    /// Where the value came from.
    source: String,
    value: serde_json::Value,
}

impl Loaded {
    /// Every setting with its value and source, secrets hidden: for `config print` and the admin API.
    pub fn effective(&self) -> EffectiveSettings {
        let one = |setting: &Setting| {
            let shown = EffectiveSetting { source: setting.source.to_string(), value: setting.value.clone() };
            (setting.key.clone(), shown)
        };
        let file = self.file.as_ref().map(|path| path.display().to_string());
        EffectiveSettings { file, settings: self.settings.iter().map(one).collect() }
    }

    /// Whether this setting is written, in a file, a variable or a flag.
    pub fn is_written(&self, key: &str) -> bool {
        self.settings.iter().any(|setting| setting.key == key && setting.source != Source::Default)
    }
}

/// Settings made in code rather than read, as tests do: nothing was written, so there are no sources.
impl From<Config> for Loaded {
    fn from(config: Config) -> Loaded {
        Loaded { config, file: None, settings: Vec::new(), reread: None }
    }
}

/// Everything outside the process that settings are read from.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    pub variables: BTreeMap<String, String>,
    /// Where relative paths and `bowline.toml` are looked for.
    pub dir: PathBuf,
    /// The files that are read, and what the node gets besides them.
    pub env: Env,
}

impl Surroundings {
    /// Those of this process. A variable that is not Unicode is no setting of ours.
    pub fn of_process() -> Surroundings {
        let unicode = |(name, text): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, text.into_string().ok()?))
        };
        Surroundings { variables: std::env::vars_os().filter_map(unicode).collect(), ..Surroundings::default() }
    }

    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.dir.join(path)
    }
}

impl Config {
    /// Defaults, then the file, then the environment, then flags: later wins.
    pub fn load(flags: &Flags) -> Result<Loaded, ConfigError> {
        Config::load_from(flags, &Surroundings::of_process())
    }

    pub fn load_from(flags: &Flags, around: &Surroundings) -> Result<Loaded, ConfigError> {
        let mut written = Written::default();
        let file = read_file(flags, around, &mut written)?;
        written.add_env(around.variables.clone())?;
        add_flags(flags, &mut written)?;
        let config = Config::read(&Resolver { written: &written, around })?;
        let settings = settings(&written, &config);
        let reread = Some(Reread::new(flags, around, file.as_deref(), &written));
        Ok(Loaded { config, file, settings, reread })
    }
}

fn read_file(flags: &Flags, around: &Surroundings, written: &mut Written) -> Result<Option<PathBuf>, ConfigError> {
    let path = flags.config.clone().unwrap_or_else(|| FILE_NAME.into());
    match read_text(&*around.env.files, &around.path(&path)) {
        Ok(text) => {
            written.add_file(&path, &text)?;
            Ok(Some(path))
        }
        Err(error) if flags.config.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ConfigError::Unreadable { path, reason: error.to_string() }),
    }
}

fn add_flags(flags: &Flags, written: &mut Written) -> Result<(), ConfigError> {
    if let Some(listen) = &flags.listen {
        written.add_flag("listen", "--listen", listen)?;
    }
    if let Some(store) = &flags.store {
        written.add_flag("store.url", "--store", store)?;
    }
    if let Some(agent) = &flags.agent {
        written.add_flag("default_agent", "--agent", agent)?;
    }
    if flags.insecure_no_auth {
        written.add_flag("insecure_no_auth", "--insecure-no-auth", "true")?;
    }
    Ok(())
}

/// The table's keys in its order, those of agents once for each agent.
fn settings(written: &Written, config: &Config) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut push = |key: String| {
        let (value, source) = written.get(&key);
        let value = match value {
            Value::Unset if key == "session.ownership" => serde_json::json!(config.session.ownership.word()),
            value => value.shown(),
        };
        settings.push(Setting { key, value, source });
    };
    let agent_keys = keys().filter(|key| key.name.contains(AGENT_NAME));
    for key in keys() {
        if Some(key.name) == agent_keys.clone().next().map(|first| first.name) {
            for (agent, made) in &config.agents {
                let mine = agent_keys.clone().filter(|key| key.is_for(made.kind.name()));
                mine.for_each(|key| push(key.name.replace(AGENT_NAME, agent)));
            }
        } else if !key.name.contains(AGENT_NAME) {
            push(key.name.to_owned());
        }
    }
    settings
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
