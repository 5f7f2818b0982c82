//! The doors: one file per door, and the loop that accepts connections to them.

mod admin;
pub mod chat;
mod health;
mod mcp;
mod page;
mod problem;
pub mod produce;
mod ws;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{any, get, post};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::node::Shared;

/// Plain HTTP requests that may be open beside the WebSockets.
const OTHER_CONNECTIONS_MAX: usize = 1024;
/// How long to wait when there are no descriptors left, instead of spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Every path that answers, for the documents.
pub const PATHS: &[&str] = &[
    "/",
    "/ws",
    "/produce",
    "/healthz",
    "/readyz",
    "/metrics",
    "/api/admin/node",
    "/api/admin/config",
    "/api/admin/sessions",
    "/api/admin/sessions/{id}",
    "/api/admin/sessions/{id}/events",
    "/api/admin/backends",
    "/api/admin/backends/{name}/reconnect",
    "/mcp",
    "/mcp/{server}",
];

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(page::index))
        .route("/ws", get(ws::upgrade))
        .route("/produce", get(produce::upgrade))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .route("/api/admin/node", get(admin::node))
        .route("/api/admin/config", get(admin::config))
        .route("/api/admin/sessions", get(admin::sessions))
        .route("/api/admin/sessions/{id}", get(admin::session))
        .route("/api/admin/sessions/{id}/events", get(admin::events))
        .route("/api/admin/backends", get(admin::backends))
        .route("/api/admin/backends/{name}/reconnect", post(admin::reconnect))
        .route("/mcp", any(mcp::all))
        .route("/mcp/{server}", any(mcp::one))
        .merge(chat::routes())
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(DefaultBodyLimit::max(shared.config.limits.http_body_bytes_max))
        .with_state(shared)
}

/// Accepts connections until the server closes, then waits for those that are open to end.
pub async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    let router = router(shared.clone());
    let places = Arc::new(Semaphore::new(shared.config.limits.connections_max + OTHER_CONNECTIONS_MAX));
    let tracker = TaskTracker::new();
    let accept = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let Ok(place) = places.clone().try_acquire_owned() else {
                        shared.metrics.limits_hit.inc("limits.connections_max");
                        continue;
                    };
                    let serve = serve_one(shared.clone(), stream, router.clone());
                    tracker.spawn(async move {
                        serve.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
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

async fn serve_one(shared: Arc<Shared>, stream: TcpStream, router: Router) {
    let _ = stream.set_nodelay(true);
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
