//! The levels of log messages, and which of them a client wants.

/// From the least to the most urgent.
pub const LOG_LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

pub fn is_log_level(word: &str) -> bool {
    LOG_LEVELS.contains(&word)
}

/// Whether a log message of this level is for a client that asked for logs from `wanted` on, or for none.
pub fn is_logged(level: Option<&str>, wanted: Option<&str>) -> bool {
    let place = |level: &str| LOG_LEVELS.iter().position(|known| *known == level);
    match (level.and_then(place), wanted.map(place)) {
        (_, None) => false,
        (Some(level), Some(Some(wanted))) => level >= wanted,
        (_, Some(_)) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_for_those_who_asked_from_the_level_they_named() {
        assert!(!is_logged(Some("emergency"), None));
        assert!(is_logged(Some("warning"), Some("warning")) && is_logged(Some("error"), Some("warning")));
        assert!(!is_logged(Some("notice"), Some("warning")));
        assert!(is_logged(Some("of their own"), Some("warning")) && is_logged(None, Some("debug")));
    }
}
