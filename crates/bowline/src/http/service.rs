//! What connections are served by: the router with its layers. A message to the hub, of which a client may send very many, goes to its
//! endpoint past both, through what the layers do for it.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use super::limits::RequestLimits;
use super::mcp::{self, McpState};
use super::{body, date, guard, problem};

#[derive(Clone)]
pub struct EndpointService {
    router: TowerToHyperService<Router>,
    hub: Arc<HubEndpoint>,
}

/// What a message to the hub passes, but for the router.
struct HubEndpoint {
    state: McpState,
    limits: Arc<RequestLimits>,
}

impl EndpointService {
    pub fn new(router: Router, state: McpState, limits: Arc<RequestLimits>) -> EndpointService {
        EndpointService { router: TowerToHyperService::new(router), hub: Arc::new(HubEndpoint { state, limits }) }
    }
}

impl HubEndpoint {
    /// As [`Endpoints::service`](super::Endpoints::service) lays it around the endpoint, from the outside.
    async fn answer(&self, route: bowline_hub::Route, request: Request) -> Response {
        let admitted = async |request: Request| match self.state.admission.check_host(&request) {
            Ok(()) => mcp::answer(&self.state, route, request).await,
            Err(problem) => problem.into_response(),
        };
        let in_time = |request| body::within_deadline(&self.limits, request, admitted);
        let response = guard::guarded(request, in_time).await;
        date(problem::counted(&self.limits.metrics, response)).await
    }
}

impl Service<Request<Incoming>> for EndpointService {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        // The router knows the other methods, and whatever else a path may be written like.
        let route = if *request.method() == Method::POST { mcp::plain_route(request.uri().path()) } else { None };
        match route {
            Some(route) => {
                let hub = self.hub.clone();
                Box::pin(async move { Ok(hub.answer(route, request.map(Body::new)).await) })
            }
            None => Box::pin(self.router.call(request)),
        }
    }
}

impl fmt::Debug for EndpointService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndpointService")
    }
}
