//! A reader of a task that comes back: what became of that, counted and told in one line.

use std::time::Instant;

use bowline_core::Resume;
use bowline_protocol::{Cursor, Extent, Refusal, Seq, StreamCursor, TaskId};

use crate::node::Shared;
use crate::stream::Watched;

/// A way back that was begun. The line is written when the reader has all that it missed.
#[derive(Debug)]
pub struct Returning {
    task: TaskId,
    resume: Resume,
    replayed: u64,
    since: Instant,
}

impl Returning {
    /// A reader that comes back with this cursor. Nothing for one without, or one that will be refused.
    pub fn begin(shared: &Shared, watched: &Watched, cursor: Option<&StreamCursor>) -> Option<Returning> {
        let resume = verdict(watched.first, watched.last, &watched.extent, cursor?);
        shared.metrics.reconnect_attempts.inc();
        if resume == Resume::AheadOfLog {
            return None;
        }
        let owed = resume.start(&watched.extent).max(watched.first);
        let replayed = owed.until(end(watched.last, &watched.extent));
        Some(Returning { task: watched.id.clone(), resume, replayed, since: Instant::now() })
    }

    /// It is let in: what its cursor means is counted.
    pub fn admitted(self, shared: &Shared) -> Returning {
        shared.metrics.reconnects.inc(self.resume.verdict());
        shared.metrics.events_lost_per_reconnect.observe(self.resume.lost() as f64);
        self
    }

    /// It turns out to have everything already.
    pub fn lacks_nothing(self, shared: &Shared) {
        Returning { resume: Resume::CaughtUp, replayed: 0, ..self }.admitted(shared).caught_up(shared);
    }

    /// One that was refused.
    pub fn refused(shared: &Shared, task: &TaskId, refusal: &Refusal) {
        shared.metrics.reconnect_refusals.inc(refusal.code.as_str());
        tracing::info!(%task, code = %refusal.code, "return refused");
    }

    /// It has all that it missed.
    pub fn caught_up(self, shared: &Shared) {
        let Returning { task, resume, replayed, since } = self;
        let elapsed = since.elapsed();
        shared.metrics.events_replayed.inc_by(replayed);
        shared.metrics.reconnect_seconds.observe(elapsed.as_secs_f64());
        let ms = elapsed.as_secs_f64() * 1000.0;
        tracing::info!(%task, verdict = resume.verdict(), replayed, lost = resume.lost(), ms, "reader returned");
    }
}

/// Where the task ends now.
fn end(last: Option<Seq>, extent: &Extent) -> Seq {
    last.map_or(extent.next, Seq::next)
}

/// What the cursor means for this task, which may be a part of its log only.
fn verdict(first: Seq, last: Option<Seq>, extent: &Extent, cursor: &StreamCursor) -> Resume {
    let next = end(last, extent);
    let task = Extent { first: first.max(extent.first).min(next), next, ..extent.clone() };
    let mut seq = if cursor.part.is_some() { cursor.cursor.seq.prev() } else { cursor.cursor.seq };
    // Before its first event it has nothing of the task; behind the last of one that is over, all of it.
    seq = seq.max(first.prev());
    if last.is_some() {
        seq = seq.min(task.last());
    }
    Resume::decide(&task, &Cursor { epoch: cursor.cursor.epoch.clone(), seq })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_protocol::Epoch;

    #[test]
    fn the_verdict_is_about_the_task_and_not_about_its_log() {
        let seq = |n| Seq::new(n).unwrap();
        let extent = Extent { epoch: Epoch::parse("e").unwrap(), epoch_first: seq(1), first: seq(15), next: seq(41) };
        for (cursor, ended, word, lost) in [
            ("e-20", Some(30), "replay", 0),
            ("e-30", Some(30), "caught_up", 0),
            ("e-30.3", Some(30), "replay", 0),
            ("e-99", Some(30), "caught_up", 0),
            ("e-12", Some(30), "gap", 2),
            ("e-1", Some(30), "gap", 5),
            ("f-20", Some(30), "other_epoch", 0),
            ("e-40", None, "caught_up", 0),
            ("e-41", None, "ahead_of_log", 0),
        ] {
            let cursor = StreamCursor::parse(cursor).unwrap().unwrap();
            let resume = verdict(seq(10), ended.map(seq), &extent, &cursor);
            assert_eq!((resume.verdict(), resume.lost()), (word, lost), "{cursor}");
        }
    }
}
