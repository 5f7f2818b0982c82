//! One reader of one turn or task: which of its events become outputs for this reader, from where on, and in which form.

use bowline_mutant::mutant;
use bowline_protocol::{Extent, Recorded, Seq, StreamCursor};

use crate::dialect::{ClientParser, Fold as _, Projection, ProjectionIndex};
use crate::resume::{Resume, Span};

/// The most events asked of the log at once.
const READ_EVENTS_MAX: usize = 512;

/// Where a reader wants to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchStart {
    /// With a fresh parser: everything.
    Fresh,
    /// With the parser that has seen everything up to here: exactly what follows.
    After(StreamCursor),
    /// With a fresh parser, from here on: what is open at this point is opened for it first.
    Framed(StreamCursor),
    /// After so many outputs.
    Index(u64),
}

#[derive(Debug)]
pub struct Watch<P: Projection> {
    /// What the reader knows the turn or task as.
    name: Box<str>,
    /// Its first event.
    first: Seq,
    projection: P,
    fold: Option<P::Fold>,
    /// The next event to look at.
    next: Seq,
    /// Events up to here were there when the reader came; only these are folded.
    replay_to: Seq,
    has: Has,
    /// What the reader had when it began in the middle by the index, although the beginning is retained.
    shortcut: Option<Has>,
    /// The reader has the outputs of the events before this one.
    silent_until: Seq,
    /// While the beginning is read again: the projection that began in the middle, with what it made of the event that
    /// needed more. If the beginning goes meanwhile, the reader goes on with that.
    fallback: Option<(P, Vec<P::Output>)>,
    /// Outputs seen so far, whether or not the reader got them.
    seen: u64,
    out: Vec<P::Output>,
    stage: WatchStage,
    gap: bool,
    /// What the reader reads with now.
    parser: ClientParser,
}

/// What the reader already has.
#[derive(Clone, Debug)]
enum Has {
    Nothing,
    UpTo { cursor: StreamCursor, framed: bool },
    Outputs(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchStage {
    Replaying,
    Live,
    /// The terminal output was handed out.
    Over,
    Done,
}

/// What the driver should do next.
#[derive(Debug)]
pub enum Output<O> {
    Outputs(Vec<O>),
    /// Nothing follows, ever.
    Over,
}

/// The first event of which a reader with this cursor lacks something.
fn owed(cursor: &StreamCursor) -> Seq {
    match cursor.part {
        Some(_) => cursor.cursor.seq,
        None if mutant("stream-cursor-one-ahead") => cursor.cursor.seq.next().next(),
        None => cursor.cursor.seq.next(),
    }
}

type WatchIndex<P> = ProjectionIndex<<P as Projection>::Mark>;

impl<P: Projection> Watch<P> {
    /// A reader of the turn or task whose first event is `first`, and which the reader knows as `name`. The index says what
    /// was open at its events, so that a reader can begin in the middle.
    pub fn new(
        name: &str,
        first: Seq,
        extent: &Extent,
        start: WatchStart,
        fold: bool,
        index: Option<&WatchIndex<P>>,
    ) -> Watch<P> {
        let parser = if matches!(start, WatchStart::After(_)) { ClientParser::Same } else { ClientParser::Fresh };
        let mut watch = Watch {
            name: name.into(),
            first,
            projection: P::new(name),
            fold: fold.then(P::Fold::default),
            next: first,
            replay_to: extent.last(),
            has: Has::Nothing,
            shortcut: None,
            silent_until: Seq::ZERO,
            fallback: None,
            seen: 0,
            out: Vec::new(),
            stage: WatchStage::Replaying,
            gap: false,
            parser,
        };
        match start {
            WatchStart::Fresh => watch.begin_at(extent.first, index),
            WatchStart::Index(count) => {
                // Outputs that are gone cannot be counted, so the reader begins with what is left.
                watch.begin_at(extent.first, index);
                if first >= extent.first {
                    watch.has = Has::Outputs(count);
                }
            }
            WatchStart::After(cursor) | WatchStart::Framed(cursor) => {
                match Resume::within(Span { first, last: None }, extent, &cursor) {
                    Resume::OtherEpoch { first: from, lost } => watch.begin_anew(from, lost, index),
                    _ => watch.come_back(cursor, extent.first, index),
                }
            }
        }
        watch.settle();
        watch
    }

    /// Starts at the first event, or at the first that is left.
    fn begin_at(&mut self, retained: Seq, index: Option<&WatchIndex<P>>) {
        if self.first < retained {
            self.skip(0, self.first, retained, index);
        }
    }

    /// The numbers of this reader's cursor mean nothing here. It gets a notice with how much is known to be lost, and
    /// everything from the first event that is left.
    fn begin_anew(&mut self, from: Seq, lost: u64, index: Option<&WatchIndex<P>>) {
        if self.first < from {
            return self.skip(lost - self.first.until(from), self.first, from, index);
        }
        self.gap = true;
        self.out.push(P::gap_notice(lost, from, self.parser));
    }

    fn come_back(&mut self, cursor: StreamCursor, retained: Seq, index: Option<&WatchIndex<P>>) {
        let owed = owed(&cursor);
        let first = self.first;
        // Behind an output of the first event it has begun already, and has that output.
        let before = owed < first || (owed == first && cursor.part.is_none());
        if before {
            // What follows is everything.
            return self.begin_at(retained, index);
        }
        if owed < retained {
            return self.skip(0, owed, retained, index);
        }
        let framed = self.parser == ClientParser::Fresh;
        let is_whole = first >= retained;
        let has = Has::UpTo { cursor: cursor.clone(), framed };
        // Nothing that it lacks is gone. What was open before its cursor is known from the index. The event at the cursor is
        // passed once more if it is there, because it may have been the last.
        let open_at = |at: Seq| Some((at, index?.at(at.prev())?));
        let seq = cursor.cursor.seq;
        match (seq >= retained).then(|| open_at(seq)).flatten().or_else(|| open_at(owed)) {
            Some((at, open)) if !is_whole || !framed || P::can_frame(&open) => {
                self.projection = P::resumed(&self.name, &open);
                self.next = at;
                self.shortcut = is_whole.then(|| has.clone());
                if at <= seq {
                    self.has = has;
                } else if framed {
                    self.projection.framing(&mut self.out);
                    self.parser = ClientParser::Same;
                }
            }
            _ if is_whole => self.has = has,
            // So long ago that it is not: then the reader begins where it is, like all who come now.
            _ if index.and_then(|index| index.from(retained)).is_some_and(|(from, _)| from > owed) => {
                self.skip(0, owed, retained, index);
            }
            _ => {
                self.projection.lose();
                self.next = retained;
                self.has = Has::UpTo { cursor, framed: true };
            }
        }
    }

    /// Goes on at the first retained event, and tells how many were skipped for that and how many are lost besides.
    fn skip(&mut self, besides: u64, wanted: Seq, retained: Seq, index: Option<&WatchIndex<P>>) {
        self.flush();
        self.gap = true;
        if mutant("tell-no-gap-in-a-stream") {
            self.next = retained;
            return;
        }
        let begin = index.and_then(|index| index.from(retained));
        let (from, open) = begin.map_or((retained, None), |(from, open)| (from, Some(open)));
        self.projection.gap(self.parser, besides + wanted.until(from), from, open.as_ref(), &mut self.out);
        self.parser = ClientParser::Same;
        self.next = from;
        (self.has, self.shortcut) = (Has::Nothing, None);
    }

    /// The projection began in the middle, and it turns out that an event needs what came before: it is made again from the
    /// first event on, in silence up to this one.
    fn begin_again(&mut self, at: Seq, has: Has, outputs: Vec<P::Output>) {
        let resumed = std::mem::replace(&mut self.projection, P::new(&self.name));
        self.fallback = Some((resumed, outputs));
        (self.next, self.silent_until, self.has) = (self.first, at, has);
    }

    /// The beginning was trimmed while it was read again, so the reader gets what it would have got had it been gone before.
    fn give_up_on_beginning(&mut self) {
        let Some((projection, outputs)) = self.fallback.take() else { return };
        self.projection = projection;
        (self.next, self.has) = (self.silent_until.next(), Has::Nothing);
        self.silent_until = Seq::ZERO;
        self.seen += outputs.len() as u64;
        outputs.into_iter().for_each(|output| self.give(output));
        // They may be those of the terminal event.
        self.end_if_over();
    }

    /// Events were trimmed before they were read. What the reader has already is not missed.
    fn overtaken(&mut self, first: Seq, index: Option<&WatchIndex<P>>) {
        match std::mem::replace(&mut self.has, Has::Nothing) {
            Has::UpTo { cursor, .. } if first <= owed(&cursor) => self.come_back(cursor, first, index),
            Has::UpTo { cursor, .. } => self.skip(0, self.next.max(owed(&cursor)), first, index),
            Has::Nothing | Has::Outputs(_) => self.skip(0, self.next, first, index),
        }
    }

    /// Whether a gap was reported to the reader since this was last asked.
    pub fn take_gap(&mut self) -> bool {
        std::mem::take(&mut self.gap)
    }

    /// The last event that was looked at, or the one before the first.
    pub fn position(&self) -> Seq {
        self.next.prev()
    }

    /// How many outputs there are up to here, counted from the first.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Whether everything that was there when the reader came has been looked at.
    pub fn is_caught_up(&self) -> bool {
        self.stage != WatchStage::Replaying
    }

    /// What to read once there is no output left: from which event on, and how many at most. None if nothing follows, ever.
    pub fn poll_read(&self) -> Option<(Seq, usize)> {
        matches!(self.stage, WatchStage::Replaying | WatchStage::Live).then_some((self.next, READ_EVENTS_MAX))
    }

    /// What was to be read is no longer retained; the log begins with `first` now. The index as it is now says what is open
    /// there.
    pub fn handle_gap(&mut self, first: Seq, index: Option<&WatchIndex<P>>) {
        if first > self.next && self.next < self.silent_until {
            self.give_up_on_beginning();
        }
        if first > self.next && self.stage != WatchStage::Over {
            self.overtaken(first, index);
        }
        self.settle();
    }

    /// Takes what was read.
    pub fn handle_events(&mut self, events: &[Recorded]) {
        for event in events {
            // Left out with what was lost: what was open there is not known.
            if event.seq < self.next {
                continue;
            }
            if self.stage == WatchStage::Over {
                return;
            }
            // The replay ends between two events, so that nothing live is held back to be merged.
            if self.stage == WatchStage::Replaying && event.seq > self.replay_to {
                self.go_live();
            }
            self.next = event.seq.next();
            if !self.handle_event(event) {
                break;
            }
            self.end_if_over();
        }
        self.settle();
    }

    /// Nothing follows the terminal event.
    fn end_if_over(&mut self) {
        if self.projection.is_over() {
            self.flush();
            self.stage = WatchStage::Over;
        }
    }

    /// False if the projection has to begin again before this event can be projected.
    fn handle_event(&mut self, event: &Recorded) -> bool {
        let mut outputs = Vec::new();
        match &self.has {
            Has::Nothing => self.projection.handle_event(event, &mut outputs),
            Has::Outputs(count) => {
                let count = *count;
                self.projection.handle_event(event, &mut outputs);
                let skip = count.saturating_sub(self.seen).min(outputs.len() as u64) as usize;
                self.seen += skip as u64;
                outputs.drain(..skip);
                if self.seen >= count {
                    self.has = Has::Nothing;
                }
            }
            Has::UpTo { cursor, framed } => {
                let (at, framed) = (cursor.cursor.seq, *framed);
                match cursor.part {
                    Some(part) if event.seq == at => {
                        self.projection.split_event(event, part, framed, &mut outputs);
                        self.has = Has::Nothing;
                    }
                    _ => {
                        self.projection.pass_event(event);
                        if event.seq >= at {
                            self.has = Has::Nothing;
                            if framed {
                                self.projection.framing(&mut outputs);
                            }
                        }
                    }
                }
            }
        }
        if self.projection.is_inexact()
            && let Some(has) = self.shortcut.take()
        {
            self.begin_again(event.seq, has, outputs);
            return false;
        }
        if event.seq >= self.silent_until {
            self.fallback = None;
        }
        self.seen += outputs.len() as u64;
        if event.seq >= self.silent_until {
            outputs.into_iter().for_each(|output| self.give(output));
        }
        true
    }

    fn give(&mut self, output: P::Output) {
        self.parser = ClientParser::Same;
        match &mut self.fold {
            Some(fold) => fold.push(output, &mut self.out),
            None => self.out.push(output),
        }
    }

    fn flush(&mut self) {
        if let Some(fold) = &mut self.fold {
            fold.flush(&mut self.out);
        }
    }

    /// From here on outputs come as they are.
    fn go_live(&mut self) {
        self.flush();
        self.fold = None;
        self.stage = WatchStage::Live;
    }

    fn settle(&mut self) {
        if self.stage == WatchStage::Replaying && self.next > self.replay_to {
            self.go_live();
        }
    }

    pub fn poll_output(&mut self) -> Option<Output<P::Output>> {
        if !self.out.is_empty() {
            return Some(Output::Outputs(std::mem::take(&mut self.out)));
        }
        match self.stage {
            WatchStage::Replaying | WatchStage::Live | WatchStage::Done => None,
            WatchStage::Over => {
                self.stage = WatchStage::Done;
                Some(Output::Over)
            }
        }
    }

    /// Takes back outputs that were looked at and not sent.
    pub fn put_back(&mut self, outputs: Vec<P::Output>) {
        self.out.splice(..0, outputs);
    }

    /// Whether this reader has been given everything up to its [`position`](Watch::position), and gets from now on what all
    /// such readers get.
    pub fn is_shareable(&self) -> bool {
        let caught_up = self.stage == WatchStage::Live && self.out.is_empty();
        let alike = matches!(self.has, Has::Nothing) && self.next >= self.silent_until;
        caught_up && alike && self.projection.is_shareable()
    }

    /// The projection at its position.
    pub fn into_projection(self) -> P {
        self.projection
    }
}
