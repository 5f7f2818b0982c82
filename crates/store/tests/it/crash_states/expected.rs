//! What a log may be after a crash: one of its versions, none older than what was answered, none newer than what was asked for.

use std::collections::BTreeMap;

use bowline_store::disk::Sync;

use super::disk::Entry;
use super::platter::Platter;
use crate::common::Look;

pub const LOGS: [&str; 3] = ["log-0", "log-1", "log-2"];

/// Everything that a store holds, log by log; `None` for one that does not exist.
pub type View = Vec<Option<Look>>;

/// A log as one commit leaves it, and when each of its events was stored.
#[derive(Clone, Debug)]
pub struct Version {
    pub look: Look,
    pub at_ms: Vec<u64>,
}

/// What those who use the store know.
#[derive(Clone, Debug)]
pub enum Note {
    /// A commit that makes this version of a log was handed to the store.
    Issued {
        log: usize,
        version: usize,
    },
    Answered {
        log: usize,
        version: usize,
    },
    /// The store was opened and serves these versions.
    Opened {
        versions: Vec<usize>,
    },
}

/// From one power cut to the next: what was there, what happened, and what each commit made of each log.
#[derive(Clone, Debug)]
pub struct Life {
    pub sync: Sync,
    pub start: Platter,
    pub entries: Vec<Entry<Note>>,
    pub versions: Vec<Vec<Option<Version>>>,
    /// Logs that went on in another epoch when this life began, with the one before.
    pub epochs_left: BTreeMap<usize, String>,
}

/// Which versions of each log may be found at one moment of a life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bounds {
    pub issued: Vec<usize>,
    pub answered: Vec<usize>,
    /// What was answered when the disk last had everything.
    pub synced: Vec<usize>,
    pub opened: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Crash {
    Kill,
    PowerCut,
}

impl Bounds {
    pub fn new() -> Bounds {
        let none = vec![0; LOGS.len()];
        Bounds { issued: none.clone(), answered: none.clone(), synced: none, opened: false }
    }

    pub fn apply(&mut self, note: &Note) {
        match note {
            Note::Issued { log, version } => self.issued[*log] = *version,
            Note::Answered { log, version } => self.answered[*log] = self.answered[*log].max(*version),
            Note::Opened { versions } => {
                self.opened = true;
                for (log, version) in versions.iter().enumerate() {
                    self.answered[log] = self.answered[log].max(*version);
                }
            }
        }
    }
}

impl Life {
    /// Which version of each log this is, or which log is none that it may be.
    pub fn versions_of(&self, view: &View, bounds: &Bounds, crash: Crash) -> Result<Vec<usize>, String> {
        (0..LOGS.len()).map(|log| self.version_of(log, view[log].as_ref(), bounds, crash)).collect()
    }

    fn version_of(&self, log: usize, found: Option<&Look>, bounds: &Bounds, crash: Crash) -> Result<usize, String> {
        let may_lose = crash == Crash::PowerCut && self.sync != Sync::Always;
        let versions = &self.versions[log][..=bounds.issued[log]];
        let epochs: Vec<&String> = versions.iter().flatten().map(|version| &version.look.epoch).collect();
        let fits = |version: usize| {
            let (found, expected) = match (found, &versions[version]) {
                (None, None) => return version >= bounds.answered[log] || (may_lose && version >= bounds.synced[log]),
                (Some(found), Some(expected)) => (found, &expected.look),
                _ => return false,
            };
            let in_its_epoch = found.epoch == expected.epoch && version >= bounds.answered[log];
            // Before the opening that gives it was over, another one is drawn each time.
            let left = self.epochs_left.get(&log).filter(|_| !bounds.opened);
            let in_a_new_one = match (left, may_lose) {
                (Some(left), _) => found.epoch != *left && version >= bounds.answered[log],
                (None, true) => !epochs.contains(&&found.epoch) && version >= bounds.synced[log],
                (None, false) => false,
            };
            let content = Look { epoch: expected.epoch.clone(), ..found.clone() };
            content == *expected && (in_its_epoch || in_a_new_one)
        };
        (0..versions.len()).find(|version| fits(*version)).ok_or_else(|| {
            let (answered, issued) = (bounds.answered[log], bounds.issued[log]);
            let described = versions.iter().enumerate().map(|(at, version)| match version {
                None => format!("  {at}: not there\n"),
                Some(version) => format!("  {at}: {}\n", short(&version.look)),
            });
            let found = found.map_or("not there".to_owned(), short);
            let name = LOGS[log];
            format!(
                "{name} is {found}, which is none of versions {answered}..={issued}:\n{}",
                described.collect::<String>()
            )
        })
    }
}

/// A look in a line: texts are told by how they begin.
fn short(look: &Look) -> String {
    let begins = |text: &str| text.chars().take(6).collect::<String>();
    let events: Vec<_> =
        look.events.iter().map(|(seq, text)| format!("{seq}={}({})", begins(text), text.len())).collect();
    let items: Vec<_> = look.items.iter().map(|(key, value)| format!("{key}({})", value.len())).collect();
    let record = look.record.as_ref().map(|body| begins(&String::from_utf8_lossy(body)));
    format!("epoch {} {}..{} {events:?} items {items:?} record {record:?}", look.epoch, look.first, look.next)
}
