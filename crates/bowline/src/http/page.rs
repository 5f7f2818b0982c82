//! `/` and `/assets/{name}`: the console, as it was built into the binary. Old clients also dial their WebSocket at `/`.

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts, State};
use axum::http::{HeaderMap, HeaderName, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::chat::read::Name;
use super::ws::{self, WsState};
use super::{endpoints, problem};

/// One file of the console.
struct ConsoleFile {
    name: &'static str,
    kind: &'static str,
    /// Weak, because it is the same for both encodings.
    tag: &'static str,
    plain: &'static [u8],
    gzipped: &'static [u8],
}

/// Written by `build.rs` from `console/dist`.
static FILES: &[ConsoleFile] = include!(concat!(env!("OUT_DIR"), "/console.rs"));
const INDEX: &str = "index.html";

/// Nothing but the page's own files, and no page may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The name of an asset changes with what is in it, so it never has to be asked for again.
const FOR_EVER: &str = "public, max-age=31536000, immutable";
/// The page itself is asked for each time, and mostly answered "not modified".
const ASK_AGAIN: &str = "no-cache";

endpoints! {
    WsState;
    "/" => get(index),
    "/assets/{name}" => get(asset),
}

async fn index(State(state): State<WsState>, request: Request<axum::body::Body>) -> Response {
    let (mut parts, _) = request.into_parts();
    if parts.headers.contains_key(header::UPGRADE) {
        let headers = parts.headers.clone();
        let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &state).await;
        return ws::upgrade(State(state), headers, upgrade).await;
    }
    send(INDEX, ASK_AGAIN, &parts.headers).await
}

async fn asset(Name(name): Name, headers: HeaderMap) -> Response {
    send(if name == INDEX { "" } else { &name }, FOR_EVER, &headers).await
}

async fn send(name: &str, keep: &'static str, asked: &HeaderMap) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        return problem::no_such_path().await.into_response();
    };
    let known = words(asked, header::IF_NONE_MATCH).any(|tag| tag == file.tag || tag == "*");
    let about = [
        (header::ETAG, file.tag),
        (header::CACHE_CONTROL, keep),
        (header::VARY, "accept-encoding"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    if known {
        return (StatusCode::NOT_MODIFIED, about).into_response();
    }
    let kind = [(header::CONTENT_TYPE, file.kind)];
    if words(asked, header::ACCEPT_ENCODING).any(takes_gzip) {
        return (about, kind, [(header::CONTENT_ENCODING, "gzip")], file.gzipped).into_response();
    }
    (about, kind, file.plain).into_response()
}

/// What a header lists, from all its lines.
fn words(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',').map(str::trim))
}

/// Whether one word of `Accept-Encoding` means gzip, and not "anything but gzip".
fn takes_gzip(word: &str) -> bool {
    let (coding, weight) = word.split_once(';').unwrap_or((word, ""));
    let refused = weight.trim().strip_prefix("q=").and_then(|q| q.parse::<f32>().ok()) == Some(0.0);
    coding.trim().eq_ignore_ascii_case("gzip") && !refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_to_those_who_take_it() {
        assert!(["gzip", "GZIP", "gzip;q=0.5", "gzip; q=1"].into_iter().all(takes_gzip));
        assert!(!["br", "", "gzip;q=0", "gzip; q=0.000", "gzipped", "*"].into_iter().any(takes_gzip));
    }
}
