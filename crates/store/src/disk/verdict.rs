//! The verdict after recovery: which logs are whole, which have a gap, which need a new epoch, which are set aside.

use std::io;

use bowline_env::entropy;
use bowline_mutant::mutant;
use bowline_protocol::{Epoch, LogId};

use super::frame::FrameFlags;
use super::index::LogIndex;
use super::log::IndexedLog;
use super::space::Space;

/// Logs whose new position must be written down, with what is special about it.
#[derive(Debug, Default)]
pub struct RecoveryVerdict {
    pub amend: Vec<(LogId, FrameFlags)>,
    pub damage: Vec<String>,
    pub epochs_changed: u64,
}

/// Looks at every log. Those whose newest frame is not newer than `lost_through` may have had a later one, so that
/// numbers after their end may have been given out: they go on in a new epoch.
pub fn recovery_verdict(index: &LogIndex, space: &mut Space, lost_through: u64) -> io::Result<RecoveryVerdict> {
    let mut verdict = RecoveryVerdict::default();
    let ids = index.collect(|id, log| needs_change(log, lost_through).then(|| id.clone()));
    for id in ids {
        let bits = entropy::u64();
        let flags = index.change(&id, |log| {
            let mut flags = FrameFlags::default();
            if log.quarantined.is_none() && log.lacks_facts() {
                log.quarantined = Some("its record or one of its items is unreadable".into());
            }
            if let Some(why) = &log.quarantined {
                verdict.damage.push(format!("log {id} is set aside: {why}"));
                flags = flags.with(FrameFlags::QUARANTINED, true);
            }
            let unbroken = log.unbroken_from();
            if unbroken > log.first {
                let sentence = format!("log {id} begins at {unbroken} now: some of what was before is unreadable");
                verdict.damage.push(sentence);
                log.trim_to(unbroken, space);
            }
            if log.last_lsn < lost_through && !mutant("keep-the-epoch-after-a-loss") {
                log.epoch = Epoch::from_random(bits);
                log.epoch_first = log.next;
                verdict.epochs_changed += 1;
                flags = flags.with(FrameFlags::EPOCH, true);
            }
            flags
        });
        verdict.amend.extend(flags.map(|flags| (id, flags)));
    }
    Ok(verdict)
}

fn needs_change(log: &IndexedLog, lost_through: u64) -> bool {
    log.quarantined.is_some() || log.lacks_facts() || log.unbroken_from() > log.first || log.last_lsn < lost_through
}
