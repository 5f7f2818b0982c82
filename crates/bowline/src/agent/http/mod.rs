//! The agent behind a URL: any program that answers a POST with a stream of chunks or events.

mod body;
mod events;
mod format;
mod ui;

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::{Agent, AgentError, Answer, Host, Input, OpenQuestion, PendingReply, Reply, Run, RunResult};
use bowline_env::Network;
use serde_json::Value;

use self::events::{UpstreamEvent, UpstreamQuestion};
use super::accumulated_text::AccumulatedText;
use super::openai;
use super::openai::chunk::Gathered;
use super::upstream::{Fault, Upstream, UpstreamRecord, UpstreamResponse};
use super::upstream_error::{Resend, UpstreamError};
use crate::config::{Format, HttpConfig};

#[derive(Debug)]
pub struct Http {
    upstream: Upstream,
    config: HttpConfig,
    host: Arc<dyn Host>,
}

/// How a response ended, when it ended well.
enum ResponseEnd {
    Answered(Answer),
    /// A person is asked; their answer goes out with the next request.
    Asked {
        pending: PendingReply,
        kept: Value,
    },
}

impl Http {
    pub fn new(
        name: &str,
        config: &HttpConfig,
        network: &Arc<dyn Network>,
        host: &Arc<dyn Host>,
    ) -> anyhow::Result<Http> {
        let upstream = Upstream::new(name, &config.url.parse()?, &config.wire, Resend::IfNotTaken, network, host)?;
        Ok(Http { upstream, config: config.clone(), host: host.clone() })
    }

    /// Requests and answers, until there is nothing left to ask.
    async fn converse(&self, run: Run, mut answer: Option<Value>) -> RunResult {
        let Input::Message { text } = &run.input else {
            return Err(AgentError::failed("It takes messages only."));
        };
        let mut accumulated = AccumulatedText::new(self.config.wire.answer_bytes_max, self.host.clone());
        loop {
            let body = body::body(&run, text, answer.as_ref());
            let mut received = self.upstream.attempts(&run.cancel).post(&body).await?;
            let outcome = Box::pin(self.read(&run, &mut received, &mut accumulated)).await?;
            received.leave();
            match outcome {
                ResponseEnd::Answered(answer) => return Ok(answer),
                ResponseEnd::Asked { pending, kept } => {
                    let step = pending.step.clone();
                    let reply = pending.reply().await?;
                    answer = Some(body::answer(step.as_str(), &kept, &reply));
                }
            }
        }
    }

    async fn read(
        &self,
        run: &Run,
        received: &mut UpstreamResponse,
        accumulated: &mut AccumulatedText,
    ) -> Result<ResponseEnd, AgentError> {
        let first = received.next(&run.cancel).await?.ok_or_else(unfinished)?;
        let format = self.config.format.or_else(|| format::of(received, &first));
        match format.unwrap_or(Format::Ui) {
            Format::Ui => ui::read(run, received, first, accumulated).await,
            Format::OpenAi => read_chunks(run, received, first, accumulated).await,
            Format::Events => read_events(run, received, first, accumulated).await,
        }
    }
}

#[async_trait]
impl Agent for Http {
    async fn run(&self, run: Run) -> RunResult {
        self.converse(run, None).await
    }

    async fn answered(&self, run: Run, question: OpenQuestion, reply: Reply) -> RunResult {
        self.converse(run, Some(body::answer_to(&question, &reply))).await
    }
}

/// A body that ends without saying how the run ended is a break, however cleanly it ends.
fn unfinished() -> AgentError {
    UpstreamError::Broken("its answer ends before it is finished".into()).into()
}

async fn read_chunks(
    run: &Run,
    received: &mut UpstreamResponse,
    first: UpstreamRecord,
    accumulated: &mut AccumulatedText,
) -> Result<ResponseEnd, AgentError> {
    let mut gathered = Gathered::default();
    openai::read(run, received, Some(first), &mut gathered, accumulated).await?;
    if !gathered.calls.is_empty() {
        let why = "It wants a tool to be called, which only agents of kind `openai` have done for them.";
        return Err(AgentError::failed(why));
    }
    Ok(ResponseEnd::Answered(openai::answer(accumulated.take(), gathered.usage, gathered.model, gathered.finish)))
}

async fn read_events(
    run: &Run,
    received: &mut UpstreamResponse,
    first: UpstreamRecord,
    accumulated: &mut AccumulatedText,
) -> Result<ResponseEnd, AgentError> {
    let mut asked: Option<ResponseEnd> = None;
    let mut next = Some(first);
    while let Some(record) = next {
        if record.data.trim() != "[DONE]" {
            let event = events::read(&record).map_err(UpstreamError::Garbage)?;
            match (event, &asked) {
                (UpstreamEvent::Piece(delta, facts), _) => accumulated.say_with(&run.emit, delta, facts).await?,
                (UpstreamEvent::Event(draft), _) => run.emit.draft(draft).await?,
                (UpstreamEvent::State(state), _) => run.emit.save_state(state).await?,
                (UpstreamEvent::Question(question), None) => asked = Some(ask(run, question).await?),
                (UpstreamEvent::Answered(answer), None) => {
                    accumulated.allow(answer.text.len())?;
                    return Ok(ResponseEnd::Answered(answer));
                }
                (UpstreamEvent::Ended(error), _) => return Err(error),
                (UpstreamEvent::Question(_) | UpstreamEvent::Answered(_), Some(_)) => {
                    return Err(UpstreamError::Garbage("a question that was not the last of its answer".into()).into());
                }
            }
        }
        next = match received.next(&run.cancel).await {
            Ok(next) => next,
            // The question was heard, and its state is kept: what the wire does now is of no consequence.
            Err(Fault::Error(_)) if asked.is_some() => None,
            Err(fault) => return Err(fault.into()),
        };
    }
    asked.ok_or_else(unfinished)
}

async fn ask(run: &Run, question: UpstreamQuestion) -> Result<ResponseEnd, AgentError> {
    let kept = body::kept(question.step_id.as_deref(), &question.state);
    let pending = run.emit.ask(&question.text, &question.facts, kept.clone()).await?;
    Ok(ResponseEnd::Asked { pending, kept })
}
