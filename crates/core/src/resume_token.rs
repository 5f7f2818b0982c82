//! The secret that proves whose session it is, where a name does not: which ones are good, and for how long.

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

/// Hashes of the newest secret, and of the one that it was given for. The older one stays good until the newest is first
/// used, because the answer that carried the newest may never have arrived.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeToken {
    current: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<String>,
}

impl ResumeToken {
    /// The first secret of a session.
    pub fn first(hash: String) -> ResumeToken {
        ResumeToken { current: hash, previous: None }
    }

    pub fn is_good(&self, hash: &str) -> bool {
        is(&self.current, hash) | self.previous.as_deref().is_some_and(|previous| is(previous, hash))
    }

    /// Whether the newest is shown for the first time: then [`handle_used`](ResumeToken::handle_used) changes something.
    pub fn is_first_use(&self, hash: &str) -> bool {
        self.previous.is_some() && is(&self.current, hash)
    }

    /// A client was let in with this. If it is the newest, it has arrived, and the one before it is worth nothing.
    pub fn handle_used(&mut self, hash: &str) {
        if self.is_first_use(hash) {
            self.previous = None;
        }
    }

    /// A new secret for the client that showed `hash`, which stays good until the new one is used.
    #[must_use]
    pub fn rotated(&self, new: String, shown: Option<&str>) -> ResumeToken {
        ResumeToken { current: new, previous: shown.filter(|hash| self.is_good(hash)).map(str::to_owned) }
    }
}

fn is(known: &str, shown: &str) -> bool {
    known.as_bytes().ct_eq(shown.as_bytes()).into()
}

impl std::fmt::Debug for ResumeToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ResumeToken({})", if self.previous.is_some() { "not used yet" } else { "used" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_token_before_is_good_until_the_new_one_is_used() {
        let mut token = ResumeToken::first("t0".into()).rotated("t1".into(), Some("t0"));
        assert!(token.is_good("t0") && token.is_good("t1"));
        token.handle_used("t0");
        assert!(token.is_good("t0"), "the answer with t1 may have been lost");
        token.handle_used("t1");
        assert!(!token.is_good("t0") && token.is_good("t1"));
        let next = token.rotated("t2".into(), Some("t1"));
        assert!(!next.is_good("t0") && next.is_good("t1") && next.is_good("t2"));
    }

    #[test]
    fn what_was_never_good_does_not_become_so() {
        let token = ResumeToken::first("t0".into()).rotated("t1".into(), Some("made up"));
        assert!(!token.is_good("made up") && !token.is_good("t0") && token.is_good("t1"));
    }

    proptest! {
        /// Tokens are numbered as they are given out. Whatever is used in whatever order, one that was given out before the
        /// newest used one is never good again, and the client that came last can always come back, also if the answer was lost.
        #[test]
        fn no_client_is_locked_out_and_nothing_used_up_comes_back(
            steps in proptest::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..60),
        ) {
            let name = |n: usize| format!("t{n}");
            let (mut token, mut given, mut newest_used) = (ResumeToken::first(name(0)), 1, 0);
            for (resume, pick) in steps {
                let good: Vec<usize> = (0..given).filter(|n| token.is_good(&name(*n))).collect();
                prop_assert!((1..=2).contains(&good.len()));
                prop_assert!(good.iter().all(|n| *n >= newest_used), "{good:?} after {newest_used}");
                let shown = good[pick.index(good.len())];
                newest_used = newest_used.max(shown);
                if resume {
                    token = token.rotated(name(given), Some(&name(shown)));
                    given += 1;
                } else {
                    token.handle_used(&name(shown));
                }
                prop_assert!(token.is_good(&name(shown)) && token.is_good(&name(given - 1)) || !resume);
            }
        }
    }
}
