//! Reading back what the store keeps. What is there and cannot be read is an error for the caller, and never "nothing
//! was kept": most of what is kept stops a thing from being done twice.

use std::fmt::Display;

use bowline_protocol::{ErrorCode, LogId, Refusal};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::json;

/// An item, or the record of a log, as the type that was written.
pub fn decode<T: DeserializeOwned>(log: &LogId, key: &str, bytes: Option<Bytes>) -> Result<Option<T>, Refusal> {
    let read = bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose();
    read.map_err(|error| unreadable(log, key, &error))
}

/// Tells the caller that nothing was done, and the operator what to look at.
pub fn unreadable(log: &LogId, key: &str, why: &dyn Display) -> Refusal {
    tracing::error!(%log, key, %why, "what the store keeps cannot be read");
    let message = "What the store keeps about this cannot be read, so nothing was done. An operator has to look at it.";
    Refusal::new(ErrorCode::StoreUnavailable, message).details(json!({ "unreadable": key }))
}
