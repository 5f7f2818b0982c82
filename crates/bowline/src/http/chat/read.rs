//! Reading requests: bodies are JSON objects, fields are named when they are wrong, and nothing is taken on trust.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRef, FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use bowline_protocol::{ErrorCode, MessageId, Refusal};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::super::limits::RequestLimits;
use super::super::problem::Problem;

/// The caller's own key for a request: the same one twice does it once.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A body that is a JSON object; an empty one is an empty object.
#[derive(Debug)]
pub struct Body(BodyFields);

impl<S: Send + Sync> FromRequest<S> for Body
where
    Arc<RequestLimits>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Body, Problem> {
        let limits = Arc::<RequestLimits>::from_ref(state);
        let bytes = limits.bytes(request).await?;
        let text = limits.text(&bytes)?.trim();
        if text.is_empty() {
            return Ok(Body(BodyFields(Map::new())));
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => Ok(Body(BodyFields(fields))),
            Ok(_) => Err(Refusal::new(ErrorCode::InvalidPayload, "The body must be a JSON object.").into()),
            Err(error) => Err(Refusal::new(ErrorCode::InvalidJson, format!("The body is not JSON: {error}.")).into()),
        }
    }
}

impl Body {
    pub fn fields(self) -> BodyFields {
        self.0
    }
}

/// The fields of an object. Unknown fields are ignored; known ones must have the right type.
pub struct BodyFields(pub Map<String, Value>);

impl std::fmt::Debug for BodyFields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fields({})", self.0.len())
    }
}

impl BodyFields {
    pub fn take(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key).filter(|value| !value.is_null())
    }

    pub fn text(&mut self, key: &str) -> Result<Option<String>, Refusal> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Refusal::field(key, "must be text")),
        }
    }

    pub fn flag(&mut self, key: &str) -> Result<Option<bool>, Refusal> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(Refusal::field(key, "must be true or false")),
        }
    }

    pub fn object(&mut self, key: &str) -> Result<Option<Map<String, Value>>, Refusal> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(fields)),
            Some(_) => Err(Refusal::field(key, "must be an object")),
        }
    }

    /// A name of one of the kinds that have rules.
    pub fn name<T>(&mut self, key: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, Refusal> {
        match self.text(key)? {
            None => Ok(None),
            Some(text) => match parse(&text) {
                Some(name) => Ok(Some(name)),
                None => Err(Refusal::field(key, "is empty, too long, or holds control characters")),
            },
        }
    }
}

/// The name in a path. Percent signs can spell bytes that are no text.
#[derive(Debug)]
pub struct Name(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Name, Problem> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Name(name)),
            Err(_) => Err(Refusal::new(ErrorCode::InvalidPayload, "The path is not UTF-8.").into()),
        }
    }
}

/// A query string, or which part of it is wrong.
pub fn query<T: DeserializeOwned>(asked: Result<Query<T>, QueryRejection>) -> Result<T, Refusal> {
    asked.map(|query| query.0).map_err(|rejection| {
        Refusal::new(ErrorCode::InvalidPayload, format!("The query is wrong: {}.", rejection.body_text()))
    })
}

/// The key in the header, if there is one.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<MessageId>, Refusal> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.to_str().ok().and_then(MessageId::parse);
    key.map(Some).ok_or_else(|| Refusal::field("Idempotency-Key", "is empty, too long, or holds control characters"))
}
