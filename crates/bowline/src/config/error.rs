//! Why settings were refused: which key, where it was written, what was given, and what would be right.

use std::fmt;
use std::path::PathBuf;

/// Where a value was written. Later sources win: default, file, environment, flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    File { path: PathBuf, line: usize },
    Env(String),
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File { path, line } => write!(f, "{}:{line}", path.display()),
            Source::Env(name) => write!(f, "environment {name}"),
            Source::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },

    #[error("{}:{line}: not TOML: {reason}", path.display())]
    Syntax { path: PathBuf, line: usize, reason: String },

    #[error("unknown setting `{key}` ({source_of}){}", hint(nearest.as_deref()))]
    UnknownKey { key: String, source_of: Source, nearest: Option<String> },

    #[error("`{key}` ({source_of}): expected {expected}, got {given}")]
    Wrong { key: String, source_of: Source, given: String, expected: String },

    /// Each value is fine by itself, but together they make no sense or are not safe.
    #[error("{problem}. {remedy}")]
    Conflict { problem: String, remedy: String },
}

impl ConfigError {
    pub(super) fn conflict(problem: impl Into<String>, remedy: impl Into<String>) -> ConfigError {
        ConfigError::Conflict { problem: problem.into(), remedy: remedy.into() }
    }
}

fn hint(nearest: Option<&str>) -> String {
    match nearest {
        Some(name) => format!("; did you mean `{name}`?"),
        None => "; `bowline config print` lists every setting".to_owned(),
    }
}
