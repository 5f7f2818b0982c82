//! All sessions that are awake, the way back for those that sleep in the store, and what is durable about one besides its log.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_protocol::{LogId, Principal};
use bowline_store::{Clock, LogKind, ReadBudget, Record, Store, StoreError};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::backend::{Observer, notification_data};
use crate::call::{Inbound, facts};
use crate::catalogue::ListKind;
use crate::config::{Expose, Options};
use crate::fields::{Fields, Raw, raw};
use crate::message;
use crate::peers::PeerNodes;
use crate::session::elicitation::PendingServerRequest;
use crate::session::{HubSession, HubSessionParts, Inbox, InboxListener, OWN_STREAM};

pub struct HubSessions {
    awake: Mutex<HashMap<LogId, Arc<HubSession>>>,
    per_principal_max: usize,
    clock: Clock,
    reading: Arc<ReadBudget>,
    /// What those see that see everything.
    expose: Expose,
    waking: tokio::sync::Mutex<()>,
    store: Arc<dyn Store>,
    observer: Arc<dyn Observer>,
    neighbours: Option<Arc<dyn PeerNodes>>,
    /// Notified of each session that is activated.
    woken: mpsc::UnboundedSender<Arc<HubSession>>,
}

#[derive(Debug, thiserror::Error)]
pub enum SessionOpenError {
    #[error("there are as many sessions as one client may have")]
    TooMany,
    #[error("the store cannot keep the session now: {0}")]
    Store(#[from] StoreError),
}

impl HubSessions {
    pub fn new(
        options: &Options,
        store: Arc<dyn Store>,
        observer: Arc<dyn Observer>,
        neighbours: Option<Arc<dyn PeerNodes>>,
        woken: mpsc::UnboundedSender<Arc<HubSession>>,
    ) -> HubSessions {
        HubSessions {
            awake: Mutex::default(),
            per_principal_max: options.sessions_per_principal_max,
            clock: options.clock,
            reading: options.reading.clone(),
            expose: options.expose,
            waking: tokio::sync::Mutex::default(),
            store,
            observer,
            neighbours,
            woken,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LogId, Arc<HubSession>>> {
        self.awake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn count(&self) -> usize {
        self.lock().len()
    }

    pub async fn create(
        &self,
        principal: &Principal,
        record: HubSessionRecord,
    ) -> Result<Arc<HubSession>, SessionOpenError> {
        if self.store.count(LogKind::Mcp, Some(principal)).await? >= self.per_principal_max {
            self.observer.limit_hit("hub.sessions_per_principal_max");
            return Err(SessionOpenError::TooMany);
        }
        let (inbox, said) = Inbox::new();
        let parts = self.parts(inbox);
        let session = HubSession::create(parts, self.neighbours.as_ref(), principal.clone(), record).await?;
        Ok(self.settle(session, Some(said)))
    }

    /// The session, if it is this principal's. A stranger's looks like one that never was.
    pub async fn find(&self, principal: &Principal, id: &str) -> Result<Option<Arc<HubSession>>, StoreError> {
        let (found, woken) = self.find_or_wake(principal, id).await?;
        if let (Some(session), true) = (&found, woken) {
            let _ = self.woken.send(session.clone());
        }
        Ok(found)
    }

    /// The session, and whether it had to be woken.
    async fn find_or_wake(
        &self,
        principal: &Principal,
        id: &str,
    ) -> Result<(Option<Arc<HubSession>>, bool), StoreError> {
        let Some(id) = LogId::parse(id) else { return Ok((None, false)) };
        let mine = |session: &Arc<HubSession>| session.principal == *principal && !session.over.is_cancelled();
        if let Some(session) = self.get(&id) {
            return Ok((Some(session).filter(mine), false));
        }
        let _waking = self.waking.lock().await;
        if let Some(session) = self.get(&id) {
            return Ok((Some(session).filter(mine), false));
        }
        let Some(stored) = self.store.record(&id).await? else { return Ok((None, false)) };
        if stored.kind != LogKind::Mcp || stored.owner != *principal {
            return Ok((None, false));
        }
        let record = serde_json::from_slice::<HubSessionRecord>(&stored.body)
            .map_err(|error| StoreError::Io(format!("the record of the session {id} cannot be read: {error}")))?;
        // One that could not go on here leaves its inbox, which servers may know.
        let (inbox, said) = match self.lock().get(&id) {
            Some(before) => (before.inbox.clone(), None),
            None => {
                let (inbox, said) = Inbox::new();
                (inbox, Some(said))
            }
        };
        let session = HubSession::wake(self.parts(inbox), self.neighbours.as_ref(), id, stored.owner, record).await?;
        Ok((Some(self.settle(session, said)), true))
    }

    /// Wakes all that no other node has, before there are servers, so that they miss nothing of what happens to them.
    pub async fn wake_all(&self) -> Result<(), StoreError> {
        for (log, stored) in self.store.list(LogKind::Mcp, None).await? {
            if let Some(neighbours) = &self.neighbours
                && neighbours.elsewhere(&log).await?.is_some()
            {
                continue;
            }
            match self.find_or_wake(&stored.owner, log.as_str()).await {
                Ok(_) | Err(StoreError::Held(_)) => {}
                Err(error) => tracing::warn!(session = %log, %error, "a session of the hub could not be woken"),
            }
        }
        Ok(())
    }

    fn parts(&self, inbox: Inbox) -> HubSessionParts {
        let (store, reading) = (self.store.clone(), self.reading.clone());
        HubSessionParts { store, clock: self.clock, reading, inbox, has_hub_tools: self.expose.meta() }
    }

    /// One that is awake here. What cannot go on here is not.
    pub fn get(&self, id: &LogId) -> Option<Arc<HubSession>> {
        self.lock().get(id).filter(|session| !session.is_lost()).cloned()
    }

    pub fn is_awake(&self, id: &LogId) -> bool {
        self.get(id).is_some()
    }

    /// `said` is what comes into its inbox, if no task logs that yet.
    fn settle(&self, session: HubSession, said: Option<mpsc::Receiver<Inbound>>) -> Arc<HubSession> {
        let session = Arc::new(session);
        session.inbox.belongs_to(&session);
        self.lock().insert(session.id.clone(), session.clone());
        if let Some(said) = said {
            let (hearer, closed) = (session.inbox.hearer.clone(), session.inbox.closed.clone());
            tokio::spawn(async move { closed.run_until_cancelled(hear(hearer, said)).await });
        }
        session
    }

    /// Ends a session for good. It is found, as one that is over, until the store has let go of it: were it not, a request
    /// could activate it again meanwhile.
    pub async fn end(&self, session: &Arc<HubSession>) {
        session.end().await;
        self.remove(session);
    }

    /// Wakes those anew that cannot go on as they are, so that they miss nothing more. Returns those that another node has, or
    /// that are no more: they are let go of.
    pub async fn settle_lost(&self) -> Vec<Arc<HubSession>> {
        let mut let_go = Vec::new();
        let lost: Vec<Arc<HubSession>> = self.lock().values().filter(|session| session.is_lost()).cloned().collect();
        for session in lost {
            match self.find(&session.principal, session.id.as_str()).await {
                Ok(Some(_)) => {}
                Ok(None) | Err(StoreError::Held(_)) => {
                    if self.remove(&session) {
                        let_go.push(session);
                    }
                }
                // The others would not fare better now.
                Err(error) => {
                    tracing::warn!(session = %session.id, %error, "a session could not be woken");
                    break;
                }
            }
        }
        let_go
    }

    /// Whether it was there, and not another that was woken in its place.
    fn remove(&self, session: &Arc<HubSession>) -> bool {
        let mut awake = self.lock();
        let known = awake.get(&session.id).is_some_and(|known| Arc::ptr_eq(known, session));
        if known {
            awake.remove(&session.id);
            session.inbox.close();
        }
        known
    }

    pub fn awake(&self) -> Vec<Arc<HubSession>> {
        self.lock().values().filter(|session| !session.is_lost()).cloned().collect()
    }
}

/// Of log messages those from the level on that the client has set; a server decides by itself as long as none is set.
pub fn wants(session: &HubSession, method: &str, params: &Option<Raw>) -> bool {
    let level = Fields::of(params.as_deref()).text("level");
    let wanted = session.log_level();
    method != "notifications/message" || wanted.is_none() || facts::is_logged(level.as_deref(), wanted.as_deref())
}

/// Writes down what backends say to a session outside of its calls.
async fn hear(hearer: InboxListener, mut said: mpsc::Receiver<Inbound>) {
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
                let asked = PendingServerRequest::new(&server, method, params, reply);
                session.ask(asked, native.then_some(OWN_STREAM)).await
            }
        };
        if let Err(error) = written {
            tracing::warn!(session = %session.id, %error, "cannot notify a session");
        }
    }
}

impl fmt::Debug for HubSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions({})", self.count())
    }
}

/// What a client sees: everything, or one backend as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    All,
    One(Arc<str>),
}

#[derive(Clone, Serialize, Deserialize)]
pub struct HubSessionRecord {
    pub route: Route,
    /// What its client negotiated. The client of a handle says its version with each request.
    pub version: String,
    pub capabilities: Raw,
    pub info: Raw,
    pub created_ms: u64,
    /// It belongs to a client without sessions, which names it by its handle.
    #[serde(default)]
    pub handle: bool,
}

impl HubSessionRecord {
    /// As the store keeps it.
    pub(super) fn stored(&self, principal: &Principal, now: u64) -> Record {
        let body = raw(self).get().as_bytes().to_vec();
        Record { kind: LogKind::Mcp, owner: principal.clone(), touched_ms: now, body: body.into() }
    }
}

impl fmt::Debug for HubSessionRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionRecord({:?}, {})", self.route, self.version)
    }
}
