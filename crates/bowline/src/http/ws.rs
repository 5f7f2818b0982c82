//! `/ws`: the WebSocket endpoint. Who may connect is decided before the upgrade where possible.

use std::sync::Arc;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{FromRef, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bowline_env::clock;
use bowline_protocol::{CloseCode, ErrorCode, Refusal};

use super::admission::AdmissionRules;
use super::endpoints;
use super::problem::Problem;
use crate::auth::{AuthError, Credential, SUBPROTOCOL, token_from_headers};
use crate::config::Config;
use crate::connection::ConnectionContext;
use crate::drive;
use crate::metrics::Metrics;
use crate::refusals;

/// What a connection reads at once. Small, because an idle connection keeps it; larger frames are assembled anyway.
const READ_BUFFER_BYTES: usize = 1 << 10;
/// Frames are gathered up to this size before they are written, so that a burst costs few system calls.
const WRITE_BUFFER_BYTES: usize = 16 << 10;

/// What these endpoints are made of.
#[derive(Clone, Debug, FromRef)]
pub struct WsState {
    pub admission: Arc<AdmissionRules>,
    pub context: Arc<ConnectionContext>,
}

endpoints! {
    WsState;
    "/ws" => get(upgrade),
}

/// What a WebSocket endpoint takes: the upgrade, or what to say to a request that asks for none.
pub type UpgradeResult = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

pub fn no_upgrade(why: &WebSocketUpgradeRejection) -> Problem {
    let message = format!("This endpoint takes WebSockets only. Ask for an upgrade. ({})", why.body_text());
    Refusal::new(ErrorCode::InvalidPayload, message).into()
}

pub async fn upgrade(State(state): State<WsState>, headers: HeaderMap, upgrade: UpgradeResult) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(why) => return no_upgrade(&why).into_response(),
    };
    match admit(&state, &headers).await {
        Err(problem) => problem.into_response(),
        Ok(admitted) => accept(state.context, upgrade, admitted),
    }
}

/// Refuses a connection beyond `limits.connections_max`, whatever is spoken over it.
pub fn check_room(config: &Config, metrics: &Metrics) -> Result<(), Problem> {
    if (metrics.connections.get() as usize) < config.limits.connections_max {
        return Ok(());
    }
    metrics.limits_hit.inc("limits.connections_max");
    let refusal =
        Refusal::new(ErrorCode::RateLimited, "The server has as many connections as it takes. Try again later.");
    Err(Problem::with_status(StatusCode::SERVICE_UNAVAILABLE, refusal.retry_after_ms(5000)))
}

/// A client that may connect, perhaps only to authenticate.
enum Admitted {
    Known(Credential),
    /// The first frame has to say.
    Unknown,
    /// Let in only to be closed with the code that says why.
    Unauthorized,
}

async fn admit(WsState { admission, context }: &WsState, headers: &HeaderMap) -> Result<Admitted, Problem> {
    if context.lifecycle.is_draining() {
        return Err(refusals::draining().into());
    }
    check_room(&context.config, &context.metrics)?;
    admission.check_origin(headers)?;
    let presented = token_from_headers(headers);
    match context.auth.admit(&presented, clock::unix_seconds()).await {
        Ok(credential) => Ok(Admitted::Known(credential)),
        Err(AuthError::Missing) => Ok(Admitted::Unknown),
        // A browser can only offer its token as a subprotocol, and cannot see a refused upgrade, only a close code.
        Err(_) if !headers.contains_key(header::AUTHORIZATION) => Ok(Admitted::Unauthorized),
        Err(error) => Err(Refusal::from(error).into()),
    }
}

fn accept(context: Arc<ConnectionContext>, upgrade: WebSocketUpgrade, admitted: Admitted) -> Response {
    let limits = &context.config.limits;
    let upgrade = upgrade
        .protocols([SUBPROTOCOL])
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_write_buffer_size(limits.send_window_bytes * 2 + limits.event_bytes_max * 16)
        .max_message_size(limits.frame_bytes_max)
        .max_frame_size(limits.frame_bytes_max);
    let connections = context.lifecycle.connections.clone();
    upgrade.on_upgrade(move |socket| {
        connections.track_future(async move {
            match admitted {
                Admitted::Known(credential) => drive::connection::drive(context, socket, Some(credential)).await,
                Admitted::Unknown => drive::connection::drive(context, socket, None).await,
                Admitted::Unauthorized => drive::connection::turn_away(socket, CloseCode::Unauthorized).await,
            }
        })
    })
}
