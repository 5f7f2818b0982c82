//! The link scenarios of `conformance/`, run against the pure machine.

use std::fs;
use std::path::Path;

use bowline_core::link::{Link, Output};
use bowline_core::resume::Resume;
use bowline_protocol::{Cursor, Epoch, Extent, Recorded, Seq, SessionId};
use serde_json::{Value, json};

/// A log of nothing but numbers, and the reader of it.
struct World {
    first: u64,
    next: u64,
    keep: u64,
    link: Option<Link>,
    /// What the reader was sent and has not looked at yet.
    inbox: Vec<Value>,
}

fn seq(n: u64) -> Seq {
    Seq::new(n).unwrap()
}

impl World {
    fn extent(&self) -> Extent {
        Extent {
            epoch: Epoch::parse("current").unwrap(),
            epoch_first: seq(1),
            first: seq(self.first),
            next: seq(self.next),
        }
    }

    fn pump(&mut self) {
        let (first, next) = (self.first, self.next);
        let Some(link) = &mut self.link else { return };
        loop {
            match link.poll_output() {
                Some(Output::Events(events)) => {
                    self.inbox.extend(events.iter().map(|event| json!({ "seq": event.seq })));
                }
                Some(Output::Control(control)) => self.inbox.push(control.metadata),
                Some(Output::Replayed { .. } | Output::Skipped { .. }) => {}
                None => {
                    let (from, events_max) = link.poll_read();
                    let numbers = (from.get()..next).take(events_max);
                    let events = numbers.map(|n| Recorded { seq: seq(n), bytes: Vec::new().into() }).collect();
                    match from.get() {
                        from if from < first => link.handle_gap(seq(first)),
                        from if from < next => link.handle_events(events),
                        _ => return,
                    }
                }
            }
        }
    }

    fn attach(&mut self, asked: &Value) {
        let extent = self.extent();
        let verdict = match asked["seq"].as_u64() {
            None => Resume::from_the_start(&extent),
            Some(n) => {
                Resume::decide(&extent, &Cursor { epoch: asked["epoch"].as_str().and_then(Epoch::parse), seq: seq(n) })
            }
        };
        self.inbox = vec![verdict.facts(&extent)];
        self.link = Some(Link::resume(SessionId::from_random(1), &extent, verdict));
        self.pump();
    }

    fn step(&mut self, step: &Value) {
        if let Some(count) = step["append"].as_u64() {
            self.next += count;
            self.first = self.first.max(self.next.saturating_sub(self.keep));
            self.pump();
        } else if step["attach"].is_object() {
            self.attach(&step["attach"]);
        } else if step["cut"] == true {
            self.link = None;
            self.inbox.clear();
        } else if step["quiet"] == true {
            assert_eq!(self.inbox, Vec::<Value>::new());
        } else if let Some(range) = step["events"].as_array() {
            for n in range[0].as_u64().unwrap()..=range[1].as_u64().unwrap() {
                assert_eq!(self.inbox.remove(0), json!({ "seq": n }));
            }
        } else if step["verdict"].is_string() {
            let told = self.inbox.remove(0);
            assert_eq!(told["verdict"], step["verdict"]);
            for (mine, theirs) in [("lost", "lost"), ("first", "first_retained_seq")] {
                assert!(step[mine].is_null() || step[mine] == told[theirs], "{step} {told}");
            }
        } else if step["replayed"].is_u64() {
            let told = self.inbox.remove(0);
            assert_eq!((&told["action"], &told["replayed"]), (&json!("replay"), &step["replayed"]));
            assert_eq!(told["code"], step["code"]);
        } else {
            panic!("no such step: {step}");
        }
    }
}

#[test]
fn every_link_scenario_holds_for_the_machine() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/links");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let scenario: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        println!("{}: {}", path.display(), scenario["about"]);
        let keep = scenario["keep"].as_u64().unwrap_or(u64::MAX);
        let mut world = World { first: 1, next: 1, keep, link: None, inbox: Vec::new() };
        for step in scenario["steps"].as_array().unwrap() {
            world.step(step);
        }
        count += 1;
    }
    assert!(count >= 5, "the scenarios are there");
}
