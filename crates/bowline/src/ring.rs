//! The ring that a running server signs and verifies with: read again as soon as its file has changed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_core::Ring;

use crate::keys::{FILE_NAME, KeyFile, Keys, KeysError, Origin};

/// A key that is retired is refused from then on, and not from the next start on: the key may have leaked.
#[derive(Debug)]
pub struct LiveRing {
    /// The data directory that has the ring; none if it comes from the settings, or was made for this process.
    dir: Option<PathBuf>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    ring: Arc<Ring>,
    version: Option<Version>,
}

/// What changes when a file is replaced, written, or given other permissions.
type Version = (u64, i64, i64);

impl LiveRing {
    pub fn new(keys: Keys) -> LiveRing {
        let dir = match &keys.origin {
            Origin::File(path) => path.parent().map(Path::to_owned),
            Origin::Settings | Origin::Volatile => None,
        };
        // None, so that what was changed since the ring was read is seen at the first look.
        LiveRing { dir, state: Arc::new(Mutex::new(State { ring: Arc::new(keys.ring), version: None })) }
    }

    /// The ring as it is now. Costs one look at the file, on a thread that may wait for a slow disk.
    pub async fn now(&self) -> Arc<Ring> {
        let Some(dir) = self.dir.clone() else { return lock(&self.state).ring.clone() };
        let state = self.state.clone();
        let look = tokio::task::spawn_blocking(move || {
            let mut state = lock(&state);
            state.refresh(&dir);
            state.ring.clone()
        });
        // It fails only when the runtime ends; the ring that was read last is good enough then.
        look.await.unwrap_or_else(|_| lock(&self.state).ring.clone())
    }
}

/// Nothing panics while the lock is held, and the state is whole at every point.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Keeps the ring if the file cannot be used: without one, no client could restore its session.
    fn refresh(&mut self, dir: &Path) {
        let version = version_of(dir);
        if version == self.version {
            return;
        }
        self.version = version;
        match read(dir) {
            Ok(Some(ring)) => {
                tracing::info!(keys = ring.keys().len(), "read the key ring");
                self.ring = Arc::new(ring);
            }
            Ok(None) => {
                tracing::warn!(dir = %dir.display(), "the key ring is gone; the one that was read stays in use");
            }
            Err(error) => tracing::error!(%error, "the key ring stays as it was"),
        }
    }
}

fn version_of(dir: &Path) -> Option<Version> {
    let metadata = std::fs::metadata(dir.join(FILE_NAME)).ok()?;
    Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

fn read(dir: &Path) -> Result<Option<Ring>, KeysError> {
    KeyFile::read(dir)?.map(|file| file.ring()).transpose()
}
