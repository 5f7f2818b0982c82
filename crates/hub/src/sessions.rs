//! All sessions that are awake, and the way back for those that sleep in the store.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_protocol::{LogId, Principal};
use bowline_store::{Clock, Kind, ReadBudget, Store, StoreError};
use futures_util::StreamExt;
use tokio::sync::mpsc;

use crate::backend::{BackendEvent, notification_data};
use crate::catalogue::ListKind;
use crate::era;
use crate::fields::{Fields, Raw};
use crate::hub::{Expose, Happening, Hub, Options};
use crate::link::Inbound;
use crate::message;
use crate::neighbours::Neighbours;
use crate::pending::Pending;
use crate::session::{Hearer, Inbox, OWN_STREAM, Route, Session, SessionParts, SessionRecord};

/// Sessions that are told of one event at the same time.
const TELL_AT_ONCE: usize = 256;

pub struct Sessions {
    awake: Mutex<HashMap<LogId, Arc<Session>>>,
    per_principal_max: usize,
    clock: Clock,
    reading: Arc<ReadBudget>,
    /// What those see that see everything.
    expose: Expose,
    waking: tokio::sync::Mutex<()>,
    neighbours: Option<Arc<dyn Neighbours>>,
    /// Who is told of each session that wakes up.
    woken: mpsc::UnboundedSender<Arc<Session>>,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("there are as many sessions as one client may have")]
    TooMany,
    #[error("the store cannot keep the session now: {0}")]
    Store(#[from] StoreError),
}

impl Sessions {
    pub fn new(
        options: &Options,
        neighbours: Option<Arc<dyn Neighbours>>,
        woken: mpsc::UnboundedSender<Arc<Session>>,
    ) -> Sessions {
        Sessions {
            awake: Mutex::default(),
            per_principal_max: options.sessions_per_principal_max,
            clock: options.clock,
            reading: options.reading.clone(),
            expose: options.expose,
            waking: tokio::sync::Mutex::default(),
            neighbours,
            woken,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LogId, Arc<Session>>> {
        self.awake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn count(&self) -> usize {
        self.lock().len()
    }

    pub async fn create(
        &self,
        hub: &Hub,
        principal: &Principal,
        record: SessionRecord,
    ) -> Result<Arc<Session>, OpenError> {
        if hub.store.count(Kind::Mcp, Some(principal)).await? >= self.per_principal_max {
            hub.observer.limit_hit("hub.sessions_per_principal_max");
            return Err(OpenError::TooMany);
        }
        let (inbox, said) = Inbox::new();
        let parts = self.parts(&hub.store, inbox);
        let session = Session::create(parts, self.lessor(), principal.clone(), record).await?;
        Ok(self.settle(session, Some(said)))
    }

    /// The session, if it is this principal's. A stranger's looks like one that never was.
    pub async fn find(
        &self,
        store: &Arc<dyn Store>,
        principal: &Principal,
        id: &str,
    ) -> Result<Option<Arc<Session>>, StoreError> {
        let (found, woken) = self.find_or_wake(store, principal, id).await?;
        if let (Some(session), true) = (&found, woken) {
            let _ = self.woken.send(session.clone());
        }
        Ok(found)
    }

    /// The session, and whether it had to be woken.
    async fn find_or_wake(
        &self,
        store: &Arc<dyn Store>,
        principal: &Principal,
        id: &str,
    ) -> Result<(Option<Arc<Session>>, bool), StoreError> {
        let Some(id) = LogId::parse(id) else { return Ok((None, false)) };
        let mine = |session: &Arc<Session>| session.principal == *principal && !session.over.is_cancelled();
        if let Some(session) = self.get(&id) {
            return Ok((Some(session).filter(mine), false));
        }
        let _waking = self.waking.lock().await;
        if let Some(session) = self.get(&id) {
            return Ok((Some(session).filter(mine), false));
        }
        let Some(stored) = store.record(&id).await? else { return Ok((None, false)) };
        if stored.kind != Kind::Mcp || stored.owner != *principal {
            return Ok((None, false));
        }
        let record = serde_json::from_slice::<SessionRecord>(&stored.body)
            .map_err(|error| StoreError::Io(format!("the record of the session {id} cannot be read: {error}")))?;
        // One that could not go on here leaves its inbox, which servers may know.
        let (inbox, said) = match self.lock().get(&id) {
            Some(before) => (before.inbox.clone(), None),
            None => {
                let (inbox, said) = Inbox::new();
                (inbox, Some(said))
            }
        };
        let session = Session::wake(self.parts(store, inbox), self.lessor(), id, stored.owner, record).await?;
        Ok((Some(self.settle(session, said)), true))
    }

    /// Wakes all that no other node has, before there are servers, so that they miss nothing of what happens to them.
    pub async fn wake_all(&self, store: &Arc<dyn Store>) -> Result<(), StoreError> {
        for (log, stored) in store.list(Kind::Mcp, None).await? {
            if let Some(neighbours) = &self.neighbours
                && neighbours.elsewhere(&log).await?.is_some()
            {
                continue;
            }
            match self.find_or_wake(store, &stored.owner, log.as_str()).await {
                Ok(_) | Err(StoreError::Held(_)) => {}
                Err(error) => tracing::warn!(session = %log, %error, "a session of the hub could not be woken"),
            }
        }
        Ok(())
    }

    fn parts(&self, store: &Arc<dyn Store>, inbox: Inbox) -> SessionParts {
        let (store, reading) = (store.clone(), self.reading.clone());
        SessionParts { store, clock: self.clock, reading, inbox, has_hub_tools: self.expose.meta() }
    }

    fn lessor(&self) -> Option<&dyn Neighbours> {
        self.neighbours.as_deref()
    }

    /// One that is awake here. What cannot go on here is not.
    pub fn get(&self, id: &LogId) -> Option<Arc<Session>> {
        self.lock().get(id).filter(|session| !session.is_lost()).cloned()
    }

    pub fn is_awake(&self, id: &LogId) -> bool {
        self.get(id).is_some()
    }

    /// `said` is what comes into its inbox, if nobody writes that down yet.
    fn settle(&self, session: Session, said: Option<mpsc::Receiver<Inbound>>) -> Arc<Session> {
        let session = Arc::new(session);
        session.inbox.belongs_to(&session);
        self.lock().insert(session.id.clone(), session.clone());
        if let Some(said) = said {
            let (hearer, closed) = (session.inbox.hearer.clone(), session.inbox.closed.clone());
            tokio::spawn(async move { closed.run_until_cancelled(hear(hearer, said)).await });
        }
        session
    }

    /// Ends a session for good. It is found, as one that is over, until the store has let go of it: were it not, somebody
    /// could wake it again meanwhile.
    pub async fn end(&self, hub: &Hub, session: &Arc<Session>) {
        session.end().await;
        self.remove(session);
        end_lanes(hub, session).await;
    }

    /// Wakes those anew that cannot go on as they are, so that they miss nothing more. What another node has is let go of, and
    /// nobody uses its sessions at the servers from here any more.
    pub async fn settle_lost(&self, hub: &Hub) {
        let lost: Vec<Arc<Session>> = self.lock().values().filter(|session| session.is_lost()).cloned().collect();
        for session in lost {
            match self.find(&hub.store, &session.principal, session.id.as_str()).await {
                Ok(Some(_)) => {}
                Ok(None) | Err(StoreError::Held(_)) => {
                    if self.remove(&session) {
                        // Not waited for: a server may wait itself until what it said has been told.
                        tokio::spawn(end_lanes(hub, &session));
                    }
                }
                // The others would not fare better now.
                Err(error) => return tracing::warn!(session = %session.id, %error, "a session could not be woken"),
            }
        }
    }

    /// Whether it was there, and not another that was woken in its place.
    fn remove(&self, session: &Arc<Session>) -> bool {
        let mut awake = self.lock();
        let known = awake.get(&session.id).is_some_and(|known| Arc::ptr_eq(known, session));
        if known {
            awake.remove(&session.id);
            session.inbox.close();
        }
        known
    }

    pub fn awake(&self) -> Vec<Arc<Session>> {
        self.lock().values().filter(|session| !session.is_lost()).cloned().collect()
    }

    /// Tells every session that may see the backend.
    pub async fn told(&self, hub: &Hub, happening: &Happening) {
        self.settle_lost(hub).await;
        let (key, event) = &**happening;
        let awake = self.awake();
        let said = matches!(event, BackendEvent::Stderr(_) | BackendEvent::Notification { .. });
        if said
            && key.owner.is_none()
            && let Some(first) = awake.first()
        {
            // What a server that several people share says to nobody in particular may speak of any of them, and not all of
            // them have sessions.
            let alone = awake.iter().all(|session| session.principal == first.principal);
            if !alone || !hub.is_only_used_by(key, &first.principal) {
                return;
            }
        }
        let backend = hub.backend(key);
        let concerned = awake.into_iter().filter(|session| {
            // It hears there by itself what is said to all.
            let hears = said && backend.as_ref().is_some_and(|backend| backend.has_own(session.id.as_str()));
            let visible = hub.sees(&session.principal, key);
            let routed = match &session.record.route {
                Route::All => true,
                Route::One(name) => *name == key.name,
            };
            visible && routed && !hears && event.concerns(session.id.as_str())
        });
        let program = backend.as_ref().is_some_and(|backend| backend.spec.is_stdio());
        // Many at once, so that the store can write them down in one piece. Each is told of one thing after the other all the
        // same, since nothing else is told before this is over.
        let telling = futures_util::stream::iter(concerned).for_each_concurrent(TELL_AT_ONCE, |session| async move {
            let message = self.as_it_is(&session, event, program);
            if let Err(error) = tell(&session, &key.name, event, message.as_ref()).await {
                tracing::warn!(session = %session.id, %error, "a session could not be told");
            }
        });
        telling.await;
    }

    /// An event as the server's own notification, for those who see its lists, or the server itself as it is. What is said by
    /// anything but a program is said to each of its clients by itself.
    fn as_it_is(&self, session: &Session, event: &BackendEvent, program: bool) -> Option<Raw> {
        let alone = session.record.route != Route::All;
        match event {
            BackendEvent::ListChanged(method) if alone || (self.expose.direct() && !session.record.handle) => {
                Some(message::notification(method, None))
            }
            BackendEvent::Notification { method, params } if alone && program && wants(session, method, params) => {
                Some(message::notification(method, params.as_ref()))
            }
            _ => None,
        }
    }
}

/// Of log messages those from the level on that the client has set; a server decides by itself as long as none is set.
fn wants(session: &Session, method: &str, params: &Option<Raw>) -> bool {
    let level = Fields::of(params.as_deref()).text("level");
    let wanted = session.log_level();
    method != "notifications/message" || wanted.is_none() || era::is_logged(level.as_deref(), wanted.as_deref())
}

/// Ends a client's own sessions at its servers.
fn end_lanes(hub: &Hub, session: &Session) -> impl Future<Output = ()> + Send + use<> {
    let (lane, mut backends): (Arc<str>, _) = (session.id.as_str().into(), hub.all());
    // Also at those that it does not see any more, since it has a server of that name itself.
    backends.retain(|backend| backend.key.owner.as_ref().is_none_or(|owner| *owner == session.principal));
    async move {
        for backend in backends {
            backend.end_lane(lane.clone()).await;
        }
    }
}

/// With the message that the client gets besides, if there is one.
async fn tell(session: &Session, name: &str, event: &BackendEvent, message: Option<&Raw>) -> Result<(), StoreError> {
    // The server is gone, or what this client had of it.
    if matches!(event, BackendEvent::Disconnected { .. }) || event.is_own_crash() {
        session.reject(name).await?;
    }
    if message.is_none() {
        return session.tell(event.name(), name, &event.data(name)).await.map(drop);
    }
    session.tell_too(name, &event.data(name)).await?;
    session.say(OWN_STREAM, message, false).await.map(drop)
}

/// Writes down what backends say to a session outside of its calls.
async fn hear(hearer: Hearer, mut said: mpsc::Receiver<Inbound>) {
    while let Some(inbound) = said.recv().await {
        let Some(session) = hearer.session() else { return };
        let written = match inbound {
            Inbound::Notification { server, method, params } => {
                let data = notification_data(&server, &method, params.as_ref());
                let message = message::notification(&method, params.as_ref());
                // Lists of one process are shown where the server is shown as it is.
                let shown =
                    session.record.route != Route::All || !ListKind::ALL.iter().any(|kind| kind.changed() == method);
                if shown && wants(&session, &method, &params) {
                    match session.say(OWN_STREAM, Some(&message), false).await {
                        Ok(_) => session.tell_too(&server, &data).await.map(drop),
                        Err(error) => Err(error),
                    }
                } else {
                    session.tell("notification", &server, &data).await.map(drop)
                }
            }
            Inbound::Request { server, method, params, reply } => {
                let native = session.can(&method, params.as_ref());
                let asked = Pending::new(&server, method, params, reply);
                session.ask(asked, native.then_some(OWN_STREAM)).await
            }
        };
        if let Err(error) = written {
            tracing::warn!(session = %session.id, %error, "a session could not be told");
        }
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions({})", self.count())
    }
}
