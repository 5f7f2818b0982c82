//! Words of HTTP: the headers that repeat what a request is about, and what a status or an error says.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_core::backend::DialError;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url};

use super::{Dial, Ending, MESSAGE_BYTES_MAX};
use crate::era::Era;
use crate::fields::{Fields, Raw};
use crate::message::Message;
use crate::spec::check_address;

pub(super) const SESSION: &str = "mcp-session-id";
pub(super) const VERSION: &str = "mcp-protocol-version";

/// The headers in which a modern request repeats what it is about, for those who route by them.
pub fn mirror_headers(method: &str, params: Option<&Raw>) -> Vec<(String, String)> {
    let mut headers =
        vec![(VERSION.to_owned(), Era::Modern.newest().to_owned()), ("mcp-method".to_owned(), method.to_owned())];
    let fields = Fields::of(params.map(|raw| &**raw));
    let key = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        method if method.starts_with("tasks/") => "taskId",
        _ => return headers,
    };
    if let Some(name) = fields.text(key) {
        headers.push(("mcp-name".to_owned(), header_text(&name)));
    }
    headers
}

/// A value as it may stand in a header; what does not fit is wrapped as the protocol says.
pub fn header_text(text: &str) -> String {
    let plain = text.bytes().all(|b| (0x20..0x7f).contains(&b) || b == b'\t');
    let trimmed = text.trim() == text && !text.starts_with("=?base64?");
    if plain && trimmed {
        return text.to_owned();
    }
    use base64::Engine;
    format!("=?base64?{}?=", base64::engine::general_purpose::STANDARD.encode(text))
}

/// What a header says, unwrapped if it was wrapped.
pub fn plain_text(header: &str) -> String {
    use base64::Engine;
    let wrapped = header.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    let bytes = wrapped.and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| header.to_owned())
}

/// Checks the address, where it is written as one, and readies the headers.
pub(super) fn prepare(url: &Url, headers: &BTreeMap<String, String>, dial: &Dial) -> Result<HeaderMap, DialError> {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    if let Ok(address) = host.parse() {
        check_address(address, dial.allow_private).map_err(|error| DialError::Fatal { reason: error.to_string() })?;
    }
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let bad = || DialError::Fatal { reason: format!("the header `{name}` cannot be sent") };
        let name = HeaderName::try_from(name).map_err(|_| bad())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| bad())?;
        value.set_sensitive(true);
        map.insert(name, value);
    }
    Ok(map)
}

pub(super) fn said(status: StatusCode) -> String {
    format!("it answered with HTTP {}", status.as_u16())
}

/// A refusal without an answer in it. It concerns this call only.
pub(super) fn failed_status(status: StatusCode) -> Ending {
    let hint = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "; its credentials are missing or wrong",
        _ => "",
    };
    Ending::failed(&format!("the server refused the call: {}{hint}", said(status)))
}

pub(super) fn retry_after(response: &Response) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    let seconds: u64 = text.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(3600)))
}

/// The innermost reason, without the URL, which may hold a secret.
pub(super) fn tell(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut source: &dyn std::error::Error = &error;
    while let Some(inner) = source.source() {
        source = inner;
    }
    source.to_string()
}

/// A body, up to the largest message there is.
pub(super) async fn body(mut response: Response) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(bytes),
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
            Err(error) => return Err(tell(error)),
        }
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err("it sent more than is taken".into());
        }
    }
}

pub(super) fn parse(bytes: &[u8]) -> Option<Message> {
    Message::parse_bytes(bytes).ok()
}
