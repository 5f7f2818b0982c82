//! The answer to a call that got none from its server: one honest outcome, in the form of its method. Which one it is, `core/backend` decides.

use bowline_core::backend::{BackendStatus, CallFailure, ResendPolicy};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::call::{CallEnd, CallReply};
use crate::catalogue::{Catalogue, ListKind};
use crate::fields::{Fields, Raw, raw};
use crate::message::{self, RpcResult};

/// The error code of an unknown outcome.
pub const OUTCOME_UNKNOWN: &str = "OUTCOME_UNKNOWN";

/// What became of a call. It is decided where the call ends and travels beside the answer, so that metrics, tasks and agents never
/// read it back out of JSON: a server may write there whatever it likes, our own words included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    Result,
    /// A result that says that the tool failed.
    ToolError,
    /// An error object instead of a result.
    Error,
    /// Without an answer of the server: it may or may not have run.
    Unknown,
    /// Without an answer of the server: it did not run.
    NotExecuted,
}

impl CallOutcome {
    pub const ALL: [CallOutcome; 5] = [
        CallOutcome::Result,
        CallOutcome::ToolError,
        CallOutcome::Error,
        CallOutcome::Unknown,
        CallOutcome::NotExecuted,
    ];

    /// Its place among [`ALL`](CallOutcome::ALL).
    pub const fn place(self) -> usize {
        self as usize
    }

    /// Its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            CallOutcome::Result => "result",
            CallOutcome::ToolError => "tool_error",
            CallOutcome::Error => "error",
            CallOutcome::Unknown => "unknown",
            CallOutcome::NotExecuted => "not_executed",
        }
    }

    /// That of a call without an answer.
    const fn of_failure(outcome: &CallFailure) -> CallOutcome {
        match outcome {
            CallFailure::Unknown { .. } => CallOutcome::Unknown,
            CallFailure::Unavailable { .. }
            | CallFailure::NotExecuted { .. }
            | CallFailure::Refused { .. }
            | CallFailure::Busy
            | CallFailure::Deadline => CallOutcome::NotExecuted,
        }
    }

    /// Whether the answer was made here because the server gave none.
    pub const fn is_unanswered(self) -> bool {
        matches!(self, CallOutcome::Unknown | CallOutcome::NotExecuted)
    }
}

/// What a result says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultKind {
    /// What was asked for, or something that is not known here.
    Other,
    /// The server asks for input, and the call is made again with it.
    Question,
    /// A task of the Tasks extension.
    Task,
}

/// What an answer from a server is. Its shape alone says whether it is a result, which is read once for all that it says of itself;
/// everything else in it stays unread.
pub fn of_answer(answer: &RpcResult) -> (CallOutcome, ResultKind) {
    #[derive(Default, Deserialize)]
    struct Marked<'a> {
        #[serde(default, borrow, rename = "isError")]
        is_error: Option<&'a RawValue>,
        #[serde(default, borrow, rename = "resultType")]
        result_type: Option<&'a RawValue>,
    }
    let Ok(result) = answer else { return (CallOutcome::Error, ResultKind::Other) };
    let marked: Marked<'_> = serde_json::from_str(result.get()).unwrap_or_default();
    let is_error = marked.is_error.is_some_and(|raw| raw.get() == "true");
    let kind = marked.result_type.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
    let kind = match kind.as_deref() {
        Some("input_required") => ResultKind::Question,
        Some("task") => ResultKind::Task,
        _ => ResultKind::Other,
    };
    (if is_error { CallOutcome::ToolError } else { CallOutcome::Result }, kind)
}

/// The facts of an outcome, as `isError` results and errors carry them.
pub fn facts(server: &str, outcome: &CallFailure) -> Value {
    match outcome {
        CallFailure::Unavailable { status, attempt, next_retry, last_error } => json!({
            "error": sentence(server, *status),
            "code": "SERVER_UNAVAILABLE",
            "outcome": "not_executed",
            "server": server,
            "status": status.as_str(),
            "lastAttempt": attempt,
            "nextRetryMs": next_retry.map(|wait| wait.as_millis() as u64),
            "lastError": last_error,
        }),
        CallFailure::Unknown { reason } => json!({
            "error": format!("{server} took the call and did not answer it. It may or may not have run; it was not sent again."),
            "code": OUTCOME_UNKNOWN, "outcome": "unknown", "server": server, "lastError": reason,
        }),
        CallFailure::NotExecuted { reason } => {
            not_executed(server, &format!("{server} refused the call each time. It did not run."), reason)
        }
        CallFailure::Refused { reason, retry_after: None } => {
            not_executed(server, &format!("{server} refused the call: {reason}. It did not run."), reason)
        }
        CallFailure::Refused { reason, retry_after: Some(wait) } => {
            let seconds = wait.as_secs_f64().ceil();
            let again = format!("It did not run, and may be called again after {seconds} s.");
            let mut facts = not_executed(server, &format!("{server} refused the call: {reason}. {again}"), reason);
            facts["retryAfterMs"] = (wait.as_millis() as u64).into();
            facts
        }
        CallFailure::Busy => json!({
            "error": format!("Too many calls wait for {server} already. This one did not run."),
            "code": "BUSY", "outcome": "not_executed", "server": server,
        }),
        CallFailure::Deadline => json!({
            "error": format!("{server} was away for longer than the call may wait. It did not run."),
            "code": "DEADLINE", "outcome": "not_executed", "server": server,
        }),
    }
}

fn not_executed(server: &str, error: &str, reason: &str) -> Value {
    json!({
        "error": error, "code": "NOT_EXECUTED", "outcome": "not_executed", "server": server, "lastError": reason,
    })
}

fn sentence(server: &str, status: BackendStatus) -> String {
    match status {
        BackendStatus::Disconnected => format!("{server} is disconnected. The call did not run."),
        BackendStatus::Error => format!("{server} cannot work as it is configured. The call did not run."),
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

/// The ending of a call as the reply to its method.
pub fn reply(server: &str, method: &str, end: CallEnd) -> CallReply {
    match end {
        CallEnd::Answered { answer, status } => CallReply::with_status(answer, status),
        CallEnd::Failed(outcome) => unanswered(method, CallOutcome::of_failure(&outcome), &facts(server, &outcome)),
    }
}

fn unanswered(method: &str, outcome: CallOutcome, facts: &Value) -> CallReply {
    CallReply { outcome, ..CallReply::new(answer(method, facts)) }
}

fn answer(method: &str, facts: &Value) -> RpcResult {
    if method == "tools/call" {
        return Ok(tool_error(facts));
    }
    let text = facts["error"].as_str().unwrap_or("The call has no answer.");
    Err(message::error_with(message::INTERNAL_ERROR, text, facts))
}

/// The hub itself was restarted while a call was under way.
pub fn cut_by_restart(method: &str) -> CallReply {
    let facts = json!({
        "error": "The hub was restarted while the call was under way. It may or may not have run; it was not sent again.",
        "code": OUTCOME_UNKNOWN, "outcome": "unknown",
    });
    unanswered(method, CallOutcome::Unknown, &facts)
}

/// A call that waited for input waits no longer: its time was over, or the hub was restarted.
pub fn not_waiting(method: &str) -> CallReply {
    let facts = json!({
        "error": "The call does not wait for this any more. It may or may not have run; it was not sent again.",
        "code": OUTCOME_UNKNOWN, "outcome": "unknown",
    });
    unanswered(method, CallOutcome::Unknown, &facts)
}

/// A backend has lost the task that it made of a call, or we have lost the backend.
pub fn task_lost(server: &str, why: &str) -> CallReply {
    let facts = json!({
        "error": format!("{server} does not tell what became of its task. It may or may not have run."),
        "code": OUTCOME_UNKNOWN, "outcome": "unknown", "server": server, "lastError": why,
    });
    unanswered("tools/call", CallOutcome::Unknown, &facts)
}

/// The call was answered, and the store cannot hold the answer.
pub fn too_large_to_keep() -> Raw {
    tool_error(&json!({
        "error": "The call ran and was answered, but its result is too large to be kept.",
        "code": "RESULT_TOO_LARGE", "outcome": "executed",
    }))
}

/// The same as the answer to any method.
pub fn too_large_for(method: &str) -> RpcResult {
    if method == "tools/call" {
        return Ok(too_large_to_keep());
    }
    Err(message::error(message::INTERNAL_ERROR, "the answer is too large to be kept"))
}

/// Whether a call may be sent again when it may have run: reading never hurts; a tool must say so, and the operator too.
pub fn resend(method: &str, params: Option<&RawValue>, catalogue: &Catalogue, allow: bool) -> ResendPolicy {
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
        let name = Fields::of(params).text("name").unwrap_or_default();
        let tool = catalogue.find(ListKind::Tools, &name).map(|tool| Fields::of(Some(tool)));
        let annotations = tool.map(|tool| tool.object("annotations")).unwrap_or_default();
        ["readOnlyHint", "idempotentHint"].iter().any(|hint| annotations.read(hint) == Some(true))
    };
    let safe = reads || (allow && method == "tools/call" && safe_tool());
    if safe { ResendPolicy::Always } else { ResendPolicy::IfNotExecuted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_of_a_call_without_an_answer_is_that_of_its_ending_whatever_its_method() {
        let [gone, busy] = [CallFailure::Unknown { reason: "cut".into() }, CallFailure::Busy];
        let refused = CallFailure::Refused { reason: "HTTP 429".into(), retry_after: None };
        for method in ["tools/call", "resources/read"] {
            let of = |outcome: &CallFailure| reply("b", method, CallEnd::Failed(outcome.clone())).outcome;
            assert_eq!(of(&gone), CallOutcome::Unknown, "{method}");
            assert_eq!((of(&busy), of(&refused)), (CallOutcome::NotExecuted, CallOutcome::NotExecuted), "{method}");
        }
    }

    #[test]
    fn an_answer_in_our_own_words_is_still_the_servers_answer() {
        for (code, word) in [(OUTCOME_UNKNOWN, "unknown"), ("NOT_EXECUTED", "not_executed")] {
            let facts = json!({ "error": "x", "code": code, "outcome": word, "server": "b" });
            let of = |answer: RpcResult| reply("b", "tools/call", CallEnd::Answered { answer, status: 200 }).outcome;
            assert_eq!(of(Ok(tool_error(&facts))), CallOutcome::ToolError);
            assert_eq!(of(Ok(in_both_ways(&raw(&facts)).to_raw())), CallOutcome::Result);
            assert_eq!(of(Err(message::error_with(-1, "no", &facts))), CallOutcome::Error);
        }
    }

    #[test]
    fn a_refusal_says_when_to_ask_again_if_the_server_did() {
        let facts_of = |retry_after| facts("b", &CallFailure::Refused { reason: "HTTP 429".into(), retry_after });
        let told = facts_of(Some(std::time::Duration::from_secs(7)));
        assert_eq!(
            (&told["code"], &told["server"], &told["retryAfterMs"]),
            (&json!("NOT_EXECUTED"), &json!("b"), &json!(7000))
        );
        assert_eq!(facts_of(None).get("retryAfterMs"), None);
    }
}
