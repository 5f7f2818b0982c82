//! The long way back: a session from the state that its client kept, live or rebuilt.

use std::sync::Arc;

use bowline_actor::ActorHost as _;
use bowline_api::{Input, Message, OpenQuestion, Role};
use bowline_core::Turn;
use bowline_core::scrub::omit_redacted;
use bowline_core::seal::OpenedState;
use bowline_core::turn::Active;
use bowline_env::{clock, entropy};
use bowline_protocol::frame::client::Content;
use bowline_protocol::state::State;
use bowline_protocol::{Cursor, Epoch, ErrorCode, LogId, Principal, Refusal, RunId, Seq, SessionId, StepId};
use bowline_store::{Item, Start};

use serde_json::{Map, Value, json};

use super::actor::SessionActor;
use super::messages::title_of;
use super::record::{AcceptedMessage, MessageQueue, SessionRecord, VERSION, keys};
use super::registry::Sessions;
use super::tools_used::{self, UsedTools};
use super::{Life, Mail, used_states};
use crate::alias;

/// What `agent.state_restored` tells, besides what every greeting does.
#[derive(Clone, Debug)]
pub struct Restored {
    pub original: SessionId,
    pub new: SessionId,
    pub step: u64,
    pub messages: usize,
    pub source: RestoredFrom,
    /// How far the state reached.
    pub last_seq: Seq,
    /// The id that the original had before it was restored itself.
    pub before: Option<SessionId>,
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoredFrom {
    /// The log was still there: nothing was rolled back.
    Live,
    /// Everything comes from the state.
    Snapshot,
}

impl RestoredFrom {
    pub fn word(self) -> &'static str {
        match self {
            RestoredFrom::Live => "live",
            RestoredFrom::Snapshot => "snapshot",
        }
    }
}

/// What a restore leads to: the session to claim, and from where to read.
#[derive(Debug)]
pub struct RestorePath {
    /// The session whose actor takes the claim: the original if it lives, else the new one.
    pub claim: SessionId,
    pub restored: Restored,
    pub cursor: Cursor,
}

/// Finds or makes the session that a state belongs to.
pub async fn restore(
    sessions: &Arc<Sessions>,
    owner: &Principal,
    signed: &Content,
    cursor: Option<Cursor>,
) -> Result<RestorePath, Refusal> {
    let limits = sessions.config.state.open_limits(&sessions.config.limits);
    let opened = sessions.ring.now().await.open(signed.0.get(), owner, clock::unix_seconds(), &limits);
    let OpenedState { state, .. } = opened.map_err(|refusal| {
        sessions.metrics.state_refusals.inc(refusal.reason());
        Refusal::from(refusal)
    })?;
    if !sessions.agents.contains_key(&state.metadata.agent_name) {
        sessions.metrics.state_refusals.inc("agent");
        let message = format!("The agent `{}` of this state is no longer configured.", state.metadata.agent_name);
        return Err(Refusal::new(ErrorCode::StateRestoreFailed, message));
    }
    let lineage = lineage_of(&state);
    // One restore at a time: what the first takes, the second must not find.
    let turn = found(sessions, owner, state, cursor);
    sessions.logs.alone(&sessions.restoring, lineage.as_str(), turn).await
}

async fn found(
    sessions: &Arc<Sessions>,
    owner: &Principal,
    mut state: State,
    cursor: Option<Cursor>,
) -> Result<RestorePath, Refusal> {
    let mut restored = Restored {
        original: state.session_id.clone(),
        new: SessionId::from_random(entropy::u128()),
        step: state.current_step,
        messages: state.memory_snapshot.len(),
        source: RestoredFrom::Live,
        last_seq: state.last_seq,
        before: state.metadata.restored_from.clone(),
        warnings: Vec::new(),
    };
    used_states::is_fresh(sessions, &state.session_id, state.last_seq).await?;
    if let Some(live) = sessions.living(&state.session_id, owner).await? {
        let cursor = cursor.unwrap_or(Cursor { epoch: Some(state.epoch), seq: state.last_seq });
        return Ok(RestorePath { claim: live, restored, cursor });
    }
    restored.source = RestoredFrom::Snapshot;
    let omitted = omit_redacted(&mut state);
    restored.warnings.extend(omitted.iter().map(|path| format!("A secret was left out of the state: {path}")));
    let used = tools_used::from_states(&state.tool_states);
    restored.warnings.extend(tools_used::missing(&*sessions.tools, owner, &used).await);
    // What is taken is gone from the state, so nothing is taken for a session that cannot be made.
    sessions.admits_another(owner)?;
    used_states::take(sessions, owner, &restored).await?;
    let asked = state.pending_confirmations.len();
    let mut open = Vec::new();
    for question in std::mem::take(&mut state.pending_confirmations) {
        if used_states::bring_on(sessions, owner, &question.step_id, &restored.original, &restored.new).await? {
            open.push(question);
        }
    }
    state.pending_confirmations = open;
    if state.pending_confirmations.len() < asked {
        restored
            .warnings
            .push("Questions of this state were answered or cancelled, or went with an earlier restore.".into());
    }
    let cursor = cursor.unwrap_or(Cursor::bare(state.last_seq));
    rebuild(sessions, owner, &restored.new, state, &used).await?;
    Ok(RestorePath { claim: restored.new.clone(), restored, cursor })
}

/// What a state and all that were restored from its session have in common.
fn lineage_of(state: &State) -> SessionId {
    state.metadata.lineage.clone().unwrap_or_else(|| state.session_id.clone())
}

fn beginning(after: Seq) -> Start {
    Start { epoch: Epoch::from_random(entropy::u64()), after }
}

/// Makes a new session out of a state: its numbering goes on after the snapshot's, in a new epoch.
async fn rebuild(
    sessions: &Arc<Sessions>,
    owner: &Principal,
    id: &SessionId,
    state: State,
    used: &UsedTools,
) -> Result<(), Refusal> {
    let now_ms = sessions.logs.clock.now_ms();
    let lineage = lineage_of(&state);
    let mut items = Vec::new();
    let mut put = |key: String, value: &dyn erased::Json| items.push(Item::put(key, value.bytes()));
    for (number, message) in state.memory_snapshot.iter().enumerate() {
        let role = if message.role == "user" { Role::User } else { Role::Assistant };
        let message_id = message.message_id.as_ref().map(|id| id.as_str().to_owned());
        let at_ms = message.at_ms.unwrap_or(now_ms);
        let kept = Message {
            role,
            content: message.content.clone(),
            at_ms,
            message_id,
            interrupted: message.interrupted,
            turn: None,
            instructions: None,
            functions: None,
            parts: None,
        };
        put(keys::message(number as u64), &kept);
        if let Some(id) = &message.message_id {
            // What exactly was sent under this key is not in the state, so whatever comes again under it is the same.
            put(keys::idempotency(id), &AcceptedMessage::new("", None));
        }
    }
    if !state.plan_context.is_null() {
        put(keys::WORK.to_owned(), &state.plan_context);
    }
    if !is_empty(&state.agent_state) {
        put(keys::AGENT_STATE.to_owned(), &state.agent_state);
    }
    if !used.is_empty() {
        put(keys::TOOLS.to_owned(), used);
    }
    let mut pending: Vec<StepId> = Vec::new();
    for asked in &state.pending_confirmations {
        let kept = OpenQuestion {
            step_id: asked.step_id.clone(),
            question: asked.question.clone(),
            metadata: asked.metadata.clone(),
            state: asked.state.clone(),
            asked_ms: asked.asked_ms,
        };
        put(keys::confirmation(&asked.step_id), &kept);
        pending.push(asked.step_id.clone());
    }
    // A run that was active is treated as cut by a crash: it waits if it waited, else the actor ends it when it begins.
    let waits_for_nothing = state.metadata.session_state == "waiting" && pending.is_empty();
    let turn = if state.metadata.session_state == "idle" || waits_for_nothing {
        Turn::Idle
    } else {
        let last = state.memory_snapshot.iter().rev().find(|message| message.role == "user");
        put(
            keys::INPUT.to_owned(),
            &Input::Message { text: last.map(|message| message.content.clone()).unwrap_or_default() },
        );
        let run = RunId::from_random(entropy::u128());
        Turn::Active(Active { run, started: state.last_seq.next(), started_ms: now_ms, pending })
    };
    let title = state.memory_snapshot.iter().find(|message| message.role == "user");
    let record = SessionRecord {
        version: VERSION,
        agent: state.metadata.agent_name,
        config: state.metadata.agent_config,
        client_id: None,
        app_version: None,
        title: title.map(|message| title_of(&message.content)),
        created_ms: now_ms,
        touched_ms: now_ms,
        held: false,
        life: Life::Active,
        released: false,
        current: None,
        lineage: Some(lineage),
        restored_from: Some(state.session_id),
        turn,
        messages: state.memory_snapshot.len() as u64,
        queue: MessageQueue::default(),
        operations: 0,
        operations_running: None,
        webhooks: 0,
        resume_token: None,
    };
    sessions.create_log(owner, id, &record, beginning(state.last_seq), items).await
}

/// An agent that kept nothing is exported with `{}`.
fn is_empty(agent_state: &Value) -> bool {
    agent_state.is_null() || agent_state.as_object().is_some_and(Map::is_empty)
}

/// Values of several types in one list of items.
mod erased {
    pub trait Json {
        fn bytes(&self) -> Vec<u8>;
    }

    impl<T: serde::Serialize> Json for T {
        fn bytes(&self) -> Vec<u8> {
            // Our own types have string keys and finite numbers only, so this cannot fail.
            serde_json::to_vec(self).unwrap_or_default()
        }
    }
}

impl SessionActor {
    /// The session goes on under a new id; the old one is over for every client that knows it.
    pub(super) async fn supersede(&mut self, restored: &Restored) -> Result<(), Refusal> {
        let new = &restored.new;
        used_states::take(&self.shared, &self.owner, restored).await?;
        for step in self.record.turn.active().map_or(&[][..], |active| &active.pending) {
            used_states::carry(&self.shared, &self.owner, step, new).await?;
        }
        alias::give(&self.shared.logs, &LogId::from(new), &self.owner, self.log.as_str()).await?;
        let mut change = self.change();
        change.record.current = Some(new.clone());
        change.record.restored_from = Some(self.id.clone());
        self.commit(change).await?;
        let old = std::mem::replace(&mut self.id, new.clone());
        self.shared.directory().rename(&old, new);
        for (_, member) in self.members.drain() {
            member.mailbox.send(Mail::Superseded { session: old.clone(), by: new.clone() });
        }
        Ok(())
    }

    pub(super) fn lineage(&self) -> SessionId {
        self.record.lineage.clone().unwrap_or_else(|| SessionId::from(&self.log))
    }

    /// What `agent.state_restored` says besides the usual.
    pub(super) fn restored_facts(restored: &Restored) -> Value {
        json!({
            "original_session_id": restored.original,
            "new_session_id": restored.new,
            "restored_step": restored.step,
            "message_count": restored.messages,
            "source": restored.source.word(),
            "warnings": restored.warnings,
        })
    }
}
