//! The agent behind an OpenAI-compatible chat-completions endpoint: a model that answers, thinks and calls tools.

pub mod chunk;
mod request;

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::{
    Agent, AgentError, Answer, FunctionOutputs, Functions, Host, Input, OpenCalls, OpenQuestion, Reply, Run, RunResult,
    ToolCall, ToolOutcome,
};
use bowline_core::scrub::scrub_text;
use bowline_env::{Network, clock};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use self::chunk::{Gathered, ModelDelta, RequestedCall, Unusable};
use self::request::{Calls, Toolbox};
use super::accumulated_text::AccumulatedText;
use super::upstream::{Fault, Upstream, UpstreamResponse};
use super::upstream_error::{Resend, UpstreamError};
use crate::config::OpenAiConfig;

#[derive(Debug)]
pub struct OpenAi {
    upstream: Upstream,
    config: OpenAiConfig,
    host: Arc<dyn Host>,
}

impl OpenAi {
    pub fn new(
        name: &str,
        config: &OpenAiConfig,
        network: &Arc<dyn Network>,
        host: &Arc<dyn Host>,
    ) -> anyhow::Result<OpenAi> {
        let url = endpoint(&config.base_url)?;
        let upstream = Upstream::new(name, &url, &config.wire, Resend::UntilAnswered, network, host)?;
        Ok(OpenAi { upstream, config: config.clone(), host: host.clone() })
    }

    /// One request and its whole answer. Until something of the answer was shown, it may be asked for again.
    async fn step(
        &self,
        run: &Run,
        body: &bytes::Bytes,
        accumulated: &mut AccumulatedText,
    ) -> Result<Gathered, AgentError> {
        let mut attempts = self.upstream.attempts(&run.cancel);
        loop {
            let mut received = attempts.post(body).await?;
            let mut gathered = Gathered::default();
            match read(run, &mut received, None, &mut gathered, accumulated).await {
                Ok(()) => {
                    received.leave();
                    return Ok(gathered);
                }
                Err(Failed::Wire(Fault::Error(error))) if !gathered.has_begun() => attempts.again(error).await?,
                Err(failed) => return Err(failed.into()),
            }
        }
    }

    /// Runs one call and emits its outcome. The model may have made up the tool or the arguments; then it gets the error as the outcome.
    async fn call(&self, run: &Run, toolbox: &Toolbox, wanted: &RequestedCall) -> Result<ToolOutcome, AgentError> {
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
        Ok(run.emit.tool_ended(step, name, outcome, clock::since(started).as_millis() as u64).await?)
    }
}

#[async_trait]
impl Agent for OpenAi {
    async fn run(&self, run: Run) -> RunResult {
        let dialogue = self.dialogue(&run)?;
        self.converse(&run, dialogue, run.functions.clone()).await
    }

    async fn answered(&self, _run: Run, _asked: OpenQuestion, _reply: Reply) -> RunResult {
        Err(AgentError::failed("It asks no questions, so it has no use for an answer."))
    }

    fn calls_functions(&self) -> bool {
        true
    }

    async fn returned(&self, run: Run, calls: OpenCalls, outputs: FunctionOutputs) -> RunResult {
        let mut dialogue = self.dialogue(&run)?;
        let unreadable = |_| AgentError::failed("What it kept of its calls cannot be read.");
        let Kept { since, accumulated, usage, model, steps, called, left } =
            serde_json::from_value(calls.state).map_err(unreadable)?;
        dialogue.messages.extend(since);
        dialogue.accumulated.keep(&accumulated)?;
        (dialogue.usage, dialogue.model, dialogue.steps) = (usage, model, steps);
        let functions = dialogue.take_outputs(&called, outputs);
        let functions = self.call_functions(&run, &mut dialogue, left, functions).await?;
        self.converse(&run, dialogue, functions).await
    }
}

/// What a model and its tools have said in a run.
struct Dialogue {
    messages: Vec<Value>,
    /// How many of the messages are the conversation before the run, and its input.
    given: usize,
    accumulated: AccumulatedText,
    usage: Option<Value>,
    model: Option<String>,
    /// Requests that were made.
    steps: u32,
}

/// The same, as it is kept while the run waits for outputs. The conversation is the session's to keep.
#[derive(Serialize, Deserialize)]
struct Kept {
    since: Vec<Value>,
    #[serde(rename = "spoken")]
    accumulated: String,
    usage: Option<Value>,
    model: Option<String>,
    steps: u32,
    /// The model's ids of the calls that are waited for, in their order.
    called: Vec<String>,
    /// Calls that come after them.
    left: Vec<RequestedCall>,
}

impl Dialogue {
    fn kept(&self, called: &[RequestedCall], left: &[RequestedCall]) -> Value {
        let kept = Kept {
            since: self.messages[self.given..].to_vec(),
            accumulated: self.accumulated.text().to_owned(),
            usage: self.usage.clone(),
            model: self.model.clone(),
            steps: self.steps,
            called: called.iter().map(|call| call.id.clone()).collect(),
            left: left.to_vec(),
        };
        serde_json::json!(kept)
    }

    /// Tells the model what its calls returned. What may be called from now on comes back.
    fn take_outputs(&mut self, called: &[String], outputs: FunctionOutputs) -> Functions {
        let said = called.iter().zip(&outputs.outputs);
        self.messages.extend(said.map(|(id, output)| request::tool_message(id, &output.text)));
        outputs.functions
    }
}

impl OpenAi {
    fn dialogue(&self, run: &Run) -> Result<Dialogue, AgentError> {
        let Input::Message { text } = &run.input else {
            return Err(AgentError::failed("It takes messages only."));
        };
        let instructions = run.message.as_ref().and_then(|message| message.instructions.as_deref());
        let system = [self.config.system.as_deref(), instructions];
        let messages = request::conversation(&system, &run.conversation, text);
        let accumulated = AccumulatedText::new(self.config.wire.answer_bytes_max, self.host.clone());
        Ok(Dialogue { given: messages.len(), messages, accumulated, usage: None, model: None, steps: 0 })
    }

    /// Requests and calls, until the model answers.
    async fn converse(&self, run: &Run, mut dialogue: Dialogue, mut functions: Functions) -> RunResult {
        let specs = run.tools.list(&run.owner).await;
        // What the caller chose holds for the first request of each of its own.
        let mut allowed = Calls::AsChosen;
        while dialogue.steps < self.config.max_steps {
            dialogue.steps += 1;
            let toolbox = Toolbox::new(specs.clone(), &functions);
            dialogue.accumulated.paragraph(&run.emit).await?;
            let (said, last) = (dialogue.accumulated.text().len(), dialogue.steps == self.config.max_steps);
            let calls = if last { Calls::None } else { std::mem::replace(&mut allowed, Calls::AsItLikes) };
            let body = request::body(&self.config.model, &dialogue.messages, &toolbox, &functions, calls);
            let mut gathered = Box::pin(self.step(run, &body, &mut dialogue.accumulated)).await?;
            chunk::add_usage(&mut dialogue.usage, gathered.usage.take());
            dialogue.model = gathered.model.take().or(dialogue.model);
            let finish = gathered.finish.take();
            let calls = gathered.into_calls();
            if calls.is_empty() {
                return Ok(answer(dialogue.accumulated.take(), dialogue.usage, dialogue.model, finish));
            }
            if last {
                break;
            }
            dialogue.messages.push(request::called(&dialogue.accumulated.text()[said..], &calls));
            let (callers, ours): (Vec<RequestedCall>, Vec<RequestedCall>) =
                calls.into_iter().partition(|call| functions.find(&call.name).is_some());
            for wanted in &ours {
                let outcome = self.call(run, &toolbox, wanted).await?;
                dialogue.messages.push(request::answered(wanted, &outcome));
            }
            if !callers.is_empty() {
                functions = self.call_functions(run, &mut dialogue, callers, functions).await?;
                allowed = Calls::AsChosen;
            }
        }
        let why = format!("It was still calling tools after {} steps (`max_steps`).", self.config.max_steps);
        Err(AgentError::failed(why))
    }

    /// Calls functions of the caller's, at once or one after the other as it wants them, and tells the model what they
    /// returned.
    async fn call_functions(
        &self,
        run: &Run,
        dialogue: &mut Dialogue,
        mut left: Vec<RequestedCall>,
        mut functions: Functions,
    ) -> Result<Functions, AgentError> {
        while !left.is_empty() {
            let at_once = if functions.parallel { left.len() } else { 1 };
            let now: Vec<RequestedCall> = left.drain(..at_once).collect();
            let calls = now.iter().map(|call| (call.name.clone(), call.arguments.clone()));
            let outputs = run.emit.call_functions(calls, dialogue.kept(&now, &left)).await?;
            let called: Vec<String> = now.into_iter().map(|call| call.id).collect();
            functions = dialogue.take_outputs(&called, outputs);
        }
        Ok(functions)
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
    received: &mut UpstreamResponse,
    mut first: Option<super::upstream::UpstreamRecord>,
    gathered: &mut Gathered,
    accumulated: &mut AccumulatedText,
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
            Unusable::NotJson => Failed::Wire(Fault::Error(UpstreamError::Garbage("something that is no JSON".into()))),
            Unusable::TooMany => Failed::Agent(AgentError::failed("It called too many tools at once.")),
            Unusable::Failed(mut why) => {
                scrub_text(&mut why);
                Failed::Agent(AgentError::failed(format!("The model's server failed: {why}")))
            }
        })?;
        for piece in pieces {
            match piece {
                ModelDelta::Text(delta) => accumulated.say(&run.emit, delta).await.map_err(Failed::Agent)?,
                ModelDelta::Refusal(delta) => {
                    let facts = Map::from_iter([("refusal".to_owned(), true.into())]);
                    accumulated.say_with(&run.emit, delta, facts).await.map_err(Failed::Agent)?;
                }
                ModelDelta::Thinking(delta) => {
                    run.emit.thinking_delta(&delta).await.map_err(|stopped| Failed::Agent(stopped.into()))?;
                }
            }
        }
    }
    if gathered.is_whole() {
        return Ok(());
    }
    Err(Failed::Wire(Fault::Error(UpstreamError::Broken("its answer ends before it is finished".into()))))
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
