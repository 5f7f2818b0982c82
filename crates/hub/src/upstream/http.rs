//! Words of HTTP: the headers that repeat what a request is about, what a status says, and a client that does not go to forbidden
//! addresses, whatever a name resolves to.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backend::DialError;
use bowline_core::upstream_session::ResponseStatus;
use bowline_env::http::{AddressGuard, Endpoint, Http1Client, HttpOptions, Response, Route};
use bowline_env::{Network, clock};
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use jiff::Timestamp;
use url::Url;

use crate::catalogue::mirrored_headers::VERSION;
use crate::config::spec::{Reach, ServerSpec, SpecError, Target, check_address};
use crate::message::BYTES_MAX;
use crate::upstream::Dial;

pub(super) const SESSION: &str = "mcp-session-id";

/// Checks the address, where it is written as one, and readies it and the headers.
pub(super) fn prepare(
    url: &Url,
    headers: &BTreeMap<String, String>,
    dial: &Dial,
) -> Result<(Endpoint, HeaderMap), DialError> {
    let fatal = |reason: String| DialError::Fatal { reason };
    let endpoint = Endpoint::new(url).map_err(|error| fatal(error.why))?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    if let Ok(address) = host.parse() {
        check_address(address, dial.reach).map_err(|error| fatal(error.to_string()))?;
    }
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let bad = || fatal(format!("the header `{name}` cannot be sent"));
        let name = HeaderName::try_from(name).map_err(|_| bad())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| bad())?;
        value.set_sensitive(true);
        map.insert(name, value);
    }
    Ok((endpoint, map))
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

pub(super) enum BodyError {
    Broken(String),
    TooLong,
}

/// A body, up to the largest message there is.
pub(super) async fn body(mut response: Response) -> Result<Bytes, BodyError> {
    let length = response.content_length();
    let mut bytes = Vec::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(bytes.into()),
            // Most come in one piece.
            Ok(Some(chunk)) if bytes.is_empty() && length == Some(chunk.len() as u64) => return Ok(chunk),
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
            Err(cut) => return Err(BodyError::Broken(cut.0)),
        }
        // Content-Length is reached, so do not wait for the end of the stream.
        if length == Some(bytes.len() as u64) {
            return Ok(bytes.into());
        }
        if bytes.len() > BYTES_MAX {
            return Err(BodyError::TooLong);
        }
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Who asks.
const AGENT: &str = concat!("bowline/", env!("CARGO_PKG_VERSION"));

/// As many connections to one server wait for the next request; each is one that was in use at once.
const IDLE_MAX: usize = 64;

pub fn client(reach: Reach, network: &Arc<dyn Network>) -> Http1Client {
    let route = Route::Guarded(Arc::new(ReachGuard(reach)));
    let options = HttpOptions { user_agent: AGENT, route, connect_timeout: CONNECT_TIMEOUT, idle_max: IDLE_MAX };
    Http1Client::new(network, options)
}

/// Why a name cannot be dialled. It is one sentence whether the name is not known or leads where added servers may not be: two would
/// tell a client that adds servers which names exist inside the network.
const NOT_REACHABLE: &str = "the name leads to no address that may be reached from here";

/// Refuses an entry whose URL itself says that it leads where it may not. What a name leads to is looked at when it is dialled, and
/// `add_server` does not tell.
pub fn check(spec: &ServerSpec, reach: Reach) -> Result<(), SpecError> {
    let Target::Http { url, .. } = &spec.target else { return Ok(()) };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    match host.parse() {
        Ok(address) => check_address(address, reach),
        // RFC 6761: these names are loopback by definition, so refusing them tells nothing.
        Err(_) if is_localhost(host) => check_address(Ipv4Addr::LOCALHOST.into(), reach),
        Err(_) => Ok(()),
    }
}

fn is_localhost(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

#[derive(Debug)]
struct ReachGuard(Reach);

impl AddressGuard for ReachGuard {
    fn check(&self, address: IpAddr) -> Result<(), String> {
        check_address(address, self.0).map_err(|error| error.to_string())
    }

    /// Where all addresses may be dialled, the resolver's own error helps the operator and tells nothing new.
    fn choose(&self, found: io::Result<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>, String> {
        let found = match found {
            Err(error) if self.0 == Reach::Anywhere => return Err(error.to_string()),
            found => found.unwrap_or_default(),
        };
        let allowed: Vec<SocketAddr> =
            found.into_iter().filter(|address| check_address(address.ip(), self.0).is_ok()).collect();
        if allowed.is_empty() { Err(NOT_REACHABLE.into()) } else { Ok(allowed) }
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

#[cfg(test)]
mod address_guard_tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_known_and_one_that_leads_inside_fail_alike() {
        let inside = || Ok(vec![SocketAddr::from(([10, 1, 2, 3], 0)), SocketAddr::from(([169, 254, 169, 254], 0))]);
        let unknown = || Err(io::Error::other("no such host"));
        let why = |found, reach| ReachGuard(reach).choose(found).unwrap_err();
        assert_eq!(why(inside(), Reach::Public), why(unknown(), Reach::Public));
        assert_eq!(why(unknown(), Reach::NotLinkLocal), NOT_REACHABLE);
        assert_eq!(why(Ok(Vec::new()), Reach::Public), NOT_REACHABLE);
        assert_eq!(why(unknown(), Reach::Anywhere), "no such host", "the configuration is an operator's");
        assert_eq!(ReachGuard(Reach::NotLinkLocal).choose(inside()).unwrap().len(), 1);
    }
}
