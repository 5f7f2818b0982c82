//! Agent events as the OpenAI Responses API streams them, and the response that they add up to.
//!
//! A response is a turn up to its end, its first question, or its first call of a function of the caller's; the answer to that
//! question, or the outputs of such calls, begin the next response. Events are
//! numbered from 0 without holes, and the numbers are the same for every reader: nothing is merged, left out or made up, so a
//! reader that lacks the beginning cannot be served, and gets an error.

mod events;
mod id;
mod item;
mod object;
mod output;
mod text;
mod wait;

use std::fmt;

use bowline_protocol::event::names;
use bowline_protocol::{Epoch, ErrorCode, Recorded, Seq, json};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{ClientParser, Fold, OpenParts, Projection};
use object::{Head, State, unix_seconds};
use output::Output;
use text::string;

pub use id::{CallId, QuestionId, ResponseId};
pub use object::ECHOED;
pub use wait::Wait;

/// One event of the stream.
#[derive(Clone)]
pub struct ResponseEvent {
    pub sequence_number: u64,
    pub kind: &'static str,
    pub json: Bytes,
}

impl ResponseEvent {
    /// `body` is an object with at least one member.
    fn new(sequence_number: u64, kind: &'static str, body: &impl Serialize) -> ResponseEvent {
        let body = json::raw(body);
        let members = body.get().strip_prefix('{').unwrap_or("}");
        let json = format!("{{\"type\":\"{kind}\",\"sequence_number\":{sequence_number},{members}");
        ResponseEvent { sequence_number, kind, json: json.into() }
    }

    /// Why the stream cannot go on as it should.
    fn error(sequence_number: u64, code: ErrorCode, message: &str) -> ResponseEvent {
        #[derive(Serialize)]
        struct Body<'a> {
            code: &'static str,
            message: &'a str,
            param: Option<()>,
        }
        ResponseEvent::new(sequence_number, "error", &Body { code: code.as_str(), message, param: None })
    }
}

/// Its content may be a person's.
impl fmt::Debug for ResponseEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResponseEvent({} {}, {} bytes)", self.sequence_number, self.kind, self.json.len())
    }
}

/// Turns the events of one response into the events of its stream.
#[derive(Clone, Debug)]
pub struct ResponseProjector {
    id: Box<str>,
    /// The agent, where the request does not say what it was called.
    agent: Box<str>,
    stage: Stage,
    output: Output,
    next_number: u64,
    out: Vec<ResponseEvent>,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Before the first event.
    Before,
    /// The question or call was seen, and the answer to it begins the response. What was said in between belongs to it.
    Asked {
        step: Box<str>,
        held: Vec<Recorded>,
    },
    Within(Head),
    /// The response is whole; everything after it is ignored.
    Over(Box<RawValue>),
    /// Events were lost, so nothing that follows has a number.
    Lost,
}

impl ResponseProjector {
    /// What a reader of this response gives to [`Projection::new`].
    pub fn name(id: &ResponseId, agent: &str) -> String {
        format!("{id} {agent}")
    }

    /// The response as it stands now; none before it has begun, and where its beginning is lost.
    pub fn response(&self) -> Option<Box<RawValue>> {
        match &self.stage {
            Stage::Before | Stage::Asked { .. } | Stage::Lost => None,
            Stage::Within(head) => Some(self.with_output(head, &State::of("in_progress"))),
            Stage::Over(whole) => Some(whole.clone()),
        }
    }

    fn with_output(&self, head: &Head, state: &State<'_>) -> Box<RawValue> {
        let items = self.output.items();
        head.with(state, &items.iter().map(|item| &**item).collect::<Vec<_>>())
    }

    fn project(&mut self, event: &Recorded) {
        // What we logged ourselves can be read; anything else says nothing here.
        let Some(view) = event.view() else { return };
        match &mut self.stage {
            Stage::Over(_) | Stage::Lost => {}
            Stage::Before if Wait::of(&view).is_some() => {
                let step = view.step_id.and_then(string).unwrap_or_default();
                self.stage = Stage::Asked { step: step.into(), held: Vec::new() };
            }
            Stage::Before => {
                let is_message = view.event == names::USER_MESSAGE;
                self.begin(event, is_message.then_some(view.content));
                if !is_message {
                    self.handle_view(event, &view);
                }
            }
            Stage::Asked { step, held } => {
                let is_answer =
                    view.event == names::USER_RESPONSE && view.step_id.and_then(string).as_deref() == Some(&**step);
                if !is_answer {
                    return held.push(event.clone());
                }
                let held = std::mem::take(held);
                self.begin(event, Some(view.content));
                held.iter().for_each(|event| self.project(event));
            }
            Stage::Within(_) => self.handle_view(event, &view),
        }
    }

    /// Begins the response. The content of the event that begins it may hold what was asked for.
    fn begin(&mut self, event: &Recorded, content: Option<&RawValue>) {
        #[derive(Default, Deserialize)]
        struct Asked<'a> {
            #[serde(borrow, default)]
            response: Option<&'a RawValue>,
        }
        // A list would be read as a struct too.
        let object = content.filter(|content| content.get().starts_with('{'));
        let asked: Asked<'_> = object.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        let head = Head::new(&self.id, &self.agent, logged_at(event), asked.response);
        for kind in ["response.created", "response.in_progress"] {
            let response = self.with_output(&head, &State::of("in_progress"));
            self.say(kind, &WithResponse { response: &response });
        }
        self.stage = Stage::Within(head);
    }

    /// Ends the response: its last event holds all of it.
    fn end(&mut self, kind: &'static str, state: &State<'_>) {
        let Stage::Within(head) = &self.stage else { return };
        let response = self.with_output(head, state);
        self.say(kind, &WithResponse { response: &response });
        self.stage = Stage::Over(response);
    }

    fn say(&mut self, kind: &'static str, body: &impl Serialize) {
        self.out.push(ResponseEvent::new(self.next_number, kind, body));
        self.next_number += 1;
    }
}

#[derive(Serialize)]
struct WithResponse<'a> {
    response: &'a RawValue,
}

/// When an event was logged, in seconds since 1970.
pub fn logged_at(event: &Recorded) -> u64 {
    #[derive(Deserialize)]
    struct Dated<'a> {
        timestamp: &'a str,
    }
    serde_json::from_slice::<Dated<'_>>(&event.bytes).map_or(0, |dated| unix_seconds(dated.timestamp))
}

impl Projection for ResponseProjector {
    type Output = ResponseEvent;
    type Mark = ();
    type Fold = Unfolded;

    const INDEX: Option<&'static str> = None;
    const SSE_END: &'static [u8] = b"data: [DONE]\n\n";

    /// `name` is what [`ResponseProjector::name`] made.
    fn new(name: &str) -> ResponseProjector {
        let (id, agent) = name.split_once(' ').unwrap_or((name, ""));
        let log = ResponseId::parse(id).map_or_else(|| id.to_owned(), |id| id.log.as_str().to_owned());
        ResponseProjector {
            id: id.into(),
            agent: agent.into(),
            stage: Stage::Before,
            output: Output::new(&log),
            next_number: 0,
            out: Vec::new(),
        }
    }

    fn resumed(name: &str, _: &OpenParts<()>) -> ResponseProjector {
        ResponseProjector { stage: Stage::Lost, ..ResponseProjector::new(name) }
    }

    fn can_frame(_: &OpenParts<()>) -> bool {
        false
    }

    fn handle_event(&mut self, event: &Recorded, out: &mut Vec<ResponseEvent>) {
        self.project(event);
        out.append(&mut self.out);
    }

    fn pass_event(&mut self, event: &Recorded) {
        self.project(event);
        self.out.clear();
    }

    fn split_event(&mut self, event: &Recorded, has: u32, _: bool, out: &mut Vec<ResponseEvent>) {
        self.project(event);
        out.extend(self.out.drain(..).skip(has as usize));
    }

    fn framing(&mut self, _: &mut Vec<ResponseEvent>) {}

    fn gap_notice(lost: u64, first_retained: Seq, _: ClientParser) -> ResponseEvent {
        ResponseEvent::error(0, ErrorCode::ReplayGap, &gap_message(lost, first_retained))
    }

    /// Where the beginning is gone there are no numbers, so the stream ends here.
    fn gap(&mut self, _: ClientParser, lost: u64, first: Seq, _: Option<&OpenParts<()>>, out: &mut Vec<ResponseEvent>) {
        if self.is_over() {
            return;
        }
        out.push(ResponseEvent::error(self.next_number, ErrorCode::ReplayGap, &gap_message(lost, first)));
        self.stage = Stage::Lost;
    }

    fn lose(&mut self) {
        if !self.is_over() {
            self.stage = Stage::Lost;
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over(_) | Stage::Lost)
    }

    fn is_inexact(&self) -> bool {
        false
    }

    fn is_shareable(&self) -> bool {
        !self.is_over()
    }

    fn open_parts(&self) -> OpenParts<()> {
        OpenParts::default()
    }

    fn take_changed(&mut self) -> bool {
        false
    }

    fn dropped() -> ResponseEvent {
        let message = "The session ended before the message had its turn.";
        ResponseEvent::error(0, ErrorCode::SessionInactive, message)
    }

    fn encode_sse(event: &ResponseEvent, _: &Epoch, out: &mut Vec<u8>) {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(event.kind.as_bytes());
        out.extend_from_slice(b"\ndata: ");
        out.extend_from_slice(&event.json);
        out.extend_from_slice(b"\n\n");
    }

    fn len(event: &ResponseEvent) -> usize {
        event.json.len() + event.kind.len() + 32
    }
}

fn gap_message(lost: u64, first_retained: Seq) -> String {
    format!("{lost} events before {first_retained} are no longer kept, so the response cannot be streamed from here.")
}

/// Events are never merged: their numbers are counted by those who come back.
#[derive(Debug, Default)]
pub struct Unfolded;

impl<O> Fold<O> for Unfolded {
    fn push(&mut self, output: O, out: &mut Vec<O>) {
        out.push(output);
    }

    fn flush(&mut self, _: &mut Vec<O>) {}
}
