//! A connection's sense of time: heartbeats, credentials that expire, a server that is about to leave.

use std::time::{Duration, Instant};

use bowline_core::heartbeat::Pulse;
use bowline_env::{clock, entropy};
use bowline_protocol::frame::Control;
use bowline_protocol::{CloseCode, ErrorCode};
use bytes::Bytes;
use serde_json::json;

use super::{Attachment, ClientIdentity, Connection};
use crate::auth::{AuthError, validity};

/// A client gets a warning this long before its credential expires.
const EXPIRY_WARNING: Duration = Duration::from_secs(60);

impl Connection {
    /// When [`handle_timeout`](Connection::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Instant {
        let heart = self.heart.poll_timeout();
        match &self.standing {
            ClientIdentity::Unknown { until } => heart.min(*until),
            ClientIdentity::Known { expires: Some(at), warned: false, .. } => {
                heart.min(at.checked_sub(EXPIRY_WARNING).unwrap_or(*at))
            }
            ClientIdentity::Known { .. } => heart,
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        match self.heart.handle_timeout(now) {
            Some(Pulse::Lost) => {
                self.context.metrics.heartbeat_losses.inc();
                self.close(CloseCode::HeartbeatLost);
            }
            Some(Pulse::Beat) => self.beat(),
            None => {}
        }
        match &mut self.standing {
            ClientIdentity::Unknown { until } if *until <= now => self.close(CloseCode::Unauthorized),
            ClientIdentity::Known { expires: Some(at), warned, identity }
                if !*warned && *at <= now + EXPIRY_WARNING =>
            {
                *warned = true;
                let facts = json!({ "action": "token_expiring", "expires_at": identity.expires_at });
                self.say(&Control::notice(
                    None,
                    "Your credential is about to expire; send `user.authenticate`.",
                    facts,
                ));
            }
            _ => {}
        }
    }

    /// The credential that this connection came with, or refreshed, is good no more.
    pub fn handle_credential_ended(&mut self, why: AuthError) {
        self.refuse(None, &validity::ended(why));
        self.close(CloseCode::Unauthorized);
    }

    fn beat(&mut self) {
        if self.taken_over && self.links.is_empty() && self.attaching.is_empty() {
            // The client was notified, and nothing keeps the connection open any more.
            return self.close(CloseCode::TakenOver);
        }
        self.ping_due = true;
        // A client that does not read gets no heartbeats piled up; the ping is enough to find out about it.
        if !self.outbox.is_empty() {
            return;
        }
        let (time, uptime) = (clock::timestamp(), self.context.readers.logs.clock.uptime().as_secs());
        if self.live_links().next().is_none() {
            self.push(Control::heartbeat(None, &time, None, uptime).encode(&time));
        }
        let beat = |attached: &Attachment| {
            let (session, last) = (attached.link.session().clone(), attached.follower.end().prev().get());
            Control::heartbeat(Some(session), &time, Some(last), uptime).encode(&time)
        };
        let beats: Vec<Bytes> = self.live_links().map(beat).collect();
        beats.into_iter().for_each(|beat| self.push(beat));
    }

    /// The server is about to leave; come back a moment later, each at its own.
    pub fn handle_draining(&mut self) {
        let retry_after_ms = 500 + (entropy::chance() * 2500.0) as u64;
        let code = ErrorCode::ServerDraining;
        let facts = json!({
            "code": code.as_str(),
            "recovery_action": code.action().as_str(),
            "retry_after_ms": retry_after_ms,
        });
        self.say(&Control::notice(None, "The server is shutting down; reconnect in a moment.", facts));
    }
}
