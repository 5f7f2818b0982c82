//! Several messages in one body, which only 2025-03-26 knows: each is handled as if it had come alone, and the answers go together.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, Response, StatusCode};

use super::session_http::{self, Outlet};
use super::streamable_http::{ResponseBody, empty, event_stream, json, problem};
use crate::fields::{Raw, raw};
use crate::hub::Hub;
use crate::message::{self, RpcMessage};
use crate::requester::{Requester, RequesterRole};
use crate::session::stream_reader::SessionStreamReader;
use crate::session::{HubSession, Route};
use crate::sse;

/// The only version whose clients may send them.
const VERSION: &str = "2025-03-26";
/// As many as a client may want at once; each may be a call that is under way for long.
const MESSAGES_MAX: usize = 100;

type AnswerStream = Pin<Box<dyn Stream<Item = Result<Bytes, Infallible>> + Send>>;

/// Whether a body is a batch, if it is anything.
pub fn is_batch(body: &[u8]) -> bool {
    body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
}

pub async fn post(
    hub: &Arc<Hub>,
    who: &Requester,
    route: &Route,
    headers: &HeaderMap,
    body: &[u8],
) -> Response<ResponseBody> {
    let refused = |text: &str| problem(StatusCode::BAD_REQUEST, message::INVALID_REQUEST, text);
    let session = match session_http::find(hub, &who.principal, route, headers).await {
        Ok(session) => session,
        Err(response) => return *response,
    };
    if session.record.version != VERSION {
        return refused("Batches are of 2025-03-26 only. Send each message by itself.");
    }
    let Ok(parts) = serde_json::from_slice::<Vec<Raw>>(body) else {
        return problem(StatusCode::BAD_REQUEST, message::PARSE_ERROR, "This is no batch: it is not JSON.");
    };
    if parts.is_empty() || parts.len() > MESSAGES_MAX {
        return refused("A batch has 1 to 100 messages.");
    }
    session.touch().await;
    let handled = parts.iter().map(|part| one(hub, &session, who.role, part));
    let outlets: Vec<Outlet> = futures_util::future::join_all(handled).await.into_iter().flatten().collect();
    respond(&session, outlets)
}

/// What becomes of one message, if it wants an answer.
async fn one(hub: &Arc<Hub>, session: &Arc<HubSession>, role: RequesterRole, part: &Raw) -> Option<Outlet> {
    match RpcMessage::parse(part.get()) {
        Ok(RpcMessage::Request(request)) if request.method == "initialize" => {
            let error = message::error(message::INVALID_REQUEST, "`initialize` must come alone");
            Some(Outlet::Direct(message::response(&request.id, &Err(error))))
        }
        Ok(RpcMessage::Request(request)) => session_http::begun(hub, session, role, request).await,
        Ok(other) => {
            session_http::heard(hub, session, other).await;
            None
        }
        Err(why) => Some(Outlet::Direct(message::nameless_error(why.code(), &format!("This is no message: {why}.")))),
    }
}

/// One array if all answers are there, else a stream on which each comes when it is.
fn respond(session: &Arc<HubSession>, outlets: Vec<Outlet>) -> Response<ResponseBody> {
    let mut direct = Vec::new();
    let mut streams: Vec<AnswerStream> = Vec::new();
    for outlet in outlets {
        match outlet {
            Outlet::Direct(response) => direct.push(response),
            Outlet::Stream(opened) => {
                let over = session.over.child_token();
                streams.push(SessionStreamReader::new(session, &opened.stream, opened.at, over).into_sse(None).boxed());
            }
            Outlet::Nothing => {}
        }
    }
    match (direct.is_empty(), streams.is_empty()) {
        (true, true) => empty(StatusCode::ACCEPTED),
        (false, true) => json(StatusCode::OK, &raw(&direct)),
        (_, false) => {
            let events: String = direct.iter().map(|response| sse::encode(None, response.get())).collect();
            let first = futures_util::stream::once(async move { Ok(Bytes::from(events)) });
            event_stream(first.chain(futures_util::stream::select_all(streams)))
        }
    }
}
