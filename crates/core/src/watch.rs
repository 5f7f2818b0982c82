//! One reader of one turn or task: which of its events become chunks for this reader, from where on, and in which form.

use bowline_protocol::{Chunk, Extent, Recorded, Seq, StreamCursor};

use crate::project::{Fold, Parser, Projector, Trace};
use crate::resume::{Resume, Span};

/// The most events asked of the log at once.
const READ_EVENTS_MAX: usize = 512;

/// Where a reader wants to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// With a fresh parser: everything.
    Fresh,
    /// With the parser that has seen everything up to here: exactly what follows.
    After(StreamCursor),
    /// With a fresh parser, from here on: what is open at this point is opened for it first.
    Framed(StreamCursor),
    /// After so many chunks.
    Index(u64),
}

#[derive(Debug)]
pub struct Watch {
    projector: Projector,
    fold: Option<Fold>,
    /// The next event to look at.
    next: Seq,
    /// The number that the log will give next, as far as we know.
    tail: Seq,
    /// Events up to here were there when the reader came; only these are folded.
    replay_to: Seq,
    has: Has,
    /// Chunks seen so far, whether or not the reader got them.
    seen: u64,
    reading: bool,
    out: Vec<Chunk>,
    stage: Stage,
    gap: bool,
    /// What the reader reads with now.
    parser: Parser,
}

/// What the reader already has.
#[derive(Debug)]
enum Has {
    Nothing,
    UpTo { cursor: StreamCursor, framed: bool },
    Chunks(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Replaying,
    Live,
    /// The terminal chunk was handed out.
    Over,
    Done,
}

/// What the driver should do next.
#[derive(Debug)]
pub enum Output {
    Chunks(Vec<Chunk>),
    Read {
        from: Seq,
        events_max: usize,
    },
    /// Nothing follows, ever.
    Over,
}

impl Watch {
    /// A reader of the turn or task whose first event is `first` and whose message is called `message_id`.
    /// Where the beginning of that is gone, its trace says what was open at each event that is left.
    pub fn new(
        message_id: &str,
        first: Seq,
        extent: &Extent,
        start: Start,
        fold: bool,
        trace: Option<&Trace>,
    ) -> Watch {
        let parser = if matches!(start, Start::After(_)) { Parser::Same } else { Parser::Fresh };
        let mut watch = Watch {
            projector: Projector::turn(message_id),
            fold: fold.then(Fold::default),
            next: first,
            tail: extent.next,
            replay_to: extent.last(),
            has: Has::Nothing,
            seen: 0,
            reading: false,
            out: Vec::new(),
            stage: Stage::Replaying,
            gap: false,
            parser,
        };
        let trimmed = first < extent.first;
        match start {
            Start::Fresh => watch.begin_at(parser, first, extent.first, trace),
            Start::Index(index) => {
                // Chunks that are gone cannot be counted, so the reader begins with what is left.
                watch.begin_at(parser, first, extent.first, trace);
                if !trimmed {
                    watch.has = Has::Chunks(index);
                }
            }
            Start::After(cursor) | Start::Framed(cursor) => {
                match Resume::within(Span { first, last: None }, extent, &cursor) {
                    Resume::OtherEpoch { first: from, lost } => watch.begin_anew(parser, first, from, lost, trace),
                    _ => watch.come_back(message_id, cursor, first, extent.first, parser, trace),
                }
            }
        }
        watch.settle();
        watch
    }

    /// Starts at the first event, or at the first that is left.
    fn begin_at(&mut self, parser: Parser, first: Seq, retained: Seq, trace: Option<&Trace>) {
        if first < retained {
            self.skip_to(parser, first, retained, trace);
        }
    }

    /// The numbers of this reader's cursor mean nothing here. It is told so, with how much is known to be lost, and gets
    /// everything from the first event that is left.
    fn begin_anew(&mut self, parser: Parser, first: Seq, from: Seq, lost: u64, trace: Option<&Trace>) {
        if first < from {
            return self.skip(parser, lost - first.until(from), first, from, trace);
        }
        self.gap = true;
        self.out.push(Chunk::gap(lost, from, parser == Parser::Fresh));
    }

    fn come_back(
        &mut self,
        message_id: &str,
        cursor: StreamCursor,
        first: Seq,
        retained: Seq,
        parser: Parser,
        trace: Option<&Trace>,
    ) {
        let owed = match cursor.part {
            Some(_) => cursor.cursor.seq,
            None => cursor.cursor.seq.next(),
        };
        // Behind a chunk of the first event it has begun already, and has that chunk.
        let before = owed < first || (owed == first && cursor.part.is_none());
        if before {
            // What follows is everything.
            return self.begin_at(parser, first, retained, trace);
        }
        if owed < retained {
            return self.skip_to(parser, owed, retained, trace);
        }
        if first >= retained {
            self.has = Has::UpTo { cursor, framed: parser == Parser::Fresh };
            return;
        }
        // Nothing that it lacks is gone. What was open at its cursor is known from the trace.
        match trace.map(|trace| (trace.at(owed.prev()), trace.from(retained))) {
            Some((Some(shape), _)) => {
                self.projector = Projector::resumed(message_id, &shape);
                self.next = owed;
                match cursor.part {
                    Some(_) => self.has = Has::UpTo { cursor, framed: parser == Parser::Fresh },
                    None if parser == Parser::Fresh => self.projector.framing(&mut self.out),
                    None => {}
                }
            }
            // So long ago that it is not: then the reader begins where it is, like everybody who comes now.
            Some((None, Some((from, _)))) if from > owed => self.skip_to(parser, owed, retained, trace),
            Some(_) | None => {
                self.projector.lose();
                self.next = retained;
                self.has = Has::UpTo { cursor, framed: true };
            }
        }
    }

    fn skip_to(&mut self, parser: Parser, wanted: Seq, retained: Seq, trace: Option<&Trace>) {
        self.skip(parser, 0, wanted, retained, trace);
    }

    /// Goes on at the first retained event, and tells how many were skipped for that and how many are lost besides.
    fn skip(&mut self, parser: Parser, besides: u64, wanted: Seq, retained: Seq, trace: Option<&Trace>) {
        self.flush();
        self.gap = true;
        let begin = trace.and_then(|trace| trace.from(retained));
        let (from, shape) = begin.map_or((retained, None), |(from, shape)| (from, Some(shape)));
        self.projector.gap(parser, besides + wanted.until(from), from, shape.as_ref(), &mut self.out);
        self.parser = Parser::Same;
        self.next = from;
        self.has = Has::Nothing;
    }

    /// Whether the reader was told of a gap since the last time this was asked.
    pub fn take_gap(&mut self) -> bool {
        std::mem::take(&mut self.gap)
    }

    /// The last event that was looked at, or the one before the first.
    pub fn position(&self) -> Seq {
        self.next.prev()
    }

    /// How many chunks there are up to here, counted from the first.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Whether everything that was there when the reader came has been looked at.
    pub fn is_caught_up(&self) -> bool {
        self.stage != Stage::Replaying
    }

    /// The log has grown to `next` (or may have: wake-ups can repeat).
    pub fn handle_tail(&mut self, next: Seq) {
        self.tail = self.tail.max(next);
    }

    /// The answer to [`Output::Read`]. `first` is where the log begins now, `next` where it ends. If it begins behind what
    /// was asked for, the trace as it is now says what is open there.
    pub fn handle_events(&mut self, events: &[Recorded], first: Seq, next: Seq, trace: Option<&Trace>) {
        self.reading = false;
        self.handle_tail(next);
        if first > self.next {
            self.skip_to(self.parser, self.next, first, trace);
        }
        for event in events {
            // Left out with what was lost: what was open there is not known.
            if event.seq < self.next {
                continue;
            }
            if self.stage == Stage::Over {
                return;
            }
            // The replay ends between two events, so that nothing live is held back to be merged.
            if self.stage == Stage::Replaying && event.seq > self.replay_to {
                self.go_live();
            }
            self.next = event.seq.next();
            self.handle_event(event);
            if self.projector.is_over() {
                self.flush();
                self.stage = Stage::Over;
            }
        }
        self.settle();
    }

    /// Reading failed; it will be asked again.
    pub fn handle_read_failed(&mut self) {
        self.reading = false;
    }

    fn handle_event(&mut self, event: &Recorded) {
        let mut chunks = Vec::new();
        match &self.has {
            Has::Nothing => self.projector.handle_event(event, &mut chunks),
            Has::Chunks(count) => {
                let count = *count;
                self.projector.handle_event(event, &mut chunks);
                let seen = self.seen;
                self.seen += chunks.len() as u64;
                let skip = count.saturating_sub(seen).min(chunks.len() as u64) as usize;
                chunks.drain(..skip);
                if self.seen >= count {
                    self.has = Has::Nothing;
                }
                return chunks.into_iter().for_each(|chunk| self.give(chunk));
            }
            Has::UpTo { cursor, framed } => {
                let (at, framed) = (cursor.cursor.seq, *framed);
                match cursor.part {
                    Some(part) if event.seq == at => {
                        self.projector.split_event(event, part, framed, &mut chunks);
                        self.has = Has::Nothing;
                    }
                    _ => {
                        self.projector.pass_event(event);
                        if event.seq >= at {
                            self.has = Has::Nothing;
                            if framed {
                                self.projector.framing(&mut chunks);
                            }
                        }
                    }
                }
            }
        }
        self.seen += chunks.len() as u64;
        chunks.into_iter().for_each(|chunk| self.give(chunk));
    }

    fn give(&mut self, chunk: Chunk) {
        self.parser = Parser::Same;
        match &mut self.fold {
            Some(fold) => fold.push(chunk, &mut self.out),
            None => self.out.push(chunk),
        }
    }

    fn flush(&mut self) {
        if let Some(fold) = &mut self.fold {
            fold.flush(&mut self.out);
        }
    }

    /// From here on chunks come as they are.
    fn go_live(&mut self) {
        self.flush();
        self.fold = None;
        self.stage = Stage::Live;
    }

    fn settle(&mut self) {
        if self.stage == Stage::Replaying && self.next > self.replay_to {
            self.go_live();
        }
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        if !self.out.is_empty() {
            return Some(Output::Chunks(std::mem::take(&mut self.out)));
        }
        match self.stage {
            Stage::Done => return None,
            Stage::Over => {
                self.stage = Stage::Done;
                return Some(Output::Over);
            }
            Stage::Replaying | Stage::Live if self.reading || self.next >= self.tail => return None,
            Stage::Replaying | Stage::Live => {}
        }
        self.reading = true;
        Some(Output::Read { from: self.next, events_max: READ_EVENTS_MAX })
    }

    /// Takes back chunks that were looked at and not sent.
    pub fn put_back(&mut self, chunks: Vec<Chunk>) {
        self.out.splice(..0, chunks);
    }

    /// Whether there is something to do without waiting.
    pub fn is_ready(&self) -> bool {
        !self.out.is_empty()
            || self.stage == Stage::Over
            || (self.stage != Stage::Done && !self.reading && self.next < self.tail)
    }
}
