//! What clients saw, and whether that is what they were promised. The server's own state is never asked.
//!
//! An event is known by its epoch and number: every client that is shown it must be shown the same bytes, and once the
//! faults have stopped it must still be there.

mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_protocol::event::names;
use serde_json::Value;

pub use self::reader::Reader;
use crate::trace::Trace;

/// All that clients saw. Clones share it.
#[derive(Clone, Debug)]
pub struct Oracle(Arc<Mutex<Facts>>);

#[derive(Debug)]
struct Facts {
    trace: Trace,
    promises: Promises,
    violations: Vec<String>,
    /// By epoch and number.
    events: BTreeMap<String, BTreeMap<u64, Seen>>,
    /// Which sessions and tasks are whose.
    owners: BTreeMap<String, String>,
    /// Which runs worked on a message, as the agent counts them.
    runs: BTreeMap<String, (u64, BTreeSet<String>)>,
    claims: Vec<Claim>,
    sent: Vec<Sent>,
    losses: Vec<AllowedLoss>,
    /// When sessions were made.
    made: BTreeMap<String, u64>,
    /// Sessions that were rebuilt from a state. What was before is elsewhere.
    rebuilt: BTreeSet<String>,
}

/// What was first seen in this time may be gone: so much the settings leave to chance.
#[derive(Clone, Copy, Debug)]
struct AllowedLoss {
    from_ms: u64,
    to_ms: u64,
}

/// What was sent before a machine died may arrive so much later: a piece is up to 400 ms late, and a stall takes up to 3 s.
const ARRIVES_WITHIN_MS: u64 = 3400;

/// The epochs that one log consists of, oldest first, and how far each goes.
pub type LogEpochs = Vec<(String, u64)>;

/// What this simulation may expect of the server's settings.
#[derive(Clone, Copy, Debug)]
pub struct Promises {
    /// A loss is told with the first greeting after it; else with the first commit.
    pub tells_losses_at_once: bool,
    /// Nothing is let go for its age or number: there are no gaps to tell of.
    pub keeps_all: bool,
}

#[derive(Clone, Debug)]
struct Seen {
    digest: u64,
    name: String,
    message_id: Option<String>,
    by: String,
    at_ms: u64,
}

/// A connection was granted a session.
#[derive(Clone, Debug)]
struct Claim {
    session: String,
    link: u64,
    claimed_ms: u64,
    granted_ms: u64,
}

/// A message left a client.
#[derive(Clone, Debug)]
struct Sent {
    session: String,
    link: u64,
    tag: String,
    at_ms: u64,
}

/// How a client came to its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Return {
    New,
    Cursor(String, u64),
    /// Without a cursor: a holder goes on behind its highest ack, which is this at the most.
    Acked(u64),
    /// Reading begins behind what the state holds.
    State(u64),
    /// An observer without a cursor gets all that is retained.
    Everything,
}

impl Oracle {
    pub fn new(trace: Trace, promises: Promises) -> Oracle {
        Oracle(Arc::new(Mutex::new(Facts {
            trace,
            promises,
            violations: Vec::new(),
            events: BTreeMap::new(),
            owners: BTreeMap::new(),
            runs: BTreeMap::new(),
            claims: Vec::new(),
            sent: Vec::new(),
            losses: Vec::new(),
            made: BTreeMap::new(),
            rebuilt: BTreeSet::new(),
        })))
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn promises(&self) -> Promises {
        self.facts().promises
    }

    pub fn violate(&self, who: &str, what: impl Display) {
        self.facts().violate(who, what);
    }

    pub fn violations(&self) -> Vec<String> {
        self.facts().violations.clone()
    }

    /// Whether no client may be told of a gap. After a sync that failed the server cannot always tell what the disk has lost,
    /// and may begin a new epoch though it has lost nothing.
    pub fn has_no_gaps(&self) -> bool {
        self.promises().keeps_all && !self.epochs_may_change()
    }

    fn epochs_may_change(&self) -> bool {
        let facts = self.facts();
        !facts.losses.is_empty() || facts.trace.faults().contains_key("sync fails")
    }

    /// Whether the store has refused anything: then what was promised for later may be forgotten by a crash.
    pub fn store_failed(&self) -> bool {
        let faults = self.facts().trace.faults();
        ["sync fails", "write fails", "read fails", "disk full"].iter().any(|kind| faults.contains_key(kind))
    }

    /// Something happened that may cost what was first seen since `from_ms`.
    pub fn allow_loss(&self, from_ms: u64) {
        let mut facts = self.facts();
        let to_ms = facts.trace.now_ms() + ARRIVES_WITHIN_MS;
        facts.losses.push(AllowedLoss { from_ms, to_ms });
    }

    /// Whether anything at all may have been lost.
    pub fn has_losses(&self) -> bool {
        !self.facts().losses.is_empty()
    }

    /// Whether a session may be gone, since it was made not long before a loss.
    pub fn may_be_gone(&self, session: &str) -> bool {
        let facts = self.facts();
        facts.made.get(session).is_some_and(|made| facts.may_be_lost(*made))
    }

    pub fn rebuilt(&self, session: &str) {
        self.facts().rebuilt.insert(session.to_owned());
    }

    /// Whether this greeting is of a session that was rebuilt.
    fn was_rebuilt(&self, greeting: &Value) -> bool {
        greeting["session_id"].as_str().is_some_and(|id| self.facts().rebuilt.contains(id))
    }

    /// A client was told that this session or task is its own.
    pub fn owns(&self, owner: &str, id: &str) {
        let mut facts = self.facts();
        let now_ms = facts.trace.now_ms();
        facts.made.entry(id.to_owned()).or_insert(now_ms);
        let known = facts.owners.entry(id.to_owned()).or_insert_with(|| owner.to_owned()).clone();
        if known != owner {
            facts.violate(owner, format_args!("{id} belongs to {known}"));
        }
    }

    /// Sessions and tasks of others.
    pub fn not_of(&self, owner: &str) -> Vec<String> {
        let facts = self.facts();
        facts.owners.iter().filter(|(_, of)| *of != owner).map(|(id, _)| id.clone()).collect()
    }

    /// A client was shown something of this session.
    pub fn shown(&self, who: &str, owner: &str, id: &str) {
        let mut facts = self.facts();
        if facts.owners.get(id).is_some_and(|of| of != owner) {
            facts.violate(who, format_args!("was shown {id}, which is not {owner}'s"));
        }
    }

    /// The agent began to work on a message.
    pub fn worked(&self, tag: &str, run: &str) {
        let mut facts = self.facts();
        let now_ms = facts.trace.now_ms();
        facts.trace.note("agent", format_args!("works on {tag} as {run}"));
        let (first_ms, runs) = facts.runs.entry(tag.to_owned()).or_insert_with(|| (now_ms, BTreeSet::new()));
        runs.insert(run.to_owned());
        let (first_ms, is_again) = (*first_ms, runs.len() > 1);
        // It was accepted between when it was sent and when the work began, which a node that stood still begins later.
        let sent_ms = facts.sent.iter().filter(|sent| sent.tag == tag).map(|sent| sent.at_ms).min();
        let accepted = sent_ms.unwrap_or(first_ms).min(first_ms)..=first_ms;
        let may_be_lost =
            facts.losses.iter().any(|loss| loss.from_ms <= *accepted.end() && *accepted.start() <= loss.to_ms);
        if is_again && !may_be_lost {
            facts.violate("agent", format_args!("{tag} was worked on twice"));
        }
    }

    /// The agent dies in the middle of its work on a message.
    pub fn agent_died(&self, tag: &str) {
        self.facts().trace.fault("agent dies", "agent", tag);
    }

    pub fn granted(&self, session: &str, link: u64, claimed_ms: u64) {
        let mut facts = self.facts();
        let granted_ms = facts.trace.now_ms();
        facts.claims.push(Claim { session: session.to_owned(), link, claimed_ms, granted_ms });
    }

    pub fn sent(&self, session: &str, link: u64, tag: &str) {
        let mut facts = self.facts();
        let at_ms = facts.trace.now_ms();
        facts.sent.push(Sent { session: session.to_owned(), link, tag: tag.to_owned(), at_ms });
    }

    /// The highest number that any client has seen, by epoch.
    pub fn seen(&self) -> BTreeMap<String, u64> {
        let facts = self.facts();
        let last = |events: &BTreeMap<u64, Seen>| events.keys().next_back().copied().unwrap_or(0);
        facts.events.iter().map(|(epoch, events)| (epoch.clone(), last(events))).collect()
    }

    fn event(&self, who: &str, epoch: &str, seq: u64, frame: &Value) {
        let mut hasher = DefaultHasher::new();
        frame.to_string().hash(&mut hasher);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let seen = Seen {
            digest: hasher.finish(),
            name: text(&frame["event"]).unwrap_or_default(),
            message_id: text(&frame["metadata"]["message_id"]),
            by: who.to_owned(),
            at_ms: 0,
        };
        let mut facts = self.facts();
        let seen = Seen { at_ms: facts.trace.now_ms(), ..seen };
        let known =
            facts.events.entry(epoch.to_owned()).or_default().entry(seq).or_insert_with(|| seen.clone()).clone();
        if known.digest != seen.digest {
            let (was, is) = (&known.name, &seen.name);
            facts.violate(who, format_args!("{epoch}-{seq} is {is} here and was {was} for {}", known.by));
        }
    }

    /// Judges the whole, once all is quiet. `logs` says of which epochs each log consists, and how far each goes.
    pub fn judge(&self, logs: &[LogEpochs]) {
        let mut facts = self.facts();
        let mut wrong = facts.lost(logs);
        let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for log in logs {
            let name = log.last().map_or("", |(epoch, _)| epoch);
            wrong.extend(facts.judge_log(name, &facts.merged(log), &mut keys));
        }
        for (key, places) in keys {
            if places.len() > 1 {
                wrong.push(format!("message {key} is in the log {} times: {}", places.len(), places.join(", ")));
            }
        }
        wrong.extend(facts.written_without_the_session());
        for sentence in wrong {
            facts.violate("judge", sentence);
        }
    }
}

impl Facts {
    /// Whether what was first seen then may be gone.
    fn may_be_lost(&self, at_ms: u64) -> bool {
        self.losses.iter().any(|loss| (loss.from_ms..=loss.to_ms).contains(&at_ms))
    }

    fn violate(&mut self, who: &str, what: impl Display) {
        let sentence = format!("{who}: {what}");
        self.trace.note(who, format_args!("VIOLATION {what}"));
        self.violations.push(sentence);
    }

    /// What clients saw and what is no longer there.
    fn lost(&self, logs: &[LogEpochs]) -> Vec<String> {
        let ends: BTreeMap<&str, u64> = logs.iter().flatten().map(|(epoch, last)| (epoch.as_str(), *last)).collect();
        let mut wrong = Vec::new();
        for (epoch, events) in self.events.iter().filter(|_| self.promises.keeps_all) {
            let end = ends.get(epoch.as_str()).copied();
            let owed = events.iter().filter(|(_, seen)| !self.may_be_lost(seen.at_ms));
            let seen = owed.map(|(seq, _)| *seq).next_back();
            if seen.is_some() && end < seen {
                wrong.push(format!("{epoch}: clients saw up to {seen:?}, and the log ends at {end:?}"));
            }
        }
        wrong
    }

    /// The events of one log, through all its epochs.
    fn merged(&self, log: &[(String, u64)]) -> BTreeMap<u64, Seen> {
        let mut merged = BTreeMap::new();
        for (epoch, last) in log {
            let of_epoch = self.events.get(epoch).into_iter().flatten();
            merged.extend(of_epoch.filter(|(seq, _)| *seq <= last).map(|(seq, seen)| (*seq, seen.clone())));
        }
        merged
    }

    /// Numbers without holes, and runs that end once.
    fn judge_log(
        &self,
        name: &str,
        events: &BTreeMap<u64, Seen>,
        keys: &mut BTreeMap<String, Vec<String>>,
    ) -> Vec<String> {
        let (mut wrong, mut open, mut before) = (Vec::new(), None, None);
        let keeps_all = self.promises.keeps_all;
        for (seq, seen) in events {
            if keeps_all && before.is_some_and(|before: u64| before + 1 != *seq) {
                wrong.push(format!("{name}: no client was shown what is between {before:?} and {seq}"));
            }
            before = Some(*seq);
            if let Some(key) = &seen.message_id {
                keys.entry(key.clone()).or_default().push(format!("{name}-{seq}"));
            }
            if seen.name == names::USER_MESSAGE {
                if let Some(started) = open.replace(*seq)
                    && keeps_all
                {
                    wrong.push(format!("{name}: a run began at {seq}, and the one from {started} had not ended"));
                }
            } else if names::TERMINAL.contains(&seen.name.as_str()) && open.take().is_none() && keeps_all {
                wrong.push(format!("{name}-{seq}: a second end of one run ({})", seen.name));
            }
        }
        wrong.extend(open.map(|started| format!("{name}: the run from {started} never ended")));
        wrong
    }

    /// Messages in a log that left only on connections that had lost the session before.
    fn written_without_the_session(&self) -> Vec<String> {
        if !self.losses.is_empty() {
            // Who held what is forgotten, too.
            return Vec::new();
        }
        let logged: BTreeMap<&str, u64> = self
            .events
            .values()
            .flat_map(|events| events.values())
            .filter_map(|seen| Some((seen.message_id.as_deref()?, seen.at_ms)))
            .collect();
        let mut wrong = Vec::new();
        let tags: BTreeSet<&str> = self.sent.iter().map(|sent| sent.tag.as_str()).collect();
        for (tag, seen_ms) in logged.into_iter().filter(|(tag, _)| tags.contains(tag)) {
            let mut ways = self.sent.iter().filter(|sent| sent.tag == tag && sent.at_ms <= seen_ms);
            if ways.all(|sent| self.had_lost(sent)) {
                wrong.push(format!("{tag} was written by a connection that no longer held its session"));
            }
        }
        wrong
    }

    /// Another connection claimed the session after this one was granted it, and was granted it before the message left.
    fn had_lost(&self, sent: &Sent) -> bool {
        let of_session = || self.claims.iter().filter(|claim| claim.session == sent.session);
        let Some(own) = of_session().rfind(|claim| claim.link == sent.link && claim.granted_ms <= sent.at_ms) else {
            return false;
        };
        of_session().any(|other| {
            other.link != sent.link && other.claimed_ms > own.granted_ms && other.granted_ms + 1 < sent.at_ms
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn oracle() -> Oracle {
        Oracle::new(Trace::new(false), Promises { tells_losses_at_once: true, keeps_all: true })
    }

    fn event(seq: u64, name: &str, message_id: Option<&str>) -> Value {
        json!({ "event": name, "seq": seq, "event_id": format!("e-{seq}"), "metadata": { "message_id": message_id } })
    }

    /// A client that was shown these, from the start.
    fn shown(oracle: &Oracle, who: &str, events: &[Value]) {
        let mut reader = Reader::new(who);
        reader.at = Some(("e".into(), 0));
        events.iter().for_each(|frame| reader.event(oracle, frame));
    }

    fn violations(events: &[Value], last: u64) -> Vec<String> {
        let oracle = oracle();
        shown(&oracle, "client", events);
        oracle.judge(&[vec![("e".into(), last)]]);
        oracle.violations()
    }

    #[test]
    fn a_whole_run_is_no_violation_and_each_flaw_is_one() {
        let (begin, end) = (event(1, names::USER_MESSAGE, Some("m")), event(2, names::FINAL_ANSWER, None));
        assert_eq!(violations(&[begin.clone(), end.clone()], 2), Vec::<String>::new());
        let flaws = [
            ("a hole", vec![begin.clone(), event(3, names::FINAL_ANSWER, None)], 3),
            ("a repetition", vec![begin.clone(), begin.clone(), end.clone()], 2),
            ("two ends", vec![begin.clone(), end.clone(), event(3, names::CANCELLED, None)], 3),
            ("no end", vec![begin.clone()], 1),
            ("a lost tail", vec![begin.clone(), end.clone()], 1),
            (
                "a message twice",
                vec![begin, end, event(3, names::USER_MESSAGE, Some("m")), event(4, names::ERROR, None)],
                4,
            ),
        ];
        for (flaw, events, last) in flaws {
            assert!(!violations(&events, last).is_empty(), "{flaw} was not seen");
        }
    }

    #[test]
    fn an_event_that_is_another_for_another_client_is_a_violation() {
        let oracle = oracle();
        shown(&oracle, "one", &[event(1, names::USER_MESSAGE, Some("m"))]);
        shown(&oracle, "other", &[event(1, names::USER_MESSAGE, Some("n"))]);
        assert_eq!(oracle.violations().len(), 1);
    }

    #[test]
    fn a_return_that_skips_or_repeats_is_a_violation() {
        let greeting = |resume: Value| json!({ "metadata": { "epoch": "e", "last_seq": 9, "resume": resume } });
        let came = |how: Return, resume: Value| {
            let oracle = oracle();
            Reader::new("client").greeted(&oracle, &greeting(resume), &how, &BTreeMap::new());
            oracle.violations().len()
        };
        let cursor = || Return::Cursor("e".into(), 5);
        assert_eq!(came(cursor(), json!({ "verdict": "replay", "from_seq": 6 })), 0);
        assert_eq!(came(cursor(), json!({ "verdict": "replay", "from_seq": 7 })), 1);
        assert_eq!(came(cursor(), json!({ "verdict": "caught_up" })), 1, "4 events are missing");
        assert_eq!(came(cursor(), json!({ "verdict": "gap", "first_retained_seq": 8 })), 1, "all is kept");
        assert_eq!(came(Return::Acked(3), json!({ "verdict": "replay", "from_seq": 4 })), 0);
        assert_eq!(came(Return::Acked(3), json!({ "verdict": "replay", "from_seq": 6 })), 1);
        assert_eq!(came(Return::Everything, json!({ "verdict": "replay", "from_seq": 2 })), 1);
    }

    #[test]
    fn a_second_run_for_one_message_is_a_violation_unless_the_first_may_be_lost() {
        let trace = Trace::new(false);
        let oracle = Oracle::new(trace.clone(), Promises { tells_losses_at_once: true, keeps_all: true });
        oracle.worked("m", "run-1");
        oracle.worked("m", "run-1");
        assert!(oracle.violations().is_empty(), "one run may go on in another process");
        oracle.worked("m", "run-2");
        assert_eq!(oracle.violations().len(), 1);
        trace.set_now(100);
        oracle.worked("n", "run-3");
        trace.set_now(120);
        oracle.allow_loss(90);
        oracle.worked("n", "run-4");
        assert_eq!(oracle.violations().len(), 1, "what was begun 20 ms before a loss of 30 ms may be begun again");
    }

    #[test]
    fn only_what_was_seen_shortly_before_a_loss_may_be_gone() {
        for (loss_from, wrong) in [(0, 0), (50, 1)] {
            let trace = Trace::new(false);
            let oracle = Oracle::new(trace.clone(), Promises { tells_losses_at_once: true, keeps_all: true });
            trace.set_now(40);
            shown(&oracle, "client", &[event(1, names::USER_MESSAGE, Some("m")), event(2, names::FINAL_ANSWER, None)]);
            trace.set_now(60);
            oracle.allow_loss(loss_from);
            oracle.judge(&[Vec::new()]);
            assert_eq!(oracle.violations().len(), wrong, "a loss of what came after {loss_from}");
        }
    }

    #[test]
    fn what_is_shown_to_one_who_does_not_own_it_is_a_violation() {
        let oracle = oracle();
        oracle.owns("alice", "sess_1");
        oracle.shown("bob-1", "bob", "sess_1");
        oracle.shown("alice-1", "alice", "sess_1");
        assert_eq!(oracle.violations().len(), 1);
    }

    #[test]
    fn a_message_that_left_a_connection_after_it_had_lost_the_session_must_not_be_in_the_log() {
        let trace = Trace::new(false);
        let oracle = Oracle::new(trace.clone(), Promises { tells_losses_at_once: true, keeps_all: true });
        let at = |ms| trace.set_now(ms);
        at(10);
        oracle.granted("s", 1, 5);
        at(30);
        oracle.granted("s", 2, 20);
        at(40);
        oracle.sent("s", 1, "m");
        shown(&oracle, "client", &[event(1, names::USER_MESSAGE, Some("m")), event(2, names::FINAL_ANSWER, None)]);
        oracle.judge(&[vec![("e".into(), 2)]]);
        assert_eq!(oracle.violations().len(), 1, "{:?}", oracle.violations());
    }
}
