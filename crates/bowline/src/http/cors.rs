//! Pages of other origins: those that are allowed may call from a browser and read the answers, others may not.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::admission::AdmissionRules;

/// What a page may ask with.
const METHODS: &str = "GET, POST, DELETE";
const REQUEST_HEADERS: &str = "authorization, content-type, last-event-id, idempotency-key, producer-id, producer-seq, \
                               bowline-resume-token, x-vercel-ai-ui-message-stream";
/// What a page may read of an answer besides its body.
const ANSWER_HEADERS: &str = "x-workflow-run-id, x-workflow-stream-tail-index, location, retry-after, bowline-session-id, \
                              bowline-resume-token, x-vercel-ai-ui-message-stream";
/// How long a browser may remember the answer to its question, in seconds. Short, so that a changed setting is soon true.
const REMEMBERED: &str = "600";

/// Answers a browser's question whether it may ask, and lets pages of allowed origins read what they are answered.
///
/// Nothing is said of cookies: credentials travel in `Authorization` only, which a page has to know to send it.
pub async fn share(State(admission): State<Arc<AdmissionRules>>, request: Request, next: Next) -> Response {
    let Some(origin) = request.headers().get(header::ORIGIN).cloned() else {
        return varying(next.run(request).await);
    };
    if let Err(problem) = admission.check_origin(request.headers()) {
        return varying(problem.into_response());
    }
    let asks_first =
        request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if asks_first {
        let allowed = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS),
            (header::ACCESS_CONTROL_MAX_AGE, REMEMBERED),
        ];
        (StatusCode::NO_CONTENT, allowed).into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(ANSWER_HEADERS));
    varying(response)
}

/// The answer depends on who asks, and caches must know.
fn varying(mut response: Response) -> Response {
    response.headers_mut().append(header::VARY, HeaderValue::from_static("origin"));
    response
}
