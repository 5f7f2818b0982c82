//! The endpoints: one file each, and the loop that accepts connections to them.

pub mod admin;
pub mod admission;
mod body;
pub mod chat;
mod cors;
mod follow;
mod guard;
pub mod health;
pub mod limits;
pub mod mcp;
pub mod openapi;
mod own_wakes;
mod page;
pub(crate) mod problem;
pub mod produce;
mod rate_limited_log;
pub mod responses;
pub mod servers;
mod service;
mod sorted;
pub mod ws;

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::http::HeaderValue;
use axum::http::header::DATE;
use axum::middleware::{from_fn, from_fn_with_state, map_response, map_response_with_state};
use axum::response::Response;
use bowline_env::clock;
use bowline_env::net::{Listener, Socket};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::admin::AdminState;
use self::chat::ChatState;
use self::health::HealthState;
use self::mcp::McpState;
use self::openapi::OpenApiState;
use self::own_wakes::OwnWakes;
use self::produce::ProduceState;
use self::rate_limited_log::RateLimitedLog;
use self::servers::ServersState;
use self::service::EndpointService;
use self::ws::WsState;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::tls::Tls;

/// Plain HTTP requests that may be open beside the WebSockets and the streams.
const OTHER_CONNECTIONS_MAX: usize = 1024;
/// How long to wait when there are no descriptors left, instead of spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// It is logged this often: more would hide the rest of the log, and may fill the disk.
const ACCEPT_LOGGED_EVERY: Duration = Duration::from_secs(1);

/// Routes and the list of their paths, written once, so that a path that answers cannot be missing from the documents.
macro_rules! endpoints {
    ($state:ty; $($path:literal => $methods:expr,)*) => {
        /// Every path of these endpoints, for the documents.
        pub const PATHS: &[&str] = &[$($path),*];

        pub fn routes() -> axum::Router<$state> {
            axum::Router::new()$(.route($path, $methods))*
        }
    };
}
pub(crate) use endpoints;

/// Every path but those that pages of other origins may ask for, which are in [`chat`], [`responses`] and [`openapi`].
pub fn paths() -> impl Iterator<Item = &'static str> {
    let endpoints = [page::PATHS, ws::PATHS, produce::PATHS, health::PATHS, admin::PATHS, servers::PATHS, mcp::PATHS];
    endpoints.into_iter().flatten().copied()
}

/// What the endpoints are made of.
#[derive(Debug)]
pub struct Endpoints {
    pub admin: AdminState,
    pub chat: ChatState,
    pub health: HealthState,
    pub mcp: McpState,
    pub openapi: OpenApiState,
    pub produce: ProduceState,
    pub servers: ServersState,
    pub ws: WsState,
}

impl Endpoints {
    /// All of them. What is laid around those of the hub is also in `http/service`, which serves most of its requests.
    pub fn service(self) -> EndpointService {
        let mcp = self.mcp.clone();
        let ChatState { admission, limits, .. } = &self.chat;
        let (admission, limits) = (admission.clone(), limits.clone());
        // Inside of what shares an answer with pages of other origins, so that they can read this one too.
        let deadline = || from_fn_with_state(limits.clone(), body::deadline);
        let host = || from_fn_with_state(admission.clone(), admission::host);
        let responses = responses::routes()
            .with_state(self.chat.clone())
            .method_not_allowed_fallback(problem::no_such_method)
            .layer(map_response(responses::in_the_apis_shape));
        let from_pages = chat::routes()
            .with_state(self.chat)
            .merge(responses)
            .merge(openapi::routes().with_state(self.openapi))
            .method_not_allowed_fallback(problem::no_such_method)
            .layer(host())
            .layer(deadline())
            .layer(from_fn_with_state(admission.clone(), cors::share));
        let router = page::routes()
            .merge(ws::routes())
            .with_state(self.ws)
            .merge(produce::routes().with_state(self.produce))
            .merge(health::routes().with_state(self.health))
            .merge(admin::routes().with_state(self.admin))
            .merge(servers::routes().with_state(self.servers))
            .merge(mcp::routes().with_state(self.mcp))
            .fallback(problem::no_such_path)
            .method_not_allowed_fallback(problem::no_such_method)
            .layer(host())
            .layer(deadline())
            .merge(from_pages)
            .layer(from_fn(guard::guard))
            .layer(DefaultBodyLimit::max(limits.config.limits.http_body_bytes_max))
            .layer(map_response_with_state(limits.metrics.clone(), problem::count))
            .layer(map_response(date));
        EndpointService::new(router, mcp, limits)
    }
}

/// The HTTP library keeps the date that it wrote last until the wall clock is past it, so that a clock which is set back
/// would leave it standing.
async fn date(mut response: Response) -> Response {
    if let Some(date) = date_at(clock::unix_seconds()) {
        response.headers_mut().entry(DATE).or_insert(date);
    }
    response
}

/// A second as a header. Each thread keeps the one that it wrote last, since most answers leave in the same second as one before.
fn date_at(seconds: u64) -> Option<HeaderValue> {
    thread_local! {
        static LAST: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) };
    }
    LAST.with_borrow_mut(|last| {
        if last.as_ref().is_none_or(|(of, _)| *of != seconds) {
            *last = Some((seconds, HeaderValue::try_from(clock::http_date(seconds * 1000)).ok()?));
        }
        last.as_ref().map(|(_, date)| date.clone())
    })
}

/// What accepts connections, and serves the endpoints on them.
pub struct Acceptor {
    pub service: EndpointService,
    /// Where TLS is served: with what.
    pub tls: Option<Arc<Tls>>,
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
    pub closing: CancellationToken,
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

impl Acceptor {
    /// Accepts connections until the server closes, then waits for those that are open to end.
    pub async fn serve(self, listener: Box<dyn Listener>) {
        let limits = &self.config.limits;
        let places = limits.connections_max + limits.streams_max + OTHER_CONNECTIONS_MAX;
        let places = Arc::new(Semaphore::new(places));
        let tracker = TaskTracker::new();
        let mut troubled = RateLimitedLog::every(ACCEPT_LOGGED_EVERY);
        let accept = async {
            loop {
                match listener.accept().await {
                    Ok(socket) => {
                        let Ok(place) = places.clone().try_acquire_owned() else {
                            self.metrics.limits_hit.inc("limits.connections_max");
                            continue;
                        };
                        let server = ConnectionServer {
                            service: self.service.clone(),
                            header_timeout: limits.header_timeout,
                            // One of its own, because those who wait for the same one wait for each other's lock.
                            closing: self.closing.child_token(),
                        };
                        // Apart, because a connection keeps room for the larger of the two as long as it lasts.
                        match self.tls.clone() {
                            None => tracker.spawn(async move {
                                server.serve(socket).await;
                                drop(place);
                            }),
                            Some(tls) => tracker.spawn(async move {
                                server.serve_tls(tls, socket).await;
                                drop(place);
                            }),
                        };
                    }
                    Err(error) => {
                        if troubled.is_due(clock::now()) {
                            tracing::warn!(%error, "cannot accept connections");
                        }
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        let _ = tokio::time::timeout(Duration::MAX, self.closing.run_until_cancelled(accept)).await;
        drop(listener);
        tracker.close();
        tracker.wait().await;
    }
}

/// What one connection is served with.
struct ConnectionServer {
    service: EndpointService,
    header_timeout: Duration,
    closing: CancellationToken,
}

impl ConnectionServer {
    async fn serve_tls(self, tls: Arc<Tls>, socket: Socket) {
        let acceptor = Box::pin(tls.acceptor()).await;
        match tokio::time::timeout(self.header_timeout, acceptor.accept(socket)).await {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(error)) => tracing::debug!(%error, "a connection did not become TLS"),
            Err(_) => tracing::debug!("a connection did not become TLS in time"),
        }
    }

    async fn serve<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut http = hyper::server::conn::http1::Builder::new();
        // Without a timer a client that sends half a header would be kept for ever.
        http.timer(TokioTimer::new()).header_read_timeout(self.header_timeout).max_buf_size(64 << 10);
        let connection = http.serve_connection(TokioIo::new(stream), self.service).with_upgrades();
        let connection = std::pin::pin!(connection);
        // A request that is still running when the server closes gets the rest of its answer only if that is quick.
        let closed = async {
            self.closing.cancelled().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        futures_util::future::select(OwnWakes::of(connection), std::pin::pin!(closed)).await;
    }
}
