//! Sessions and turns, and what the AI SDK's own transport asks for.

use bowline_protocol::ErrorCode;
use bowline_protocol::ErrorCode::{
    AgentBusy, CursorAhead, IdempotencyConflict, RateLimited, ServerDraining, SessionExpired, SessionInactive,
    SessionNotFound, TaskExpired, TaskNotFound, TooManySessions, UnknownStep,
};
use serde_json::json;

use super::schemas::asked_cursor;
use super::{Access, ApiOperation};
use crate::http::chat::sessions::{Responded, SessionList, SessionMade, TurnCancelled};
use crate::http::chat::view::Session;

/// How a session that cannot be used says so.
pub const SESSION: [ErrorCode; 3] = [SessionNotFound, SessionExpired, SessionInactive];

fn sessions(method: &'static str, path: &'static str, id: &str, summary: &str) -> ApiOperation {
    ApiOperation::new(Access::Owner, method, path, id, summary, "sessions").header("ResumeToken")
}

fn session(method: &'static str, path: &'static str, id: &str, summary: &str) -> ApiOperation {
    sessions(method, path, id, summary).path("sid", "The session").refuses(&SESSION)
}

pub fn operations() -> Vec<ApiOperation> {
    let mut all = vec![
        sessions("get", "/api/chat/sessions", "listSessions", "Lists your own sessions, the newest activity first")
            .query("limit", "How many", &json!({ "type": "integer", "minimum": 1, "maximum": 100, "default": 20 }))
            .query(
                "offset",
                "How many to skip",
                &json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX, "default": 0 }),
            )
            .answers::<SessionList>(200, "Some of them, and how many there are"),
        sessions("post", "/api/chat/sessions", "createSession", "Makes a session")
            .takes("NewSession", false, &json!({ "agent": "demo" }))
            .answers::<SessionMade>(201, "It is made")
            .answer_header("Location", "Where it can be read.")
            .link("show", "getSession", "sid", "id")
            .link("end", "deleteSession", "sid", "id")
            .link("start", "startTurn", "sid", "id")
            .link("follow", "followTurn", "sid", "id")
            .link("cancel", "cancelTurn", "sid", "id")
            .link("operate", "startOperation", "sid", "id")
            .link("respond", "respond", "sid", "id")
            .refuses(&[TooManySessions, ServerDraining]),
        session("get", "/api/chat/sessions/{sid}", "getSession", "Shows a session: its history, and what is at work")
            .about("For a client that cannot stream: it always tells the state of things, also the final one.")
            .answers::<Session>(200, "The session"),
        session("delete", "/api/chat/sessions/{sid}", "deleteSession", "Ends a session and cancels its work")
            .answers_nothing(204, "It has ended"),
    ];
    all.extend(turns());
    all.extend(sdk());
    all
}

fn turns() -> [ApiOperation; 4] {
    [
        session("post", "/api/chat/sessions/{sid}/stream", "startTurn", "Sends a message and streams the answer")
            .about("The same `message_id` again, as when a proxy repeats a request, runs nothing: it streams the same turn.")
            .header("IdempotencyKey")
            .takes("Message", true, &json!({ "message": "/echo hello", "message_id": "m-1" }))
            .streams("The turn, from its start")
            .refuses(&[AgentBusy, IdempotencyConflict, TaskExpired, TaskNotFound, ServerDraining]),
        session("get", "/api/chat/sessions/{sid}/stream", "followTurn", "Streams the running turn, from its start or from a cursor on")
            .header("LastEventId")
            .query("last_message_id", "The cursor; the header wins. Absent or `0`: everything", &asked_cursor())
            .query("frame", super::tasks::FRAME, &super::tasks::flag())
            .query("fold", super::tasks::FOLD, &super::tasks::flag())
            .query("startIndex", super::tasks::START_INDEX, &super::tasks::index())
            .streams("The turn")
            .answer_header("X-Workflow-Stream-Tail-Index", "With `startIndex`: the number of the last chunk so far.")
            .answers_nothing(204, "Nothing runs")
            .refuses(&[TaskExpired, TaskNotFound, CursorAhead]),
        session("post", "/api/chat/sessions/{sid}/cancel", "cancelTurn", "Stops the running turn; without one, the operations at work in the background")
            .takes("Reason", false, &json!({ "reason": "no longer needed" }))
            .answers::<TurnCancelled>(200, "Whether anything was stopped"),
        session("post", "/api/chat/sessions/{sid}/respond", "respond", "Answers a question of the agent's")
            .takes("Response", true, &json!({ "step_id": "step_1", "confirmed": true }))
            .answers::<Responded>(200, "The answer is in the log, and the run goes on")
            .refuses(&[UnknownStep, AgentBusy, ServerDraining]),
    ]
}

fn sdk() -> [ApiOperation; 2] {
    let say = json!({ "role": "user", "id": "m-1", "parts": [{ "type": "text", "text": "/echo hello" }] });
    let example = json!({ "id": "chat-1", "trigger": "submit-message", "messages": [say] });
    [
        ApiOperation::new(Access::Owner, "post", "/api/chat", "submitChat", "Submits or regenerates a message of a chat", "ai-sdk")
            .about(
                "`id` is a name of the client's own choice; for each principal it stands for one session. The server's \
                 history wins: only the last message is new, and its id makes a repetition harmless. \
                 `regenerate-message` answers the last message anew.",
            )
            .header("ResumeToken")
            .header("IdempotencyKey")
            .takes("Submit", true, &example)
            .streams("The turn, from its start")
            .answer_header("Bowline-Session-Id", "The session that the chat is.")
            .answer_header("Bowline-Resume-Token", "What proves that the session is yours, where that is asked for and it is new.")
            .refuses(&SESSION)
            .refuses(&[AgentBusy, IdempotencyConflict, TooManySessions, TaskExpired, TaskNotFound, ServerDraining]),
        ApiOperation::new(Access::Owner, "get", "/api/chat/{id}/stream", "resumeChat", "Streams the running turn of a chat", "ai-sdk")
            .about("With the name of a task in place of a chat's it streams that task, for transports that come back to a run.")
            .path("id", "The chat, as the client calls it; or a task")
            .header("ResumeToken")
            .header("LastEventId")
            .query("last_message_id", "The cursor; the header wins", &asked_cursor())
            .query("frame", super::tasks::FRAME, &super::tasks::flag())
            .query("fold", super::tasks::FOLD, &super::tasks::flag())
            .query("startIndex", super::tasks::START_INDEX, &super::tasks::index())
            .streams("The turn")
            .answer_header("X-Workflow-Stream-Tail-Index", "With `startIndex`: the number of the last chunk so far.")
            .answers_nothing(204, "Nothing runs, or there is no such chat")
            .refuses(&[TaskExpired, CursorAhead, RateLimited]),
    ]
}
