//! The way back: chunks that an upstream or a producer sends, as events for the log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bowline_protocol::chunk::{ChunkBuilder, ChunkError, ChunkView, DONE_DATA};
use bowline_protocol::event::{EventName, names};
use bowline_protocol::{Chunk, ChunkKind, Draft, Recorded, StepId, json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::events::{EventFacts, is_delta_chunk, text_of, tool_error, tool_input, tool_output};
use super::parts::TextKind;

/// How deep a chunk may nest. Readers of the log build trees of it, and it lies two levels down in its event.
pub const DEPTH_MAX: usize = 64;

/// What became of a chunk.
#[derive(Debug)]
pub enum Imported {
    /// To be logged.
    Event(Draft),
    /// Nothing to log: what it says, our own stream says.
    Nothing,
    /// The upstream ended. The run or task is to be ended likewise, by this alone.
    End(UpstreamEnd),
    /// The upstream's stream is complete.
    Done,
}

/// How an upstream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamEnding {
    Finished,
    Cancelled,
    Failed,
}

/// The upstream's last word.
///
/// The event that ends the run (`agent.final_answer`, `agent.cancelled`, `agent.error`) keeps `chunk` in its metadata as
/// `finish`; readers then get it word for word. It must be written there as it is: a tree in between would sort its keys.
#[derive(Clone)]
pub struct UpstreamEnd {
    pub ending: UpstreamEnding,
    /// What went wrong, for people, or why it was stopped.
    pub text: Option<String>,
    pub chunk: Box<RawValue>,
}

impl fmt::Debug for UpstreamEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "End({:?}, {} bytes)", self.ending, self.chunk.get().len())
    }
}

/// Follows one upstream's stream.
///
/// It can be built again from what was logged ([`Importer::follow`]), so that a restart does not break a producer's task;
/// and kept, so that only what was logged since has to be read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Importer {
    stage: ImportStage,
    sight: Sight,
    /// What the message is called if its upstream does not name it; none if the message is not the upstream's to begin.
    #[serde(skip)]
    message_id: Option<Box<str>>,
    /// Its `start` was logged.
    started: bool,
    /// How many deltas of an answer there were, and of thoughts.
    texts: u64,
    thoughts: u64,
    open_texts: BTreeSet<Box<str>>,
    open_thoughts: BTreeSet<Box<str>>,
    /// Calls by their id: the name of the tool.
    calls: BTreeMap<Box<str>, Box<str>>,
    streaming: BTreeSet<Box<str>>,
    /// Questions by their id: the call.
    approvals: BTreeMap<Box<str>, Box<str>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum ImportStage {
    /// Nothing was said yet. Our own first step stands for the upstream's.
    #[default]
    Before,
    /// Its first step began.
    StepBegun,
    Within,
    Ended,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Sight {
    #[default]
    Whole,
    /// Some of the log is gone: what seems not to have begun may have.
    Lost,
}

/// What an event of ours keeps besides, so that the upstream's chunk can be reproduced byte for byte.
#[derive(Serialize)]
struct DeltaFacts<'a> {
    index: u64,
    part: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct ToolFacts<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<&'a RawValue>,
    status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk: Option<&'a RawValue>,
}

impl Importer {
    /// An upstream whose stream becomes part of a turn: the message and its first step are begun by the turn.
    pub fn new() -> Importer {
        Importer::default()
    }

    /// An upstream with a log of its own, which begins its message itself.
    pub fn producer(message_id: &str) -> Importer {
        Importer { message_id: Some(message_id.into()), ..Importer::default() }
    }

    /// The same upstream, as far as it was followed when this was kept.
    pub fn resumed(self, kept: Importer) -> Importer {
        Importer { message_id: self.message_id, ..kept }
    }

    /// The `start` that is missing if the stream goes on with this chunk. It is to be logged before the chunk.
    pub fn opening(&mut self, next: &str) -> Option<Draft> {
        let message_id = self.message_id.as_deref().filter(|_| !self.started)?;
        if ChunkView::parse(next).is_ok_and(|view| view.kind == ChunkKind::Start) {
            return None;
        }
        let start = raw_of(&Chunk::start(message_id));
        self.started = true;
        Some(Draft::new(names::CHUNK, &start))
    }

    /// Takes the next chunk, which is JSON, together with the [`opening`](Importer::opening) that is missing before it.
    /// Refused ones change nothing.
    pub fn handle_json(&mut self, chunk: &RawValue) -> Result<(Option<Draft>, Imported), ChunkError> {
        if json::depth(chunk.get(), DEPTH_MAX) > DEPTH_MAX {
            return Err(ChunkError::TooDeep { depth_max: DEPTH_MAX });
        }
        let view = ChunkView::parse(chunk.get())?;
        let imported = if json::is_compact(chunk.get()) {
            self.handle_line(chunk, &view)?
        } else {
            let line = RawValue::from_string(json::compact(chunk.get())).map_err(|_| ChunkError::NotAnObject)?;
            self.handle_line(&line, &ChunkView::parse(line.get())?)?
        };
        // A `start` of its own is noted by now, and then nothing is missing.
        Ok((self.opening(""), imported))
    }

    /// Takes the next chunk as it came: a JSON object, or `[DONE]`. Refused ones change nothing.
    pub fn handle_chunk(&mut self, text: &str) -> Result<Imported, ChunkError> {
        if text.trim() == DONE_DATA {
            return Ok(Imported::Done);
        }
        if json::depth(text, DEPTH_MAX) > DEPTH_MAX {
            return Err(ChunkError::TooDeep { depth_max: DEPTH_MAX });
        }
        // Checked before it is compacted, which is defined for JSON only.
        ChunkView::parse(text)?;
        let line = RawValue::from_string(json::compact(text)).map_err(|_| ChunkError::NotAnObject)?;
        self.handle_line(&line, &ChunkView::parse(line.get())?)
    }

    fn handle_line(&mut self, line: &RawValue, view: &ChunkView<'_>) -> Result<Imported, ChunkError> {
        if self.stage == ImportStage::Ended {
            return Ok(Imported::Nothing);
        }
        self.check_begun(view)?;
        let imported = self.import(line, view);
        self.note(view);
        Ok(imported)
    }

    /// Whether a chunk may stand behind the one that ended the stream: an error is followed by the end of its step and message.
    pub fn may_follow_end(chunk: &RawValue) -> bool {
        let chunk = serde_json::from_str::<Value>(chunk.get()).unwrap_or_default();
        matches!(chunk["type"].as_str(), Some("finish" | "finish-step" | "error" | "abort"))
    }

    fn import(&self, line: &RawValue, view: &ChunkView<'_>) -> Imported {
        match view.kind {
            ChunkKind::Start if self.message_id.is_some() && !self.started => Imported::Event(self.start(line, view)),
            ChunkKind::Start => match view.fields.message_metadata.filter(|raw| raw.get() != "null") {
                Some(metadata) => Imported::Event(metadata_chunk(metadata)),
                None => Imported::Nothing,
            },
            ChunkKind::StartStep if self.stage == ImportStage::Before && self.message_id.is_none() => Imported::Nothing,
            ChunkKind::Finish => end(UpstreamEnding::Finished, None, line),
            ChunkKind::Abort => end(UpstreamEnding::Cancelled, view.fields.reason, line),
            ChunkKind::Error => end(UpstreamEnding::Failed, view.fields.error_text, line),
            ChunkKind::TextDelta => Imported::Event(self.delta(TextKind::Text, line, view)),
            ChunkKind::ReasoningDelta => Imported::Event(self.delta(TextKind::Reasoning, line, view)),
            _ => Imported::Event(self.tool(line, view).unwrap_or_else(|| self.upstream_chunk(line, view))),
        }
    }

    /// The upstream's own beginning. A message without a name would get another one from each parser.
    fn start(&self, line: &RawValue, view: &ChunkView<'_>) -> Draft {
        if view.fields.message_id.is_some() {
            return Draft::new(names::CHUNK, line);
        }
        let name = json::raw(self.message_id.as_deref().unwrap_or_default());
        let body = line.get().strip_suffix('}').unwrap_or_default();
        let named = RawValue::from_string(format!("{body},\"messageId\":{name}}}"));
        Draft::new(names::CHUNK, named.as_deref().unwrap_or(line))
    }

    fn delta(&self, flow: TextKind, line: &RawValue, view: &ChunkView<'_>) -> Draft {
        let (name, index) = match flow {
            TextKind::Text => (names::PARTIAL_ANSWER, self.texts),
            TextKind::Reasoning => (names::THINKING, self.thoughts),
        };
        let part = view.id();
        let literal = view.delta_text().unwrap_or(RawValue::NULL);
        let chunk = Some(line).filter(|line| !is_delta_chunk(line.get(), flow, &part, literal.get()));
        let content = literal.to_owned();
        let draft = Draft { name: EventName::known(name), step_id: None, content, metadata: None };
        draft.metadata(&DeltaFacts { index, part: &part, chunk })
    }

    /// A call or its result. `None` for other chunks, and for calls whose id no step can have.
    fn tool(&self, line: &RawValue, view: &ChunkView<'_>) -> Option<Draft> {
        let id = view.tool_call_id();
        let step = || StepId::parse(&id);
        let name = self.calls.get(&*id).map(AsRef::as_ref);
        match view.kind {
            ChunkKind::ToolInputAvailable => {
                let name = view.tool_name();
                let args = view.fields.input.filter(|raw| raw.get() != "null");
                let chunk = differing(&tool_input(&id, &name, args, false), line);
                let facts = ToolFacts { tool: Some(&name), args, status: "running", error: None, data: None, chunk };
                Some(Draft::new(names::TOOL_CALL, &format!("Calling {name}")).step(step()?).metadata(&facts))
            }
            // One that more outputs follow is no result yet.
            ChunkKind::ToolOutputAvailable if !view.is_preliminary() => {
                let output = view.fields.output.unwrap_or(RawValue::NULL);
                let chunk = differing(&tool_output(&id, output), line);
                // A text is the content; anything else is data beside a sentence, and `null` only the chunk can tell.
                let data = Some(output).filter(|raw| !raw.get().starts_with('"') && raw.get() != "null");
                let chunk = if output.get() == "null" { Some(line) } else { chunk };
                let facts = ToolFacts { tool: name, args: None, status: "success", error: None, data, chunk };
                let sentence = json::raw(&format!("{} has answered", name.unwrap_or("The tool")));
                let content = if output.get().starts_with('"') { output } else { &*sentence };
                Some(Draft::new(names::TOOL_RESULT, content).step(step()?).metadata(&facts))
            }
            ChunkKind::ToolOutputError => {
                let error = view.fields.error_text?;
                let chunk = differing(&tool_error(&id, error.get()), line);
                let facts =
                    ToolFacts { tool: name, args: None, status: "failed", error: Some(error), data: None, chunk };
                Some(Draft::new(names::TOOL_RESULT, error).step(step()?).metadata(&facts))
            }
            _ => None,
        }
    }

    /// Anything else, word for word. What changes a call says of which tool: its beginning may be gone when it is read.
    fn upstream_chunk(&self, line: &RawValue, view: &ChunkView<'_>) -> Draft {
        let draft = Draft::new(names::CHUNK, line);
        let call = match view.kind {
            ChunkKind::ToolOutputAvailable | ChunkKind::ToolOutputDenied | ChunkKind::ToolApprovalRequest => {
                self.calls.get(&*view.tool_call_id())
            }
            ChunkKind::ToolApprovalResponse => {
                self.approvals.get(&*view.approval_id()).and_then(|call| self.calls.get(call))
            }
            _ => None,
        };
        match call {
            Some(tool) => draft.metadata(&BTreeMap::from([("tool", tool)])),
            None => draft,
        }
    }

    /// Takes note of an event that was logged before: what this importer made of earlier chunks.
    pub fn follow(&mut self, event: &Recorded) {
        let Some(view) = event.view() else { return };
        self.started = true;
        let facts = EventFacts::of(view.metadata);
        let part = || facts.part.and_then(text_of).map(|part| part.as_ref().into());
        match view.event {
            names::PARTIAL_ANSWER => {
                self.texts += 1;
                self.open_texts.extend(part());
            }
            names::THINKING => {
                self.thoughts += 1;
                self.open_thoughts.extend(part());
            }
            names::TOOL_CALL => {
                let id = view.step_id.and_then(text_of).unwrap_or_default();
                let name = facts.tool.and_then(text_of).unwrap_or_default();
                self.calls.insert(id.as_ref().into(), name.as_ref().into());
                self.streaming.remove(&*id);
            }
            names::CHUNK => {
                let Ok(chunk) = ChunkView::parse(view.content.get()) else { return };
                self.note(&chunk);
                if chunk.kind != ChunkKind::StartStep {
                    return;
                }
                // One that was logged was not the first.
            }
            names::TOOL_RESULT => {}
            name if names::TERMINAL.contains(&name) => return self.stage = ImportStage::Ended,
            // Not from an upstream.
            _ => return,
        }
        self.stage = ImportStage::Within;
    }

    /// Whether the upstream has ended, so that what it says now is not logged.
    pub fn is_ended(&self) -> bool {
        self.stage == ImportStage::Ended
    }

    /// Some of the log is gone, so what came before cannot be known. From now on nothing is refused for not having begun.
    pub fn lose(&mut self) {
        self.sight = Sight::Lost;
        self.started = true;
        if self.stage != ImportStage::Ended {
            self.stage = ImportStage::Within;
        }
    }

    /// What no parser would take, and no reader could be shown, is refused.
    fn check_begun(&self, view: &ChunkView<'_>) -> Result<(), ChunkError> {
        let (field, begun) = match view.kind {
            ChunkKind::TextEnd => ("id", self.open_texts.contains(&*view.id())),
            ChunkKind::ReasoningEnd => ("id", self.open_thoughts.contains(&*view.id())),
            ChunkKind::ToolInputDelta => ("toolCallId", self.streaming.contains(&*view.tool_call_id())),
            ChunkKind::ToolApprovalResponse => ("approvalId", self.approvals.contains_key(&*view.approval_id())),
            _ => return Ok(()),
        };
        let refused = !begun && self.sight == Sight::Whole;
        if refused { Err(ChunkError::NotBegun { kind: view.kind, field }) } else { Ok(()) }
    }

    fn note(&mut self, view: &ChunkView<'_>) {
        let id = || view.id().as_ref().into();
        let call = || view.tool_call_id().as_ref().into();
        match view.kind {
            ChunkKind::Start => self.started = true,
            ChunkKind::TextStart => drop(self.open_texts.insert(id())),
            ChunkKind::TextDelta => {
                self.texts += 1;
                if !self.open_texts.contains(&*view.id()) {
                    self.open_texts.insert(id());
                }
            }
            ChunkKind::TextEnd => drop(self.open_texts.remove(&*view.id())),
            ChunkKind::ReasoningStart => drop(self.open_thoughts.insert(id())),
            ChunkKind::ReasoningDelta => {
                self.thoughts += 1;
                if !self.open_thoughts.contains(&*view.id()) {
                    self.open_thoughts.insert(id());
                }
            }
            ChunkKind::ReasoningEnd => drop(self.open_thoughts.remove(&*view.id())),
            ChunkKind::ToolInputStart => {
                self.calls.insert(call(), view.tool_name().as_ref().into());
                self.streaming.insert(call());
            }
            ChunkKind::ToolInputAvailable | ChunkKind::ToolInputError => {
                self.calls.insert(call(), view.tool_name().as_ref().into());
                self.streaming.remove(&*view.tool_call_id());
            }
            ChunkKind::ToolApprovalRequest => {
                self.approvals.insert(view.approval_id().as_ref().into(), call());
            }
            _ => {}
        }
        self.stage = match (view.kind, self.stage) {
            (ChunkKind::Finish | ChunkKind::Abort | ChunkKind::Error, _) => ImportStage::Ended,
            (ChunkKind::StartStep, ImportStage::Before) => ImportStage::StepBegun,
            // What says something about the message only, may come before its first step.
            (ChunkKind::Start | ChunkKind::MessageMetadata, stage) => stage,
            _ => ImportStage::Within,
        };
    }
}

/// The upstream's chunk, if ours would not be the same.
fn differing<'a>(ours: &Chunk, line: &'a RawValue) -> Option<&'a RawValue> {
    (ours.json != line.get().as_bytes()).then_some(line)
}

fn metadata_chunk(metadata: &RawValue) -> Draft {
    let chunk = ChunkBuilder::new(ChunkKind::MessageMetadata.as_str(), metadata.get().len());
    Draft::new(names::CHUNK, &raw_of(&chunk.raw("messageMetadata", metadata.get()).done()))
}

fn raw_of(chunk: &Chunk) -> Box<RawValue> {
    // It was put together from JSON, so it is JSON.
    serde_json::from_slice(&chunk.json).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

fn end(ending: UpstreamEnding, text: Option<&RawValue>, line: &RawValue) -> Imported {
    let text = text.and_then(text_of).map(|text| text.into_owned());
    Imported::End(UpstreamEnd { ending, text, chunk: line.to_owned() })
}
