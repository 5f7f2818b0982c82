//! How long the body of a request may take. One that stops coming would otherwise be waited for for ever.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bowline_env::clock;
use bowline_protocol::{ErrorCode, Refusal};
use hyper::body::{Frame, SizeHint};
use tokio::time::Sleep;

use super::limits::RequestLimits;
use super::problem::Problem;

/// The whole body may take so many times as long as one silence in it. With 10 s that is ten minutes, in which the
/// largest body (`hub.body_bytes_max`, 4 MiB) comes over a line of 56 kbit/s; a byte now and then does not hold a connection
/// any longer.
const SILENCES_MAX: u32 = 60;

/// Gives the bodies of requests a deadline. What is said back may take as long as it likes.
pub async fn deadline(State(limits): State<Arc<RequestLimits>>, request: Request, next: Next) -> Response {
    within_deadline(&limits, request, |request| next.run(request)).await
}

/// The same around anything else that answers.
pub async fn within_deadline<F: Future<Output = Response>>(
    limits: &RequestLimits,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    if request.body().is_end_stream() {
        return next(request).await;
    }
    let fate = Arc::new(Mutex::new(Fate::Coming));
    let silence = limits.config.limits.body_timeout;
    let request =
        request.map(|body| Body::new(Awaited { body, silence, waiting: None, deadline: None, fate: fate.clone() }));
    let mut response = next(request).await;
    let fate = *fate.lock().unwrap_or_else(PoisonError::into_inner);
    let refused = response.status().is_client_error() || response.status().is_server_error();
    match fate {
        // The handler knows only that the body broke off.
        Fate::Late => response = too_late(limits, silence),
        Fate::Coming if refused => {}
        Fate::Coming | Fate::Read => return response,
    }
    // What is left of the body would have to be read before the next request can be, and the server does not wait for that.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// What became of a body.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Coming,
    Read,
    Late,
}

fn too_late(limits: &RequestLimits, silence: Duration) -> Response {
    limits.metrics.limits_hit.inc("limits.body_timeout");
    let message =
        format!("The rest of the body did not come in time: see limits.body_timeout ({silence:?}). Send it again.");
    let refusal = Refusal::new(ErrorCode::InvalidPayload, message);
    Problem::with_status(StatusCode::REQUEST_TIMEOUT, refusal).into_response()
}

/// Until when a body is waited for.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    next: Instant,
    whole: Instant,
}

impl Deadline {
    fn from(now: Instant, silence: Duration) -> Deadline {
        Deadline { next: now + silence, whole: now + silence * SILENCES_MAX }
    }

    /// Something came.
    fn handle_progress(&mut self, now: Instant, silence: Duration) {
        self.next = now + silence;
    }

    fn at(&self) -> Instant {
        self.next.min(self.whole)
    }
}

struct Awaited {
    body: Body,
    silence: Duration,
    /// Only while the body is asked for and does not come: our own slowness is not the client's.
    waiting: Option<Pin<Box<Sleep>>>,
    deadline: Option<Deadline>,
    fate: Arc<Mutex<Fate>>,
}

impl Awaited {
    fn settle(&self, fate: Fate) {
        *self.fate.lock().unwrap_or_else(PoisonError::into_inner) = fate;
    }
}

impl HttpBody for Awaited {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.waiting = None;
            if frame.is_none() || this.body.is_end_stream() {
                this.settle(Fate::Read);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(axum::BoxError::from)));
        }
        let (now, silence) = (clock::now(), this.silence);
        let deadline = this.deadline.get_or_insert_with(|| Deadline::from(now, silence));
        let waiting = this.waiting.get_or_insert_with(|| {
            deadline.handle_progress(now, silence);
            Box::pin(tokio::time::sleep_until(deadline.at().into()))
        });
        std::task::ready!(waiting.as_mut().poll(context));
        this.settle(Fate::Late);
        Poll::Ready(Some(Err("the body did not come in time".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_now_and_then_is_progress_but_not_for_ever() {
        let (start, silence) = (clock::now(), Duration::from_secs(10));
        let mut deadline = Deadline::from(start, silence);
        assert_eq!(deadline.at(), start + silence);
        for seconds in (9..600).step_by(9) {
            let now = start + Duration::from_secs(seconds);
            assert!(deadline.at() > now, "{seconds}");
            deadline.handle_progress(now, silence);
        }
        assert_eq!(deadline.at(), start + Duration::from_secs(600));
    }
}
