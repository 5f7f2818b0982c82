//! One WebSocket of a client: opened, read and written by tasks of its own, so that a slow or dead one holds nothing up.

use std::sync::Arc;
use std::time::Duration;

use bowline_env::{Network, net};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_tungstenite::{WebSocketStream, client_async};
use tokio_util::task::AbortOnDropHandle;

use crate::address::Address;

const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// A socket that does not take a small frame for this long is lost.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Frames that may wait for a slow application; beyond it the socket waits.
const QUEUE_MAX: usize = 256;

/// What happened to a socket.
#[derive(Debug)]
pub(crate) enum SocketEvent {
    Opened,
    /// `permanent`: no later attempt would succeed either.
    DialFailed {
        reason: String,
        permanent: bool,
    },
    Frame(String),
    /// Something came that is no text frame.
    Alive,
    Closed {
        code: Option<u16>,
        reason: String,
    },
}

/// A socket that is being opened or is open. Dropping it cuts the connection.
#[derive(Debug)]
pub(crate) struct ClientSocket {
    events: mpsc::Receiver<SocketEvent>,
    frames: mpsc::UnboundedSender<String>,
    task: AbortOnDropHandle<()>,
}

impl ClientSocket {
    pub fn dial(network: Arc<dyn Network>, address: Address, token: Option<String>) -> ClientSocket {
        let (report, events) = mpsc::channel(QUEUE_MAX);
        let (frames, outgoing) = mpsc::unbounded_channel();
        let task = async move {
            match connect(&*network, &address, token.as_deref()).await {
                Ok(socket) => run(socket, report, outgoing).await,
                Err(failed) => drop(report.send(failed).await),
            }
        };
        ClientSocket { events, frames, task: AbortOnDropHandle::new(tokio::spawn(task)) }
    }

    /// The next thing that happens. Nothing is lost if this is not awaited to its end.
    pub async fn next(&mut self) -> SocketEvent {
        let gone = || SocketEvent::Closed { code: None, reason: String::new() };
        self.events.recv().await.unwrap_or_else(gone)
    }

    /// Queues a frame. A socket that has closed meanwhile says so in [`next`](ClientSocket::next).
    pub fn send(&self, frame: String) {
        let _ = self.frames.send(frame);
    }

    /// Closes politely, after what was queued, and not longer than a moment.
    pub async fn close(self) {
        let ClientSocket { frames, mut events, task } = self;
        drop(frames);
        events.close();
        let _ = timeout(CLOSE_TIMEOUT, task).await;
    }
}

type WebSocket = WebSocketStream<net::Socket>;

async fn connect(network: &dyn Network, address: &Address, token: Option<&str>) -> Result<WebSocket, SocketEvent> {
    let url = &address.ws_url();
    let failed = |reason: String, permanent: bool| SocketEvent::DialFailed { reason, permanent };
    let mut request = url.as_str().into_client_request().map_err(|error| failed(format!("{url}: {error}"), true))?;
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse();
        let value = value.map_err(|_| failed("the token holds characters that no header can carry".into(), true))?;
        request.headers_mut().insert(http::header::AUTHORIZATION, value);
    }
    let dialled = async { client_async(request, address.dial(network).await?).await };
    match timeout(DIAL_TIMEOUT, dialled).await {
        Ok(Ok((socket, _))) => Ok(socket),
        Ok(Err(WsError::Http(response))) => Err(match response.status().as_u16() {
            401 | 403 => failed(
                format!("{url} refused us ({}). Give a valid token with --token or BOWLINE_TOKEN.", response.status()),
                true,
            ),
            404 | 405 | 426 => failed(
                format!("there is no Bowline at {url} ({}); the endpoint is usually /ws", response.status()),
                true,
            ),
            _ => failed(format!("{url} answered {}", response.status()), false),
        }),
        Ok(Err(error)) => Err(failed(format!("cannot reach {url}: {error}"), false)),
        Err(_) => Err(failed(format!("cannot reach {url}: no answer"), false)),
    }
}

/// Reads and writes until one end has had enough.
async fn run(socket: WebSocket, report: mpsc::Sender<SocketEvent>, outgoing: mpsc::UnboundedReceiver<String>) {
    let (sink, stream) = socket.split();
    if report.send(SocketEvent::Opened).await.is_err() {
        return;
    }
    let writer = AbortOnDropHandle::new(tokio::spawn(write(sink, outgoing, report.clone())));
    read(stream, &report).await;
    // The reader ends when the server has closed, or when its receiver is gone: then the writer may still send a close frame.
    let _ = timeout(CLOSE_TIMEOUT, writer).await;
}

async fn write(
    mut sink: SplitSink<WebSocket, Message>,
    mut outgoing: mpsc::UnboundedReceiver<String>,
    report: mpsc::Sender<SocketEvent>,
) {
    while let Some(frame) = outgoing.recv().await {
        let reason = match timeout(SEND_TIMEOUT, sink.send(Message::text(frame))).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the connection takes nothing any more".into(),
        };
        let _ = report.send(SocketEvent::Closed { code: None, reason }).await;
        return;
    }
    let _ = timeout(CLOSE_TIMEOUT, sink.close()).await;
}

async fn read(mut stream: SplitStream<WebSocket>, report: &mpsc::Sender<SocketEvent>) {
    let closed = |code, reason| SocketEvent::Closed { code, reason };
    loop {
        let event = match stream.next().await {
            Some(Ok(Message::Text(text))) => SocketEvent::Frame(text.as_str().to_owned()),
            Some(Ok(Message::Close(Some(frame)))) => closed(Some(frame.code.into()), frame.reason.as_str().to_owned()),
            Some(Ok(Message::Close(None))) | None => closed(None, String::new()),
            Some(Ok(_)) => SocketEvent::Alive,
            Some(Err(error)) => closed(None, format!("the connection broke: {error}")),
        };
        let last = matches!(event, SocketEvent::Closed { .. });
        if report.send(event).await.is_err() || last {
            return;
        }
    }
}
