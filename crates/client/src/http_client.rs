//! The HTTP endpoints of a server: JSON answers and streams of server-sent events.

use std::sync::Arc;
use std::time::Duration;

use bowline_env::Network;
use bowline_env::http::{Endpoint, Http1Client, HttpOptions, Response, ResponseCut, Route, SendError};
use bowline_env::net::OsNetwork;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, try_unfold};
use http::header::{ACCEPT, AUTHORIZATION};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde_json::Value;
use sse_stream::{Sse, SseByteStream};
use tokio::time::timeout;
use url::Url;

use crate::address::Address;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Who follows a server asks it one thing at a time, and now and then another beside it.
const IDLE_MAX: usize = 4;
const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);
/// A list of every session of a large server fits well into this.
const BODY_BYTES_MAX: usize = 64 << 20;
/// Longer than any keep-alive of the server; asking again from the last event costs nothing.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// A client of the HTTP endpoints.
#[derive(Clone, Debug)]
pub struct HttpClient {
    address: Address,
    token: Option<String>,
    client: Http1Client,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No answer came.
    #[error(
        "cannot reach {authority}: {reason}. Is the server running? `bowline serve` starts one; --url names another."
    )]
    Unreachable {
        /// `host:port`.
        authority: String,
        /// Why.
        reason: String,
    },
    /// The credential is missing or wrong.
    #[error("the server refused the token ({status}). Give one of an admin with --token or BOWLINE_TOKEN.")]
    Unauthorized {
        /// 401 or 403.
        status: StatusCode,
    },
    /// The server refused.
    #[error("the server answered {status}: {message}")]
    Refused {
        /// The status.
        status: StatusCode,
        /// The sentence that came with it.
        message: String,
    },
    /// An answer came and could not be read.
    #[error("the answer could not be read: {0}")]
    Broken(String),
}

impl HttpError {
    /// Whether trying again later may help.
    pub fn is_transient(&self) -> bool {
        match self {
            HttpError::Unreachable { .. } | HttpError::Broken(_) => true,
            HttpError::Unauthorized { .. } => false,
            HttpError::Refused { status, .. } => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

impl HttpClient {
    /// A client of the server at this address. It connects when something is asked.
    pub fn new(address: Address, token: Option<String>) -> HttpClient {
        let network: Arc<dyn Network> = Arc::new(OsNetwork);
        let options = HttpOptions {
            user_agent: concat!("bowline-client/", env!("CARGO_PKG_VERSION")),
            route: Route::Direct,
            connect_timeout: CONNECT_TIMEOUT,
            idle_max: IDLE_MAX,
        };
        HttpClient { address, token, client: Http1Client::new(&network, options) }
    }

    /// Gets a JSON document.
    pub async fn get_json(&self, path: &str) -> Result<Value, HttpError> {
        let body = read(self.get(path, HeaderValue::from_static("application/json")).await?).await?;
        serde_json::from_slice(&body).map_err(|error| HttpError::Broken(format!("not JSON: {error}")))
    }

    /// Opens a stream of server-sent events.
    pub async fn get_events(&self, path: &str) -> Result<EventStream, HttpError> {
        let response = self.get(path, HeaderValue::from_static("text/event-stream")).await?;
        Ok(EventStream { events: SseByteStream::new(chunks(response)) })
    }

    async fn get(&self, path: &str, accept: HeaderValue) -> Result<Response, HttpError> {
        let authority = self.address.authority.clone();
        let unreachable = |reason: String| HttpError::Unreachable { authority, reason };
        let asked = async {
            let url = Url::parse(&self.address.http_url(path)).map_err(|error| error.to_string())?;
            let mut headers = HeaderMap::from_iter([(ACCEPT, accept)]);
            if let Some(token) = &self.token {
                let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|error| error.to_string())?;
                value.set_sensitive(true);
                headers.insert(AUTHORIZATION, value);
            }
            let why = |error: SendError| error.why;
            let to = Endpoint::new(&url).map_err(why)?;
            self.client.send(Method::GET, &to, headers, Bytes::new()).await.map_err(why)
        };
        let asked = timeout(HEADERS_TIMEOUT, asked).await;
        let response = asked.unwrap_or_else(|_elapsed| Err("no answer".into())).map_err(unreachable)?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Err(HttpError::Unauthorized { status }),
            status => {
                let message = read(response).await.map(|body| sentence(&body)).unwrap_or_default();
                Err(HttpError::Refused { status, message })
            }
        }
    }
}

/// Server-sent events of one response.
pub struct EventStream {
    events: SseByteStream<BoxStream<'static, Result<Bytes, StreamError>>>,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventStream")
    }
}

/// One server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamEvent {
    /// Its position in the stream, to go on from.
    pub id: Option<String>,
    /// Its name; empty if it has none.
    pub name: String,
    /// Its data.
    pub data: String,
}

impl EventStream {
    /// The next event; an error that says why none comes any more.
    pub async fn next(&mut self) -> Result<StreamEvent, HttpError> {
        loop {
            match self.events.next().await {
                Some(Ok(Sse { event, data, id, .. })) => {
                    // A block with neither is a comment, which keeps the connection warm.
                    if data.is_some() || event.is_some() {
                        let (name, data) = (event.unwrap_or_default(), data.unwrap_or_default());
                        return Ok(StreamEvent { id, name, data });
                    }
                }
                Some(Err(error)) => return Err(HttpError::Broken(root(&error))),
                None => return Err(HttpError::Broken("the server closed the connection".into())),
            }
        }
    }
}

/// Why the bytes of a stream end before their end.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("nothing was heard for a while")]
    Silent,
    #[error("the connection broke: {0}")]
    Broken(String),
}

/// The bytes of a stream. A comment counts as a sign of life, although it is no event.
fn chunks(response: Response) -> BoxStream<'static, Result<Bytes, StreamError>> {
    let next = |mut response: Response| async move {
        let chunk = timeout(SILENCE_MAX, response.chunk()).await.map_err(|_elapsed| StreamError::Silent)?;
        let chunk = chunk.map_err(|ResponseCut(why)| StreamError::Broken(why))?;
        Ok(chunk.map(|bytes| (bytes, response)))
    };
    try_unfold(response, next).boxed()
}

async fn read(mut response: Response) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    let reading = async {
        while let Some(bytes) = response.chunk().await.map_err(|ResponseCut(why)| HttpError::Broken(why))? {
            body.extend_from_slice(&bytes);
            if body.len() > BODY_BYTES_MAX {
                return Err(HttpError::Broken("it is too large".into()));
            }
        }
        Ok(())
    };
    timeout(HEADERS_TIMEOUT, reading)
        .await
        .map_err(|_elapsed| HttpError::Broken("it did not end in time".into()))??;
    Ok(body)
}

/// The innermost cause: the outer ones only say that a request failed.
fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The sentence of an error body, however it is wrapped.
fn sentence(body: &[u8]) -> String {
    let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
    let places = ["/content", "/message", "/error/message", "/error"];
    let found = places.iter().find_map(|place| parsed.pointer(place).and_then(Value::as_str));
    found.map_or_else(|| String::from_utf8_lossy(body).chars().take(200).collect(), ToOwned::to_owned)
}
