//! `/produce`: one WebSocket for a busy producer and many tasks. No HTTP round trip per token.

mod drive;

use std::sync::Arc;

use axum::extract::{FromRef, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bowline_protocol::frame::client::Secret;
use bowline_protocol::frame::{ClientFrame, names};
use bowline_protocol::{ErrorCode, ProducerId, Refusal, Seq, TaskId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::admission::AdmissionRules;
use super::chat::Owner;
use super::chat::producers::not_a_producers;
use super::endpoints;
use super::limits::RequestLimits;
use super::problem::Problem;
use super::ws::{UpgradeResult, no_upgrade};
use crate::auth::{Authenticator, Identity, SUBPROTOCOL};
use crate::lifecycle::Lifecycle;
use crate::refusals;
use crate::secret::Presented;
use crate::stream::Streams;
use crate::task::command::Appended;

/// Producers that do not say who they are, are this one: a connection has one producer unless it says otherwise.
const PRODUCER: &str = "producer";
/// What a connection reads at once: a dozen tokens. The WebSocket library clears all of it before each read, so a larger one
/// costs more than the calls that it spares.
const READ_BUFFER_BYTES: usize = 4 << 10;

/// What all connections of producers share.
#[derive(Debug)]
pub struct ProduceContext {
    pub auth: Arc<Authenticator>,
    pub lifecycle: Arc<Lifecycle>,
    pub limits: Arc<RequestLimits>,
    pub streams: Arc<Streams>,
}

/// What this endpoint is made of.
#[derive(Clone, Debug, FromRef)]
pub struct ProduceState {
    pub admission: Arc<AdmissionRules>,
    pub context: Arc<ProduceContext>,
}

endpoints! {
    ProduceState;
    "/produce" => get(upgrade),
}

pub async fn upgrade(
    owner: Owner,
    State(context): State<Arc<ProduceContext>>,
    headers: HeaderMap,
    upgrade: UpgradeResult,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(why) => return no_upgrade(&why).into_response(),
    };
    if context.lifecycle.is_draining() {
        return Problem::from(refusals::draining()).into_response();
    }
    let id = headers.get("producer-id").map_or(Ok(PRODUCER), |value| value.to_str());
    let Some(producer) = id.ok().and_then(ProducerId::parse) else {
        return Problem::from(Refusal::field("Producer-Id", "is empty, too long, or holds control characters"))
            .into_response();
    };
    let limits = &context.limits.config.limits;
    let upgrade = upgrade
        .protocols([SUBPROTOCOL])
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_message_size(limits.frame_bytes_max)
        .max_frame_size(limits.frame_bytes_max);
    let connections = context.lifecycle.connections.clone();
    upgrade.on_upgrade(move |socket| connections.track_future(drive::drive(context, socket, owner, producer)))
}

/// One frame of a producer's.
pub struct Frame {
    pub task: TaskId,
    pub place: Option<(ProducerId, u64)>,
    pub chunks: Vec<Box<RawValue>>,
    /// What shows that the task's session is the producer's, if not what the upgrade showed.
    pub proof: Option<Presented>,
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame({}, {} chunks)", self.task, self.chunks.len())
    }
}

/// What a frame is about, as far as it says, so that even a refusal can be matched with it.
#[derive(Clone, Debug, Default)]
pub struct About {
    pub task_id: Option<String>,
    pub producer_seq: Option<u64>,
}

#[derive(Deserialize)]
struct WrittenFrame {
    #[serde(default)]
    task_id: Option<String>,
    #[serde(default)]
    producer_id: Option<String>,
    #[serde(default)]
    producer_seq: Option<u64>,
    #[serde(default)]
    chunks: Option<Vec<Box<RawValue>>>,
    #[serde(default)]
    resume_token: Option<String>,
}

impl About {
    /// What is known of a frame that could not be read.
    fn of(text: &str) -> About {
        let frame: Value = serde_json::from_str(text).unwrap_or_default();
        let task_id = frame["task_id"].as_str().map(str::to_owned);
        About { task_id, producer_seq: frame["producer_seq"].as_u64() }
    }
}

impl Frame {
    pub fn read(limits: &RequestLimits, producer: &ProducerId, text: &str) -> (About, Result<Frame, Refusal>) {
        let written = limits.text(text.as_bytes()).and_then(|text| {
            serde_json::from_str::<WrittenFrame>(text).map_err(|error| {
                let code = if error.is_data() { ErrorCode::InvalidPayload } else { ErrorCode::InvalidJson };
                Refusal::new(code, format!("This is not a frame of a producer: {error}."))
            })
        });
        match written {
            Err(refusal) => (About::of(text), Err(refusal)),
            Ok(written) => {
                let about = About { task_id: written.task_id.clone(), producer_seq: written.producer_seq };
                (about, Frame::check(producer, written))
            }
        }
    }

    fn check(producer: &ProducerId, written: WrittenFrame) -> Result<Frame, Refusal> {
        let missing = |field: &str| Refusal::field(field, "is missing");
        let task = written.task_id.ok_or_else(|| missing("task_id"))?;
        let task = TaskId::parse(&task).ok_or_else(refusals::task_not_found)?;
        if task.turn().is_some() {
            return Err(not_a_producers());
        }
        let seq = written.producer_seq.ok_or_else(|| missing("producer_seq"))?;
        if seq > Seq::MAX.get() {
            return Err(Refusal::field("producer_seq", "must be a whole number from 0"));
        }
        let id = match written.producer_id {
            None => producer.clone(),
            Some(id) => ProducerId::parse(&id).ok_or_else(|| Refusal::field("producer_id", "is empty or too long"))?,
        };
        let chunks = written.chunks.filter(|chunks| !chunks.is_empty()).ok_or_else(|| missing("chunks"))?;
        let proof = written.resume_token.map(|token| Presented::hash(&token));
        Ok(Frame { task, place: Some((id, seq)), chunks, proof })
    }
}

/// The answer to a frame whose chunks are durable.
#[derive(Serialize)]
struct TakenReply<'a> {
    last_message_id: &'a str,
    producer_seq: Option<u64>,
    task_id: Option<&'a str>,
}

/// The answer to a frame.
pub fn answer(about: &About, appended: Result<Appended, Refusal>) -> String {
    let About { task_id, producer_seq } = about;
    match appended {
        Ok(Appended { last_message_id }) => {
            let taken = TakenReply {
                last_message_id: &last_message_id,
                producer_seq: *producer_seq,
                task_id: task_id.as_deref(),
            };
            // Texts and a number, so this cannot fail.
            serde_json::to_string(&taken).unwrap_or_default()
        }
        Err(refusal) => {
            let mut answer = json!({ "task_id": task_id, "producer_seq": producer_seq });
            refuse(&mut answer, refusal);
            answer.to_string()
        }
    }
}

fn refuse(answer: &mut Value, Refusal { code, message, retry_after_ms, details }: Refusal) {
    answer["code"] = code.as_str().into();
    answer["message"] = message.into();
    answer["recovery_action"] = code.action().as_str().into();
    if let Some(ms) = retry_after_ms {
        answer["retry_after_ms"] = ms.into();
    }
    if let Some(details) = details {
        answer["details"] = details;
    }
}

/// The new credential, if a frame brings one: it is the frame that `/ws` takes.
pub fn renewal(limits: &RequestLimits, text: &str) -> Option<Secret> {
    // Most frames are chunks, and need not be read twice.
    if !text.contains(names::AUTHENTICATE) {
        return None;
    }
    match ClientFrame::parse(text, limits.config.limits.json_depth_max) {
        Ok(ClientFrame::Authenticate { token }) => Some(token),
        _ => None,
    }
}

/// The answer to a new credential.
pub fn renewed(identity: Result<&Identity, &Refusal>) -> String {
    let mut answer = json!({ "event": names::AUTHENTICATE });
    match identity {
        Ok(identity) => {
            answer["principal"] = json!(identity.principal);
            answer["expires_at"] = json!(identity.expires_at);
        }
        Err(refusal) => refuse(&mut answer, refusal.clone()),
    }
    answer.to_string()
}
