//! The answer to "I was last at this cursor; what am I owed?"

use bowline_protocol::{Cursor, ErrorCode, Extent, Seq};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Five answers, not a list that may be empty: "nothing new" and "too late" look the same as an empty list and are
/// opposite facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The cursor belongs to another incarnation of the log; reading starts at this one's first retained event.
    OtherEpoch {
        first: Seq,
    },
    AheadOfLog,
}

impl Resume {
    /// Compares a cursor with what the log holds.
    pub fn decide(extent: &Extent, cursor: &Cursor) -> Resume {
        if cursor.epoch.as_ref().is_some_and(|epoch| *epoch != extent.epoch) {
            return Resume::OtherEpoch { first: extent.first_of_epoch() };
        }
        let from = cursor.seq.next();
        if cursor.seq > extent.last() {
            Resume::AheadOfLog
        } else if cursor.seq == extent.last() {
            Resume::CaughtUp
        } else if from < extent.first {
            Resume::Gap { first: extent.first, lost: from.until(extent.first) }
        } else {
            Resume::Replay { from, to: extent.last() }
        }
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
            Resume::Gap { first, .. } | Resume::OtherEpoch { first } => first,
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
            Resume::Gap { lost, .. } => *lost,
            _ => 0,
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
            Resume::OtherEpoch { first } => {
                facts.insert("first_retained_seq".into(), first.get().into());
            }
            _ => {}
        }
        Value::Object(facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_protocol::Epoch;

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
            ("old-20", Resume::OtherEpoch { first: seq(11) }),
            ("old-99", Resume::OtherEpoch { first: seq(11) }),
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
        assert_eq!(decide(&log, "old-12"), Resume::OtherEpoch { first: seq(15) });
        assert_eq!(decide(&log, "12"), Resume::Replay { from: seq(13), to: seq(20) });
    }
}
