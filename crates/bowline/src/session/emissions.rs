//! What a run says, on its way into the log.

use bowline_api::{AgentError, Emission, OpenQuestion};
use bowline_protocol::{Refusal, RunId};

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::actor::{Change, SessionActor};
use super::operations::{Order, Prepared};
use super::record::keys;

impl SessionActor {
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
    fn take_emission(&self, change: &mut Change, run: &RunId, emission: &Emission) -> Result<(), String> {
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
        }
        Ok(())
    }

    fn said_is_stored(&mut self, emissions: Vec<Emission>, begun: Vec<Result<Prepared, Refusal>>) {
        let mut begun = begun.into_iter();
        let Some(run) = self.run.as_deref_mut() else { return };
        run.process.unstick();
        for emission in emissions {
            run.progress.handle_emission(&emission);
            run.plain &= matches!(emission, Emission::Partial(..) | Emission::Work(_) | Emission::State(_));
            match emission {
                Emission::Partial(_, delta) => run.partial.push_str(&delta.0),
                Emission::Ask { step, reply, .. } => drop(run.answers.insert(step, reply)),
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
