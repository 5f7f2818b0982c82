//! The part of a kept message that says that an operation goes on in the background: what it announces, and how its end is shown in it.

use serde_json::{Map, Value};

/// A part of a message, a call whose output is that an operation was started.
pub struct AnnouncedOperation<'a>(&'a mut Map<String, Value>);

impl<'a> AnnouncedOperation<'a> {
    /// None for a part that announces nothing.
    pub fn of(part: &'a mut Value) -> Option<AnnouncedOperation<'a>> {
        let part = AnnouncedOperation(part.as_object_mut()?);
        let is_call = part.0.contains_key("toolCallId");
        (is_call && part.0.get("output")?["type"] == "operation_started" && part.task().is_some()).then_some(part)
    }

    /// The task that the operation is.
    pub fn task(&self) -> Option<&str> {
        self.started()["task_id"].as_str()
    }

    /// What was announced when the operation was started.
    pub fn started(&self) -> &Value {
        self.0.get("output").unwrap_or(&Value::Null)
    }

    /// The call has this output in the end.
    pub fn complete(self, output: Value) {
        self.0.insert("output".into(), output);
    }

    /// The call failed in the end.
    pub fn fail(self, why: String) {
        self.0.insert("state".into(), "output-error".into());
        self.0.insert("errorText".into(), why.into());
        self.0.remove("output");
    }
}

/// It holds what an agent wrote.
impl std::fmt::Debug for AnnouncedOperation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AnnouncedOperation({})", self.task().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_call_that_says_which_operation_it_started_announces_one() {
        let started = json!({ "type": "operation_started", "task_id": "t1" });
        let mut part = json!({ "toolCallId": "c1", "state": "output-available", "output": started });
        AnnouncedOperation::of(&mut part).unwrap().complete(json!(7));
        assert_eq!(part, json!({ "toolCallId": "c1", "state": "output-available", "output": 7 }));
        assert!(AnnouncedOperation::of(&mut part).is_none(), "its end is shown already");
        for mut other in [
            json!("text"),
            json!({ "type": "text", "text": "operation_started" }),
            json!({ "output": started }),
            json!({ "toolCallId": "c1", "output": { "type": "operation_started" } }),
        ] {
            assert!(AnnouncedOperation::of(&mut other).is_none(), "{other}");
        }
    }

    #[test]
    fn one_that_failed_has_no_output_any_more() {
        let started = json!({ "type": "operation_started", "task_id": "t1" });
        let mut part = json!({ "toolCallId": "c1", "state": "output-available", "output": started });
        AnnouncedOperation::of(&mut part).unwrap().fail("It broke.".into());
        assert_eq!(part, json!({ "toolCallId": "c1", "state": "output-error", "errorText": "It broke." }));
    }
}
