//! What a cursor meant for a session's log, on its way to the node of the client that attaches.

use bowline_core::Resume;
use bowline_protocol::Seq;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub enum CursorVerdict {
    CaughtUp,
    Replay {
        from: Seq,
        to: Seq,
    },
    Gap {
        first: Seq,
        lost: u64,
    },
    OtherEpoch {
        first: Seq,
        #[serde(default)]
        lost: u64,
    },
    AheadOfLog,
}

impl From<Resume> for CursorVerdict {
    fn from(resume: Resume) -> CursorVerdict {
        match resume {
            Resume::CaughtUp => CursorVerdict::CaughtUp,
            Resume::Replay { from, to } => CursorVerdict::Replay { from, to },
            Resume::Gap { first, lost } => CursorVerdict::Gap { first, lost },
            Resume::OtherEpoch { first, lost } => CursorVerdict::OtherEpoch { first, lost },
            Resume::AheadOfLog => CursorVerdict::AheadOfLog,
        }
    }
}

impl From<CursorVerdict> for Resume {
    fn from(verdict: CursorVerdict) -> Resume {
        match verdict {
            CursorVerdict::CaughtUp => Resume::CaughtUp,
            CursorVerdict::Replay { from, to } => Resume::Replay { from, to },
            CursorVerdict::Gap { first, lost } => Resume::Gap { first, lost },
            CursorVerdict::OtherEpoch { first, lost } => Resume::OtherEpoch { first, lost },
            CursorVerdict::AheadOfLog => Resume::AheadOfLog,
        }
    }
}
