//! Leaves out of a restored state what scrubbing had replaced: an agent must not take the mark for a value.

use bowline_protocol::State;
use serde_json::Value;

use super::REDACTED;

/// Removes every mark that scrubbing left in this state, and names the places as JSON Pointers.
///
/// A value that was a secret as a whole is absent afterwards, or null inside an array, whose other items keep their places.
/// A text that had a secret in it loses the mark only.
pub fn omit_redacted(state: &mut State) -> Vec<String> {
    let mut paths = std::mem::take(&mut state.metadata.redacted);
    if !paths.is_empty()
        && let Ok(mut whole) = serde_json::to_value(&*state)
    {
        paths.retain(|path| omit(&mut whole, path));
        // Only fields that have a default lie under these paths, so what is left is still a state.
        if let Ok(rest) = serde_json::from_value(whole) {
            *state = rest;
        }
    }
    for (at, message) in state.memory_snapshot.iter_mut().enumerate() {
        if std::mem::take(&mut message.redacted) {
            message.content = message.content.replace(REDACTED, "");
            paths.push(format!("/memory_snapshot/{at}/content"));
        }
    }
    paths
}

/// False if there is no mark at this place.
fn omit(whole: &mut Value, path: &str) -> bool {
    let Some((parent, name)) = path.rsplit_once('/') else { return false };
    match whole.pointer_mut(path) {
        Some(Value::String(text)) if text == REDACTED => {}
        Some(Value::String(text)) if text.contains(REDACTED) => {
            *text = text.replace(REDACTED, "");
            return true;
        }
        _ => return false,
    }
    match whole.pointer_mut(parent) {
        Some(Value::Object(fields)) => fields.remove(&name.replace("~1", "/").replace("~0", "~")).is_some(),
        Some(Value::Array(items)) => {
            name.parse().ok().and_then(|at: usize| items.get_mut(at)).map(|item| *item = Value::Null).is_some()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Scrubber;
    use super::*;
    use serde_json::json;

    fn state(config: &Value, agent_state: &Value, text: &str) -> State {
        serde_json::from_value(json!({
            "session_id": "sess_1", "epoch": "e1", "last_seq": 7, "created_at": "", "last_active_at": "",
            "agent_state": agent_state, "memory_snapshot": [{ "role": "user", "content": text }],
            "metadata": { "agent_name": "demo", "session_state": "idle", "agent_config": config },
        }))
        .unwrap()
    }

    fn restored(mut state: State) -> (State, Vec<String>) {
        Scrubber::default().scrub_state(&mut state);
        let paths = omit_redacted(&mut state);
        (state, paths)
    }

    #[test]
    fn secrets_are_absent_and_their_places_are_named() {
        let config = json!({ "api_key": "k", "a/b": { "password": "p" }, "n": 1 });
        let notes = json!({ "keys": ["sk-abcdefghij0123456789", "plain"], "note": "use sk-abcdefghij0123456789 now" });
        let (state, paths) = restored(state(&config, &notes, "Bearer sk-abcdefghij0123456789, please"));
        assert_eq!(serde_json::to_value(&state.metadata.agent_config).unwrap(), json!({ "a/b": {}, "n": 1 }));
        assert_eq!(state.agent_state, json!({ "keys": [null, "plain"], "note": "use  now" }));
        assert_eq!(state.memory_snapshot[0].content, "Bearer , please");
        let expected = [
            "/agent_state/keys/0",
            "/agent_state/note",
            "/metadata/agent_config/a~1b/password",
            "/metadata/agent_config/api_key",
            "/memory_snapshot/0/content",
        ];
        assert_eq!(paths, expected);
    }

    #[test]
    fn a_mark_that_a_person_wrote_is_left_alone() {
        let (state, paths) =
            restored(state(&json!({ "note": REDACTED }), &json!(REDACTED), "what does [redacted] mean?"));
        assert!(paths.is_empty(), "{paths:?}");
        assert_eq!(state.agent_state, json!(REDACTED));
        assert_eq!(state.memory_snapshot[0].content, "what does [redacted] mean?");
    }
}
