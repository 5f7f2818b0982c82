//! How these endpoints say no: in the shape that the API's clients read, with codes of ours.

use axum::Json;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bowline_protocol::Refusal;
use serde_json::json;

/// Words a refusal as the API does. Everything else about the answer stays as it is.
pub async fn in_the_apis_shape(response: Response) -> Response {
    let Some(refusal) = response.extensions().get::<Refusal>() else { return response };
    let kind = match response.status().as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        status if status >= 500 => "server_error",
        _ => "invalid_request_error",
    };
    let param = refusal.details.as_ref().and_then(|details| details["field"].as_str());
    let error = json!({
        "message": refusal.message,
        "type": kind,
        "param": param,
        "code": refusal.code.as_str(),
        "recovery_action": refusal.code.action().as_str(),
    });
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.remove(CONTENT_TYPE);
    (parts, Json(json!({ "error": error }))).into_response()
}
