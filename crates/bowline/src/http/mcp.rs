//! `/mcp` and `/mcp/{server}`: the hub's door. Origin, host and credential are settled before it sees anything.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bowline_hub::{Requester, Role, Route, downstream};
use bowline_protocol::{ErrorCode, Refusal};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::admission;
use super::guard::Farewell;
use super::problem::Problem;
use crate::refusals;
use crate::server::Shared;

pub async fn all(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    answer(&shared, Route::All, request).await
}

pub async fn one(State(shared): State<Arc<Shared>>, Path(server): Path<String>, request: Request) -> Response {
    answer(&shared, Route::One(server.into()), request).await
}

async fn answer(shared: &Arc<Shared>, route: Route, request: Request) -> Response {
    let who = match admit(shared, request.headers(), request.extensions()).await {
        Ok(who) => who,
        Err(refused) => return *refused,
    };
    let (parts, body) = request.into_parts();
    let limit = shared.config.hub.body_bytes_max;
    let body = match Limited::new(body, limit).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            let too_large = error.downcast_ref::<LengthLimitError>().is_some();
            if too_large {
                shared.metrics.limits_hit.inc("hub.body_bytes_max");
            }
            let status = if too_large { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
            let refusal =
                Refusal::new(ErrorCode::MessageTooLarge, "The body could not be taken; see hub.body_bytes_max.");
            return Problem::with_status(status, refusal).into_response();
        }
    };
    let request = Request::from_parts(parts, body);
    let mut response = downstream::streamable_http::handle(&shared.hub, who, route, request).await;
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
    }
    response.map(Body::new)
}

async fn admit(shared: &Shared, headers: &HeaderMap, extensions: &Extensions) -> Result<Requester, Box<Response>> {
    let no = |problem: Problem| Box::new(problem.into_response());
    let credential = admission::credential(shared, headers, extensions, Farewell::Comment).await.map_err(no)?;
    if shared.is_draining() {
        return Err(no(refusals::draining().into()));
    }
    let identity = credential.identity;
    let role = if identity.admin { Role::Operator } else { Role::User };
    Ok(Requester { principal: identity.principal, role })
}
