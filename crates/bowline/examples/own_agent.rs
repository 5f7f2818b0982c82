//! A server with an agent of its own: `cargo run --example own_agent`, then `bowline chat` from another terminal.
//!
//! It counts to the number it is given, and asks first if that takes long. Settings are read as `bowline serve` reads
//! them: `bowline.toml`, and `BOWLINE_…` in the environment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline::config::{Config, Flags};
use bowline::node::{Node, Own};
use bowline_api::{Agent, AgentError, Answer, Confirm, Input, OpenQuestion, Reply, Run, RunResult};
use serde_json::json;

struct Counter;

#[async_trait]
impl Agent for Counter {
    async fn run(&self, run: Run) -> RunResult {
        let Input::Message { text } = &run.input else {
            return Err(AgentError::failed("I take messages only."));
        };
        let number: u64 = text.trim().parse().map_err(|_| AgentError::failed("Give me a number to count to."))?;
        if number <= 10 {
            return count(&run, number).await;
        }
        // If this process dies while the person thinks, the state is all that is left: `answered` goes on from it.
        let question = Confirm::custom(format!("Shall I really count to {number}?"), json!({ "number": number }));
        let reply = run.emit.confirm(question).await?;
        go_on(&run, number, &reply).await
    }

    async fn answered(&self, run: Run, question: OpenQuestion, reply: Reply) -> RunResult {
        go_on(&run, question.state["number"].as_u64().unwrap_or_default(), &reply).await
    }
}

async fn go_on(run: &Run, number: u64, reply: &Reply) -> RunResult {
    if reply.confirmed { count(run, number).await } else { Ok(Answer::text("Then not.")) }
}

async fn count(run: &Run, number: u64) -> RunResult {
    let mut text = String::new();
    for n in 1..=number {
        let piece = format!("{n} ");
        text.push_str(&piece);
        // Whoever reads may come and go; every piece is stored before anybody sees it.
        run.emit.partial_answer(piece).await?;
        run.pause(Duration::from_millis(20)).await?;
    }
    Ok(Answer::text(text))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut loaded = Config::load(&Flags::default())?;
    loaded.config.default_agent = "counter".into();
    let agents: BTreeMap<String, Arc<dyn Agent>> = BTreeMap::from([("counter".into(), Arc::new(Counter) as _)]);
    let node = Node::start_with(loaded, Own { agents, ..Own::default() }).await?;
    #[allow(clippy::print_stdout, reason = "a program says where it serves")]
    {
        println!("serving at http://{}/", node.address);
    }
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    Box::pin(node.run(stop)).await;
    Ok(())
}
