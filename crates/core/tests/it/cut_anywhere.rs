//! The whole promise as one property: cut the wire anywhere; the client still sees 1..n once, in order, or is told
//! exactly what is missing.

use std::collections::VecDeque;

use bowline_core::link::{Link, Output};
use bowline_core::resume::Resume;
use bowline_protocol::{Cursor, Epoch, Extent, Recorded, Seq, SessionId};
use proptest::prelude::*;

/// What can happen to a client and its log, in any order.
#[derive(Clone, Copy, Debug)]
enum Step {
    Append(u8),
    /// The oldest events are let go.
    Trim(u8),
    /// The log comes back from a power cut: the last events are gone, and so is the epoch.
    Reincarnate {
        lose: u8,
    },
    /// The link does up to this many things.
    Pump(u8),
    /// This many frames travel the wire.
    Deliver(u8),
    Ack,
    /// The wire is cut: what was sent and not delivered is gone.
    Cut,
    Reconnect {
        careful: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..20u8).prop_map(Step::Append),
        1 => (1..30u8).prop_map(Step::Trim),
        1 => (0..5u8).prop_map(|lose| Step::Reincarnate { lose }),
        6 => (1..12u8).prop_map(Step::Pump),
        6 => (1..40u8).prop_map(Step::Deliver),
        1 => Just(Step::Ack),
        2 => Just(Step::Cut),
        4 => any::<bool>().prop_map(|careful| Step::Reconnect { careful }),
    ]
}

#[derive(Debug)]
enum Wire {
    Verdict { resume: Resume, epoch: Epoch },
    Event { epoch: Epoch, seq: u64 },
    Gap { to: u64 },
    Replayed,
}

struct World {
    epochs: u64,
    /// Every event ever logged that was not lost: its epoch, its number.
    log: Vec<(Epoch, u64)>,
    epoch_first: u64,
    first: u64,
    link: Option<Link>,
    wire: VecDeque<Wire>,
    /// What the client has: the epoch and number of the last event, and whether numbers may jump now because it was told.
    position: Option<(Epoch, u64)>,
    allowed_next: u64,
    in_replay: bool,
    seen: u64,
}

impl World {
    fn new() -> World {
        World {
            epochs: 0,
            log: Vec::new(),
            epoch_first: 1,
            first: 1,
            link: None,
            wire: VecDeque::new(),
            position: None,
            allowed_next: 1,
            in_replay: false,
            seen: 0,
        }
    }

    fn epoch(&self) -> Epoch {
        Epoch::from_random(self.epochs)
    }

    fn next(&self) -> u64 {
        self.log.len() as u64 + 1
    }

    fn extent(&self) -> Extent {
        let seq = |n| Seq::new(n).unwrap();
        Extent {
            epoch: self.epoch(),
            epoch_first: seq(self.epoch_first),
            first: seq(self.first),
            next: seq(self.next()),
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Append(count) => {
                for _ in 0..count {
                    self.log.push((self.epoch(), self.next()));
                }
            }
            Step::Trim(count) => self.first = (self.first + u64::from(count)).min(self.next()),
            Step::Reincarnate { lose } => {
                // A reincarnation is a restart: every connection is gone.
                self.cut();
                let keep = self.log.len().saturating_sub(lose.into()).max(self.first as usize - 1);
                self.log.truncate(keep);
                self.epochs += 1;
                self.epoch_first = self.next();
            }
            Step::Pump(count) => {
                for _ in 0..count {
                    self.pump();
                }
            }
            Step::Deliver(count) => (0..count).for_each(|_| self.deliver()),
            Step::Ack => self.ack(),
            Step::Cut => self.cut(),
            Step::Reconnect { careful } => self.reconnect(careful),
        }
    }

    fn cut(&mut self) {
        self.link = None;
        self.wire.clear();
        self.in_replay = false;
    }

    fn reconnect(&mut self, careful: bool) {
        self.cut();
        let cursor = match &self.position {
            None => Cursor::bare(Seq::ZERO),
            // A bare cursor means the current epoch, so only a client that knows it is in that epoch may be careless.
            Some((epoch, seq)) if careful || *epoch != self.epoch() => {
                Cursor { epoch: Some(epoch.clone()), seq: Seq::new(*seq).unwrap() }
            }
            Some((_, seq)) => Cursor::bare(Seq::new(*seq).unwrap()),
        };
        let extent = self.extent();
        let resume = Resume::decide(&extent, &cursor);
        self.wire.push_back(Wire::Verdict { resume, epoch: extent.epoch.clone() });
        self.link = Some(Link::resume(SessionId::from_random(1), &extent, resume));
    }

    /// Does the next thing that the link wants; false if that is to wait.
    fn pump(&mut self) -> bool {
        let (first, next) = (self.first, self.next());
        let Some(link) = &mut self.link else { return false };
        match link.poll_output() {
            None => {
                let (from, events_max) = link.poll_read();
                if from.get() >= next {
                    return false;
                }
                if from.get() < first {
                    link.handle_gap(Seq::new(first).unwrap());
                    return true;
                }
                let events = (from.get()..next)
                    .take(events_max)
                    .map(|n| Recorded { seq: Seq::new(n).unwrap(), bytes: Vec::new().into() });
                link.handle_events(events.collect());
            }
            Some(Output::Events(events)) => {
                for event in events {
                    let (epoch, seq) = self.log[event.seq.get() as usize - 1].clone();
                    self.wire.push_back(Wire::Event { epoch, seq });
                }
            }
            Some(Output::Control(frame)) if frame.metadata["action"] == "replay" => self.wire.push_back(Wire::Replayed),
            Some(Output::Control(frame)) => {
                self.wire.push_back(Wire::Gap { to: frame.metadata["first_retained_seq"].as_u64().unwrap() });
            }
            Some(Output::Replayed { .. } | Output::Skipped { .. }) => {}
        }
        true
    }

    /// The client takes one frame and checks the promise.
    fn deliver(&mut self) {
        match self.wire.pop_front() {
            None => {}
            Some(Wire::Verdict { resume, epoch }) => {
                self.in_replay = true;
                match resume {
                    Resume::CaughtUp | Resume::Replay { .. } => {}
                    Resume::Gap { first, lost } => {
                        assert_eq!(self.allowed_next + lost, first.get(), "a gap must be told with its exact bounds");
                        self.accept_gap(epoch, first.get());
                    }
                    Resume::OtherEpoch { first, .. } => {
                        assert_ne!(self.position.as_ref().map(|(epoch, _)| epoch), Some(&epoch));
                        self.accept_gap(epoch, first.get());
                    }
                    Resume::AheadOfLog => {
                        panic!("a client that only believes what it saw is never ahead within an epoch")
                    }
                }
            }
            Some(Wire::Gap { to }) => {
                assert!(to > self.allowed_next);
                self.accept_gap(self.epoch(), to);
            }
            Some(Wire::Replayed) => {
                assert!(self.in_replay, "the replay ends once");
                self.in_replay = false;
            }
            Some(Wire::Event { epoch, seq }) => {
                assert_eq!(seq, self.allowed_next, "once, in order, nothing missing");
                self.allowed_next = seq + 1;
                self.position = Some((epoch, seq));
                self.seen += 1;
            }
        }
    }

    /// Once told, what is missing is missing: the client's position moves past it.
    fn accept_gap(&mut self, epoch: Epoch, first: u64) {
        self.allowed_next = first;
        self.position = Some((epoch, first - 1));
    }

    fn ack(&mut self) {
        if let (Some(link), Some((_, seq))) = (&mut self.link, &self.position) {
            let sent = link.sent().get();
            let outcome = link.handle_ack(&Cursor::bare(Seq::new(*seq).unwrap()));
            assert_eq!(outcome.is_err(), *seq > sent);
        }
    }

    /// When the faults stop, the client ends with everything that is retained.
    fn calm(&mut self) {
        self.reconnect(true);
        loop {
            if !self.pump() && self.wire.is_empty() {
                break;
            }
            self.deliver();
        }
        assert_eq!(self.allowed_next, self.next(), "the client ends at the end of the log");
        assert!(!self.in_replay, "and it was told that the replay is over");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]
    #[test]
    fn a_client_sees_every_event_once_in_order_or_is_told_what_is_missing(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.apply(step);
        }
        world.calm();
    }
}
