//! Takes the servers file over whenever it changes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bowline_env::Files;
use bowline_env::files::Look;

use super::Hub;
use crate::config::file::read;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Takes changes of the file over until the hub is gone, beginning with those since it was `seen`. A file that cannot be read
/// changes nothing.
pub async fn follow(hub: Weak<Hub>, path: PathBuf, mut seen: Option<Look>) {
    let Some(files) = hub.upgrade().map(|hub| hub.options.env.files.clone()) else { return };
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if look(&files, &path).await == seen {
            continue;
        }
        let Some(hub) = hub.upgrade() else { return };
        seen = take(&hub, &path).await;
    }
}

/// Takes the file over as it is now. What it gives is how the file looked before it was read: whatever is written meanwhile
/// looks different, and is not missed.
pub async fn take(hub: &Arc<Hub>, path: &Path) -> Option<Look> {
    let files = hub.options.env.files.clone();
    let seen = look(&files, path).await;
    // There is nothing only when the runtime ends.
    let Some(servers) = with_files(&files, path, |files, path| read(files, path)).await else { return seen };
    match servers {
        Ok(servers) => {
            tracing::info!(file = %path.display(), servers = servers.len(), "took the servers from the file");
            hub.take_file(servers).await;
        }
        Err(error) => tracing::error!(%error, "the servers stay as they were"),
    }
    seen
}

async fn look(files: &Arc<dyn Files>, path: &Path) -> Option<Look> {
    with_files(files, path, |files, path| files.look(path).ok()).await.flatten()
}

/// Does something with a file: on a thread that may wait for a slow disk, unless these files keep none waiting.
async fn with_files<T: Send + 'static>(
    files: &Arc<dyn Files>,
    path: &Path,
    work: impl FnOnce(&dyn Files, &Path) -> T + Send + 'static,
) -> Option<T> {
    if !files.profile().blocks {
        return Some(work(&**files, path));
    }
    let (files, path) = (files.clone(), path.to_owned());
    tokio::task::spawn_blocking(move || work(&*files, &path)).await.ok()
}
