//! Readers that share a projection get what they would get with one of their own, whenever they come and however slow they are.

use bowline_core::dialect::ai_sdk::Projector;
use bowline_core::dialect::{Live, SharedOutputs};
use bowline_core::watch::{Output, Watch, WatchStart};
use bowline_protocol::{Chunk, Cursor, Epoch, Extent, Seq, StreamCursor};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::support::noise::noise;
use crate::support::readers::{MESSAGE_ID, shown, uncut};
use crate::support::story::story;
use crate::support::written::{Written, number, write, write_plainly};

/// Little enough that a reader which sits out a few events is left behind.
const LIVE_BYTES_MAX: usize = 2000;

#[derive(Clone, Debug)]
enum Step {
    Append(Index),
    /// A reader takes all that is there.
    Read(Index),
    /// A reader comes: fresh, behind a chunk, framed there, or behind so many chunks.
    Come(u8, Index),
    /// The log is trimmed, at most up to the slowest reader.
    Trim(Index),
    NewEpoch,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => any::<Index>().prop_map(Step::Append),
        8 => any::<Index>().prop_map(Step::Read),
        4 => (0..4u8, any::<Index>()).prop_map(|(kind, at)| Step::Come(kind, at)),
        1 => any::<Index>().prop_map(Step::Trim),
        1 => Just(Step::NewEpoch),
    ];
    prop::collection::vec(step, 1..60)
}

struct World {
    written: Written,
    retained: usize,
    now: usize,
    epochs: u64,
    live: Option<Live<Projector, ()>>,
    readers: usize,
}

impl World {
    fn epoch(&self) -> Epoch {
        Epoch::from_random(self.epochs)
    }

    fn extent(&self) -> Extent {
        let (first, next) = (number(self.retained), number(self.now));
        Extent { epoch: self.epoch(), epoch_first: number(0), first, next }
    }

    fn watch(&self, start: WatchStart) -> Watch<Projector> {
        let index = self.now.checked_sub(1).map(|last| &self.written.indexes[last]);
        Watch::new(MESSAGE_ID, number(0), &self.extent(), start, false, index)
    }

    /// Reads on; false if there is nothing to read.
    fn read(&self, watch: &mut Watch<Projector>) -> bool {
        let index = self.now.checked_sub(1).map(|last| &self.written.indexes[last]);
        let Some((from, _)) = watch.poll_read() else { return false };
        match from.get() as usize - 1 {
            from if from < self.retained => watch.handle_gap(number(self.retained), index),
            // Read in pieces, so that readers stand at different places.
            from if from < self.now => watch.handle_events(&self.written.events[from..self.now.min(from + 3)]),
            _ => return false,
        }
        true
    }
}

/// A reader as the server drives it, alone or together with the others.
struct Reader {
    own: Option<Watch<Projector>>,
    live: Option<Seq>,
    shares: bool,
    over: bool,
    seen: Vec<Chunk>,
}

impl Reader {
    fn new(world: &World, start: WatchStart, shares: bool) -> Reader {
        Reader { own: Some(world.watch(start)), live: None, shares, over: false, seen: Vec::new() }
    }

    fn position(&self) -> Seq {
        self.own.as_ref().map_or_else(|| self.live.unwrap().prev(), Watch::position)
    }

    fn after(&self, epoch: Epoch) -> WatchStart {
        if self.position() == Seq::ZERO {
            return WatchStart::Fresh;
        }
        let cursor = Cursor { epoch: Some(epoch), seq: self.position() };
        WatchStart::After(StreamCursor { cursor, part: None })
    }

    fn leave(&mut self, world: &mut World) {
        if let (Some(at), Some(live)) = (self.live.take(), &mut world.live) {
            live.leave(at);
            world.readers -= 1;
        }
    }

    /// Takes all that is there.
    fn drain(&mut self, world: &mut World) {
        while !self.over {
            if let Some(at) = self.live {
                let now = world.now;
                let live = world.live.as_mut().unwrap();
                match live.read(at) {
                    SharedOutputs::Outputs { batch, from } => {
                        self.seen.extend_from_slice(&batch.outputs[from..]);
                        self.live = Some(batch.next());
                    }
                    SharedOutputs::Over => self.over = true,
                    SharedOutputs::AtEnd if at >= number(now) => return,
                    SharedOutputs::AtEnd => {
                        let from = at.get() as usize - 1;
                        live.handle_events(&world.written.events[from..now.min(from + 2)], LIVE_BYTES_MAX);
                    }
                    SharedOutputs::LeftBehind => {
                        let start = self.after(world.epoch());
                        self.leave(world);
                        self.own = Some(world.watch(start));
                    }
                }
                continue;
            }
            let watch = self.own.as_mut().unwrap();
            match watch.poll_output() {
                Some(Output::Outputs(chunks)) => self.seen.extend(chunks),
                Some(Output::Over) => self.over = true,
                None if world.read(watch) => {}
                None if self.shares && watch.is_shareable() => {
                    let at = watch.position().next();
                    if world.readers > 0 && world.live.as_ref().is_some_and(|live| !live.can_follow(at)) {
                        return;
                    }
                    let projection = self.own.take().unwrap().into_projection();
                    match &mut world.live {
                        Some(live) if world.readers > 0 => live.join(projection, at),
                        _ => world.live = Some(Live::new(projection, at)),
                    }
                    (self.live, world.readers) = (Some(at), world.readers + 1);
                }
                None => return,
            }
        }
    }
}

fn start(kind: u8, at: Index, chunks: &[Chunk], world: &World) -> WatchStart {
    let there = |chunk: &&Chunk| chunk.at.is_some_and(|place| place.seq < number(world.now));
    let places: Vec<_> = chunks.iter().filter(there).filter_map(|chunk| chunk.at).collect();
    if kind == 0 || places.is_empty() {
        return WatchStart::Fresh;
    }
    if kind == 3 {
        return WatchStart::Index(at.index(places.len()) as u64);
    }
    let place = at.get(&places);
    let cursor = Cursor { epoch: Some(world.epoch()), seq: place.seq };
    let cursor = StreamCursor { cursor, part: place.part };
    if kind == 1 { WatchStart::After(cursor) } else { WatchStart::Framed(cursor) }
}

fn alike(written: Written, steps: &[Step], may_trim: bool) -> Result<(), TestCaseError> {
    let chunks = uncut(&written.events);
    let mut world = World { written, retained: 0, now: 1, epochs: 0, live: None, readers: 0 };
    let mut pairs: Vec<(Reader, Reader)> = Vec::new();
    for step in steps {
        match step {
            Step::Append(count) => {
                let left = world.written.events.len() - world.now;
                world.now += count.index(left + 1).min(8);
            }
            Step::Come(kind, at) => {
                let start = start(*kind, *at, &chunks, &world);
                pairs.push((Reader::new(&world, start.clone(), true), Reader::new(&world, start, false)));
            }
            Step::Read(reader) if !pairs.is_empty() => {
                let at = reader.index(pairs.len());
                let (sharing, alone) = &mut pairs[at];
                sharing.drain(&mut world);
                alone.drain(&mut world);
            }
            Step::Trim(at) if may_trim => {
                let slowest = pairs.iter().filter(|(_, alone)| !alone.over).map(|(_, alone)| alone.position()).min();
                let most = slowest.map_or(world.now - 1, |seq| seq.get() as usize);
                world.retained = world.retained.max(at.index(most.min(world.now - 1) + 1));
            }
            Step::NewEpoch if may_trim => {
                let before = world.epoch();
                for (sharing, alone) in &mut pairs {
                    sharing.drain(&mut world);
                    alone.drain(&mut world);
                    sharing.leave(&mut world);
                }
                (world.epochs, world.live) = (world.epochs + 1, None);
                for (sharing, alone) in &mut pairs {
                    let start = alone.after(before.clone());
                    (sharing.own, alone.own) = (Some(world.watch(start.clone())), Some(world.watch(start)));
                }
            }
            Step::Read(_) | Step::Trim(_) | Step::NewEpoch => {}
        }
    }
    world.now = world.written.events.len();
    for (sharing, alone) in &mut pairs {
        sharing.drain(&mut world);
        alone.drain(&mut world);
        prop_assert_eq!(shown(&sharing.seen), shown(&alone.seen));
        prop_assert_eq!(sharing.over, alone.over);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn who_shares_gets_what_one_alone_gets(story in story(), steps in steps()) {
        alike(write(&story.log), &steps, true)?;
    }

    /// Here an answer may need all that was streamed before, which only a projection from the first event on knows.
    #[test]
    fn who_shares_what_is_not_known_reads_it_again(log in noise(), steps in steps()) {
        alike(write_plainly(&log), &steps, false)?;
    }
}
