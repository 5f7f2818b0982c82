//! `/ws`: the WebSocket door. Who may come in is settled before the upgrade where it can be.

use std::sync::Arc;

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bowline_env::clock;
use bowline_protocol::{CloseCode, ErrorCode, Refusal};

use super::admission::check_origin;
use super::problem::Problem;
use crate::auth::{AuthError, Credential, SUBPROTOCOL, token_from_headers};
use crate::drive;
use crate::refusals;
use crate::server::Shared;

/// What a connection reads at once. Small, because an idle connection keeps it; larger frames are assembled anyway.
const READ_BUFFER_BYTES: usize = 1 << 10;
/// Frames are gathered up to this size before they are written, so that a burst costs few system calls.
const WRITE_BUFFER_BYTES: usize = 16 << 10;

/// What a door takes that speaks WebSocket: the upgrade, or what to say to a request that asks for none.
pub type Asked = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

pub fn no_upgrade(why: &WebSocketUpgradeRejection) -> Problem {
    let message = format!("This door takes WebSockets only. Ask for an upgrade. ({})", why.body_text());
    Refusal::new(ErrorCode::InvalidPayload, message).into()
}

pub async fn upgrade(State(shared): State<Arc<Shared>>, headers: HeaderMap, upgrade: Asked) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(why) => return no_upgrade(&why).into_response(),
    };
    match admit(&shared, &headers).await {
        Err(problem) => problem.into_response(),
        Ok(admission) => accept(shared, upgrade, admission),
    }
}

/// Somebody who may come in, perhaps only to say who they are.
pub enum Admission {
    Known(Credential),
    /// The first frame has to say.
    Unknown,
    /// Let in only to be told why not.
    Unauthorized,
}

async fn admit(shared: &Shared, headers: &HeaderMap) -> Result<Admission, Problem> {
    if shared.is_draining() {
        return Err(refusals::draining().into());
    }
    let limits = &shared.config.limits;
    if shared.metrics.connections.get() as usize >= limits.connections_max {
        shared.metrics.limits_hit.inc("limits.connections_max");
        let refusal =
            Refusal::new(ErrorCode::RateLimited, "The server has as many connections as it takes. Try again later.");
        return Err(Problem::with_status(StatusCode::SERVICE_UNAVAILABLE, refusal.retry_after_ms(5000)));
    }
    check_origin(shared, headers)?;
    let presented = token_from_headers(headers);
    match shared.auth.admit(&presented, clock::unix_seconds()).await {
        Ok(credential) => Ok(Admission::Known(credential)),
        Err(AuthError::Missing) => Ok(Admission::Unknown),
        // A browser can only offer its token as a subprotocol, and cannot see a refused upgrade, only a close code.
        Err(_) if !headers.contains_key(header::AUTHORIZATION) => Ok(Admission::Unauthorized),
        Err(error) => Err(Refusal::from(error).into()),
    }
}

fn accept(shared: Arc<Shared>, upgrade: WebSocketUpgrade, admission: Admission) -> Response {
    let limits = &shared.config.limits;
    let upgrade = upgrade
        .protocols([SUBPROTOCOL])
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_write_buffer_size(limits.send_window_bytes * 2 + limits.event_bytes_max * 16)
        .max_message_size(limits.frame_bytes_max)
        .max_frame_size(limits.frame_bytes_max);
    let connections = shared.connections.clone();
    upgrade.on_upgrade(move |socket| {
        connections.track_future(async move {
            match admission {
                Admission::Known(credential) => drive::connection::drive(shared, socket, Some(credential)).await,
                Admission::Unknown => drive::connection::drive(shared, socket, None).await,
                Admission::Unauthorized => drive::connection::turn_away(socket, CloseCode::Unauthorized).await,
            }
        })
    })
}
