//! What a client is told about a call that has no answer: one honest outcome, in the words of its method.

use bowline_core::backend::{Outcome, Resend, Status};
use serde_json::{Value, json};

use crate::backend::CallEnd;
use crate::catalogue::{Catalogue, ListKind};
use crate::drive::conversation::Reply;
use crate::fields::{Fields, Raw, raw};
use crate::message::{self, Answer};

/// The code under which an unknown outcome is told.
pub const OUTCOME_UNKNOWN: &str = "OUTCOME_UNKNOWN";

/// The facts of an outcome, as `isError` results and errors carry them.
pub fn facts(server: &str, outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Unavailable { status, attempt, next_retry, last_error } => json!({
            "error": sentence(server, *status),
            "code": "SERVER_UNAVAILABLE",
            "outcome": "not_executed",
            "server": server,
            "status": status.as_str(),
            "lastAttempt": attempt,
            "nextRetryMs": next_retry.map(|wait| wait.as_millis() as u64),
            "lastError": last_error,
        }),
        Outcome::Unknown { reason } => json!({
            "error": format!("{server} took the call and did not answer it. It may or may not have run; it was not sent again."),
            "code": OUTCOME_UNKNOWN, "outcome": "unknown", "server": server, "lastError": reason,
        }),
        Outcome::NotExecuted { reason } => json!({
            "error": format!("{server} refused the call each time. It did not run."),
            "code": "NOT_EXECUTED", "outcome": "not_executed", "server": server, "lastError": reason,
        }),
        Outcome::Busy => json!({
            "error": format!("Too many calls wait for {server} already. This one did not run."),
            "code": "BUSY", "outcome": "not_executed", "server": server,
        }),
        Outcome::Deadline => json!({
            "error": format!("{server} was away for longer than the call may wait. It did not run."),
            "code": "DEADLINE", "outcome": "not_executed", "server": server,
        }),
    }
}

fn sentence(server: &str, status: Status) -> String {
    match status {
        Status::Disconnected => format!("{server} is disconnected. The call did not run."),
        Status::Error => format!("{server} cannot work as it is configured. The call did not run."),
        _ => format!("{server} is away and is being reconnected. The call did not run."),
    }
}

/// A tool's result that says what went wrong.
pub fn tool_error(facts: &Value) -> Raw {
    tool_error_as(&raw(facts))
}

/// The same for facts that stay as they were written.
pub fn tool_error_as(facts: &Raw) -> Raw {
    let mut result = in_both_ways(facts);
    result.put("isError", &true);
    result.to_raw()
}

/// Facts as a tool's result: text for models, and the same for programs as it is.
pub fn in_both_ways(facts: &Raw) -> Fields {
    let mut result = Fields::default();
    result.put("content", &[json!({ "type": "text", "text": facts.get() })]);
    result.set("structuredContent", facts.clone());
    result
}

/// Our own facts about a call that its server did not answer.
pub fn unanswered(answer: &Answer) -> Option<Raw> {
    let facts = match answer {
        Ok(result) => Fields::of(Some(result)).get("structuredContent")?.to_owned(),
        Err(error) => Fields::of(Some(error)).get("data")?.to_owned(),
    };
    let fields = Fields::of(Some(&facts));
    let ours = fields.text("outcome").is_some_and(|word| word == "unknown" || word == "not_executed");
    (ours && fields.has("server")).then_some(facts)
}

/// Whether the wire broke under the call.
pub fn is_cut(answer: &Answer) -> bool {
    unanswered(answer).is_some_and(|facts| Fields::of(Some(&facts)).text("code").as_deref() == Some(OUTCOME_UNKNOWN))
}

/// The ending of a call as the answer to its method.
pub fn reply(server: &str, method: &str, end: CallEnd) -> Reply {
    match end {
        CallEnd::Answered { answer, status } => Reply::with_status(answer, status),
        CallEnd::Failed(outcome) => Reply::new(answer(method, &facts(server, &outcome))),
    }
}

fn answer(method: &str, facts: &Value) -> Answer {
    if method == "tools/call" {
        return Ok(tool_error(facts));
    }
    let text = facts["error"].as_str().unwrap_or("The call has no answer.");
    Err(message::error_with(message::INTERNAL_ERROR, text, facts))
}

/// The hub itself was restarted while a call was under way.
pub fn cut_by_restart(method: &str) -> Answer {
    let facts = json!({
        "error": "The hub was restarted while the call was under way. It may or may not have run; it was not sent again.",
        "code": OUTCOME_UNKNOWN, "outcome": "unknown",
    });
    answer(method, &facts)
}

/// A call that waited for input waits no longer: its time was over, or the hub was restarted.
pub fn not_waiting(method: &str) -> Answer {
    let facts = json!({
        "error": "The call does not wait for this any more. It may or may not have run; it was not sent again.",
        "code": OUTCOME_UNKNOWN, "outcome": "unknown",
    });
    answer(method, &facts)
}

/// A backend has lost the task that it made of a call, or we have lost the backend.
pub fn task_lost(server: &str, why: &str) -> Raw {
    tool_error(&json!({
        "error": format!("{server} does not tell what became of its task. It may or may not have run."),
        "code": OUTCOME_UNKNOWN, "outcome": "unknown", "server": server, "lastError": why,
    }))
}

/// The call was answered, and the store cannot hold the answer.
pub fn too_large_to_keep() -> Raw {
    tool_error(&json!({
        "error": "The call ran and was answered, but its result is too large to be kept.",
        "code": "RESULT_TOO_LARGE", "outcome": "executed",
    }))
}

/// The same as the answer to any method.
pub fn too_large_for(method: &str) -> Answer {
    if method == "tools/call" {
        return Ok(too_large_to_keep());
    }
    Err(message::error(message::INTERNAL_ERROR, "the answer is too large to be kept"))
}

/// Whether a call may be sent again when it may have run: reading never hurts; a tool must say so, and the operator too.
pub fn resend(method: &str, params: Option<&Raw>, catalogue: &Catalogue, allow: bool) -> Resend {
    let reads = matches!(
        method,
        "tools/list"
            | "resources/list"
            | "resources/templates/list"
            | "prompts/list"
            | "resources/read"
            | "prompts/get"
            | "completion/complete"
            | "server/discover"
            | "tasks/get"
    );
    let safe_tool = || {
        let name = Fields::of(params.map(|raw| &**raw)).text("name").unwrap_or_default();
        let tool = catalogue.find(ListKind::Tools, &name).map(|tool| Fields::of(Some(tool)));
        let annotations = tool.map(|tool| tool.object("annotations")).unwrap_or_default();
        ["readOnlyHint", "idempotentHint"].iter().any(|hint| annotations.read(hint) == Some(true))
    };
    let safe = reads || (allow && method == "tools/call" && safe_tool());
    if safe { Resend::Always } else { Resend::IfNotExecuted }
}
