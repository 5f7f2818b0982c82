//! The file that names the servers, in the shape that other MCP clients use; read again whenever it changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine;
use bowline_core::canonical::canonical;
use bowline_env::Files;
use bowline_env::files::read_text;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::spec::{ServerSpec, check_name};

/// Why a file cannot be taken at all. A single bad entry does not hurt the others.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{path} cannot be read: {error}")]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error("{path} is not JSON: {error}")]
    NotJson { path: PathBuf, error: serde_json::Error },
    #[error("{path} has no object `mcpServers`")]
    NoServers { path: PathBuf },
}

/// That an entry of the configuration was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// The mark of the entry. Another entry under the same name is not removed.
    pub mark: String,
    pub at_ms: u64,
}

/// One entry of the configuration.
#[derive(Clone, Debug)]
pub struct FileEntry {
    pub spec: ServerSpec,
    /// Tells the entry as it is written from any other, without keeping what may be secret in it. Variables are not looked up for
    /// it: they may differ between nodes, and are no part of the file.
    pub(crate) mark: String,
}

impl FileEntry {
    /// Reads one entry of `mcpServers`. One that can never work is taken too, with its reason.
    pub fn read(name: &str, entry: &Value, variables: &dyn Fn(&str) -> Option<String>) -> FileEntry {
        let spec = check_name(name).and_then(|()| ServerSpec::read(entry, variables));
        let spec = spec.unwrap_or_else(|error| ServerSpec::invalid(entry, &error));
        FileEntry { spec, mark: mark_of(entry) }
    }

    pub(crate) fn removal(&self, at_ms: u64) -> Removal {
        Removal { mark: self.mark.clone(), at_ms }
    }
}

/// An entry that is in no file, and thus written as it is kept.
impl From<ServerSpec> for FileEntry {
    fn from(spec: ServerSpec) -> FileEntry {
        FileEntry { mark: mark_of(&spec.write()), spec }
    }
}

fn mark_of(entry: &Value) -> String {
    let digest = Sha256::digest(canonical(entry));
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(digest)
}

/// The servers that a file names. An entry that can never work is there too, with its reason.
pub fn read(files: &dyn Files, path: &Path) -> Result<BTreeMap<String, FileEntry>, FileError> {
    let unreadable = |error| FileError::Unreadable { path: path.to_owned(), error };
    let text = read_text(files, path).map_err(unreadable)?;
    let value: Value =
        serde_json::from_str(&text).map_err(|error| FileError::NotJson { path: path.to_owned(), error })?;
    let servers = value.get("mcpServers").or_else(|| value.get("servers")).and_then(Value::as_object);
    let servers = servers.ok_or_else(|| FileError::NoServers { path: path.to_owned() })?;
    let variables = |name: &str| std::env::var(name).ok();
    let one = |(name, entry): (&String, &Value)| (name.clone(), FileEntry::read(name, entry, &variables));
    Ok(servers.iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use bowline_env::files::OsFiles;

    use super::*;
    use crate::config::spec::Target;

    #[test]
    fn a_bad_entry_is_named_and_does_not_hurt_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mcp.json");
        let text = r#"{"mcpServers":{"good":{"command":"true"},"bad":{"url":"ftp://x"},"b__d":{"command":"x"}}}"#;
        std::fs::write(&path, text).unwrap();
        let servers = read(&OsFiles, &path).unwrap();
        assert!(servers["good"].spec.is_stdio());
        assert!(matches!(servers["bad"].spec.target, Target::Invalid { .. }));
        assert!(matches!(servers["b__d"].spec.target, Target::Invalid { .. }));
        std::fs::write(&path, "{}").unwrap();
        assert!(matches!(read(&OsFiles, &path), Err(FileError::NoServers { .. })));
    }
}
