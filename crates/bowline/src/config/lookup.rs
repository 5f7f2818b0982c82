//! Finding a setting by its name, or the one that was meant.

use bowline_protocol::frame::client::distance;

use super::key::{AGENT_NAME, Key};
use super::table::SECTIONS;

/// Every setting, in the order of the table.
pub fn keys() -> impl Iterator<Item = &'static Key> + Clone {
    SECTIONS.iter().copied().flatten()
}

/// The setting that `path` names. Any agent's name is as good as another.
pub fn find(path: &str) -> Option<&'static Key> {
    let pattern = pattern(path);
    keys().find(|key| key.name == pattern)
}

/// Whether settings lie below `path`, so that a table may stand there.
pub fn is_section(path: &str) -> bool {
    let section = format!("{}.", pattern(path));
    keys().any(|key| key.name.starts_with(&section))
}

/// The valid name that is nearest to `path`: one that looks like it, has its last word, lies in its section, or, if all
/// else fails, takes the fewest changes.
pub fn nearest(path: &str) -> Option<String> {
    let agent = agent_name(path);
    let shown = |key: &Key| agent.map_or(key.name.to_owned(), |name| key.name.replace(AGENT_NAME, name));
    let (cost, name) = keys().map(|key| (distance(&shown(key), path), shown(key))).min()?;
    // The same last word in another section, such as `ttl` for `session.ttl`, is worth a hint too.
    let same_word = || keys().find(|key| key.name.rsplit('.').next() == path.rsplit('.').next()).map(shown);
    let close = cost <= 2 + path.len() / 6;
    if close {
        return Some(name);
    }
    let section = format!("{}.", path.split('.').next().unwrap_or_default());
    let siblings = keys().map(shown).filter(|name| name.starts_with(&section));
    let nearest_sibling = || siblings.min_by_key(|name| distance(name, path));
    same_word().or_else(nearest_sibling).or(Some(name))
}

/// `agents.mine.kind` → `mine`.
pub fn agent_name(path: &str) -> Option<&str> {
    path.strip_prefix("agents.")?.split('.').next()
}

fn pattern(path: &str) -> String {
    match agent_name(path) {
        Some(name) => {
            let rest = &path["agents.".len() + name.len()..];
            format!("agents.{AGENT_NAME}{rest}")
        }
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::AGENT_KINDS;
    use super::*;

    #[test]
    fn names_are_distinct_and_have_a_line_of_documentation() {
        let mut seen = std::collections::HashSet::new();
        for key in keys() {
            assert!(seen.insert(key.name), "{} is there twice", key.name);
            assert!(key.about.ends_with('.') && key.about.len() > 10, "{}", key.name);
        }
    }

    #[test]
    fn every_setting_of_agents_says_to_which_kinds_it_belongs() {
        for key in keys().filter(|key| key.name.starts_with("agents.") && !key.name.ends_with(".kind")) {
            let kinds = key.about.split(':').next().unwrap();
            for kind in AGENT_KINDS {
                assert_eq!(kinds.contains(&format!("`{kind}`")), key.is_for(kind), "{}: {kind}", key.name);
            }
        }
    }

    #[test]
    fn a_slip_of_the_pen_finds_the_name_that_was_meant() {
        let cases = [
            ("hearbeat.interval", Some("heartbeat.interval")),
            ("session.owner", Some("session.ownership")),
            ("agents.mine.knd", Some("agents.mine.kind")),
            ("ttl", Some("session.ttl")),
            ("limits.frame_bytes", Some("limits.frame_bytes_max")),
            ("limits.foo", Some("limits.body_timeout")),
            ("heartbeat", Some("heartbeat.interval")),
        ];
        for (given, meant) in cases {
            assert_eq!(nearest(given).as_deref(), meant, "{given}");
        }
    }
}
