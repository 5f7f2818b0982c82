//! What an agent for Bowline is written against.
//!
//! An [`Agent`] gets a [`Run`]: the conversation, an [`Input`] to work on, [`Tools`] to call, a cancellation token, and an
//! [`Emitter`]. What it emits is stored in the session's log before any client sees it; what it returns ends the run. It
//! knows nothing of connections: whether a client watches, has left, or has come back on another device makes no
//! difference to it.
//!
//! This crate has the traits and types alone. The crate `bowline` has the server that runs agents; its example
//! `own_agent` is a whole program.
//!
//! # An agent
//!
//! It counts to the number it is given, and asks first if that takes long. The person may take days to reply, and the
//! server may be restarted meanwhile.
//!
//! ```
//! use std::time::Duration;
//!
//! use async_trait::async_trait;
//! use bowline_api::{Agent, AgentError, Answer, Confirm, Input, OpenQuestion, Reply, Run, RunResult};
//! use serde_json::json;
//!
//! struct Counter;
//!
//! #[async_trait]
//! impl Agent for Counter {
//!     async fn run(&self, run: Run) -> RunResult {
//!         let Input::Message { text } = &run.input else {
//!             return Err(AgentError::failed("This agent takes messages only."));
//!         };
//!         let number: u64 = text.trim().parse().map_err(|_| AgentError::failed("Write a number to count to."))?;
//!         if number <= 10 {
//!             return count(&run, number).await;
//!         }
//!         // The state is all that is left if this process dies before the person replies.
//!         let question = Confirm::custom(format!("Count to {number}?"), json!({ "number": number }));
//!         let reply = run.emit.confirm(question).await?;
//!         after_reply(&run, number, &reply).await
//!     }
//!
//!     async fn answered(&self, run: Run, question: OpenQuestion, reply: Reply) -> RunResult {
//!         after_reply(&run, question.state["number"].as_u64().unwrap_or_default(), &reply).await
//!     }
//! }
//!
//! async fn after_reply(run: &Run, number: u64, reply: &Reply) -> RunResult {
//!     if reply.confirmed { count(run, number).await } else { Ok(Answer::text("Then not.")) }
//! }
//!
//! async fn count(run: &Run, number: u64) -> RunResult {
//!     let mut text = String::new();
//!     for n in 1..=number {
//!         let piece = format!("{n} ");
//!         text.push_str(&piece);
//!         run.emit.partial_answer(piece).await?;
//!         run.pause(Duration::from_millis(20)).await?;
//!     }
//!     Ok(Answer::text(text))
//! }
//! ```
//!
//! # What is where
//!
//! | to | use |
//! |---|---|
//! | answer | [`Emitter::partial_answer`] for each piece, then return [`Answer`] |
//! | fail | return [`AgentError`]; `?` turns [`Stopped`] into one |
//! | ask a person | [`Emitter::confirm`], and [`Agent::answered`] for a reply that comes after a crash |
//! | call a tool | [`Run::tools`], between [`Emitter::tool_call`] and [`Emitter::tool_ended`] |
//! | call a function of the caller's | [`Run::functions`], [`Emitter::call_functions`], and [`Agent::returned`] for outputs that come after a crash |
//! | work in the background | [`Emitter::start_operation`] and [`Agent::operate`] |
//! | remember something | [`Emitter::save_state`], found again in [`Run::state`] |
//! | plan | [`Agent::plans`], the `plan_…`, `solver_…` and `aggregate_…` events, [`Run::commands`] |
//!
//! [`Emission`], [`Host`] and [`Work`] are the other side of these: what a server that runs agents needs.
#![warn(missing_docs)]

mod agent;
mod answer;
mod emission;
mod emitter;
mod function;
mod host;
mod input;
mod message;
mod operation;
mod plan;
mod question;
mod run;
mod tools;
mod work;

pub use agent::{Agent, work_of};
pub use answer::{AgentError, Answer, RunResult, Stopped, UpstreamFinish};
pub use emission::{Delta, Emission, OperationRequest, StartedOperation};
pub use emitter::Emitter;
pub use function::{FunctionCall, FunctionChoice, FunctionOutput, FunctionOutputs, FunctionSpec, Functions, OpenCalls};
pub use host::Host;
pub use input::Input;
pub use message::{Message, Role};
pub use operation::Operation;
pub use plan::PlanProgress;
pub use question::{Confirm, OpenQuestion, PendingReply, Reply};
pub use run::Run;
pub use tools::{NoTools, ToolCall, ToolOutcome, ToolSpec, Tools};
pub use work::{CommandEffect, CommandTarget, Work, WorkCommand, WorkView};
