//! What a message may bring besides its text: messages that came before it elsewhere, and instructions and functions for its
//! answer alone.

use bowline_api::{Functions, Role};
use bowline_protocol::frame::client::Content;
use serde::Deserialize;

/// The members of a message's content that a session keeps with it. What is of another shape is left out.
#[derive(Default, Deserialize)]
pub struct MessageExtras {
    #[serde(default)]
    pub before: Vec<Earlier>,
    #[serde(default)]
    pub instructions: Option<String>,
    /// What the agent may call of the sender's.
    #[serde(default)]
    pub functions: Option<Functions>,
    /// Whether webhooks get the end of its answer.
    #[serde(default)]
    pub announce: bool,
}

/// A message of the conversation that the session does not have yet.
#[derive(Deserialize)]
pub struct Earlier {
    pub role: Role,
    pub content: String,
}

impl MessageExtras {
    pub fn of(content: &Content) -> MessageExtras {
        let text = content.0.get();
        // A list would be read as a struct too.
        let object = text.starts_with('{');
        object.then(|| serde_json::from_str(text).ok()).flatten().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_has_the_right_shape_is_taken() {
        let of =
            |value: serde_json::Value| MessageExtras::of(&Content(serde_json::value::to_raw_value(&value).unwrap()));
        let extras = of(json!({ "text": "c", "before": [{ "role": "user", "content": "a" }], "instructions": "b" }));
        assert_eq!((extras.before.len(), extras.instructions.as_deref()), (1, Some("b")));
        for nothing in [json!("text"), json!([[], "x"]), json!({ "text": "c" }), json!({ "before": "x", "text": "c" })]
        {
            let extras = of(nothing);
            assert!(extras.before.is_empty() && extras.instructions.is_none());
        }
    }
}
