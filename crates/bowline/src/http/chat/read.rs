//! Reading requests: bodies are JSON objects, fields are named when they are wrong, and nothing is taken on trust.

use std::sync::Arc;

use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use bowline_protocol::frame::client::Content;
use bowline_protocol::{ErrorCode, MessageId, Refusal, json};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::super::problem::Problem;
use crate::server::Shared;

/// The caller's own key for a request: the same one twice does it once.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The bytes of a request's body, within the limit.
pub async fn bytes(shared: &Arc<Shared>, request: Request) -> Result<Bytes, Refusal> {
    Bytes::from_request(request, shared).await.map_err(|rejection| {
        if matches!(&rejection, BytesRejection::FailedToBufferBody(_)) && rejection.status().as_u16() == 413 {
            shared.metrics.limits_hit.inc("limits.http_body_bytes_max");
            let max = shared.config.limits.http_body_bytes_max;
            let message = format!("The body is larger than limits.http_body_bytes_max ({max} bytes).");
            return Refusal::new(ErrorCode::MessageTooLarge, message);
        }
        Refusal::new(ErrorCode::InvalidPayload, "The body could not be read to its end.")
    })
}

/// Text that nests no deeper than allowed.
pub fn text<'a>(shared: &Shared, bytes: &'a [u8]) -> Result<&'a str, Refusal> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| Refusal::new(ErrorCode::InvalidJson, "The body is not UTF-8. Send JSON."))?;
    let depth_max = shared.config.limits.json_depth_max;
    if json::depth(text, depth_max) > depth_max {
        let message = format!("The body nests deeper than {depth_max} levels (limits.json_depth_max).");
        return Err(Refusal::new(ErrorCode::InvalidJson, message));
    }
    Ok(text)
}

/// A body that is a JSON object; an empty one is an empty object.
#[derive(Debug)]
pub struct Body(Fields);

impl FromRequest<Arc<Shared>> for Body {
    type Rejection = Problem;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Body, Problem> {
        let bytes = bytes(shared, request).await?;
        let text = text(shared, &bytes)?.trim();
        if text.is_empty() {
            return Ok(Body(Fields(Map::new())));
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => Ok(Body(Fields(fields))),
            Ok(_) => Err(Refusal::new(ErrorCode::InvalidPayload, "The body must be a JSON object.").into()),
            Err(error) => Err(Refusal::new(ErrorCode::InvalidJson, format!("The body is not JSON: {error}.")).into()),
        }
    }
}

impl Body {
    pub fn fields(self) -> Fields {
        self.0
    }
}

/// The fields of an object. What nobody asks for is ignored; what is asked for must have the right type.
pub struct Fields(pub Map<String, Value>);

impl std::fmt::Debug for Fields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fields({})", self.0.len())
    }
}

impl Fields {
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

impl FromRequestParts<Arc<Shared>> for Name {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Name, Problem> {
        match Path::<String>::from_request_parts(parts, shared).await {
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

/// A message as a person sent it: text, or an object with `text`.
pub fn content(shared: &Shared, field: &str, value: &Value) -> Result<Content, Refusal> {
    let raw = serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned());
    let content = Content(raw);
    let max = shared.config.limits.message_bytes_max;
    let bytes = content.bytes();
    if bytes > max {
        shared.metrics.limits_hit.inc("limits.message_bytes_max");
        let message = format!("The message is {bytes} bytes long; limits.message_bytes_max is {max}.");
        return Err(Refusal::new(ErrorCode::MessageTooLarge, message));
    }
    match content.text() {
        Some(_) => Ok(content),
        None => Err(Refusal::field(field, "must be text, or an object with `text`")),
    }
}
