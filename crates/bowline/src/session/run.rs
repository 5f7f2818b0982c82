//! A run that has a process: how it begins, what it says on its way into the log, and how it ends, exactly once.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use bowline_actor::{EMISSIONS_MAX, Process};
use bowline_api::{
    AgentError, Answer, Emission, Emitter, FunctionOutputs, Input, Message, OpenCalls, OpenQuestion, Reply, Role, Run,
    RunResult, UpstreamFinish, Work, WorkCommand,
};
use bowline_env::{clock, entropy};
use bowline_protocol::event::names;
use bowline_protocol::{Draft, ErrorCode, LoggedEvent, Refusal, RunId, Seq, StepId, json};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::actor::{PendingChange, SessionActor};
use super::command::CommandResult;
use super::operations::{Order, Prepared};
use super::record::keys;
use super::{CommandOutcome, CommandSender, used_states};
use crate::agent_host::agent_host;
use crate::task::status::TurnError;
use crate::task::work::died;

#[derive(Debug)]
pub struct LiveRun {
    pub id: RunId,
    pub process: Process<Emission, RunResult>,
    pub commands: mpsc::Sender<WorkCommand>,
    /// Those who wait in this process for a person's answer.
    pub answers: HashMap<StepId, oneshot::Sender<Reply>>,
    /// Those who wait in this process for outputs of functions.
    pub calls: HashMap<StepId, oneshot::Sender<FunctionOutputs>>,
    /// What was streamed so far, for the conversation if the run is cut short.
    pub partial: String,
    /// Whether it has said nothing but pieces of its answer, and all of them to this process.
    pub plain: bool,
    pub work: Box<dyn Work>,
    /// Who called its work off: then it is they who cancelled the run, and not the agent that obeys.
    pub called_off_by: Option<String>,
    /// Who cancelled it, if that is not stored yet.
    pub cancelled: Option<Cancel>,
    pub started: Instant,
}

/// Who cancelled a run, and why.
#[derive(Clone, Debug)]
pub struct Cancel {
    pub by: String,
    pub reason: Option<String>,
}

impl LiveRun {
    pub fn new(
        id: RunId,
        commands: mpsc::Sender<WorkCommand>,
        process: Process<Emission, RunResult>,
        work: Box<dyn Work>,
    ) -> LiveRun {
        LiveRun {
            id,
            process,
            commands,
            answers: HashMap::new(),
            calls: HashMap::new(),
            partial: String::new(),
            plain: true,
            work,
            called_off_by: None,
            cancelled: None,
            started: clock::now(),
        }
    }
}

/// How a run comes to its process.
pub(super) enum Entry {
    Started,
    /// After a crash, with what it had logged.
    Continued(Vec<LoggedEvent>),
    Answered(OpenQuestion, Reply),
    Returned(OpenCalls, FunctionOutputs),
}

impl SessionActor {
    /// The one way into a run.
    pub(super) async fn start_run(
        &mut self,
        mut change: PendingChange,
        input: Input,
        started: Seq,
        conversation: Vec<Message>,
    ) -> Result<Seq, Refusal> {
        let id = RunId::from_random(entropy::u128());
        change.record.turn.start(id.clone(), started, self.shared.logs.clock.now_ms());
        change.put(keys::INPUT, &input);
        self.commit(change).await?;
        self.launch(id, input, conversation, Entry::Started).await;
        Ok(started)
    }

    /// Gives a run its process.
    pub(super) async fn launch(&mut self, id: RunId, input: Input, conversation: Vec<Message>, mut entry: Entry) {
        let logged = match &mut entry {
            Entry::Continued(logged) => std::mem::take(logged),
            Entry::Started | Entry::Answered(..) | Entry::Returned(..) => Vec::new(),
        };
        let first = matches!(entry, Entry::Started | Entry::Continued(_)) && logged.is_empty();
        let (emit, emissions) = mpsc::channel(EMISSIONS_MAX);
        let (commands, commands_in) = mpsc::channel(16);
        let cancel = CancellationToken::new();
        let kept = self.certain(keys::AGENT_STATE).await;
        let message = self.message_for(&input).await;
        let functions = match &entry {
            Entry::Returned(_, outputs) => Some(outputs.functions.clone()),
            Entry::Started | Entry::Continued(_) | Entry::Answered(..) => {
                message.as_ref().and_then(|message| message.functions.clone())
            }
        };
        let run = Run {
            session: self.id.clone(),
            id: id.clone(),
            owner: self.owner.clone(),
            message,
            input,
            conversation,
            work: self.item(keys::WORK).await.ok().flatten(),
            state: kept.as_ref().ok().cloned().flatten(),
            config: self.record.config.clone(),
            logged,
            cancel: cancel.clone(),
            emit: Emitter::new(
                emit,
                self.shared.config.limits.event_bytes_max,
                agent_host(&self.shared.metrics.limits_hit),
            ),
            commands: commands_in,
            functions: functions.unwrap_or_default(),
            tools: self.shared.tools.clone(),
        };
        let agent = self.shared.agents.get(&self.record.agent).cloned();
        let name = self.record.agent.clone();
        let task = tokio::spawn(async move {
            if let Err(refusal) = kept {
                // To run without its state would be to run as another agent.
                return Err(AgentError::failed(format!("What the agent kept cannot be read: {}", refusal.message)));
            }
            let no_agent = || AgentError::failed(format!("The agent `{name}` is no longer configured."));
            let agent = agent.ok_or_else(no_agent)?;
            match entry {
                Entry::Started | Entry::Continued(_) => agent.run(run).await,
                Entry::Answered(asked, reply) => agent.answered(run, asked, reply).await,
                Entry::Returned(calls, outputs) => agent.returned(run, calls, outputs).await,
            }
        });
        self.shared.metrics.runs_active.inc();
        let mut run = LiveRun::new(id, commands, Process::new(cancel, emissions, task, died), self.new_work());
        // What it said to an earlier process is in the log only.
        run.plain = first;
        self.run = Some(Box::new(run));
        if self.wants_checkpoints() {
            self.checkpoint_at = Some(clock::now() + self.shared.config.state.checkpoint_interval);
        }
    }

    /// The message that an input is about: the last one, since an answer follows it only when the run has ended.
    async fn message_for(&self, input: &Input) -> Option<Message> {
        let number = self.record.messages.checked_sub(1).filter(|_| matches!(input, Input::Message { .. }))?;
        let message: Option<Message> = self.item(&keys::message(number)).await.ok()?;
        message.filter(|message| message.role == Role::User)
    }

    /// Stores what the run said, in one commit. If the store cannot, the run waits; it does not die of it.
    pub(super) async fn store_emissions(&mut self, mut emissions: Vec<Emission>) {
        let Some(id) = self.run.as_deref().map(|run| run.id.clone()) else { return };
        let mut change = self.change();
        if let Err(refusal) = self.note_tools(&mut change, &emissions).await {
            return self.could_not_store(emissions, &refusal);
        }
        let mut refused = None;
        let mut taken = 0;
        let mut begun = Vec::new();
        for emission in &emissions {
            if let Emission::Operate { request, .. } = emission {
                begun.push(self.prepare_operation(&mut change, &Order::by_agent(request)).await);
            } else if let Err(why) = self.take_emission(&mut change, &id, emission) {
                refused = Some(why);
                break;
            }
            taken += 1;
        }
        emissions.truncate(taken);
        let touches_record = change.record.turn != self.record.turn || !begun.is_empty();
        let stored = if touches_record { self.commit(change).await } else { self.write(change.commit).await };
        match stored {
            Ok(_) => self.said_is_stored(emissions, begun),
            Err(refusal) => return self.could_not_store(emissions, &refusal),
        }
        if let Some(why) = refused {
            self.finish(Err(AgentError::failed(why))).await;
        }
    }

    /// Adds one emission to a change, unless it is over a limit.
    fn take_emission(&self, change: &mut PendingChange, run: &RunId, emission: &Emission) -> Result<(), String> {
        let limits = &self.shared.config.limits;
        if emission.len_hint() > limits.event_bytes_max {
            self.shared.metrics.limits_hit.inc("limits.event_bytes_max");
            return Err(format!("It emitted more than {} bytes at once.", limits.event_bytes_max));
        }
        match emission {
            Emission::Event(draft) | Emission::Partial(draft, _) => change.event(draft),
            Emission::Work(work) => change.put(keys::WORK, work),
            Emission::State(state) => {
                let bytes_max = self.shared.config.state.agent_state_bytes_max;
                if emission.len_hint() > bytes_max {
                    self.shared.metrics.limits_hit.inc("state.agent_state_bytes_max");
                    return Err(format!("It saved a state of more than {bytes_max} bytes."));
                }
                change.put(keys::AGENT_STATE, state);
            }
            // Prepared by the one who asks, because that takes time.
            Emission::Operate { .. } => {}
            Emission::Ask { step, draft, state, .. } => {
                let pending = change.record.turn.active().map_or(0, |active| active.pending.len());
                if pending >= limits.confirmations_max || !change.record.turn.ask(run, step.clone()) {
                    self.shared.metrics.limits_hit.inc("limits.confirmations_max");
                    return Err("It asked too many questions at once.".into());
                }
                let asked_ms = self.shared.logs.clock.now_ms();
                change.event(draft);
                let read = |raw: &RawValue| serde_json::from_str(raw.get()).unwrap_or_default();
                let asked = OpenQuestion {
                    step_id: step.clone(),
                    question: read(&draft.content),
                    metadata: draft.metadata.as_deref().map(read).and_then(fields).unwrap_or_default(),
                    state: state.clone(),
                    asked_ms,
                };
                change.put(keys::confirmation(step), &asked);
            }
            Emission::Call { calls, drafts, state, .. } => {
                let Some(last) = calls.last() else { return Err("It called no function, and waits for it.".into()) };
                let pending = change.record.turn.active().map_or(0, |active| active.pending.len());
                if pending >= limits.confirmations_max || !change.record.turn.ask(run, last.step_id.clone()) {
                    self.shared.metrics.limits_hit.inc("limits.confirmations_max");
                    return Err("It waits for too much at once.".into());
                }
                SessionActor::take_calls(change, calls, drafts, state, self.shared.logs.clock.now_ms());
            }
        }
        Ok(())
    }

    fn said_is_stored(&mut self, emissions: Vec<Emission>, begun: Vec<Result<Prepared, Refusal>>) {
        let mut begun = begun.into_iter();
        let Some(run) = self.run.as_deref_mut() else { return };
        run.process.unstick();
        for emission in emissions {
            run.work.handle_emission(&emission);
            run.plain &= matches!(emission, Emission::Partial(..) | Emission::Work(_) | Emission::State(_));
            match emission {
                Emission::Partial(_, delta) => run.partial.push_str(&delta.0),
                Emission::Ask { step, reply, .. } => drop(run.answers.insert(step, reply)),
                Emission::Call { mut calls, reply, .. } => {
                    let waits = calls.pop().map(|call| call.step_id);
                    waits.map(|step| run.calls.insert(step, reply));
                }
                Emission::Operate { reply, .. } => {
                    let outcome = begun.next().map(|prepared| prepared.map(Prepared::start));
                    // An agent that no longer listens has ended meanwhile; its operation goes on.
                    let _ = outcome.map(|outcome| reply.send(outcome));
                }
                Emission::Event(_) | Emission::Work(_) | Emission::State(_) => {}
            }
        }
    }

    fn could_not_store(&mut self, emissions: Vec<Emission>, refusal: &Refusal) {
        let patience = self.shared.config.session.store_patience;
        let Some(run) = self.run.as_deref_mut() else { return };
        if run.process.stick(emissions, patience) {
            tracing::debug!(session = %self.id, %refusal, "a run waits for the store");
            return;
        }
        tracing::error!(session = %self.id, %refusal, "gave up a run: the store did not take its events in time");
        // The run stays on record as active, so that its ending is written when the store is back.
        run.process.give_up(Err(AgentError::failed("The store could not keep what the agent said, for too long.")));
    }

    pub(super) async fn retry_stuck(&mut self) {
        if let Some(run) = self.run.as_deref_mut() {
            let emissions = run.process.stuck_emissions();
            if emissions.is_empty() {
                run.process.unstick();
            } else {
                self.store_emissions(emissions).await;
            }
        }
    }
}

fn fields(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(fields) => Some(fields),
        _ => None,
    }
}

/// A longer answer than this is not one: it would not fit into one event of any store.
const ANSWER_BYTES_MAX: usize = 8 << 20;

impl SessionActor {
    /// The agent returned.
    pub(super) async fn finish(&mut self, ending: RunResult) {
        let Some(run) = self.run.as_deref() else { return };
        let duration_ms = clock::since(run.started).as_millis() as u64;
        let end = match (ending.clone(), &run.cancelled) {
            (_, Some(Cancel { by, reason })) => RunEnd::cancelled(by, reason.as_deref()),
            (Ok(answer), None) if answer.text.len() > ANSWER_BYTES_MAX => {
                let why = format!("Its answer is longer than {ANSWER_BYTES_MAX} bytes.");
                RunEnd::failed(&AgentError::failed(why))
            }
            (Ok(answer), None) => RunEnd::answered(answer, duration_ms),
            (Err(error), None) if error.cancelled => {
                let by = run.called_off_by.as_deref().unwrap_or("agent");
                RunEnd::cancelled_with(by, Some(&error.message), error.finish.as_ref())
            }
            (Err(error), None) => RunEnd::failed(&error),
        };
        if let Err(refusal) = self.end_run(end).await {
            // It is offered until the store takes it: a run must not stay "running" for ever.
            tracing::debug!(session = %self.id, %refusal, "the ending of a run cannot be stored yet");
            if let Some(run) = self.run.as_deref_mut() {
                run.process.put_back(ending);
            }
            return;
        }
        self.drop_run();
        self.start_next().await;
    }

    /// The one way out of a run: its terminal event, the conversation and the record change together, once.
    pub(super) async fn end_run(&mut self, mut end: RunEnd) -> Result<(), Refusal> {
        let Some(active) = self.record.turn.active().cloned() else { return Ok(()) };
        if let Some(answer) = &end.answer
            && let Some(streamed) = self.streamed(active.started, answer).await?
        {
            end.add("streamed", &streamed);
        }
        // First of all, as with an answer: an older state of this session must not bring the question back.
        for step in &active.pending {
            used_states::settle(&self.shared, &self.owner, step).await?;
        }
        let ended = self.next_seq().await?;
        let mut change = self.change();
        change.record.turn.end(&active.run);
        change.event(&end.draft);
        change.delete(keys::INPUT);
        for step in &active.pending {
            change.delete(keys::confirmation(step));
            change.delete(keys::calls(step));
        }
        self.close_turn(&mut change, &active, ended, &end).await?;
        self.commit(change).await?;
        self.shared.metrics.runs.inc(end.word);
        if self.wants_checkpoints() {
            self.checkpoint_at = Some(clock::now());
        }
        Ok(())
    }

    pub(super) async fn cancel(
        &mut self,
        from: &CommandSender,
        by: String,
        reason: Option<String>,
        turn: Option<Seq>,
    ) -> CommandResult {
        self.may_write(from)?;
        let active = self.record.turn.active();
        if active.is_none_or(|active| turn.is_some_and(|turn| turn != active.started)) {
            return Ok(CommandOutcome::Cancelled { ran: false });
        }
        self.stop_run(by, reason).await?;
        self.start_next().await;
        Ok(CommandOutcome::Cancelled { ran: true })
    }

    /// Stops the active run for good: its end is in the log, or will be as soon as the store takes it.
    pub(super) async fn stop_run(&mut self, by: String, reason: Option<String>) -> Result<(), Refusal> {
        match (self.end_run(RunEnd::cancelled(&by, reason.as_deref())).await, self.run.as_deref_mut()) {
            (Ok(()), _) if bowline_mutant::mutant("a-cancelled-run-goes-on") => {}
            (Ok(()), _) => self.drop_run(),
            // It is not known whether the ending was kept: the caller has to ask again, because the session is activated anew
            // and knows of no cancel.
            (Err(refusal), _) if !self.writer.is_leased() => return Err(refusal),
            // The store is away, but a cancel always stops the work: its ending is written as soon as it can be.
            (Err(_), Some(run)) => {
                run.cancelled = Some(Cancel { by, reason });
                run.process.give_up(Err(AgentError::cancelled("cancelled")));
            }
            (Err(refusal), None) => return Err(refusal),
        }
        Ok(())
    }

    pub(super) fn drop_run(&mut self) {
        if let Some(run) = self.run.take() {
            self.shared.metrics.runs_active.dec();
            run.process.stop();
        }
    }
}

/// How a run ends: the event that says so, and what the conversation keeps.
pub(super) struct RunEnd {
    pub draft: Draft,
    pub word: &'static str,
    /// The whole answer; none if only what was streamed is there to keep.
    pub answer: Option<String>,
    pub error: Option<TurnError>,
}

impl RunEnd {
    fn answered(answer: Answer, duration_ms: u64) -> RunEnd {
        let mut facts = EndMetadata::default();
        answer.metadata.iter().for_each(|(key, value)| facts.add(key, value));
        facts.add("duration_ms", &duration_ms);
        facts.add_some("usage", answer.usage.as_ref());
        facts.add_some("model", answer.model.as_ref());
        facts.add_some("finish", answer.finish.as_ref().map(|word| &word.0));
        RunEnd {
            draft: Draft::new(names::FINAL_ANSWER, &answer.text).metadata(&facts.0),
            word: "answered",
            answer: Some(answer.text),
            error: None,
        }
    }

    fn failed(error: &AgentError) -> RunEnd {
        let mut facts = EndMetadata::default();
        facts.add("error_code", error.code.as_str());
        facts.add("recovery_action", error.code.action().as_str());
        facts.add_some("stage", error.stage.as_ref());
        facts.add_some("finish", error.finish.as_ref().map(|word| &word.0));
        let word = if error.code == ErrorCode::AgentLost { "lost" } else { "failed" };
        let failure = TurnError { code: error.code.as_str().to_owned(), message: error.message.clone() };
        let draft = Draft::new(names::ERROR, &error.message).metadata(&facts.0);
        RunEnd { draft, word, answer: None, error: Some(failure) }
    }

    /// Adds a fact to what its event says.
    fn add(&mut self, key: &str, value: &impl Serialize) {
        let known = self.draft.metadata.as_deref().and_then(|raw| serde_json::from_str(raw.get()).ok());
        let mut facts = EndMetadata(known.unwrap_or_default());
        facts.add(key, value);
        self.draft.metadata = Some(json::raw(&facts.0));
    }

    pub fn lost() -> RunEnd {
        let message = "The server was restarted while the agent was at work. Send the message again.";
        RunEnd::failed(&AgentError { code: ErrorCode::AgentLost, ..AgentError::failed(message) })
    }

    pub fn cancelled(by: &str, reason: Option<&str>) -> RunEnd {
        RunEnd::cancelled_with(by, reason, None)
    }

    /// The same, with what an upstream said of it.
    fn cancelled_with(by: &str, reason: Option<&str>, finish: Option<&UpstreamFinish>) -> RunEnd {
        let mut facts = EndMetadata::default();
        facts.add("by", by);
        facts.add_some("reason", reason);
        facts.add_some("finish", finish.map(|word| &word.0));
        let draft = Draft::new(names::CANCELLED, "The run was cancelled.").metadata(&facts.0);
        RunEnd { draft, word: "cancelled", answer: None, error: None }
    }
}

/// The metadata of an ending. What an upstream said stays as it wrote it.
#[derive(Default)]
struct EndMetadata(BTreeMap<String, Box<RawValue>>);

impl EndMetadata {
    fn add(&mut self, key: &str, value: &(impl Serialize + ?Sized)) {
        self.0.insert(key.to_owned(), json::raw(value));
    }

    fn add_some(&mut self, key: &str, value: Option<&(impl Serialize + ?Sized)>) {
        if let Some(value) = value {
            self.add(key, value);
        }
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
