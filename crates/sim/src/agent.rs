//! The agent of the simulation: what it says follows from what it is asked, and every run is counted.

use std::time::Duration;

use async_trait::async_trait;
use bowline_api::{Agent, AgentError, Answer, Confirm, Input, OpenQuestion, Reply, Run, RunResult};
use bowline_protocol::event::names;
use serde_json::json;

use crate::oracle::Oracle;

/// What an agent panics with that dies as it was asked to.
#[derive(Debug)]
pub struct AgentDies;

/// Messages are `say TAG N MS`, `ask TAG` and `fail TAG N MS`. Of those that fail, one in two dies instead of saying so.
#[derive(Debug)]
pub struct SimAgent {
    oracle: Oracle,
    /// Whether a run that a crash interrupted goes on.
    continues: bool,
}

impl SimAgent {
    pub fn new(oracle: Oracle, continues: bool) -> SimAgent {
        SimAgent { oracle, continues }
    }
}

/// What is streamed as the nth piece of an answer.
fn piece(tag: &str, n: u64) -> String {
    format!("{tag}:{n} ")
}

/// The whole answer to a message.
pub fn answer(text: &str) -> String {
    let (verb, tag, count, _) = read(text);
    match verb {
        "ask" => format!("{tag}: yes"),
        _ => (1..=count).map(|n| piece(tag, n)).collect(),
    }
}

fn read(text: &str) -> (&str, &str, u64, u64) {
    let mut words = text.split(' ');
    let (verb, tag) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    (verb, tag, number(), number())
}

#[async_trait]
impl Agent for SimAgent {
    async fn run(&self, run: Run) -> RunResult {
        let Input::Message { text } = &run.input else { return Err(AgentError::failed("only messages")) };
        let (verb, tag, count, pause_ms) = read(text);
        self.oracle.worked(tag, run.id.as_str());
        if verb == "ask" {
            let reply = run.emit.confirm(Confirm::custom(tag, json!({ "tag": tag }))).await?;
            return Ok(replied(tag, &reply));
        }
        // The last piece says how many there were; the first ones may have been let go.
        let said = run.logged.iter().rev().find(|event| event.event == names::PARTIAL_ANSWER);
        let said = said.and_then(|event| event.content.as_str()?.trim().rsplit(':').next()?.parse().ok()).unwrap_or(0);
        for n in said + 1..=count {
            run.emit.partial_answer(piece(tag, n)).await?;
            run.pause(Duration::from_millis(pause_ms)).await?;
        }
        if verb == "fail" && count.is_multiple_of(2) {
            self.oracle.agent_died(tag);
            std::panic::panic_any(AgentDies);
        }
        if verb == "fail" { Err(AgentError::failed("as it was asked to")) } else { Ok(Answer::text(answer(text))) }
    }

    async fn answered(&self, _: Run, question: OpenQuestion, reply: Reply) -> RunResult {
        Ok(replied(question.state["tag"].as_str().unwrap_or_default(), &reply))
    }

    fn continues(&self) -> bool {
        self.continues
    }
}

fn replied(tag: &str, reply: &Reply) -> Answer {
    Answer::text(format!("{tag}: {}", if reply.confirmed { "yes" } else { "no" }))
}
