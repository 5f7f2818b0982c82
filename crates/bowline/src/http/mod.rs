//! The doors: one file per door, and the loop that accepts connections to them.

mod admin;
mod admission;
mod body;
pub mod chat;
mod cors;
mod follow;
mod guard;
mod health;
mod mcp;
pub mod openapi;
mod page;
mod problem;
pub mod produce;
mod seldom;
mod servers;
mod ws;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::HeaderValue;
use axum::http::header::DATE;
use axum::middleware::{from_fn, from_fn_with_state, map_response, map_response_with_state};
use axum::response::Response;
use axum::routing::{any, delete, get, post};
use bowline_env::clock;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use self::seldom::Seldom;
use crate::server::Shared;

/// Plain HTTP requests that may be open beside the WebSockets and the streams.
const OTHER_CONNECTIONS_MAX: usize = 1024;
/// What the kernel takes for one connection beyond what is on its way. Left to itself it takes megabytes for each client
/// that takes nothing, and they count as this server's.
const UNSENT_BYTES_MAX: u32 = 128 << 10;
/// How long to wait when there are no descriptors left, instead of spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// That is told so often: a log that is full of it helps nobody, and may fill the disk.
const ACCEPT_TOLD_EVERY: Duration = Duration::from_secs(1);

/// Routes and the list of their paths, written once, so that a path that answers cannot be missing from the documents.
macro_rules! doors {
    ($($path:literal => $methods:expr,)*) => {
        /// Every path of these doors, for the documents.
        pub const PATHS: &[&str] = &[$($path),*];

        pub fn routes() -> axum::Router<std::sync::Arc<$crate::server::Shared>> {
            axum::Router::new()$(.route($path, $methods))*
        }
    };
}
pub(crate) use doors;

doors! {
    "/" => get(page::index),
    "/assets/{name}" => get(page::asset),
    "/ws" => get(ws::upgrade),
    "/produce" => get(produce::upgrade),
    "/healthz" => get(health::healthz),
    "/readyz" => get(health::readyz),
    "/metrics" => get(health::metrics),
    "/api/admin/node" => get(admin::node),
    "/api/admin/metrics" => get(admin::metrics),
    "/api/admin/config" => get(admin::config),
    "/api/admin/sessions" => get(admin::sessions),
    "/api/admin/sessions/{id}" => get(admin::session),
    "/api/admin/sessions/{id}/events" => get(admin::events),
    "/api/admin/backends" => get(admin::backends).post(servers::add),
    "/api/admin/backends/{name}" => delete(servers::remove),
    "/api/admin/backends/{name}/reconnect" => post(admin::reconnect),
    "/api/admin/backends/{name}/restore" => post(servers::restore),
    "/mcp" => any(mcp::all),
    "/mcp/{server}" => any(mcp::one),
    "/api/admin/tasks" => get(admin::tasks),
    "/api/admin/tasks/{id}/events" => get(admin::task_events),
}

fn router(shared: Arc<Shared>) -> Router {
    // Inside of what shares an answer with pages of other origins, so that they can read this one too.
    let deadline = || from_fn_with_state(shared.clone(), body::deadline);
    let host = || from_fn_with_state(shared.clone(), admission::host);
    let from_pages = chat::routes()
        .merge(openapi::routes())
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(host())
        .layer(deadline())
        .layer(from_fn_with_state(shared.clone(), cors::share));
    routes()
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(host())
        .layer(deadline())
        .merge(from_pages)
        .layer(from_fn(guard::guard))
        .layer(DefaultBodyLimit::max(shared.config.limits.http_body_bytes_max))
        .layer(map_response_with_state(shared.clone(), problem::count))
        .layer(map_response(date))
        .with_state(shared)
}

/// The HTTP library keeps the date that it wrote last until the wall clock is past it, so that a clock which is set back
/// would leave it standing.
async fn date(mut response: Response) -> Response {
    if let Ok(date) = HeaderValue::try_from(clock::http_date(clock::wall_ms())) {
        response.headers_mut().entry(DATE).or_insert(date);
    }
    response
}

/// Accepts connections until the server closes, then waits for those that are open to end.
pub async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    let router = router(shared.clone());
    let limits = &shared.config.limits;
    let places = limits.connections_max + limits.streams_max + OTHER_CONNECTIONS_MAX;
    let places = Arc::new(Semaphore::new(places));
    let tracker = TaskTracker::new();
    let mut troubled = Seldom::every(ACCEPT_TOLD_EVERY);
    let accept = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let Ok(place) = places.clone().try_acquire_owned() else {
                        shared.metrics.limits_hit.inc("limits.connections_max");
                        continue;
                    };
                    let _ = stream.set_nodelay(true);
                    let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
                    let (shared, router) = (shared.clone(), router.clone());
                    // Apart, because a connection keeps room for the larger of the two as long as it lasts.
                    if shared.tls.is_none() {
                        tracker.spawn(async move {
                            serve_one(shared, stream, router).await;
                            drop(place);
                        });
                    } else {
                        tracker.spawn(async move {
                            serve_tls(shared, stream, router).await;
                            drop(place);
                        });
                    }
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
    let _ = tokio::time::timeout(Duration::MAX, shared.closing.run_until_cancelled(accept)).await;
    drop(listener);
    tracker.close();
    tracker.wait().await;
}

async fn serve_tls(shared: Arc<Shared>, stream: TcpStream, router: Router) {
    let Some(tls) = &shared.tls else { return };
    let acceptor = Box::pin(tls.acceptor()).await;
    match tokio::time::timeout(shared.config.limits.header_timeout, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => serve_one(shared, stream, router).await,
        Ok(Err(error)) => tracing::debug!(%error, "a connection did not become TLS"),
        Err(_) => tracing::debug!("a connection did not become TLS in time"),
    }
}

async fn serve_one<S>(shared: Arc<Shared>, stream: S, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut http = hyper::server::conn::http1::Builder::new();
    // Without a timer a client that sends half a header would be kept for ever.
    http.timer(TokioTimer::new()).header_read_timeout(shared.config.limits.header_timeout).max_buf_size(64 << 10);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).with_upgrades();
    let connection = std::pin::pin!(connection);
    // A request that is still running when the server closes gets the rest of its answer only if that is quick.
    let closed = async {
        shared.closing.cancelled().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    futures_util::future::select(connection, std::pin::pin!(closed)).await;
}
