//! Tools that agents call. A server implements [`Tools`]; an agent finds them in its run.

use std::fmt;

use async_trait::async_trait;
use bowline_protocol::event::names;
use bowline_protocol::{Draft, Principal, RunId, SessionId, StepId};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

/// A set of tools.
///
/// What an implementor owes:
/// - [`list`](Tools::list) returns at once: a server that is away does not hold an agent up.
/// - [`call`](Tools::call) ends by itself, whatever happens to the server behind it, and soon after `cancel` has fired.
/// - A call that may have run is never sent twice. If it is not known whether it ran, the outcome is
///   [`Unknown`](ToolOutcome::Unknown).
#[async_trait]
pub trait Tools: Send + Sync + 'static {
    /// The tools that this owner may call now.
    async fn list(&self, owner: &Principal) -> Vec<ToolSpec>;

    /// Calls one tool.
    async fn call(&self, call: ToolCall, cancel: CancellationToken) -> ToolOutcome;

    /// How a server that this owner may use is reached (`url` or `command`), without secrets. `None` if there is none of
    /// that name.
    async fn server(&self, _owner: &Principal, _server: &str) -> Option<Map<String, Value>> {
        None
    }
}

impl fmt::Debug for dyn Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tools")
    }
}

/// One tool, as its server describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// `<server>__<tool>`.
    pub name: String,
    /// The server that has it.
    pub server: String,
    /// Its name there.
    pub tool: String,
    /// What it does, for a model.
    pub description: String,
    /// A JSON Schema of its arguments.
    pub input_schema: Value,
}

/// One call of a tool.
#[derive(Clone)]
pub struct ToolCall {
    /// `<server>__<tool>`, as listed.
    pub name: String,
    /// The arguments.
    pub args: Map<String, Value>,
    /// On whose behalf.
    pub owner: Principal,
    /// In which session.
    pub session: SessionId,
    /// In which run.
    pub run: RunId,
    /// The step under which the log shows the call.
    pub step: StepId,
    /// The caller waits for the end however long that takes. Otherwise a call that takes long may go on in the background,
    /// and its outcome is a success that says so.
    pub to_the_end: bool,
}

impl fmt::Debug for ToolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolCall({}, {} arguments)", self.name, self.args.len())
    }
}

/// How a call ended.
#[derive(Clone, PartialEq)]
pub enum ToolOutcome {
    /// It ran.
    Success {
        /// What a model or a person reads.
        text: String,
        /// What the tool answered, for programs.
        data: Option<Value>,
    },
    /// It did not run, or it ran and said that it failed.
    Failed {
        /// Why, in a sentence.
        error: String,
        /// What the tool answered, for programs.
        data: Option<Value>,
    },
    /// The connection broke in flight, so it may have run.
    Unknown {
        /// What happened, in a sentence.
        error: String,
    },
}

impl ToolOutcome {
    /// It did not run, or failed, and there is nothing but a sentence about it.
    pub fn failed(error: impl Into<String>) -> ToolOutcome {
        ToolOutcome::Failed { error: error.into(), data: None }
    }

    /// `success`, `failed` or `unknown`.
    pub const fn status(&self) -> &'static str {
        match self {
            ToolOutcome::Success { .. } => "success",
            ToolOutcome::Failed { .. } => "failed",
            ToolOutcome::Unknown { .. } => "unknown",
        }
    }

    /// The sentence or text for people.
    pub fn text(&self) -> &str {
        match self {
            ToolOutcome::Success { text, .. } => text,
            ToolOutcome::Failed { error, .. } | ToolOutcome::Unknown { error } => error,
        }
    }

    /// The metadata of the event that shows this outcome. Data that only repeats the text is left out.
    pub fn metadata(&self, tool: &str, duration_ms: u64) -> Value {
        let mut metadata = json!({ "tool": tool, "status": self.status(), "duration_ms": duration_ms });
        let (error, data) = match self {
            ToolOutcome::Success { data, .. } => (None, data.as_ref()),
            ToolOutcome::Failed { error, data } => (Some(error), data.as_ref()),
            ToolOutcome::Unknown { error } => (Some(error), None),
        };
        if let Some(error) = error {
            metadata["error"] = error.as_str().into();
        }
        if let Some(data) = data.filter(|data| !repeats(data, self.text())) {
            metadata["data"] = data.clone();
        }
        metadata
    }

    /// This outcome and its metadata, cut to fit into one event: a call that ran must not end without a result because
    /// the result is large. The text of a cut one ends with a note for people and models; its metadata has `truncated`
    /// and `bytes` for programs.
    pub fn truncated_to(self, bytes_max: usize, tool: &str, duration_ms: u64) -> (ToolOutcome, Value) {
        let metadata = self.metadata(tool, duration_ms);
        if event_bytes(self.text(), &metadata) <= bytes_max {
            return (self, metadata);
        }
        let bytes = self.bytes();
        let note = format!("[Not the whole result: it has {bytes} bytes, and an event may have {bytes_max}.]");
        let metadata_of = |outcome: &ToolOutcome| {
            let mut metadata = outcome.metadata(tool, duration_ms);
            metadata["truncated"] = true.into();
            metadata["bytes"] = bytes.into();
            metadata
        };
        let bare = self.with_text(note.clone());
        let room = bytes_max.saturating_sub(event_bytes(bare.text(), &metadata_of(&bare)));
        // An error stands in the text and in the metadata.
        let copies = if matches!(self, ToolOutcome::Success { .. }) { 1 } else { 2 };
        let kept = beginning(self.text(), (room / copies).saturating_sub("\\n".len()));
        let cut = if kept.is_empty() { bare } else { self.with_text(format!("{kept}\n{note}")) };
        let metadata = metadata_of(&cut);
        (cut, metadata)
    }

    /// The same ending with another text, and without data.
    fn with_text(&self, text: String) -> ToolOutcome {
        match self {
            ToolOutcome::Success { .. } => ToolOutcome::Success { text, data: None },
            ToolOutcome::Failed { .. } => ToolOutcome::Failed { error: text, data: None },
            ToolOutcome::Unknown { .. } => ToolOutcome::Unknown { error: text },
        }
    }

    /// How large the whole of it is.
    fn bytes(&self) -> usize {
        let data = match self {
            ToolOutcome::Success { data, .. } | ToolOutcome::Failed { data, .. } => data.as_ref(),
            ToolOutcome::Unknown { .. } => None,
        };
        data.map_or(0, |data| data.to_string().len()).max(self.text().len())
    }
}

/// Whether a tool's answer is this text and nothing else.
fn repeats(data: &Value, text: &str) -> bool {
    let Some(fields) = data.as_object() else { return data.as_str() == Some(text) };
    let bare = fields.keys().all(|key| matches!(key.as_str(), "content" | "isError" | "resultType"));
    let parts = fields.get("content").and_then(Value::as_array).map(Vec::as_slice);
    bare && matches!(parts, Some([part]) if *part == json!({ "type": "text", "text": text }))
}

fn event_bytes(text: &str, metadata: &Value) -> usize {
    Draft::new(names::TOOL_RESULT, text).metadata(metadata).len_hint()
}

/// As much of the beginning as takes at most `room` bytes in JSON.
fn beginning(text: &str, room: usize) -> &str {
    let written = |c: char| match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        c if c < ' ' => 6,
        c => c.len_utf8(),
    };
    let mut taken = 0;
    let over = text.char_indices().find(|(_, c)| {
        taken += written(*c);
        taken > room
    });
    &text[..over.map_or(text.len(), |(at, _)| at)]
}

impl fmt::Debug for ToolOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolOutcome({}, {} bytes)", self.status(), self.text().len())
    }
}

/// The empty set of tools.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTools;

#[async_trait]
impl Tools for NoTools {
    async fn list(&self, _owner: &Principal) -> Vec<ToolSpec> {
        Vec::new()
    }

    async fn call(&self, call: ToolCall, _cancel: CancellationToken) -> ToolOutcome {
        ToolOutcome::failed(format!("There is no tool `{}`.", call.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(text: &str) -> ToolOutcome {
        let data = json!({ "content": [{ "type": "text", "text": text }], "isError": false });
        ToolOutcome::Success { text: text.to_owned(), data: Some(data) }
    }

    #[test]
    fn data_that_only_repeats_the_text_is_left_out() {
        assert_eq!(answered("hello").metadata("t", 1).get("data"), None);
        let structured = json!({ "content": [{ "type": "text", "text": "4" }], "structuredContent": { "mm": 4 } });
        let outcome = ToolOutcome::Success { text: "4".into(), data: Some(structured.clone()) };
        assert_eq!(outcome.metadata("t", 1)["data"], structured);
    }

    #[test]
    fn a_result_that_fits_is_unchanged() {
        let outcome = answered(&"x".repeat(600_000));
        let (shown, metadata) = outcome.clone().truncated_to(1 << 20, "t", 1);
        assert!(shown == outcome);
        assert_eq!(metadata, outcome.metadata("t", 1));
    }

    #[test]
    fn whatever_is_cut_fits_says_so_and_keeps_its_status() {
        let texts = ["x".repeat(5000), "\u{1}\"\\ä\n".repeat(1000), String::new()];
        for text in texts {
            let data = Some(json!({ "content": [], "blob": "y".repeat(9000) }));
            for outcome in [
                ToolOutcome::Success { text: text.clone(), data: data.clone() },
                ToolOutcome::Failed { error: text.clone(), data },
                ToolOutcome::Unknown { error: format!("{text}{}", "z".repeat(5000)) },
            ] {
                let status = outcome.status();
                let (shown, metadata) = outcome.truncated_to(2000, "tool", 7);
                assert!(event_bytes(shown.text(), &metadata) <= 2000, "{} {}", shown.text().len(), metadata);
                assert!(event_bytes(shown.text(), &metadata) > 1900 || text.is_empty(), "as much as there is room for");
                assert_eq!(
                    (&metadata["status"], &metadata["truncated"], metadata.get("data")),
                    (&json!(status), &json!(true), None)
                );
                assert!(metadata["bytes"].as_u64().unwrap() >= 5000, "{metadata}");
                assert!(shown.text().ends_with(" bytes, and an event may have 2000.]"), "{}", shown.text());
            }
        }
    }
}
