//! What the written settings mean: values of the table's types, references followed, unsafe values refused.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use bowline_env::files::read_text;
use bowline_protocol::frame::client::Secret;

use super::error::ConfigError;
use super::load::Surroundings;
use super::value::{FromValue, HIDDEN, Value};
use super::written::Written;

pub(super) type Result<T> = std::result::Result<T, ConfigError>;

/// Signs of life come eight times as often, and cannot come any faster than this allows.
const LEASE_MIN: Duration = Duration::from_millis(400);

/// A part of the settings, read as a whole.
pub(super) trait ReadSection: Sized {
    fn read(resolver: &Resolver<'_>) -> Result<Self>;
}

pub(super) struct Resolver<'a> {
    pub written: &'a Written,
    pub around: &'a Surroundings,
}

impl Resolver<'_> {
    /// What is read when nothing was written.
    pub fn of_defaults<T>(read: impl FnOnce(&Resolver<'_>) -> Result<T>) -> T {
        read(&Resolver { written: &Written::default(), around: &Surroundings::default() })
            .expect("the defaults are in the table, and a test reads them all")
    }

    pub fn get<T: FromValue>(&self, key: &str) -> Result<T> {
        T::from_value(self.written.get(key).0).map_err(|expected| self.wrong(key, &expected))
    }

    pub fn lease_span(&self, key: &str) -> Result<Duration> {
        let span = self.get(key)?;
        if span >= LEASE_MIN { Ok(span) } else { Err(self.wrong(key, "400 ms or longer")) }
    }

    pub fn log_level(&self, key: &str) -> Result<String> {
        let level: String = self.get(key)?;
        match level.parse::<tracing_subscriber::filter::Targets>() {
            Ok(_) => Ok(level),
            Err(_) => Err(self.wrong(key, "a filter such as \"info\" or \"bowline=debug\"")),
        }
    }

    pub fn read(&self, path: &str) -> Result<String> {
        let path = self.around.path(path);
        let text = read_text(&*self.around.env.files, &path);
        text.map_err(|error| ConfigError::Unreadable { path, reason: error.to_string() })
    }

    pub fn wrong(&self, key: &str, expected: &str) -> ConfigError {
        let (value, source_of) = self.written.get(key);
        let given = match value.shown() {
            serde_json::Value::Null => "nothing".to_owned(),
            serde_json::Value::String(text) if text == HIDDEN => text,
            shown => shown.to_string(),
        };
        ConfigError::Wrong { key: key.to_owned(), source_of, given, expected: expected.to_owned() }
    }

    /// A secret that may be left out; an empty one is.
    pub fn optional_secret(&self, key: &str) -> Result<Option<Secret>> {
        match self.written.get(key).0 {
            Value::Secret(text) if !text.is_empty() => self.secret(key, &text).map(Some),
            _ => Ok(None),
        }
    }

    /// Follows `env:NAME` and `file:PATH`; anything else is the secret itself.
    pub fn secret(&self, key: &str, text: &str) -> Result<Secret> {
        let found = if let Some(name) = text.strip_prefix("env:") {
            let value = self.around.variables.get(name).cloned();
            value.ok_or_else(|| self.missing(key, &format!("the environment variable {name}, which is not set")))?
        } else if let Some(path) = text.strip_prefix("file:") {
            self.read(path)?.trim_end_matches(['\r', '\n']).to_owned()
        } else {
            text.to_owned()
        };
        if found.is_empty() {
            return Err(self.missing(key, "a secret that is empty"));
        }
        Ok(Secret::new(found))
    }

    fn missing(&self, key: &str, given: &str) -> ConfigError {
        let source_of = self.written.get(key).1;
        ConfigError::Wrong { key: key.to_owned(), source_of, given: given.to_owned(), expected: "a secret".into() }
    }
}

impl FromValue for SocketAddr {
    fn from_value(value: Value) -> std::result::Result<SocketAddr, Cow<'static, str>> {
        let text = String::from_value(value)?;
        let address = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}").parse(),
            None => text.parse(),
        };
        address.map_err(|_| "an address and port such as \"127.0.0.1:8080\" or \"[::1]:8080\"".into())
    }
}
