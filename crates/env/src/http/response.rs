//! What a server answers. Its connection is driven as it is read.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::ready;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;

use super::endpoint::HttpOrigin;
use super::innermost;
use super::pool::HttpPool;
use super::wire::HttpWire;

/// The response to one request. When all of it is read, or what is left of it has come, the connection waits for the next request; else
/// dropping it closes the connection, so the server knows that nothing reads it.
pub struct Response {
    head: Parts,
    content_length: Option<u64>,
    incoming: Option<Incoming>,
    wire: Option<Box<HttpWire>>,
    origin: HttpOrigin,
    pool: Arc<HttpPool>,
}

/// Why a response ends before its end.
#[derive(Debug)]
pub struct ResponseCut(pub String);

impl fmt::Display for ResponseCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ResponseCut {}

impl Response {
    pub(super) fn new(
        response: http::Response<Incoming>,
        wire: Box<HttpWire>,
        origin: &HttpOrigin,
        pool: &Arc<HttpPool>,
    ) -> Response {
        let (head, incoming) = response.into_parts();
        let content_length = incoming.size_hint().exact();
        let (incoming, wire) = (Some(incoming), Some(wire));
        Response { head, content_length, incoming, wire, origin: origin.clone(), pool: pool.clone() }
    }

    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// How long it is, if that is known before it is read.
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// The next bytes; none at its end. Nothing is lost if this is not awaited to its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ResponseCut> {
        std::future::poll_fn(|cx| {
            loop {
                let (Some(wire), Some(incoming)) = (&mut self.wire, &mut self.incoming) else {
                    return Ok(None).into();
                };
                let cut = match ready!(wire.drive(cx, |inner| Pin::new(&mut *incoming).poll_frame(inner))) {
                    Some(Some(Ok(frame))) => match frame.into_data() {
                        Ok(bytes) => return Ok(Some(bytes)).into(),
                        // A trailer, which no caller asks for.
                        Err(_) => continue,
                    },
                    Some(None) => {
                        self.incoming = None;
                        continue;
                    }
                    Some(Some(Err(error))) => innermost(&error),
                    None => "the connection was closed".to_owned(),
                };
                self.wire = None;
                return Err(ResponseCut(cut)).into();
            }
        })
        .await
    }

    /// What was waited for has come. The connection is kept for the little that may still follow, and closed if that is not there by the
    /// next request.
    pub fn finish(mut self) {
        self.leave(true);
    }

    fn leave(&mut self, end_may_come: bool) {
        let Some(mut wire) = self.wire.take().filter(|_| self.pool.keeps()) else { return };
        wire.leave(self.incoming.take());
        // One that has not yet taken all of its request is not ready either.
        if wire.is_ready() || end_may_come {
            self.pool.put(&self.origin, wire);
        }
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        self.leave(false);
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({})", self.status().as_u16())
    }
}
