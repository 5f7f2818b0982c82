//! Tools that tell what happened: every event once, in order, after a cursor.

use std::sync::Arc;
use std::time::Duration;

use bowline_protocol::Seq;
use bowline_store::{ReadLimit, StoreError, WakeSet};
use serde_json::{Value, json};

use super::{Call, Outcome};
use crate::front::Logged;
use crate::session::{ACTIVITY, Session};

/// Events in one answer; the cursor leads to the rest.
const EVENTS_MAX: usize = 200;
const READ: ReadLimit = ReadLimit { events: 512, bytes: 1 << 20 };

pub(crate) async fn wait(call: &Call<'_>) -> Result<Outcome, String> {
    let timeout: u64 = call.arguments.read("timeout_ms").ok_or("`timeout_ms` is missing or not a number")?;
    if !(100..=900_000).contains(&timeout) {
        return Err("`timeout_ms` must be from 100 to 900000".into());
    }
    let session = call.session().await?;
    let after = cursor(call, &session)?;
    let wake = WakeSet::new();
    let _guard = session.store().tail(&session.id, &wake, 0);
    let deadline = tokio::time::Instant::now() + Duration::from_millis(timeout);
    let mut after = after;
    let (events, triggered_by) = loop {
        let (events, next) = read(&session, after, |_| true).await.map_err(|error| error.to_string())?;
        after = next;
        if !events.is_empty() {
            break (events, "event");
        }
        match tokio::time::timeout_at(deadline, wake.woken()).await {
            Ok(()) => drop(wake.take()),
            Err(_) => break (Vec::new(), "timeout"),
        }
    };
    let working = call.hub.tasks.working(&call.client.principal).await.map_err(|error| error.to_string())?;
    Ok(Outcome::Facts(json!({
        "triggered_by": triggered_by,
        "events": events,
        "pending_server": session.pending(None),
        "pending_client": working,
        "last_event_id": session.event_id(after),
        "handle": session.id,
    })))
}

pub(crate) async fn past(call: &Call<'_>, name: &str) -> Result<Outcome, String> {
    let Some(session) = call.known_session().await? else {
        return Ok(Outcome::Facts(json!({ "events": [], "last_event_id": null })));
    };
    let after = cursor(call, &session)?;
    let (server, level) = (call.arguments.text("server"), call.arguments.text("level"));
    let logs = name == "get_logs";
    let wanted = |event: &Value| {
        let is_log = event["type"] == "log" || event["data"]["method"] == "notifications/message";
        let level_fits = level.as_deref().is_none_or(|level| event["data"]["params"]["level"] == level);
        let server_fits = server.as_deref().is_none_or(|server| event["server"] == server);
        let kind_fits = if logs { is_log && level_fits } else { event["type"] == "notification" && !is_log };
        kind_fits && server_fits
    };
    let (events, next) = read(&session, after, wanted).await.map_err(|error| error.to_string())?;
    let member = if logs { "logs" } else { "notifications" };
    Ok(Outcome::Facts(json!({ member: events, "last_event_id": session.event_id(next) })))
}

fn cursor(call: &Call<'_>, session: &Session) -> Result<Seq, String> {
    match call.arguments.text("last_event_id") {
        None => Ok(Seq::ZERO),
        Some(text) => session.position(&text).ok_or_else(|| "`last_event_id` is none of this session's".to_owned()),
    }
}

/// The events after a position, and the position after them. Nothing is skipped: what is not an event is passed over.
async fn read(
    session: &Arc<Session>,
    after: Seq,
    wanted: impl Fn(&Value) -> bool,
) -> Result<(Vec<Value>, Seq), StoreError> {
    let mut events = Vec::new();
    let mut position = after;
    loop {
        let batch = session.store().read(&session.id, position.next(), READ).await?;
        if batch.events.is_empty() {
            return Ok((events, position));
        }
        for event in &batch.events {
            position = event.seq;
            let Ok(logged) = serde_json::from_slice::<Logged>(&event.bytes) else { continue };
            if logged.event != ACTIVITY {
                continue;
            }
            let shown = json!({
                "id": session.event_id(event.seq),
                "type": logged.metadata.kind,
                "server": logged.metadata.server,
                "createdAt": logged.timestamp,
                "data": logged.content,
            });
            if wanted(&shown) {
                events.push(shown);
            }
            if events.len() >= EVENTS_MAX {
                return Ok((events, position));
            }
        }
    }
}
