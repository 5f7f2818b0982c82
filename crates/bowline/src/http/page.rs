//! `/`: an honest page until there is a console; old clients also dial their WebSocket here.

use std::sync::Arc;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts, State};
use axum::http::{Request, header};
use axum::response::{Html, IntoResponse, Response};

use super::ws;
use crate::node::Shared;

pub async fn index(State(shared): State<Arc<Shared>>, request: Request<axum::body::Body>) -> Response {
    let (mut parts, _) = request.into_parts();
    if parts.headers.contains_key(header::UPGRADE) {
        let headers = parts.headers.clone();
        return match WebSocketUpgrade::from_request_parts(&mut parts, &shared).await {
            Ok(upgrade) => ws::upgrade(State(shared), headers, upgrade).await,
            Err(rejection) => rejection.into_response(),
        };
    }
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    let page = include_str!("index.html").replace("{{version}}", env!("CARGO_PKG_VERSION"));
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(page)).into_response()
}
