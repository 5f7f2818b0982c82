//! Functions of the caller's that a run has called: it waits for their outputs as it waits for a person, with a process or without.

use bowline_api::{FunctionCall, FunctionOutput, FunctionOutputs, Functions, OpenCalls};
use bowline_protocol::event::names;
use bowline_protocol::frame::client::Content;
use bowline_protocol::{Draft, ErrorCode, Refusal, Seq, StepId};
use serde::Serialize;
use serde_json::Value;

use super::actor::{PendingChange, SessionActor};
use super::command::CommandResult;
use super::record::keys;
use super::run::Entry;
use super::{CommandOutcome, CommandSender};

/// What the caller brings for a run that waits.
#[derive(Debug)]
pub struct Returned {
    /// The step under which the run waits.
    pub step_id: StepId,
    pub outputs: Vec<FunctionOutput>,
    /// What the run may call from now on.
    pub functions: Functions,
    /// What else was asked for, as the log is to keep it.
    pub request: Content,
    /// The event of the last call, if webhooks get what follows.
    pub announce: Option<Seq>,
}

/// What the log keeps of the request that brought the outputs. The outputs themselves are events of their own.
#[derive(Serialize)]
struct Logged<'a> {
    outputs: usize,
    response: &'a serde_json::value::RawValue,
}

#[derive(Serialize)]
struct ResultFacts<'a> {
    tool: &'a str,
    status: &'static str,
    caller: bool,
    duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Value>,
}

impl SessionActor {
    /// What the run needs when the outputs come is stored in the commit that logs its calls.
    pub(super) fn take_calls(
        change: &mut PendingChange,
        calls: &[FunctionCall],
        drafts: &[Draft],
        state: &Value,
        now_ms: u64,
    ) {
        let Some(last) = calls.last() else { return };
        drafts.iter().for_each(|draft| change.event(draft));
        let open =
            OpenCalls { step_id: last.step_id.clone(), calls: calls.to_vec(), state: state.clone(), called_ms: now_ms };
        change.put(keys::calls(&last.step_id), &open);
    }

    /// The outputs of calls: events for all who watch, and the run goes on, all in one commit.
    pub(super) async fn returned(&mut self, from: &CommandSender, returned: Returned) -> CommandResult {
        self.may_write(from)?;
        let Returned { step_id, outputs, functions, request, announce } = returned;
        let mut change = self.change();
        let unknown =
            || Refusal::new(ErrorCode::UnknownStep, format!("No call `{step_id}` is waiting for its output."));
        if !change.record.turn.answer(&step_id) {
            return Err(unknown());
        }
        let open = self.certain::<OpenCalls>(&keys::calls(&step_id)).await?.ok_or_else(unknown)?;
        let outputs = in_order(&open, outputs)?;
        let reentry = match self.run.as_deref() {
            // The process that called is gone: everything it needs to go on is read before the outputs count.
            None => {
                let run = self.record.turn.active().map(|active| active.run.clone()).ok_or_else(unknown)?;
                Some((run, self.input_and_past().await?))
            }
            Some(run) if !run.calls.contains_key(&step_id) => return Err(still_busy()),
            Some(_) => None,
        };
        let logged = Logged { outputs: outputs.len(), response: &request.0 };
        change.event(&Draft::new(names::USER_RESPONSE, &logged).step(step_id.clone()));
        let duration_ms = self.shared.logs.clock.now_ms().saturating_sub(open.called_ms);
        for (call, output) in open.calls.iter().zip(&outputs) {
            let data = output.data.as_ref();
            let facts = ResultFacts { tool: &call.name, status: "success", caller: true, duration_ms, data };
            let result = Draft::new(names::TOOL_RESULT, &output.text).step(call.step_id.clone()).metadata(&facts);
            let limit = self.shared.config.limits.event_bytes_max;
            if result.len_hint() > limit {
                self.shared.metrics.limits_hit.inc("limits.event_bytes_max");
                let message = format!("An output takes more than {limit} bytes (limits.event_bytes_max).");
                return Err(Refusal::new(ErrorCode::MessageTooLarge, message));
            }
            change.event(&result);
        }
        change.delete(keys::calls(&step_id));
        let owed = self.owe_answer(&mut change, announce);
        self.commit(change).await?;
        self.post_webhook(owed);
        let outputs = FunctionOutputs { outputs, functions };
        if let Some(waiting) = self.run.as_deref_mut().and_then(|run| run.calls.remove(&step_id)) {
            // An agent that no longer listens has ended meanwhile, and says so itself.
            let _ = waiting.send(outputs);
        } else if let Some((run, (input, conversation))) = reentry {
            self.launch(run, input, conversation, Entry::Returned(open, outputs)).await;
        }
        Ok(CommandOutcome::Done)
    }
}

fn still_busy() -> Refusal {
    let message = "The agent is taking in an earlier answer. Send the outputs when it has.";
    Refusal::new(ErrorCode::AgentBusy, message).retry_after_ms(500)
}

/// One output for each call, in the order of the calls.
fn in_order(open: &OpenCalls, mut outputs: Vec<FunctionOutput>) -> Result<Vec<FunctionOutput>, Refusal> {
    let wrong = || Refusal::field("input", "must hold one output for each call that the run waits for");
    let mut take = |call: &FunctionCall| {
        let at = outputs.iter().position(|output| output.step_id == call.step_id)?;
        Some(outputs.swap_remove(at))
    };
    let ordered: Option<Vec<FunctionOutput>> = open.calls.iter().map(&mut take).collect();
    ordered.filter(|_| outputs.is_empty()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str) -> StepId {
        StepId::parse(name).unwrap()
    }

    #[test]
    fn every_call_has_one_output() {
        let call = |name: &str| FunctionCall { step_id: step(name), name: "f".into(), arguments: "{}".into() };
        let output = |name: &str| FunctionOutput { step_id: step(name), text: name.into(), data: None };
        let open =
            OpenCalls { step_id: step("b"), calls: vec![call("a"), call("b")], state: Value::Null, called_ms: 0 };
        let ordered = in_order(&open, vec![output("b"), output("a")]).unwrap();
        assert_eq!(ordered, [output("a"), output("b")]);
        for outputs in [vec![], vec![output("a")], vec![output("a"), output("a")], vec![output("a"), output("c")]] {
            assert!(in_order(&open, outputs).is_err());
        }
        assert!(in_order(&open, vec![output("a"), output("b"), output("c")]).is_err());
    }
}
