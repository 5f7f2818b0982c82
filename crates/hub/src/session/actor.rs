//! A session of the hub as an actor: it takes the lease, writes down what backends say outside of calls, and goes on under a new lease
//! when it has to. Calls write for themselves, at the same time and under the same lease.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bowline_actor::{ActivationError, Actor, ActorLocation, Process, RunEvent};
use bowline_env::clock;
use bowline_protocol::{LogId, Principal};
use bowline_store::{LogKind, StoreError};
use tokio::sync::{mpsc, oneshot};

use crate::actors::{ActorRefusal, refusal_of};
use crate::backend::notification_data;
use crate::call::{Inbound, InboundSink, facts};
use crate::catalogue::ListKind;
use crate::fields::{Fields, Raw};
use crate::message;
use crate::session::elicitation_and_sampling::PendingServerRequest;
use crate::session::registry::{HubSessions, SessionChange};
use crate::session::{HubSession, HubSessionRecord, OWN_STREAM, Route};

/// What servers may say to a session before it is written down.
const INBOX_MAX: usize = 64;

pub enum HubSessionCommand {
    /// Gives the session, once it is awake.
    Open(SessionOpener),
    /// It cannot go on as it is.
    Renew,
    /// Takes back the questions that have waited too long.
    Expire,
    /// Ends it for good.
    End(SessionEnder),
}

/// Who waits for a session to be awake.
pub type SessionOpener = oneshot::Sender<Result<Arc<HubSession>, ActorRefusal>>;
/// Who waits for a session to have ended.
pub type SessionEnder = oneshot::Sender<Result<(), ActorRefusal>>;

impl fmt::Debug for HubSessionCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HubSessionCommand::Open(_) => "Open",
            HubSessionCommand::Renew => "Renew",
            HubSessionCommand::Expire => "Expire",
            HubSessionCommand::End(_) => "End",
        })
    }
}

/// The session as it is awake now, for those who call in it. It is another one after each loss.
#[derive(Debug, Default)]
pub struct HubSessionPresence(Mutex<Option<Arc<HubSession>>>);

impl HubSessionPresence {
    pub fn get(&self) -> Option<Arc<HubSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, session: Option<Arc<HubSession>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = session;
    }
}

pub struct HubSessionActor {
    sessions: Arc<HubSessions>,
    id: LogId,
    principal: Principal,
    record: HubSessionRecord,
    presence: Arc<HubSessionPresence>,
    /// Where backends send what belongs to no call. They may know it for longer than one activation.
    inbox: InboundSink,
    said: Process<Inbound, Infallible>,
    /// What could not be written down before it had to be activated anew.
    unwritten: VecDeque<Inbound>,
    /// Those who came while it could not go on.
    openers: Vec<SessionOpener>,
    enders: Vec<SessionEnder>,
    /// It is to end as soon as the store can let go of it.
    is_ending: bool,
    has_ended: bool,
}

impl HubSessionActor {
    /// One that still has to be activated.
    fn asleep(
        sessions: Arc<HubSessions>,
        id: LogId,
        principal: Principal,
        record: HubSessionRecord,
    ) -> HubSessionActor {
        let (inbox, said) = mpsc::channel(INBOX_MAX);
        HubSessionActor {
            sessions,
            id,
            principal,
            record,
            presence: Arc::default(),
            inbox,
            said: Process::without_end(said),
            unwritten: VecDeque::new(),
            openers: Vec::new(),
            enders: Vec::new(),
            is_ending: false,
            has_ended: false,
        }
    }

    /// One that was just made, and the session.
    pub async fn create(
        sessions: &Arc<HubSessions>,
        principal: &Principal,
        record: HubSessionRecord,
    ) -> Result<(HubSessionActor, Arc<HubSession>), StoreError> {
        let (inbox, said) = mpsc::channel(INBOX_MAX);
        let made = HubSession::create(sessions.parts(&inbox), principal.clone(), record.clone()).await?;
        let session = Arc::new(made);
        let asleep = HubSessionActor::asleep(sessions.clone(), session.id.clone(), principal.clone(), record);
        let actor = HubSessionActor { inbox, said: Process::without_end(said), ..asleep };
        actor.presence.set(Some(session.clone()));
        Ok((actor, session))
    }

    /// Takes a new lease, which shuts out whatever is under way under the one before, and sees what the log holds.
    async fn wake(&mut self) -> Result<(), ActivationError<ActorRefusal>> {
        let (parts, id) = (self.sessions.parts(&self.inbox), self.id.clone());
        let woken = HubSession::wake(parts, id, self.principal.clone(), self.record.clone()).await;
        let session = Arc::new(woken.map_err(|error| ActivationError::from_lease(error, ActorRefusal::of_store))?);
        self.presence.set(Some(session.clone()));
        self.sessions.announce(SessionChange::Woken(session));
        Ok(())
    }

    /// The session, if it can go on as it is.
    fn session(&self) -> Option<Arc<HubSession>> {
        self.presence.get().filter(|session| !session.is_lost())
    }

    /// Writes down what backends said outside of calls, as far as the session can go on.
    async fn write_down(&mut self) {
        while let Some(session) = self.session()
            && let Some(inbound) = self.unwritten.pop_front()
        {
            if let Err(error) = write_down(&session, inbound).await {
                tracing::warn!(session = %session.id, %error, "cannot notify a session");
            }
        }
    }

    /// Lets go of what the store has of it. In doubt it is tried again under the next lease.
    async fn try_to_end(&mut self) {
        let Some(session) = self.session().filter(|_| self.is_ending) else { return };
        match session.release().await {
            Err(StoreError::InDoubt(_) | StoreError::StaleFence { .. }) => return,
            Err(error) => tracing::warn!(session = %self.id, %error, "a session of the hub could not be removed"),
            Ok(()) => {}
        }
        self.has_ended = true;
        self.answer_enders(&Ok(()));
    }

    fn answer_enders(&mut self, answer: &Result<(), ActorRefusal>) {
        for ender in self.enders.drain(..) {
            let _ = ender.send(answer.clone());
        }
    }

    async fn expire(&self) {
        let Some(session) = self.session() else { return };
        if let Err(error) = session.expire(self.sessions.ask_timeout).await {
            tracing::warn!(session = %self.id, %error, "questions could not be taken back");
        }
    }
}

impl Actor for HubSessionActor {
    type Id = LogId;
    type Command = HubSessionCommand;
    type Emission = Inbound;
    type Ending = Infallible;
    type Presence = HubSessionPresence;
    type Refusal = ActorRefusal;
    type Host = HubSessions;

    const COMMANDS_AT_ONCE: usize = 64;

    fn not_found() -> ActorRefusal {
        ActorRefusal::NotFound
    }

    fn unreachable() -> ActorRefusal {
        ActorRefusal::unreachable()
    }

    fn is_final(refusal: &ActorRefusal) -> bool {
        matches!(refusal, ActorRefusal::NotFound | ActorRefusal::Store(StoreError::Closed))
    }

    async fn find(
        sessions: &Arc<HubSessions>,
        id: &LogId,
        asker: &Principal,
        _command: &HubSessionCommand,
    ) -> Result<ActorLocation<HubSessionActor>, ActorRefusal> {
        if sessions.is_over() {
            return Err(ActorRefusal::Store(StoreError::Closed));
        }
        let stored = sessions.store.record(id).await.map_err(ActorRefusal::Store)?;
        let stored = stored.filter(|stored| stored.kind == LogKind::Mcp && stored.owner == *asker);
        let stored = stored.ok_or(ActorRefusal::NotFound)?;
        let record = serde_json::from_slice::<HubSessionRecord>(&stored.body).map_err(|error| {
            let text = format!("the record of the session {id} cannot be read: {error}");
            ActorRefusal::Store(StoreError::Io(text))
        })?;
        Ok(ActorLocation::Here(HubSessionActor::asleep(sessions.clone(), id.clone(), stored.owner, record)))
    }

    fn refuse(_id: &LogId, command: HubSessionCommand, refusal: &ActorRefusal) {
        match command {
            HubSessionCommand::Open(opener) => drop(opener.send(Err(refusal.clone()))),
            HubSessionCommand::End(ender) => drop(ender.send(Err(refusal.clone()))),
            HubSessionCommand::Renew | HubSessionCommand::Expire => {}
        }
    }

    fn host(&self) -> &Arc<HubSessions> {
        &self.sessions
    }

    fn id(&self) -> &LogId {
        &self.id
    }

    fn owner(&self) -> &Principal {
        &self.principal
    }

    fn presence(&self) -> Arc<HubSessionPresence> {
        self.presence.clone()
    }

    async fn activate(&mut self) -> Result<(), ActivationError<ActorRefusal>> {
        match self.presence.get() {
            // It was just made.
            Some(_) => Ok(()),
            None => self.wake().await,
        }
    }

    async fn reactivate(&mut self) -> Result<(), ActivationError<ActorRefusal>> {
        // The hub is gone, and what the store has of the session is for its successor.
        if self.sessions.is_over() {
            return Err(ActorRefusal::Store(StoreError::Closed).into());
        }
        let lost = self.presence.get();
        let woken = self.wake().await;
        let refusal = woken.as_ref().err().map(refusal_of);
        for opener in self.openers.drain(..) {
            let _ = opener.send(match &refusal {
                Some(refusal) => Err(refusal.clone()),
                None => self.presence.get().ok_or(ActorRefusal::NotFound),
            });
        }
        // Another node has it, or it is no more.
        let is_gone = matches!(refusal, Some(ActorRefusal::NotFound | ActorRefusal::Store(StoreError::Held(_))));
        if let Some(lost) = lost.filter(|_| is_gone) {
            self.presence.set(None);
            self.sessions.announce(SessionChange::LetGo(lost));
        }
        match refusal {
            None => {
                self.try_to_end().await;
                self.write_down().await;
            }
            Some(refusal) => self.answer_enders(&Err(refusal)),
        }
        woken
    }

    /// Calls write for themselves, and one of them may have found the lease void.
    fn is_in_doubt(&self) -> bool {
        !self.has_ended && self.presence.get().is_some_and(|session| session.is_lost())
    }

    async fn handle(&mut self, commands: Vec<HubSessionCommand>) {
        for command in commands {
            match command {
                HubSessionCommand::Open(opener) if self.has_ended => drop(opener.send(Err(ActorRefusal::NotFound))),
                HubSessionCommand::Open(opener) => match self.session() {
                    Some(session) => drop(opener.send(Ok(session))),
                    None => self.openers.push(opener),
                },
                HubSessionCommand::Renew => {}
                HubSessionCommand::Expire => self.expire().await,
                HubSessionCommand::End(ender) => {
                    self.enders.push(ender);
                    self.is_ending = true;
                    self.try_to_end().await;
                }
            }
        }
    }

    fn process(&mut self) -> Option<&mut Process<Inbound, Infallible>> {
        let may_be_heard = !self.is_in_doubt();
        may_be_heard.then_some(&mut self.said)
    }

    /// Writes down what backends say to the session outside of its calls.
    async fn handle_run_event(&mut self, event: RunEvent<Inbound, Infallible>) {
        let RunEvent::Emissions(said) = event;
        self.unwritten.extend(said);
        self.write_down().await;
    }

    fn poll_timeout(&self) -> Option<Instant> {
        // One that was lost before it had a mailbox.
        self.is_in_doubt().then(clock::now)
    }

    async fn handle_timeout(&mut self, _now: Instant) {}

    /// Its streams are read to the last moment, and need it for that.
    fn handle_draining(&mut self) {}

    /// It stays until it has ended, because servers speak to it also while no client does; and goes with the hub.
    fn may_leave(&self, _now: Instant) -> bool {
        self.has_ended || self.sessions.is_over()
    }

    async fn give_back(&mut self) {}
}

async fn write_down(session: &HubSession, inbound: Inbound) -> Result<(), StoreError> {
    match inbound {
        Inbound::Notification { server, method, params } => {
            let data = notification_data(&server, &method, params.as_ref());
            let message = message::notification(&method, params.as_ref());
            // Lists of one process are shown where the server is shown as it is.
            let shown =
                session.record.route != Route::All || !ListKind::ALL.iter().any(|kind| kind.changed() == method);
            if shown && wants(session, &method, &params) {
                session.say(OWN_STREAM, Some(&message), false).await?;
                session.tell_too(&server, &data).await.map(drop)
            } else {
                session.tell("notification", &server, &data).await.map(drop)
            }
        }
        Inbound::Request { server, method, params, reply } => {
            let native = session.can(&method, params.as_ref());
            let asked = PendingServerRequest::new(&server, method, params, reply);
            session.ask(asked, native.then_some(OWN_STREAM)).await
        }
    }
}

/// Of log messages those from the level on that the client has set; a server decides by itself as long as none is set.
pub fn wants(session: &HubSession, method: &str, params: &Option<Raw>) -> bool {
    let level = Fields::of(params.as_deref()).text("level");
    let wanted = session.log_level();
    method != "notifications/message" || wanted.is_none() || facts::is_logged(level.as_deref(), wanted.as_deref())
}

impl fmt::Debug for HubSessionActor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HubSessionActor({})", self.id)
    }
}
