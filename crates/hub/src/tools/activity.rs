//! Tools that tell what happened, every event once, in order, after a cursor; and those by which clients answer servers that cannot do
//! so by themselves.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::Resume;
use bowline_env::clock;
use bowline_protocol::{Cursor, Seq};
use bowline_store::{Followed, Follower, ReadLimit, WakeSet};
use serde_json::json;

use crate::call::facts::{LOG_LEVELS, is_log_level, is_logged};
use crate::fields::{Fields, raw};
use crate::message;
use crate::session::HubSession;
use crate::session::elicitation_and_sampling::ServerRequestKind;
use crate::session::stream_reader::Logged;
use crate::tools::{HubToolOutcome, ToolInvocation};

/// Events in one answer; the cursor leads to the rest.
const EVENTS_MAX: usize = 200;
const BEGUN_ANEW: &str = "the session's log has begun anew; ask again without `last_event_id`";
const READ: ReadLimit = ReadLimit { events: 512, bytes: 1 << 20 };

pub(crate) async fn wait(call: &ToolInvocation<'_>) -> Result<HubToolOutcome, String> {
    let timeout = call.timeout()?;
    let session = call.session().await?;
    let after = cursor(call, &session).await?;
    let wake = WakeSet::new();
    let deadline = clock::now() + Duration::from_millis(timeout);
    let mut past = ActivityReader::after(&session, after, &wake);
    let triggered_by = loop {
        past.read(&session, |_| true).await?;
        if past.gap.is_some() {
            break "gap".to_owned();
        }
        if let Some(first) = past.events.first() {
            break first.text("type").unwrap_or_default();
        }
        match tokio::time::timeout_at(deadline.into(), wake.woken()).await {
            Ok(()) => drop(wake.take()),
            Err(_) => break "timeout".to_owned(),
        }
    };
    let working = call.hub.tasks.working(&session.principal, &session.id).await.map_err(|error| error.to_string())?;
    let mut facts = Fields::default();
    facts.put("triggered_by", &triggered_by);
    facts.put("events", &past.events);
    past.tell_gap(&session, &mut facts);
    facts.put("pending_server", &working);
    facts.put("pending_client", &session.pending(None));
    facts.put("last_event_id", &session.event_id(past.cursor));
    facts.put("handle", &session.id);
    Ok(HubToolOutcome::Exact(facts.to_raw()))
}

pub(crate) async fn past(call: &ToolInvocation<'_>, name: &str) -> Result<HubToolOutcome, String> {
    let logs = name == "get_logs";
    let member = if logs { "logs" } else { "notifications" };
    let (server, level) = (call.arguments.text("server"), call.arguments.text("level"));
    if level.as_deref().is_some_and(|level| !is_log_level(level)) {
        return Err(format!("`level` must be one of {}", LOG_LEVELS.join(", ")));
    }
    let Some(session) = call.known_session().await? else {
        return Ok(HubToolOutcome::Facts(json!({ member: [], "last_event_id": null })));
    };
    let after = cursor(call, &session).await?;
    let wanted = |event: &Fields| {
        let (kind, data) = (event.text("type").unwrap_or_default(), event.object("data"));
        let is_log = kind == "log" || data.text("method").as_deref() == Some("notifications/message");
        let own = data.object("params").text("level").or_else(|| data.text("level"));
        let level_fits = level.is_none() || is_logged(own.as_deref(), level.as_deref());
        let server_fits = server.is_none() || event.text("server") == server;
        // Most notifications have no level, and none that is asked for leaves them out.
        let kind_fits = if logs { is_log && level_fits } else { kind == "notification" && !is_log };
        kind_fits && server_fits && (level_fits || own.is_none())
    };
    let mut past = ActivityReader::after(&session, after, &WakeSet::new());
    past.read(&session, wanted).await?;
    let mut facts = Fields::default();
    facts.put(member, &past.events);
    past.tell_gap(&session, &mut facts);
    facts.put("last_event_id", &session.event_id(past.cursor));
    Ok(HubToolOutcome::Exact(facts.to_raw()))
}

/// Where the client is. A position that is not reached yet would skip what comes until then.
async fn cursor(call: &ToolInvocation<'_>, session: &HubSession) -> Result<Seq, String> {
    let Some(text) = call.arguments.text("last_event_id") else { return Ok(Seq::ZERO) };
    let extent = session.store().extent(&session.id).await.map_err(|error| error.to_string())?;
    if !session.is_in(&extent.epoch) {
        return Err(BEGUN_ANEW.to_owned());
    }
    let cursor = Cursor::parse(&text);
    let position = cursor.and_then(|cursor| match Resume::decide(&extent, &cursor) {
        Resume::CaughtUp | Resume::Replay { .. } | Resume::Gap { .. } => Some(cursor.seq),
        Resume::OtherEpoch { .. } | Resume::AheadOfLog => None,
    });
    position.ok_or_else(|| "`last_event_id` is none of this session's".to_owned())
}

/// What is read of a log: nothing is skipped, and what is not an event is passed over.
struct ActivityReader {
    follower: Follower,
    /// The last event that was looked at, which is where the client is.
    cursor: Seq,
    /// How much was let go of before it was read, and what is the oldest that is left.
    gap: Option<(u64, Seq)>,
    events: Vec<Fields>,
}

impl ActivityReader {
    fn after(session: &HubSession, cursor: Seq, wake: &Arc<WakeSet>) -> ActivityReader {
        ActivityReader { follower: session.follow(cursor, wake), cursor, gap: None, events: Vec::new() }
    }

    /// What cannot be read any more is reported, never skipped silently.
    fn tell_gap(&self, session: &HubSession, facts: &mut Fields) {
        if let Some((lost, first)) = self.gap {
            facts.put("gap", &json!({ "lost": lost, "first_retained": session.event_id(first) }));
        }
    }

    /// Reads on until there are enough events, or no more.
    async fn read(&mut self, session: &HubSession, wanted: impl Fn(&Fields) -> bool) -> Result<(), String> {
        self.follower.wake();
        loop {
            let found = match self.follower.next(READ).await.map_err(|error| error.to_string())? {
                Followed::Events(found) => found,
                Followed::Idle => return Ok(()),
                Followed::Gap { from, to } => {
                    self.gap = Some((from.until(to), to));
                    self.cursor = to.prev();
                    continue;
                }
                Followed::Epoch(extent) => {
                    session.is_in(&extent.epoch);
                    return Err(BEGUN_ANEW.to_owned());
                }
            };
            for event in &found {
                let Ok(logged) = serde_json::from_slice::<Logged>(&event.bytes) else { continue };
                let Some(shown) = logged.event(&session.event_id(event.seq)) else { continue };
                self.cursor = event.seq;
                if wanted(&shown) {
                    self.events.push(shown);
                }
                // The rest is not lost: the client's next cursor leads to it.
                if self.events.len() >= EVENTS_MAX {
                    return Ok(());
                }
            }
        }
    }
}

fn kind_of(name: &str) -> ServerRequestKind {
    if name.contains("sampling") { ServerRequestKind::Sampling } else { ServerRequestKind::Elicitation }
}

pub(crate) async fn list(call: &ToolInvocation<'_>, name: &str) -> Result<HubToolOutcome, String> {
    let server = call.arguments.text("server");
    let pending = match call.known_session().await? {
        Some(session) => session.pending(Some(kind_of(name))),
        None => Vec::new(),
    };
    let wanted = |one: &Fields| server.is_none() || one.text("server") == server;
    let pending: Vec<Fields> = pending.into_iter().filter(wanted).collect();
    Ok(HubToolOutcome::Exact(Fields::default().and("requests", &pending).to_raw()))
}

pub(crate) async fn respond(call: &ToolInvocation<'_>, name: &str) -> Result<HubToolOutcome, String> {
    let id = call.text("id")?;
    let result = match kind_of(name) {
        ServerRequestKind::Sampling => {
            call.arguments.get("result").map(ToOwned::to_owned).ok_or("`result` is missing")?
        }
        _ => {
            let action = call.text("action")?;
            if !["accept", "decline", "cancel"].contains(&action.as_str()) {
                return Err("`action` must be accept, decline or cancel".into());
            }
            let mut result = Fields::default();
            result.put("action", &action);
            if let Some(content) = call.arguments.get("content") {
                result.set("content", content.to_owned());
            }
            result.to_raw()
        }
    };
    settle(call, kind_of(name), &id, Ok(result)).await
}

pub(crate) async fn cancel(call: &ToolInvocation<'_>, name: &str) -> Result<HubToolOutcome, String> {
    let id = call.text("id")?;
    let reason = call.arguments.text("reason").unwrap_or_else(|| "the client refused".into());
    let answer = match kind_of(name) {
        ServerRequestKind::Sampling => Err(message::error(-1, &reason)),
        _ => Ok(raw(&json!({ "action": "cancel" }))),
    };
    settle(call, kind_of(name), &id, answer).await
}

/// An answer counts once; the second one gets an error.
async fn settle(
    call: &ToolInvocation<'_>,
    kind: ServerRequestKind,
    id: &str,
    answer: message::RpcResult,
) -> Result<HubToolOutcome, String> {
    let session = call.known_session().await?.ok_or("`handle` is missing")?;
    if session.answer_as(kind, id, answer) {
        Ok(HubToolOutcome::Facts(json!({ "answered": true, "id": id })))
    } else {
        Err(format!("{id} is not waiting for an answer any more"))
    }
}
