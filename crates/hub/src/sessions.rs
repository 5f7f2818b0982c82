//! All sessions that are awake, and the way back for those that sleep in the store.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_protocol::{LogId, Principal};
use bowline_store::{Kind, Store, StoreError};
use tokio::sync::mpsc;

use crate::backend::BackendEvent;
use crate::hub::{Happening, Hub};
use crate::link::Inbound;
use crate::message;
use crate::neighbours::Neighbours;
use crate::pending::Pending;
use crate::session::{OWN_STREAM, Route, Session, SessionRecord};

/// What backends may say to a session before it is written down.
const INBOX_MAX: usize = 64;

pub struct Sessions {
    awake: Mutex<HashMap<LogId, Arc<Session>>>,
    per_principal_max: usize,
    waking: tokio::sync::Mutex<()>,
    neighbours: Option<Arc<dyn Neighbours>>,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("there are as many sessions as one client may have")]
    TooMany,
    #[error("the store cannot keep the session now: {0}")]
    Store(#[from] StoreError),
}

impl Sessions {
    pub fn new(per_principal_max: usize, neighbours: Option<Arc<dyn Neighbours>>) -> Sessions {
        Sessions { awake: Mutex::default(), per_principal_max, waking: tokio::sync::Mutex::default(), neighbours }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LogId, Arc<Session>>> {
        self.awake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn count(&self) -> usize {
        self.lock().len()
    }

    pub async fn create(
        &self,
        store: &Arc<dyn Store>,
        principal: &Principal,
        record: SessionRecord,
    ) -> Result<Arc<Session>, OpenError> {
        if store.count(Kind::Mcp, Some(principal)).await? >= self.per_principal_max {
            return Err(OpenError::TooMany);
        }
        let (inbox, said) = mpsc::channel(INBOX_MAX);
        let session = Session::create(store.clone(), self.lessor(), principal.clone(), record, inbox).await?;
        Ok(self.settle(session, said))
    }

    /// The session, if it is this principal's. A stranger's looks like one that never was.
    pub async fn find(
        &self,
        store: &Arc<dyn Store>,
        principal: &Principal,
        id: &str,
    ) -> Result<Option<Arc<Session>>, StoreError> {
        let Some(id) = LogId::parse(id) else { return Ok(None) };
        let mine = |session: &Arc<Session>| session.principal == *principal && !session.over.is_cancelled();
        if let Some(session) = self.get(&id) {
            return Ok(Some(session).filter(mine));
        }
        let _waking = self.waking.lock().await;
        if let Some(session) = self.get(&id) {
            return Ok(Some(session).filter(mine));
        }
        let Some(stored) = store.record(&id).await? else { return Ok(None) };
        if stored.kind != Kind::Mcp || stored.owner != *principal {
            return Ok(None);
        }
        let Ok(record) = serde_json::from_slice::<SessionRecord>(&stored.body) else { return Ok(None) };
        let (inbox, said) = mpsc::channel(INBOX_MAX);
        let session = Session::wake(store.clone(), self.lessor(), id, stored.owner, record, inbox).await?;
        Ok(Some(self.settle(session, said)))
    }

    fn lessor(&self) -> Option<&dyn Neighbours> {
        self.neighbours.as_deref()
    }

    /// One that is awake here. What another node has taken over is not.
    fn get(&self, id: &LogId) -> Option<Arc<Session>> {
        let mut awake = self.lock();
        if awake.get(id).is_some_and(|session| session.is_lost()) {
            awake.remove(id);
        }
        awake.get(id).cloned()
    }

    pub fn is_awake(&self, id: &LogId) -> bool {
        self.get(id).is_some()
    }

    /// The handle that this principal used last.
    pub async fn newest_handle(
        &self,
        store: &Arc<dyn Store>,
        principal: &Principal,
    ) -> Result<Option<LogId>, StoreError> {
        let here = self.awake().into_iter().filter(|session| session.record.handle && session.principal == *principal);
        if let Some(session) = here.max_by_key(|session| session.touched_ms()) {
            return Ok(Some(session.id.clone()));
        }
        let handles = store.list(Kind::Mcp, Some(principal)).await?.into_iter().filter(|(_, stored)| {
            serde_json::from_slice::<SessionRecord>(&stored.body).is_ok_and(|record| record.handle)
        });
        Ok(handles.max_by_key(|(_, stored)| stored.touched_ms).map(|(log, _)| log))
    }

    fn settle(&self, session: Session, said: mpsc::Receiver<Inbound>) -> Arc<Session> {
        let session = Arc::new(session);
        self.lock().insert(session.id.clone(), session.clone());
        tokio::spawn(hear(Arc::downgrade(&session), said));
        session
    }

    pub async fn end(&self, hub: &Hub, session: &Arc<Session>) {
        self.lock().remove(&session.id);
        session.end().await;
        for backend in hub.visible(&session.principal) {
            backend.end_lane(session.id.as_str().into()).await;
        }
    }

    pub fn awake(&self) -> Vec<Arc<Session>> {
        self.lock().values().filter(|session| !session.is_lost()).cloned().collect()
    }

    /// Tells every session that may see the backend.
    pub async fn told(&self, happening: &Happening) {
        let (key, event) = &**happening;
        let awake = self.awake();
        if let BackendEvent::Stderr(_) | BackendEvent::Notification { .. } = event
            && key.owner.is_none()
            && awake.windows(2).any(|two| two[0].principal != two[1].principal)
        {
            // What a server that several people share says to nobody in particular may speak of any of them.
            return;
        }
        for session in awake {
            let visible = key.owner.as_ref().is_none_or(|owner| *owner == session.principal);
            let routed = match &session.record.route {
                Route::All => true,
                Route::One(name) => *name == key.name,
            };
            if visible && routed {
                let told = tell(&session, &key.name, event).await;
                if let Err(error) = told {
                    tracing::warn!(session = %session.id, %error, "a session could not be told");
                }
            }
        }
    }
}

async fn tell(session: &Arc<Session>, name: &str, event: &BackendEvent) -> Result<(), StoreError> {
    if let BackendEvent::Disconnected { .. } = event {
        session.reject(name).await?;
    }
    session.tell(event.name(), name, &event.data(name)).await?;
    if let (BackendEvent::ListChanged(method), false) = (event, session.record.handle) {
        session.say(OWN_STREAM, Some(&message::notification(method, None)), false).await?;
    }
    Ok(())
}

/// Writes down what backends say to a session outside of its calls.
async fn hear(session: std::sync::Weak<Session>, mut said: mpsc::Receiver<Inbound>) {
    while let Some(inbound) = said.recv().await {
        let Some(session) = session.upgrade() else { return };
        let server = match &session.record.route {
            Route::One(name) => name.to_string(),
            Route::All => String::new(),
        };
        let written = match inbound {
            Inbound::Notification { method, params } => {
                let data = serde_json::json!({ "name": server, "method": method, "params": params });
                let message = message::notification(&method, params.as_ref());
                match session.say(OWN_STREAM, Some(&message), false).await {
                    Ok(_) => session.tell("notification", &server, &data).await.map(drop),
                    Err(error) => Err(error),
                }
            }
            Inbound::Request { server, method, params, reply } => {
                let native = session.can(&method);
                let asked = Pending::new(&server, method, params, reply);
                session.ask(asked, native.then_some(OWN_STREAM)).await.map(drop)
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
