//! Exporting and restoring signed states.

use bowline::config::Config;
use bowline_core::SealKey;
use serde_json::{Value, json};

use super::Client;

/// Every server of a test has the same key, and nothing else in common.
pub fn config() -> Config {
    let mut config = super::config();
    config.state.keys = vec![SealKey::new("k1", &[7; 32], false).unwrap()];
    config
}

pub async fn export(client: &mut Client, options: Value) -> Value {
    client.send(json!({ "event": "user.request_state", "session_id": client.session, "content": options })).await;
    client.expect("agent.state_exported").await
}

pub fn signed(exported: &Value) -> Value {
    exported["metadata"]["signed_state"].clone()
}

pub async fn send_state(client: &mut Client, state: &Value, content: Value) {
    client.send(json!({ "event": "user.reconnect_with_state", "signed_state": state, "content": content })).await;
}

/// Restores and reads through the replay; returns the greeting and the replayed events.
pub async fn restore(client: &mut Client, state: &Value, content: Value) -> (Value, Vec<Value>) {
    send_state(client, state, content).await;
    let greeting = client.expect("agent.state_restored").await;
    client.session = greeting["session_id"].as_str().unwrap().to_owned();
    let mut frames = client.until(|frame| frame["metadata"]["action"] == "replay").await;
    frames.retain(|frame| frame["seq"].is_u64());
    (greeting, frames)
}
