//! The file that names the servers, in the shape that other MCP clients use; read again whenever it changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use base64::Engine;
use bowline_core::canonical::canonical;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::hub::Hub;
use crate::servers::Removal;
use crate::spec::{ServerSpec, check_name};

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
pub fn read(path: &Path) -> Result<BTreeMap<String, FileEntry>, FileError> {
    let unreadable = |error| FileError::Unreadable { path: path.to_owned(), error };
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let value: Value =
        serde_json::from_str(&text).map_err(|error| FileError::NotJson { path: path.to_owned(), error })?;
    let servers = value.get("mcpServers").or_else(|| value.get("servers")).and_then(Value::as_object);
    let servers = servers.ok_or_else(|| FileError::NoServers { path: path.to_owned() })?;
    let variables = |name: &str| std::env::var(name).ok();
    let one = |(name, entry): (&String, &Value)| (name.clone(), FileEntry::read(name, entry, &variables));
    Ok(servers.iter().map(one).collect())
}

/// Takes changes of the file over until the hub is gone, beginning with those since it was `seen`. A file that cannot be read
/// changes nothing.
pub async fn follow(hub: Weak<Hub>, path: PathBuf, mut seen: Stamp) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if stamp_of(&path).await == seen {
            continue;
        }
        let Some(hub) = hub.upgrade() else { return };
        seen = take(&hub, &path).await;
    }
}

/// Takes the file over as it is now. What it gives is the file's stamp from before it was read: whatever is written
/// meanwhile looks newer than that, and is not missed.
pub async fn take(hub: &Arc<Hub>, path: &Path) -> Stamp {
    let seen = stamp_of(path).await;
    let file = path.to_owned();
    // It fails only when the runtime ends.
    let Ok(servers) = tokio::task::spawn_blocking(move || read(&file)).await else { return seen };
    match servers {
        Ok(servers) => {
            tracing::info!(file = %path.display(), servers = servers.len(), "took the servers from the file");
            hub.take_file(servers).await;
        }
        Err(error) => tracing::error!(%error, "the servers stay as they were"),
    }
    seen
}

/// Tells one content of the file from another without reading it. A file that is replaced within a second has another inode or
/// length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(Option<(SystemTime, u64, u64)>);

/// Looked at on a thread that may wait for a slow disk.
async fn stamp_of(path: &Path) -> Stamp {
    let file = path.to_owned();
    tokio::task::spawn_blocking(move || stamp(&file)).await.unwrap_or(Stamp(None))
}

fn stamp(path: &Path) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    let facts = std::fs::metadata(path).ok();
    Stamp(facts.and_then(|facts| Some((facts.modified().ok()?, facts.len(), facts.ino()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Target;

    #[test]
    fn a_bad_entry_is_named_and_does_not_hurt_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mcp.json");
        let text = r#"{"mcpServers":{"good":{"command":"true"},"bad":{"url":"ftp://x"},"b__d":{"command":"x"}}}"#;
        std::fs::write(&path, text).unwrap();
        let servers = read(&path).unwrap();
        assert!(servers["good"].spec.is_stdio());
        assert!(matches!(servers["bad"].spec.target, Target::Invalid { .. }));
        assert!(matches!(servers["b__d"].spec.target, Target::Invalid { .. }));
        std::fs::write(&path, "{}").unwrap();
        assert!(matches!(read(&path), Err(FileError::NoServers { .. })));
    }
}
