//! Takes secrets out of JSON before it leaves: by the names of keys at every depth, and by well-known shapes in text.
//!
//! Pure and linear in the length of what it reads. It is a net, not a wall: a secret without a name and without a shape
//! looks like any other text.

mod shapes;

use std::collections::HashSet;

use bowline_protocol::State;
use serde_json::{Map, Value};

/// What stands where a secret was.
pub const REDACTED: &str = "[redacted]";

/// Whole names of keys whose value is a secret, without dashes and underscores. `max_tokens` and `token_count` are others.
const NAMES: &[&str] = &[
    "accesskey",
    "accesskeyid",
    "accesstoken",
    "apikey",
    "apikeys",
    "apisecret",
    "apitoken",
    "appsecret",
    "auth",
    "authheader",
    "authkey",
    "authorization",
    "authtoken",
    "awsaccesskeyid",
    "awssecretaccesskey",
    "awssessiontoken",
    "bearer",
    "bearertoken",
    "bottoken",
    "clientsecret",
    "clientsecrets",
    "connectionstring",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "csrftoken",
    "databaseurl",
    "encryptionkey",
    "githubtoken",
    "idtoken",
    "jwt",
    "jwtsecret",
    "masterkey",
    "oauthtoken",
    "openaiapikey",
    "anthropicapikey",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "privatekey",
    "proxyauthorization",
    "pwd",
    "refreshtoken",
    "resumetoken",
    "secret",
    "secretaccesskey",
    "secretkey",
    "secrets",
    "servicetoken",
    "sessioncookie",
    "sessionkey",
    "sessiontoken",
    "setcookie",
    "signingkey",
    "signingsecret",
    "sshkey",
    "token",
    "usertoken",
    "webhooksecret",
    "xapikey",
    "xauthtoken",
    "xcsrftoken",
];

#[derive(Clone, Debug)]
pub struct Scrubber {
    names: HashSet<String>,
}

impl Default for Scrubber {
    fn default() -> Scrubber {
        Scrubber::new(&[])
    }
}

impl Scrubber {
    /// The well-known names and these.
    pub fn new(extra: &[String]) -> Scrubber {
        let known = NAMES.iter().copied().map(ToOwned::to_owned);
        Scrubber { names: known.chain(extra.iter().map(|name| plain(name))).collect() }
    }

    /// Replaces every secret by a mark. True if there was one.
    pub fn scrub(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => scrub_text(text),
            Value::Array(items) => items.iter_mut().fold(false, |found, item| self.scrub(item) | found),
            Value::Object(fields) => self.scrub_fields(fields),
            _ => false,
        }
    }

    /// The same for the fields of an object.
    pub fn scrub_fields(&self, fields: &mut Map<String, Value>) -> bool {
        let mut found = false;
        for (name, value) in fields {
            found |= if self.is_secret(name) { redact(value) } else { self.scrub(value) };
        }
        found
    }

    /// Everything in a state that a person, an agent or a tool wrote. True if there was a secret.
    pub fn scrub_state(&self, state: &mut State) -> bool {
        let mut found = state.stage.as_mut().is_some_and(scrub_text);
        for value in [&mut state.agent_state, &mut state.plan_context, &mut state.current_task] {
            found |= self.scrub(value);
        }
        for value in &mut state.completed_tasks {
            found |= self.scrub(value);
        }
        for message in &mut state.memory_snapshot {
            found |= scrub_text(&mut message.content);
        }
        for asked in &mut state.pending_confirmations {
            found |= self.scrub(&mut asked.question);
            found |= self.scrub_fields(&mut asked.metadata);
            found |= self.scrub(&mut asked.state);
        }
        found |= self.scrub_fields(&mut state.tool_states);
        found | self.scrub_fields(&mut state.metadata.agent_config)
    }

    fn is_secret(&self, name: &str) -> bool {
        self.names.contains(&plain(name))
    }
}

/// Replaces the secrets in a text by a mark. True if there was one.
pub fn scrub_text(text: &mut String) -> bool {
    match shapes::without_secrets(text) {
        Some(clean) => {
            *text = clean;
            true
        }
        None => false,
    }
}

/// A flag or nothing at all gives no secret away, and is often there to say whether there is one.
fn redact(value: &mut Value) -> bool {
    let secret = !matches!(value, Value::Null | Value::Bool(_)) && value != REDACTED;
    if secret {
        *value = Value::String(REDACTED.to_owned());
    }
    secret
}

/// A name as it is compared: `X-Api-Key`, `x_api_key` and `xApiKey` are one.
fn plain(name: &str) -> String {
    let kept = name.chars().filter(|c| !matches!(c, '-' | '_' | ' ' | '.'));
    kept.map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn secrets_are_known_by_the_whole_name_of_their_key() {
        let scrubber = Scrubber::new(&["x-internal_Code".into()]);
        for name in [
            "api_key",
            "apiKey",
            "API-KEY",
            "authorization",
            "Authorization",
            "password",
            "passwd",
            "secret",
            "token",
            "access_token",
            "accessToken",
            "refresh_token",
            "cookie",
            "Set-Cookie",
            "set_cookie",
            "private_key",
            "client_secret",
            "credentials",
            "session_token",
            "X-Api-Key",
            "xInternalCode",
        ] {
            for value in [json!("plain words"), json!(1234), json!(["a"]), json!({ "deep": "er" })] {
                let mut value = json!({ name: value });
                assert!(scrubber.scrub(&mut value), "{name}");
                assert_eq!(value, json!({ name: REDACTED }));
            }
        }
        for name in [
            "max_tokens",
            "token_count",
            "tokens",
            "tokenizer",
            "secretary",
            "password_hint_shown",
            "key",
            "author",
            "total_tokens",
            "session_id",
            "cookie_policy",
        ] {
            let mut value = json!({ name: 4096 });
            assert!(!scrubber.scrub(&mut value) && value == json!({ name: 4096 }), "{name}");
        }
    }

    #[test]
    fn depth_and_order_do_not_hide_a_secret() {
        let mut value = json!({ "a": [{ "b": { "headers": { "Authorization": "Basic x", "Accept": "*/*" } } }, [["sk-abcdefghij0123456789"]]],
            "password": null, "secret": true });
        assert!(Scrubber::default().scrub(&mut value));
        let wanted = json!({ "a": [{ "b": { "headers": { "Authorization": REDACTED, "Accept": "*/*" } } }, [[REDACTED]]],
            "password": null, "secret": true });
        assert_eq!(value, wanted);
    }

    #[test]
    fn no_part_of_a_state_is_forgotten() {
        let secret = || json!({ "x": ["sk-abcdefghij0123456789"] });
        let text = "Bearer sk-abcdefghij0123456789";
        let mut state: State = serde_json::from_value(json!({
            "session_id": "sess_1", "epoch": "e1", "last_seq": 7, "created_at": "", "last_active_at": "", "stage": text,
            "agent_state": secret(), "plan_context": secret(), "current_task": secret(), "completed_tasks": [secret()],
            "memory_snapshot": [{ "role": "user", "content": text }], "tool_states": secret(),
            "pending_confirmations": [{ "step_id": "s", "question": text, "metadata": secret(), "state": secret() }],
            "metadata": { "agent_name": "demo", "agent_config": { "api_key": "plain words" }, "session_state": "idle" },
        }))
        .unwrap();
        assert!(Scrubber::default().scrub_state(&mut state));
        let left = serde_json::to_string(&state).unwrap();
        assert!(!left.contains("sk-") && !left.contains("plain words"), "{left}");
        assert!(!Scrubber::default().scrub_state(&mut state));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn scrubbing_twice_changes_no_more_than_once(
            parts in prop::collection::vec(prop_oneof![
                ".{0,12}", "[A-Za-z0-9_.+/=-]{0,40}",
                prop::sample::select(vec!["Bearer ", "sk-", "eyJ", "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----",
                    "ghp_", "github_pat_", "xoxb-", "AKIA", "Basic ", "://", "user:pass@", " ", "\n", "é", "."]).prop_map(str::to_owned),
            ], 0..12)
        ) {
            let mut once = parts.concat();
            scrub_text(&mut once);
            let mut twice = once.clone();
            prop_assert!(!scrub_text(&mut twice), "{:?}: {:?} became {:?}", parts, once, twice);
        }
    }
}
