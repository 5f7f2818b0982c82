//! `GET /v1/responses` with an upgrade: the API's WebSocket mode. Each `response.create` is a request as over HTTP, and the events
//! of its response come back as messages.
//!
//! Requests run one after the other, unless they name lanes (`stream_id`), which run side by side. A connection that breaks costs
//! no response: it is read on by its id, as any other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::{Message, WebSocket};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use bowline_env::clock;
use bowline_protocol::{ErrorCode, Refusal, json};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::admission::AdmissionRules;
use super::super::chat::Owner;
use super::super::chat::read::BodyFields;
use super::super::limits::RequestLimits;
use super::super::problem::Problem;
use super::super::ws::{UpgradeResult, check_room, no_upgrade};
use super::create::{Begun, begin, forget};
use super::error::ErrorFacts;
use super::request::ResponseRequest;
use crate::alias::Naming;
use crate::metrics;
use crate::refusals;
use crate::stream::Streams;

/// Lanes of one connection, and requests that may wait in one.
const LANES_MAX: usize = 16;
const WAITING_MAX: usize = 16;
/// Messages that wait for the socket. A sender of more waits too.
const OUTBOX: usize = 16;
/// The longest name of a lane.
const LANE_BYTES_MAX: usize = 256;

#[derive(Clone)]
struct ResponseSocket {
    owner: Owner,
    limits: Arc<RequestLimits>,
    naming: Arc<Naming>,
    streams: Arc<Streams>,
}

pub async fn connect(
    owner: Owner,
    State(admission): State<Arc<AdmissionRules>>,
    State(limits): State<Arc<RequestLimits>>,
    State(naming): State<Arc<Naming>>,
    State(streams): State<Arc<Streams>>,
    headers: HeaderMap,
    upgrade: UpgradeResult,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(why) => return no_upgrade(&why).into_response(),
    };
    let admitted = check_room(&limits.config, &limits.metrics).and_then(|()| admission.check_origin(&headers));
    if let Err(problem) = admitted {
        return problem.into_response();
    }
    let bytes_max = limits.config.limits.http_body_bytes_max;
    let connection = ResponseSocket { owner, limits, naming, streams };
    upgrade
        .max_message_size(bytes_max)
        .max_frame_size(bytes_max)
        .on_upgrade(move |socket| async move { connection.serve(socket).await })
}

impl ResponseSocket {
    /// Serves until the client leaves, its credential ends, or the server does.
    async fn serve(self, socket: WebSocket) {
        let counted = self.limits.metrics.clone();
        counted.connections.inc();
        let (sink, frames) = socket.split();
        let (outbox, messages) = mpsc::channel(OUTBOX);
        let interval = self.streams.config.heartbeat.interval;
        let writer = tokio::spawn(write(sink, messages, interval));
        let validity = self.owner.validity.clone();
        let closing = self.streams.readers.closing.clone();
        let served = std::pin::pin!(closing.run_until_cancelled(self.read(frames, outbox, interval)));
        let ended = std::pin::pin!(validity.ended());
        futures_util::future::select(served, ended).await;
        // What is on its way is still written, if the client takes it.
        let _ = timeout(interval, writer).await;
        metrics::leave(&counted.connections);
    }

    async fn read(self, mut frames: SplitStream<WebSocket>, outbox: mpsc::Sender<String>, interval: Duration) {
        let mut lanes: HashMap<Option<String>, mpsc::Sender<BodyFields>> = HashMap::new();
        // Dropped with the connection, and with it all that writes to it. The responses go on.
        let mut tasks = JoinSet::new();
        while let Ok(Some(Ok(frame))) = timeout(interval * 2, frames.next()).await {
            let text = match frame {
                Message::Text(text) => text,
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Close(_) => return,
                Message::Binary(_) => {
                    let refusal = Refusal::new(ErrorCode::InvalidPayload, "Messages are JSON, as text.");
                    if outbox.send(error(&refusal, None)).await.is_err() {
                        return;
                    }
                    continue;
                }
            };
            let (lane, taken) = match self.create(&text) {
                Err((refusal, lane)) => (lane, Err(refusal)),
                Ok((_, lane)) if lanes.len() >= LANES_MAX && !lanes.contains_key(&lane) => {
                    let message = format!("A connection has at most {LANES_MAX} lanes (`stream_id`).");
                    (lane, Err(Refusal::new(ErrorCode::RateLimited, message)))
                }
                Ok((create, lane)) => {
                    let sender = lanes.entry(lane.clone()).or_insert_with(|| {
                        let (sender, requests) = mpsc::channel(WAITING_MAX);
                        tasks.spawn(self.clone().run_lane(lane.clone(), requests, outbox.clone()));
                        sender
                    });
                    let full = |_| Refusal::new(ErrorCode::RateLimited, "Too many requests wait for the ones before.");
                    let taken = sender.try_send(create).map_err(full);
                    (lane, taken)
                }
            };
            if let Err(refusal) = taken
                && outbox.send(error(&refusal, lane.as_deref())).await.is_err()
            {
                return;
            }
        }
    }

    /// A `response.create`, and its lane.
    fn create(&self, text: &str) -> Result<(BodyFields, Option<String>), (Refusal, Option<String>)> {
        let parsed = self.limits.text(text.as_bytes()).map_err(|refusal| (refusal, None))?;
        let invalid = |message: &str| Refusal::new(ErrorCode::InvalidPayload, message);
        let Ok(Value::Object(fields)) = serde_json::from_str(parsed) else {
            return Err((invalid("A message must be a JSON object."), None));
        };
        let mut fields = BodyFields(fields);
        let lane = match fields.text("stream_id") {
            Ok(Some(lane)) if lane.len() > LANE_BYTES_MAX => {
                return Err((Refusal::field("stream_id", "is longer than 256 bytes"), None));
            }
            Ok(lane) => lane,
            Err(refusal) => return Err((refusal, None)),
        };
        match checked(fields) {
            Ok(fields) => Ok((fields, lane)),
            Err(refusal) => Err((refusal, lane)),
        }
    }

    async fn run_lane(
        self,
        lane: Option<String>,
        mut requests: mpsc::Receiver<BodyFields>,
        outbox: mpsc::Sender<String>,
    ) {
        while let Some(create) = requests.recv().await {
            if let Err(refusal) = self.respond(create, lane.as_deref(), &outbox).await
                && outbox.send(error(&refusal, lane.as_deref())).await.is_err()
            {
                return;
            }
        }
    }

    /// Runs one request, and sends the events of its response.
    async fn respond(
        &self,
        fields: BodyFields,
        lane: Option<&str>,
        outbox: &mpsc::Sender<String>,
    ) -> Result<(), Refusal> {
        let ResponseSocket { owner, limits, naming, streams } = self;
        let request = ResponseRequest::read(fields)?;
        let is_kept = request.is_kept;
        let Begun { found, place } = begin(owner.clone(), limits, naming, streams, None, request).await?;
        let mut stream = found.stream(streams, 0).await?;
        while let Some(piece) = Box::pin(stream.next()).await.map_err(|error| refusals::of_follower(&error))? {
            for event in events(&piece) {
                if outbox.send(in_lane(event, lane)).await.is_err() {
                    return Ok(());
                }
            }
        }
        if !is_kept {
            forget(streams, &place).await;
        }
        Ok(())
    }
}

/// What a message asks for, if it is a `response.create`.
fn checked(mut fields: BodyFields) -> Result<BodyFields, Refusal> {
    match fields.text("type")?.as_deref() {
        Some("response.create") => {}
        Some(kind) => {
            let message = format!("Events of the type `{kind}` are not taken.");
            return Err(Refusal::new(ErrorCode::NotSupported, message));
        }
        None => return Err(Refusal::field("type", "is missing")),
    }
    if fields.flag("generate")? == Some(false) {
        return Err(Refusal::new(ErrorCode::NotSupported, "`generate` cannot be false."));
    }
    // Everything is streamed here, whatever is said of it.
    fields.0.insert("stream".into(), true.into());
    Ok(fields)
}

/// The events in a piece of a stream. Each stands on one line; what is no JSON is not for these clients.
fn events(piece: &[u8]) -> impl Iterator<Item = &str> {
    let lines = std::str::from_utf8(piece).unwrap_or_default().lines();
    lines.filter_map(|line| line.strip_prefix("data: ")).filter(|data| data.starts_with('{'))
}

/// An event says which lane it belongs to, if its request did.
fn in_lane(event: &str, lane: Option<&str>) -> String {
    match (lane, event.strip_prefix('{')) {
        (Some(lane), Some(members)) => format!("{{\"stream_id\":{},{members}", json::raw(lane).get()),
        _ => event.to_owned(),
    }
}

#[derive(Serialize)]
struct ErrorEvent {
    #[serde(rename = "type")]
    kind: &'static str,
    status: u16,
    error: ErrorFacts,
}

fn error(refusal: &Refusal, lane: Option<&str>) -> String {
    let status = Problem::from(refusal.clone()).into_response().status();
    let event = ErrorEvent { kind: "error", status: status.as_u16(), error: ErrorFacts::of(refusal, status) };
    in_lane(json::raw(&event).get(), lane)
}

/// Writes what there is, and a ping now and then.
async fn write(mut sink: SplitSink<WebSocket, Message>, mut messages: mpsc::Receiver<String>, interval: Duration) {
    let mut ping_at = clock::now() + interval;
    loop {
        // Also where there is always something to send: a client that only listens has to be heard of.
        let until_ping = ping_at.saturating_duration_since(clock::now());
        let next = if until_ping.is_zero() { None } else { timeout(until_ping, messages.recv()).await.ok() };
        let message = match next {
            Some(Some(text)) => Message::Text(text.into()),
            Some(None) => break,
            None => {
                ping_at = clock::now() + interval;
                Message::Ping(Default::default())
            }
        };
        if !matches!(timeout(interval * 2, sink.send(message)).await, Ok(Ok(()))) {
            return;
        }
    }
    // A client that is gone needs no farewell.
    let _ = timeout(interval, sink.close()).await;
}
