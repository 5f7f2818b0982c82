//! The built-in agent: needs nothing, does what its directives say, the same way every time.

use std::time::Duration;

use async_trait::async_trait;
use bowline_api::{
    Agent, AgentError, Answer, Confirm, FunctionCall, FunctionChoice, FunctionOutputs, Functions, Input, OpenCalls,
    OpenQuestion, Operation, Reply, Role, Run, RunResult, Stopped, ToolCall,
};
use bowline_env::clock;
use serde_json::{Map, Value, json};

use super::plan::{PlanRun, Task};

/// What it can be asked to do, for its friendly answer and the documents.
pub const DIRECTIVES: &[(&str, &str)] = &[
    ("/long N [MS]", "streams N words, MS milliseconds apart (5 if left out)"),
    ("/plan TEXT", "plans, solves three tasks two at a time, and sums up"),
    ("/confirm TEXT", "asks you first, then answers"),
    ("/fail [N]", "fails after N words"),
    ("/recall", "repeats your earlier messages"),
    ("/tool SERVER TOOL JSON", "calls a tool of an MCP server and says what it answered"),
    ("/call NAME JSON …", "calls functions of yours (`tools` of the Responses API) and says what they returned"),
    ("/op NAME N [MS]", "starts work of N steps in the background, MS milliseconds apart (100 if left out)"),
    ("/echo TEXT", "says TEXT"),
];

/// More words than this are not a demonstration any more.
const WORDS_MAX: u64 = 500_000;
const WORD_PAUSE: Duration = Duration::from_millis(5);
/// What it offers to do in the background, and how.
const OPERATION: &str = "demo";
const OPERATION_STEPS: u64 = 5;
const OPERATION_PAUSE: Duration = Duration::from_millis(100);
const STEP_PAUSE: Duration = Duration::from_millis(120);

#[derive(Clone, Debug)]
pub struct Demo {
    seed: u64,
    speed: f64,
}

impl Demo {
    pub fn new(seed: u64, speed: f64) -> Demo {
        Demo { seed, speed }
    }

    fn scaled(&self, pause: Duration) -> Duration {
        if self.speed > 0.0 { pause.div_f64(self.speed) } else { Duration::ZERO }
    }

    async fn message(&self, mut run: Run, text: &str) -> RunResult {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        match word {
            "/long" => self.long(&run, rest).await,
            "/plan" => PlanRun::new(self.seed, self.scaled(STEP_PAUSE)).plan(&mut run, rest).await,
            "/confirm" => {
                let confirm = Confirm::custom(format!("Shall I? {rest}"), json!({ "text": rest }));
                let reply = run.emit.confirm(confirm).await?;
                Ok(confirmed(rest, &reply))
            }
            "/fail" => self.fail(&run, rest).await,
            "/recall" => Ok(Answer::text(recall(&run))),
            "/tool" => call_tool(&run, rest).await,
            "/call" => call_functions(&run, calls_in(&run.functions, rest)?).await,
            "/op" => self.begin_operation(&run, rest).await,
            "/echo" => Ok(Answer::text(rest)),
            _ => match demanded(&run.functions) {
                Some(name) => call_functions(&run, vec![(name, "{}".to_owned())]).await,
                None => self.friendly(&run).await,
            },
        }
    }

    async fn long(&self, run: &Run, rest: &str) -> RunResult {
        let mut numbers = rest.split_whitespace();
        let count = words_allowed(number(numbers.next(), "N", "/long N [MS]")?.unwrap_or(100))?;
        let pause = number(numbers.next(), "MS", "/long N [MS]")?;
        let pause = pause.map_or_else(|| self.scaled(WORD_PAUSE), Duration::from_millis);
        Ok(Answer::text(words(run, count, pause).await?))
    }

    async fn fail(&self, run: &Run, rest: &str) -> RunResult {
        let count = words_allowed(number(rest.split_whitespace().next(), "N", "/fail [N]")?.unwrap_or(0))?;
        words(run, count, self.scaled(WORD_PAUSE)).await?;
        Err(AgentError::failed(format!("It was asked to fail after {count} words, and so it does.")))
    }

    async fn begin_operation(&self, run: &Run, rest: &str) -> RunResult {
        let mut words = rest.split_whitespace();
        let name = words.next().unwrap_or(OPERATION);
        let steps = number(words.next(), "N", "/op NAME N [MS]")?.unwrap_or(OPERATION_STEPS);
        let mut args = json!({ "steps": steps });
        if let Some(pause) = number(words.next(), "MS", "/op NAME N [MS]")? {
            args["delay_ms"] = pause.into();
        }
        let begun = run.emit.start_operation(name, args, None).await?;
        let begun = begun.map_err(|refusal| AgentError::failed(refusal.message))?;
        Ok(Answer::text(format!("`{name}` is at work in the background as {}.", begun.operation_id)))
    }

    async fn friendly(&self, run: &Run) -> RunResult {
        run.emit.thinking("No directive in this message, so I will say hello.", "answering").await?;
        let mut text =
            String::from("Hello! I am the demo agent. Cut my connection while I talk; nothing gets lost. Try:\n");
        for (directive, does) in DIRECTIVES {
            text.push_str(&format!("\n- `{directive}` {does}"));
        }
        for piece in text.split_inclusive('\n') {
            run.emit.partial_answer(piece).await?;
            run.pause(self.scaled(WORD_PAUSE)).await?;
        }
        Ok(Answer::text(text))
    }
}

#[async_trait]
impl Agent for Demo {
    async fn run(&self, mut run: Run) -> RunResult {
        let plan = || PlanRun::new(self.seed, self.scaled(STEP_PAUSE));
        match run.input.clone() {
            Input::Message { text } => self.message(run, &text).await,
            Input::Replan { question } => {
                let earlier = run.work.as_ref().and_then(|plan| plan["question"].as_str()).map(str::to_owned);
                let question = question.or(earlier).unwrap_or_else(|| "the same again".into());
                plan().plan(&mut run, &question).await
            }
            Input::SolveTasks { tasks } => {
                let tasks = tasks.as_array().map(|tasks| tasks.iter().enumerate().map(Task::from_client).collect());
                plan().solve(&mut run, "tasks of your own", tasks.unwrap_or_default()).await
            }
            Input::RestartTask { task_id } => {
                let mut tasks = Task::list(run.work.as_ref());
                let question =
                    run.work.as_ref().and_then(|plan| plan["question"].as_str()).unwrap_or_default().to_owned();
                let task = tasks.iter_mut().find(|task| task.id == task_id);
                let task =
                    task.ok_or_else(|| AgentError::failed(format!("There is no task `{task_id}` to restart.")))?;
                task.restart();
                run.emit.solver_restarted(&task.shown()).await?;
                plan().solve(&mut run, &question, tasks).await
            }
        }
    }

    async fn answered(&self, _run: Run, asked: OpenQuestion, reply: Reply) -> RunResult {
        Ok(confirmed(asked.state["text"].as_str().unwrap_or_default(), &reply))
    }

    fn calls_functions(&self) -> bool {
        true
    }

    async fn returned(&self, run: Run, calls: OpenCalls, outputs: FunctionOutputs) -> RunResult {
        let OpenCalls { calls, state, .. } = calls;
        let unreadable = || AgentError::failed("What it kept of its calls cannot be read.");
        let mut said: Vec<String> = serde_json::from_value(state["said"].clone()).map_err(|_| unreadable())?;
        let left = serde_json::from_value(state["left"].clone()).map_err(|_| unreadable())?;
        said.extend(results(calls.iter().map(|call: &FunctionCall| call.name.as_str()), &outputs));
        call_each(&run, outputs.functions, left, said).await
    }

    fn operations(&self) -> Vec<&str> {
        vec![OPERATION]
    }

    async fn operate(&self, operation: Operation) -> Result<Value, AgentError> {
        let argument = |name: &str| match operation.args.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let wrong = || AgentError::failed(format!("`{name}` must be a whole number from 0."));
                value.as_u64().map(Some).ok_or_else(wrong)
            }
        };
        let steps = argument("steps")?.unwrap_or(OPERATION_STEPS);
        if steps > WORDS_MAX {
            return Err(AgentError::failed(format!("`steps` may be at most {WORDS_MAX}.")));
        }
        let pause = argument("delay_ms")?.map_or_else(|| self.scaled(OPERATION_PAUSE), Duration::from_millis);
        for step in 1..=steps {
            operation.pause(pause).await?;
            operation.emit.progress(step, steps, &format!("step {step} of {steps}")).await?;
        }
        Ok(json!({ "tool": operation.tool, "steps": steps }))
    }

    fn plans(&self) -> bool {
        true
    }
}

/// One call to a tool of the hub, in the log as any agent's call is.
async fn call_tool(run: &Run, rest: &str) -> RunResult {
    let usage = || AgentError::failed("It goes like this: /tool SERVER TOOL {\"name\": \"value\"}");
    let mut words = rest.splitn(3, ' ');
    let (Some(server), Some(tool)) = (words.next().filter(|word| !word.is_empty()), words.next()) else {
        return Err(usage());
    };
    // The name of a server does not end so, and what stands between it and the tool would be found in another place.
    if server.ends_with('_') || server.contains("__") {
        return Err(AgentError::failed(format!("There is no server {server}.")));
    }
    let args = match words.next().map(str::trim).filter(|text| !text.is_empty()) {
        None => Map::new(),
        Some(text) => serde_json::from_str(text).map_err(|_| usage())?,
    };
    let shown = Value::Object(args.clone());
    let step = run.emit.tool_call(&format!("Calling {tool}"), tool, &shown, Some(server)).await?;
    let started = clock::now();
    let call = ToolCall {
        name: format!("{server}__{tool}"),
        args,
        owner: run.owner.clone(),
        session: run.session.clone(),
        run: run.id.clone(),
        step: step.clone(),
        to_the_end: false,
    };
    let outcome = run.tools.call(call, run.cancel.clone()).await;
    let outcome = run.emit.tool_ended(step, tool, outcome, clock::since(started).as_millis() as u64).await?;
    Ok(Answer::text(outcome.text()))
}

/// A function's name and its arguments, as JSON text.
type NamedCall = (String, String);

/// `NAME {…} NAME {…}`: arguments may be left out.
fn calls_in(functions: &Functions, mut rest: &str) -> Result<Vec<NamedCall>, AgentError> {
    let usage = || AgentError::failed("It goes like this: /call NAME {\"name\": \"value\"}");
    let mut calls = Vec::new();
    loop {
        rest = rest.trim_start();
        let end = rest.find([' ', '{']).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        if name.is_empty() {
            return if rest.is_empty() && !calls.is_empty() { Ok(calls) } else { Err(usage()) };
        }
        if functions.find(name).is_none() {
            return Err(AgentError::failed(format!("You have no function `{name}`, or take no calls.")));
        }
        rest = behind.trim_start();
        let mut arguments = "{}";
        if rest.starts_with('{') {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<&serde_json::value::RawValue>();
            arguments = values.next().and_then(Result::ok).ok_or_else(usage)?.get();
            rest = &rest[arguments.len()..];
        }
        calls.push((name.to_owned(), arguments.to_owned()));
    }
}

/// The function that has to be called, if one has to.
fn demanded(functions: &Functions) -> Option<String> {
    match &functions.choice {
        FunctionChoice::Auto => None,
        FunctionChoice::Required => functions.list.first().map(|function| function.name.clone()),
        FunctionChoice::Function(name) => Some(name.clone()),
    }
}

async fn call_functions(run: &Run, calls: Vec<NamedCall>) -> RunResult {
    call_each(run, run.functions.clone(), calls, Vec::new()).await
}

/// Makes calls, all at once or one after the other as the caller wants them, and says what each returned.
async fn call_each(run: &Run, mut functions: Functions, mut left: Vec<NamedCall>, mut said: Vec<String>) -> RunResult {
    while !left.is_empty() {
        let at_once = if functions.parallel { left.len() } else { 1 };
        let now: Vec<NamedCall> = left.drain(..at_once).collect();
        let outputs = run.emit.call_functions(now.clone(), json!({ "said": said, "left": left })).await?;
        said.extend(results(now.iter().map(|(name, _)| name.as_str()), &outputs));
        functions = outputs.functions;
    }
    Ok(Answer::text(said.join("\n")))
}

fn results<'a>(names: impl Iterator<Item = &'a str>, outputs: &FunctionOutputs) -> Vec<String> {
    names.zip(&outputs.outputs).map(|(name, output)| format!("{name}: {}", output.text)).collect()
}

fn confirmed(text: &str, reply: &Reply) -> Answer {
    Answer::text(format!("{}: {text}", if reply.confirmed { "confirmed" } else { "declined" }))
}

fn recall(run: &Run) -> String {
    let earlier = run.conversation.iter().filter(|message| message.role == Role::User);
    earlier.map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n")
}

/// Streams `tok1`, ` tok2`, … and returns them joined.
async fn words(run: &Run, count: u64, pause: Duration) -> Result<String, Stopped> {
    let mut text = String::new();
    for n in 1..=count {
        let delta = if n == 1 { "tok1".to_owned() } else { format!(" tok{n}") };
        text.push_str(&delta);
        run.emit.partial_answer(delta).await?;
        if n < count {
            run.pause(pause).await?;
        }
    }
    Ok(text)
}

fn words_allowed(count: u64) -> Result<u64, AgentError> {
    let refuse = || AgentError::failed(format!("N may be at most {WORDS_MAX}."));
    (count <= WORDS_MAX).then_some(count).ok_or_else(refuse)
}

fn number(word: Option<&str>, name: &str, usage: &str) -> Result<Option<u64>, AgentError> {
    let Some(word) = word else { return Ok(None) };
    let shown: String = word.chars().take(20).collect();
    word.parse().map(Some).map_err(|_| AgentError::failed(format!("{name} must be a number, not `{shown}`: {usage}.")))
}
