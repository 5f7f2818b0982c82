//! The terminal client as a machine: it is told what happened and says what to do. No socket, clock, dice or screen.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bowline_core::Backoff;

use super::frames::{self, Attach};
use super::words::{Effect, Happened, Leave, Moment, Options, Show};

/// Acks are gathered for this long, so that a fast stream costs few of them.
pub const ACK_EVERY: Duration = Duration::from_millis(200);
/// How often the line that counts down to the next try is redrawn.
const COUNTDOWN_EVERY: Duration = Duration::from_millis(100);
/// Until the server has told its heartbeat, an open socket that says nothing is given this long.
const GREETING_PATIENCE: Duration = Duration::from_secs(15);

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
    pub(super) message_count: u64,
    pub(super) input_ended: bool,
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
            backoff: crate::cli::BACKOFF,
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

    /// When to call again with [`Happened::Timeout`], if nothing happens before.
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

    pub fn handle(&mut self, at: Moment, input: Happened) -> Vec<Effect> {
        match input {
            Happened::Start => self.effects.push(Effect::Dial),
            Happened::Opened => {
                self.link = Link::Greeting;
                self.heard_at = at.now;
            }
            Happened::DialFailed { reason, fatal: true } => self.fail(reason),
            Happened::DialFailed { reason, fatal: false } => self.lose(at, &reason),
            Happened::Frame(text) => {
                self.heard_at = at.now;
                self.handle_frame(at, &text);
            }
            Happened::Alive => self.heard_at = at.now,
            Happened::Closed { code, reason } => self.handle_closed(at, code, &reason),
            Happened::Line(line) => self.handle_line(at, line),
            Happened::NoMoreLines => {
                self.input_ended = true;
                if self.options.interactive {
                    self.leave();
                }
            }
            Happened::Interrupt => self.handle_interrupt(),
            Happened::Timeout => self.handle_timeout(at),
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

    pub(super) fn show_countdown(&mut self, left: Duration) {
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

    pub(super) fn send_ack(&mut self) {
        self.ack_due = None;
        if let (Some(session), Some(cursor), true) =
            (&self.session, self.place.cursor(), self.place.seq > self.acked_seq)
        {
            self.acked_seq = self.place.seq;
            self.effects.push(Effect::Send(frames::ack(session, &cursor)));
        }
    }

    pub(super) fn show(&mut self, show: Show) {
        self.effects.push(Effect::Show(show));
    }

    pub(super) fn fail(&mut self, why: String) {
        self.effects.push(Effect::Leave(Leave::Failed(why)));
    }
}
