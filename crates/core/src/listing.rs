//! When the lists of a backend are fetched: once it is connected, when it says that they changed, and again for as long as
//! one of them could not be had. A backend that says so all the time is believed once in a second.

use std::time::{Duration, Instant};

use crate::backoff::Backoff;

/// Fetches begin at least this far apart, on one connection.
const APART: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListingPhase {
    Idle,
    Running,
    /// Something changed while it ran.
    Again,
    Waiting {
        due: Instant,
    },
}

#[derive(Clone, Debug)]
pub struct Listing {
    phase: ListingPhase,
    /// When the last one began on this connection.
    began: Option<Instant>,
    backoff: Backoff,
}

impl Listing {
    pub fn new(first: Duration, max: Duration, jitter: f64) -> Listing {
        Listing { phase: ListingPhase::Idle, began: None, backoff: Backoff::new(first, max, jitter) }
    }

    /// There is another connection: whatever was under way on the last one does not matter any more.
    pub fn reset(&mut self) {
        self.phase = ListingPhase::Idle;
        self.began = None;
        self.backoff.reset();
    }

    /// The lists are wanted anew. Whether to fetch them now; if not, they are fetched soon.
    #[must_use]
    pub fn handle_wanted(&mut self, now: Instant) -> bool {
        if matches!(self.phase, ListingPhase::Running | ListingPhase::Again) {
            self.phase = ListingPhase::Again;
            return false;
        }
        self.phase = ListingPhase::Waiting { due: self.earliest(now) };
        self.handle_timeout(now)
    }

    /// A fetch ended, with everything or not.
    pub fn handle_fetched(&mut self, now: Instant, whole: bool, chance: f64) {
        let again = self.phase == ListingPhase::Again;
        if whole {
            self.backoff.reset();
        }
        self.phase = match (again, whole) {
            (true, _) => ListingPhase::Waiting { due: self.earliest(now) },
            (false, true) => ListingPhase::Idle,
            (false, false) => ListingPhase::Waiting { due: now + self.backoff.next(chance) },
        };
    }

    fn earliest(&self, now: Instant) -> Instant {
        self.began.map_or(now, |began| now.max(began + APART))
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            ListingPhase::Waiting { due } => Some(due),
            _ => None,
        }
    }

    /// Whether to fetch now.
    #[must_use]
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let due = self.poll_timeout().is_some_and(|due| due <= now);
        if due {
            self.phase = ListingPhase::Running;
            self.began = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn listing() -> (Listing, Instant) {
        #[allow(clippy::disallowed_methods)]
        (Listing::new(S, 180 * S, 0.1), Instant::now())
    }

    #[test]
    fn one_fetch_at_a_time_and_one_more_for_all_that_changed_meanwhile() {
        let (mut lists, t) = listing();
        assert!(lists.handle_wanted(t));
        assert!(!lists.handle_wanted(t) && !lists.handle_wanted(t));
        lists.handle_fetched(t, true, 0.5);
        assert_eq!(lists.poll_timeout(), Some(t + APART), "once more");
        assert!(lists.handle_timeout(t + APART));
        lists.handle_fetched(t + APART, true, 0.5);
        assert_eq!(lists.poll_timeout(), None, "and that was all");
    }

    #[test]
    fn a_backend_that_says_all_the_time_that_its_lists_changed_is_asked_once_in_a_second() {
        let (mut lists, began) = listing();
        let (mut t, mut fetches) = (began, 0);
        while t < began + 10 * S {
            if lists.handle_wanted(t) || lists.handle_timeout(t) {
                fetches += 1;
                lists.handle_fetched(t, true, 0.5);
            }
            t += Duration::from_millis(10);
        }
        assert_eq!(fetches, 10);
        // On the next connection there is no delay.
        lists.reset();
        assert!(lists.handle_wanted(t));
    }

    #[test]
    fn a_list_that_could_not_be_had_is_asked_for_again_ever_less_often_until_it_is_there() {
        let (mut lists, mut t) = listing();
        assert!(lists.handle_wanted(t));
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 180, 180] {
            lists.handle_fetched(t, false, 0.5);
            assert!(!lists.handle_timeout(t), "not yet");
            assert_eq!(lists.poll_timeout(), Some(t + seconds * S));
            t += seconds * S;
            assert!(lists.handle_timeout(t));
            assert!(!lists.handle_timeout(t), "one at a time");
        }
        lists.handle_fetched(t, true, 0.5);
        t += 5 * S;
        assert!(lists.handle_wanted(t));
        lists.handle_fetched(t, false, 0.5);
        assert_eq!(lists.poll_timeout(), Some(t + S), "the delays begin anew");
        // A caller that asks meanwhile waits no longer than the others.
        assert!(!lists.handle_wanted(t));
        assert_eq!(lists.poll_timeout(), Some(t + APART));
        lists.reset();
        assert!(lists.handle_wanted(t), "another connection, another fetch");
    }
}
