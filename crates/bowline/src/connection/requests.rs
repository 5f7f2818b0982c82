//! What a connection does with each client frame.

use bowline_actor::ActorHost as _;
use bowline_api::{Reply, WorkCommand};
use bowline_env::clock;
use bowline_mutant::mutant;
use bowline_protocol::frame::client::{Content, Secret};
use bowline_protocol::frame::{Attach, BadFrame, ClientFrame, Control};
use bowline_protocol::{CloseCode, Cursor, Epoch, ErrorCode, MessageId, Principal, Refusal, SessionId};
use serde_json::json;

use super::{ClientIdentity, Connection, known};
use crate::auth::{self, Credential, Identity};
use crate::secret::Presented;
use crate::session::export::ExportOptions;
use crate::session::registry::NewSession;
use crate::session::restore::{self, Restored};
use crate::session::{AttachOrigin, AttachRequest, SessionRequest};

impl Connection {
    /// One text frame of the client's.
    pub async fn handle_text(&mut self, text: &str) {
        self.context.metrics.frames_received.inc();
        let request = match ClientFrame::parse(text, self.context.config.limits.json_depth_max) {
            // Old clients ack from the start, before they have said who they are.
            Ok(ClientFrame::Ack { .. } | ClientFrame::Pong)
                if matches!(self.standing, ClientIdentity::Unknown { .. }) =>
            {
                return;
            }
            Ok(request) => request,
            Err(_) if matches!(self.standing, ClientIdentity::Unknown { .. }) => return self.not_known(),
            Err(bad) => return self.bad_frame(bad),
        };
        if !matches!(request, ClientFrame::Ack { .. } | ClientFrame::Pong)
            && let Err(wait) = self.bucket.take(clock::now())
        {
            self.context.metrics.limits_hit.inc("limits.events_per_second");
            let message = "You send more frames per second than limits.events_per_second allows. Slow down.";
            let refusal = Refusal::new(ErrorCode::RateLimited, message).retry_after_ms(wait.as_millis() as u64 + 1);
            return self.refuse(None, &refusal);
        }
        let identity = match (&self.standing, &request) {
            (_, ClientFrame::Authenticate { token }) => return Box::pin(self.authenticate(token)).await,
            (ClientIdentity::Known { identity, .. }, _) => identity.clone(),
            (ClientIdentity::Unknown { .. }, _) => return self.not_known(),
        };
        Box::pin(self.handle_request(request, identity)).await;
    }

    async fn handle_request(&mut self, request: ClientFrame, identity: Identity) {
        match request {
            ClientFrame::Ack { session, cursor, received_count, gap_detected } => {
                self.context.metrics.client_received.inc_by(received_count);
                self.ack(session, cursor, gap_detected, &identity).await;
            }
            ClientFrame::Pong | ClientFrame::Authenticate { .. } => {}
            ClientFrame::CreateSession { client_id, app_version, agent, config } => {
                let owner = identity.principal.clone();
                self.create(NewSession { owner, agent, client_id, app_version, config }).await;
            }
            ClientFrame::Reconnect(attach) => self.attach(attach, AttachOrigin::Reconnect, &identity).await,
            ClientFrame::Recover(attach) => self.attach(attach, AttachOrigin::Recover, &identity).await,
            ClientFrame::Message { session, message_id, content } => {
                self.message(session, message_id, content, &identity).await;
            }
            ClientFrame::Response { session, step_id, confirmed, tasks, reason } => {
                let reply = Reply { confirmed, tasks, reason };
                self.command(
                    session,
                    &identity,
                    SessionRequest::Response { step_id, reply, request: None, announce: None },
                )
                .await;
            }
            ClientFrame::Cancel { session, reason } => {
                let by = identity.principal.to_string();
                self.command(session, &identity, SessionRequest::Cancel { by, reason, turn: None }).await;
            }
            ClientFrame::Plan { session, command } => {
                let by = identity.principal.to_string();
                self.command(session, &identity, SessionRequest::Command { by, command: WorkCommand::Plan(command) })
                    .await;
            }
            ClientFrame::EndSession { session } => {
                let by = identity.principal.to_string();
                self.command(session, &identity, SessionRequest::End { by }).await;
            }
            ClientFrame::Restore { signed_state, attach } => self.restore(&signed_state, attach, &identity).await,
            ClientFrame::RequestState { session, options } => match ExportOptions::read(&options) {
                Err(refusal) => self.bad_frame(BadFrame { refusal, session, recovering: false }),
                Ok(options) => self.command(session, &identity, SessionRequest::Export(options)).await,
            },
            ClientFrame::WatchTask { task_id, last_message_id, resume_token } => {
                let shown = resume_token.as_ref().map(Presented::from);
                self.watch_task(&task_id, last_message_id.as_deref(), shown, &identity).await;
            }
            ClientFrame::UnwatchTask { task_id } => self.unwatch_task(&task_id),
        }
    }

    /// Nothing is served to a client that has not authenticated.
    fn not_known(&mut self) {
        self.refuse(None, &Refusal::new(ErrorCode::Unauthorized, "Send `user.authenticate` with a token first."));
        self.close(CloseCode::Unauthorized);
    }

    /// Whatever its shape, it is the frame that is wrong and not a session's run, so it is a `system.error`; except that
    /// a client that asked for a restore waits for a frame of its own.
    fn bad_frame(&mut self, BadFrame { refusal, session, recovering }: BadFrame) {
        self.bad_frames += 1;
        self.context.metrics.refusals.inc(refusal.code.as_str());
        self.say(&match recovering {
            true => Control::recovery_failed(session, &refusal),
            false => Control::bad_frame(session, &refusal),
        });
        if self.bad_frames >= self.context.config.limits.bad_frames_max {
            self.context.metrics.limits_hit.inc("limits.bad_frames_max");
            self.close(CloseCode::BadFrames);
        }
    }

    async fn authenticate(&mut self, token: &Secret) {
        let unauthorized = |message: &str| Refusal::new(ErrorCode::Unauthorized, message);
        let admitted = self.context.auth.admit(&auth::PresentedCredential::from(token), clock::unix_seconds()).await;
        let Credential { identity, validity } = match admitted {
            Ok(credential) => credential,
            Err(error) => {
                self.refuse(None, &error.into());
                if matches!(self.standing, ClientIdentity::Unknown { .. }) {
                    self.close(CloseCode::Unauthorized);
                }
                return;
            }
        };
        if let ClientIdentity::Known { identity: before, .. } = &self.standing
            && before.principal != identity.principal
        {
            let refusal = unauthorized("This token is another principal's. Open a connection of its own for it.");
            return self.refuse(None, &refusal);
        }
        let facts =
            json!({ "action": "authenticated", "expires_at": identity.expires_at, "principal": identity.principal });
        self.standing = known(identity, clock::now());
        self.validity = Some(validity);
        self.say(&Control::notice(None, "You are authenticated.", facts));
    }

    async fn create(&mut self, new: NewSession) {
        if let Err(refusal) = self.room_for_another() {
            return self.refuse(None, &refusal);
        }
        if let Err(refusal) = new.check(&self.context.sessions, "content.") {
            return self.refuse(None, &refusal);
        }
        let (owner, client_id) = (new.owner.clone(), new.client_id.clone());
        match self.context.sessions.create(new).await {
            Err(refusal) => self.refuse(None, &refusal),
            Ok(session) => {
                let attach = Attach { session: Some(session), client_id, ..Attach::default() };
                self.claim(attach, AttachOrigin::Created, owner).await;
            }
        }
    }

    fn room_for_another(&self) -> Result<(), Refusal> {
        let max = self.context.config.limits.sessions_per_connection_max;
        if self.live_links().count() + self.attaching.len() < max {
            return Ok(());
        }
        self.context.metrics.limits_hit.inc("limits.sessions_per_connection_max");
        let message = format!("This connection has {max} sessions already. Open another connection.");
        Err(Refusal::new(ErrorCode::TooManySessions, message).retry_after_ms(1000))
    }

    async fn attach(&mut self, attach: Attach, origin: AttachOrigin, identity: &Identity) {
        self.context.metrics.reconnect_attempts.inc();
        let session = match self.resolve(attach.session.clone()) {
            Ok(session) => session,
            Err(refusal) if origin == AttachOrigin::Recover => {
                return self.say(&Control::recovery_failed(None, &refusal));
            }
            Err(refusal) => return self.refuse(None, &refusal),
        };
        let attach = Attach { session: Some(session.clone()), ..attach };
        let again = self.is_linked(&session);
        let room = if again { Ok(()) } else { self.room_for_another() };
        match room {
            Err(refusal) => self.handle_refused(session, &refusal, Some(origin)),
            Ok(()) => self.claim(attach, origin, identity.principal.clone()).await,
        }
    }

    async fn claim(&mut self, attach: Attach, origin: AttachOrigin, principal: Principal) {
        self.claim_with(attach, origin, principal, None).await;
    }

    async fn claim_with(
        &mut self,
        attach: Attach,
        origin: AttachOrigin,
        principal: Principal,
        restored: Option<Box<Restored>>,
    ) {
        let Some(session) = attach.session else { return };
        self.attaching.push(session.clone());
        let request = AttachRequest {
            session: session.clone(),
            principal: principal.clone(),
            origin,
            cursor: attach.cursor,
            client_id: attach.client_id,
            proof: attach.resume_token.as_ref().map(Presented::from),
            observe: attach.observe,
            take_over: attach.take_over,
            restored,
            since: clock::now(),
        };
        let command = self.asking(&session, SessionRequest::Attach(Box::new(request)));
        if let Err(refusal) = self.context.sessions.send(&session, &principal, command).await {
            self.context.metrics.reconnect_refusals.inc(refusal.code.as_str());
            self.handle_refused(session, &refusal, Some(origin));
        }
    }

    /// The long way back with a signed state.
    async fn restore(&mut self, signed: &Content, attach: Attach, identity: &Identity) {
        self.context.metrics.reconnect_attempts.inc();
        let found = match self.room_for_another() {
            Ok(()) => {
                restore::restore(&self.context.sessions, &identity.principal, signed, attach.cursor.clone()).await
            }
            Err(refusal) => Err(refusal),
        };
        match found {
            Err(refusal) => {
                self.context.metrics.reconnect_refusals.inc(refusal.code.as_str());
                self.context.metrics.refusals.inc(refusal.code.as_str());
                self.say(&Control::recovery_failed(None, &refusal));
            }
            Ok(way) => {
                // A state makes a holder; watching is for `user.reconnect`.
                let attach = Attach { session: Some(way.claim), cursor: Some(way.cursor), observe: false, ..attach };
                self.claim_with(
                    attach,
                    AttachOrigin::Restored,
                    identity.principal.clone(),
                    Some(Box::new(way.restored)),
                )
                .await;
            }
        }
    }

    async fn message(
        &mut self,
        session: Option<SessionId>,
        message_id: Option<MessageId>,
        content: Content,
        identity: &Identity,
    ) {
        let max = self.context.config.limits.message_bytes_max;
        let bytes = content.bytes();
        if bytes > max {
            self.context.metrics.limits_hit.inc("limits.message_bytes_max");
            let message = format!("The message is {bytes} bytes long; limits.message_bytes_max is {max}.");
            return self.refuse(session, &Refusal::new(ErrorCode::MessageTooLarge, message));
        }
        self.command(session, identity, SessionRequest::Message { message_id, also: None, behind: None, content })
            .await;
    }

    /// Sends a command to a session, or says why not.
    async fn command(&mut self, session: Option<SessionId>, identity: &Identity, ask: SessionRequest) {
        let session = match self.resolve(session) {
            Ok(session) => session,
            Err(refusal) => return self.refuse(None, &refusal),
        };
        let command = self.asking(&session, ask);
        if let Err(refusal) = self.context.sessions.send(&session, &identity.principal, command).await {
            self.refuse(Some(session), &refusal);
        }
    }

    pub(super) fn is_linked(&self, session: &SessionId) -> bool {
        self.links.iter().any(|attached| attached.link.session() == session) || self.attaching.contains(session)
    }

    /// The session that a frame is about: the one it names, or the only one of this connection.
    fn resolve(&self, named: Option<SessionId>) -> Result<SessionId, Refusal> {
        if let Some(session) = named {
            return Ok(session);
        }
        let mut linked = self.live_links().map(|attached| attached.link.session()).chain(&self.attaching);
        let first = linked.next();
        match (first, linked.find(|other| Some(*other) != first)) {
            (Some(only), None) => Ok(only.clone()),
            (None, _) => Err(Refusal::field("session_id", "is missing, and this connection has no session")),
            (Some(_), Some(_)) => {
                Err(Refusal::field("session_id", "is missing, and this connection has several sessions"))
            }
        }
    }

    /// The one session of this connection whose log is in this epoch.
    fn session_in(&self, epoch: &Epoch) -> Option<SessionId> {
        let mut linked = self.links.iter().filter(|attached| attached.link.epoch() == epoch);
        let only = linked.next().filter(|_| linked.next().is_none())?;
        Some(only.link.session().clone())
    }

    async fn ack(
        &mut self,
        session: Option<SessionId>,
        cursor: Option<Cursor>,
        gap_detected: bool,
        identity: &Identity,
    ) {
        if gap_detected {
            self.context.metrics.client_gaps.inc();
        }
        let Some(cursor) = cursor else { return };
        let Ok(session) = self.resolve(session.or_else(|| self.session_in(cursor.epoch.as_ref()?))) else { return };
        let Some(attached) = self.links.iter_mut().find(|attached| *attached.link.session() == session) else { return };
        match attached.link.handle_ack(&cursor) {
            Err(beyond) => {
                let message = format!("You acknowledged {}, but only {} was sent.", beyond.acked, beyond.sent);
                self.refuse(Some(session), &Refusal::new(ErrorCode::CursorAhead, message));
            }
            Ok(Some(seq)) if !attached.observe || mutant("take-acks-of-observers") => {
                let command = self.asking(&session, SessionRequest::Ack { seq });
                let _ = self.context.sessions.send(&session, &identity.principal, command).await;
            }
            Ok(_) => {}
        }
    }
}
