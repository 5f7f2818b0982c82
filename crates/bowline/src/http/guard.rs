//! Streams end with the credential that opened them. Every answer passes here, so that no endpoint is forgotten.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use bowline_protocol::Refusal;
use hyper::body::Frame;
use serde_json::{Value, json};

use crate::auth::validity::ended;
use crate::auth::{AuthError, Validity};

/// What a stream says last. None of it looks like the end of what was streamed.
#[derive(Clone, Copy, Debug)]
pub enum Farewell {
    /// What the stream's dialect has for it; then the body breaks off, as after any cut.
    InDialect(fn(&Refusal) -> String),
    /// An event of its own.
    Event,
    /// A comment: MCP has no message for this, and a client takes nothing for an answer that is none.
    Comment,
}

/// Where the check of a request's credential leaves how long that is good.
#[derive(Clone, Debug, Default)]
pub struct ValiditySlot(Arc<OnceLock<(Validity, Farewell)>>);

impl ValiditySlot {
    pub fn fill(&self, validity: Validity, farewell: Farewell) {
        let _ = self.0.set((validity, farewell));
    }
}

/// Lets an answer that is a stream end with the credential of its request. Other answers are to a request that was good when
/// it was made: refusing them late would say that it was not done.
pub async fn guard(request: Request, next: Next) -> Response {
    guarded(request, |request| next.run(request)).await
}

/// The same around anything else that answers.
pub async fn guarded<F: Future<Output = Response>>(mut request: Request, next: impl FnOnce(Request) -> F) -> Response {
    let slot = ValiditySlot::default();
    request.extensions_mut().insert(slot.clone());
    let response = next(request).await;
    match slot.0.get() {
        Some((validity, farewell)) if validity.can_end() && is_stream(&response) => {
            let (validity, farewell) = (validity.clone(), *farewell);
            response.map(|body| Body::new(Guarded::new(body, validity, farewell)))
        }
        _ => response,
    }
}

fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"))
}

struct Guarded {
    body: Body,
    ended: Pin<Box<dyn Future<Output = AuthError> + Send>>,
    farewell: Farewell,
    stage: GuardStage,
}

#[derive(Clone, Copy, Debug)]
enum GuardStage {
    Open,
    /// The last words were said, and have not left yet.
    Said,
    Broken,
    Over,
}

impl Guarded {
    fn new(body: Body, validity: Validity, farewell: Farewell) -> Guarded {
        Guarded { body, ended: Box::pin(validity.ended()), farewell, stage: GuardStage::Open }
    }
}

impl HttpBody for Guarded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        match this.stage {
            GuardStage::Open => match this.ended.as_mut().poll(cx) {
                Poll::Pending => Pin::new(&mut this.body).poll_frame(cx),
                Poll::Ready(why) => {
                    // What reads for it stops now.
                    this.body = Body::empty();
                    this.stage = GuardStage::Said;
                    Poll::Ready(Some(Ok(Frame::data(this.farewell.words(&ended(why))))))
                }
            },
            GuardStage::Said if this.farewell.breaks_off() => {
                // What is still to be written leaves while we seem to wait; with the error it would be dropped.
                this.stage = GuardStage::Broken;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            GuardStage::Broken => {
                this.stage = GuardStage::Over;
                Poll::Ready(Some(Err(axum::Error::new("the credential is good no more"))))
            }
            GuardStage::Said | GuardStage::Over => {
                this.stage = GuardStage::Over;
                Poll::Ready(None)
            }
        }
    }
}

impl Farewell {
    /// Whether a clean end behind it would be taken for that of the stream.
    fn breaks_off(self) -> bool {
        matches!(self, Farewell::InDialect(_))
    }

    fn words(self, refusal: &Refusal) -> Bytes {
        let text = match self {
            Farewell::InDialect(encode) => encode(refusal),
            Farewell::Event => format!("event: error\ndata: {}\n\n", facts(refusal)),
            Farewell::Comment => format!(": {} {}\n\n", refusal.code.as_str(), refusal.message),
        };
        text.into()
    }
}

/// What a stream says of a refusal.
pub fn facts(refusal: &Refusal) -> Value {
    let (code, action) = (refusal.code, refusal.code.action());
    json!({ "code": code.as_str(), "message": refusal.message, "recovery_action": action.as_str() })
}
