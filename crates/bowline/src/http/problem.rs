//! How HTTP says no: the code, a sentence, and what to do next.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bowline_protocol::{ErrorCode, Refusal};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::sorted::Sorted;
use crate::metrics::Metrics;
use crate::schema;

/// A refusal as an HTTP answer.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    refusal: Refusal,
}

impl Problem {
    pub fn with_status(status: StatusCode, refusal: Refusal) -> Problem {
        Problem { status, refusal }
    }
}

/// What an endpoint answers in place of what was asked for.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub(crate) struct ProblemBody {
    #[schemars(schema_with = "schema::error_code")]
    code: &'static str,
    /// A sentence for people.
    message: String,
    #[schemars(schema_with = "schema::recovery_action")]
    recovery_action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object")]
    details: Option<Value>,
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let status = StatusCode::from_u16(refusal.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Problem { status, refusal }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Refusal { code, message, retry_after_ms, details } = self.refusal.clone();
        let recovery_action = code.action().as_str();
        let body = ProblemBody { code: code.as_str(), message, recovery_action, retry_after_ms, details };
        let mut response = (self.status, Sorted(body)).into_response();
        response.extensions_mut().insert(code);
        // For endpoints that word it otherwise.
        response.extensions_mut().insert(self.refusal);
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let later = matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        if let Some(ms) = retry_after_ms.filter(|_| later) {
            // For proxies and libraries, which count in seconds: never earlier than the body says.
            response.headers_mut().insert(header::RETRY_AFTER, ms.div_ceil(1000).into());
        }
        response
    }
}

/// Counts the refusals among the answers.
pub async fn count(State(metrics): State<Arc<Metrics>>, response: Response) -> Response {
    counted(&metrics, response)
}

pub fn counted(metrics: &Metrics, response: Response) -> Response {
    if let Some(code) = response.extensions().get::<ErrorCode>() {
        metrics.refusals.inc(code.as_str());
    }
    response
}

pub async fn no_such_path() -> Problem {
    let refusal = Refusal::new(ErrorCode::NotSupported, "There is no such path. The README lists the endpoints.");
    Problem::with_status(StatusCode::NOT_FOUND, refusal)
}

pub async fn no_such_method() -> Problem {
    let refusal = Refusal::new(ErrorCode::NotSupported, "This path does not take that method.");
    Problem::with_status(StatusCode::METHOD_NOT_ALLOWED, refusal)
}
