//! Drives one WebSocket: frames in, the outbox out, mail from sessions, wake-ups from logs, and time.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket};
use bowline_env::{clock, timer};
use bowline_protocol::CloseCode;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{FutureExt, Sink as _, SinkExt, StreamExt};
use tokio_tungstenite::tungstenite;

use crate::auth::{AuthError, Credential};
use crate::connection::{Connection, ConnectionContext};
use crate::lifecycle::Lifecycle;
use crate::metrics::Metrics;
use crate::session::{Mail, MailReceiver};
use crate::woken::WokenStream;

/// How long a closing connection may take to accept its last frames.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

type FrameSink = SplitSink<WebSocket, Message>;
type FrameStream = WokenStream<SplitStream<WebSocket>>;

enum ConnectionEvent {
    Frame(Option<Result<Message, axum::Error>>),
    Mail(Box<Mail>),
    Wake,
    MayHaveMore,
    Flushed(Result<(), axum::Error>),
    CredentialEnded(AuthError),
    Draining,
    Closing,
    Time,
}

/// Until the connection's credential is good no more.
type CredentialEnd = Option<Pin<Box<dyn Future<Output = AuthError> + Send>>>;

/// Serves a connection until it ends.
pub fn drive(
    context: Arc<ConnectionContext>,
    socket: WebSocket,
    credential: Option<Credential>,
) -> impl Future<Output = ()> {
    // Split here, because a task would keep room for the whole socket beside its halves.
    let (sink, stream) = socket.split();
    serve(context, sink, WokenStream::new(stream), credential.map(Box::new))
}

async fn serve(
    context: Arc<ConnectionContext>,
    mut sink: FrameSink,
    mut stream: FrameStream,
    credential: Option<Box<Credential>>,
) {
    let _counted = CountedConnection::new(&context.metrics);
    let (mut connection, mut inbox) = Connection::new(context.clone(), credential.map(|credential| *credential));
    let code = converse(&context.lifecycle, &mut connection, &mut inbox, &mut sink, &mut stream).await;
    drop(inbox);
    let rest: Vec<Bytes> = std::iter::from_fn(|| connection.pop()).collect();
    tracing::debug!(connection = %connection.id(), ?code, "connection over");
    Box::pin(connection.leave()).await;
    match code {
        Some(code) => {
            context.metrics.closes.inc(code.name());
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, Box::pin(farewell(&mut sink, &mut stream, rest, code))).await;
        }
        // The answer to a client's close frame is queued below us, and leaves only when the sink is polled.
        None => drop(tokio::time::timeout(CLOSE_TIMEOUT, Box::pin(sink.close())).await),
    }
}

/// Counts a connection for as long as it is there, however it ends.
struct CountedConnection(Arc<Metrics>);

impl CountedConnection {
    fn new(metrics: &Arc<Metrics>) -> CountedConnection {
        metrics.connections.inc();
        metrics.connections_accepted.inc();
        CountedConnection(metrics.clone())
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

/// Closes a connection that may not come in.
pub async fn turn_away(socket: WebSocket, code: CloseCode) {
    let (mut sink, stream) = socket.split();
    let mut stream = WokenStream::new(stream);
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, farewell(&mut sink, &mut stream, Vec::new(), code)).await;
}

/// The conversation itself. Returns the close code if it is we who end it.
async fn converse(
    lifecycle: &Lifecycle,
    connection: &mut Connection,
    inbox: &mut MailReceiver,
    sink: &mut FrameSink,
    stream: &mut FrameStream,
) -> Option<CloseCode> {
    let wake = connection.wake();
    let mut draining_sent = lifecycle.is_draining();
    let mut flushing = false;
    let mut ended: CredentialEnd = None;
    // Waited for in one piece, because beginning and giving up such a wait with each message costs more than the message.
    let mut closing = pin!(lifecycle.closing.cancelled());
    let mut draining = pin!(lifecycle.draining.cancelled());
    let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
    loop {
        // What a session says of a request comes before the events that follow from it.
        while let Ok(mail) = inbox.try_recv() {
            Box::pin(connection.handle_mail(*mail)).await;
        }
        // After something was sent there may be more to send, but whatever else has happened comes first.
        let mut may_have_more = false;
        if !flushing {
            match Box::pin(fill(connection, sink)).await {
                Ok(Filled::Nothing) => {}
                Ok(Filled::Flushed) => may_have_more = true,
                Ok(Filled::Full) => flushing = true,
                Err(_) => return None,
            }
        }
        if let Some(code) = connection.closing() {
            return Some(code);
        }
        if let Some(validity) = connection.take_validity() {
            ended = validity.can_end().then(|| Box::pin(validity.ended()) as _);
        }
        // In this order, so that a client that sends without end does not keep us from flushing.
        let happened = tokio::select! {
            biased;
            () = closing.as_mut() => ConnectionEvent::Closing,
            why = end_of(&mut ended) => ConnectionEvent::CredentialEnded(why),
            () = draining.as_mut(), if !draining_sent => ConnectionEvent::Draining,
            Some(mail) = inbox.recv() => ConnectionEvent::Mail(mail),
            flushed = sink.flush(), if flushing => ConnectionEvent::Flushed(flushed),
            () = timer::until(timer.as_mut(), Some(connection.poll_timeout())) => ConnectionEvent::Time,
            frame = stream.next(), if connection.may_read(inbox.len()) => ConnectionEvent::Frame(frame),
            () = std::future::ready(()), if may_have_more => ConnectionEvent::MayHaveMore,
            () = wake.woken(), if !flushing => ConnectionEvent::Wake,
        };
        match happened {
            ConnectionEvent::Frame(frame) => match Box::pin(receive(connection, frame)).await {
                FrameOutcome::Onward => {}
                FrameOutcome::Gone => return None,
                FrameOutcome::Refuse(code) => return Some(code),
            },
            ConnectionEvent::Mail(mail) => Box::pin(connection.handle_mail(*mail)).await,
            ConnectionEvent::Wake => connection.handle_wake(),
            ConnectionEvent::MayHaveMore => {}
            ConnectionEvent::Flushed(Ok(())) => flushing = false,
            ConnectionEvent::Flushed(Err(_)) => return None,
            ConnectionEvent::Draining => {
                draining_sent = true;
                connection.handle_draining();
            }
            ConnectionEvent::Closing => {
                // The last events of runs that have just finished still go out.
                connection.handle_wake();
                Box::pin(connection.pump()).await;
                return Some(CloseCode::Restart);
            }
            ConnectionEvent::Time => connection.handle_timeout(clock::now()),
            ConnectionEvent::CredentialEnded(why) => {
                ended = None;
                connection.handle_credential_ended(why);
            }
        }
    }
}

async fn end_of(ended: &mut CredentialEnd) -> AuthError {
    match ended {
        Some(ended) => ended.await,
        None => std::future::pending().await,
    }
}

/// What became of what a client is owed.
enum Filled {
    Nothing,
    /// The socket has taken it.
    Flushed,
    /// The socket is full, and has to be waited for.
    Full,
}

/// Hands what is owed to the socket, as long as it takes it.
async fn fill(connection: &mut Connection, sink: &mut FrameSink) -> Result<Filled, axum::Error> {
    connection.pump().await;
    let mut fed = false;
    // Waiting here for a socket that is full would keep the connection from everything else, so it only asks.
    let mut sink = Pin::new(sink);
    while connection.has_output() || connection.wants_ping() {
        match poll_fn(|cx| sink.as_mut().poll_ready(cx)).now_or_never() {
            None => {
                connection.handle_full();
                return Ok(Filled::Full);
            }
            Some(ready) => ready?,
        }
        fed = true;
        if connection.take_ping() {
            sink.as_mut().start_send(Message::Ping(Bytes::new()))?;
        } else if let Some(bytes) = connection.pop()
            && let Ok(text) = Utf8Bytes::try_from(bytes)
        {
            // Everything in the outbox was encoded by us as JSON, so what is not text cannot be there.
            sink.as_mut().start_send(Message::Text(text))?;
        }
    }
    if !fed {
        return Ok(Filled::Nothing);
    }
    match poll_fn(|cx| sink.as_mut().poll_flush(cx)).now_or_never() {
        None => Ok(Filled::Full),
        Some(flushed) => flushed.map(|()| Filled::Flushed),
    }
}

enum FrameOutcome {
    Onward,
    Gone,
    Refuse(CloseCode),
}

async fn receive(connection: &mut Connection, frame: Option<Result<Message, axum::Error>>) -> FrameOutcome {
    let message = match frame {
        None | Some(Ok(Message::Close(_))) => return FrameOutcome::Gone,
        Some(Err(error)) => return refused(error),
        Some(Ok(message)) => message,
    };
    connection.handle_heard().await;
    match message {
        Message::Text(text) => connection.handle_text(&text).await,
        Message::Binary(_) => return FrameOutcome::Refuse(CloseCode::Unsupported),
        Message::Ping(_) | Message::Pong(_) | Message::Close(_) => {}
    }
    FrameOutcome::Onward
}

/// What the WebSocket layer would not take, as the close code that says why.
fn refused(error: axum::Error) -> FrameOutcome {
    use tungstenite::Error;
    match error.into_inner().downcast_ref::<Error>() {
        Some(Error::Capacity(_)) => FrameOutcome::Refuse(CloseCode::TooBig),
        Some(Error::Utf8(_)) => FrameOutcome::Refuse(CloseCode::InvalidUtf8),
        Some(Error::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake)) => FrameOutcome::Gone,
        Some(Error::Protocol(_)) => FrameOutcome::Refuse(CloseCode::Protocol),
        _ => FrameOutcome::Gone,
    }
}

/// Sends what is left and the close frame, then waits for the other side's.
async fn farewell(sink: &mut FrameSink, stream: &mut FrameStream, rest: Vec<Bytes>, code: CloseCode) {
    for text in rest.into_iter().filter_map(|bytes| Utf8Bytes::try_from(bytes).ok()) {
        if sink.feed(Message::Text(text)).await.is_err() {
            return;
        }
    }
    let frame = CloseFrame { code: code.code(), reason: code.reason().into() };
    if sink.send(Message::Close(Some(frame))).await.is_ok() {
        while let Some(Ok(_)) = stream.next().await {}
    }
}
