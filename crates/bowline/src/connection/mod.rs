//! One client's connection: its links to sessions, what waits to be sent to it, and its standing with us.

mod context;
mod pulse;
mod requests;
mod watching;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_actor::ActorHost as _;
use bowline_core::link::{Link, Output};
use bowline_core::{Bucket, Heartbeat};
use bowline_env::{clock, entropy};
use bowline_protocol::frame::{Control, names};
use bowline_protocol::{CloseCode, ConnectionId, ErrorCode, Refusal, Seq, SessionId, event};
use bowline_store::budget::HeldBytes;
use bowline_store::{FollowError, Followed, Follower, ReadLimit, StoreError, WakeSet};
use bytes::Bytes;
use serde_json::json;

pub use context::ConnectionContext;
use watching::Watching;

use crate::auth::{Credential, Identity, SUBPROTOCOL, Validity};
use crate::refusals;
use crate::session::{
    self, AttachOrigin, CommandSender, Grant, Mail, MailReceiver, Mailbox, SessionCommand, SessionRequest,
};

/// An empty outbox that once held more frames than this gives its memory back.
const OUTBOX_FRAMES_KEPT: usize = 256;
/// Sessions that a connection lost and still gets a precise error for. For the oldest of more, the error is that there is no
/// such session, which is true for all it can do with it.
const LOST_MAX: usize = 64;
/// About what an answer takes, for answers that are still on their way from a session.
const ANSWER_BYTES: usize = 512;

pub struct Connection {
    context: Arc<ConnectionContext>,
    id: ConnectionId,
    mailbox: Mailbox,
    standing: ClientIdentity,
    /// How long the newest credential is good, until the driver takes it to wait for its end.
    validity: Option<Validity>,
    links: Vec<Attachment>,
    watches: Vec<Watching>,
    /// Sessions that this connection was attached to and is not any more, the newest last.
    lost: Vec<SessionId>,
    /// Sessions that were asked for and not yet granted.
    attaching: Vec<SessionId>,
    next_token: u64,
    wake: Arc<WakeSet>,
    outbox: VecDeque<Bytes>,
    outbox_bytes: usize,
    /// What of it counts against the memory of all readers.
    held: HeldBytes,
    heart: Heartbeat,
    bucket: Bucket,
    bad_frames: u32,
    /// Sessions that want to know whether we are alive.
    probed: Vec<SessionId>,
    ping_due: bool,
    taken_over: bool,
    close: Option<CloseCode>,
}

/// Who is on the other side.
#[derive(Debug)]
enum ClientIdentity {
    /// Not known yet: the first frame must authenticate, in time.
    Unknown { until: Instant },
    Known {
        identity: Identity,
        /// When it will expire, to say so before.
        expires: Option<Instant>,
        warned: bool,
    },
}

struct Attachment {
    token: u64,
    follower: Follower,
    link: Link,
    observe: bool,
    since: Instant,
    /// The session is over with this event: once that was sent, so is the link.
    over: Option<Seq>,
    /// The reader was trimmed past.
    skipped: bool,
}

impl Connection {
    pub fn new(context: Arc<ConnectionContext>, credential: Option<Credential>) -> (Box<Connection>, MailReceiver) {
        let now = clock::now();
        let (mailbox, inbox) = Mailbox::new();
        let (standing, validity) = match credential {
            Some(Credential { identity, validity }) => (known(identity, now), Some(validity)),
            None => (ClientIdentity::Unknown { until: now + context.config.auth.first_frame_timeout }, None),
        };
        let mut connection = Connection {
            id: ConnectionId::from_random(entropy::u128()),
            mailbox,
            standing,
            validity,
            links: Vec::new(),
            watches: Vec::new(),
            lost: Vec::new(),
            attaching: Vec::new(),
            next_token: 0,
            wake: WakeSet::new(),
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            held: HeldBytes::new(&context.readers.budget),
            heart: Heartbeat::new(now, context.config.heartbeat.interval),
            bucket: Bucket::new(now, context.config.limits.events_per_second),
            bad_frames: 0,
            probed: Vec::new(),
            ping_due: false,
            taken_over: false,
            close: None,
            context,
        };
        connection.greet();
        (Box::new(connection), inbox)
    }

    pub fn id(&self) -> &ConnectionId {
        &self.id
    }

    pub fn wake(&self) -> Arc<WakeSet> {
        self.wake.clone()
    }

    /// A new credential, once: its end is then the connection's, as long as there is no newer one.
    pub fn take_validity(&mut self) -> Option<Validity> {
        self.validity.take()
    }

    fn greet(&mut self) {
        let limits = &self.context.config.limits;
        let interval = self.context.config.heartbeat.interval;
        let facts = json!({
            "connection_id": self.id,
            "server_version": env!("CARGO_PKG_VERSION"),
            "protocol": SUBPROTOCOL,
            "heartbeat_interval_ms": interval.as_millis() as u64,
            "heartbeat_interval_seconds": interval.as_secs_f64(),
            "limits": {
                "frame_bytes_max": limits.frame_bytes_max,
                "message_bytes_max": limits.message_bytes_max,
                "json_depth_max": limits.json_depth_max,
                "events_per_second": limits.events_per_second,
                "bad_frames_max": limits.bad_frames_max,
                "sessions_per_connection_max": limits.sessions_per_connection_max,
            },
            "capabilities": session::capabilities(),
            "authenticated": matches!(self.standing, ClientIdentity::Known { .. }),
        });
        self.say(&Control::new(names::CONNECTED, None, facts.clone(), facts));
        if self.context.lifecycle.is_draining() {
            self.handle_draining();
        }
    }

    /// Queues a control frame.
    fn say(&mut self, control: &Control) {
        self.push(control.encode(&clock::timestamp()));
    }

    fn push(&mut self, bytes: Bytes) {
        self.outbox_bytes += bytes.len();
        self.outbox.push_back(bytes);
    }

    fn refuse(&mut self, session: Option<SessionId>, refusal: &Refusal) {
        self.context.metrics.refusals.inc(refusal.code.as_str());
        self.say(&Control::refusal(session, refusal));
    }

    /// What to send next.
    pub fn pop(&mut self) -> Option<Bytes> {
        let bytes = self.outbox.pop_front()?;
        self.outbox_bytes -= bytes.len();
        if self.outbox.is_empty() {
            self.held.set(0);
        }
        if self.outbox.is_empty() && self.outbox.capacity() > OUTBOX_FRAMES_KEPT {
            // An idle connection needs no room for a burst.
            self.outbox = VecDeque::new();
        }
        Some(bytes)
    }

    pub fn has_output(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// The socket would take no more for now.
    pub fn handle_full(&self) {
        self.context.metrics.send_window_full.inc();
    }

    pub fn wants_ping(&self) -> bool {
        self.ping_due
    }

    pub fn take_ping(&mut self) -> bool {
        std::mem::take(&mut self.ping_due)
    }

    pub fn closing(&self) -> Option<CloseCode> {
        self.close
    }

    pub fn close(&mut self, code: CloseCode) {
        self.close.get_or_insert(code);
    }

    /// Whether the next client frame may be read: not while answers to earlier ones pile up.
    pub fn may_read(&self, waiting_mail: usize) -> bool {
        self.outbox_bytes + waiting_mail * ANSWER_BYTES < self.context.config.limits.send_window_bytes * 2
    }

    /// Anything at all came in.
    pub async fn handle_heard(&mut self) {
        self.heart.handle_heard(clock::now());
        for session in std::mem::take(&mut self.probed) {
            self.command_quietly(&session, SessionRequest::Alive).await;
        }
    }

    /// Something asked of a session by this connection.
    fn asking(&self, session: &SessionId, ask: SessionRequest) -> SessionCommand {
        let linked = self.links.iter().any(|attached| attached.link.session() == session);
        let mailbox = self.mailbox.asking(linked || self.lost.contains(session));
        SessionCommand::new(CommandSender::Connection(mailbox), ask)
    }

    /// Sends a command whose failure is not reported.
    async fn command_quietly(&mut self, session: &SessionId, ask: SessionRequest) {
        if let ClientIdentity::Known { identity, .. } = &self.standing {
            let (asker, command) = (identity.principal.clone(), self.asking(session, ask));
            let _ = self.context.sessions.send(session, &asker, command).await;
        }
    }

    pub async fn handle_mail(&mut self, mail: Mail) {
        match mail {
            Mail::Granted(grant) => self.granted(*grant),
            Mail::Control(control) => self.say(&control),
            Mail::Refused { session, refusal, origin } => self.handle_refused(session, &refusal, origin),
            Mail::Probe { session } => {
                self.probed.push(session);
                self.ping_due = true;
            }
            Mail::TakenOver { session } => {
                self.lose(&session);
                self.taken_over = true;
                let code = ErrorCode::SessionTakenOver;
                let facts =
                    json!({ "code": code.as_str(), "action": "taken_over", "recovery_action": code.action().as_str() });
                self.say(&Control::notice(Some(session), "Another connection has taken the session over.", facts));
            }
            // The client reconnects by itself with its cursor, and learns then what became of its session.
            Mail::Cut { session } => {
                if self.is_linked(&session) {
                    self.cut(&session).await;
                }
            }
            Mail::Superseded { session, by } => {
                self.lose(&session);
                let facts = json!({ "reason": "superseded", "superseded_by": by });
                let text = "The session goes on under a new id.".into();
                self.say(&Control::new(event::names::SESSION_END, Some(session), text, facts));
            }
            Mail::Over { session, last } => {
                for attached in self.links.iter_mut().filter(|attached| *attached.link.session() == session) {
                    attached.over = Some(last);
                }
            }
        }
    }

    /// A session cannot be followed any further here. What is in its log by now still goes out.
    async fn cut(&mut self, session: &SessionId) {
        if !self.context.lifecycle.is_draining() {
            return self.close(CloseCode::Interrupted);
        }
        let of_session = |attached: &&mut Attachment| attached.link.session() == session;
        self.links.iter_mut().filter(of_session).for_each(|attached| attached.follower.wake());
        Box::pin(self.pump()).await;
        self.close(CloseCode::Restart);
    }

    fn handle_refused(&mut self, session: SessionId, refusal: &Refusal, origin: Option<AttachOrigin>) {
        if origin.is_some() {
            self.attaching.retain(|attaching| *attaching != session);
            tracing::info!(connection = %self.id, %session, code = %refusal.code, "reconnect refused");
        }
        if matches!(origin, Some(AttachOrigin::Recover | AttachOrigin::Restored)) {
            self.context.metrics.refusals.inc(refusal.code.as_str());
            self.say(&Control::recovery_failed(Some(session), refusal));
        } else {
            self.refuse(Some(session), refusal);
        }
    }

    fn granted(&mut self, grant: Grant) {
        let Grant { session, claimed, log, observe, origin, extent, resume, position, since, greeting } = grant;
        self.attaching.retain(|attaching| *attaching != claimed);
        self.unlink(&session);
        self.taken_over = false;
        self.say(&greeting);
        let token = self.next_token;
        self.next_token += 1;
        let link = match origin {
            AttachOrigin::Created => Link::fresh(session, &extent),
            AttachOrigin::Reconnect | AttachOrigin::Recover | AttachOrigin::Restored => {
                self.context.metrics.reconnects.inc(resume.verdict());
                self.context.metrics.events_lost_per_reconnect.observe(resume.lost() as f64);
                Link::resume(session, &extent, resume).claiming(position)
            }
        };
        let (from, _) = link.poll_read();
        let follower = self.context.readers.logs.follow(&log, (&extent.epoch, from), &self.wake, token);
        self.links.push(Attachment { token, follower, link, observe, since, over: None, skipped: false });
    }

    fn unlink(&mut self, session: &SessionId) {
        self.links.retain(|attached| attached.link.session() != session);
    }

    /// Lets a link go, and remembers that the session was this connection's.
    fn lose(&mut self, session: &SessionId) {
        self.unlink(session);
        if self.lost.contains(session) {
            return;
        }
        if self.lost.len() >= LOST_MAX {
            self.lost.remove(0);
        }
        self.lost.push(session.clone());
    }

    /// A log that is gone or set aside cannot be followed: its reader gets an error and is detached. After any other failure, or in
    /// another epoch, the client keeps its position, and reconnects for the rest and for the verdict on it.
    async fn cannot_read(&mut self, at: usize, error: &FollowError) {
        let session = self.links[at].link.session().clone();
        let error = match error {
            FollowError::Store(error @ (StoreError::NoSuchLog | StoreError::Quarantined(_))) => error,
            error => {
                if matches!(error, FollowError::Store(_)) {
                    self.context.metrics.store_errors.inc("read");
                }
                tracing::warn!(%session, %error, "a read failed");
                return self.close(CloseCode::Interrupted);
            }
        };
        self.links.swap_remove(at);
        self.refuse(Some(session.clone()), &refusals::of_store(error));
        self.command_quietly(&session, SessionRequest::Detach).await;
    }

    /// Logs have grown, perhaps.
    pub fn handle_wake(&mut self) {
        for token in self.wake.take() {
            match self.links.iter_mut().find(|attached| attached.token == token) {
                Some(attached) => attached.follower.wake(),
                None => self.wake_watched(token),
            }
        }
    }

    /// Reads what the links are owed until the window is full.
    pub async fn pump(&mut self) {
        let window = self.window();
        let mut at = 0;
        while at < self.links.len() && self.outbox_bytes < window && self.close.is_none() {
            match self.links[at].link.poll_output() {
                None if self.read(at).await => {}
                None => at += 1,
                Some(Output::Control(control)) => {
                    if control.metadata.get("code").is_some() {
                        self.context.metrics.gaps_reported.inc();
                    }
                    self.say(&control);
                }
                Some(Output::Events(events)) => {
                    self.context.metrics.events_sent.inc_by(events.len() as u64);
                    // An event is a part of a larger buffer, which a client that takes nothing must not keep.
                    let tight = window < self.context.config.limits.send_window_bytes;
                    let own = |bytes: Bytes| if tight { Bytes::copy_from_slice(&bytes) } else { bytes };
                    events.into_iter().for_each(|event| self.push(own(event.bytes)));
                }
                Some(Output::Replayed { verdict, replayed }) => {
                    let elapsed = clock::since(self.links[at].since);
                    self.context.metrics.events_replayed.inc_by(replayed);
                    self.context.metrics.reconnect_seconds.observe(elapsed.as_secs_f64());
                    let (session, ms) = (self.links[at].link.session(), elapsed.as_secs_f64() * 1000.0);
                    let verdict_word = verdict.verdict();
                    tracing::info!(%session, connection = %self.id, verdict = verdict_word, replayed, lost = verdict.lost(), ms, "reconnected");
                }
                Some(Output::Skipped { lost }) => {
                    self.links[at].skipped = true;
                    tracing::info!(session = %self.links[at].link.session(), lost, "a reader was trimmed past");
                }
            }
        }
        self.let_go_of_ended().await;
        self.pump_watches().await;
        // The link that filled the window goes last next time, so that the others get their turn.
        if at > 0 && at < self.links.len() {
            self.links.rotate_left(at);
        }
        self.held.set(self.outbox_bytes);
    }

    /// How much may be read ahead of the socket: less, the more all readers hold.
    fn window(&self) -> usize {
        self.context.readers.budget.window(self.context.config.limits.send_window_bytes)
    }

    /// Links whose session is over are kept until its last event was sent, and not longer.
    async fn let_go_of_ended(&mut self) {
        let ended = |attached: &Attachment| attached.over.is_some_and(|last| attached.link.sent() >= last);
        while let Some(at) = self.links.iter().position(ended) {
            let attached = self.links.swap_remove(at);
            let session = attached.link.session().clone();
            self.lose(&session);
            if attached.skipped {
                // The gap was reported; this is the event at its end.
                let text = "The session is over.".into();
                self.say(&Control::new(event::names::SESSION_END, Some(session.clone()), text, json!({})));
            }
            self.command_quietly(&session, SessionRequest::Detach).await;
        }
    }

    /// The links to sessions that are not over.
    fn live_links(&self) -> impl Iterator<Item = &Attachment> {
        self.links.iter().filter(|attached| attached.over.is_none())
    }

    /// Reads on for a link. False if it has everything.
    async fn read(&mut self, at: usize) -> bool {
        let bytes = self.window();
        let Attachment { follower, link, .. } = &mut self.links[at];
        let (_, events) = link.poll_read();
        match self.context.readers.logs.next(follower, ReadLimit { events, bytes }).await {
            Ok(Followed::Events(events)) => link.handle_events(events),
            Ok(Followed::Gap { to, .. }) => link.handle_gap(to),
            Ok(Followed::Idle) => return false,
            Ok(Followed::Epoch(_)) => self.cannot_read(at, &FollowError::EpochChanged).await,
            Err(error) => self.cannot_read(at, &error.into()).await,
        }
        true
    }

    /// The connection is over: its sessions are let go. Their work goes on.
    pub async fn leave(mut self: Box<Self>) {
        let links: Vec<SessionId> = self.links.drain(..).map(|attached| attached.link.session().clone()).collect();
        for session in links.into_iter().chain(std::mem::take(&mut self.attaching)) {
            self.command_quietly(&session, SessionRequest::Detach).await;
        }
    }
}

fn known(identity: Identity, now: Instant) -> ClientIdentity {
    let left = identity.expires_at.map(|at| Duration::from_secs(at.saturating_sub(clock::unix_seconds())));
    // An expiry too far away to be an instant is none.
    ClientIdentity::Known { identity, expires: left.and_then(|left| now.checked_add(left)), warned: false }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({}, {} links)", self.id, self.links.len())
    }
}
