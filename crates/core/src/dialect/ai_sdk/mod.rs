//! Agent events ⇄ chunks of the AI SDK: what one reader of a turn or task is sent, and the way back for upstreams.

mod announced;
mod assemble;
mod calls;
mod events;
mod fold;
mod import;
mod kept;
mod open_parts;
mod partial_json;
mod parts;
mod sanitize;
mod streamed;
mod tool_part;
mod verbatim;

use bowline_protocol::chunk::{ChunkBuilder, DONE};
use bowline_protocol::event::names;
use bowline_protocol::frame::server::TaskChunk;
use bowline_protocol::{Chunk, ChunkKind, ChunkPosition, Epoch, EventView, Recorded, Seq, json};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ClientParser, FrameProjection, FrameTask, OpenParts, Projection, ProjectionIndexer};
use events::EventFacts;
use parts::{Parts, TextKind};
use streamed::Streamed;

pub use announced::AnnouncedOperation;
pub use assemble::Assembler;
pub use calls::{OperationCalls, OwedChunk, answer_chunk};
pub use fold::DeltaFold;
pub use import::{Imported, Importer, UpstreamEnd, UpstreamEnding};
pub use open_parts::OpenPart;

/// Turns the events of one turn or task into chunks, for one reader.
///
/// The first event, whatever it is, begins the stream: a `user.message` says nothing else, and after an upstream's `start`
/// the steps are the upstream's as well.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Projector {
    message_id: Box<str>,
    stage: ChunkStage,
    numbers: Numbers,
    parts: Parts,
    streamed: Streamed,
    /// Nothing of it outlives its event.
    #[serde(skip)]
    output: EventOutput,
    /// The reader got a gap notice, so its texts may have holes.
    has_gap: bool,
    /// The last event would have become other chunks, had everything before it been seen.
    inexact: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ChunkStage {
    /// Before the first event.
    Before,
    /// Events were lost, and the next one must be framed anew.
    Lost,
    Within,
    /// The terminal was written; everything after it is ignored.
    Over,
}

/// What the chunks of one event are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Numbers {
    /// All events are known, so every reader counts the same chunks.
    EachChunk,
    /// Some events were lost, so readers may count differently. Only the end of an event is a place.
    WholeEvents,
}

/// The chunks of the event at hand.
#[derive(Clone, Debug, Default)]
struct EventOutput {
    seq: Seq,
    chunks: Vec<Chunk>,
    /// How many of them are the event's own, and not made up for this reader.
    own: u32,
    /// The reader has this many of them.
    has: u32,
    /// At that point, its parser is to be framed.
    framed: bool,
    /// The whole answer is among them.
    sent_whole: bool,
}

impl Projection for Projector {
    type Output = Chunk;
    type Mark = OpenPart;
    type Fold = DeltaFold;

    // The first dialect; its key has no ending of its own.
    const INDEX: Option<&'static str> = Some("");
    const SSE_END: &'static [u8] = DONE;

    /// `name` is the id of the assistant's message.
    fn new(name: &str) -> Projector {
        Projector {
            message_id: name.into(),
            stage: ChunkStage::Before,
            numbers: Numbers::EachChunk,
            parts: Parts::default(),
            streamed: Streamed::default(),
            output: EventOutput::default(),
            has_gap: false,
            inexact: false,
        }
    }

    fn resumed(name: &str, open: &OpenParts<OpenPart>) -> Projector {
        Projector {
            stage: ChunkStage::Within,
            parts: Parts::of(open),
            streamed: Streamed::blind(),
            ..Projector::new(name)
        }
    }

    fn can_frame(open: &OpenParts<OpenPart>) -> bool {
        open.0.values().all(OpenPart::is_whole)
    }

    fn handle_event(&mut self, event: &Recorded, out: &mut Vec<Chunk>) {
        self.output =
            EventOutput { chunks: std::mem::take(&mut self.output.chunks), seq: event.seq, ..EventOutput::default() };
        self.project(event);
        self.number();
        out.append(&mut self.output.chunks);
    }

    fn pass_event(&mut self, event: &Recorded) {
        self.output = EventOutput { seq: event.seq, ..EventOutput::default() };
        self.project(event);
        self.output.chunks.clear();
    }

    fn pass_view(&mut self, seq: Seq, view: &EventView<'_>) {
        self.inexact = false;
        self.output = EventOutput { chunks: std::mem::take(&mut self.output.chunks), seq, ..EventOutput::default() };
        self.project_view(view);
        self.output.chunks.clear();
    }

    fn split_event(&mut self, event: &Recorded, has: u32, framed: bool, out: &mut Vec<Chunk>) {
        // Where chunks are not counted, a count means nothing: better some of them twice than one of them never.
        let has = if self.numbers == Numbers::EachChunk { has } else { 0 };
        if has == 0 && framed {
            self.framing(out);
        }
        self.output = EventOutput { seq: event.seq, has, framed, ..EventOutput::default() };
        self.project(event);
        if self.stage == ChunkStage::Over && self.output.own <= self.output.has {
            // The reader stands behind the terminal: nothing follows, and nothing is framed.
            self.output.chunks.clear();
        }
        self.number();
        out.append(&mut self.output.chunks);
    }

    /// The message, its step, and what is open in it.
    fn framing(&mut self, out: &mut Vec<Chunk>) {
        match self.stage {
            // The next event brings its own, or nothing follows.
            ChunkStage::Before | ChunkStage::Lost | ChunkStage::Over => {}
            ChunkStage::Within => {
                out.push(self.parts.message_start(&self.message_id));
                out.append(&mut self.parts.framing());
            }
        }
    }

    fn gap_notice(lost: u64, first_retained: Seq, parser: ClientParser) -> Chunk {
        Chunk::gap(lost, first_retained, parser == ClientParser::Fresh)
    }

    /// With the open parts, what is open keeps its name, and numbers stay those of all readers.
    fn gap(
        &mut self,
        parser: ClientParser,
        lost: u64,
        first_retained: Seq,
        open: Option<&OpenParts<OpenPart>>,
        out: &mut Vec<Chunk>,
    ) {
        self.lose();
        if self.stage != ChunkStage::Lost {
            return;
        }
        out.push(Projector::gap_notice(lost, first_retained, parser));
        let Some(open) = open else {
            self.output = EventOutput::default();
            self.begin(None);
            self.output.chunks.iter_mut().for_each(|chunk| chunk.at = None);
            return out.append(&mut self.output.chunks);
        };
        out.extend(self.parts.lose().map(|part| end(part.flow, &part.id)));
        *self = Projector { has_gap: true, ..Projector::resumed(&self.message_id, open) };
        self.framing(out);
    }

    fn lose(&mut self) {
        self.numbers = Numbers::WholeEvents;
        self.streamed = Streamed::default();
        self.has_gap = true;
        if self.stage != ChunkStage::Over {
            self.stage = ChunkStage::Lost;
        }
    }

    fn is_over(&self) -> bool {
        self.stage == ChunkStage::Over
    }

    fn is_inexact(&self) -> bool {
        self.inexact
    }

    fn is_shareable(&self) -> bool {
        let follows = matches!(self.stage, ChunkStage::Before | ChunkStage::Within);
        // A reader that saw everything would lose that if it went on with a projection that did not.
        let saw_all = !self.has_gap && !self.streamed.is_blind();
        follows && saw_all && self.numbers == Numbers::EachChunk && self.parts.are_known()
    }

    fn open_parts(&self) -> OpenParts<OpenPart> {
        self.parts.open_parts()
    }

    fn take_changed(&mut self) -> bool {
        self.parts.take_changed()
    }

    fn dropped() -> Chunk {
        Chunk::bare(ChunkKind::Abort)
    }

    fn encode_sse(chunk: &Chunk, epoch: &Epoch, out: &mut Vec<u8>) {
        chunk.encode(epoch, out);
    }

    fn len(chunk: &Chunk) -> usize {
        chunk.json.len() + 64
    }
}

impl FrameProjection for Projector {
    fn encode_frame(chunk: &Chunk, task: &FrameTask<'_>, timestamp: &str) -> Bytes {
        let FrameTask { task, session, epoch } = *task;
        TaskChunk { task, session, epoch, chunk }.encode(timestamp)
    }
}

/// The parts of the message that a reader of a whole turn ends up with. `name` and `first` are the turn's own name and its first
/// event; `logged` is what is left of it.
pub fn message_parts(name: &str, first: Seq, logged: &[Recorded]) -> Value {
    let mut projector = Projector::new(name);
    if logged.first().is_none_or(|event| event.seq > first) {
        projector.lose();
    }
    let (mut assembler, mut chunks) = (Assembler::default(), Vec::new());
    for event in logged {
        projector.handle_event(event, &mut chunks);
        chunks.drain(..).for_each(|chunk| assembler.handle_chunk(&chunk));
    }
    Value::Array(assembler.parts())
}

/// Keeps the index of a stream as it is written.
pub type Indexer = ProjectionIndexer<Projector>;

impl Indexer {
    /// How much of this whole answer was streamed before, as the event that brings it should say: so many bytes, or
    /// `false` if that was something else. None if that is not known.
    pub fn streamed(&self, answer: &str) -> Option<Value> {
        let Projector { streamed, numbers, .. } = self.projection();
        let literal = json::raw(answer);
        let known = !streamed.is_blind() && *numbers == Numbers::EachChunk;
        known.then(|| streamed.count(events::body_of(literal.get())).map_or(Value::Bool(false), Value::from))
    }
}

impl Projector {
    fn project(&mut self, event: &Recorded) {
        self.inexact = false;
        // What we logged ourselves can be read; anything else says nothing to a chat.
        if let Some(view) = event.view() {
            self.project_view(&view);
        }
    }

    fn project_view(&mut self, view: &EventView<'_>) {
        if self.stage == ChunkStage::Over || view.event == names::SESSION_END {
            return;
        }
        if self.stage != ChunkStage::Within {
            let start = verbatim::message_start(view);
            let is_start = start.is_some();
            self.begin(start);
            if is_start {
                return;
            }
        }
        // A message begins the stream and says nothing else; a second one belongs to the next turn.
        if view.event != names::USER_MESSAGE {
            self.handle_view(view, &EventFacts::of(view.metadata));
        }
    }

    /// Begins the message: as its upstream did, or else with a start and a step of ours.
    fn begin(&mut self, start: Option<Chunk>) {
        if self.stage == ChunkStage::Lost {
            for part in self.parts.lose() {
                self.own(end(part.flow, &part.id));
            }
        }
        self.stage = ChunkStage::Within;
        if let Some(start) = start {
            self.parts.begin_message(start.json);
        }
        self.own(self.parts.message_start(&self.message_id));
        if self.parts.start.is_none() {
            self.parts.begin_step();
            self.own(Chunk::bare(ChunkKind::StartStep));
        }
    }

    /// A chunk that every reader gets. What it opens or closes is noted before, so that framing behind it is right.
    fn own(&mut self, mut chunk: Chunk) {
        self.output.own += 1;
        chunk.at = Some(ChunkPosition { seq: self.output.seq, part: Some(self.output.own) });
        if self.output.own > self.output.has {
            self.output.chunks.push(chunk);
        } else if self.output.own == self.output.has && self.output.framed {
            let mut framing = Vec::new();
            self.framing(&mut framing);
            self.output.chunks.append(&mut framing);
        }
    }

    /// A chunk for this reader alone.
    fn made_up(&mut self, chunk: Chunk) {
        if self.output.own >= self.output.has {
            self.output.chunks.push(chunk);
        }
    }

    /// Gives the chunks of this event their final places.
    fn number(&mut self) {
        let whole = Some(ChunkPosition { seq: self.output.seq, part: None });
        match self.numbers {
            Numbers::EachChunk if self.output.own > 1 => {}
            Numbers::EachChunk => {
                self.output.chunks.iter_mut().filter(|chunk| chunk.at.is_some()).for_each(|chunk| chunk.at = whole);
            }
            Numbers::WholeEvents => {
                let last = self.output.chunks.iter().rposition(|chunk| chunk.at.is_some());
                for (index, chunk) in self.output.chunks.iter_mut().enumerate() {
                    chunk.at = whole.filter(|_| Some(index) == last);
                }
            }
        }
    }
}

/// The chunk that ends a part.
fn end(flow: TextKind, id: &str) -> Chunk {
    ChunkBuilder::new(flow.end().as_str(), id.len()).text("id", id).done()
}
