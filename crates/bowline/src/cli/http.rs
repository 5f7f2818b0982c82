//! A small HTTP/1.1 client for the admin API: one request per connection, plain http only.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::time::timeout;

use super::address::Address;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);
/// A list of every session of a large server fits well into this.
const BODY_BYTES_MAX: usize = 64 << 20;

#[derive(Debug)]
pub struct Client {
    pub address: Address,
    pub token: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error(
        "cannot reach {authority}: {reason}. Is the server running? `bowline serve` starts one; --url names another."
    )]
    Unreachable { authority: String, reason: String },
    #[error("the server refused the token ({status}). Give one of an admin with --token or BOWLINE_TOKEN.")]
    Unauthorized { status: StatusCode },
    #[error("the server answered {status}: {message}")]
    Refused { status: StatusCode, message: String },
    #[error("the answer could not be read: {0}")]
    Broken(String),
}

impl HttpError {
    /// Whether trying again later may help.
    pub fn is_passing(&self) -> bool {
        match self {
            HttpError::Unreachable { .. } | HttpError::Broken(_) => true,
            HttpError::Unauthorized { .. } => false,
            HttpError::Refused { status, .. } => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

impl Client {
    /// Asks and checks the status; the body is the caller's to read.
    pub async fn get(&self, path: &str, accept: &str) -> Result<Response<Incoming>, HttpError> {
        let response = self.send(path, accept).await?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Err(HttpError::Unauthorized { status }),
            status => {
                let message = read(response).await.map(|body| sentence(&body)).unwrap_or_default();
                Err(HttpError::Refused { status, message })
            }
        }
    }

    pub async fn get_json(&self, path: &str) -> Result<Value, HttpError> {
        let body = read(self.get(path, "application/json").await?).await?;
        serde_json::from_slice(&body).map_err(|error| HttpError::Broken(format!("not JSON: {error}")))
    }

    async fn send(&self, path: &str, accept: &str) -> Result<Response<Incoming>, HttpError> {
        let unreachable = |reason: String| HttpError::Unreachable { authority: self.address.authority.clone(), reason };
        let dial = timeout(CONNECT_TIMEOUT, self.address.dial()).await;
        let stream =
            dial.map_err(|_| unreachable("no answer".into()))?.map_err(|error| unreachable(error.to_string()))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| unreachable(error.to_string()))?;
        // The connection ends by itself when the response body is dropped or read to its end.
        tokio::spawn(connection);
        let request = self.request(path, accept)?;
        let answer = timeout(HEADERS_TIMEOUT, sender.send_request(request)).await;
        answer.map_err(|_| unreachable("no answer".into()))?.map_err(|error| HttpError::Broken(error.to_string()))
    }

    fn request(&self, path: &str, accept: &str) -> Result<Request<Empty<Bytes>>, HttpError> {
        let mut request = Request::get(path).header(HOST, &self.address.authority).header(ACCEPT, accept);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        request.body(Empty::new()).map_err(|error| HttpError::Broken(error.to_string()))
    }
}

async fn read(response: Response<Incoming>) -> Result<Bytes, HttpError> {
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect();
    let body = timeout(HEADERS_TIMEOUT, body).await.map_err(|_| HttpError::Broken("it did not end in time".into()))?;
    body.map(|body| body.to_bytes()).map_err(|error| HttpError::Broken(error.to_string()))
}

/// The sentence of an error body, however it is wrapped.
fn sentence(body: &[u8]) -> String {
    let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
    let places = ["/content", "/message", "/error/message", "/error"];
    let found = places.iter().find_map(|place| parsed.pointer(place).and_then(Value::as_str));
    found.map_or_else(|| super::out::short(&String::from_utf8_lossy(body), 200), ToOwned::to_owned)
}
