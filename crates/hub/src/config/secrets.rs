//! Values of headers and environments: what a server may repeat in its errors, and what is removed from them.

use std::fmt;

use super::spec::{ServerSpec, Target};

/// Shorter values are words like `true` or `debug`; hiding them would make every sentence unreadable.
const CHARS_MIN: usize = 6;
const HIDDEN: &str = "[hidden]";

/// What a server was given in confidence.
#[derive(Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    pub fn of(spec: &ServerSpec) -> Secrets {
        let values: Vec<&String> = match &spec.target {
            Target::Http { headers, .. } => headers.values().collect(),
            Target::Stdio { env, .. } => env.values().collect(),
            Target::Invalid { .. } => Vec::new(),
        };
        // `Bearer abc` may come back whole, or as `abc`.
        let parts = values.iter().flat_map(|value| value.split_whitespace());
        let mut all: Vec<String> =
            values.iter().map(|value| value.as_str()).chain(parts).map(ToOwned::to_owned).collect();
        all.retain(|value| value.chars().count() >= CHARS_MIN && !value.eq_ignore_ascii_case("bearer"));
        // The longest first, so that nothing of it is left behind.
        all.sort_by_key(|value| std::cmp::Reverse(value.len()));
        all.dedup();
        Secrets(all)
    }

    pub fn hide(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| {
            if text.contains(secret.as_str()) { text.replace(secret.as_str(), HIDDEN) } else { text }
        })
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_server_was_given_in_confidence_is_not_repeated() {
        let read = |entry| Secrets::of(&ServerSpec::read(&entry, &|_| None).unwrap());
        let http = read(
            json!({ "url": "http://x.example", "headers": { "Authorization": "Bearer s3cret-key", "X-On": "yes" } }),
        );
        assert_eq!(http.hide("bad auth: Bearer s3cret-key".into()), "bad auth: [hidden]");
        assert_eq!(http.hide("yes, no such key s3cret-key, s3cret-key".into()), "yes, no such key [hidden], [hidden]");
        let program = read(json!({ "command": "x", "env": { "A": "abcdef", "B": "abcdefghi" } }));
        assert_eq!(program.hide("it has abcdefghi and abcdef".into()), "it has [hidden] and [hidden]");
        assert_eq!(program.hide("nothing".into()), "nothing");
    }
}
