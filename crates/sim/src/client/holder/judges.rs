//! What a holder alone can judge: whether an answer is the agent's, and whether its states go back.

use bowline_protocol::event::names as events;
use serde_json::Value;

use super::HoldingClient;
use crate::agent::answer;

impl HoldingClient {
    pub(super) fn judge_restore(&self, answer: &Value) {
        let facts = &answer["metadata"];
        if facts["source"] == "live" {
            return;
        }
        if !self.clients.oracle.has_losses() {
            self.clients.oracle.violate(self.who(), format_args!("its living session was rebuilt: {facts}"));
        }
        self.clients.oracle.rebuilt(answer["session_id"].as_str().unwrap_or_default());
    }

    /// `was_asked` says that the run waited for a person when it ended.
    pub(super) fn judge_answer(&self, name: &str, frame: &Value, was_asked: bool) {
        let Some(job) = self.jobs.first() else { return };
        let expected = answer(&job.text);
        // Where events are let go, pieces of the answer may be among them.
        let is_whole = expected.starts_with(&self.said) || !self.clients.oracle.promises().keeps_all;
        let fits = match name {
            events::FINAL_ANSWER => frame["content"].as_str() == Some(&expected) && is_whole,
            events::CANCELLED => self.session.is_cancelled(),
            _ => {
                let code = frame["metadata"]["error_code"].as_str().unwrap_or_default();
                // A run that waits for a person needs no process, and so cannot lose it.
                let may_be_lost = !was_asked || self.clients.oracle.has_losses();
                code == "AGENT_LOST" && may_be_lost
                    || ["AGENT_FAILED", "STORE_UNAVAILABLE", "SERVER_DRAINING"].contains(&code)
            }
        };
        if !fits || !is_whole && !job.text.starts_with("ask") {
            let said = &self.said;
            self.clients.oracle.violate(self.who(), format_args!("{} was answered {frame} after {said:?}", job.text));
        }
    }

    pub(super) fn keep_state(&mut self, frame: &Value) {
        let state = frame["metadata"]["signed_state"].clone();
        let inner = &state["state"];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let (seq, count) = (number(&inner["last_seq"]), number(&frame["metadata"]["message_count"]));
        if let Some((epoch, seen)) = self.states_asked.pop_front()
            && inner["epoch"] == *epoch
            && seq < seen
            && !self.clients.oracle.has_losses()
        {
            self.clients.oracle.violate(self.who(), format_args!("had seen {seen}, and its state holds {seq}"));
        }
        if let Some((known_seq, known_count, known)) = &self.state {
            let is_same_log = known["state"]["epoch"] == inner["epoch"] && !self.clients.oracle.has_losses();
            if is_same_log && (seq < *known_seq || count < *known_count) {
                let what = format_args!("its state went back: {known_seq} and {known_count}, then {seq} and {count}");
                self.clients.oracle.violate(self.who(), what);
            }
        }
        self.state = Some((seq, count, state));
    }
}
