//! Who may write to a session: at most one connection, and the newest granted claim wins.

use std::time::{Duration, Instant};

use bowline_mutant::mutant;
use bowline_protocol::ClientId;

/// How long a silent holder is given to answer a probe before the attacher takes its place.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection that holds or wants to hold, as the driver numbers them.
pub type ConnectionKey = u64;

#[derive(Clone, Debug, Default)]
pub struct Hold {
    holder: Option<CurrentHolder>,
    probe: Option<Probe>,
}

#[derive(Clone, Debug)]
struct CurrentHolder {
    connection: ConnectionKey,
    client_id: Option<ClientId>,
}

#[derive(Clone, Debug)]
struct Probe {
    attachers: Vec<CurrentHolder>,
    until: Instant,
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// The attacher holds it now; the previous holder must be notified, and so must those who waited for a probe: they
    /// lose to a live connection.
    Granted { superseded: Option<ConnectionKey>, refused: Vec<ConnectionKey> },
    /// Ask this holder whether it is alive; the attacher waits.
    Probe { holder: ConnectionKey },
    /// A probe is under way already; the attacher waits with the others.
    Wait,
}

/// How a probe ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeOutcome {
    pub granted: Option<ConnectionKey>,
    pub superseded: Option<ConnectionKey>,
    pub refused: Vec<ConnectionKey>,
}

impl Hold {
    pub fn holder(&self) -> Option<ConnectionKey> {
        self.holder.as_ref().map(|holder| holder.connection)
    }

    pub fn is_held_by(&self, connection: ConnectionKey) -> bool {
        self.holder() == Some(connection)
    }

    pub fn claim(
        &mut self,
        now: Instant,
        connection: ConnectionKey,
        client_id: Option<ClientId>,
        take_over: bool,
    ) -> ClaimAnswer {
        let attacher = CurrentHolder { connection, client_id };
        if let Some(probe) = &mut self.probe {
            // A connection that asks again means its newest question.
            probe.attachers.retain(|waiting| waiting.connection != connection);
        }
        let Some(holder) = &self.holder else {
            self.holder = Some(attacher);
            return ClaimAnswer::Granted { superseded: None, refused: Vec::new() };
        };
        let same_connection = holder.connection == connection;
        let same_client = attacher.client_id.is_some() && holder.client_id == attacher.client_id;
        if mutant("keep-the-old-holder") && take_over && !same_connection {
            return ClaimAnswer::Granted { superseded: None, refused: Vec::new() };
        }
        if same_connection || same_client || take_over {
            let superseded = Some(holder.connection).filter(|_| !same_connection);
            self.holder = Some(attacher);
            let waiting = self.probe.take().map(|probe| probe.attachers).unwrap_or_default();
            return ClaimAnswer::Granted {
                superseded,
                refused: waiting.into_iter().map(|waiting| waiting.connection).collect(),
            };
        }
        match &mut self.probe {
            Some(probe) => {
                probe.attachers.push(attacher);
                ClaimAnswer::Wait
            }
            None => {
                let holder = holder.connection;
                self.probe = Some(Probe { attachers: vec![attacher], until: now + PROBE_TIMEOUT });
                ClaimAnswer::Probe { holder }
            }
        }
    }

    /// The probed connection answered.
    pub fn handle_alive(&mut self, connection: ConnectionKey) -> Option<ProbeOutcome> {
        if !self.is_held_by(connection) {
            return None;
        }
        let probe = self.probe.take()?;
        let refused = probe.attachers.into_iter().map(|attacher| attacher.connection).collect();
        Some(ProbeOutcome { granted: None, superseded: None, refused })
    }

    /// A connection went away, or let go of the session.
    pub fn handle_gone(&mut self, connection: ConnectionKey) -> Option<ProbeOutcome> {
        if let Some(probe) = &mut self.probe {
            probe.attachers.retain(|attacher| attacher.connection != connection);
            if probe.attachers.is_empty() {
                // There is no attacher any more, so the holder keeps the session.
                self.probe = None;
            }
        }
        if !self.is_held_by(connection) {
            return None;
        }
        self.holder = None;
        self.settle(None)
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.probe.as_ref().map(|probe| probe.until)
    }

    /// The holder did not answer in time.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<ProbeOutcome> {
        self.probe.as_ref().filter(|probe| probe.until <= now)?;
        let superseded = self.holder.take().map(|holder| holder.connection);
        self.settle(superseded)
    }

    /// The hold is free: the newest attacher gets it, the others lose to a live connection.
    fn settle(&mut self, superseded: Option<ConnectionKey>) -> Option<ProbeOutcome> {
        let mut attachers = self.probe.take()?.attachers;
        let granted = attachers.pop();
        let refused = attachers.into_iter().map(|attacher| attacher.connection).collect();
        self.holder.clone_from(&granted);
        Some(ProbeOutcome { granted: granted.map(|holder| holder.connection), superseded, refused })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Instant {
        #[allow(clippy::disallowed_methods)]
        Instant::now()
    }

    fn client(name: &str) -> Option<ClientId> {
        ClientId::parse(name)
    }

    fn granted(superseded: Option<ConnectionKey>) -> ClaimAnswer {
        ClaimAnswer::Granted { superseded, refused: Vec::new() }
    }

    #[test]
    fn a_live_holder_keeps_the_session_and_a_silent_one_loses_it() {
        let t0 = now();
        let mut hold = Hold::default();
        assert_eq!(hold.claim(t0, 1, client("a"), false), granted(None));
        assert_eq!(hold.claim(t0, 2, client("b"), false), ClaimAnswer::Probe { holder: 1 });
        assert_eq!(hold.handle_alive(1), Some(ProbeOutcome { granted: None, superseded: None, refused: vec![2] }));
        assert_eq!(hold.claim(t0, 2, None, false), ClaimAnswer::Probe { holder: 1 });
        assert_eq!(hold.handle_timeout(t0), None);
        let outcome = hold.handle_timeout(t0 + PROBE_TIMEOUT).unwrap();
        assert_eq!((outcome.granted, outcome.superseded), (Some(2), Some(1)));
        assert!(hold.is_held_by(2));
        assert_eq!(hold.handle_alive(1), None);
    }

    #[test]
    fn the_same_client_and_an_explicit_take_over_win_at_once() {
        let t0 = now();
        let mut hold = Hold::default();
        hold.claim(t0, 1, client("a"), false);
        assert_eq!(hold.claim(t0, 2, client("a"), false), granted(Some(1)));
        assert_eq!(hold.claim(t0, 3, client("x"), true), granted(Some(2)));
        assert_eq!(hold.claim(t0, 3, client("x"), false), granted(None));
    }

    #[test]
    fn an_absent_client_id_matches_nothing() {
        let t0 = now();
        let mut hold = Hold::default();
        hold.claim(t0, 1, None, false);
        assert_eq!(hold.claim(t0, 2, None, false), ClaimAnswer::Probe { holder: 1 });
    }

    #[test]
    fn when_the_holder_leaves_during_a_probe_the_newest_attacher_gets_the_hold() {
        let t0 = now();
        let mut hold = Hold::default();
        hold.claim(t0, 1, client("a"), false);
        hold.claim(t0, 2, client("b"), false);
        assert_eq!(hold.claim(t0, 3, client("c"), false), ClaimAnswer::Wait);
        let outcome = hold.handle_gone(1).unwrap();
        assert_eq!(outcome, ProbeOutcome { granted: Some(3), superseded: None, refused: vec![2] });
    }

    #[test]
    fn a_take_over_during_a_probe_answers_the_claim_that_waited() {
        let t0 = now();
        let mut hold = Hold::default();
        hold.claim(t0, 1, client("a"), false);
        hold.claim(t0, 2, client("b"), false);
        // The claim that waited loses to a live connection, at once.
        assert_eq!(
            hold.claim(t0, 3, client("c"), true),
            ClaimAnswer::Granted { superseded: Some(1), refused: vec![2] }
        );
        assert_eq!((hold.poll_timeout(), hold.handle_timeout(t0 + PROBE_TIMEOUT)), (None, None));
        assert!(hold.is_held_by(3));
    }

    #[test]
    fn a_connection_that_waits_and_then_takes_over_does_not_supersede_itself() {
        let t0 = now();
        let mut hold = Hold::default();
        hold.claim(t0, 1, client("a"), false);
        hold.claim(t0, 2, client("b"), false);
        assert_eq!(hold.claim(t0, 2, client("b"), true), granted(Some(1)));
        assert_eq!(hold.handle_timeout(t0 + PROBE_TIMEOUT), None);
    }

    #[test]
    fn an_attacher_that_leaves_takes_its_claim_with_it() {
        let t0 = now();
        let mut hold = Hold::default();
        hold.claim(t0, 1, client("a"), false);
        hold.claim(t0, 2, client("b"), false);
        assert_eq!(hold.handle_gone(2), None);
        assert_eq!(hold.handle_timeout(t0 + PROBE_TIMEOUT), None);
        assert!(hold.is_held_by(1));
    }
}
