//! JSON-RPC messages: told apart by their shape, with everything inside left as it was written.

use std::fmt;

use bowline_protocol::json;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::fields::{Fields, Raw, lossy, raw};

pub const PARSE_ERROR: i64 = -32700;
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;
pub const INTERNAL_ERROR: i64 = -32603;
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// The session or the server that was asked for is not there.
pub const NOT_FOUND: i64 = -32001;
pub const HEADER_MISMATCH: i64 = -32020;
pub const MISSING_CAPABILITY: i64 = -32021;
pub const UNSUPPORTED_VERSION: i64 = -32022;

/// The largest message that a server may send.
pub const BYTES_MAX: usize = 16 << 20;

/// A request's id: a string or a number, compared as it was written.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RpcId(String);

impl RpcId {
    pub fn number(number: u64) -> RpcId {
        RpcId(number.to_string())
    }

    pub fn text(text: &str) -> RpcId {
        RpcId(raw(text).get().to_owned())
    }

    fn of(raw: &RawValue) -> Option<RpcId> {
        let text = raw.get();
        // Almost all are a small number or a plain text, of which nothing has to be decoded.
        let is_plain = match text.as_bytes() {
            [b'"', inner @ .., b'"'] => !inner.contains(&b'\\'),
            digits => digits.len() < 16 && digits.iter().all(u8::is_ascii_digit),
        };
        let is_id = |value: Value| matches!(value, Value::String(_) | Value::Number(_));
        (is_plain || serde_json::from_str(text).is_ok_and(is_id)).then(|| RpcId(text.to_owned()))
    }

    /// An id as it was kept, if it is one.
    pub fn parse(text: &str) -> Option<RpcId> {
        RpcId::of(serde_json::from_str(text).ok()?)
    }

    pub fn as_json(&self) -> &str {
        &self.0
    }

    /// It is JSON, or it would have become no id.
    fn as_raw(&self) -> Option<&RawValue> {
        serde_json::from_str(&self.0).ok()
    }

    pub fn to_raw(&self) -> Raw {
        self.as_raw().map_or_else(|| raw(&self.0), ToOwned::to_owned)
    }

    /// The text, if it is one.
    pub fn as_text(&self) -> Option<String> {
        serde_json::from_str(&self.0).ok()
    }

    /// The number, if it is one of ours.
    pub fn as_number(&self) -> Option<u64> {
        self.0.parse().ok()
    }
}

impl fmt::Debug for RpcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a request came to: a result, or an error object.
pub type RpcResult = Result<Raw, Raw>;

#[derive(Clone)]
pub struct RpcRequest {
    pub id: RpcId,
    pub method: String,
    pub params: Option<Raw>,
}

#[derive(Clone)]
pub struct RpcNotification {
    pub method: String,
    pub params: Option<Raw>,
}

#[derive(Clone)]
pub struct RpcResponse {
    /// Missing when the other side could not tell what it answers.
    pub id: Option<RpcId>,
    pub answer: RpcResult,
}

#[derive(Clone)]
pub enum RpcMessage {
    Request(RpcRequest),
    Notification(RpcNotification),
    Response(RpcResponse),
}

#[derive(Deserialize)]
struct RpcEnvelope<'a> {
    #[serde(default, borrow)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

/// A result of `null` is a result; a missing one is none.
fn present<'de: 'a, 'a, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Why something is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("it is not UTF-8")]
    NotUtf8,
    #[error("it is not JSON")]
    NotJson,
    #[error("it nests too deeply")]
    TooDeep,
    #[error("it is not a JSON-RPC 2.0 message")]
    NotRpc,
}

impl Malformed {
    pub fn code(self) -> i64 {
        match self {
            Malformed::NotUtf8 | Malformed::NotJson | Malformed::TooDeep => PARSE_ERROR,
            Malformed::NotRpc => INVALID_REQUEST,
        }
    }
}

/// How deeply a message may nest; below the limit of the parser.
pub const DEPTH_MAX: usize = 100;

impl RpcMessage {
    pub const fn request(&self) -> Option<&RpcRequest> {
        match self {
            RpcMessage::Request(request) => Some(request),
            RpcMessage::Notification(_) | RpcMessage::Response(_) => None,
        }
    }

    pub fn parse(text: &str) -> Result<RpcMessage, Malformed> {
        if json::depth(text, DEPTH_MAX) > DEPTH_MAX {
            return Err(Malformed::TooDeep);
        }
        let envelope: RpcEnvelope<'_> = match serde_json::from_str(text) {
            Ok(envelope) => envelope,
            Err(_) if serde_json::from_str::<&RawValue>(text).is_ok() => {
                return Err(Malformed::NotRpc);
            }
            Err(_) => return Err(Malformed::NotJson),
        };
        if envelope.jsonrpc.is_none_or(|version| version.get() != "\"2.0\"") {
            return Err(Malformed::NotRpc);
        }
        let is_null = |raw: &&RawValue| raw.get() == "null";
        let id = match envelope.id.filter(|id| !is_null(id)) {
            Some(id) => Some(RpcId::of(id).ok_or(Malformed::NotRpc)?),
            None => None,
        };
        let params = || envelope.params.map(ToOwned::to_owned);
        match (envelope.method, id, envelope.result, envelope.error.filter(|error| !is_null(error))) {
            (Some(method), Some(id), _, _) => Ok(RpcMessage::Request(RpcRequest { id, method, params: params() })),
            (Some(method), None, _, _) => Ok(RpcMessage::Notification(RpcNotification { method, params: params() })),
            (None, id, _, Some(error)) => Ok(RpcMessage::Response(RpcResponse { id, answer: Err(error.to_owned()) })),
            (None, Some(id), Some(result), None) => {
                Ok(RpcMessage::Response(RpcResponse { id: Some(id), answer: Ok(result.to_owned()) }))
            }
            _ => Err(Malformed::NotRpc),
        }
    }

    pub fn parse_bytes(bytes: &[u8]) -> Result<RpcMessage, Malformed> {
        RpcMessage::parse(std::str::from_utf8(bytes).map_err(|_| Malformed::NotUtf8)?)
    }
}

#[derive(Serialize)]
struct Out<'a> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RawValue>,
}

const OUT: Out<'static> = Out { jsonrpc: "2.0", id: None, method: None, params: None, result: None, error: None };

pub fn request(id: &RpcId, method: &str, params: Option<&RawValue>) -> Raw {
    raw(&Out { id: id.as_raw(), method: Some(method), params, ..OUT })
}

pub fn notification(method: &str, params: Option<&Raw>) -> Raw {
    raw(&Out { method: Some(method), params: params.map(|raw| &**raw), ..OUT })
}

pub fn response(id: &RpcId, answer: &RpcResult) -> Raw {
    match answer {
        Ok(result) => raw(&Out { id: id.as_raw(), result: Some(result), ..OUT }),
        Err(error) => raw(&Out { id: id.as_raw(), error: Some(error), ..OUT }),
    }
}

/// An error response to something whose id could not be read.
pub fn nameless_error(code: i64, message: &str) -> Raw {
    raw(&json!({ "jsonrpc": "2.0", "id": null, "error": { "code": code, "message": message } }))
}

pub fn error(code: i64, message: &str) -> Raw {
    raw(&json!({ "code": code, "message": message }))
}

pub fn error_with(code: i64, message: &str, data: &Value) -> Raw {
    raw(&json!({ "code": code, "message": message, "data": data }))
}

/// The code of an error object; an internal error if it has none.
pub fn code_of(error: &Raw) -> i64 {
    Fields::of(Some(error)).read("code").unwrap_or(INTERNAL_ERROR)
}

pub fn message_of(error: &Raw) -> String {
    let message = Fields::of(Some(error)).get("message").map(lossy);
    let text = message.as_ref().and_then(|message| message.as_str());
    text.unwrap_or("an error without a message").to_owned()
}

/// Messages may hold what people wrote, so only their kind is shown.
impl fmt::Debug for RpcRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({:?} {})", self.id, self.method)
    }
}

impl fmt::Debug for RpcNotification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Notification({})", self.method)
    }
}

impl fmt::Debug for RpcResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({:?}, ok: {})", self.id, self.answer.is_ok())
    }
}

impl fmt::Debug for RpcMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RpcMessage::Request(request) => request.fmt(f),
            RpcMessage::Notification(notification) => notification.fmt(f),
            RpcMessage::Response(response) => response.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart_by_their_shape() {
        let kind = |text: &str| RpcMessage::parse(text).map(|message| format!("{message:?}"));
        assert_eq!(kind(r#"{"jsonrpc":"2.0","id":"a","method":"m","params":{}}"#).unwrap(), "Request(\"a\" m)");
        assert_eq!(kind(r#"{"jsonrpc":"2.0","method":"m"}"#).unwrap(), "Notification(m)");
        assert_eq!(kind(r#"{"jsonrpc":"2.0","id":1,"result":null}"#).unwrap(), "Response(Some(1), ok: true)");
        assert_eq!(kind(r#"{"jsonrpc":"2.0","error":{"code":1}}"#).unwrap(), "Response(None, ok: false)");
        assert_eq!(kind("{").unwrap_err(), Malformed::NotJson);
        for text in ["[]", "1", "{}", r#"{"jsonrpc":"1.0","method":"m"}"#, r#"{"jsonrpc":"2.0","id":1}"#] {
            assert_eq!(kind(text).unwrap_err(), Malformed::NotRpc, "{text}");
        }
        assert_eq!(kind(r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#).unwrap_err(), Malformed::NotRpc);
        assert_eq!(kind(&"[".repeat(100_000)).unwrap_err(), Malformed::TooDeep);
        for id in ["0", "-1", "1.5", "12345678901234567890", "\"\"", r#""a\n\"b""#] {
            let read = kind(&format!(r#"{{"jsonrpc":"2.0","id": {id} ,"method":"m"}}"#)).unwrap();
            assert_eq!(read, format!("Request({id} m)"));
        }
        for id in ["1e400", r#""\ud83d""#, "true", "[1]"] {
            let read = kind(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#));
            assert_eq!(read.unwrap_err(), Malformed::NotRpc, "{id}");
        }
    }

    #[test]
    fn a_response_carries_the_result_as_it_was() {
        let result: Raw = serde_json::from_str(r#"{"n":1.0,"x":{"new":"field"}}"#).unwrap();
        let text = response(&RpcId::text("q\"1"), &Ok(result));
        assert_eq!(text.get(), r#"{"jsonrpc":"2.0","id":"q\"1","result":{"n":1.0,"x":{"new":"field"}}}"#);
    }
}
