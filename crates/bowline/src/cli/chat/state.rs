//! The terminal client as a machine: it is told what happened and says what to do. No socket, clock, dice or screen.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bowline_core::Backoff;

use super::frames::{self, Attach};

/// Acks are gathered for this long, so that a fast stream costs few of them.
pub const ACK_EVERY: Duration = Duration::from_millis(200);
/// How often the line that counts down to the next try is redrawn.
const COUNTDOWN_EVERY: Duration = Duration::from_millis(100);
/// Until the server has told its heartbeat, an open socket that says nothing is given this long.
const GREETING_PATIENCE: Duration = Duration::from_secs(15);

const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60), 0.2);

/// How the client was started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub session: Option<String>,
    pub resume_token: Option<String>,
    pub take_over: bool,
    pub agent: Option<String>,
    /// Names this process, so that the server knows a returning connection for the same client.
    pub client_id: String,
    /// A person at a terminal, rather than a script.
    pub interactive: bool,
}

/// The time and one throw of the dice; both are the driver's.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub now: Instant,
    pub chance: f64,
}

#[derive(Clone, Debug)]
pub enum Input {
    Start,
    /// The socket is open.
    Opened,
    /// The socket could not be opened; `fatal` if trying again cannot help.
    DialFailed {
        reason: String,
        fatal: bool,
    },
    Frame(String),
    /// Something was heard that is no frame, such as a ping.
    Alive,
    Closed {
        code: Option<u16>,
        reason: String,
    },
    Line(String),
    NoMoreLines,
    Interrupt,
    /// [`Chat::poll_timeout`] has come.
    Timeout,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Dial,
    Hangup,
    Send(String),
    Show(Show),
    Leave(Leave),
}

/// What a person gets to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Show {
    /// A piece of the answer, as it comes.
    Delta(String),
    /// The whole answer. `rest` is what was not streamed yet.
    Answer {
        whole: String,
        rest: String,
    },
    Aside(String),
    Notice(String),
    Error(String),
    /// A message of the user that was not typed here and now.
    Said(String),
    Question(String),
    /// The state of a lost connection; replaces itself.
    Connection(String),
    /// The connection was lost just now, and why.
    Lost(String),
    /// Ready for the next line.
    Prompt,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    Done,
    /// A script that is through, but not every message got an answer; each was told when it happened.
    AfterErrors,
    Failed(String),
}

#[derive(Debug)]
pub(super) enum Link {
    Waiting {
        until: Instant,
        redraw_at: Instant,
    },
    Dialing,
    /// Open; the server has not said hello yet.
    Greeting,
    /// Asked for a session.
    Attaching,
    /// Held by another connection; the person is asked whether to take it over.
    Contested,
    /// Attached; the owed events are coming.
    Replaying,
    Live,
}

/// A message that was sent and is not in the log yet, as far as we know.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub message_id: String,
    pub text: String,
}

#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub step_id: String,
    pub question: String,
    /// What was answered; sent again after a break until the log shows it.
    pub answer: Option<bool>,
}

/// Where we stand in the session's log.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub epoch: Option<String>,
    pub seq: u64,
    pub known: bool,
}

impl Place {
    pub fn cursor(&self) -> Option<String> {
        let epoch = self.epoch.as_ref()?;
        self.known.then(|| format!("{epoch}-{}", self.seq))
    }
}

#[derive(Debug)]
pub struct Chat {
    pub(super) options: Options,
    pub(super) link: Link,
    pub(super) backoff: Backoff,
    pub(super) heartbeat: Option<Duration>,
    pub(super) heard_at: Instant,
    pub(super) retry_after: Duration,
    pub(super) session: Option<String>,
    pub(super) resume_token: Option<String>,
    /// Whether this process was ever attached; the first refusal is the user's, later ones are news.
    pub(super) was_attached: bool,
    pub(super) place: Place,
    pub(super) acked_seq: u64,
    ack_due: Option<Instant>,
    /// The number that a heartbeat told when we were behind it, to see whether we catch up by the next.
    pub(super) behind_at: Option<u64>,
    /// A hole in the numbers was met and the connection made anew because of it.
    pub(super) hole_met: bool,
    pub(super) looked_back: bool,
    pub(super) running: bool,
    pub(super) cancelling: bool,
    pub(super) streamed: String,
    pub(super) asks: VecDeque<Ask>,
    pub(super) lines: VecDeque<String>,
    pub(super) in_flight: Option<InFlight>,
    message_count: u64,
    input_ended: bool,
    pub(super) failed: bool,
    pub(super) effects: Vec<Effect>,
}

impl Chat {
    pub fn new(options: Options, now: Instant) -> Chat {
        Chat {
            session: options.session.clone(),
            resume_token: options.resume_token.clone(),
            options,
            link: Link::Dialing,
            backoff: BACKOFF,
            heartbeat: None,
            heard_at: now,
            retry_after: Duration::ZERO,
            was_attached: false,
            place: Place::default(),
            acked_seq: 0,
            ack_due: None,
            behind_at: None,
            hole_met: false,
            looked_back: false,
            running: false,
            cancelling: false,
            streamed: String::new(),
            asks: VecDeque::new(),
            lines: VecDeque::new(),
            in_flight: None,
            message_count: 0,
            input_ended: false,
            failed: false,
            effects: Vec::new(),
        }
    }

    pub fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    pub fn resume_token(&self) -> Option<&str> {
        self.resume_token.as_deref()
    }

    /// When to call again with [`Input::Timeout`], if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.link {
            Link::Waiting { until, redraw_at } => Some((*until).min(*redraw_at)),
            Link::Dialing => None,
            _ => {
                let silence = self.heard_at + self.patience();
                Some(self.ack_due.map_or(silence, |due| due.min(silence)))
            }
        }
    }

    pub fn handle(&mut self, at: Moment, input: Input) -> Vec<Effect> {
        match input {
            Input::Start => self.effects.push(Effect::Dial),
            Input::Opened => {
                self.link = Link::Greeting;
                self.heard_at = at.now;
            }
            Input::DialFailed { reason, fatal: true } => self.fail(reason),
            Input::DialFailed { reason, fatal: false } => self.lose(at, &reason),
            Input::Frame(text) => {
                self.heard_at = at.now;
                self.handle_frame(at, &text);
            }
            Input::Alive => self.heard_at = at.now,
            Input::Closed { code, reason } => self.handle_closed(at, code, &reason),
            Input::Line(line) => self.handle_line(at, line),
            Input::NoMoreLines => {
                self.input_ended = true;
                if self.options.interactive {
                    self.leave();
                }
            }
            Input::Interrupt => self.handle_interrupt(),
            Input::Timeout => self.handle_timeout(at),
        }
        self.advance();
        std::mem::take(&mut self.effects)
    }

    fn handle_timeout(&mut self, at: Moment) {
        match self.link {
            Link::Waiting { until, .. } if at.now >= until => {
                self.link = Link::Dialing;
                self.effects.push(Effect::Dial);
            }
            Link::Waiting { until, .. } => {
                self.link = Link::Waiting { until, redraw_at: at.now + COUNTDOWN_EVERY };
                self.show_countdown(until.duration_since(at.now));
            }
            Link::Dialing => {}
            _ if at.now >= self.heard_at + self.patience() => self.lose(at, "the server has gone silent"),
            _ => {
                if self.ack_due.is_some_and(|due| at.now >= due) {
                    self.send_ack();
                }
            }
        }
    }

    /// Two heartbeats without a sign of life are a lost connection.
    fn patience(&self) -> Duration {
        self.heartbeat.map_or(GREETING_PATIENCE, |interval| interval * 2)
    }

    fn handle_closed(&mut self, at: Moment, code: Option<u16>, reason: &str) {
        let because = if reason.is_empty() { "the connection was closed" } else { reason };
        match code {
            Some(4201) => self.fail(format!("{because}. To have it back: {} --take-over", self.way_back())),
            Some(4203) => self.fail(format!("{because}. Give a valid token with --token or BOWLINE_TOKEN.")),
            Some(4200..=4299) => self.fail(format!("the server asked us to stay away: {because}")),
            Some(4100..=4199) => {
                self.start_anew(because);
                self.lose(at, because);
            }
            // The server could not take what we sent; sending it again would end the same way.
            Some(1003 | 1007 | 1009) => {
                self.drop_in_flight(&format!("the message was refused: {because}"));
                self.lose(at, because);
            }
            _ => self.lose(at, because),
        }
    }

    /// `bowline chat --session …`, as far as the machine knows it.
    fn way_back(&self) -> String {
        format!("bowline chat --session {}", self.session.as_deref().unwrap_or("ID"))
    }

    fn handle_line(&mut self, at: Moment, line: String) {
        let word = line.trim();
        if word.is_empty() && self.options.interactive {
            return self.show_readiness();
        }
        if word == "/quit" {
            return self.leave();
        }
        if matches!(self.link, Link::Contested) {
            return match yes_or_no(word) {
                Some(true) => self.attach(true),
                Some(false) => self.leave(),
                None => self.show(Show::Question("Take it over? [y/n]".into())),
            };
        }
        let asked = self.options.interactive && self.asks.front().is_some_and(|ask| ask.answer.is_none());
        match (asked, yes_or_no(word)) {
            (true, Some(answer)) => self.answer(answer),
            (true, None) => self.show_readiness(),
            (false, _) => {
                if let Link::Waiting { until, .. } = &self.link
                    && self.options.interactive
                {
                    let left = until.saturating_duration_since(at.now);
                    self.show(Show::Notice("kept; it will be sent when the connection is back".into()));
                    self.show_countdown(left);
                }
                self.lines.push_back(line);
            }
        }
    }

    fn handle_interrupt(&mut self) {
        let can_cancel = self.running && !self.cancelling && matches!(self.link, Link::Live | Link::Replaying);
        match self.session.clone() {
            Some(session) if can_cancel => {
                self.cancelling = true;
                self.effects.push(Effect::Send(frames::cancel(&session)));
                self.show(Show::Notice("cancelling; Ctrl-C again leaves".into()));
            }
            _ => self.leave(),
        }
    }

    /// Does whatever the current state allows: answers, sends the next line, or leaves a script that is through.
    fn advance(&mut self) {
        if !matches!(self.link, Link::Live) || self.effects.iter().any(|effect| matches!(effect, Effect::Leave(_))) {
            return self.leave_if_idle();
        }
        if !self.options.interactive {
            self.answer_from_script();
        }
        if !self.running
            && self.in_flight.is_none()
            && let Some(text) = self.lines.pop_front()
        {
            self.message_count += 1;
            let message_id = format!("{}-{}", self.options.client_id, self.message_count);
            self.in_flight = Some(InFlight { message_id, text });
            self.send_in_flight();
        }
        self.leave_if_idle();
    }

    /// A script's next line answers if it is a yes or a no; anything else, or no line at all, declines.
    fn answer_from_script(&mut self) {
        if self.asks.front().is_none_or(|ask| ask.answer.is_some()) {
            return;
        }
        match self.lines.front().map(|line| yes_or_no(line.trim())) {
            Some(Some(answer)) => {
                self.lines.pop_front();
                self.answer(answer);
            }
            Some(None) => self.answer(false),
            None if self.input_ended => self.answer(false),
            None => {}
        }
    }

    fn leave_if_idle(&mut self) {
        let busy = self.running || self.in_flight.is_some() || !self.lines.is_empty();
        let settled = self.was_attached || self.options.session.is_none();
        if self.input_ended && !busy && settled {
            self.leave();
        }
    }

    fn answer(&mut self, confirmed: bool) {
        if let Some(ask) = self.asks.front_mut() {
            ask.answer = Some(confirmed);
            self.send_answer();
        }
    }

    pub(super) fn send_answer(&mut self) {
        let answered = self.asks.front().and_then(|ask| Some((ask.step_id.clone(), ask.answer?)));
        if let (Some((step_id, confirmed)), Some(session), Link::Live) = (answered, &self.session, &self.link) {
            self.effects.push(Effect::Send(frames::response(session, &step_id, confirmed)));
        }
    }

    pub(super) fn send_in_flight(&mut self) {
        if let (Some(message), Some(session)) = (&self.in_flight, &self.session) {
            self.effects.push(Effect::Send(frames::message(session, &message.message_id, &message.text)));
        }
    }

    pub(super) fn drop_in_flight(&mut self, why: &str) {
        if self.in_flight.take().is_some() {
            self.failed = true;
            self.show(Show::Error(why.to_owned()));
        }
    }

    /// Asks for the session that we know, or for a new one.
    pub(super) fn attach(&mut self, take_over: bool) {
        self.link = Link::Attaching;
        let frame = match &self.session {
            Some(session) => frames::reconnect(&Attach {
                session,
                last_event_id: self.place.cursor(),
                client_id: &self.options.client_id,
                resume_token: self.resume_token.as_deref(),
                take_over: take_over || (self.options.take_over && !self.was_attached),
            }),
            None => frames::create(&self.options.client_id, self.options.agent.as_deref()),
        };
        self.effects.push(Effect::Send(frame));
    }

    /// Forgets the session; what was typed and not taken goes to the next one.
    pub(super) fn start_anew(&mut self, why: &str) {
        self.show(Show::Notice(format!("{why}; starting a new session")));
        self.session = None;
        self.resume_token = None;
        self.place = Place::default();
        (self.acked_seq, self.ack_due) = (0, None);
        (self.running, self.cancelling) = (false, false);
        self.streamed.clear();
        self.asks.clear();
        if let Some(message) = self.in_flight.take() {
            self.lines.push_front(message.text);
        }
    }

    /// The connection is of no use any more: hang up, wait, and come back.
    pub(super) fn lose(&mut self, at: Moment, why: &str) {
        if matches!(self.link, Link::Waiting { .. }) {
            return;
        }
        if self.backoff.attempt() == 0 {
            self.show(Show::Lost(why.to_owned()));
        }
        let delay = self.backoff.next(at.chance).max(std::mem::take(&mut self.retry_after));
        self.link = Link::Waiting { until: at.now + delay, redraw_at: at.now + COUNTDOWN_EVERY };
        self.heartbeat = None;
        self.behind_at = None;
        self.effects.push(Effect::Hangup);
        self.show_countdown(delay);
    }

    fn show_countdown(&mut self, left: Duration) {
        let attempt = self.backoff.attempt();
        self.show(Show::Connection(format!(
            "reconnecting (attempt {attempt}, next try in {:.1} s)",
            left.as_secs_f64()
        )));
    }

    /// There is something new to acknowledge; it will be soon.
    pub(super) fn want_ack(&mut self, now: Instant) {
        self.ack_due.get_or_insert(now + ACK_EVERY);
    }

    /// Even if there is nothing new: the server takes it as a sign of life.
    pub(super) fn answer_heartbeat(&mut self) {
        self.acked_seq = self.acked_seq.min(self.place.seq.saturating_sub(1));
        self.send_ack();
    }

    fn send_ack(&mut self) {
        self.ack_due = None;
        if let (Some(session), Some(cursor), true) =
            (&self.session, self.place.cursor(), self.place.seq > self.acked_seq)
        {
            self.acked_seq = self.place.seq;
            self.effects.push(Effect::Send(frames::ack(session, &cursor)));
        }
    }

    /// Shows what the user may do now: answer a question, or type the next message.
    pub(super) fn show_readiness(&mut self) {
        match self.asks.front().filter(|ask| ask.answer.is_none()) {
            Some(ask) => {
                let question = format!("{} [y/n]", ask.question);
                self.show(Show::Question(question));
            }
            None if !self.running && matches!(self.link, Link::Live) => self.show(Show::Prompt),
            None => {}
        }
    }

    pub(super) fn show(&mut self, show: Show) {
        self.effects.push(Effect::Show(show));
    }

    pub(super) fn fail(&mut self, why: String) {
        self.effects.push(Effect::Leave(Leave::Failed(why)));
    }

    /// What was shown is acknowledged first, so that coming back does not show it again.
    fn leave(&mut self) {
        if self.effects.iter().any(|effect| matches!(effect, Effect::Leave(_))) {
            return;
        }
        if matches!(self.link, Link::Live | Link::Replaying) {
            self.send_ack();
        }
        let leave = if self.failed && !self.options.interactive { Leave::AfterErrors } else { Leave::Done };
        self.effects.push(Effect::Leave(leave));
    }
}

fn yes_or_no(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "y" | "yes" => Some(true),
        "n" | "no" => Some(false),
        _ => None,
    }
}
