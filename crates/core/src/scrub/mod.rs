//! Takes secrets out of JSON before it leaves: by the names of keys at every depth, and by well-known shapes in text.
//!
//! Pure and linear in the length of what it reads. It is a net, not a wall: a secret without a name and without a shape
//! looks like any other text.

mod omit;
mod shapes;

use std::collections::HashSet;

use bowline_protocol::State;
use serde_json::{Map, Value};

pub use omit::omit_redacted;

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
        let mut found = FoundSecrets::default();
        self.scrub_at("", value, &mut found);
        !found.0.is_empty()
    }

    /// The same for the fields of an object.
    pub fn scrub_fields(&self, fields: &mut Map<String, Value>) -> bool {
        let mut found = FoundSecrets::default();
        self.scrub_fields_at("", fields, &mut found);
        !found.0.is_empty()
    }

    /// Everything in a state that a person, an agent or a tool wrote. The state notes where secrets were, so that a restore
    /// can leave them out instead of handing the mark to an agent.
    pub fn scrub_state(&self, state: &mut State) {
        let mut found = FoundSecrets::default();
        found.note_if(state.stage.as_mut().is_some_and(scrub_text), "/stage");
        self.scrub_at("/agent_state", &mut state.agent_state, &mut found);
        self.scrub_at("/plan_context", &mut state.plan_context, &mut found);
        self.scrub_at("/current_task", &mut state.current_task, &mut found);
        for (at, value) in state.completed_tasks.iter_mut().enumerate() {
            self.scrub_at(&format!("/completed_tasks/{at}"), value, &mut found);
        }
        for message in &mut state.memory_snapshot {
            // By message and not by place: the oldest messages may still be dropped.
            message.redacted |= scrub_text(&mut message.content);
        }
        for (at, asked) in state.pending_confirmations.iter_mut().enumerate() {
            let path = format!("/pending_confirmations/{at}");
            self.scrub_at(&format!("{path}/question"), &mut asked.question, &mut found);
            self.scrub_fields_at(&format!("{path}/metadata"), &mut asked.metadata, &mut found);
            self.scrub_at(&format!("{path}/state"), &mut asked.state, &mut found);
        }
        self.scrub_fields_at("/tool_states", &mut state.tool_states, &mut found);
        self.scrub_fields_at("/metadata/agent_config", &mut state.metadata.agent_config, &mut found);
        state.metadata.redacted = found.0;
    }

    fn scrub_at(&self, path: &str, value: &mut Value, found: &mut FoundSecrets) {
        match value {
            Value::String(text) => found.note_if(scrub_text(text), path),
            Value::Array(items) => {
                for (at, item) in items.iter_mut().enumerate() {
                    self.scrub_at(&format!("{path}/{at}"), item, found);
                }
            }
            Value::Object(fields) => self.scrub_fields_at(path, fields, found),
            _ => {}
        }
    }

    fn scrub_fields_at(&self, path: &str, fields: &mut Map<String, Value>, found: &mut FoundSecrets) {
        for (name, value) in fields {
            let path = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
            if self.is_secret(name) {
                found.note_if(redact(value), &path);
            } else {
                self.scrub_at(&path, value, found);
            }
        }
    }

    fn is_secret(&self, name: &str) -> bool {
        self.names.contains(&plain(name))
    }
}

/// Where secrets were found, as JSON Pointers.
#[derive(Default)]
struct FoundSecrets(Vec<String>);

impl FoundSecrets {
    fn note_if(&mut self, secret: bool, path: &str) {
        if secret {
            self.0.push(path.to_owned());
        }
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
        Scrubber::default().scrub_state(&mut state);
        let left = serde_json::to_string(&state).unwrap();
        assert!(!left.contains("sk-") && !left.contains("plain words"), "{left}");
        assert_eq!((state.metadata.redacted.len(), state.memory_snapshot[0].redacted), (10, true));
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
