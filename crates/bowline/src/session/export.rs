//! What a client may take with it: the session as a signed state. Exporting changes nothing.

use bowline_api::{Message, OpenQuestion, Role, WorkView};
use bowline_core::seal::{Form, SealInput, Sealed};
use bowline_core::shorten::shorten;
use bowline_env::{clock, entropy};
use bowline_mutant::mutant;
use bowline_protocol::frame::{Control, names};
use bowline_protocol::state::{MemoryMessage, PendingConfirmation, State, StateMetadata};
use bowline_protocol::{ErrorCode, MessageId, Refusal, StepId};

use serde_json::{Map, Value, json};

use super::actor::SessionActor;
use super::record::keys;
use super::{Mail, Mailbox};
use crate::refusals;

/// What the client wants in its state, and how it wants it written.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    pub memory: bool,
    pub context: bool,
    pub work: bool,
    pub token: bool,
    /// The context was asked for by name, so it is shown beside an encrypted state too.
    pub context_asked: bool,
}

impl Default for ExportOptions {
    fn default() -> ExportOptions {
        ExportOptions { memory: true, context: true, work: true, token: false, context_asked: false }
    }
}

impl ExportOptions {
    pub fn read(options: &Map<String, Value>) -> Result<ExportOptions, Refusal> {
        let flag = |key: &str| match options.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(Refusal::field(&format!("content.{key}"), "must be true or false")),
        };
        let token = match options.get("format") {
            None | Some(Value::Null) => false,
            Some(format) if format == "object" => false,
            Some(format) if format == "token" => true,
            Some(_) => return Err(Refusal::field("content.format", "must be \"object\" or \"token\"")),
        };
        let context = flag("include_plan")?;
        Ok(ExportOptions {
            memory: flag("include_memory")?.unwrap_or(true),
            context: context.unwrap_or(true),
            work: flag("include_work")?.unwrap_or(true),
            token,
            context_asked: context == Some(true),
        })
    }
}

impl SessionActor {
    pub(super) async fn export(&mut self, from: &Mailbox, options: ExportOptions) {
        let exported = match self.may_hold_and_write(from) {
            Ok(()) => self.exported(options).await,
            Err(refusal) => Err(refusal),
        };
        match exported {
            Ok(frame) => from.send(Mail::Control(frame)),
            Err(refusal) => from.refuse(&self.id, refusal),
        }
    }

    /// Whether the client asked to be sent its state unasked.
    pub(super) fn wants_checkpoints(&self) -> bool {
        self.record.config.get("checkpoints") == Some(&Value::Bool(true))
    }

    /// Pushes the state to the holder, so that even the loss of this server's disk loses nothing it cannot bring back.
    pub(super) async fn checkpoint(&mut self) {
        self.checkpoint_at = None;
        let holder = self
            .hold
            .holder()
            .and_then(|connection| self.members.get(&connection))
            .map(|member| member.mailbox.clone());
        let Some(holder) = holder.filter(|_| self.wants_checkpoints()) else { return };
        if let Err(refusal) = self.push_to(&holder).await {
            tracing::warn!(session = %self.id, %refusal, "a checkpoint could not be made");
        }
        if self.run.is_some() {
            self.checkpoint_at = Some(clock::now() + self.shared.config.state.checkpoint_interval);
        }
    }

    /// A run that only waits changes nothing, and its holder has the state already.
    async fn push_to(&mut self, holder: &Mailbox) -> Result<(), Refusal> {
        let now = (holder.connection, self.next_seq().await?);
        if self.checkpointed != Some(now) {
            holder.send(Mail::Control(self.exported(ExportOptions::default()).await?));
            self.checkpointed = Some(now);
        }
        Ok(())
    }

    async fn exported(&self, options: ExportOptions) -> Result<Control, Refusal> {
        let config = &self.shared.config.state;
        let mut state = self.snapshot(options).await?;
        self.shared.scrubber.scrub_state(&mut state);
        let truncated = shorten(&mut state, config.limits()).map_err(|long| {
            let message =
                format!("The state takes {} bytes without a single message; state.bytes_max is less.", long.bytes);
            Refusal::new(ErrorCode::StateTooLarge, message)
        })?;
        let form = match (config.encrypt, options.token) {
            (true, _) => Form::Encrypted(entropy::bytes()),
            (false, true) => Form::Token,
            (false, false) => Form::Object,
        };
        let now_ms = clock::wall_ms();
        let now_unix = now_ms / 1000;
        let sealed =
            self.shared.ring.now().await.seal(&SealInput { state: &state, owner: &self.owner, now_unix, form });
        self.shared.metrics.state_exports.inc();
        Ok(self.export_frame(&state, &sealed, now_ms, truncated, !config.encrypt || options.context_asked))
    }

    fn export_frame(&self, state: &State, sealed: &Sealed, now_ms: u64, truncated: bool, readable: bool) -> Control {
        let ttl = self.shared.config.state.ttl.as_secs();
        let mut facts = json!({
            "signed_state": sealed.signed,
            "session_id": self.id,
            "state_size": sealed.state_bytes,
            "message_count": state.memory_snapshot.len(),
            "current_step": state.current_step,
            "current_operation": self.at_work(),
            "snapshot_time": clock::rfc3339(now_ms),
            "exported_at": clock::rfc3339(now_ms),
            // The signed time has whole seconds, and the lifetime counts from that.
            "valid_until": clock::rfc3339((now_ms / 1000 + ttl) * 1000),
            "expire_after_hours": ttl as f64 / 3600.0,
            "truncated": truncated,
        });
        if readable {
            facts["session_state"] = json!({
                "stage": state.stage,
                "plan_context": state.plan_context,
                "current_task": state.current_task,
                "completed_tasks": state.completed_tasks,
                "agent_state": state.agent_state,
            });
        }
        let sentence = "Keep this: with it you can come back, even to a server that has forgotten you.";
        Control::new(names::STATE_EXPORTED, Some(self.id.clone()), sentence.into(), facts)
    }

    async fn snapshot(&self, options: ExportOptions) -> Result<State, Refusal> {
        let extent = self.shared.logs.store.extent(&self.log).await.map_err(|error| refusals::of_store(&error))?;
        let conversation = self.conversation().await?;
        let WorkView { context, completed, current } = self.work().await?;
        let current_step = conversation.iter().filter(|message| message.role == Role::User).count() as u64;
        Ok(State {
            session_id: self.id.clone(),
            epoch: extent.epoch.clone(),
            last_seq: if mutant("export-an-old-state") { extent.first } else { extent.last() },
            current_step,
            stage: Some(self.at_work().unwrap_or(self.record.turn.state()).to_owned()),
            agent_state: self.certain(keys::AGENT_STATE).await?.unwrap_or_else(|| json!({})),
            created_at: clock::rfc3339(self.record.created_ms),
            last_active_at: clock::rfc3339(self.record.touched_ms),
            completed_tasks: if options.work { completed } else { Vec::new() },
            current_task: current.filter(|_| options.work).unwrap_or_default(),
            plan_context: if options.context { context } else { Value::Null },
            memory_snapshot: if options.memory {
                conversation.into_iter().map(remembered).collect()
            } else {
                Vec::new()
            },
            tool_states: self.tool_states().await?,
            pending_confirmations: self.pending_confirmations().await?,
            metadata: StateMetadata {
                agent_name: self.record.agent.clone(),
                agent_config: self.record.config.clone(),
                session_state: self.record.turn.state().to_owned(),
                lineage: Some(self.lineage()),
                restored_from: self.record.restored_from.clone(),
                redacted: Vec::new(),
            },
        })
    }

    /// What the active run is at, as far as it has said; none if there is none.
    fn at_work(&self) -> Option<&'static str> {
        self.record.turn.active()?;
        let said = self.run.as_ref().and_then(|run| run.work.stage());
        let state = self.record.turn.state();
        Some(said.filter(|_| state == "running").unwrap_or(state))
    }

    /// The work that is kept or under way, and how it stands.
    async fn work(&self) -> Result<WorkView, Refusal> {
        let kept: Option<Value> = self.item(keys::WORK).await?;
        Ok(match &self.run {
            Some(run) => run.work.describe(kept),
            None => self.new_work().describe(kept),
        })
    }

    async fn pending_confirmations(&self) -> Result<Vec<PendingConfirmation>, Refusal> {
        let pending: Vec<StepId> = self.record.turn.active().map(|active| active.pending.clone()).unwrap_or_default();
        let mut confirmations = Vec::new();
        for step in pending {
            if let Some(OpenQuestion { step_id, question, metadata, state, asked_ms }) =
                self.item(&keys::confirmation(&step)).await?
            {
                confirmations.push(PendingConfirmation { step_id, question, metadata, state, asked_ms });
            }
        }
        Ok(confirmations)
    }
}

fn remembered(message: Message) -> MemoryMessage {
    let Message { role, content, at_ms, message_id, interrupted, .. } = message;
    let role = if role == Role::User { "user" } else { "assistant" }.to_owned();
    let message_id = message_id.as_deref().and_then(MessageId::parse);
    MemoryMessage { role, content, at_ms: Some(at_ms), message_id, interrupted, redacted: false }
}
