//! Where events live, as `store.url` says it.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use bowline_store::RedisUrl;

use super::value::{FromValue, Value};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    Memory,
    Disk(PathBuf),
    Redis(RedisUrl),
}

/// As it is shown: without a password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Memory => f.write_str("memory:"),
            StoreUrl::Disk(dir) => write!(f, "disk:{}", dir.display()),
            StoreUrl::Redis(url) => url.fmt(f),
        }
    }
}

impl FromValue for StoreUrl {
    fn from_value(value: Value) -> Result<StoreUrl, Cow<'static, str>> {
        let text = String::from_value(value)?;
        match text.split_once(':') {
            Some(("disk", dir)) if !dir.is_empty() => Ok(StoreUrl::Disk(PathBuf::from(dir))),
            Some(("memory", "")) => Ok(StoreUrl::Memory),
            Some((scheme, _)) if scheme.starts_with("redis") => {
                RedisUrl::parse(&text).map(StoreUrl::Redis).map_err(|why| format!("a Redis URL ({why})").into())
            }
            _ => Err("\"disk:DIR\", \"memory:\" or \"redis://HOST\"".into()),
        }
    }
}
