//! What a restore takes from a state, so that it is not taken twice: the state itself, and the questions open in it.

use bowline_protocol::{Seq, SessionId};
use serde::{Deserialize, Serialize};

/// How far the states that were exported under one session id are used up.
///
/// A restore gives the session a new id, and the old one exports nothing more. So what was exported under the new id is
/// newer, whatever its number, and numbers say what is older only among states of one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedStates {
    last_seq: Seq,
}

impl UsedStates {
    /// A state that reached this far was restored.
    pub fn up_to(last_seq: Seq) -> UsedStates {
        UsedStates { last_seq }
    }

    /// A state of a later id was restored: whatever was exported under this one is older.
    pub fn wholly() -> UsedStates {
        UsedStates { last_seq: Seq::MAX }
    }

    /// Both are so.
    #[must_use]
    pub fn and(self, known: Option<UsedStates>) -> UsedStates {
        UsedStates { last_seq: known.map_or(self.last_seq, |known| known.last_seq.max(self.last_seq)) }
    }

    /// Whether a state that reaches this far is the one that was restored, or an older one.
    pub fn covers(self, last_seq: Seq) -> bool {
        last_seq <= self.last_seq
    }
}

/// Where a question is that some state holds as open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whereabouts {
    /// It was answered or called off, for good.
    Settled,
    /// It went with a restore to this session, and only states of that one may bring it on.
    With(SessionId),
}

impl Whereabouts {
    /// Whether a state that was exported under `session` may bring its question back. `known` is what is remembered of it.
    pub fn is_open_to(known: Option<&Whereabouts>, session: &SessionId) -> bool {
        match known {
            None => true,
            Some(Whereabouts::Settled) => false,
            Some(Whereabouts::With(carrier)) => carrier == session,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(n: u64) -> Seq {
        Seq::new(n).unwrap()
    }

    #[test]
    fn the_same_state_and_older_ones_are_used_up_and_newer_ones_are_not() {
        let taken = UsedStates::up_to(seq(5)).and(None);
        assert!(taken.covers(seq(4)) && taken.covers(seq(5)) && !taken.covers(seq(6)));
        let older_again = UsedStates::up_to(seq(3)).and(Some(taken));
        assert_eq!(older_again, taken, "an older restore takes nothing back");
        assert!(UsedStates::wholly().covers(Seq::MAX));
    }

    #[test]
    fn a_question_goes_on_only_with_the_session_that_has_it() {
        let (first, second) = (SessionId::from_random(1), SessionId::from_random(2));
        assert!(Whereabouts::is_open_to(None, &first));
        let moved = Whereabouts::With(second.clone());
        assert!(!Whereabouts::is_open_to(Some(&moved), &first));
        assert!(Whereabouts::is_open_to(Some(&moved), &second));
        assert!(!Whereabouts::is_open_to(Some(&Whereabouts::Settled), &second));
    }
}
