//! One client that reads a log: where it is, and whether what comes next is what it is owed.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Oracle, Return};

/// Follows what one client is shown of one log: each number once, in order, or a notice first.
#[derive(Clone, Debug)]
pub struct Reader {
    pub who: String,
    /// The epoch, and the last number that was shown.
    pub at: Option<(String, u64)>,
    /// It came without a cursor, and so is shown what is retained, of whichever epoch, until it comes to this one.
    any_until: Option<String>,
}

impl Reader {
    pub fn new(who: impl Into<String>) -> Reader {
        Reader { who: who.into(), at: None, any_until: None }
    }

    pub fn seq(&self) -> u64 {
        self.at.as_ref().map_or(0, |(_, seq)| *seq)
    }

    /// Whether what was shown last is of this epoch.
    pub fn is_in(&self, epoch: &str) -> bool {
        self.at.as_ref().is_some_and(|(at, _)| at == epoch)
    }

    /// A frame with a number.
    pub fn event(&mut self, oracle: &Oracle, frame: &Value) {
        let seq = frame["seq"].as_u64().unwrap_or(0);
        let id = frame["event_id"].as_str().unwrap_or_default();
        let Some((epoch, number)) = id.rsplit_once('-') else {
            return oracle.violate(&self.who, format_args!("event {seq} has the id {id:?}"));
        };
        if number.parse() != Ok(seq) {
            oracle.violate(&self.who, format_args!("event {seq} has the id {id}"));
        }
        match &self.at {
            Some((known, last)) if (known == epoch || self.any_until.is_some()) && last + 1 == seq => {}
            at => oracle.violate(&self.who, format_args!("was shown {id} after {at:?}")),
        }
        self.at = Some((epoch.to_owned(), seq));
        self.any_until.take_if(|current| current == epoch);
        oracle.event(&self.who, epoch, seq, frame);
    }

    /// The greeting of an attach, or of a restore. `seen` is what clients had seen when this one asked.
    pub fn greeted(&mut self, oracle: &Oracle, frame: &Value, how: &Return, seen: &BTreeMap<String, u64>) {
        let facts = &frame["metadata"];
        let epoch = facts["epoch"].as_str().unwrap_or_default().to_owned();
        let last = facts["last_seq"].as_u64().unwrap_or(0);
        let resume = &facts["resume"];
        let number = |key: &str| resume[key].as_u64();
        let verdict = resume["verdict"].as_str().unwrap_or("new");
        let promises = oracle.promises();
        let behind = match (verdict, how) {
            ("new", Return::New) => last,
            ("caught_up", Return::Cursor(..)) | ("caught_up", _) => last,
            ("replay", _) => number("from_seq").unwrap_or(0).saturating_sub(1),
            ("gap", _) => {
                if oracle.has_no_gaps() {
                    oracle.violate(&self.who, format_args!("was told of a gap where all is kept: {resume}"));
                }
                number("first_retained_seq").unwrap_or(0).saturating_sub(1)
            }
            ("other_epoch", _) => {
                if !oracle.epochs_may_change() {
                    oracle.violate(&self.who, format_args!("the log began anew: {resume}"));
                }
                number("first_retained_seq").or(number("from_seq")).map_or(last, |first| first.saturating_sub(1))
            }
            ("ahead_of_log", Return::Cursor(..)) if oracle.has_losses() => last,
            (verdict, how) => {
                oracle.violate(&self.who, format_args!("came with {how:?} and was told {verdict}: {facts}"));
                last
            }
        };
        match how {
            Return::Cursor(of, seq)
                if *of == epoch && verdict != "gap" && verdict != "ahead_of_log" && *seq != behind =>
            {
                oracle.violate(&self.who, format_args!("came with {seq}, and reading begins behind {behind}"));
            }
            Return::Acked(acked) if verdict != "gap" && behind > *acked => {
                oracle.violate(&self.who, format_args!("had acked {acked}, and reading begins behind {behind}"));
            }
            Return::State(of) if verdict != "gap" && verdict != "other_epoch" && behind > *of => {
                oracle.violate(&self.who, format_args!("its state holds {of}, and reading begins behind {behind}"));
            }
            Return::Everything if promises.keeps_all && behind != 0 && !oracle.was_rebuilt(frame) => {
                oracle.violate(&self.who, format_args!("wanted everything, and reading begins behind {behind}"));
            }
            _ => {}
        }
        let seen = seen.get(&epoch).copied().unwrap_or(0);
        if (promises.tells_losses_at_once || !oracle.has_losses()) && last < seen {
            oracle.violate(&self.who, format_args!("the log ends at {last}, and {seen} was seen"));
        }
        if !matches!(how, Return::Cursor(..)) {
            self.any_until = Some(epoch.clone());
        } else if verdict != "replay" || self.at.as_ref().is_none_or(|(at, _)| *at != epoch) {
            // With a place in the epoch that it was told and has not come to, it still has all before that to read.
            self.any_until = None;
        }
        self.at = Some((epoch, behind));
    }

    /// A notice: that all which was owed has come, or that something never will.
    pub fn notice(&mut self, oracle: &Oracle, frame: &Value) {
        let facts = &frame["metadata"];
        let number = |key: &str| facts[key].as_u64();
        if facts["action"] == "replay" {
            let to = number("to_seq").unwrap_or(0);
            // Where events are let go, those that were owed may be, too, and that was told before this.
            let is_ahead = self.seq() > to && !oracle.promises().keeps_all;
            if self.seq() != to && !is_ahead {
                oracle.violate(&self.who, format_args!("{facts} came after event {}", self.seq()));
            }
        } else if facts["code"] == "REPLAY_GAP" {
            if oracle.has_no_gaps() {
                oracle.violate(&self.who, format_args!("was told of a gap where all is kept: {facts}"));
            }
            if let (Some((_, seq)), Some(to)) = (&mut self.at, number("to_seq")) {
                *seq = to;
            }
        }
    }
}
