//! How much is remembered of sessions and tasks that are over: so many of each principal, the newest of them.

use std::collections::HashMap;

use bowline_protocol::{LogId, Principal};

/// What is over, by whom it belongs to, each with when it was last touched.
#[derive(Debug, Default)]
pub struct Tombstones(HashMap<Principal, Vec<(u64, LogId)>>);

impl Tombstones {
    pub fn note(&mut self, owner: &Principal, touched_ms: u64, log: &LogId) {
        self.0.entry(owner.clone()).or_default().push((touched_ms, log.clone()));
    }

    /// What is beyond `max` of its principal: the oldest, and of each principal as many as are too many.
    pub fn beyond(self, max: usize) -> Vec<LogId> {
        let mut beyond = Vec::new();
        for mut ended in self.0.into_values().filter(|ended| ended.len() > max) {
            let too_many = ended.len() - max;
            ended.sort_unstable();
            beyond.extend(ended.into_iter().take(too_many).map(|(_, log)| log));
        }
        beyond
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_newest_of_each_principal_stay(times in prop::collection::vec((0..3u8, 0..50u64), 0..60), max in 0..10usize) {
            let mut ended = Tombstones::default();
            let mut all: HashMap<u8, Vec<(u64, LogId)>> = HashMap::new();
            for (n, (owner, touched_ms)) in times.into_iter().enumerate() {
                let log = LogId::parse(&format!("log_{n}")).unwrap();
                ended.note(&Principal::parse(&format!("p{owner}")).unwrap(), touched_ms, &log);
                all.entry(owner).or_default().push((touched_ms, log));
            }
            let gone = ended.beyond(max);
            for ended in all.into_values() {
                let (left, let_go): (Vec<_>, Vec<_>) = ended.iter().partition(|(_, log)| !gone.contains(log));
                prop_assert_eq!(left.len(), ended.len().min(max));
                let newest_gone = let_go.iter().map(|(at, _)| *at).max();
                let oldest_left = left.iter().map(|(at, _)| *at).min();
                prop_assert!(newest_gone.zip(oldest_left).is_none_or(|(gone, left)| gone <= left));
            }
        }
    }
}
