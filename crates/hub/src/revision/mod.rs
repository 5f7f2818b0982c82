//! The revisions of the protocol: which versions each has, how its messages are exchanged, and a codec for each.
//!
//! Requests, questions and answers are translated here, where they enter and leave. Between the edges a request has one form
//! ([`BackendCall`](crate::call::BackendCall)), and what differs is not the revision but the [`Exchange`].

pub mod v2025;
pub mod v2026;

use crate::call::Exchange;

struct Revision {
    /// What the setting `era` of a server calls it.
    setting: &'static str,
    /// Newest first.
    versions: &'static [&'static str],
    exchange: Exchange,
}

/// Newest first.
const REVISIONS: [Revision; 2] = [
    Revision { setting: "modern", versions: v2026::VERSIONS, exchange: Exchange::Stateless },
    Revision { setting: "legacy", versions: v2025::VERSIONS, exchange: Exchange::Session },
];

/// How messages of a version are exchanged, if the version is known.
pub fn exchange_of(version: &str) -> Option<Exchange> {
    REVISIONS.iter().find(|one| one.versions.contains(&version)).map(|one| one.exchange)
}

/// How a server is spoken to whose setting says so.
pub fn of_setting(setting: &str) -> Option<Exchange> {
    REVISIONS.iter().find(|one| one.setting == setting).map(|one| one.exchange)
}

/// The setting that says so.
pub fn setting(exchange: Exchange) -> Option<&'static str> {
    REVISIONS.iter().find(|one| one.exchange == exchange).map(|one| one.setting)
}

/// All versions that we speak, newest first.
pub fn versions() -> Vec<&'static str> {
    REVISIONS.iter().flat_map(|one| one.versions).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_belongs_to_one_revision_or_to_none() {
        assert_eq!(exchange_of("2026-07-28"), Some(Exchange::Stateless));
        assert_eq!(exchange_of("2024-11-05"), Some(Exchange::Session));
        assert_eq!(exchange_of("2027-01-01"), None);
        let mut versions = versions();
        versions.dedup();
        assert_eq!(versions.len(), 5);
        assert!(versions.is_sorted_by(|newer, older| newer > older));
    }

    #[test]
    fn a_setting_leads_to_an_exchange_and_back() {
        for one in &REVISIONS {
            assert_eq!(of_setting(one.setting), Some(one.exchange));
            assert_eq!(setting(one.exchange), Some(one.setting));
        }
        assert_eq!(of_setting("other"), None);
    }
}
