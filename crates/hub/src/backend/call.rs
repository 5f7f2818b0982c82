//! Drives one call to one backend: waits for its turn, makes it on the transport it is given, and tells what came of it.

use std::time::Instant;

use bowline_core::backend::{BackendStatus, CallFailure, QueuedCall, QueuedCallId, ResendPolicy};

use super::Backend;
use super::dispatcher::{CallReport, CallVerdict, Dispatcher};
use crate::call::reply::CallEnd;
use crate::call::{BackendCall, CallEnding};
use crate::fields::Raw;
use crate::message;

/// One request, with one ending. The machine decides when it goes out and whether it goes out again; the wire is waited
/// for here, so that a call needs no task of its own. Dropping the future takes the call back.
pub async fn run(backend: &Backend, call: &BackendCall, deadline: Instant, resend: ResendPolicy) -> CallEnd {
    let id = backend.counts.next_call();
    let mut open = DispatchedCall { dispatcher: &backend.dispatcher, id, over: false };
    let mut verdict = backend.dispatcher.begin(QueuedCall::new(id, deadline, resend)).await;
    let end = loop {
        let (generation, transport, mut next) = match verdict {
            Ok(CallVerdict::Go { generation, transport, next }) => (generation, transport, next),
            Ok(CallVerdict::Failed(outcome)) => break CallEnd::Failed(outcome),
            Err(_) => break CallEnd::Failed(removed()),
        };
        verdict = tokio::select! {
            // An answer that is here counts, whatever became of its transport meanwhile.
            biased;
            ending = transport.call(call) => {
                let (report, answered) = match ending {
                    CallEnding::Answered { answer, status } => {
                        if answer.is_ok() {
                            backend.renewals.note(call);
                        }
                        let broke = |error: &Raw| message::code_of(error) == message::INTERNAL_ERROR;
                        let well = !answer.as_ref().is_err_and(broke);
                        (CallReport::Answered { well }, Some(CallEnd::Answered { answer, status }))
                    }
                    CallEnding::NotExecuted(why) => (CallReport::NotExecuted(why), None),
                    CallEnding::Refused { why, retry_after } => (CallReport::Refused { why, retry_after }, None),
                    CallEnding::Broken(why) => (CallReport::Broken(why), None),
                };
                backend.dispatcher.ended(generation, id, &report);
                if let Some(end) = answered {
                    break end;
                }
                next.await
            }
            // The transport is lost, or the deadline has passed.
            told = &mut next => told,
        };
    };
    open.over = true;
    end
}

fn removed() -> CallFailure {
    let last_error = Some("the hub has let the server go".into());
    CallFailure::Unavailable { status: BackendStatus::Disconnected, attempt: 0, next_retry: None, last_error }
}

struct DispatchedCall<'a> {
    dispatcher: &'a Dispatcher,
    id: QueuedCallId,
    over: bool,
}

impl Drop for DispatchedCall<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.dispatcher.cancelled(self.id);
        }
    }
}
