//! `/api/admin/tasks`: all tasks with a log of their own, and the logs of tasks and turns.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use bowline_env::clock;
use bowline_protocol::{LogId, OperationId, Principal, Seq, SessionId, TaskId};
use bowline_store::LogKind;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::chat::read::Name;
use super::super::follow::{FollowedLog, follow};
use super::super::problem::Problem;
use super::super::sorted::Sorted;
use super::sessions::find;
use super::{Admin, Beginning, Page, QueryResult, bad_query};
use crate::logs::Logs;
use crate::refusals;
use crate::schema;
use crate::session::record::keys;
use crate::session::turns::TurnEntry;
use crate::session::{Life, SessionRecord};
use crate::stream::reader::ReaderContext;
use crate::task::TaskRecord;
use crate::task::status::Status;

/// A task of any owner with a log of its own.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AnyTask {
    #[schemars(with = "String")]
    task_id: LogId,
    #[schemars(with = "String")]
    owner: Principal,
    #[schemars(with = "Option<u64>")]
    last_seq: Option<Seq>,
    #[serde(flatten)]
    record: Option<TaskRecordView>,
    /// Why its record cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    unreadable: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct TaskRecordView {
    #[schemars(with = "Option<String>")]
    session_id: Option<SessionId>,
    #[schemars(with = "String")]
    operation_id: OperationId,
    tool_name: Option<String>,
    status: Status,
    /// Its stream is gone, and only how it ended is known.
    released: bool,
    #[schemars(schema_with = "schema::time")]
    created_at: String,
    #[schemars(schema_with = "schema::time_or_null")]
    finished_at: Option<String>,
}

/// Some of all tasks, and how many there are.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AllTasks {
    tasks: Vec<AnyTask>,
    total: usize,
}

/// All tasks with a log of their own, the newest first.
pub async fn list(
    _: Admin,
    State(logs): State<Arc<Logs>>,
    page: QueryResult<Page>,
) -> Result<Sorted<AllTasks>, Problem> {
    let page = page.map_err(|rejection| bad_query(&rejection))?.0;
    let (listed, total) = page.read(&logs, LogKind::Task).await?;
    let mut tasks = Vec::new();
    for (log, stored) in listed {
        let last_seq = logs.store.extent(&log).await.ok().map(|extent| extent.last());
        let (record, unreadable) = match TaskRecord::decode(&stored.body) {
            Ok(record) => (Some(record.into()), None),
            Err(why) => (None, Some(why)),
        };
        tasks.push(AnyTask { task_id: log, owner: stored.owner, last_seq, record, unreadable });
    }
    Ok(Sorted(AllTasks { tasks, total }))
}

impl From<TaskRecord> for TaskRecordView {
    fn from(record: TaskRecord) -> TaskRecordView {
        TaskRecordView {
            session_id: record.session,
            operation_id: record.operation_id,
            tool_name: record.tool_name,
            status: record.status,
            released: record.released,
            created_at: clock::rfc3339(record.created_ms),
            finished_at: record.finished_ms.map(clock::rfc3339),
        }
    }
}

/// The log of one task, live; of a turn, that of its session from the turn's beginning.
pub async fn events(
    _: Admin,
    State(readers): State<Arc<ReaderContext>>,
    Name(id): Name,
    asked: QueryResult<Beginning>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Beginning { from } = asked.map_err(|rejection| bad_query(&rejection))?.0;
    let task = TaskId::parse(&id).ok_or_else(refusals::task_not_found)?;
    if let Some((log, started)) = task.turn() {
        let (log, record) = find(&readers.logs, log.as_str()).await?;
        let over = SessionRecord::decode(&record.body).is_ok_and(|record| record.life != Life::Active);
        let from = from.or_else(|| Some(started.prev().to_string()));
        let entry =
            readers.logs.store.item(&log, &keys::turn(started)).await.map_err(|error| refusals::of_task(&error))?;
        let entry: Option<TurnEntry> = entry.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let ended = entry.and_then(|entry| entry.ended).map(|ended| ended.seq);
        return follow(readers, log, FollowedLog::Turn { ended, over }, from, &headers).await;
    }
    let log = LogId::from(&task);
    let record = readers.logs.store.record(&log).await.map_err(|error| refusals::of_task(&error))?;
    let record = record.filter(|record| record.kind == LogKind::Task).ok_or_else(refusals::task_not_found)?;
    let over = TaskRecord::decode(&record.body).is_ok_and(|record| !record.is_running());
    follow(readers, log, FollowedLog::Task { over }, from, &headers).await
}
