//! Drives one producer's WebSocket: frames in, answers out once their chunks are durable, both at the same time.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use bowline_env::{clock, timer};
use bowline_protocol::frame::client::Secret;
use bowline_protocol::{CloseCode, ErrorCode, ProducerId, Refusal, TaskId};
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::sync::oneshot;

use crate::auth::validity::ended;
use crate::auth::{AuthError, Credential, PresentedCredential};
use crate::config::Ownership;
use crate::http::chat::Owner;
use crate::http::produce::{About, Frame, ProduceContext, answer, renewal, renewed};
use crate::stream::Watched;
use crate::task::command::Appended;
use crate::task::registry::gone;
use crate::woken::WokenStream;

/// Frames of one task whose chunks are not durable yet: as many as its actor takes at once, and as many again. A
/// producer that sends more has to wait, and so does its socket.
const TASK_FRAMES_MAX: usize = 128;
/// The same for all tasks of a connection: enough for thousands of tasks that have a few frames each, or one with large
/// ones.
const FRAMES_MAX: usize = 16 << 10;
const BYTES_MAX: usize = 16 << 20;
/// A ping this often finds a producer that is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long a closing connection may take to accept its last frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

type Pending = Result<oneshot::Receiver<Result<Appended, Refusal>>, Refusal>;

enum Happened {
    Frame(Option<Result<Message, axum::Error>>),
    Durable(Settled),
    Time,
    CredentialEnded(AuthError),
    Closing,
}

/// A frame that is answered.
struct Settled {
    task: Option<TaskId>,
    bytes: usize,
    answer: String,
}

/// A frame that was read.
struct Read {
    about: About,
    frame: Result<Frame, Refusal>,
    bytes: usize,
}

/// How much of a connection is under way.
#[derive(Default)]
struct UnderWay {
    frames: usize,
    bytes: usize,
    by_task: HashMap<TaskId, usize>,
}

impl UnderWay {
    fn has_room(&self) -> bool {
        self.frames < FRAMES_MAX && self.bytes < BYTES_MAX
    }

    fn has_room_for(&self, read: &Read) -> bool {
        let task = read.frame.as_ref().ok().and_then(|frame| self.by_task.get(&frame.task));
        task.is_none_or(|frames| *frames < TASK_FRAMES_MAX)
    }

    fn add(&mut self, task: Option<&TaskId>, bytes: usize) {
        self.frames += 1;
        self.bytes += bytes;
        task.into_iter().for_each(|task| *self.by_task.entry(task.clone()).or_default() += 1);
    }

    fn remove(&mut self, settled: &Settled) {
        self.frames -= 1;
        self.bytes -= settled.bytes;
        let Some(task) = &settled.task else { return };
        if let Some(frames) = self.by_task.get_mut(task) {
            *frames -= 1;
            if *frames == 0 {
                self.by_task.remove(task);
            }
        }
    }
}

pub async fn drive(context: Arc<ProduceContext>, socket: WebSocket, owner: Owner, producer: ProducerId) {
    let (mut sink, stream) = socket.split();
    let mut stream = WokenStream::new(stream);
    // In the order in which the frames came; appends of one task become durable in that order anyway.
    let (mut answers, mut under_way) = (FuturesOrdered::new(), UnderWay::default());
    // One whose task has too much under way.
    let mut held_back: Option<Read> = None;
    let mut unheard = 0;
    let mut credential_ended = Box::pin(owner.validity.clone().ended());
    // Waited for in one piece, because beginning and giving up such a wait with each frame costs much of what the frame does.
    let mut closing = pin!(context.lifecycle.closing.cancelled());
    let mut timer = pin!(tokio::time::sleep(PING_EVERY));
    let mut ping_at = clock::now() + PING_EVERY;
    let (code, why) = loop {
        let happened = tokio::select! {
            biased;
            () = closing.as_mut() => Happened::Closing,
            why = &mut credential_ended => Happened::CredentialEnded(why),
            Some(settled) = answers.next(), if !answers.is_empty() => Happened::Durable(settled),
            frame = stream.next(), if held_back.is_none() && under_way.has_room() => Happened::Frame(frame),
            () = timer::until(timer.as_mut(), Some(ping_at)) => Happened::Time,
        };
        ping_at = clock::now() + PING_EVERY;
        let sent = match happened {
            Happened::Closing => break (CloseCode::Restart, None),
            Happened::CredentialEnded(why) => break (CloseCode::Unauthorized, Some(ended(why))),
            Happened::Durable(settled) => {
                under_way.remove(&settled);
                let mut fed = sink.feed(Message::Text(settled.answer.into())).await;
                // Answers that are ready share a flush.
                while fed.is_ok()
                    && let Some(Some(settled)) = answers.next().now_or_never()
                {
                    under_way.remove(&settled);
                    fed = sink.feed(Message::Text(settled.answer.into())).await;
                }
                if let Some(read) = held_back.take_if(|read| under_way.has_room_for(read)) {
                    answers.push_back(begin(&context, &owner, read, &mut under_way).await);
                }
                match fed {
                    Ok(()) => sink.flush().await,
                    Err(error) => Err(error),
                }
            }
            Happened::Frame(Some(Ok(Message::Text(text)))) => {
                unheard = 0;
                if let Some(token) = renewal(&context.limits, &text) {
                    let credential = renew(&context, &owner, &token).await;
                    let frame = renewed(credential.as_ref().map(|credential| &credential.identity));
                    if let Ok(credential) = credential {
                        credential_ended = Box::pin(credential.validity.ended());
                    }
                    sink.send(Message::Text(frame.into())).await
                } else {
                    let (about, frame) = Frame::read(&context.limits, &producer, &text);
                    let read = Read { about, frame, bytes: text.len() };
                    if under_way.has_room_for(&read) {
                        answers.push_back(begin(&context, &owner, read, &mut under_way).await);
                    } else {
                        held_back = Some(read);
                    }
                    Ok(())
                }
            }
            Happened::Frame(Some(Ok(Message::Binary(_)))) => break (CloseCode::Unsupported, None),
            Happened::Frame(Some(Ok(Message::Close(_)))) => {
                // The answer to it is queued below us, and leaves only when the sink is polled.
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, sink.close()).await;
                return;
            }
            Happened::Frame(None | Some(Err(_))) => return,
            Happened::Frame(Some(Ok(_))) => {
                unheard = 0;
                Ok(())
            }
            Happened::Time if unheard >= 2 => break (CloseCode::HeartbeatLost, None),
            Happened::Time => {
                unheard += 1;
                sink.send(Message::Ping(Vec::new().into())).await
            }
        };
        if sent.is_err() {
            return;
        }
    };
    let farewell = async {
        if let Some(refusal) = why {
            // What came while the credential was good is still answered.
            if let Some(read) = held_back.take() {
                answers.push_back(begin(&context, &owner, read, &mut under_way).await);
            }
            while let Some(settled) = answers.next().await {
                sink.feed(Message::Text(settled.answer.into())).await?;
            }
            context.limits.metrics.refusals.inc(refusal.code.as_str());
            sink.feed(Message::Text(answer(&About::default(), Err(refusal)).into())).await?;
        }
        sink.send(Message::Close(Some(CloseFrame { code: code.code(), reason: code.reason().into() }))).await
    };
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, farewell).await;
}

/// A new credential for the same principal, in place of the one that the connection came with.
async fn renew(context: &ProduceContext, owner: &Owner, token: &Secret) -> Result<Credential, Refusal> {
    let credential =
        context.auth.admit(&PresentedCredential::from(token), clock::unix_seconds()).await.map_err(Refusal::from)?;
    if credential.identity.principal != owner.principal {
        let message = "This token is another principal's. Open a connection of its own for it.";
        return Err(Refusal::new(ErrorCode::Unauthorized, message));
    }
    Ok(credential)
}

async fn hand_over(context: &Arc<ProduceContext>, owner: &Owner, frame: Result<Frame, Refusal>) -> Pending {
    let Frame { task, place, chunks, proof } = frame?;
    // Each frame anew, since a token is worth nothing once its successor was used. Elsewhere the name of the owner is
    // proof enough, which the task itself checks, and a frame costs no look at its session.
    if context.streams.config.session.ownership == Ownership::Token {
        Watched::find(&context.streams, &task, &owner.principal, proof.as_ref().or(owner.proof.as_ref())).await?;
    }
    context.streams.tasks.append(&task, &owner.principal, place, chunks).await
}

/// Hands a frame over to its task. The future that comes back ends when it is answered.
async fn begin(
    context: &Arc<ProduceContext>,
    owner: &Owner,
    read: Read,
    under_way: &mut UnderWay,
) -> impl Future<Output = Settled> + use<> {
    let Read { about, frame, bytes } = read;
    let task = frame.as_ref().ok().map(|frame| frame.task.clone());
    under_way.add(task.as_ref(), bytes);
    let pending = hand_over(context, owner, frame).await;
    async move {
        let appended = match pending {
            Ok(answer) => answer.await.unwrap_or_else(|_gone| Err(gone())),
            Err(refusal) => Err(refusal),
        };
        Settled { task, bytes, answer: answer(&about, appended) }
    }
}
