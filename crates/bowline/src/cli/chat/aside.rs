//! What happens beside the answer, as one short line each: thinking, tools, plans and their solvers.

use bowline_client::ServerFrame;
use bowline_protocol::event::names;
use serde_json::Value;

use crate::cli::out::short;

const CHARS_MAX: usize = 160;

/// The line for an event that is no answer; `None` for those that say nothing new to a person.
pub fn line(event: &ServerFrame) -> Option<String> {
    let content = &event.content;
    let task = || title(&content["task"]);
    let line = match event.event.as_str() {
        names::THINKING => event.text().to_owned(),
        names::TOOL_CALL => format!("tool {}: {}", event.word("tool").unwrap_or("?"), event.text()),
        names::TOOL_RESULT => format!("tool {}: {}", event.word("tool").unwrap_or("?"), outcome(event)),
        names::PLAN_START => format!("planning: {}", word(&content["question"])),
        names::PLAN_COMPLETED => plan(content),
        names::PLAN_CANCELLED => format!("the plan was cancelled: {}", word(&content["reason"])),
        names::PLAN_COERCION_ERROR => format!("the plan could not be read: {}", word(&content["message"])),
        names::SOLVER_START => format!("started {}", task()),
        names::SOLVER_PROGRESS => {
            format!("{} is at {} %", word(&content["task_id"]), word(&content["progress_percent"]))
        }
        names::SOLVER_COMPLETED => format!("solved {}: {}", task(), word(&content["result"]["summary"])),
        names::SOLVER_STEP_FAILED => format!("failed {}: {}", task(), word(&content["error"])),
        names::SOLVER_CANCELLED => format!("cancelled {}", task()),
        names::SOLVER_RESTARTED => format!("restarted {}", task()),
        names::AGGREGATE_START => "putting the results together".to_owned(),
        names::AGGREGATE_COMPLETED | names::PIPELINE_COMPLETED => return None,
        names::OPERATION_STARTED => format!("operation {} started", word(&content["operation_id"])),
        names::OPERATION_COMPLETED => {
            format!("operation {} {}", word(&content["operation_id"]), word(&content["status"]))
        }
        other => format!("{other} {}", word(content)),
    };
    Some(short(line.trim_end().trim_end_matches(':'), CHARS_MAX))
}

fn outcome(event: &ServerFrame) -> String {
    let status = event.word("status").unwrap_or("done");
    let took = event.number("duration_ms").map(|ms| format!(" in {ms} ms")).unwrap_or_default();
    let error = event.word("error").map(|error| format!(" ({error})")).unwrap_or_default();
    format!("{status}{took}{error}")
}

fn plan(content: &Value) -> String {
    let tasks = content["tasks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let titles: Vec<String> = tasks.iter().map(title).collect();
    format!("plan of {}: {}", tasks.len(), titles.join(" · "))
}

fn title(task: &Value) -> String {
    let named = ["title", "id"].iter().find_map(|key| task.get(*key).filter(|value| !value.is_null()));
    named.map_or_else(|| word(task), word)
}

fn word(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_kind_of_event_has_its_line_and_unknown_ones_pass() {
        let line_of = |event: &str, content: Value, metadata: Value| {
            line(
                &ServerFrame::parse(
                    &json!({ "event": event, "seq": 1, "content": content, "metadata": metadata }).to_string(),
                )
                .unwrap(),
            )
        };
        let cases = [
            (names::THINKING, json!("hm"), json!({}), Some("hm")),
            (
                names::TOOL_RESULT,
                json!("x"),
                json!({ "tool": "web", "status": "failed", "duration_ms": 5, "error": "no" }),
                Some("tool web: failed in 5 ms (no)"),
            ),
            (
                names::PLAN_COMPLETED,
                json!({ "tasks": [{ "id": "1", "title": "a" }, { "id": "2" }] }),
                json!({}),
                Some("plan of 2: a · 2"),
            ),
            (names::SOLVER_START, json!({ "task": { "title": "a" } }), json!({}), Some("started a")),
            (names::SOLVER_COMPLETED, json!({ "task": "t1" }), json!({}), Some("solved t1")),
            (names::PIPELINE_COMPLETED, json!({}), json!({}), None),
            ("agent.mood", json!({ "m": 1 }), json!({}), Some("agent.mood {\"m\":1}")),
        ];
        for (event, content, metadata, wanted) in cases {
            assert_eq!(line_of(event, content, metadata).as_deref(), wanted, "{event}");
        }
    }
}
