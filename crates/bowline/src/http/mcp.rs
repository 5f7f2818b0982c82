//! `/mcp` and `/mcp/{server}`: the hub's endpoint. Origin, host and credential are checked before it sees a request.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bowline_hub::{Hub, Requester, RequesterRole, Route, downstream};
use bowline_protocol::{ErrorCode, Refusal};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::admission::AdmissionRules;
use super::endpoints;
use super::guard::Farewell;
use super::problem::Problem;
use crate::config::Config;
use crate::lifecycle::Lifecycle;
use crate::metrics::Metrics;
use crate::refusals;

/// What these endpoints are made of.
#[derive(Clone, Debug)]
pub struct McpState {
    pub admission: Arc<AdmissionRules>,
    pub config: Arc<Config>,
    pub hub: Arc<Hub>,
    pub lifecycle: Arc<Lifecycle>,
    pub metrics: Arc<Metrics>,
}

endpoints! {
    McpState;
    "/mcp" => any(all),
    "/mcp/{server}" => any(one),
}

async fn all(State(state): State<McpState>, request: Request) -> Response {
    answer(&state, Route::All, request).await
}

async fn one(State(state): State<McpState>, Path(server): Path<String>, request: Request) -> Response {
    answer(&state, Route::One(server.into()), request).await
}

/// Whom a path means that is written without escapes. Any other is for the router.
pub fn plain_route(path: &str) -> Option<Route> {
    let rest = path.strip_prefix("/mcp")?;
    if rest.is_empty() {
        return Some(Route::All);
    }
    let server = rest.strip_prefix('/')?;
    (!server.is_empty() && !server.contains(['/', '%'])).then(|| Route::One(server.into()))
}

pub async fn answer(state: &McpState, route: Route, request: Request) -> Response {
    let who = match admit(state, request.headers(), request.extensions()).await {
        Ok(who) => who,
        Err(refused) => return *refused,
    };
    let (parts, body) = request.into_parts();
    let limit = state.config.hub.body_bytes_max;
    let body = match Limited::new(body, limit).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            let too_large = error.downcast_ref::<LengthLimitError>().is_some();
            if too_large {
                state.metrics.limits_hit.inc("hub.body_bytes_max");
            }
            let status = if too_large { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
            let refusal =
                Refusal::new(ErrorCode::MessageTooLarge, "The body could not be taken; see hub.body_bytes_max.");
            return Problem::with_status(status, refusal).into_response();
        }
    };
    let request = Request::from_parts(parts, body);
    let mut response = downstream::streamable_http::handle(&state.hub, who, route, request).await;
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
    }
    response.map(Body::new)
}

async fn admit(state: &McpState, headers: &HeaderMap, extensions: &Extensions) -> Result<Requester, Box<Response>> {
    let no = |problem: Problem| Box::new(problem.into_response());
    let credential = state.admission.credential(headers, extensions, Farewell::Comment).await.map_err(no)?;
    if state.lifecycle.is_draining() {
        return Err(no(refusals::draining().into()));
    }
    let identity = credential.identity;
    let role = if identity.admin { RequesterRole::Operator } else { RequesterRole::User };
    Ok(Requester { principal: identity.principal, role })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_escapes_is_that_of_all_servers_or_of_one() {
        assert_eq!(plain_route("/mcp"), Some(Route::All));
        assert_eq!(plain_route("/mcp/files"), Some(Route::One("files".into())));
        for other in ["/", "/mcp/", "/mcpx", "/mcp/a/b", "/mcp/a/", "/mcp/a%20b", "/api/mcp"] {
            assert_eq!(plain_route(other), None, "{other}");
        }
    }
}
