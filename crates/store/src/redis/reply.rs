//! What Redis answers: reading its values, and what its refusals mean.

use std::fmt;

use bytes::Bytes;
use redis::Value;

use super::options::HostPort;

/// A server's "no". It did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The scripts were flushed.
    NoScript,
    /// Another server has this slot now.
    Moved(HostPort),
    /// Another server is about to have it, and has this key already.
    Ask(HostPort),
    /// It is no master (any more).
    ReadOnly(String),
    /// It may well say "yes" in a moment.
    Later(String),
    Full(String),
    Other(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NoScript => f.write_str("the scripts are gone"),
            Refused::Moved(to) | Refused::Ask(to) => write!(f, "it is at {to} now"),
            Refused::ReadOnly(why) | Refused::Later(why) | Refused::Full(why) | Refused::Other(why) => f.write_str(why),
        }
    }
}

/// Tells answers from refusals.
pub fn server_error(value: Value) -> Result<Value, Refused> {
    let Value::ServerError(error) = value else { return Ok(value) };
    let details = error.details().unwrap_or_default();
    let whole = format!("{} {details}", error.code());
    // `MOVED 3999 127.0.0.1:6381`
    let target = || {
        let (host, port) = details.split_whitespace().nth(1)?.rsplit_once(':')?;
        Some(HostPort { host: host.trim_matches(['[', ']']).to_owned(), port: port.parse().ok()? })
    };
    Err(match (error.code(), target()) {
        ("NOSCRIPT", _) => Refused::NoScript,
        ("MOVED", Some(to)) => Refused::Moved(to),
        ("ASK", Some(to)) => Refused::Ask(to),
        ("READONLY", _) => Refused::ReadOnly(whole),
        ("LOADING" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "BUSY" | "NOREPLICAS" | "MISCONF", _) => {
            Refused::Later(whole)
        }
        ("OOM", _) => Refused::Full(whole),
        _ if whole.contains("OOM command not allowed") => Refused::Full(whole),
        _ => Refused::Other(whole),
    })
}

pub fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(list) | Value::Set(list) => list,
        _ => Vec::new(),
    }
}

pub fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        Value::SimpleString(text) => Some(text.into_bytes().into()),
        Value::VerbatimString { text, .. } => Some(text.into_bytes().into()),
        Value::Okay => Some(Bytes::from_static(b"OK")),
        Value::Int(number) => Some(number.to_string().into_bytes().into()),
        Value::Double(number) => Some(format!("{number:.0}").into_bytes().into()),
        _ => None,
    }
}

pub fn text(value: Value) -> Option<String> {
    String::from_utf8(bytes(value)?.into()).ok()
}

pub fn number(value: Value) -> Option<u64> {
    text(value)?.parse().ok()
}
