//! Turns as they happen: an agent's own events and an upstream's chunks, in an order that makes sense.

use bowline_core::dialect::ai_sdk::{Imported, Importer};
use bowline_protocol::Draft;
use bowline_protocol::event::names;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::log::{Log, event, step_event};
use super::readers::MESSAGE_ID;

/// One thing that happens. What makes no sense at that point is left out.
#[derive(Clone, Debug)]
pub enum Act {
    Think { text: String, streamed: bool },
    Say(String),
    Call(Value),
    Result(Outcome),
    Operation { of_call: bool },
    OperationDone,
    Plan(String),
    Solve { task: u8, progress: u8 },
    Confirm(String),
    Respond,
    Custom(Value),
    NextMessage,
    Upstream(Up),
}

/// What an upstream says, in the AI SDK's words.
#[derive(Clone, Debug)]
pub enum Up {
    Start { reasoning: bool, tagged: bool },
    Delta { which: u8, text: String, odd: bool },
    End { which: u8 },
    InputStart { dynamic: bool },
    InputDelta(String),
    InputAvailable(Value),
    InputError,
    Preliminary(Value),
    Output { value: Value, failed: bool },
    Step,
    Source,
    Document,
    File,
    Data { id: u8, transient: bool },
    Metadata(u8),
}

#[derive(Clone, Debug)]
pub enum Outcome {
    Text(String),
    Data(Value),
    Failed(String),
    Unknown,
}

#[derive(Clone, Debug)]
pub enum Ending {
    /// It still runs.
    None,
    /// The answer is what was streamed, and this.
    Answer {
        more: String,
        facts: bool,
    },
    /// The answer is something else.
    OtherAnswer(String),
    /// An upstream finished, its last step too.
    Upstream,
    Cancelled,
    Failed(String),
}

/// Texts that are hard on encoders, and ordinary ones.
pub fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[a-z ]{1,8}",
        1 => Just(String::new()),
        1 => Just("\n\ndata: {\"type\":\"finish\"}\n\nid: 9\n".to_owned()),
        1 => Just("\r\r\n\0\u{feff}\u{2028}\u{2029}\u{85}".to_owned()),
        1 => Just("\\\"\\u0041 é 😀 \u{10ffff}".to_owned()),
        1 => any::<String>(),
    ]
}

pub fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        // A double may be written in more than one way, and this is not about that.
        (-1000i32..1000).prop_map(|n| Value::from(f64::from(n) + 0.5)),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,3}", inner, 0..3).prop_map(|map| json!(map)),
        ]
    })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        text().prop_map(Outcome::Text),
        value().prop_map(Outcome::Data),
        text().prop_map(Outcome::Failed),
        Just(Outcome::Unknown),
    ]
}

fn up() -> impl Strategy<Value = Up> {
    prop_oneof![
        3 => any::<(bool, bool)>().prop_map(|(reasoning, tagged)| Up::Start { reasoning, tagged }),
        8 => (0..3u8, text(), any::<bool>()).prop_map(|(which, text, odd)| Up::Delta { which, text, odd }),
        2 => (0..3u8).prop_map(|which| Up::End { which }),
        2 => any::<bool>().prop_map(|dynamic| Up::InputStart { dynamic }),
        // Brackets and backslashes, older generations complete otherwise.
        4 => "[{}\",:0-9a-z. -]{0,5}".prop_map(Up::InputDelta),
        2 => value().prop_map(Up::InputAvailable),
        1 => Just(Up::InputError),
        1 => value().prop_map(Up::Preliminary),
        2 => (value(), any::<bool>()).prop_map(|(value, failed)| Up::Output { value, failed }),
        1 => Just(Up::Step),
        1 => Just(Up::Source),
        1 => Just(Up::Document),
        1 => Just(Up::File),
        2 => (0..3u8, any::<bool>()).prop_map(|(id, transient)| Up::Data { id, transient }),
        1 => (0..3u8).prop_map(Up::Metadata),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (text(), any::<bool>()).prop_map(|(text, streamed)| Act::Think { text, streamed }),
        8 => text().prop_map(Act::Say),
        2 => value().prop_map(Act::Call),
        2 => outcome().prop_map(Act::Result),
        1 => any::<bool>().prop_map(|of_call| Act::Operation { of_call }),
        1 => Just(Act::OperationDone),
        1 => text().prop_map(Act::Plan),
        2 => (0..3u8, 0..100u8).prop_map(|(task, progress)| Act::Solve { task, progress }),
        1 => text().prop_map(Act::Confirm),
        1 => Just(Act::Respond),
        1 => value().prop_map(Act::Custom),
        1 => Just(Act::NextMessage),
        16 => up().prop_map(Act::Upstream),
    ]
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        2 => Just(Ending::None),
        3 => (text(), any::<bool>()).prop_map(|(more, facts)| Ending::Answer { more, facts }),
        1 => text().prop_map(Ending::OtherAnswer),
        2 => Just(Ending::Upstream),
        1 => Just(Ending::Cancelled),
        1 => text().prop_map(Ending::Failed),
    ]
}

/// Who begins the message.
#[derive(Clone, Copy, Debug)]
enum Beginning {
    /// A turn, with a message of a person.
    Message,
    /// A producer, with a chunk of its own.
    Start,
    /// A producer that leaves that to us.
    Missing,
}

fn beginning() -> impl Strategy<Value = Beginning> {
    prop_oneof![3 => Just(Beginning::Message), 1 => Just(Beginning::Start), 1 => Just(Beginning::Missing)]
}

#[derive(Debug)]
pub struct Story {
    pub log: Log,
    pub ends: bool,
}

pub fn story() -> impl Strategy<Value = Story> {
    (beginning(), prop::collection::vec(act(), 0..40), ending()).prop_map(|(beginning, acts, ending)| {
        let mut teller = Teller::default();
        teller.begin(beginning);
        acts.iter().for_each(|act| teller.tell(act));
        let ends = !matches!(ending, Ending::None);
        teller.end(&ending);
        Story { log: teller.log, ends }
    })
}

/// Knows what has happened, so that the next thing makes sense.
#[derive(Default)]
struct Teller {
    log: Log,
    importer: Importer,
    calls: u32,
    /// Our own calls without a result.
    waiting: Vec<String>,
    /// The upstream's parts that are open: whether it is reasoning, and the id.
    parts: Vec<(bool, String)>,
    /// The upstream's calls whose input streams in, and those that wait: the id, and whether it is dynamic.
    streaming: Vec<(String, bool)>,
    asked: Vec<(String, bool)>,
    text: String,
}

fn with(mut event: Value, metadata: Value) -> Value {
    event["metadata"] = metadata;
    event
}

impl Teller {
    fn begin(&mut self, beginning: Beginning) {
        if !matches!(beginning, Beginning::Message) {
            self.importer = Importer::producer(MESSAGE_ID);
        }
        match beginning {
            Beginning::Message => self.log.push(&event(names::USER_MESSAGE, "hi")),
            Beginning::Start => {
                self.chunk(&json!({ "type": "start", "messageId": MESSAGE_ID, "messageMetadata": { "by": "them" } }));
            }
            Beginning::Missing => {
                let opening = self.importer.opening("").unwrap();
                self.log.push_draft(&opening);
            }
        }
    }

    fn next(&mut self, prefix: &str) -> String {
        self.calls += 1;
        format!("{prefix}{}", self.calls)
    }

    fn tell(&mut self, act: &Act) {
        let event = match act {
            Act::Think { text, streamed } => {
                with(event(names::THINKING, text.as_str()), json!({ "index": streamed.then_some(0) }))
            }
            Act::Say(text) => {
                self.text.push_str(text);
                with(event(names::PARTIAL_ANSWER, text.as_str()), json!({ "index": 0 }))
            }
            Act::Call(args) => {
                let id = self.next("step");
                let facts = json!({ "tool": "look-up", "args": args, "status": "running" });
                let call = with(step_event(names::TOOL_CALL, &id, "call"), facts);
                self.waiting.push(id);
                call
            }
            Act::Result(outcome) => {
                let Some(id) = self.waiting.pop() else { return };
                let (content, facts) = match outcome {
                    Outcome::Text(text) => (text.as_str(), json!({ "status": "success", "tool": "look-up" })),
                    Outcome::Data(data) => ("done", json!({ "status": "success", "tool": "look-up", "data": data })),
                    Outcome::Failed(error) => ("failed", json!({ "status": "failed", "error": error })),
                    Outcome::Unknown => ("cut off", json!({ "status": "unknown" })),
                };
                with(step_event(names::TOOL_RESULT, &id, content), facts)
            }
            Act::Operation { of_call } => {
                let content =
                    json!({ "type": "operation_started", "tool_name": "crawl", "operation_id": self.next("op") });
                match self.waiting.last().filter(|_| *of_call) {
                    Some(id) => step_event(names::OPERATION_STARTED, id, content),
                    None => event(names::OPERATION_STARTED, content),
                }
            }
            Act::OperationDone => {
                event(names::OPERATION_COMPLETED, json!({ "operation_id": "op", "status": "completed" }))
            }
            Act::Plan(question) => event(names::PLAN_START, json!({ "question": question })),
            Act::Solve { task, progress } => {
                event(names::SOLVER_PROGRESS, json!({ "task_id": format!("t{task}"), "progress_percent": progress }))
            }
            Act::Confirm(question) => {
                with(step_event(names::USER_CONFIRM, "ask", question.as_str()), json!({ "scope": "plan" }))
            }
            Act::Respond => step_event(names::USER_RESPONSE, "ask", json!({ "confirmed": true })),
            Act::Custom(value) => event("agent.mood", value.clone()),
            Act::NextMessage => event(names::USER_MESSAGE, "and then?"),
            Act::Upstream(up) => return self.upstream(up),
        };
        self.log.push(&event);
    }

    /// An upstream's chunk takes the way that one takes: through the importer, into the log.
    fn chunk(&mut self, chunk: &Value) {
        match self.importer.handle_chunk(&chunk.to_string()).unwrap() {
            Imported::Event(draft) => self.log.push_draft(&draft),
            Imported::Nothing => {}
            other => panic!("{other:?}"),
        }
    }

    fn upstream(&mut self, up: &Up) {
        match up {
            Up::Start { reasoning, tagged } => {
                let kind = if *reasoning { "reasoning" } else { "text" };
                let id = self.next("p");
                let mut chunk = json!({ "type": format!("{kind}-start"), "id": id });
                if *tagged {
                    chunk["providerMetadata"] = json!({ "maker": { "item": id } });
                }
                self.parts.push((*reasoning, id));
                self.chunk(&chunk);
            }
            Up::Delta { which, text, odd } => {
                let Some((reasoning, id)) = self.part(*which) else { return };
                let kind = if reasoning { "reasoning-delta" } else { "text-delta" };
                if !reasoning {
                    self.text.push_str(text);
                }
                let mut chunk = json!({ "type": kind, "id": id, "delta": text });
                if *odd {
                    chunk["providerMetadata"] = json!({ "maker": { "n": text.len() } });
                }
                self.chunk(&chunk);
            }
            Up::End { which } => {
                let Some((reasoning, id)) = self.part(*which) else { return };
                self.end_part(reasoning, &id);
            }
            Up::Step => {
                self.finish_step();
                self.chunk(&json!({ "type": "start-step" }));
            }
            Up::Source => self.chunk(&json!({ "type": "source-url", "sourceId": "s", "url": "https://a.example" })),
            Up::Document => self
                .chunk(&json!({ "type": "source-document", "sourceId": "d", "mediaType": "text/plain", "title": "T" })),
            Up::File => self.chunk(&json!({ "type": "file", "url": "data:,x", "mediaType": "text/plain" })),
            Up::Data { id, transient } => {
                let n = self.next("");
                let mut chunk = json!({ "type": "data-weather", "data": { "n": n } });
                // The third is one that nothing replaces.
                if *id < 2 {
                    chunk["id"] = format!("w{id}").into();
                }
                if *transient {
                    chunk["transient"] = true.into();
                }
                self.chunk(&chunk);
            }
            Up::Metadata(n) => {
                let metadata = json!({ "n": n, "nested": { (format!("k{n}")): n } });
                self.chunk(&json!({ "type": "message-metadata", "messageMetadata": metadata }));
            }
            tool => self.upstream_tool(tool),
        }
    }

    fn upstream_tool(&mut self, up: &Up) {
        let mark = |mut chunk: Value, dynamic: bool| {
            if dynamic {
                chunk["dynamic"] = true.into();
            }
            chunk
        };
        match up {
            Up::InputStart { dynamic } => {
                let id = self.next("call");
                let chunk = json!({ "type": "tool-input-start", "toolCallId": id, "toolName": "get-it" });
                self.chunk(&mark(chunk, *dynamic));
                self.streaming.push((id, *dynamic));
            }
            Up::InputDelta(text) => {
                let Some((id, _)) = self.streaming.last() else { return };
                self.chunk(&json!({ "type": "tool-input-delta", "toolCallId": id, "inputTextDelta": text }));
            }
            Up::InputAvailable(input) => {
                let (id, dynamic) = self.streaming.pop().unwrap_or_else(|| (self.next("call"), false));
                let chunk =
                    json!({ "type": "tool-input-available", "toolCallId": id, "toolName": "get-it", "input": input });
                self.chunk(&mark(chunk, dynamic));
                self.asked.push((id, dynamic));
            }
            Up::InputError => {
                let Some((id, dynamic)) = self.streaming.pop() else { return };
                let chunk = json!({
                    "type": "tool-input-error", "toolCallId": id, "toolName": "get-it", "input": "{", "errorText": "bad"
                });
                self.chunk(&mark(chunk, dynamic));
            }
            Up::Preliminary(output) => {
                let Some((id, dynamic)) = self.asked.last().cloned() else { return };
                let chunk = json!({
                    "type": "tool-output-available", "toolCallId": id, "output": output, "preliminary": true
                });
                self.chunk(&mark(chunk, dynamic));
            }
            Up::Output { value, failed } => {
                let Some((id, dynamic)) = self.asked.pop() else { return };
                let chunk = if *failed {
                    json!({ "type": "tool-output-error", "toolCallId": id, "errorText": "no" })
                } else {
                    json!({ "type": "tool-output-available", "toolCallId": id, "output": value })
                };
                self.chunk(&mark(chunk, dynamic));
            }
            _ => {}
        }
    }

    fn part(&self, which: u8) -> Option<(bool, String)> {
        (!self.parts.is_empty()).then(|| self.parts[usize::from(which) % self.parts.len()].clone())
    }

    fn end_part(&mut self, reasoning: bool, id: &str) {
        let kind = if reasoning { "reasoning-end" } else { "text-end" };
        self.parts.retain(|(_, open)| open != id);
        self.chunk(&json!({ "type": kind, "id": id }));
    }

    /// An upstream leaves nothing half said in a step.
    fn finish_step(&mut self) {
        for (reasoning, id) in self.parts.clone() {
            self.end_part(reasoning, &id);
        }
        while !self.streaming.is_empty() {
            self.upstream_tool(&Up::InputAvailable(json!({})));
        }
        self.chunk(&json!({ "type": "finish-step" }));
    }

    fn end(&mut self, ending: &Ending) {
        let event = match ending {
            Ending::None => return,
            Ending::Answer { more, facts } => {
                let known = if *facts { json!({ "usage": { "total": 7 }, "model": "m" }) } else { json!({}) };
                with(event(names::FINAL_ANSWER, format!("{}{more}", self.text)), known)
            }
            Ending::OtherAnswer(text) => event(names::FINAL_ANSWER, text.as_str()),
            Ending::Upstream => {
                self.finish_step();
                let finish = json!({ "type": "finish", "finishReason": "stop", "messageMetadata": { "end": true } });
                let Ok(Imported::End(end)) = self.importer.handle_chunk(&finish.to_string()) else { panic!() };
                let kept = std::collections::BTreeMap::from([("finish", end.chunk)]);
                return self.log.push_draft(&Draft::new(names::FINAL_ANSWER, &self.text).metadata(&kept));
            }
            Ending::Cancelled => event(names::CANCELLED, "stopped"),
            Ending::Failed(text) => event(names::ERROR, text.as_str()),
        };
        self.log.push(&event);
    }
}
