//! One setting's value, read by its kind from TOML or from plain text.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::json;

use super::key::Kind;
use super::units::{parse_duration, parse_size, show_duration, show_size};

/// What stands where a secret would.
pub const HIDDEN: &str = "(hidden)";

/// A value of the kind that the table asks for. `Debug` could show a secret, so there is none.
#[derive(Clone, PartialEq)]
pub enum Value {
    Unset,
    Text(String),
    Secret(String),
    Bool(bool),
    Number(u64),
    Decimal(f64),
    Size(u64),
    Duration(Duration),
    List(Vec<String>),
    Secrets(Vec<String>),
    Tokens(Vec<WrittenToken>),
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.shown())
    }
}

/// One entry of `auth.tokens`, as written: the token may be an `env:` or `file:` reference.
#[derive(Clone, PartialEq)]
pub struct WrittenToken {
    pub token: String,
    pub principal: String,
    pub admin: bool,
}

impl std::fmt::Debug for WrittenToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WrittenToken({}, {} bytes)", self.principal, self.token.len())
    }
}

impl Value {
    /// Reads a TOML value; `None` if it is not of this kind.
    pub fn read(kind: &Kind, written: &toml::Value) -> Option<Value> {
        let text = written.as_str();
        match kind {
            Kind::Text => text.map(|text| Value::Text(text.to_owned())),
            Kind::Secret => text.map(|text| Value::Secret(text.to_owned())),
            Kind::Choice(words) => text.filter(|text| words.contains(text)).map(|text| Value::Text(text.to_owned())),
            Kind::Bool => written.as_bool().map(Value::Bool),
            Kind::Number { min, max } => {
                let number = written.as_integer().and_then(|number| u64::try_from(number).ok());
                number.filter(|number| (min..=max).contains(&number)).map(Value::Number)
            }
            Kind::Decimal => {
                let number = written.as_float().or_else(|| written.as_integer().map(|number| number as f64));
                number.filter(|number| number.is_finite() && *number >= 0.0).map(Value::Decimal)
            }
            Kind::Size => {
                let plain = written.as_integer().and_then(|number| u64::try_from(number).ok());
                let bytes = plain.or_else(|| text.and_then(parse_size));
                bytes.filter(|bytes| (1..=u64::from(u32::MAX)).contains(bytes)).map(Value::Size)
            }
            Kind::Duration { zero } => {
                let span = text.and_then(parse_duration);
                span.filter(|span| *zero || !span.is_zero()).map(Value::Duration)
            }
            Kind::List => texts(written).map(Value::List),
            Kind::Secrets => texts(written).map(Value::Secrets),
            Kind::Tokens => written.as_array()?.iter().map(token).collect::<Option<Vec<_>>>().map(Value::Tokens),
        }
    }

    /// Reads what stands in an environment variable or a flag: TOML, else text. A setting that is text takes
    /// anything that is not a quoted string as it is, so that a token `1234` stays four characters.
    pub fn read_text(kind: &Kind, text: &str) -> Option<Value> {
        let parsed = toml_value(text);
        let wants_text = matches!(kind, Kind::Text | Kind::Secret | Kind::Choice(_));
        match parsed {
            Some(value) if !wants_text || value.is_str() => Value::read(kind, &value),
            _ => Value::read(kind, &toml::Value::String(text.to_owned())),
        }
    }

    /// The value for people and programs, without its secrets.
    pub fn shown(&self) -> serde_json::Value {
        match self {
            Value::Unset => json!(null),
            Value::Text(text) => json!(without_password(text)),
            Value::Secret(_) => json!(HIDDEN),
            Value::Bool(flag) => json!(flag),
            Value::Number(number) => json!(number),
            Value::Decimal(number) => json!(number),
            Value::Size(bytes) => json!(show_size(*bytes)),
            Value::Duration(span) => json!(show_duration(*span)),
            Value::List(texts) => json!(texts),
            Value::Secrets(texts) => texts.iter().map(|_| json!(HIDDEN)).collect(),
            Value::Tokens(tokens) => {
                let one = |t: &WrittenToken| json!({ "token": HIDDEN, "principal": t.principal, "admin": t.admin });
                tokens.iter().map(one).collect()
            }
        }
    }
}

/// What a setting's value can become. An error says what was expected.
pub trait FromValue: Sized {
    fn from_value(value: Value) -> Result<Self, Cow<'static, str>>;
}

/// Implements [`FromValue`] for values that one kind of setting has.
macro_rules! from_value {
    ($($type:ty, $expected:literal, $pattern:pat => $value:expr;)*) => {$(
        impl FromValue for $type {
            fn from_value(value: Value) -> Result<$type, Cow<'static, str>> {
                match value {
                    $pattern => Ok($value),
                    _ => Err($expected.into()),
                }
            }
        }
    )*};
}

from_value! {
    bool, "true or false", Value::Bool(flag) => flag;
    f64, "a number", Value::Decimal(number) => number;
    u64, "a number", Value::Number(number) | Value::Size(number) => number;
    u32, "a number", Value::Number(number) | Value::Size(number) => u32::try_from(number).unwrap_or(u32::MAX);
    usize, "a number", Value::Number(number) | Value::Size(number) => usize::try_from(number).unwrap_or(usize::MAX);
    Duration, "a duration", Value::Duration(span) => span;
    Vec<String>, "a list of texts", Value::List(texts) | Value::Secrets(texts) => texts;
    Vec<WrittenToken>, "a list of tokens", Value::Tokens(tokens) => tokens;
}

impl FromValue for String {
    fn from_value(value: Value) -> Result<String, Cow<'static, str>> {
        match value {
            Value::Text(text) if !text.is_empty() => Ok(text),
            _ => Err("text that is not empty".into()),
        }
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: Value) -> Result<Option<T>, Cow<'static, str>> {
        match value {
            Value::Unset => Ok(None),
            value => T::from_value(value).map(Some),
        }
    }
}

/// A URL may hold a password, which is shown nowhere.
pub fn without_password(text: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = text.split_once("://") else { return text.into() };
    match rest.rsplit_once('@').map(|(who, rest)| (who.split_once(':'), rest)) {
        Some((Some((user, _)), rest)) => format!("{scheme}://{user}:{HIDDEN}@{rest}").into(),
        _ => text.into(),
    }
}

/// A text as one TOML value. More than one key means that the text only happened to look like TOML.
fn toml_value(text: &str) -> Option<toml::Value> {
    let mut table: toml::Table = format!("value = {text}").parse().ok()?;
    if table.len() == 1 { table.remove("value") } else { None }
}

fn texts(written: &toml::Value) -> Option<Vec<String>> {
    written.as_array()?.iter().map(|item| item.as_str().map(ToOwned::to_owned)).collect()
}

fn token(written: &toml::Value) -> Option<WrittenToken> {
    let table = written.as_table()?;
    let known = table.keys().all(|key| ["token", "principal", "admin"].contains(&key.as_str()));
    let text = |key: &str| table.get(key)?.as_str().filter(|text| !text.is_empty()).map(ToOwned::to_owned);
    let admin = match table.get("admin") {
        None => false,
        Some(flag) => flag.as_bool()?,
    };
    known.then_some(())?;
    Some(WrittenToken { token: text("token")?, principal: text("principal")?, admin })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: Kind = Kind::Number { min: 1, max: 100 };

    #[test]
    fn text_from_the_environment_is_toml_or_else_itself() {
        let cases = [
            (Kind::Text, "127.0.0.1:8080", Some(Value::Text("127.0.0.1:8080".into()))),
            (Kind::Text, "\"quoted\"", Some(Value::Text("quoted".into()))),
            (Kind::Secret, "1234", Some(Value::Secret("1234".into()))),
            (Kind::Text, "a\nb = 1", Some(Value::Text("a\nb = 1".into()))),
            (Kind::Bool, "true", Some(Value::Bool(true))),
            (Kind::Bool, "yes", None),
            (COUNT, "7", Some(Value::Number(7))),
            (COUNT, "101", None),
            (COUNT, "-1", None),
            (Kind::Size, "64KiB", Some(Value::Size(65_536))),
            (Kind::Size, "0", None),
            (Kind::Duration { zero: false }, "30s", Some(Value::Duration(Duration::from_secs(30)))),
            (Kind::Duration { zero: false }, "30", None),
            (Kind::Duration { zero: false }, "0s", None),
            (Kind::List, "[\"a\", \"b\"]", Some(Value::List(vec!["a".into(), "b".into()]))),
            (Kind::List, "a", None),
            (Kind::Secrets, "[\"a\"]", Some(Value::Secrets(vec!["a".into()]))),
            (Kind::Decimal, "0.5", Some(Value::Decimal(0.5))),
            (Kind::Decimal, "nan", None),
        ];
        for (kind, text, value) in cases {
            assert_eq!(Value::read_text(&kind, text), value, "{kind:?} {text}");
        }
    }

    #[test]
    fn a_token_with_an_unknown_or_missing_field_is_refused_and_its_secret_is_never_shown() {
        let read = |text: &str| Value::read_text(&Kind::Tokens, text);
        assert!(read("[{ token = \"x\" }]").is_none());
        assert!(read("[{ token = \"x\", principal = \"a\", amdin = true }]").is_none());
        assert!(read("[{ token = \"\", principal = \"a\" }]").is_none());
        let tokens = read("[{ token = \"s3cret\", principal = \"a\" }]").unwrap();
        assert!(!format!("{tokens:?} {}", tokens.shown()).contains("s3cret"));
    }
}
