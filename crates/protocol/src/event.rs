//! Logged events: their names, their shape before they have a number, and after.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::control_names::CONTROL;
use crate::id::{SessionId, StepId};
use crate::json;
use crate::position::{Epoch, Seq};

/// The catalogue: names of the events that we ourselves log. An agent may emit others; they pass through untouched.
pub mod names {
    /// Each event once: its constant, and the lists that it is in.
    macro_rules! events {
        (
            session { $($(#[$session_doc:meta])* $session:ident = $session_name:literal;)* }
            work { $($(#[$work_doc:meta])* $work:ident = $work_name:literal;)* }
        ) => {
            $($(#[$session_doc])* pub const $session: &str = $session_name;)*
            $($(#[$work_doc])* pub const $work: &str = $work_name;)*

            pub const ALL: &[&str] = &[$($session,)* $($work,)*];

            /// What a program behind a URL may log of its work as it stands.
            pub const WORK: &[&str] = &[$($work,)*];
        };
    }

    events! {
        // How a run begins, asks and ends, and what begins work of its own: only the session writes these.
        session {
            USER_MESSAGE = "user.message";
            USER_RESPONSE = "user.response";
            FINAL_ANSWER = "agent.final_answer";
            USER_CONFIRM = "agent.user_confirm";
            OPERATION_STARTED = "agent.operation_started";
            OPERATION_COMPLETED = "agent.operation_completed";
            /// An upstream chunk that has no counterpart here, word for word.
            CHUNK = "agent.chunk";
            CANCELLED = "agent.cancelled";
            ERROR = "agent.error";
            SESSION_END = "agent.session_end";
        }
        // What an agent does meanwhile.
        work {
            THINKING = "agent.thinking";
            TOOL_CALL = "agent.tool_call";
            TOOL_RESULT = "agent.tool_result";
            PARTIAL_ANSWER = "agent.partial_answer";
            PROGRESS = "agent.progress";
            PLAN_START = "plan.start";
            PLAN_COMPLETED = "plan.completed";
            PLAN_CANCELLED = "plan.cancelled";
            PLAN_COERCION_ERROR = "plan.coercion_error";
            SOLVER_START = "solver.start";
            SOLVER_PROGRESS = "solver.progress";
            SOLVER_COMPLETED = "solver.completed";
            SOLVER_STEP_FAILED = "solver.step_failed";
            SOLVER_CANCELLED = "solver.cancelled";
            SOLVER_RESTARTED = "solver.restarted";
            AGGREGATE_START = "aggregate.start";
            AGGREGATE_COMPLETED = "aggregate.completed";
            PIPELINE_COMPLETED = "pipeline.completed";
        }
    }

    /// What an agent elsewhere wants to have kept until its next run. It is kept beside the log and never logged.
    pub const STATE: &str = "agent.state";

    /// A run ends with exactly one of these.
    pub const TERMINAL: &[&str] = &[FINAL_ANSWER, ERROR, CANCELLED];
}

/// The namespaces that no agent may speak in: what a person says, and what the server says.
const RESERVED_NAMESPACES: &[&str] = &["user", "system", "error"];

/// `<namespace>.<name>` of a logged event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventName(Cow<'static, str>);

impl EventName {
    /// One of the catalogue's names.
    pub const fn known(name: &'static str) -> EventName {
        EventName(Cow::Borrowed(name))
    }

    /// A kind of an agent's own making. Names of the catalogue and of control frames are not an agent's to invent:
    /// those have typed methods, or are the server's own.
    pub fn custom(name: &str) -> Option<EventName> {
        let (namespace, rest) = name.split_once('.')?;
        let plain =
            |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
        // Client frames are all in a reserved namespace.
        let ours = names::ALL.contains(&name) || name == names::STATE || CONTROL.contains(&name);
        (!RESERVED_NAMESPACES.contains(&namespace) && plain(namespace) && plain(rest) && name.len() <= 64 && !ours)
            .then(|| EventName(Cow::Owned(name.to_owned())))
    }

    /// A kind that an agent elsewhere may log as it stands: one of the catalogue that tells of its work, or one of its
    /// own making. How a run begins, asks and ends is the session's to write.
    pub fn of_agent(name: &str) -> Option<EventName> {
        let works = names::WORK.iter().find(|known| **known == name);
        works.map(|known| EventName::known(known)).or_else(|| EventName::custom(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_terminal(&self) -> bool {
        names::TERMINAL.contains(&self.as_str())
    }
}

/// An event as a run or a client made it: no number, no time, no session yet.
///
/// Content may hold what a person wrote, so `Debug` shows lengths only.
#[derive(Clone)]
pub struct Draft {
    pub name: EventName,
    pub step_id: Option<StepId>,
    pub content: Box<RawValue>,
    pub metadata: Option<Box<RawValue>>,
}

impl Draft {
    pub fn new(name: &'static str, content: &(impl Serialize + ?Sized)) -> Draft {
        Draft { name: EventName::known(name), step_id: None, content: json::raw(content), metadata: None }
    }

    pub fn step(self, step_id: StepId) -> Draft {
        Draft { step_id: Some(step_id), ..self }
    }

    pub fn metadata(self, metadata: &impl Serialize) -> Draft {
        Draft { metadata: Some(json::raw(metadata)), ..self }
    }

    /// Encodes everything but the number. This is the only time the event is encoded.
    pub fn seal(&self, session: &SessionId, timestamp: &str) -> Unnumbered {
        let metadata_len = self.metadata.as_ref().map_or(2, |m| m.get().len());
        let mut bytes = Vec::with_capacity(200 + self.content.get().len() + metadata_len);
        bytes.extend_from_slice(b"{\"event\":");
        json::push_string(&mut bytes, self.name.as_str());
        bytes.extend_from_slice(b",\"session_id\":");
        json::push_string(&mut bytes, session.as_str());
        bytes.push(b',');
        let split = bytes.len();
        bytes.extend_from_slice(b",\"timestamp\":");
        json::push_string(&mut bytes, timestamp);
        if let Some(step) = &self.step_id {
            bytes.extend_from_slice(b",\"step_id\":");
            json::push_string(&mut bytes, step.as_str());
        }
        bytes.extend_from_slice(b",\"content\":");
        bytes.extend_from_slice(self.content.get().as_bytes());
        bytes.extend_from_slice(b",\"metadata\":");
        bytes.extend_from_slice(self.metadata.as_ref().map_or("{}", |m| m.get()).as_bytes());
        bytes.push(b'}');
        Unnumbered { bytes, split }
    }

    /// Looks at it as at an event that was logged, without reading it back.
    pub fn look<R>(&self, look: impl FnOnce(&EventView<'_>) -> R) -> R {
        let step_id = self.step_id.as_ref().map(|step| json::raw(step.as_str()));
        look(&EventView {
            event: self.name.as_str(),
            step_id: step_id.as_deref(),
            content: &self.content,
            metadata: self.metadata.as_deref(),
        })
    }

    /// About how many bytes the encoded event will take.
    pub fn len_hint(&self) -> usize {
        200 + self.content.get().len() + self.metadata.as_ref().map_or(0, |m| m.get().len())
    }
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Draft({}, {} bytes)", self.name.as_str(), self.content.get().len())
    }
}

/// No number has more.
const DIGITS_MAX: usize = 20;

/// An encoded event with a slot for its number, which only a log may fill.
#[derive(Clone)]
pub struct Unnumbered {
    bytes: Vec<u8>,
    split: usize,
}

impl Unnumbered {
    /// Writes the finished event behind what `out` already holds.
    pub fn number_into(&self, out: &mut Vec<u8>, epoch: &Epoch, seq: Seq) {
        let (mut digits, mut at, mut rest) = ([0; DIGITS_MAX], DIGITS_MAX, seq.get());
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let number = &digits[at..];
        let (before, behind) = self.around_slot();
        for piece in
            [before, b"\"seq\":", number, b",\"event_id\":\"", epoch.as_str().as_bytes(), b"-", number, b"\"", behind]
        {
            out.extend_from_slice(piece);
        }
    }

    /// How many bytes [`number_into`](Unnumbered::number_into) writes.
    pub fn numbered_len(&self, epoch: &Epoch, seq: Seq) -> usize {
        let digits = seq.get().checked_ilog10().unwrap_or(0) as usize + 1;
        self.bytes.len() + "\"seq\":,\"event_id\":\"-\"".len() + epoch.as_str().len() + 2 * digits
    }

    pub fn number(&self, epoch: &Epoch, seq: Seq) -> Bytes {
        let mut out = Vec::with_capacity(self.len_max());
        self.number_into(&mut out, epoch, seq);
        out.into()
    }

    /// What stands before and behind the slot, for a log that fills it in a place where this code does not run. What
    /// belongs there is exactly what [`number_into`](Unnumbered::number_into) writes.
    pub fn around_slot(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at(self.split)
    }

    /// An upper bound of the finished event's size.
    pub fn len_max(&self) -> usize {
        self.bytes.len() + 100
    }
}

impl fmt::Debug for Unnumbered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unnumbered({} bytes)", self.bytes.len())
    }
}

/// One numbered thing in a log: the exact bytes that every reader gets.
#[derive(Clone, PartialEq, Eq)]
pub struct Recorded {
    pub seq: Seq,
    pub bytes: Bytes,
}

impl Recorded {
    /// Reads the event back, for those who need to look inside.
    pub fn decode(&self) -> Option<LoggedEvent> {
        serde_json::from_slice(&self.bytes).ok()
    }

    /// Looks at the parts of the event without copying them.
    pub fn view(&self) -> Option<EventView<'_>> {
        serde_json::from_slice(&self.bytes).ok()
    }
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorded(#{}, {} bytes)", self.seq, self.bytes.len())
    }
}

/// A logged event, looked at where it lies. Its content may be a person's, so it is not shown by `Debug`.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct EventView<'a> {
    pub event: &'a str,
    /// A JSON string, as it was written.
    #[serde(borrow, default)]
    pub step_id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub content: &'a RawValue,
    #[serde(borrow, default)]
    pub metadata: Option<&'a RawValue>,
}

impl fmt::Debug for EventView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventView({}, {} bytes)", self.event, self.content.get().len())
    }
}

/// A logged event, read back. Its content may be a person's, so it is not shown by `Debug`.
#[derive(Clone, Deserialize)]
pub struct LoggedEvent {
    pub event: String,
    pub session_id: SessionId,
    pub seq: Seq,
    pub event_id: String,
    pub timestamp: String,
    #[serde(default)]
    pub step_id: Option<StepId>,
    pub content: serde_json::Value,
    #[serde(default)]
    pub metadata: serde_json::Value,
}

impl fmt::Debug for LoggedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoggedEvent({} #{})", self.event, self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_numbered_event_reads_back_as_it_was_written() {
        let session = SessionId::from_random(7);
        let draft = Draft::new(names::TOOL_CALL, "look \"here\"\n")
            .step(StepId::parse("s1").unwrap())
            .metadata(&json!({"tool": "search"}));
        let epoch = Epoch::from_random(9);
        let bytes = draft.seal(&session, "2026-01-01T00:00:00Z").number(&epoch, Seq::new(42).unwrap());
        let event = Recorded { seq: Seq::ZERO, bytes }.decode().unwrap();
        assert_eq!((event.event.as_str(), event.seq.get()), (names::TOOL_CALL, 42));
        assert_eq!(event.event_id, format!("{epoch}-42"));
        assert_eq!(event.content, json!("look \"here\"\n"));
        assert_eq!(event.metadata, json!({"tool": "search"}));
        assert_eq!(event.session_id, session);
        assert_eq!(event.step_id.unwrap().as_str(), "s1");
    }

    #[test]
    fn an_event_is_as_long_as_it_was_said_to_become() {
        let event = Draft::new(names::THINKING, "x").seal(&SessionId::from_random(7), "2026-01-01T00:00:00Z");
        let epoch = Epoch::from_random(9);
        for number in [0, 1, 9, 10, 99, 100, 123_456, Seq::MAX.get()] {
            let seq = Seq::new(number).unwrap();
            let bytes = event.number(&epoch, seq);
            assert_eq!(bytes.len(), event.numbered_len(&epoch, seq), "{number}");
            let read = Recorded { seq, bytes }.decode().unwrap();
            assert_eq!((read.seq, read.event_id), (seq, format!("{epoch}-{number}")));
        }
    }

    #[test]
    fn an_agent_cannot_invent_a_name_that_means_something_here() {
        for name in [
            "agent.final_answer",
            "system.notice",
            "user.message",
            "agent.session_created",
            "system.weather",
            "user.mood",
            "error.mine",
            "agent.",
            ".x",
            "weird",
            "a b.c",
            "agent.a b",
        ] {
            assert!(EventName::custom(name).is_none(), "{name}");
        }
        for name in ["agent.mood", "weird.ns", "x.y.z", "task.x"] {
            assert!(EventName::custom(name).is_some(), "{name} is an event of ours now: take another one here");
        }
    }

    #[test]
    fn an_agent_elsewhere_tells_of_its_work_and_of_nothing_else() {
        for name in ["agent.thinking", "agent.partial_answer", "solver.start", "agent.mood", "task.x"] {
            assert_eq!(EventName::of_agent(name).unwrap().as_str(), name);
        }
        for name in ["agent.final_answer", "agent.error", "agent.user_confirm", "agent.session_end", "user.message"] {
            assert!(EventName::of_agent(name).is_none(), "{name}");
        }
    }
}
