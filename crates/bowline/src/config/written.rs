//! What was written: every setting that a file, the environment or a flag gives, checked against the table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Source};
use super::key::Key;
use super::lookup;
use super::value::{HIDDEN, Value, without_password};

/// Variables that the client commands read; they are no settings.
const CLIENT_VARIABLES: &[&str] = &["BOWLINE_TOKEN", "BOWLINE_RESUME_TOKEN"];

const PREFIX: &str = "BOWLINE_";

#[derive(Debug, Default)]
pub struct Written {
    entries: BTreeMap<String, (Value, Source)>,
}

impl Written {
    /// Adds what a TOML file says. Later calls win over earlier ones.
    pub fn add_file(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let syntax = |error: &toml::de::Error| ConfigError::Syntax {
            path: path.to_owned(),
            line: error.span().map_or(1, |span| line_of(text, span.start)),
            reason: error.message().to_owned(),
        };
        let values: toml::Table = text.parse().map_err(|error| syntax(&error))?;
        let spans = DeTable::parse(text).map_err(|error| syntax(&error))?;
        let file = File { path, text };
        self.add_table(&file, "", &values, spans.get_ref())
    }

    fn add_table(
        &mut self,
        file: &File<'_>,
        at: &str,
        values: &toml::Table,
        spans: &DeTable<'_>,
    ) -> Result<(), ConfigError> {
        for (name, value) in values {
            let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
            let found = spans.iter().find(|(key, _)| key.get_ref() == name);
            let source = file.source(found.map_or(0, |(key, _)| key.span().start));
            let inner = found.and_then(|(_, value)| match value.get_ref() {
                DeValue::Table(table) => Some(table),
                _ => None,
            });
            match (value, inner) {
                (toml::Value::Table(values), Some(spans)) if is_entered(&path, values) => {
                    self.add_table(file, &path, values, spans)?;
                }
                _ => {
                    let key = known(&path, &source)?;
                    let read =
                        Value::read(&key.kind, value).ok_or_else(|| wrong(key, &path, &source, &value.to_string()))?;
                    self.entries.insert(path, (read, source));
                }
            }
        }
        Ok(())
    }

    /// Adds `BOWLINE_SECTION__KEY` variables. An empty one counts as not set, as compose files cannot unset.
    pub fn add_env(&mut self, variables: impl IntoIterator<Item = (String, String)>) -> Result<(), ConfigError> {
        for (name, text) in variables {
            let Some(rest) = name.strip_prefix(PREFIX) else {
                continue;
            };
            if CLIENT_VARIABLES.contains(&name.as_str()) || text.is_empty() {
                continue;
            }
            let path = rest.to_lowercase().replace("__", ".");
            let source = Source::Env(name);
            let key = known(&path, &source)?;
            let value = Value::read_text(&key.kind, &text).ok_or_else(|| wrong(key, &path, &source, &text))?;
            self.entries.insert(path, (value, source));
        }
        Ok(())
    }

    pub fn add_flag(&mut self, path: &str, flag: &'static str, text: &str) -> Result<(), ConfigError> {
        let source = Source::Flag(flag);
        let key = known(path, &source)?;
        let value = Value::read_text(&key.kind, text).ok_or_else(|| wrong(key, path, &source, text))?;
        self.entries.insert(path.to_owned(), (value, source));
        Ok(())
    }

    /// The value of a setting, from the table's default if it is not written.
    pub fn get(&self, path: &str) -> (Value, Source) {
        if let Some((value, source)) = self.entries.get(path) {
            return (value.clone(), source.clone());
        }
        let default = lookup::find(path).filter(|key| !key.default.is_empty());
        let value = default.and_then(|key| Value::read_text(&key.kind, key.default));
        (value.unwrap_or(Value::Unset), Source::Default)
    }

    pub fn is_written(&self, path: &str) -> bool {
        self.entries.contains_key(path)
    }

    /// Every agent that is mentioned, in order.
    pub fn agent_names(&self) -> BTreeSet<String> {
        self.entries.keys().filter_map(|path| lookup::agent_name(path)).map(ToOwned::to_owned).collect()
    }

    /// The first setting written for this agent, to point at in an error.
    pub fn first_of_agent(&self, name: &str) -> Option<Source> {
        let mine = |path: &str| lookup::agent_name(path) == Some(name);
        self.entries.iter().find(|(path, _)| mine(path)).map(|(_, (_, source))| source.clone())
    }
}

struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    fn source(&self, offset: usize) -> Source {
        Source::File { path: self.path.to_owned(), line: line_of(self.text, offset) }
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

/// Sections are entered, and misspelt ones too, so that the hint can name the whole setting that was meant.
fn is_entered(path: &str, values: &toml::Table) -> bool {
    lookup::find(path).is_none() && (lookup::is_section(path) || !values.is_empty())
}

fn known(path: &str, source: &Source) -> Result<&'static Key, ConfigError> {
    if let Some(key) = lookup::find(path) {
        return Ok(key);
    }
    let nearest = lookup::nearest(path).map(|name| match source {
        Source::Env(_) => format!("{PREFIX}{}", name.replace('.', "__").to_uppercase()),
        _ => name,
    });
    Err(ConfigError::UnknownKey { key: path.to_owned(), source_of: source.clone(), nearest })
}

fn wrong(key: &Key, path: &str, source: &Source, given: &str) -> ConfigError {
    // A value of the wrong shape may still hold the secret.
    let given = if key.kind.is_secret() { HIDDEN.to_owned() } else { without_password(given).into_owned() };
    ConfigError::Wrong { key: path.to_owned(), source_of: source.clone(), given, expected: key.kind.expected() }
}
