//! The agent behind an OpenAI-compatible chat-completions endpoint: a model that answers, thinks and calls tools.

pub mod chunk;
mod request;

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::{Agent, AgentError, Answer, Host, Input, OpenQuestion, Reply, Run, RunResult, ToolCall, ToolOutcome};
use bowline_core::scrub::scrub_text;
use bowline_env::clock;
use reqwest::Url;
use serde_json::{Map, Value};

use self::chunk::{Gathered, Piece, Unusable, Wanted};
use self::request::Toolbox;
use super::spoken::Spoken;
use super::trouble::{Resend, Trouble};
use super::upstream::{Fault, Received, Upstream};
use crate::config::OpenAiConfig;

#[derive(Debug)]
pub struct OpenAi {
    upstream: Upstream,
    config: OpenAiConfig,
    host: Arc<dyn Host>,
}

impl OpenAi {
    pub fn new(name: &str, config: &OpenAiConfig, host: &Arc<dyn Host>) -> anyhow::Result<OpenAi> {
        let upstream = Upstream::new(name, endpoint(&config.base_url)?, &config.wire, Resend::UntilAnswered, host)?;
        Ok(OpenAi { upstream, config: config.clone(), host: host.clone() })
    }

    /// One request and its whole answer. Until something of the answer was shown, it may be asked for again.
    async fn step(&self, run: &Run, body: &bytes::Bytes, spoken: &mut Spoken) -> Result<Gathered, AgentError> {
        let mut attempts = self.upstream.attempts(&run.cancel);
        loop {
            let mut received = attempts.post(body).await?;
            let mut gathered = Gathered::default();
            match read(run, &mut received, None, &mut gathered, spoken).await {
                Ok(()) => {
                    received.leave();
                    return Ok(gathered);
                }
                Err(Failed::Wire(Fault::Trouble(trouble))) if !gathered.has_begun() => attempts.again(trouble).await?,
                Err(failed) => return Err(failed.into()),
            }
        }
    }

    /// Runs one call and tells of it. The model may have made up the tool or the arguments; it is told that too.
    async fn call(&self, run: &Run, toolbox: &Toolbox, wanted: &Wanted) -> Result<ToolOutcome, AgentError> {
        let spec = toolbox.find(&wanted.name);
        let (name, server) = spec.map_or((wanted.name.as_str(), None), |spec| (&spec.tool, Some(spec.server.as_str())));
        let args = request::arguments(wanted);
        let shown = args.clone().map_or_else(|| Value::from(wanted.arguments.as_str()), Value::Object);
        let step = run.emit.tool_call(&format!("Calling {name}"), name, &shown, server).await?;
        let started = clock::now();
        let outcome = match (spec, args) {
            (None, _) => ToolOutcome::failed(format!("There is no tool `{}`.", wanted.name)),
            (_, None) => ToolOutcome::failed("The arguments are not a JSON object."),
            (Some(spec), Some(args)) => {
                let call = ToolCall {
                    name: spec.name.clone(),
                    args,
                    owner: run.owner.clone(),
                    session: run.session.clone(),
                    run: run.id.clone(),
                    step: step.clone(),
                    to_the_end: false,
                };
                run.tools.call(call, run.cancel.clone()).await
            }
        };
        Ok(run.emit.tool_ended(step, name, outcome, started.elapsed().as_millis() as u64).await?)
    }
}

#[async_trait]
impl Agent for OpenAi {
    async fn run(&self, run: Run) -> RunResult {
        let Input::Message { text } = &run.input else {
            return Err(AgentError::failed("It takes messages only."));
        };
        let toolbox = Toolbox::new(run.tools.list(&run.owner).await);
        let instructions = run.message.as_ref().and_then(|message| message.instructions.as_deref());
        let system = [self.config.system.as_deref(), instructions];
        let mut messages = request::conversation(&system, &run.conversation, text);
        let mut spoken = Spoken::new(self.config.wire.answer_bytes_max, self.host.clone());
        let (mut usage, mut model) = (None, None);
        for number in 1..=self.config.max_steps {
            spoken.paragraph(&run.emit).await?;
            let (said, last) = (spoken.text().len(), number == self.config.max_steps);
            let body = request::body(&self.config.model, &messages, &toolbox, last);
            let mut gathered = Box::pin(self.step(&run, &body, &mut spoken)).await?;
            chunk::add_usage(&mut usage, gathered.usage.take());
            model = gathered.model.take().or(model);
            let finish = gathered.finish.take();
            let calls = gathered.into_calls();
            if calls.is_empty() {
                return Ok(answer(spoken.take(), usage, model, finish));
            }
            if last {
                break;
            }
            messages.push(request::called(&spoken.text()[said..], &calls));
            for wanted in &calls {
                let outcome = self.call(&run, &toolbox, wanted).await?;
                messages.push(request::answered(wanted, &outcome));
            }
        }
        let why = format!("It was still calling tools after {} steps (`max_steps`).", self.config.max_steps);
        Err(AgentError::failed(why))
    }

    async fn answered(&self, _run: Run, _asked: OpenQuestion, _reply: Reply) -> RunResult {
        Err(AgentError::failed("It asks no questions, so it has no use for an answer."))
    }
}

/// The answer of a model, with its figures. A reason other than `stop` means that it may be cut short.
pub fn answer(text: String, usage: Option<Value>, model: Option<String>, finish: Option<String>) -> Answer {
    let metadata = finish.map(|reason| ("finish_reason".to_owned(), Value::from(reason))).into_iter().collect();
    Answer { text, usage, model, metadata, finish: None }
}

/// Why an answer could not be read to its end.
#[derive(Debug)]
pub enum Failed {
    Wire(Fault),
    Agent(AgentError),
}

impl From<Failed> for AgentError {
    fn from(failed: Failed) -> AgentError {
        match failed {
            Failed::Wire(fault) => fault.into(),
            Failed::Agent(error) => error,
        }
    }
}

/// Reads one answer to its end, and shows what can be shown as it comes. `first` is a record that was read before.
pub async fn read(
    run: &Run,
    received: &mut Received,
    mut first: Option<super::upstream::Record>,
    gathered: &mut Gathered,
    spoken: &mut Spoken,
) -> Result<(), Failed> {
    while !gathered.is_over() {
        let record = match first.take() {
            Some(record) => record,
            None => match received.next(&run.cancel).await.map_err(Failed::Wire)? {
                Some(record) => record,
                None => break,
            },
        };
        let pieces = gathered.take(&record.data).map_err(|unusable| match unusable {
            Unusable::NotJson => Failed::Wire(Fault::Trouble(Trouble::Garbage("something that is no JSON".into()))),
            Unusable::TooMany => Failed::Agent(AgentError::failed("It called too many tools at once.")),
            Unusable::Failed(mut why) => {
                scrub_text(&mut why);
                Failed::Agent(AgentError::failed(format!("The model's server failed: {why}")))
            }
        })?;
        for piece in pieces {
            match piece {
                Piece::Text(delta) => spoken.say(&run.emit, delta).await.map_err(Failed::Agent)?,
                Piece::Refusal(delta) => {
                    let facts = Map::from_iter([("refusal".to_owned(), true.into())]);
                    spoken.say_with(&run.emit, delta, facts).await.map_err(Failed::Agent)?;
                }
                Piece::Thinking(delta) => {
                    run.emit.thinking_delta(&delta).await.map_err(|stopped| Failed::Agent(stopped.into()))?;
                }
            }
        }
    }
    if gathered.is_whole() {
        return Ok(());
    }
    Err(Failed::Wire(Fault::Trouble(Trouble::Broken("its answer ends before it is finished".into()))))
}

/// `…/v1` → `…/v1/chat/completions`, whatever stands behind the path.
fn endpoint(base: &str) -> anyhow::Result<Url> {
    let mut url: Url = base.parse()?;
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(["chat", "completions"]);
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_follows_from_the_base_url() {
        for (base, endpoint_url) in [
            ("https://api.example/v1", "https://api.example/v1/chat/completions"),
            ("https://api.example/v1/", "https://api.example/v1/chat/completions"),
            ("http://127.0.0.1:1", "http://127.0.0.1:1/chat/completions"),
            ("https://x.example/openai?api-version=1", "https://x.example/openai/chat/completions?api-version=1"),
        ] {
            assert_eq!(endpoint(base).unwrap().as_str(), endpoint_url);
        }
    }
}
