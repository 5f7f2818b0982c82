//! All sessions that are awake, the way back for those that sleep in the store, and what is durable about one besides its log.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bowline_actor::{ActorDirectory, ActorHost, Router};
use bowline_mutant::mutant;
use bowline_protocol::{LogId, Principal};
use bowline_store::{Clock, LogKind, ReadBudget, Record, Store, StoreError};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::actors::{ActorRefusal, NoForwarding};
use crate::backend::Observer;
use crate::call::InboundSink;
use crate::config::{Expose, Options};
use crate::fields::{Raw, raw};
use crate::peers::PeerNodes;
use crate::session::actor::{HubSessionActor, HubSessionCommand};
use crate::session::{HubSession, HubSessionParts};

pub struct HubSessions {
    directory: ActorDirectory<HubSessionActor>,
    per_principal_max: usize,
    pub(super) ask_timeout: Duration,
    clock: Clock,
    reading: Arc<ReadBudget>,
    /// What those see that see everything.
    expose: Expose,
    pub(super) store: Arc<dyn Store>,
    observer: Arc<dyn Observer>,
    peers: Option<Arc<dyn PeerNodes>>,
    /// Those that have woken since all were activated at the start, and those that are let go of.
    changes: OnceLock<mpsc::UnboundedSender<SessionChange>>,
    /// Fires when the hub is gone.
    over: CancellationToken,
}

/// What the hub around the sessions has to know.
#[derive(Debug)]
pub enum SessionChange {
    Woken(Arc<HubSession>),
    /// Another node has it now, or it is no more.
    LetGo(Arc<HubSession>),
}

impl ActorHost for HubSessions {
    type Actor = HubSessionActor;

    fn directory(&self) -> &ActorDirectory<HubSessionActor> {
        &self.directory
    }

    fn router(&self) -> &dyn Router<HubSessionActor> {
        &NoForwarding
    }

    fn draining(&self) -> &CancellationToken {
        &self.over
    }
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
        peers: Option<Arc<dyn PeerNodes>>,
    ) -> HubSessions {
        HubSessions {
            directory: ActorDirectory::default(),
            per_principal_max: options.sessions_per_principal_max,
            ask_timeout: options.ask_timeout,
            clock: options.clock,
            reading: options.reading.clone(),
            expose: options.expose,
            store,
            observer,
            peers,
            changes: OnceLock::new(),
            over: CancellationToken::new(),
        }
    }

    /// How many are awake.
    pub fn count(&self) -> usize {
        self.directory.count(|presence| presence.get().is_some())
    }

    pub async fn create(
        self: &Arc<Self>,
        principal: &Principal,
        record: HubSessionRecord,
    ) -> Result<Arc<HubSession>, SessionOpenError> {
        if self.store.count(LogKind::Mcp, Some(principal)).await? >= self.per_principal_max {
            self.observer.limit_hit("hub.sessions_per_principal_max");
            return Err(SessionOpenError::TooMany);
        }
        let (actor, session) = HubSessionActor::create(self, principal, record).await?;
        ActorDirectory::install(actor);
        Ok(session)
    }

    /// The session, if it is this principal's. A stranger's looks like one that never was.
    pub async fn find(
        self: &Arc<Self>,
        principal: &Principal,
        id: &str,
    ) -> Result<Option<Arc<HubSession>>, StoreError> {
        let Some(id) = LogId::parse(id) else { return Ok(None) };
        let is_owner = |owner: &Principal| owner == principal || mutant("skip-the-owner-of-an-mcp-session");
        let mine = |session: &Arc<HubSession>| is_owner(&session.principal) && !session.over.is_cancelled();
        match self.get(&id) {
            Some(session) => Ok(Some(session).filter(mine)),
            None => Box::pin(self.open(principal, &id)).await,
        }
    }

    /// The session, activated if it has to be.
    async fn open(self: &Arc<Self>, principal: &Principal, id: &LogId) -> Result<Option<Arc<HubSession>>, StoreError> {
        let (opener, opened) = oneshot::channel();
        self.deliver(id, principal, HubSessionCommand::Open(opener)).await;
        match opened.await {
            Ok(Ok(session)) => Ok(Some(session)),
            // One that has ended meanwhile answers nothing.
            Ok(Err(ActorRefusal::NotFound)) | Err(_) => Ok(None),
            Ok(Err(ActorRefusal::Store(error))) => Err(error),
        }
    }

    /// Activates all that no other node has, before there are servers, so that they miss nothing of what happens to them.
    pub async fn wake_all(self: &Arc<Self>) -> Result<(), StoreError> {
        for (log, stored) in self.store.list(LogKind::Mcp, None).await? {
            if let Some(peers) = &self.peers
                && peers.elsewhere(&log).await?.is_some()
            {
                continue;
            }
            match self.open(&stored.owner, &log).await {
                Ok(_) | Err(StoreError::Held(_)) => {}
                Err(error) => tracing::warn!(session = %log, %error, "a session of the hub could not be woken"),
            }
        }
        Ok(())
    }

    /// From now on `changes` gets what happens to sessions.
    pub fn report(&self, changes: mpsc::UnboundedSender<SessionChange>) {
        let _ = self.changes.set(changes);
    }

    pub(super) fn announce(&self, change: SessionChange) {
        if let Some(changes) = self.changes.get() {
            // Without a hub there is no one to tell.
            let _ = changes.send(change);
        }
    }

    /// What each session is given.
    pub(super) fn parts(self: &Arc<Self>, inbox: &InboundSink) -> HubSessionParts {
        HubSessionParts {
            store: self.store.clone(),
            clock: self.clock,
            reading: self.reading.clone(),
            inbox: inbox.clone(),
            host: Arc::downgrade(self),
            peers: self.peers.clone(),
            has_hub_tools: self.expose.meta(),
        }
    }

    /// One that is awake here. What cannot go on as it is is not.
    pub fn get(&self, id: &LogId) -> Option<Arc<HubSession>> {
        self.directory.presence(id)?.get().filter(|session| !session.is_lost())
    }

    pub fn is_awake(&self, id: &LogId) -> bool {
        self.get(id).is_some()
    }

    /// Ends a session for good. It is found, as one that is over, until the store has let go of it: were it not, a request
    /// could activate it again meanwhile.
    pub async fn end(self: &Arc<Self>, session: &Arc<HubSession>) {
        session.close();
        let (reply, ended) = oneshot::channel();
        self.deliver(&session.id, &session.principal, HubSessionCommand::End(reply)).await;
        if let Ok(Err(refusal @ ActorRefusal::Store(_))) = ended.await {
            tracing::warn!(session = %session.id, ?refusal, "a session of the hub could not be ended");
        }
    }

    /// A session cannot go on as it is: its actor activates it anew.
    pub(super) fn renew(&self, id: &LogId) {
        // A mailbox that is full wakes its actor too.
        let _ = self.directory.commands(id).map(|commands| commands.try_send(HubSessionCommand::Renew));
    }

    /// Waits until those that cannot go on as they are have been activated anew, so that they miss nothing of what they are
    /// told next.
    pub async fn renew_lost(self: &Arc<Self>) {
        let awake = self.directory.presences();
        for lost in awake.iter().filter_map(|presence| presence.get()).filter(|session| session.is_lost()) {
            match self.open(&lost.principal, &lost.id).await {
                Ok(_) | Err(StoreError::Held(_)) => {}
                // The others would not fare better now.
                Err(error) => {
                    tracing::warn!(session = %lost.id, %error, "a session could not be woken");
                    break;
                }
            }
        }
    }

    /// Takes back, in all sessions, the questions that have waited too long.
    pub fn expire_questions(&self) {
        self.directory.offer(|| HubSessionCommand::Expire);
    }

    pub fn awake(&self) -> Vec<Arc<HubSession>> {
        let awake = self.directory.presences();
        awake.iter().filter_map(|presence| presence.get()).filter(|session| !session.is_lost()).collect()
    }

    /// The hub is gone, and its sessions with it. The store has them.
    pub fn leave(&self) {
        self.over.cancel();
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
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
