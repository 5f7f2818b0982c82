//! Tasks, background operations, and the producers that do work outside.

use bowline_protocol::ErrorCode::{
    CursorAhead, IdempotencyConflict, NotSupported, RateLimited, ServerDraining, TaskEnded, TaskExpired, TaskNotFound,
};
use serde_json::{Value, json};

use super::chat::SESSION;
use super::schemas::asked_cursor;
use super::{Access, ApiOperation, named};
use crate::http::chat::producers::{ChunksAppended, TaskFinished, TaskMade};
use crate::http::chat::tasks::{TaskCancelled, Ttl};
use crate::stream::TaskResource;
use crate::task::OperationStarted;

pub const FRAME: &str = "For a fresh parser with a cursor: what is open at that point is opened first.";
pub const FOLD: &str = "Neighbouring deltas of one part are merged on replay. On for a fresh parser unless it says 0.";
pub const START_INDEX: &str =
    "From the chunk with this number on, in place of a cursor; a negative one counts from the end.";

pub fn flag() -> Value {
    json!({ "type": "string", "enum": ["1", "0", "true", "false", ""] })
}

pub fn index() -> Value {
    json!({ "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX })
}

fn task(method: &'static str, path: &'static str, id: &str, summary: &str, tag: &'static str) -> ApiOperation {
    ApiOperation::new(Access::Owner, method, path, id, summary, tag)
        .path("tid", "The task")
        .header("ResumeToken")
        .refuses(&[TaskNotFound, TaskExpired])
}

pub fn operations() -> Vec<ApiOperation> {
    let mut all = vec![
        task("get", "/api/chat/tasks/{tid}", "getTask", "Tells how a task stands", "tasks")
            .about("For as long as its session lives, also when its stream has expired.")
            .answers::<TaskResource>(200, "The task"),
        task(
            "get",
            "/api/chat/tasks/{tid}/stream",
            "streamTask",
            "Streams a task: what follows the cursor, then live",
            "tasks",
        )
        .header("LastEventId")
        .query("last_message_id", "The cursor; the header wins. Absent or `0`: everything", &asked_cursor())
        .query("frame", FRAME, &flag())
        .query("fold", FOLD, &flag())
        .query("startIndex", START_INDEX, &index())
        .streams("What follows the cursor")
        .answer_header("X-Workflow-Stream-Tail-Index", "With `startIndex`: the number of the last chunk so far.")
        .answers_nothing(204, "The task has ended and the cursor is at its end")
        .refuses(&[CursorAhead]),
        task("post", "/api/chat/tasks/{tid}/cancel", "cancelTask", "Stops a task", "tasks")
            .about("One that has ended is answered as it is.")
            .takes("Reason", false, &json!({ "reason": "no longer needed" }))
            .answers::<TaskCancelled>(200, "Whether it was stopped, and how it stands")
            .refuses(&SESSION),
        ApiOperation::new(
            Access::Owner,
            "get",
            "/api/chat/config/ttl",
            "getTtl",
            "Tells how long the stream of a task can be read after its end",
            "tasks",
        )
        .answers::<Ttl>(200, "The setting `stream.ttl`"),
    ];
    all.extend(work());
    all.extend(producers());
    all
}

fn work() -> [ApiOperation; 2] {
    let operation =
        json!({ "tool_name": "demo", "arguments": { "steps": 3, "delay_ms": 10 }, "tool_call_id": "call-1" });
    [
        ApiOperation::new(
            Access::Owner,
            "post",
            "/api/chat/sessions/{sid}/operations",
            "startOperation",
            "Starts work in the background",
            "tasks",
        )
        .about("Answers at once. The same `tool_call_id` or `Idempotency-Key` twice is one operation.")
        .path("sid", "The session")
        .header("ResumeToken")
        .header("IdempotencyKey")
        .takes("NewOperation", true, &operation)
        .answers::<OperationStarted>(202, "It is at work")
        .link("task", "getTask", "tid", "task_id")
        .link("stream", "streamTask", "tid", "task_id")
        .link("cancel", "cancelTask", "tid", "task_id")
        .refuses(&SESSION)
        .refuses(&[IdempotencyConflict, RateLimited, ServerDraining]),
        ApiOperation::new(
            Access::Owner,
            "post",
            "/api/chat/operations/{oid}/complete",
            "completeOperation",
            "Ends an operation: completion by webhook",
            "producers",
        )
        .path("oid", "The operation")
        .header("ResumeToken")
        .takes("OperationEnd", true, &json!({ "success": true, "result": { "rows": 3 } }))
        .answers::<TaskFinished>(200, "How it stands")
        .refuses(&[TaskNotFound, TaskExpired, TaskEnded]),
    ]
}

fn producers() -> [ApiOperation; 3] {
    let chunk = |delta: Value| json!({ "type": "data-progress", "data": delta });
    let chunks = json!({
        "application/json": { "schema": named("Chunks"), "example": [chunk(json!({ "percent": 50 }))] },
        "application/x-ndjson": {
            "schema": { "type": "string", "description": "One chunk per line." },
            "example": format!("{}\n{}\n", chunk(json!({ "percent": 50 })), chunk(json!({ "percent": 100 }))),
        },
    });
    [
        ApiOperation::new(Access::Owner, "post", "/api/chat/tasks", "createTask", "Makes a task for a producer", "producers")
            .about(
                "The same `operation_id` or `Idempotency-Key` twice is one task. A restart of the server does not end it. With \
                 `session.ownership = \"token\"`, a task without a session has a `resume_token` of its own, which everything \
                 else about it needs; a secret of 32 characters or more in `Bowline-Resume-Token` takes the place of that.",
            )
            .header("ResumeToken")
            .header("IdempotencyKey")
            .takes("NewTask", false, &json!({ "tool_name": "import" }))
            .answers::<TaskMade>(201, "It is made")
            .link("show", "getTask", "tid", "task_id")
            .link("stream", "streamTask", "tid", "task_id")
            .link("append", "appendChunks", "tid", "task_id")
            .link("complete", "completeTask", "tid", "task_id")
            .link("cancel", "cancelTask", "tid", "task_id")
            .link("webhook", "completeOperation", "oid", "operation_id")
            .refuses(&SESSION)
            .refuses(&[IdempotencyConflict, RateLimited, TaskNotFound, TaskExpired, ServerDraining]),
        task("post", "/api/chat/tasks/{tid}/messages", "appendChunks", "Appends chunks to a task", "producers")
            .about(
                "Answers once the chunks are durable. With `Producer-Id` and `Producer-Seq` (from 0, growing by 1) a \
                 repetition is answered as the first time; a number that leaves a hole is refused with `CURSOR_AHEAD`. A \
                 `finish`, `abort` or `error` chunk ends the task.",
            )
            .header("ProducerId")
            .header("ProducerSeq")
            .takes_content(chunks, true)
            .answers::<ChunksAppended>(200, "They are durable")
            .refuses(&[TaskEnded, CursorAhead, IdempotencyConflict, NotSupported, ServerDraining]),
        task("post", "/api/chat/tasks/{tid}/complete", "completeTask", "Ends a task", "producers")
            .about("Ending it twice in the same way is harmless. Another result than the first is refused.")
            .takes("TaskEnd", false, &json!({ "result": "done" }))
            .answers::<TaskFinished>(200, "How it stands")
            .refuses(&[TaskEnded, NotSupported]),
    ]
}
