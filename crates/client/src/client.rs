//! A link with its socket: what an application uses.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bowline_env::net::OsNetwork;
use bowline_env::{Network, clock, entropy};
use serde_json::{Value, json};
use tokio::time::{sleep_until, timeout_at};

use crate::address::Address;
use crate::link::{AttachTarget, ClientLink, LinkConfig, LinkEvent, LinkOutput, LinkStats, Moment};
use crate::request::{ClientRequest, RequestId};
use crate::socket::{ClientSocket, SocketEvent};

/// What a tap is given: whether the frame was received (else it was sent), and its text.
pub type Tap = Box<dyn FnMut(bool, &str) + Send>;

/// A client of one session.
///
/// [`next`](Client::next) drives it: it opens sockets, sends, receives, waits and comes back, and returns what happened.
/// While it is not awaited, nothing moves; the server waits, or keeps the events in its log.
pub struct Client {
    network: Arc<dyn Network>,
    address: Address,
    token: Option<String>,
    link: ClientLink,
    socket: Option<ClientSocket>,
    /// Sockets that are being closed while others are used already.
    closing: VecDeque<tokio::task::JoinHandle<()>>,
    tap: Option<Tap>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {:?})", self.address.authority, self.link.session())
    }
}

impl Client {
    /// A client that is not connected yet.
    pub fn new(address: Address, token: Option<String>, config: LinkConfig) -> Client {
        let (network, link) = (Arc::new(OsNetwork), ClientLink::new(config));
        Client { network, address, token, link, socket: None, closing: VecDeque::new(), tap: None }
    }

    /// Dials through another network than the operating system's.
    pub fn through(self, network: Arc<dyn Network>) -> Client {
        Client { network, ..self }
    }

    /// Connects, and attaches to the target.
    pub fn start(&mut self, target: AttachTarget) {
        self.link.start(target);
    }

    /// Sends a message to the agent. `message_id` is its key: the same one twice runs once.
    pub fn message(&mut self, message_id: impl Into<String>, content: impl Into<Value>) -> RequestId {
        self.link.request(ClientRequest::Message { message_id: message_id.into(), content: content.into() })
    }

    /// Replies to a question of the agent.
    pub fn respond(&mut self, step_id: impl Into<String>, confirmed: bool) -> RequestId {
        let content = json!({ "confirmed": confirmed });
        self.link.request(ClientRequest::Response { step_id: step_id.into(), content })
    }

    /// Cancels the active run.
    pub fn cancel(&mut self) -> RequestId {
        self.link.request(ClientRequest::Cancel { reason: None })
    }

    /// Ends the session.
    pub fn end_session(&mut self) -> RequestId {
        self.link.request(ClientRequest::End)
    }

    /// Any other request.
    pub fn request(&mut self, request: ClientRequest) -> RequestId {
        self.link.request(request)
    }

    /// Watches a turn or a task from its beginning, or from after the chunk `last_id`.
    pub fn watch(&mut self, task_id: &str, last_id: Option<String>) {
        self.link.watch(task_id, last_id, None);
    }

    /// Uses another credential from now on, on the open connection and for later ones.
    pub fn set_token(&mut self, token: String) {
        self.link.authenticate(&token);
        self.token = Some(token);
    }

    /// The state of the connection, and what else can be done with it.
    pub fn link(&mut self) -> &mut ClientLink {
        &mut self.link
    }

    /// The session, once it is known.
    pub fn session(&self) -> Option<&str> {
        self.link.session()
    }

    /// What has come so far.
    pub fn stats(&self) -> LinkStats {
        self.link.stats()
    }

    /// Shows every frame to `tap`, as it is sent or received: for logs and tests.
    pub fn set_tap(&mut self, tap: Tap) {
        self.tap = Some(tap);
    }

    /// Cuts the connection without a close frame, as a broken network does. The client comes back by itself.
    pub fn cut(&mut self) {
        if self.socket.take().is_some() {
            self.link.handle_closed(moment(), None, "the connection was cut");
        }
    }

    /// The next thing that happens; `None` once the link has stopped and everything was reported. Cancel safe.
    pub async fn next(&mut self) -> Option<LinkEvent> {
        loop {
            while let Some(output) = self.link.poll_output() {
                match output {
                    LinkOutput::Dial => {
                        let (network, address) = (self.network.clone(), self.address.clone());
                        self.socket = Some(ClientSocket::dial(network, address, self.token.clone()));
                    }
                    LinkOutput::HangUp => self.hang_up(),
                    LinkOutput::Send(frame) => self.send(frame),
                    LinkOutput::Event(event) => return Some(event),
                }
            }
            match (&mut self.socket, self.link.poll_timeout()) {
                (Some(socket), Some(deadline)) => match timeout_at(deadline.into(), socket.next()).await {
                    Ok(event) => self.handle(event),
                    Err(_elapsed) => self.link.handle_timeout(moment()),
                },
                (Some(socket), None) => {
                    let event = socket.next().await;
                    self.handle(event);
                }
                (None, Some(deadline)) => {
                    sleep_until(deadline.into()).await;
                    self.link.handle_timeout(moment());
                }
                (None, None) => return None,
            }
        }
    }

    /// Acknowledges what came, and closes the connection.
    pub async fn close(mut self) {
        self.link.stop();
        while self.next().await.is_some() {}
        for closing in self.closing {
            let _ = closing.await;
        }
    }

    fn handle(&mut self, event: SocketEvent) {
        let at = moment();
        match event {
            SocketEvent::Opened => self.link.handle_opened(at),
            SocketEvent::DialFailed { reason, permanent } => {
                self.socket = None;
                self.link.handle_dial_failed(at, &reason, permanent);
            }
            SocketEvent::Frame(text) => {
                if let Some(tap) = &mut self.tap {
                    tap(true, &text);
                }
                self.link.handle_frame(at, &text);
            }
            SocketEvent::Alive => self.link.handle_alive(at),
            SocketEvent::Closed { code, reason } => self.link.handle_closed(at, code, &reason),
        }
    }

    fn send(&mut self, frame: String) {
        if let Some(tap) = &mut self.tap {
            tap(false, &frame);
        }
        if let Some(socket) = &self.socket {
            socket.send(frame);
        }
    }

    /// Closes in the background, so that a dead socket cannot hold up the next one.
    fn hang_up(&mut self) {
        self.closing.retain(|closing| !closing.is_finished());
        if let Some(socket) = self.socket.take() {
            self.closing.push_back(tokio::spawn(socket.close()));
        }
    }
}

fn moment() -> Moment {
    Moment { now: clock::now(), jitter: entropy::chance() }
}
