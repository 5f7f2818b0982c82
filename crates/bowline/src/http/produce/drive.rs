//! Drives one producer's WebSocket: frames in, answers out once their chunks are durable, both at the same time.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use bowline_env::clock;
use bowline_protocol::frame::client::Secret;
use bowline_protocol::{CloseCode, ErrorCode, ProducerId, Refusal};
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::sync::oneshot;

use crate::auth::validity::ended;
use crate::auth::{AuthError, Credential, Presented};
use crate::config::Ownership;
use crate::http::chat::Owner;
use crate::http::produce::{About, Frame, ProduceContext, answer, renewal, renewed};
use crate::stream::Watched;
use crate::task::command::Appended;
use crate::task::registry::gone;

/// Frames whose chunks are not durable yet. A producer that sends more has to wait, and so does its socket.
const UNDER_WAY_MAX: usize = 256;
/// A ping this often finds a producer that is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long a closing connection may take to accept its last frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

type Pending = Result<oneshot::Receiver<Result<Appended, Refusal>>, Refusal>;

enum Happened {
    Frame(Option<Result<Message, axum::Error>>),
    Durable(String),
    Time,
    CredentialEnded(AuthError),
    Closing,
}

pub async fn drive(context: Arc<ProduceContext>, socket: WebSocket, owner: Owner, producer: ProducerId) {
    let (mut sink, mut stream) = socket.split();
    // In the order in which the frames came; appends of one task become durable in that order anyway.
    let mut under_way = FuturesOrdered::new();
    let mut unheard = 0;
    let mut credential_ended = Box::pin(owner.validity.clone().ended());
    let (code, why) = loop {
        let happened = tokio::select! {
            biased;
            () = context.lifecycle.closing.cancelled() => Happened::Closing,
            why = &mut credential_ended => Happened::CredentialEnded(why),
            Some(answer) = under_way.next(), if !under_way.is_empty() => Happened::Durable(answer),
            frame = stream.next(), if under_way.len() < UNDER_WAY_MAX => Happened::Frame(frame),
            () = tokio::time::sleep(PING_EVERY) => Happened::Time,
        };
        let sent = match happened {
            Happened::Closing => break (CloseCode::Restart, None),
            Happened::CredentialEnded(why) => break (CloseCode::Unauthorized, Some(ended(why))),
            Happened::Durable(answer) => {
                let mut fed = sink.feed(Message::Text(answer.into())).await;
                // Answers that are ready share a flush.
                while fed.is_ok()
                    && let Some(Some(answer)) = under_way.next().now_or_never()
                {
                    fed = sink.feed(Message::Text(answer.into())).await;
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
                    let told = renewed(credential.as_ref().map(|credential| &credential.identity));
                    if let Ok(credential) = credential {
                        credential_ended = Box::pin(credential.validity.ended());
                    }
                    sink.send(Message::Text(told.into())).await
                } else {
                    let (about, frame) = Frame::read(&context.limits, &producer, &text);
                    let pending = hand_over(&context, &owner, frame).await;
                    under_way.push_back(settle(about, pending));
                    Ok(())
                }
            }
            Happened::Frame(Some(Ok(Message::Binary(_)))) => break (CloseCode::Unsupported, None),
            Happened::Frame(Some(Ok(Message::Close(_)))) => {
                // The answer to it is queued below us, and leaves only when somebody asks for it.
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
            while let Some(answer) = under_way.next().await {
                sink.feed(Message::Text(answer.into())).await?;
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
    let credential = context.auth.admit(&Presented::from(token), clock::unix_seconds()).await.map_err(Refusal::from)?;
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

async fn settle(about: About, pending: Pending) -> String {
    let appended = match pending {
        Ok(answer) => answer.await.unwrap_or_else(|_gone| Err(gone())),
        Err(refusal) => Err(refusal),
    };
    answer(&about, appended)
}
