//! A second dialect, for these tests alone: it is one type, and everything that serves readers serves it as it is.

use bowline_core::dialect::{ClientParser, Fold, Live, OpenParts, Projection, ProjectionIndexer, SharedOutputs};
use bowline_core::watch::{Output, Watch, WatchStart};
use bowline_protocol::event::names;
use bowline_protocol::{Cursor, Epoch, Extent, Recorded, Seq, StreamCursor};

use crate::support::log::{Log, event};

/// Events as they are, each a server-sent event.
#[derive(Clone, Debug, Default)]
struct RawEvents {
    over: bool,
}

#[derive(Debug, Default)]
struct AsTheyAre;

impl<O> Fold<O> for AsTheyAre {
    fn push(&mut self, output: O, out: &mut Vec<O>) {
        out.push(output);
    }

    fn flush(&mut self, _: &mut Vec<O>) {}
}

impl Projection for RawEvents {
    type Output = String;
    type Mark = ();
    type Fold = AsTheyAre;

    const INDEX: Option<&'static str> = None;
    const SSE_END: &'static [u8] = b"event: end\ndata:\n\n";

    fn new(_: &str) -> RawEvents {
        RawEvents::default()
    }

    fn resumed(_: &str, _: &OpenParts<()>) -> RawEvents {
        RawEvents::default()
    }

    fn can_frame(_: &OpenParts<()>) -> bool {
        true
    }

    fn handle_event(&mut self, event: &Recorded, out: &mut Vec<String>) {
        self.pass_event(event);
        out.push(format!("id: {}\ndata: {}\n\n", event.seq, String::from_utf8_lossy(&event.bytes)));
    }

    fn pass_event(&mut self, event: &Recorded) {
        self.over = event.view().is_some_and(|view| view.event == names::FINAL_ANSWER);
    }

    fn split_event(&mut self, event: &Recorded, _: u32, _: bool, _: &mut Vec<String>) {
        self.pass_event(event);
    }

    fn framing(&mut self, _: &mut Vec<String>) {}

    fn gap_notice(lost: u64, first_retained: Seq, _: ClientParser) -> String {
        format!("event: gap\ndata: {lost} before {first_retained}\n\n")
    }

    fn gap(&mut self, parser: ClientParser, lost: u64, first: Seq, _: Option<&OpenParts<()>>, out: &mut Vec<String>) {
        out.push(RawEvents::gap_notice(lost, first, parser));
    }

    fn lose(&mut self) {}

    fn is_over(&self) -> bool {
        self.over
    }

    fn is_inexact(&self) -> bool {
        false
    }

    fn is_shareable(&self) -> bool {
        !self.over
    }

    fn open_parts(&self) -> OpenParts<()> {
        OpenParts::default()
    }

    fn take_changed(&mut self) -> bool {
        false
    }

    fn dropped() -> String {
        "event: dropped\ndata:\n\n".to_owned()
    }

    fn encode_sse(output: &String, _: &Epoch, out: &mut Vec<u8>) {
        out.extend_from_slice(output.as_bytes());
    }

    fn len(output: &String) -> usize {
        output.len()
    }
}

fn number(n: u64) -> Seq {
    Seq::new(n).unwrap()
}

fn log() -> Log {
    let mut log = Log::default();
    log.push(&event(names::USER_MESSAGE, "hi"));
    (1..=5).for_each(|n| log.push(&event(names::PARTIAL_ANSWER, format!("word{n} "))));
    log.push(&event(names::FINAL_ANSWER, "done"));
    log
}

fn watched(log: &Log, retained: u64, start: WatchStart) -> Vec<String> {
    let next = number(log.events.len() as u64 + 1);
    let extent = Extent { epoch: Log::epoch(), epoch_first: number(1), first: number(retained), next };
    let mut watch: Watch<RawEvents> = Watch::new("t", number(1), &extent, start, true, None);
    let mut seen = Vec::new();
    loop {
        match watch.poll_output() {
            Some(Output::Outputs(outputs)) => seen.extend(outputs),
            Some(Output::Over) => return seen,
            None => {
                let (from, _) = watch.poll_read().expect("the turn has ended, so its reader was told so");
                watch.handle_events(&log.events[from.get() as usize - 1..]);
            }
        }
    }
}

#[test]
fn a_reader_of_another_dialect_comes_back_and_is_told_of_gaps() {
    let log = log();
    let all = watched(&log, 1, WatchStart::Fresh);
    assert_eq!(all.len(), log.events.len());
    let cursor = |seq| WatchStart::After(StreamCursor { cursor: Cursor::bare(number(seq)), part: None });
    assert_eq!(watched(&log, 1, cursor(3)), all[3..]);
    assert_eq!(watched(&log, 3, cursor(4)), all[4..]);
    let late = watched(&log, 4, WatchStart::Fresh);
    assert_eq!((late[0].as_str(), &late[1..]), ("event: gap\ndata: 3 before 4\n\n", &all[3..]));
}

#[test]
fn readers_of_another_dialect_share_their_projection() {
    let log = log();
    let mut live: Live<RawEvents, ()> = Live::new(RawEvents::new("t"), number(1));
    live.join(RawEvents::new("t"), number(1));
    live.handle_events(&log.events, 1 << 20);
    for _ in 0..2 {
        let SharedOutputs::Outputs { batch, from } = live.read(number(1)) else { panic!("{live:?}") };
        assert_eq!(batch.outputs[from..], watched(&log, 1, WatchStart::Fresh));
        assert!(matches!(live.read(batch.next()), SharedOutputs::Over));
    }
    assert_eq!(live.bytes(), 0, "what all readers have taken is not kept");
}

#[test]
fn a_dialect_without_open_parts_has_no_index() {
    let mut indexer: ProjectionIndexer<RawEvents> = ProjectionIndexer::new(number(1));
    assert!(!log().events.iter().any(|event| indexer.handle_event(event)));
    assert!(indexer.index().is_none());
}
