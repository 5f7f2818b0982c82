//! How these endpoints say no: in the shape that the API's clients read, with codes of ours.

use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bowline_protocol::Refusal;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::super::sorted::Sorted;
use crate::schema;

/// What an endpoint of the API answers in place of what was asked for.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ApiProblem")]
pub(crate) struct ErrorBody {
    error: ErrorFacts,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct ErrorFacts {
    /// A sentence for people.
    message: String,
    #[serde(rename = "type")]
    kind: ErrorKind,
    /// The field that is wrong, if it is one.
    param: Option<String>,
    #[schemars(schema_with = "schema::error_code")]
    code: &'static str,
    #[schemars(schema_with = "schema::recovery_action")]
    recovery_action: &'static str,
}

/// The API's own kinds.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
enum ErrorKind {
    #[serde(rename = "authentication_error")]
    Authentication,
    #[serde(rename = "permission_error")]
    Permission,
    #[serde(rename = "not_found_error")]
    NotFound,
    #[serde(rename = "rate_limit_error")]
    RateLimit,
    #[serde(rename = "server_error")]
    Server,
    #[serde(rename = "invalid_request_error")]
    InvalidRequest,
}

impl ErrorFacts {
    /// A refusal as the API words it.
    pub(super) fn of(refusal: &Refusal, status: StatusCode) -> ErrorFacts {
        let kind = match status.as_u16() {
            401 => ErrorKind::Authentication,
            403 => ErrorKind::Permission,
            404 => ErrorKind::NotFound,
            429 => ErrorKind::RateLimit,
            status if status >= 500 => ErrorKind::Server,
            _ => ErrorKind::InvalidRequest,
        };
        let param = refusal.details.as_ref().and_then(|details| details["field"].as_str());
        ErrorFacts {
            message: refusal.message.clone(),
            kind,
            param: param.map(str::to_owned),
            code: refusal.code.as_str(),
            recovery_action: refusal.code.action().as_str(),
        }
    }
}

/// A stream whose credential ended, as the API's error event.
pub fn cut_off(refusal: &Refusal) -> String {
    let error = json!({ "type": "error", "code": refusal.code.as_str(), "message": refusal.message, "param": null });
    format!("event: error\ndata: {error}\n\n")
}

/// Words a refusal as the API does. Everything else about the answer stays as it is.
pub async fn in_the_apis_shape(response: Response) -> Response {
    let Some(refusal) = response.extensions().get::<Refusal>() else { return response };
    let error = ErrorFacts::of(refusal, response.status());
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.remove(CONTENT_TYPE);
    (parts, Sorted(ErrorBody { error })).into_response()
}
