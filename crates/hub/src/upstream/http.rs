//! Words of HTTP: the headers that repeat what a request is about, and what a status or an error says.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_core::backend::DialError;
use bowline_core::upstream_session::ResponseStatus;
use bowline_env::clock;
use jiff::Timestamp;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url};

use super::Dial;
use crate::catalogue::mirrored_headers::VERSION;
use crate::config::spec::check_address;
use crate::message::BYTES_MAX;

pub(super) const SESSION: &str = "mcp-session-id";

/// Checks the address, where it is written as one, and readies the headers.
pub(super) fn prepare(url: &Url, headers: &BTreeMap<String, String>, dial: &Dial) -> Result<HeaderMap, DialError> {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    if let Ok(address) = host.parse() {
        check_address(address, dial.reach).map_err(|error| DialError::Fatal { reason: error.to_string() })?;
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

/// The same for requests in a session.
pub(super) fn session_headers(base: &HeaderMap, id: Option<&str>, version: &str) -> HeaderMap {
    let mut headers = base.clone();
    for (name, text) in [(VERSION, Some(version)), (SESSION, id)] {
        if let Some(value) = text.and_then(|text| HeaderValue::from_str(text).ok()) {
            headers.insert(name, value);
        }
    }
    headers
}

pub(super) fn said(status: StatusCode) -> String {
    format!("it answered with HTTP {}", status.as_u16())
}

pub(super) fn status_of(status: StatusCode) -> ResponseStatus {
    ResponseStatus(status.as_u16())
}

/// A refusal of one call by its status, in words.
pub(super) fn refusal(status: StatusCode) -> String {
    let hint = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "; its credentials are missing or wrong",
        _ => "",
    };
    format!("{}{hint}", said(status))
}

/// No server means more than a year; so no sum of times can overflow.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// `Retry-After` is a number of seconds, or a date.
fn wait_of(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Some(Duration::try_from(then.duration_since(now)).unwrap_or_default())
}

pub(super) fn retry_after(response: &Response) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    Some(wait_of(text.trim(), clock::wall())?.min(RETRY_AFTER_MAX))
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

pub(super) enum BodyError {
    Broken(String),
    TooLong,
}

/// A body, up to the largest message there is.
pub(super) async fn body(mut response: Response) -> Result<Vec<u8>, BodyError> {
    let length = response.content_length();
    let mut bytes = Vec::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(bytes),
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
            Err(error) => return Err(BodyError::Broken(tell(error))),
        }
        // Content-Length is reached, so do not wait for the end of the stream.
        if length == Some(bytes.len() as u64) {
            return Ok(bytes);
        }
        if bytes.len() > BYTES_MAX {
            return Err(BodyError::TooLong);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_say_in_seconds_or_as_a_date_when_to_come_back() {
        let now: Timestamp = "2015-10-21T07:27:00Z".parse().unwrap();
        assert_eq!(wait_of("120", now), Some(Duration::from_secs(120)));
        assert_eq!(wait_of("Wed, 21 Oct 2015 07:28:00 GMT", now), Some(Duration::from_secs(60)));
        assert_eq!(wait_of("Wed, 21 Oct 2015 07:26:00 GMT", now), Some(Duration::ZERO));
        assert_eq!(wait_of("soon", now), None);
    }
}
