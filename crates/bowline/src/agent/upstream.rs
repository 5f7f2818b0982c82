//! The wire to an agent behind HTTP: one POST, and the records of what is answered.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use bowline_api::{AgentError, Host, Stopped};
use bowline_core::backoff::Backoff;
use bowline_core::scrub::scrub_text;
use bowline_env::http::{Endpoint, Http1Client, HttpOptions, Proxies, Response, Route, SendError};
use bowline_env::{Network, clock, entropy, tls};
use bowline_protocol::frame::client::Secret;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::de::IgnoredAny;
use serde_json::Value;
use sse_stream::SseByteStream;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::upstream_error::{Resend, UpstreamError, retry_after};
use crate::config::WireConfig;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an upstream that has said everything may take to finish, undisturbed.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// How much of a refusal is read, and how much of it is reported.
const REFUSAL_BYTES_MAX: usize = 16 << 10;
const REFUSAL_CHARS_MAX: usize = 500;
/// The first wait before another try, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(20));
const ACCEPTED: HeaderValue = HeaderValue::from_static("text/event-stream, application/x-ndjson, application/json");
const UI_STREAM: &str = "x-vercel-ai-ui-message-stream";

/// Where requests of one agent go.
pub struct Upstream {
    agent: String,
    client: Http1Client,
    endpoint: Endpoint,
    headers: HeaderMap,
    /// What must not come back to a person in an error.
    secrets: Vec<Secret>,
    silence: Duration,
    retries: u32,
    resend: Resend,
    record_bytes_max: usize,
    host: Arc<dyn Host>,
}

impl Upstream {
    pub fn new(
        agent: &str,
        url: &Url,
        wire: &WireConfig,
        resend: Resend,
        network: &Arc<dyn Network>,
        host: &Arc<dyn Host>,
    ) -> anyhow::Result<Upstream> {
        let mut headers =
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json")), (ACCEPT, ACCEPTED)]);
        let bearer = wire.token.iter().map(|token| (AUTHORIZATION.as_str(), format!("Bearer {}", token.expose())));
        let others = wire.headers.iter().map(|(name, value)| (name.as_str(), value.expose().to_owned()));
        for (name, value) in bearer.chain(others) {
            let mut value = HeaderValue::from_str(&value).with_context(|| format!("the value of header `{name}`"))?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_bytes(name.as_bytes())?, value);
        }
        // Without TLS no certificates are needed, and a small image may have none.
        if url.scheme() == "https" {
            let no_tls = || format!("agent `{agent}`: HTTPS cannot be set up; are `ca-certificates` installed?");
            tls::check().with_context(no_tls)?;
        }
        let options = HttpOptions {
            user_agent: concat!("bowline/", env!("CARGO_PKG_VERSION")),
            route: Route::Proxied(Proxies::of_environment()),
            connect_timeout: CONNECT_TIMEOUT,
            // On a connection kept from before, it would not be known whether a failed request had been read.
            idle_max: 0,
        };
        Ok(Upstream {
            agent: agent.to_owned(),
            client: Http1Client::new(network, options),
            endpoint: Endpoint::new(url).with_context(|| format!("the address of agent `{agent}`"))?,
            headers,
            secrets: wire.token.iter().chain(wire.headers.iter().map(|(_, value)| value)).cloned().collect(),
            silence: wire.timeout,
            retries: wire.retries,
            resend,
            record_bytes_max: wire.answer_bytes_max,
            host: host.clone(),
        })
    }

    /// The tries of one request.
    pub fn attempts<'a>(&'a self, cancel: &'a CancellationToken) -> Attempts<'a> {
        Attempts { upstream: self, cancel, backoff: Backoff::new(BACKOFF.0, BACKOFF.1, 0.25) }
    }

    async fn send(&self, body: Bytes) -> Result<UpstreamResponse, UpstreamError> {
        let request = self.client.send(Method::POST, &self.endpoint, self.headers.clone(), body);
        let answered = tokio::time::timeout(self.silence, request).await;
        let response = match answered.map_err(|_elapsed| UpstreamError::Silent(self.silence))? {
            Ok(response) => response,
            Err(SendError { is_unsent: true, why }) => return Err(UpstreamError::Unsent(why)),
            Err(SendError { is_unsent: false, why }) => {
                tracing::debug!(agent = %self.agent, error = %why, "the upstream gave no answer");
                return Err(UpstreamError::Broken("it gave no answer".into()));
            }
        };
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        let received = UpstreamResponse::new(response, self);
        if received.content_type == "text/html" {
            return Err(UpstreamError::Garbage("a page for browsers".into()));
        }
        Ok(received)
    }

    async fn refusal(&self, mut response: Response) -> UpstreamError {
        let (status, wait) = (response.status(), retry_after(response.headers(), clock::wall()));
        let mut body = BytesMut::new();
        let read = async {
            while let Ok(Some(bytes)) = response.chunk().await {
                body.extend_from_slice(&bytes[..bytes.len().min(REFUSAL_BYTES_MAX - body.len())]);
                if body.len() >= REFUSAL_BYTES_MAX {
                    break;
                }
            }
        };
        // What has arrived by then is reported.
        let _ = tokio::time::timeout(LEAVE_PATIENCE, read).await;
        let mut message = refusal_text(&body);
        for secret in self.secrets.iter().filter(|secret| !secret.expose().is_empty()) {
            message = message.replace(secret.expose(), "***");
        }
        scrub_text(&mut message);
        let message = message.chars().take(REFUSAL_CHARS_MAX).collect();
        UpstreamError::Refused { status, retry_after: wait, message }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upstream({})", self.agent)
    }
}

/// What a refusal says, wherever its server puts it. A page for browsers says nothing.
fn refusal_text(body: &[u8]) -> String {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        let text = String::from_utf8_lossy(body).trim().to_owned();
        return if text.starts_with('<') { String::new() } else { text };
    };
    let places = [&value["error"]["message"], &value["error"], &value["message"], &value["detail"]];
    places.into_iter().find_map(Value::as_str).unwrap_or_default().to_owned()
}

/// One request, as often as it may be sent.
#[derive(Debug)]
pub struct Attempts<'a> {
    upstream: &'a Upstream,
    cancel: &'a CancellationToken,
    backoff: Backoff,
}

impl Attempts<'_> {
    /// Sends the request until something is answered that is worth reading, or trying again makes no sense.
    pub async fn post(&mut self, body: &Bytes) -> Result<UpstreamResponse, AgentError> {
        loop {
            let sent = self.cancel.run_until_cancelled(Box::pin(self.upstream.send(body.clone()))).await;
            match sent.ok_or(Stopped)? {
                Ok(received) => return Ok(received),
                Err(error) => self.again(error).await?,
            }
        }
    }

    /// Waits until it makes sense to try again; if it makes none, the error is how the run ends.
    pub async fn again(&mut self, error: UpstreamError) -> Result<(), AgentError> {
        let (agent, attempt) = (&self.upstream.agent, self.backoff.attempt() + 1);
        let wait = error.retry(self.upstream.resend).filter(|_| attempt <= self.upstream.retries);
        let Some(asked) = wait else {
            tracing::warn!(%agent, attempt, ?error, "a request to the upstream failed");
            return Err(error.into());
        };
        let delay = self.backoff.next(entropy::chance()).max(asked.unwrap_or_default());
        tracing::info!(%agent, attempt, ?error, delay_ms = delay.as_millis() as u64, "the upstream is asked again");
        match self.cancel.run_until_cancelled(tokio::time::sleep(delay)).await {
            Some(()) => Ok(()),
            None => Err(Stopped.into()),
        }
    }
}

/// One thing an upstream says.
pub struct UpstreamRecord {
    /// The name that an event stream gives it.
    pub event: Option<String>,
    pub data: String,
}

impl fmt::Debug for UpstreamRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UpstreamRecord({} bytes)", self.data.len())
    }
}

/// Why no further record comes.
#[derive(Debug)]
pub enum Fault {
    Stopped,
    Error(UpstreamError),
}

impl From<Fault> for AgentError {
    fn from(fault: Fault) -> AgentError {
        match fault {
            Fault::Stopped => Stopped.into(),
            Fault::Error(error) => error.into(),
        }
    }
}

type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, Cut>> + Send>>;

/// Why the bytes of a body end before their end.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error("nothing came")]
    Silent,
    #[error("{0}")]
    Lost(String),
    #[error("one record is too large")]
    TooLarge,
}

/// What an upstream answers, while it does. Dropping it closes the connection.
pub struct UpstreamResponse {
    /// The media type, without parameters.
    pub content_type: String,
    /// Whether the upstream says that it speaks the AI SDK's protocol.
    pub says_ui: bool,
    records: Records,
    /// Bytes taken since the last record.
    taken: Arc<AtomicUsize>,
    silence: Duration,
    host: Arc<dyn Host>,
}

enum Records {
    Sse(SseByteStream<Pieces>),
    /// `looked` bytes of the rest are known to hold no end of a line.
    Lines {
        pieces: Pieces,
        rest: BytesMut,
        looked: usize,
    },
    Whole(Pieces),
    Over,
}

impl UpstreamResponse {
    fn new(response: Response, upstream: &Upstream) -> UpstreamResponse {
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let content_type = header(CONTENT_TYPE.as_str()).unwrap_or_default();
        let content_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let says_ui = header(UI_STREAM).is_some();
        let taken = Arc::new(AtomicUsize::new(0));
        let pieces = pieces(response, upstream.silence, upstream.record_bytes_max, taken.clone());
        let records = match content_type.as_str() {
            "application/json" => Records::Whole(pieces),
            "application/x-ndjson" | "application/ndjson" | "application/jsonl" | "application/x-jsonlines" => {
                Records::Lines { pieces, rest: BytesMut::new(), looked: 0 }
            }
            _ => Records::Sse(SseByteStream::new(pieces)),
        };
        let (silence, host) = (upstream.silence, upstream.host.clone());
        UpstreamResponse { content_type, says_ui, records, taken, silence, host }
    }

    /// The next record; none when the body has ended as it should.
    pub async fn next(&mut self, cancel: &CancellationToken) -> Result<Option<UpstreamRecord>, Fault> {
        let next = cancel.run_until_cancelled(self.records.next()).await.ok_or(Fault::Stopped)?;
        self.taken.store(0, Ordering::Relaxed);
        next.map_err(|cut| {
            Fault::Error(match cut {
                Fallen::Cut(Cut::Silent) => UpstreamError::Silent(self.silence),
                Fallen::Cut(Cut::Lost(why)) => {
                    tracing::debug!(%why, "the upstream's answer broke off");
                    UpstreamError::Broken("its answer stops in the middle".into())
                }
                Fallen::Cut(Cut::TooLarge) => {
                    self.host.limit_hit(super::accumulated_text::ANSWER_LIMIT);
                    UpstreamError::Garbage("more at once than an answer may have".into())
                }
                Fallen::NotText => UpstreamError::Garbage("bytes that are no text".into()),
            })
        })
    }

    /// Whether each line is a record.
    pub fn is_lines(&self) -> bool {
        matches!(self.records, Records::Lines { .. })
    }

    /// Everything that counts was said. The upstream may finish in peace, for a moment.
    pub fn leave(mut self) {
        tokio::spawn(async move {
            let end = async { while let Ok(Some(_)) = self.records.next().await {} };
            let _ = tokio::time::timeout(LEAVE_PATIENCE, end).await;
        });
    }
}

impl fmt::Debug for UpstreamResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Received({})", self.content_type)
    }
}

enum Fallen {
    Cut(Cut),
    NotText,
}

impl Records {
    async fn next(&mut self) -> Result<Option<UpstreamRecord>, Fallen> {
        match self {
            Records::Sse(events) => loop {
                match events.next().await {
                    None => return Ok(None),
                    Some(Ok(event)) => {
                        // A block without data is a comment, an id or a retry time: nothing that is said.
                        if let Some(data) = event.data {
                            return Ok(Some(UpstreamRecord { event: event.event, data }));
                        }
                    }
                    Some(Err(sse_stream::Error::Body(cut))) => {
                        return Err(cut.downcast::<Cut>().map_or(Fallen::NotText, |cut| Fallen::Cut(*cut)));
                    }
                    Some(Err(_)) => return Err(Fallen::NotText),
                }
            },
            Records::Lines { pieces, rest, looked } => next_line(pieces, rest, looked).await,
            Records::Whole(pieces) => {
                let mut body = BytesMut::new();
                while let Some(piece) = pieces.next().await {
                    body.extend_from_slice(&piece.map_err(Fallen::Cut)?);
                }
                *self = Records::Over;
                record(&body).map(Some)
            }
            Records::Over => Ok(None),
        }
    }
}

async fn next_line(
    pieces: &mut Pieces,
    rest: &mut BytesMut,
    looked: &mut usize,
) -> Result<Option<UpstreamRecord>, Fallen> {
    loop {
        while let Some(end) = rest[*looked..].iter().position(|byte| *byte == b'\n') {
            let line = rest.split_to(*looked + end + 1);
            *looked = 0;
            let line = line.trim_ascii();
            if !line.is_empty() {
                return record(line).map(Some);
            }
        }
        *looked = rest.len();
        match pieces.next().await {
            Some(piece) => rest.extend_from_slice(&piece.map_err(Fallen::Cut)?),
            None => {
                let line = rest.split();
                let line = line.trim_ascii();
                return match serde_json::from_slice::<IgnoredAny>(line) {
                    _ if line.is_empty() => Ok(None),
                    Ok(_) => record(line).map(Some),
                    Err(_) => Err(Fallen::Cut(Cut::Lost("in the middle of a line".into()))),
                };
            }
        }
    }
}

fn record(line: &[u8]) -> Result<UpstreamRecord, Fallen> {
    let data = std::str::from_utf8(line).map_err(|_| Fallen::NotText)?.to_owned();
    Ok(UpstreamRecord { event: None, data })
}

/// The bytes of a body. Silence, a break and too much at once end them.
fn pieces(response: Response, silence: Duration, bytes_max: usize, taken: Arc<AtomicUsize>) -> Pieces {
    let next = move |mut response: Response| {
        let taken = taken.clone();
        async move {
            let piece = tokio::time::timeout(silence, response.chunk()).await.map_err(|_elapsed| Cut::Silent)?;
            let Some(bytes) = piece.map_err(|cut| Cut::Lost(cut.0))? else { return Ok(None) };
            if taken.fetch_add(bytes.len(), Ordering::Relaxed) > bytes_max {
                return Err(Cut::TooLarge);
            }
            Ok(Some((bytes, response)))
        }
    };
    Box::pin(futures_util::stream::try_unfold(response, next))
}
