//! One client of the load: it keeps count of every number it sees, and comes back by its last one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bowline_protocol::event::names as events;
use bowline_protocol::frame::names as frames;
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Bytes, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::super::address::{Address, Wire};
use super::tally::Tally;

/// A server that says nothing for so long has forgotten us.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a cut client dials before it gives up.
const DIALS_MAX: u32 = 50;
const DIAL_PAUSE: Duration = Duration::from_millis(100);

pub struct Client {
    address: Address,
    token: Option<String>,
    socket: Option<WebSocketStream<Wire>>,
    session: String,
    last: Option<String>,
    /// Where the server asks for a proof that the session is ours: the newest.
    proof: Option<String>,
    next: u64,
    tally: Tally,
}

#[derive(Deserialize)]
struct Frame {
    event: String,
    seq: Option<u64>,
    event_id: Option<String>,
    session_id: Option<String>,
    #[serde(default)]
    metadata: Value,
}

impl Frame {
    /// An answer that ends otherwise is a refusal.
    fn is_last(&self) -> bool {
        matches!(self.event.as_str(), events::FINAL_ANSWER | events::CANCELLED)
    }

    /// Why the server says no, if it does.
    fn refusal(&self) -> Option<&str> {
        let no = matches!(self.event.as_str(), frames::SYSTEM_ERROR | frames::RECOVERY_FAILED | events::ERROR);
        no.then(|| self.metadata["error_code"].as_str().unwrap_or("?"))
    }
}

impl Client {
    pub fn new(address: Address, token: Option<String>) -> Client {
        Client {
            address,
            token,
            socket: None,
            session: String::new(),
            last: None,
            proof: None,
            next: 1,
            tally: Tally::default(),
        }
    }

    /// Sends its messages one after the other, each after the answer to the one before.
    pub async fn work(
        mut self,
        messages: u32,
        message: String,
        cut_after: Option<u32>,
        answered: Arc<AtomicU64>,
    ) -> Tally {
        let worked = async {
            self.begin().await?;
            for _ in 0..messages {
                self.talk(&message, cut_after).await?;
                answered.fetch_add(1, Ordering::Relaxed);
            }
            self.send(&json!({ "event": frames::END_SESSION, "session_id": self.session })).await
        };
        if let Err(why) = worked.await {
            self.tally.refuse(&why);
        }
        self.tally
    }

    async fn begin(&mut self) -> Result<(), String> {
        self.dial().await?;
        self.send(&json!({ "event": frames::CREATE_SESSION, "content": {} })).await?;
        let created = self.hear_until(|frame| frame.event == frames::SESSION_CREATED).await?;
        self.session = created.session_id.unwrap_or_default();
        Ok(())
    }

    /// One message and its answer. With `cut_after`, the wire is cut after so many of its events.
    async fn talk(&mut self, message: &str, cut_after: Option<u32>) -> Result<(), String> {
        let sent = Instant::now();
        let mut cut_at = cut_after.map(|events| self.next + u64::from(events));
        self.send(&json!({ "event": frames::MESSAGE, "session_id": self.session, "content": message })).await?;
        let mut first = None;
        loop {
            let frame = self.hear().await?;
            first.get_or_insert_with(|| sent.elapsed());
            if frame.is_last() {
                break;
            }
            if cut_at.is_some_and(|at| self.next > at) {
                cut_at = None;
                if self.come_back().await? {
                    break;
                }
            }
        }
        self.tally.firsts.extend(first);
        self.tally.answers.push(sent.elapsed());
        Ok(())
    }

    /// Lets the wire go without a word and returns by the last event; whether the answer has ended meanwhile.
    async fn come_back(&mut self) -> Result<bool, String> {
        let cut = Instant::now();
        self.socket = None;
        let mut dials = 0;
        while let Err(why) = self.dial().await {
            dials += 1;
            if dials >= DIALS_MAX {
                return Err(why);
            }
            tokio::time::sleep(DIAL_PAUSE).await;
        }
        let content = json!({ "last_event_id": self.last, "take_over": true, "resume_token": self.proof });
        self.send(&json!({ "event": frames::RECONNECT, "session_id": self.session, "content": content })).await?;
        let mut ended = false;
        self.hear_until(|frame| {
            ended |= frame.is_last();
            frame.event == frames::NOTICE && frame.metadata["action"] == "replay"
        })
        .await?;
        self.tally.returns.push(cut.elapsed());
        Ok(ended)
    }

    async fn dial(&mut self) -> Result<(), String> {
        let url = self.address.ws_url();
        let mut request = url.as_str().into_client_request().map_err(|error| error.to_string())?;
        if let Some(token) = &self.token {
            let value = format!("Bearer {token}").parse().map_err(|_| "the token cannot be sent".to_owned())?;
            request.headers_mut().insert(http::header::AUTHORIZATION, value);
        }
        let dialled = async { client_async(request, self.address.dial().await?).await };
        let (socket, _) = timeout(PATIENCE, dialled)
            .await
            .map_err(|_| "no answer to the dial".to_owned())?
            .map_err(|error| error.to_string())?;
        self.socket = Some(socket);
        Ok(())
    }

    async fn send(&mut self, frame: &Value) -> Result<(), String> {
        let socket = self.socket.as_mut().ok_or("not connected")?;
        socket.send(Message::text(frame.to_string())).await.map_err(|error| error.to_string())
    }

    async fn hear_until(&mut self, mut wanted: impl FnMut(&Frame) -> bool) -> Result<Frame, String> {
        loop {
            let frame = self.hear().await?;
            if wanted(&frame) {
                return Ok(frame);
            }
        }
    }

    /// The next frame, counted.
    async fn hear(&mut self) -> Result<Frame, String> {
        loop {
            let socket = self.socket.as_mut().ok_or("not connected")?;
            let message = timeout(PATIENCE, socket.next()).await.map_err(|_| "silence".to_owned())?;
            let text = match message {
                Some(Ok(Message::Text(text))) => text,
                Some(Ok(Message::Ping(_))) => {
                    let _ = socket.send(Message::Pong(Bytes::new())).await;
                    continue;
                }
                Some(Ok(_)) => continue,
                Some(Err(error)) => return Err(error.to_string()),
                None => return Err("the connection ended".into()),
            };
            let frame: Frame = serde_json::from_str(text.as_str()).map_err(|error| error.to_string())?;
            if matches!(frame.event.as_str(), frames::CONNECTED | frames::HEARTBEAT) {
                continue;
            }
            if let Some(code) = frame.refusal() {
                return Err(code.to_owned());
            }
            self.count(&frame);
            if let Some(proof) = frame.metadata["resume_token"].as_str() {
                self.proof = Some(proof.to_owned());
            }
            return Ok(frame);
        }
    }

    fn count(&mut self, frame: &Frame) {
        let Some(seq) = frame.seq else { return };
        self.tally.events += 1;
        if seq < self.next {
            self.tally.twice += 1;
            return;
        }
        self.tally.lost += seq - self.next;
        self.next = seq + 1;
        self.last.clone_from(&frame.event_id);
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({}, at {})", self.session, self.next)
    }
}
