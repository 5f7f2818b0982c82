//! One client attached to one session: a cursor into its log, and what the client is owed next.
//!
//! Replay is reading; live is reading after a wake-up. There is no third thing, so there is no hand-over.

use std::collections::VecDeque;

use bowline_mutant::mutant;
use bowline_protocol::frame::Control;
use bowline_protocol::{Cursor, Epoch, Extent, Recorded, Seq, SessionId};
use serde_json::json;

use crate::resume::Resume;

/// The most events asked of the log at once; small enough that one busy session does not starve others on the
/// same connection, large enough that one flush carries many.
pub const READ_EVENTS_MAX: usize = 512;

#[derive(Debug)]
pub struct Link {
    session: SessionId,
    epoch: Epoch,
    /// The next event to send.
    next: Seq,
    /// Everything up to here was sent, or the client said that it has it.
    sent: Seq,
    acked: Seq,
    /// What the client said it had when it came, which may be more than there is.
    claimed: Seq,
    phase: LinkPhase,
    output: VecDeque<Output>,
}

#[derive(Debug)]
enum LinkPhase {
    /// Owed events up to and including `to` come first, then the notice that says so.
    Replaying {
        verdict: Resume,
        from: Seq,
        to: Seq,
        replayed: u64,
    },
    Live,
}

/// What the driver should do next.
#[derive(Debug)]
pub enum Output {
    Control(Control),
    Events(Vec<Recorded>),
    /// The owed events have all been handed over.
    Replayed {
        verdict: Resume,
        replayed: u64,
    },
    /// A live reader was trimmed past; the gap has been reported to it.
    Skipped {
        lost: u64,
    },
}

/// An ack for something that was never sent. Nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckBeyondSent {
    pub acked: Seq,
    pub sent: Seq,
}

impl Link {
    /// Attaches to a session that was just made: nothing is owed, and no notice is sent.
    pub fn fresh(session: SessionId, extent: &Extent) -> Link {
        Link {
            session,
            epoch: extent.epoch.clone(),
            next: extent.next,
            sent: extent.last(),
            acked: Seq::ZERO,
            claimed: Seq::ZERO,
            phase: LinkPhase::Live,
            output: VecDeque::new(),
        }
    }

    /// Attaches a client that comes back. What it claims to have counts as sent.
    pub fn resume(session: SessionId, extent: &Extent, verdict: Resume) -> Link {
        let from = verdict.start(extent);
        let mut link = Link { next: from, sent: from.prev(), ..Link::fresh(session, extent) };
        link.phase = LinkPhase::Replaying { verdict, from, to: extent.last(), replayed: 0 };
        link.settle();
        link
    }

    /// What the client said it had when it came. An ack of it is no news, and no mistake either.
    #[must_use]
    pub fn claiming(self, claimed: Option<Seq>) -> Link {
        Link { claimed: claimed.unwrap_or(Seq::ZERO), ..self }
    }

    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// The epoch that its numbers belong to.
    pub fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    /// The last event that was sent.
    pub fn sent(&self) -> Seq {
        self.sent
    }

    pub fn acked(&self) -> Seq {
        self.acked
    }

    /// What to read once there is no output left: from which event on, and how many at most.
    pub fn poll_read(&self) -> (Seq, usize) {
        // While replaying, read no further than what is owed, so that the notice stands before the first live event.
        let wanted = match &self.phase {
            LinkPhase::Replaying { to, .. } => self.next.until(to.next()) as usize,
            LinkPhase::Live => READ_EVENTS_MAX,
        };
        (self.next, wanted.min(READ_EVENTS_MAX))
    }

    /// Takes what was read.
    pub fn handle_events(&mut self, events: Vec<Recorded>) {
        debug_assert!(events.first().is_none_or(|event| event.seq == self.next), "the log skipped an event");
        if let Some(last) = events.last().map(|event| event.seq) {
            if let LinkPhase::Replaying { replayed, .. } = &mut self.phase {
                *replayed += events.len() as u64;
            }
            self.next = last.next();
            self.sent = last;
            self.output.push_back(Output::Events(events));
        }
        self.settle();
    }

    /// What was to be read is no longer retained; the log begins with `first` now.
    pub fn handle_gap(&mut self, first: Seq) {
        if first > self.next && mutant("tell-no-gap-while-reading") {
            (self.next, self.sent) = (first, first.prev());
            self.settle();
        } else if first > self.next {
            self.skip_to(first);
            self.settle();
        }
    }

    /// The client says what it has. Lower and repeated acks are no-ops; one beyond what was sent is refused.
    pub fn handle_ack(&mut self, cursor: &Cursor) -> Result<Option<Seq>, AckBeyondSent> {
        if cursor.epoch.as_ref().is_some_and(|epoch| *epoch != self.epoch) {
            return Ok(None);
        }
        if cursor.seq > self.sent && cursor.seq <= self.claimed {
            return Ok(None);
        }
        if cursor.seq > self.sent {
            return Err(AckBeyondSent { acked: cursor.seq, sent: self.sent });
        }
        if cursor.seq <= self.acked {
            return Ok(None);
        }
        self.acked = cursor.seq;
        Ok(Some(cursor.seq))
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        self.output.pop_front()
    }

    fn skip_to(&mut self, first: Seq) {
        let lost = self.next.until(first);
        let verdict = Resume::Gap { first, lost };
        let facts = json!({
            "code": verdict.code().map(|code| code.as_str()),
            "recovery_action": verdict.code().map(|code| code.action().as_str()),
            "first_retained_seq": first.get(),
            "lost": lost,
            "from_seq": self.next.get(),
            "to_seq": first.prev().get(),
        });
        let sentence = format!("{lost} events ({} to {}) are no longer retained.", self.next, first.prev());
        self.output.push_back(Output::Control(Control::notice(Some(self.session.clone()), sentence, facts)));
        self.output.push_back(Output::Skipped { lost });
        self.next = first;
        self.sent = first.prev();
    }

    /// Tells that the replay is complete as soon as it is.
    fn settle(&mut self) {
        let LinkPhase::Replaying { verdict, from, to, replayed } = self.phase else { return };
        let owed = if mutant("notice-before-the-last-owed") && to > from { to.prev() } else { to };
        if self.next <= owed {
            return;
        }
        self.phase = LinkPhase::Live;
        self.output.push_back(Output::Control(replay_notice(&self.session, verdict, from, to, replayed)));
        self.output.push_back(Output::Replayed { verdict, replayed });
    }
}

fn replay_notice(session: &SessionId, verdict: Resume, from: Seq, to: Seq, replayed: u64) -> Control {
    let mut facts = json!({ "action": "replay", "replayed": replayed, "from_seq": from.get(), "to_seq": to.get() });
    if let Some(code) = verdict.code() {
        facts["code"] = code.as_str().into();
        facts["recovery_action"] = code.action().as_str().into();
    }
    if let Resume::Gap { first, lost } = verdict {
        facts["first_retained_seq"] = first.get().into();
        facts["lost"] = lost.into();
    }
    let sentence = match verdict {
        Resume::CaughtUp => "You have everything.".to_owned(),
        Resume::Replay { .. } => format!("{replayed} missed events were replayed."),
        Resume::Gap { lost, .. } => format!("{lost} events are no longer retained; {replayed} were replayed."),
        Resume::OtherEpoch { .. } => {
            format!("Your position is from another epoch of this log; {replayed} events were replayed.")
        }
        Resume::AheadOfLog => "Your position is beyond the end of this log; only new events follow.".to_owned(),
    };
    Control::notice(Some(session.clone()), sentence, facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(n: u64) -> Seq {
        Seq::new(n).unwrap()
    }

    fn link(first: u64, next: u64, cursor: u64) -> Link {
        let extent =
            Extent { epoch: Epoch::parse("e").unwrap(), epoch_first: seq(1), first: seq(first), next: seq(next) };
        let verdict = Resume::decide(&extent, &Cursor::bare(seq(cursor)));
        Link::resume(SessionId::from_random(1), &extent, verdict)
    }

    fn events(range: std::ops::Range<u64>) -> Vec<Recorded> {
        range.map(|n| Recorded { seq: seq(n), bytes: Vec::new().into() }).collect()
    }

    #[test]
    fn bad_acks_change_nothing() {
        let mut link = link(1, 11, 4);
        let ack = |link: &mut Link, text: &str| link.handle_ack(&Cursor::parse(text).unwrap());
        assert_eq!(ack(&mut link, "5"), Err(AckBeyondSent { acked: seq(5), sent: seq(4) }));
        assert_eq!(ack(&mut link, "4"), Ok(Some(seq(4))));
        assert_eq!(ack(&mut link, "4"), Ok(None));
        assert_eq!(ack(&mut link, "2"), Ok(None));
        assert_eq!(ack(&mut link, "other-9"), Ok(None));
        assert_eq!(link.acked(), seq(4));
    }

    #[test]
    fn what_was_claimed_beyond_the_log_may_be_acknowledged_and_changes_nothing() {
        let mut link = link(1, 3, 9).claiming(Some(seq(9)));
        let ack = |link: &mut Link, n: u64| link.handle_ack(&Cursor::bare(seq(n)));
        for n in [9, 3, 5, 9] {
            assert_eq!((ack(&mut link, n), link.acked()), (Ok(None), Seq::ZERO), "{n}");
        }
        assert_eq!(ack(&mut link, 10), Err(AckBeyondSent { acked: seq(10), sent: seq(2) }));
        assert_eq!(ack(&mut link, 2), Ok(Some(seq(2))), "what there is moves the mark");
    }

    #[test]
    fn the_notice_stands_between_the_owed_and_the_live_events() {
        let mut link = link(1, 4, 1);
        assert!(link.poll_output().is_none());
        assert_eq!(link.poll_read(), (seq(2), 2));
        link.handle_events(events(2..4));
        assert!(matches!(link.poll_output(), Some(Output::Events(e)) if e.len() == 2));
        assert!(matches!(link.poll_output(), Some(Output::Control(c)) if c.metadata["replayed"] == 2));
        assert!(matches!(link.poll_output(), Some(Output::Replayed { replayed: 2, .. })));
        assert!(link.poll_output().is_none());
        assert_eq!(link.poll_read(), (seq(4), READ_EVENTS_MAX));
    }

    #[test]
    fn a_reader_that_is_trimmed_past_is_told_before_its_next_event() {
        let mut link = link(1, 4, 3);
        while link.poll_output().is_some() {}
        link.handle_gap(seq(90));
        link.handle_events(events(90..100));
        let Some(Output::Control(notice)) = link.poll_output() else { panic!() };
        assert_eq!(notice.metadata["code"], "REPLAY_GAP");
        assert_eq!(notice.metadata["lost"], 86);
        assert!(matches!(link.poll_output(), Some(Output::Skipped { lost: 86 })));
        assert!(matches!(link.poll_output(), Some(Output::Events(e)) if e.len() == 10));
    }
}
