//! The key ring of a server: from the settings, or made once and kept beside the data, readable by its owner alone.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bowline_core::seal::{KEY_BYTES_MIN, Keyring, KeyringError, SealKey};
use bowline_env::files::{Files, read_text};
use bowline_env::{clock, entropy};
use serde::{Deserialize, Serialize};

use crate::config::{Config, StoreUrl};

/// The ring in the data directory.
pub const FILE_NAME: &str = "keys.json";

const FILE_VERSION: u32 = 1;

/// A ring, and where it came from.
#[derive(Clone, Debug)]
pub struct LoadedKeys {
    pub ring: Keyring,
    pub origin: KeyOrigin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyOrigin {
    /// From `state.keys`.
    Settings,
    /// From the data directory.
    File(PathBuf),
    /// Made for this process alone.
    Volatile,
}

#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    #[error("the key ring {} cannot be used: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("the key ring {} is not one of ours: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("others can read the key ring {} (mode {mode:o}). Run `chmod 600` on it; if others may have seen it, make a new key and retire the old one with `bowline keys`", path.display())]
    Exposed { path: PathBuf, mode: u32 },
    #[error("the key ring: {0}")]
    Ring(#[from] KeyringError),
    #[error("there is no key `{0}` in the ring")]
    NoSuchKey(String),
    #[error("`{0}` is the only key that may sign. Make another with `bowline keys new` first")]
    LastKey(String),
}

impl LoadedKeys {
    /// What a server needs to start: the configured ring, else the one that is kept, else a new one.
    pub fn load(config: &Config) -> Result<LoadedKeys, KeysError> {
        match (LoadedKeys::find(config)?, &config.store.url) {
            (Some(keys), _) => Ok(keys),
            (None, StoreUrl::Disk(dir)) => {
                let file = KeyFile::change(&*config.env.files, dir, |file| {
                    // Another process may have made one since we looked.
                    if file.keys.is_empty() {
                        file.keys.push(StoredKey::random());
                    }
                    Ok(())
                })?;
                Ok(LoadedKeys { ring: file.ring()?, origin: KeyOrigin::File(dir.join(FILE_NAME)) })
            }
            (None, StoreUrl::Memory | StoreUrl::Redis(_)) => {
                let key = StoredKey::random().key()?;
                Ok(LoadedKeys { ring: Keyring::new(vec![key])?, origin: KeyOrigin::Volatile })
            }
        }
    }

    /// The ring that is there already; makes none.
    pub fn find(config: &Config) -> Result<Option<LoadedKeys>, KeysError> {
        if !config.state.keys.is_empty() {
            return Ok(Some(LoadedKeys {
                ring: Keyring::new(config.state.keys.clone())?,
                origin: KeyOrigin::Settings,
            }));
        }
        let StoreUrl::Disk(dir) = &config.store.url else { return Ok(None) };
        let Some(file) = KeyFile::read(&*config.env.files, dir)? else { return Ok(None) };
        Ok(Some(LoadedKeys { ring: file.ring()?, origin: KeyOrigin::File(dir.join(FILE_NAME)) }))
    }

    /// Whether the key lives only as long as this process, so that after a restart no state that clients hold can be restored.
    pub fn is_volatile(&self) -> bool {
        self.origin == KeyOrigin::Volatile
    }
}

/// The ring as it is kept, newest first.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    version: u32,
    pub keys: Vec<StoredKey>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredKey {
    pub id: String,
    /// Base64.
    secret: String,
    /// Unix seconds.
    pub made_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired_at: Option<u64>,
}

impl KeyFile {
    /// The ring of this data directory, if it has one.
    pub fn read(files: &dyn Files, dir: &Path) -> Result<Option<KeyFile>, KeysError> {
        let path = dir.join(FILE_NAME);
        let failed = |error| KeysError::Io { path: path.clone(), error };
        let mode = match files.look(&path) {
            Ok(look) => look.mode,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        if mode & 0o077 != 0 {
            return Err(KeysError::Exposed { path, mode });
        }
        let text = read_text(files, &path).map_err(failed)?;
        let unreadable = |reason: &str| KeysError::Unreadable { path: path.clone(), reason: reason.to_owned() };
        // The parser's own words could hold a piece of a secret.
        let file: KeyFile = serde_json::from_str(&text).map_err(|_| unreadable("it is damaged"))?;
        if file.version != FILE_VERSION {
            return Err(unreadable("it was written by another version of this server"));
        }
        Ok(Some(file))
    }

    /// Reads the ring, or begins an empty one, changes it and keeps it. Only one at a time.
    pub fn change(
        files: &dyn Files,
        dir: &Path,
        change: impl FnOnce(&mut KeyFile) -> Result<(), KeysError>,
    ) -> Result<KeyFile, KeysError> {
        let path = dir.join(FILE_NAME);
        let failed = |error| KeysError::Io { path: path.clone(), error };
        files.make_dir(dir).map_err(failed)?;
        let _lock = files.lock_dir(dir).map_err(failed)?;
        let empty = KeyFile { version: FILE_VERSION, keys: Vec::new() };
        let mut file = KeyFile::read(files, dir)?.unwrap_or(empty);
        change(&mut file)?;
        let text = serde_json::to_string_pretty(&file).map_err(|error| failed(error.into()))?;
        files.replace(&path, text.as_bytes()).map_err(failed)?;
        Ok(file)
    }

    pub fn ring(&self) -> Result<Keyring, KeysError> {
        let keys: Vec<SealKey> = self.keys.iter().map(StoredKey::key).collect::<Result<_, _>>()?;
        Ok(Keyring::new(keys)?)
    }

    /// Puts a new key in front, which signs from now on. Returns its id.
    pub fn add(&mut self) -> String {
        let key = StoredKey::random();
        let id = key.id.clone();
        self.keys.insert(0, key);
        id
    }

    pub fn retire(&mut self, id: &str) -> Result<(), KeysError> {
        let others = self.keys.iter().any(|key| key.id != id && key.retired_at.is_none());
        let key = self.keys.iter_mut().find(|key| key.id == id).ok_or_else(|| KeysError::NoSuchKey(id.to_owned()))?;
        if !others && key.retired_at.is_none() {
            return Err(KeysError::LastKey(id.to_owned()));
        }
        key.retired_at.get_or_insert(clock::unix_seconds());
        Ok(())
    }
}

impl StoredKey {
    fn random() -> StoredKey {
        StoredKey {
            id: format!("k_{:08x}", entropy::u64() >> 32),
            secret: STANDARD.encode(entropy::bytes::<KEY_BYTES_MIN>()),
            made_at: clock::unix_seconds(),
            retired_at: None,
        }
    }

    fn key(&self) -> Result<SealKey, KeyringError> {
        // What is not base64 is as good as an empty key, and is refused like one.
        let secret = STANDARD.decode(&self.secret).unwrap_or_default();
        SealKey::new(&self.id, &secret, self.retired_at.is_some())
    }
}

impl fmt::Debug for StoredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredKey({}, {} bytes)", self.id, self.secret.len())
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
