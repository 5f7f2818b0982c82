//! How much a request may bring and ask for. What goes beyond a limit is refused and counted.

use std::sync::Arc;

use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use bowline_protocol::frame::client::Content;
use bowline_protocol::{ErrorCode, Refusal, json};
use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::config::Config;
use crate::metrics::Metrics;

#[derive(Debug)]
pub struct RequestLimits {
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
}

impl RequestLimits {
    /// The bytes of a request's body, within the limit.
    pub async fn bytes(&self, request: Request) -> Result<Bytes, Refusal> {
        Bytes::from_request(request, &()).await.map_err(|rejection| {
            if matches!(&rejection, BytesRejection::FailedToBufferBody(_)) && rejection.status().as_u16() == 413 {
                self.metrics.limits_hit.inc("limits.http_body_bytes_max");
                let max = self.config.limits.http_body_bytes_max;
                let message = format!("The body is larger than limits.http_body_bytes_max ({max} bytes).");
                return Refusal::new(ErrorCode::MessageTooLarge, message);
            }
            Refusal::new(ErrorCode::InvalidPayload, "The body could not be read to its end.")
        })
    }

    /// Text that nests no deeper than allowed.
    pub fn text<'a>(&self, bytes: &'a [u8]) -> Result<&'a str, Refusal> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| Refusal::new(ErrorCode::InvalidJson, "The body is not UTF-8. Send JSON."))?;
        let depth_max = self.config.limits.json_depth_max;
        if json::depth(text, depth_max) > depth_max {
            let message = format!("The body nests deeper than {depth_max} levels (limits.json_depth_max).");
            return Err(Refusal::new(ErrorCode::InvalidJson, message));
        }
        Ok(text)
    }

    /// A message as a person sent it: text, or an object with `text`.
    pub fn content(&self, field: &str, value: &Value) -> Result<Content, Refusal> {
        let content = self.fits(value)?;
        match content.text() {
            Some(_) => Ok(content),
            None => Err(Refusal::field(field, "must be text, or an object with `text`")),
        }
    }

    /// What a caller wrote, unless it is larger than a message may be.
    pub fn fits(&self, value: &Value) -> Result<Content, Refusal> {
        let raw = serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned());
        let content = Content(raw);
        let max = self.config.limits.message_bytes_max;
        let bytes = content.bytes();
        if bytes > max {
            self.metrics.limits_hit.inc("limits.message_bytes_max");
            let message = format!("The message is {bytes} bytes long; limits.message_bytes_max is {max}.");
            return Err(Refusal::new(ErrorCode::MessageTooLarge, message));
        }
        Ok(content)
    }

    /// Whether one more stream may be opened.
    pub fn admit_stream(&self) -> Result<(), Refusal> {
        if (self.metrics.streams.get() as usize) < self.config.limits.streams_max {
            return Ok(());
        }
        self.metrics.limits_hit.inc("limits.streams_max");
        let message = "The server streams to as many readers as it takes. Try again later.";
        Err(Refusal::new(ErrorCode::RateLimited, message).retry_after_ms(5000))
    }
}
