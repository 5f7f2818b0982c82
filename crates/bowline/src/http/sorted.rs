//! Answers as JSON, with the members of each object in the order of their names.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

/// The order is a promise to those who compare answers byte for byte; that of the members of a struct is ours to change.
#[derive(Debug)]
pub struct Sorted<T>(pub T);

/// What has no schema cannot be answered: the document at `/openapi.json` is made of them.
impl<T: Serialize + JsonSchema> IntoResponse for Sorted<T> {
    fn into_response(self) -> Response {
        match serde_json::to_value(&self.0) {
            Ok(value) => Json(value).into_response(),
            Err(error) => {
                tracing::error!(%error, "an answer could not be written");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}
