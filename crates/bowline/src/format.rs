//! The version of what is stored: a server does not start on what a newer one has written.
//!
//! Records of sessions and tasks also carry versions of their own. This one stands for everything beside them: items,
//! records of the hub, marks and names.

use std::sync::Arc;

use anyhow::bail;
use bowline_env::entropy;
use bowline_protocol::{Epoch, LogId, Principal, Seq};
use bowline_store::{Commit, Fence, LogKind, Record, Start, Store, StoreError};

/// Counted up when something is stored in a way that the version before would misread.
pub const FORMAT: u32 = 2;
/// The log whose record is the version.
const LOG: &str = "store_format";

/// Refuses a store that a newer server has written, and marks one that has no mark.
pub async fn check(store: &Arc<dyn Store>, now_ms: u64) -> anyhow::Result<()> {
    let (Some(log), Some(owner)) = (LogId::parse(LOG), Principal::parse("hub")) else {
        bail!("`{LOG}` cannot be a log's name");
    };
    if let Some(record) = store.record(&log).await? {
        return match readable_version(&record.body)? {
            FORMAT => Ok(()),
            // From now on it holds what the version before would misread.
            _older => {
                let mut commit = Commit::to(log, Fence::OPEN, now_ms);
                let body = FORMAT.to_string().into_bytes().into();
                commit.record = Some(Record { touched_ms: now_ms, body, ..record });
                Ok(store.commit(commit).await.map(drop)?)
            }
        };
    }
    let mut commit = Commit::to(log.clone(), Fence::OPEN, now_ms);
    commit.create = Some(Start { epoch: Epoch::from_random(entropy::u64()), after: Seq::ZERO });
    let body = FORMAT.to_string().into_bytes().into();
    commit.record = Some(Record { kind: LogKind::Hub, owner, touched_ms: now_ms, body });
    match store.commit(commit).await {
        Ok(_) => Ok(()),
        Err(StoreError::Exists) => match store.record(&log).await? {
            Some(record) => readable_version(&record.body).map(drop),
            None => Ok(()),
        },
        Err(error) => {
            // A store that takes nothing now was not written by a newer server for that.
            tracing::warn!(%error, "the store could not be marked with the version of its format");
            Ok(())
        }
    }
}

/// The format that a mark names, if this version can read it.
fn readable_version(body: &[u8]) -> anyhow::Result<u32> {
    let format = std::str::from_utf8(body).ok().and_then(|text| text.parse::<u32>().ok());
    match format {
        Some(format) if format <= FORMAT => Ok(format),
        Some(format) => bail!(
            "the store was written by a newer version of this server (format {format}; this one knows {FORMAT}): start the \
             newer version, or restore a backup from before the upgrade"
        ),
        None => bail!("the mark of the store's format (`{LOG}`) cannot be read"),
    }
}

#[cfg(test)]
mod tests {
    use bowline_store::Retention;
    use bowline_store::memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn a_store_of_a_newer_format_is_refused_and_one_of_ours_is_not() {
        let keep = Retention { events_max: 10, age_max_ms: u64::MAX };
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(keep));
        check(&store, 1).await.unwrap();
        check(&store, 2).await.unwrap();
        let log = LogId::parse(LOG).unwrap();
        let record = store.record(&log).await.unwrap().unwrap();
        let mut commit = Commit::to(log.clone(), Fence::OPEN, 3);
        commit.record = Some(Record { body: "0".into(), ..record.clone() });
        store.commit(commit).await.unwrap();
        check(&store, 3).await.unwrap();
        assert_eq!(store.record(&log).await.unwrap().unwrap().body, record.body, "an older mark is raised");
        let mut commit = Commit::to(log, Fence::OPEN, 3);
        commit.record = Some(Record { body: (FORMAT + 1).to_string().into_bytes().into(), ..record });
        store.commit(commit).await.unwrap();
        let refused = check(&store, 4).await.unwrap_err().to_string();
        let newer = format!("format {}", FORMAT + 1);
        assert!(refused.contains("newer version") && refused.contains(&newer), "{refused}");
    }
}
