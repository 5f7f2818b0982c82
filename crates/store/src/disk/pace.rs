//! When the writer waits a moment, so that commits that come in a crowd share a sync.

use std::time::{Duration, Instant};

/// While commits come in a crowd, groups begin no closer to each other than this. A sync costs as much processor time as
/// several commits, so that at ten thousand commits a second two out of three syncs are spared, for half a millisecond.
const SPACING: Duration = Duration::from_micros(500);
/// A group of this many needs no more.
const ENOUGH: usize = 32;
/// So many groups are not waited for after a wait that brought nothing: then each that commits waits for the answer to
/// its last commit, and more waiting is only waiting.
const REST: u32 = 64;

/// Watches how many commits share a group.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the last group began, and how many waited in it.
    last: Option<(Instant, usize)>,
    /// How many waited when the wait for more began.
    waited_from: Option<usize>,
    resting: u32,
}

impl Pace {
    /// How long to wait for more, if so many wait now.
    pub fn poll(&mut self, now: Instant, waiting: usize) -> Option<Duration> {
        let (began, shared) = self.last?;
        let rested = self.resting == 0;
        self.resting = self.resting.saturating_sub(1);
        // One alone in each group is no crowd; nor is what waits now, if the last group had no company.
        if !rested || waiting >= ENOUGH || (waiting < 2 && shared < 2) {
            return None;
        }
        let left = SPACING.checked_sub(now.saturating_duration_since(began)).filter(|left| !left.is_zero())?;
        self.waited_from = Some(waiting);
        Some(left)
    }

    /// A group begins now, with so many.
    pub fn handle_group(&mut self, now: Instant, waiting: usize) {
        self.last = Some((now, waiting));
        if self.waited_from.take().is_some_and(|before| waiting <= before) {
            self.resting = REST;
        }
    }
}

#[cfg(test)]
mod tests {
    use bowline_env::clock;

    use super::*;

    #[test]
    fn one_who_commits_alone_is_never_kept_waiting() {
        let (mut pace, mut now) = (Pace::default(), clock::now());
        for _ in 0..100 {
            assert_eq!(pace.poll(now, 1), None);
            pace.handle_group(now, 1);
            now += Duration::from_micros(10);
        }
    }

    #[test]
    fn a_crowd_waits_for_the_rest_of_the_spacing_as_long_as_that_brings_more() {
        let (mut pace, mut now) = (Pace::default(), clock::now());
        pace.handle_group(now, 2);
        now += Duration::from_micros(200);
        assert_eq!(pace.poll(now, 3), Some(Duration::from_micros(300)));
        now += Duration::from_micros(300);
        pace.handle_group(now, 6);
        now += Duration::from_micros(600);
        assert_eq!(pace.poll(now, 2), None, "that long ago");
        pace.handle_group(now, 2);
        assert_eq!(pace.poll(now, ENOUGH), None, "a large group");
        assert!(pace.poll(now, 2).is_some());
        pace.handle_group(now + SPACING, 2);
        for _ in 0..REST {
            assert_eq!(pace.poll(now, 2), None, "the wait brought nothing");
        }
        assert!(pace.poll(now, 2).is_some(), "it is tried again");
    }
}
