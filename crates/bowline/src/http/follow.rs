//! A log as server-sent events, for operators: a session, a task, or a turn, until it ends.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bowline_core::{Link, Resume};
use bowline_env::clock;
use bowline_protocol::event::names;
use bowline_protocol::{Cursor, Epoch, Extent, LogId, Recorded, Refusal, Seq, SessionId};
use bowline_store::{FollowError, StoreError};

use super::problem::Problem;
use crate::drive::tail::{LogTail, TailItem};
use crate::refusals;
use crate::stream::reader::ReaderContext;

/// What is followed, and whether it is over already.
#[derive(Clone, Copy, Debug)]
pub enum FollowedLog {
    Session {
        over: bool,
    },
    Task {
        over: bool,
    },
    /// A part of its session's log, up to its last event.
    Turn {
        ended: Option<Seq>,
        over: bool,
    },
}

impl FollowedLog {
    /// The last event, if that is known.
    fn last(self, extent: &Extent) -> Option<Seq> {
        match self {
            FollowedLog::Turn { ended: Some(ended), .. } => Some(ended),
            FollowedLog::Session { over } | FollowedLog::Task { over } | FollowedLog::Turn { over, .. } => {
                over.then(|| extent.last())
            }
        }
    }

    /// Where this event stands is the end.
    fn ends_with(self, event: &Recorded) -> bool {
        let Some(view) = event.view() else { return false };
        match self {
            FollowedLog::Session { .. } => view.event == names::SESSION_END,
            // Turns of a session do not overlap, so the first terminal is the turn's own.
            FollowedLog::Task { .. } | FollowedLog::Turn { .. } => {
                names::TERMINAL.contains(&view.event) || view.event == names::SESSION_END
            }
        }
    }
}

/// A log as Server-Sent Events, from a cursor on; if it is over, only what is there.
pub async fn follow(
    readers: Arc<ReaderContext>,
    log: LogId,
    subject: FollowedLog,
    from: Option<String>,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let last_event_id = headers.get("last-event-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let read = |field: &str, text: &String| {
        Cursor::parse(text).ok_or_else(|| Refusal::field(field, "must be `<epoch>-<seq>` or a number"))
    };
    let asked = from.as_ref().map(|text| read("from", text)).transpose()?;
    let cursor = last_event_id.as_ref().map(|text| read("Last-Event-ID", text)).transpose()?.or(asked);
    let extent = readers.logs.store.extent(&log).await.map_err(|error| refusals::of_store(&error))?;
    let resume = cursor.map_or_else(|| Resume::from_the_start(&extent), |cursor| Resume::decide(&extent, &cursor));
    let link = Link::resume(SessionId::from(&log), &extent, resume);
    let tail = LogTail::new(readers, &log, link);
    // Of a session that is over there is only what is still kept; otherwise the stream ends with the session.
    let last = subject.last(&extent);
    let stream = futures_util::stream::unfold(Some(tail), move |tail| async move {
        let mut tail = tail?;
        let caught_up = last.is_some_and(|last| tail.position() > last);
        let next = if caught_up { Ok(None) } else { tail.next().await.map(Some) };
        let mut piece = match next {
            Ok(piece) => piece,
            Err(FollowError::Store(StoreError::NoSuchLog)) => None,
            // It is not over. The reader comes back with its position, and gets the verdict on it then.
            Err(error) => return Some((Err(error), None)),
        };
        let goes_on = piece.as_mut().is_some_and(|piece| !cut_at_end(piece, subject, last));
        let mut bytes = sse(piece.as_ref(), tail.epoch());
        if piece.is_some() && !goes_on {
            bytes.extend_from_slice(&sse(None, tail.epoch()));
        }
        Some((Ok(tail.pacer.piece(bytes)), goes_on.then_some(tail)))
    });
    let kind = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache, no-transform")];
    Ok((StatusCode::OK, kind, [("x-accel-buffering", "no")], Body::from_stream(stream)).into_response())
}

/// A piece of the log as Server-Sent Events. Events are single-line JSON, so a line of data holds each. Ids are positions
/// in the epoch that the log is in now, also those of events from before it.
fn sse(piece: Option<&TailItem>, epoch: &Epoch) -> Vec<u8> {
    let mut out = Vec::new();
    match piece {
        None => out.extend_from_slice(b"event: end\ndata: {}\n\n"),
        Some(TailItem::Quiet) => out.extend_from_slice(b": still here\n\n"),
        Some(TailItem::Notice(notice)) => {
            out.extend_from_slice(b"event: notice\ndata: ");
            out.extend_from_slice(&notice.encode(&clock::timestamp()));
            out.extend_from_slice(b"\n\n");
        }
        Some(TailItem::Events(events)) => {
            for event in events {
                out.extend_from_slice(format!("id: {epoch}-{}\ndata: ", event.seq).as_bytes());
                out.extend_from_slice(&event.bytes);
                out.extend_from_slice(b"\n\n");
            }
        }
    }
    out
}

/// Whether this piece holds the last event. What stands behind it in the same log belongs to something else.
fn cut_at_end(piece: &mut TailItem, subject: FollowedLog, last: Option<Seq>) -> bool {
    let TailItem::Events(events) = piece else { return false };
    let end = events.iter().position(|event| match last {
        Some(last) => event.seq >= last,
        None => subject.ends_with(event),
    });
    if let Some(end) = end {
        events.truncate(end + 1);
    }
    end.is_some()
}
