//! What can go wrong between us and an upstream: what it means for the run, and whether it may be tried again.

use std::fmt;
use std::time::Duration;

use bowline_api::AgentError;
use http::{HeaderMap, StatusCode};

/// A longer wait than this is not one that a person sits through: the run ends and can be tried again later.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

pub enum UpstreamError {
    /// No connection came about, so nothing was sent.
    Unsent(String),
    /// The request went out, and the answer did not come or broke off.
    Broken(String),
    /// Nothing came for so long.
    Silent(Duration),
    /// It answered with a status that is no answer.
    Refused { status: StatusCode, retry_after: Option<Duration>, message: String },
    /// What came is not what was agreed on.
    Garbage(String),
}

/// What an upstream said may repeat what a person wrote, so it is not shown.
impl fmt::Debug for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamError::Unsent(why) => write!(f, "Unsent({why})"),
            UpstreamError::Broken(why) => write!(f, "Broken({why})"),
            UpstreamError::Silent(time) => write!(f, "Silent({time:?})"),
            UpstreamError::Refused { status, retry_after, message } => {
                write!(f, "Refused({status}, retry after {retry_after:?}, {} bytes)", message.len())
            }
            UpstreamError::Garbage(what) => write!(f, "Garbage({what})"),
        }
    }
}

/// When a request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// Asking a model changes nothing by itself: it may be asked again until something of its answer was shown.
    UntilAnswered,
    /// A program may have acted on a request as soon as it got it: only one that was surely not taken up goes out again.
    IfNotTaken,
}

impl UpstreamError {
    /// Whether another try makes sense, and how long the upstream asks us to wait before it.
    pub fn retry(&self, resend: Resend) -> Option<Option<Duration>> {
        match (self, resend) {
            (UpstreamError::Unsent(_), _) | (UpstreamError::Broken(_), Resend::UntilAnswered) => Some(None),
            (UpstreamError::Refused { retry_after: Some(wait), .. }, _) if *wait > RETRY_AFTER_MAX => None,
            (UpstreamError::Refused { status, retry_after, .. }, Resend::UntilAnswered) if is_passing(*status) => {
                Some(*retry_after)
            }
            (UpstreamError::Refused { status, retry_after: Some(wait), .. }, Resend::IfNotTaken) => {
                let not_taken = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(status);
                not_taken.then_some(Some(*wait))
            }
            _ => None,
        }
    }
}

/// A status that may well be another one in a moment.
fn is_passing(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

/// The sentence is for the agent's clients: it names no address and no key.
impl From<UpstreamError> for AgentError {
    fn from(error: UpstreamError) -> AgentError {
        match error {
            UpstreamError::Unsent(_) => AgentError::unreachable("The agent's upstream cannot be reached."),
            UpstreamError::Broken(why) => AgentError::unreachable(format!("The agent's upstream broke off: {why}.")),
            UpstreamError::Silent(time) => {
                AgentError::unreachable(format!("The agent's upstream was silent for {} s.", time.as_secs_f64()))
            }
            UpstreamError::Refused { status, message, .. } if is_passing(status) => {
                AgentError::unreachable(format!("The agent's upstream answered {status}{}", tail(&message)))
            }
            UpstreamError::Refused { status, message, .. } => {
                AgentError::failed(format!("The agent's upstream answered {status}{}", tail(&message)))
            }
            UpstreamError::Garbage(what) => AgentError::failed(format!("The agent's upstream sent {what}.")),
        }
    }
}

fn tail(message: &str) -> String {
    if message.is_empty() { ".".into() } else { format!(": {message}") }
}

/// How long a refusal asks us to wait: in milliseconds, in seconds, or until a date.
pub fn retry_after(headers: &HeaderMap, now: jiff::Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    if let Some(ms) = text("retry-after-ms").and_then(|text| text.parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(ms / 1000.0).ok();
    }
    let value = text("retry-after")?;
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_protocol::ErrorCode;

    fn refused(status: u16, retry_after: Option<u64>) -> UpstreamError {
        let status = StatusCode::from_u16(status).unwrap();
        UpstreamError::Refused { status, retry_after: retry_after.map(Duration::from_secs), message: String::new() }
    }

    #[test]
    fn a_request_that_may_have_been_taken_up_is_not_sent_again_to_a_program() {
        for error in [
            UpstreamError::Broken(String::new()),
            UpstreamError::Silent(Duration::ZERO),
            refused(500, Some(1)),
            refused(502, None),
            refused(503, None),
            refused(429, None),
            refused(429, Some(3600)),
            refused(400, Some(1)),
        ] {
            assert_eq!(error.retry(Resend::IfNotTaken), None, "{error:?}");
        }
        for error in [refused(503, Some(2)), refused(429, Some(2))] {
            assert_eq!(error.retry(Resend::IfNotTaken), Some(Some(Duration::from_secs(2))), "{error:?}");
        }
        assert_eq!(UpstreamError::Unsent(String::new()).retry(Resend::IfNotTaken), Some(None));
    }

    #[test]
    fn a_model_is_asked_again_after_troubles_that_pass() {
        for error in [
            UpstreamError::Unsent(String::new()),
            UpstreamError::Broken(String::new()),
            refused(500, None),
            refused(429, None),
        ] {
            assert_eq!(error.retry(Resend::UntilAnswered), Some(None), "{error:?}");
        }
        assert_eq!(refused(429, Some(7)).retry(Resend::UntilAnswered), Some(Some(Duration::from_secs(7))));
        for error in [
            UpstreamError::Silent(Duration::ZERO),
            UpstreamError::Garbage(String::new()),
            refused(400, None),
            refused(401, None),
            refused(429, Some(61)),
        ] {
            assert_eq!(error.retry(Resend::UntilAnswered), None, "{error:?}");
        }
    }

    #[test]
    fn what_passes_is_unreachable_and_what_does_not_has_failed() {
        let code = |error: UpstreamError| AgentError::from(error).code;
        assert_eq!(code(UpstreamError::Broken(String::new())), ErrorCode::AgentUnreachable);
        assert_eq!(code(refused(503, None)), ErrorCode::AgentUnreachable);
        assert_eq!(code(refused(401, None)), ErrorCode::AgentFailed);
        assert_eq!(code(UpstreamError::Garbage(String::new())), ErrorCode::AgentFailed);
    }

    #[test]
    fn a_wait_is_read_in_all_three_ways() {
        let now: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let read = |name: &'static str, text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, text.parse().unwrap());
            retry_after(&headers, now)
        };
        assert_eq!(read("retry-after-ms", "1500"), Some(Duration::from_millis(1500)));
        assert_eq!(read("retry-after", "2"), Some(Duration::from_secs(2)));
        assert_eq!(read("retry-after", "Thu, 01 Jan 2026 00:00:30 GMT"), Some(Duration::from_secs(30)));
        assert_eq!(read("retry-after", "Wed, 31 Dec 2025 00:00:30 GMT"), Some(Duration::ZERO));
        assert_eq!(read("retry-after", "-1"), None);
        assert_eq!(read("retry-after", "soon"), None);
    }
}
