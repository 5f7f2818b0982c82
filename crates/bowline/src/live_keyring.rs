//! The ring that a running server signs and verifies with: read again as soon as its file has changed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_core::Keyring;
use bowline_env::Files;
use bowline_env::files::Look;

use crate::keys::{FILE_NAME, KeyFile, KeyOrigin, KeysError, LoadedKeys};

/// A key that is retired is refused from then on, and not from the next start on: the key may have leaked.
#[derive(Debug)]
pub struct LiveKeyring {
    /// The data directory that has the ring; none if it comes from the settings, or was made for this process.
    dir: Option<PathBuf>,
    files: Arc<dyn Files>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    ring: Arc<Keyring>,
    look: Option<Look>,
}

impl LiveKeyring {
    pub fn new(keys: LoadedKeys, files: Arc<dyn Files>) -> LiveKeyring {
        let dir = match &keys.origin {
            KeyOrigin::File(path) => path.parent().map(Path::to_owned),
            KeyOrigin::Settings | KeyOrigin::Volatile => None,
        };
        // None, so that what was changed since the ring was read is seen at the first look.
        let state = State { ring: Arc::new(keys.ring), look: None };
        LiveKeyring { dir, files, state: Arc::new(Mutex::new(state)) }
    }

    /// The ring as it is now. Costs one look at the file, on a thread that may wait for a slow disk.
    pub async fn now(&self) -> Arc<Keyring> {
        let Some(dir) = self.dir.clone() else { return lock(&self.state).ring.clone() };
        let (files, state) = (self.files.clone(), self.state.clone());
        let look = tokio::task::spawn_blocking(move || {
            let mut state = lock(&state);
            state.refresh(&*files, &dir);
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
    fn refresh(&mut self, files: &dyn Files, dir: &Path) {
        let look = files.look(&dir.join(FILE_NAME)).ok();
        if look == self.look {
            return;
        }
        self.look = look;
        match read(files, dir) {
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

fn read(files: &dyn Files, dir: &Path) -> Result<Option<Keyring>, KeysError> {
    KeyFile::read(files, dir)?.map(|file| file.ring()).transpose()
}
