//! Takes the servers file over whenever it changes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use super::Hub;
use crate::config::file::read;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
