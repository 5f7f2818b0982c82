//! What is kept of a session beside its log: one small record, and items that grow with the conversation.

use bowline_core::Turn;
use bowline_core::resume_token::ResumeToken;
use bowline_protocol::frame::client::Content;
use bowline_protocol::{ClientId, ErrorCode, MessageId, Refusal, Seq, SessionId, StepId, TaskId};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::config::Ownership;
use crate::refusals;
use crate::secret::Presented;

/// The record's own version; an older server refuses a newer one.
pub const VERSION: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionRecord {
    pub version: u32,
    pub agent: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub config: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<ClientId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_version: Option<String>,
    /// The first words of the first message, for lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub created_ms: u64,
    pub touched_ms: u64,
    /// A connection held it when this was written; after a crash that counts as a touch.
    #[serde(default)]
    pub held: bool,
    pub life: Life,
    /// The contents of a session that is over were let go; what is left is a tombstone.
    #[serde(default)]
    pub released: bool,
    /// The id under which the session goes on, if it was restored; none means the name of its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<SessionId>,
    /// The first session of those that were restored from each other; none means the name of this one's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<SessionId>,
    /// The id of the state that it was restored from last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_from: Option<SessionId>,
    pub turn: Turn,
    /// How many messages the conversation has, and how many wait in the queue (as item numbers `from .. to`).
    pub messages: u64,
    #[serde(default)]
    pub queue: MessageQueue,
    /// How many background operations it has had; the newest of them are kept as items.
    #[serde(default)]
    pub operations: u64,
    /// How many of them have not ended, as far as the session knows; not known if an older version wrote this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations_running: Option<u64>,
    /// How many ends of responses are owed to webhooks; they are kept as items.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub webhooks: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_token: Option<ResumeToken>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SessionLife")]
pub enum Life {
    Active,
    Ended,
    Expired,
    Superseded {
        #[schemars(with = "String")]
        by: SessionId,
    },
}

/// How a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SessionState {
    Idle,
    Running,
    Waiting,
    Ended,
}

impl SessionState {
    pub const ALL: [SessionState; 4] =
        [SessionState::Idle, SessionState::Running, SessionState::Waiting, SessionState::Ended];

    pub const fn as_str(self) -> &'static str {
        match self {
            SessionState::Idle => "idle",
            SessionState::Running => "running",
            SessionState::Waiting => "waiting",
            SessionState::Ended => "ended",
        }
    }
}

/// Messages accepted while a run was active: items `from .. to`, oldest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageQueue {
    pub from: u64,
    pub to: u64,
}

impl MessageQueue {
    pub fn is_empty(&self) -> bool {
        self.from == self.to
    }

    pub fn len(&self) -> usize {
        (self.to - self.from) as usize
    }
}

impl SessionRecord {
    /// Whether the caller has shown that the session is its own, beyond being its owner by name. A stranger is answered
    /// as if there were no such session.
    pub fn is_proven(&self, ownership: Ownership, token: Option<&Presented>) -> Result<(), Refusal> {
        let proven = match ownership {
            Ownership::Token => {
                self.resume_token.as_ref().zip(token).is_some_and(|(known, shown)| known.is_good(&shown.0))
            }
            Ownership::Principal | Ownership::Open => true,
        };
        proven.then_some(()).ok_or_else(refusals::session_not_found)
    }

    /// Whether this is the first use of the newest secret. Then the one before it must be given up before the client
    /// is answered.
    pub fn is_first_use(&self, ownership: Ownership, token: Option<&Presented>) -> bool {
        let known = self.resume_token.as_ref().filter(|_| ownership == Ownership::Token);
        known.zip(token).is_some_and(|(known, shown)| known.is_first_use(&shown.0))
    }

    /// Whether the session can still be used, or why not.
    pub fn is_alive(&self) -> Result<(), Refusal> {
        match &self.life {
            Life::Active => Ok(()),
            Life::Ended => Err(Refusal::new(ErrorCode::SessionInactive, "The session has ended. Create a new one.")),
            Life::Superseded { by } => {
                let message = "The session goes on under a new id.";
                Err(Refusal::new(ErrorCode::SessionInactive, message)
                    .details(serde_json::json!({ "superseded_by": by })))
            }
            Life::Expired => {
                let message = "The session was quiet for too long and has expired. Create a new one.";
                Err(Refusal::new(ErrorCode::SessionExpired, message))
            }
        }
    }

    /// What is left when the contents of a session that is over are let go: enough to tell its owner that it is over.
    pub fn tombstone(self) -> SessionRecord {
        SessionRecord {
            released: true,
            config: Map::new(),
            client_id: None,
            app_version: None,
            title: None,
            restored_from: None,
            ..self
        }
    }

    pub fn encode(&self) -> Bytes {
        // String keys and finite numbers only, so this cannot fail.
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    pub fn decode(bytes: &[u8]) -> Result<SessionRecord, String> {
        let record: SessionRecord = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if record.version > VERSION {
            return Err(format!(
                "it was written by a newer version of this server (record version {})",
                record.version
            ));
        }
        Ok(record)
    }

    /// idle, running, waiting or ended.
    pub fn state(&self) -> SessionState {
        match (&self.life, self.turn.active()) {
            (Life::Active, None) => SessionState::Idle,
            (Life::Active, Some(active)) if active.pending.is_empty() => SessionState::Running,
            (Life::Active, Some(_)) => SessionState::Waiting,
            (Life::Ended | Life::Expired | Life::Superseded { .. }, _) => SessionState::Ended,
        }
    }
}

/// Keys of the items beside a session's log.
pub mod keys {
    use super::{MessageId, Seq, StepId, TaskId};

    pub const MESSAGES: &str = "m/";
    pub const TURNS: &str = "t/";
    pub const CONFIRMATIONS: &str = "c/";
    pub const OPERATIONS: &str = "o/";
    pub const RESULTS: &str = "r/";
    pub const WEBHOOKS: &str = "w/";
    pub const MARK: &str = "mark";
    /// The agent's work as it stood last.
    pub const WORK: &str = "plan";
    /// What the agent keeps from run to run.
    pub const AGENT_STATE: &str = "agent_state";
    /// The tools that the session has used.
    pub const TOOLS: &str = "tools";
    /// The input of the active run.
    pub const INPUT: &str = "input";

    pub fn message(number: u64) -> String {
        format!("{MESSAGES}{number:010}")
    }

    pub fn queued(number: u64) -> String {
        format!("q/{number:010}")
    }

    pub fn confirmation(step: &StepId) -> String {
        format!("{CONFIRMATIONS}{step}")
    }

    /// The calls for whose outputs a run waits under this step.
    pub fn calls(step: &StepId) -> String {
        format!("f/{step}")
    }

    /// The response of this turn, behind this question of it, whose end webhooks are to get.
    pub fn webhook(turn: Seq, question: Option<Seq>) -> String {
        format!("{WEBHOOKS}{turn}-{}", question.map_or(0, Seq::get))
    }

    /// The turn that began with this event.
    pub fn turn(started: Seq) -> String {
        format!("{TURNS}{:016}", started.get())
    }

    /// What was open at each event of the turn that began with this one, for readers who begin in the middle.
    pub fn index(started: Seq) -> String {
        format!("s/{:016}", started.get())
    }

    pub fn operation(number: u64) -> String {
        format!("{OPERATIONS}{number:010}")
    }

    /// How the operation ended that this task was.
    pub fn result(task: &TaskId) -> String {
        format!("{RESULTS}{task}")
    }

    pub fn idempotency(message: &MessageId) -> String {
        format!("i/{message}")
    }
}

/// What is remembered of a message that was accepted under a key of the client's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedMessage {
    /// A digest of the content: the same key with other content is a conflict.
    pub digest: String,
    /// The number of its `user.message` event; none while it is queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Another key of the same message, which goes with this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also: Option<MessageId>,
    /// This is such another key, of this message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<MessageId>,
}

impl AcceptedMessage {
    pub fn new(digest: impl Into<String>, seq: Option<Seq>) -> AcceptedMessage {
        AcceptedMessage { digest: digest.into(), seq: seq.map(Seq::get), also: None, of: None }
    }
}

/// A message that waits for the run before it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Queued {
    #[serde(with = "content")]
    pub content: Content,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also: Option<MessageId>,
}

/// A message's content, written as the JSON it is.
mod content {
    use super::{Content, RawValue};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(content: &Content, serializer: S) -> Result<S::Ok, S::Error> {
        content.0.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Content)
    }
}
