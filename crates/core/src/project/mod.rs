//! Agent events ⇄ chunks of the AI SDK: what one reader of a turn or task is sent, and the way back for upstreams.

mod assemble;
mod calls;
mod defuse;
mod events;
mod fold;
mod import;
mod partial_json;
mod parts;
mod shape;
mod streamed;
mod tool_part;
mod trace;
mod verbatim;

use bowline_protocol::chunk::ChunkBuilder;
use bowline_protocol::event::names;
use bowline_protocol::{Chunk, ChunkKind, Place, Recorded, Seq};

use events::Facts;
use parts::{Flow, Parts};
use streamed::Streamed;

pub use assemble::Assembler;
pub use calls::{Calls, Owed};
pub use fold::Fold;
pub use import::{End, Ending, Imported, Importer};
pub use shape::Shape;
pub use trace::{Scribe, TRACE_BYTES_MAX, Trace};

/// Turns the events of one turn or task into chunks, for one reader.
///
/// It is fed every event from the first on, so that its numbers are the same for all readers: what a reader already has
/// is passed ([`Projector::pass_event`]), the rest is handled. Where events are gone, what was open there ([`Shape`]) is
/// as good as they were ([`Projector::resumed`]); if nobody knows that either, it is told so ([`Projector::lose`]).
#[derive(Clone, Debug)]
pub struct Projector {
    message_id: Box<str>,
    stage: Stage,
    numbers: Numbers,
    parts: Parts,
    streamed: Streamed,
    page: Page,
    /// The reader was told that it lacks something, so its texts may have holes.
    bereft: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Before the first event.
    Before,
    /// Events were lost, and the next one must be framed anew.
    Lost,
    Within,
    /// The terminal was written; everything after it is ignored.
    Over,
}

/// What the reader reads with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parser {
    /// One that has no message yet. A notice that stays would make one of its own, so it is given one that passes.
    Fresh,
    /// The one that read what came before.
    Same,
}

/// What the chunks of one event are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    /// All events are known, so every reader counts the same chunks.
    EachChunk,
    /// Some events were lost, so readers may count differently. Only the end of an event is a place.
    WholeEvents,
}

/// The chunks of the event at hand.
#[derive(Clone, Debug, Default)]
struct Page {
    seq: Seq,
    chunks: Vec<Chunk>,
    /// How many of them are the event's own, and not made up for this reader.
    own: u32,
    /// The reader has this many of them.
    has: u32,
    /// At that point, its parser is to be framed.
    framed: bool,
    /// The whole answer is among them.
    told_whole: bool,
}

impl Projector {
    /// A turn of a session: `message_id` names the assistant's message. The first event is its `user.message`, or
    /// whatever else began the run.
    pub fn turn(message_id: &str) -> Projector {
        Projector {
            message_id: message_id.into(),
            stage: Stage::Before,
            numbers: Numbers::EachChunk,
            parts: Parts::default(),
            streamed: Streamed::default(),
            page: Page::default(),
            bereft: false,
        }
    }

    /// The same from the middle on: where this shape was, for a parser that has read everything up to there.
    pub fn resumed(message_id: &str, shape: &Shape) -> Projector {
        Projector {
            stage: Stage::Within,
            parts: Parts::of(shape),
            streamed: Streamed::blind(),
            ..Projector::turn(message_id)
        }
    }

    /// A task with a log of its own: a background operation, or what a producer pushes. There is no message, so the
    /// first event, whatever it is, begins the stream. If that is a `start`, the steps are its upstream's as well.
    pub fn task(message_id: &str) -> Projector {
        // The first event of a turn begins the stream too; a message merely says nothing else.
        Projector::turn(message_id)
    }

    /// Adds the chunks of the next event to `out`.
    pub fn handle_event(&mut self, event: &Recorded, out: &mut Vec<Chunk>) {
        self.page = Page { chunks: std::mem::take(&mut self.page.chunks), seq: event.seq, ..Page::default() };
        self.project(event);
        self.number();
        out.append(&mut self.page.chunks);
    }

    /// Takes note of an event whose chunks the reader already has.
    pub fn pass_event(&mut self, event: &Recorded) {
        self.page = Page { seq: event.seq, ..Page::default() };
        self.project(event);
        self.page.chunks.clear();
    }

    /// Takes an event of which the reader has the first `has` chunks, and adds the others to `out`; before them, if its
    /// parser is a fresh one, the framing of that very point.
    pub fn split_event(&mut self, event: &Recorded, has: u32, framed: bool, out: &mut Vec<Chunk>) {
        // Where chunks are not counted, a count means nothing: better some of them twice than one of them never.
        let has = if self.numbers == Numbers::EachChunk { has } else { 0 };
        if has == 0 && framed {
            self.framing(out);
        }
        self.page = Page { seq: event.seq, has, framed, ..Page::default() };
        self.project(event);
        if self.stage == Stage::Over && self.page.own <= self.page.has {
            // The reader stands behind the terminal: nothing follows, and nothing is framed.
            self.page.chunks.clear();
        }
        self.number();
        out.append(&mut self.page.chunks);
    }

    /// Adds what a fresh parser needs to follow from here: the message, its step, and what is open in it. From now on
    /// the reader is that parser.
    pub fn framing(&mut self, out: &mut Vec<Chunk>) {
        match self.stage {
            // The next event brings its own, or nothing follows.
            Stage::Before | Stage::Lost | Stage::Over => {}
            Stage::Within => {
                out.push(self.parts.message_start(&self.message_id));
                out.append(&mut self.parts.framing());
            }
        }
    }

    /// Events were lost here, and the reader is told so before anything else; then its parser is framed anew. With the
    /// shape at the first event that is left, what is open there keeps its name, and numbers stay those of all readers.
    pub fn gap(&mut self, parser: Parser, lost: u64, first_retained: Seq, shape: Option<&Shape>, out: &mut Vec<Chunk>) {
        self.lose();
        if self.stage != Stage::Lost {
            return;
        }
        out.push(Chunk::gap(lost, first_retained, parser == Parser::Fresh));
        let Some(shape) = shape else {
            self.page = Page::default();
            self.begin(None);
            self.page.chunks.iter_mut().for_each(|chunk| chunk.at = None);
            return out.append(&mut self.page.chunks);
        };
        out.extend(self.parts.lose().map(|part| end(part.flow, &part.id)));
        *self = Projector { bereft: true, ..Projector::resumed(&self.message_id, shape) };
        self.framing(out);
    }

    /// Events were lost here. The next one will be framed anew, and nothing refers to what was open.
    pub fn lose(&mut self) {
        self.numbers = Numbers::WholeEvents;
        self.streamed = Streamed::default();
        self.bereft = true;
        if self.stage != Stage::Over {
            self.stage = Stage::Lost;
        }
    }

    /// What is open now.
    pub(super) fn shape(&self) -> Shape {
        self.parts.shape()
    }

    /// Whether something was opened or closed since this was last asked.
    pub(super) fn take_changed(&mut self) -> bool {
        self.parts.take_changed()
    }

    /// How many bytes of a whole answer, a JSON string, were streamed; `None` inside if that was something else, and
    /// outside if it cannot be known.
    pub(super) fn streamed_of(&self, literal: &str) -> Option<Option<usize>> {
        let known = !self.streamed.is_blind() && self.numbers == Numbers::EachChunk;
        known.then(|| self.streamed.count(events::body_of(literal)))
    }

    /// Whether the terminal was written.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    fn project(&mut self, event: &Recorded) {
        // What we logged ourselves can be read; anything else says nothing to a chat.
        let Some(view) = event.view() else { return };
        if self.stage == Stage::Over || view.event == names::SESSION_END {
            return;
        }
        if self.stage != Stage::Within {
            let start = verbatim::message_start(&view);
            let is_start = start.is_some();
            self.begin(start);
            if is_start {
                return;
            }
        }
        // A message begins the stream and says nothing else; a second one belongs to the next turn.
        if view.event != names::USER_MESSAGE {
            self.handle_view(&view, &Facts::of(view.metadata));
        }
    }

    /// Begins the message: as its upstream did, or else with a start and a step of ours.
    fn begin(&mut self, start: Option<Chunk>) {
        if self.stage == Stage::Lost {
            for part in self.parts.lose() {
                self.own(end(part.flow, &part.id));
            }
        }
        self.stage = Stage::Within;
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
        self.page.own += 1;
        chunk.at = Some(Place { seq: self.page.seq, part: Some(self.page.own) });
        if self.page.own > self.page.has {
            self.page.chunks.push(chunk);
        } else if self.page.own == self.page.has && self.page.framed {
            let mut framing = Vec::new();
            self.framing(&mut framing);
            self.page.chunks.append(&mut framing);
        }
    }

    /// A chunk for this reader alone.
    fn made_up(&mut self, chunk: Chunk) {
        if self.page.own >= self.page.has {
            self.page.chunks.push(chunk);
        }
    }

    /// Gives the chunks of this event their final places.
    fn number(&mut self) {
        let whole = Some(Place { seq: self.page.seq, part: None });
        match self.numbers {
            Numbers::EachChunk if self.page.own > 1 => {}
            Numbers::EachChunk => {
                self.page.chunks.iter_mut().filter(|chunk| chunk.at.is_some()).for_each(|chunk| chunk.at = whole);
            }
            Numbers::WholeEvents => {
                let last = self.page.chunks.iter().rposition(|chunk| chunk.at.is_some());
                for (index, chunk) in self.page.chunks.iter_mut().enumerate() {
                    chunk.at = whole.filter(|_| Some(index) == last);
                }
            }
        }
    }
}

/// The chunk that ends a part.
fn end(flow: Flow, id: &str) -> Chunk {
    ChunkBuilder::new(flow.end().as_str(), id.len()).text("id", id).done()
}
