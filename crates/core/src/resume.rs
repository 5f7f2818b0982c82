//! The answer to "I was last at this cursor; what am I owed?", for a whole log and for one turn or task in it.

use bowline_mutant::mutant;
use bowline_protocol::{Cursor, Epoch, ErrorCode, Extent, Seq, StreamCursor};
use serde_json::{Map, Value};

/// Five answers, not a list that may be empty: "nothing new" and "too late" look the same as an empty list and are
/// opposite facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    CaughtUp,
    Replay {
        from: Seq,
        to: Seq,
    },
    /// Events between the cursor and `first` are gone.
    Gap {
        first: Seq,
        lost: u64,
    },
    /// The cursor belongs to another incarnation of the log, so its number means nothing here. Reading starts at `first`.
    /// `lost` counts what the reader cannot get: numbers of that incarnation up to the cursor which this one does not
    /// have, and for a turn or task, events that are no longer retained. After several changes of epoch it is the least
    /// that is known.
    OtherEpoch {
        first: Seq,
        lost: u64,
    },
    AheadOfLog,
}

/// The events that one reader follows: a turn in its session's log, or the whole log of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub first: Seq,
    /// Known once the turn or task has ended.
    pub last: Option<Seq>,
}

impl Span {
    /// Where it ends now.
    pub fn next(&self, extent: &Extent) -> Seq {
        self.last.map_or(extent.next, Seq::next)
    }
}

impl Resume {
    /// Compares a cursor with what the log holds.
    ///
    /// With a cursor of another epoch, a session is read from the first event of the epoch that it is in now.
    pub fn decide(extent: &Extent, cursor: &Cursor) -> Resume {
        if is_foreign(cursor, &extent.epoch) {
            let lost = extent.epoch_first.until(cursor.seq.next());
            return Resume::OtherEpoch { first: extent.first_of_epoch(), lost };
        }
        let from = match cursor.seq {
            seq if mutant("replay-one-too-many") && seq > Seq::ZERO => seq,
            seq if mutant("replay-one-too-few") && seq.next() < extent.last() => seq.next().next(),
            seq => seq.next(),
        };
        if cursor.seq > extent.last() {
            Resume::AheadOfLog
        } else if cursor.seq == extent.last() {
            Resume::CaughtUp
        } else if from < extent.first && mutant("tell-no-gap-on-return") {
            Resume::Replay { from: extent.first, to: extent.last() }
        } else if from < extent.first {
            Resume::Gap { first: extent.first, lost: from.until(extent.first) }
        } else {
            Resume::Replay { from, to: extent.last() }
        }
    }

    /// Compares the mark of what was acknowledged with what the log holds, for a holder that comes without a cursor.
    ///
    /// A mark of another epoch is none that a client has: behind it lies what no holder has acknowledged, and that is read,
    /// also from before the epoch that the log is in now.
    pub fn behind_mark(extent: &Extent, mark: &Cursor) -> Resume {
        match Resume::decide(extent, mark) {
            Resume::OtherEpoch { first, lost } => {
                let owed = mark.seq.next().min(first);
                Resume::OtherEpoch { first: owed.max(extent.first), lost: lost + owed.until(extent.first) }
            }
            decided => decided,
        }
    }

    /// Compares a cursor with one turn or task, which may be a part of its log only.
    ///
    /// A new epoch says that numbers may have been given out twice, not that what is retained from before is wrong. So
    /// with a cursor of another epoch everything that is left of the turn or task is read.
    pub fn within(span: Span, extent: &Extent, cursor: &StreamCursor) -> Resume {
        let next = span.next(extent);
        let part = Extent { first: span.first.max(extent.first).min(next), next, ..extent.clone() };
        let StreamCursor { cursor, part: within_event } = cursor;
        let Cursor { epoch, seq } = cursor;
        if is_foreign(cursor, &extent.epoch) {
            let unknown = extent.epoch_first.max(span.first).until(seq.next());
            return Resume::OtherEpoch { first: part.first, lost: span.first.until(part.first) + unknown };
        }
        if span.last.is_none() && *seq > extent.last() {
            return Resume::AheadOfLog;
        }
        let seq = if within_event.is_some() { seq.prev() } else { *seq };
        // Before its first event the reader has nothing of it; behind the last of one that is over, all of it.
        let seq = seq.max(span.first.prev()).min(part.last());
        Resume::decide(&part, &Cursor { epoch: epoch.clone(), seq })
    }

    /// For a reader without a cursor that wants everything there is.
    pub fn from_the_start(extent: &Extent) -> Resume {
        match extent.retained() {
            0 => Resume::CaughtUp,
            _ => Resume::Replay { from: extent.first, to: extent.last() },
        }
    }

    /// Where reading starts.
    pub fn start(&self, extent: &Extent) -> Seq {
        match *self {
            Resume::CaughtUp | Resume::AheadOfLog => extent.next,
            Resume::Replay { from, .. } => from,
            Resume::Gap { first, .. } | Resume::OtherEpoch { first, .. } => first,
        }
    }

    pub fn verdict(&self) -> &'static str {
        match self {
            Resume::CaughtUp => "caught_up",
            Resume::Replay { .. } => "replay",
            Resume::Gap { .. } => "gap",
            Resume::OtherEpoch { .. } => "other_epoch",
            Resume::AheadOfLog => "ahead_of_log",
        }
    }

    /// The code that tells the client something is missing or wrong; none when all is well.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Resume::CaughtUp | Resume::Replay { .. } => None,
            Resume::Gap { .. } => Some(ErrorCode::ReplayGap),
            Resume::OtherEpoch { .. } => Some(ErrorCode::EpochMismatch),
            Resume::AheadOfLog => Some(ErrorCode::CursorAhead),
        }
    }

    /// How many events are known to be lost to this reader.
    pub fn lost(&self) -> u64 {
        match self {
            Resume::Gap { lost, .. } | Resume::OtherEpoch { lost, .. } => *lost,
            Resume::CaughtUp | Resume::Replay { .. } | Resume::AheadOfLog => 0,
        }
    }

    /// The verdict with its figures, as clients see it.
    pub fn facts(&self, extent: &Extent) -> Value {
        let mut facts = Map::new();
        facts.insert("verdict".into(), self.verdict().into());
        let start = self.start(extent);
        if start < extent.next {
            facts.insert("from_seq".into(), start.get().into());
            facts.insert("to_seq".into(), extent.last().get().into());
        }
        match self {
            Resume::Gap { first, lost } => {
                facts.insert("first_retained_seq".into(), first.get().into());
                facts.insert("lost".into(), (*lost).into());
            }
            Resume::OtherEpoch { first, .. } => {
                facts.insert("first_retained_seq".into(), first.get().into());
            }
            _ => {}
        }
        Value::Object(facts)
    }
}

/// Whether a cursor belongs to another incarnation of the log than the one that is in this epoch.
pub fn is_foreign(cursor: &Cursor, epoch: &Epoch) -> bool {
    cursor.epoch.as_ref().is_some_and(|of_cursor| of_cursor != epoch) && !mutant("forget-the-epoch-of-a-cursor")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(n: u64) -> Seq {
        Seq::new(n).unwrap()
    }

    fn extent(epoch_first: u64, first: u64, next: u64) -> Extent {
        Extent {
            epoch: Epoch::parse("now").unwrap(),
            epoch_first: seq(epoch_first),
            first: seq(first),
            next: seq(next),
        }
    }

    #[test]
    fn what_no_holder_has_acked_is_owed_though_the_log_has_begun_a_new_epoch() {
        // The log is retained from 3 on, and 8 was the first event of the new epoch.
        let extent = extent(8, 3, 12);
        let behind = |mark: &str| Resume::behind_mark(&extent, &Cursor::parse(mark).unwrap());
        assert_eq!(behind("old-4"), Resume::OtherEpoch { first: seq(5), lost: 0 });
        assert_eq!(behind("old-7"), Resume::OtherEpoch { first: seq(8), lost: 0 });
        assert_eq!(
            behind("old-9"),
            Resume::OtherEpoch { first: seq(8), lost: 2 },
            "8 and 9 were acked, and are others now"
        );
        assert_eq!(behind("old-1"), Resume::OtherEpoch { first: seq(3), lost: 1 }, "2 is gone");
        assert_eq!(behind("now-5"), Resume::Replay { from: seq(6), to: seq(11) });
        assert_eq!(decide(&extent, "old-4"), Resume::OtherEpoch { first: seq(8), lost: 0 }, "a client's cursor");
    }

    fn decide(extent: &Extent, cursor: &str) -> Resume {
        Resume::decide(extent, &Cursor::parse(cursor).unwrap())
    }

    #[test]
    fn each_of_the_five_verdicts_has_its_own_bounds() {
        let log = extent(1, 11, 21);
        let cases = [
            ("20", Resume::CaughtUp),
            ("now-20", Resume::CaughtUp),
            ("19", Resume::Replay { from: seq(20), to: seq(20) }),
            ("10", Resume::Replay { from: seq(11), to: seq(20) }),
            ("9", Resume::Gap { first: seq(11), lost: 1 }),
            ("0", Resume::Gap { first: seq(11), lost: 10 }),
            ("21", Resume::AheadOfLog),
            ("old-20", Resume::OtherEpoch { first: seq(11), lost: 20 }),
            ("old-99", Resume::OtherEpoch { first: seq(11), lost: 99 }),
        ];
        for (cursor, verdict) in cases {
            assert_eq!(decide(&log, cursor), verdict, "{cursor}");
        }
    }

    #[test]
    fn an_empty_log_and_a_fully_trimmed_one_are_not_confused() {
        assert_eq!(decide(&extent(1, 1, 1), "0"), Resume::CaughtUp);
        assert_eq!(decide(&extent(1, 9, 9), "8"), Resume::CaughtUp);
        assert_eq!(decide(&extent(1, 9, 9), "3"), Resume::Gap { first: seq(9), lost: 5 });
    }

    #[test]
    fn a_new_epoch_in_the_same_log_starts_at_its_own_first_event() {
        let log = extent(15, 11, 21);
        assert_eq!(decide(&log, "old-12"), Resume::OtherEpoch { first: seq(15), lost: 0 });
        assert_eq!(decide(&log, "old-17"), Resume::OtherEpoch { first: seq(15), lost: 3 }, "15 to 17 were others");
        assert_eq!(decide(&log, "12"), Resume::Replay { from: seq(13), to: seq(20) });
    }
    #[test]
    fn the_verdict_on_a_task_is_about_the_task_and_not_about_its_log() {
        let log = extent(25, 15, 41);
        for (cursor, ended, word, lost) in [
            ("now-20", Some(30), "replay", 0),
            ("now-30", Some(30), "caught_up", 0),
            ("now-30.3", Some(30), "replay", 0),
            ("now-99", Some(30), "caught_up", 0),
            ("now-12", Some(30), "gap", 2),
            ("now-1", Some(30), "gap", 5),
            ("now-40", None, "caught_up", 0),
            ("now-41", None, "ahead_of_log", 0),
            ("now-41.2", None, "ahead_of_log", 0),
            // 10 to 14 are not retained; 25 and 26 of the other epoch are not there.
            ("old-20", Some(30), "other_epoch", 5),
            ("old-26", Some(30), "other_epoch", 7),
            ("old-26.1", None, "other_epoch", 7),
        ] {
            let cursor = StreamCursor::parse(cursor).unwrap().unwrap();
            let span = Span { first: seq(10), last: ended.map(seq) };
            let resume = Resume::within(span, &log, &cursor);
            assert_eq!((resume.verdict(), resume.lost()), (word, lost), "{cursor}");
            if word == "other_epoch" {
                assert_eq!(resume.start(&log), seq(15), "all that is left of it, whatever epoch it is from");
            }
        }
    }
}
