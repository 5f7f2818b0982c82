//! All sessions: how one is created, found by its name, and asked something. Nothing here is the truth: the store is.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use bowline_actor::{Actor, ActorDirectory, ActorHost, Router};
use bowline_api::{Agent, Tools};
use bowline_core::resume_token::ResumeToken;
use bowline_core::scrub::Scrubber;
use bowline_env::entropy;
use bowline_mutant::mutant;
use bowline_protocol::{ClientId, Cursor, Epoch, ErrorCode, LogId, Principal, Refusal, Seq, SessionId, TaskId};
use bowline_store::{Commit, Fence, Item, LogKind, Record, Start, StoreError};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::actor::{SessionActor, SessionPresence, store_record};
use super::command::{CommandResult, CommandSender, RequestCaller};
use super::record::{MessageQueue, SessionRecord, VERSION, keys};
use super::webhooks::Announcer;
use super::{Life, SessionCommand, SessionRequest};
use crate::alias;
use crate::config::{Config, Ownership};
use crate::decode::unreadable;
use crate::live_keyring::LiveKeyring;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::refusals;
use crate::secret::Presented;
use crate::task::Tasks;
use crate::task::registry::OperationListener;

pub struct Sessions {
    pub(super) config: Arc<Config>,
    pub(super) logs: Arc<Logs>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) router: Arc<dyn Router<SessionActor>>,
    pub(super) tasks: Arc<Tasks>,
    pub agents: BTreeMap<String, Arc<dyn Agent>>,
    /// What agents may call.
    pub(super) tools: Arc<dyn Tools>,
    /// What posts the ends of responses, if the settings name a target.
    pub(super) webhooks: Option<Arc<dyn Announcer>>,
    /// What signed states are sealed with.
    pub(super) ring: LiveKeyring,
    pub(super) scrubber: Scrubber,
    /// Held while a state is restored.
    pub(super) restoring: tokio::sync::Mutex<()>,
    /// Fires when this node wants to leave.
    pub(super) draining: CancellationToken,
    this: Weak<Sessions>,
    directory: ActorDirectory<SessionActor>,
    /// Sessions that are not over, by owner.
    counts: Mutex<HashMap<Principal, usize>>,
    /// How many have ended since this was last taken.
    ended: AtomicUsize,
}

/// What a client asks for when it creates a session.
#[derive(Debug)]
pub struct NewSession {
    pub owner: Principal,
    pub agent: Option<String>,
    pub client_id: Option<ClientId>,
    pub app_version: Option<String>,
    pub config: Map<String, Value>,
}

impl NewSession {
    /// Whether what its creator wrote can be had. `place` is where it was written.
    pub fn check(&self, sessions: &Sessions, place: &str) -> Result<(), Refusal> {
        let field = format!("{place}agent");
        self.agent.as_deref().map_or(Ok(()), |agent| sessions.knows(agent, &field))?;
        let max = sessions.config.limits.config_bytes_max;
        let bytes = serde_json::to_vec(&self.config).map_or(0, |bytes| bytes.len());
        if bytes + self.app_version.as_ref().map_or(0, String::len) <= max {
            return Ok(());
        }
        sessions.metrics.limits_hit.inc("limits.config_bytes_max");
        let message = format!("`{place}config` takes {bytes} bytes; limits.config_bytes_max is {max}.");
        Err(Refusal::new(ErrorCode::MessageTooLarge, message))
    }
}

/// What sessions need of the server around them.
pub struct SessionParts {
    pub config: Arc<Config>,
    pub logs: Arc<Logs>,
    pub metrics: Arc<Metrics>,
    pub router: Arc<dyn Router<SessionActor>>,
    pub tasks: Arc<Tasks>,
    pub agents: BTreeMap<String, Arc<dyn Agent>>,
    pub tools: Arc<dyn Tools>,
    pub webhooks: Option<Arc<dyn Announcer>>,
    pub ring: LiveKeyring,
    pub draining: CancellationToken,
}

impl fmt::Debug for SessionParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionParts")
    }
}

#[async_trait]
impl OperationListener for Sessions {
    async fn handle_operation_ended(
        &self,
        session: &SessionId,
        owner: &Principal,
        task: &TaskId,
        content: Value,
    ) -> Result<(), Refusal> {
        let Some(this) = self.this.upgrade() else { return Err(SessionActor::unreachable()) };
        let Some(session) = this.living(session, owner).await? else { return Ok(()) };
        let ask = SessionRequest::OperationEnded { task: task.clone(), content: Box::new(content) };
        this.ask(&session, owner, None, ask).await.map(drop)
    }
}

impl ActorHost for Sessions {
    type Actor = SessionActor;

    fn directory(&self) -> &ActorDirectory<SessionActor> {
        &self.directory
    }

    fn router(&self) -> &dyn Router<SessionActor> {
        &*self.router
    }

    fn draining(&self) -> &CancellationToken {
        &self.draining
    }
}

impl Sessions {
    /// All sessions of this server. Tasks tell them of operations that have ended.
    pub fn new(parts: SessionParts) -> Arc<Sessions> {
        let SessionParts { config, logs, metrics, router, tasks, agents, tools, webhooks, ring, draining } = parts;
        Arc::new_cyclic(|this: &Weak<Sessions>| {
            tasks.listen(this.clone());
            Sessions {
                this: this.clone(),
                scrubber: Scrubber::new(&config.state.scrub),
                restoring: tokio::sync::Mutex::default(),
                directory: ActorDirectory::default(),
                counts: Mutex::default(),
                ended: AtomicUsize::default(),
                config,
                logs,
                metrics,
                router,
                tasks,
                agents,
                tools,
                webhooks,
                ring,
                draining,
            }
        })
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// What the holder of a session has acknowledged, whether or not the session is awake.
    pub async fn acked(&self, log: &LogId) -> Seq {
        if let Some(presence) = self.presence(&SessionId::from(log)) {
            return Seq::new(presence.acked.load(Ordering::Relaxed)).unwrap_or(Seq::ZERO);
        }
        let mark = self.logs.store.item(log, keys::MARK).await.ok().flatten();
        let mark = mark.and_then(|bytes| Cursor::parse(std::str::from_utf8(&bytes).ok()?));
        mark.map_or(Seq::ZERO, |mark| mark.seq)
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Principal, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is attached to a session, if it is awake.
    pub fn presence(&self, id: &SessionId) -> Option<Arc<SessionPresence>> {
        self.directory.presence(id)
    }

    /// Sessions with a run under way on this node. What the gauges say is not that: they count all nodes' from time to time.
    pub fn at_work(&self) -> usize {
        self.directory.count(|presence| presence.at_work.load(Ordering::Relaxed))
    }

    pub fn count_live(&self, owner: &Principal) {
        *self.counts().entry(owner.clone()).or_default() += 1;
    }

    /// How many sessions of this owner are not over, as far as this node knows.
    pub(super) fn live_count(&self, owner: &Principal) -> usize {
        self.counts().get(owner).copied().unwrap_or(0)
    }

    /// A session is over; its owner may have another.
    pub fn forget_live(&self, owner: &Principal) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        let mut counts = self.counts();
        if let Some(count) = counts.get_mut(owner) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(owner);
            }
        }
    }

    /// How many sessions have ended since this was last taken.
    pub fn ended(&self) -> &AtomicUsize {
        &self.ended
    }

    /// How many sessions each owner has, as they were just counted.
    pub fn recount(&self, living: HashMap<Principal, usize>) {
        *self.counts() = living;
    }

    /// Whether its owner may have another session now.
    pub fn admits_another(&self, owner: &Principal) -> Result<(), Refusal> {
        let full = self.counts().get(owner).is_some_and(|count| *count >= max_of(self));
        if self.is_draining() {
            return Err(refusals::draining());
        }
        if full { Err(too_many(self)) } else { Ok(()) }
    }

    /// Counts one more session of its owner's, if there is room: looked at and counted in one step.
    fn reserve(&self, owner: &Principal) -> Result<(), Refusal> {
        let mut counts = self.counts();
        let count = counts.entry(owner.clone()).or_default();
        if *count >= max_of(self) {
            return Err(too_many(self));
        }
        *count += 1;
        Ok(())
    }

    /// The log and the record of a session of the asker's own, by any name it ever had.
    pub async fn look_up(&self, id: &SessionId, asker: &Principal) -> Result<(LogId, SessionRecord), Refusal> {
        let refuse = |error: StoreError| refusals::of_store(&error);
        let mine = |stored: &Record| stored.owner == *asker || mutant("skip-the-owner-of-a-session");
        let mut log = LogId::from(id);
        let mut stored = self.logs.store.record(&log).await.map_err(refuse)?.filter(mine);
        if let Some(alias) = stored.as_ref().filter(|stored| stored.kind == LogKind::Alias) {
            let named = alias::listed(alias);
            let targets: Option<Vec<LogId>> = named.iter().map(|name| LogId::parse(name)).collect();
            let targets = targets.filter(|targets| !targets.is_empty());
            let targets =
                targets.ok_or_else(|| unreadable(&log, "alias", &"it does not say which session it names"))?;
            // A name that strangers share is no name of a session.
            let [target] = targets.as_slice() else { return Err(refusals::session_not_found()) };
            log = target.clone();
            stored = self.logs.store.record(&log).await.map_err(refuse)?.filter(mine);
        }
        let stored = stored.filter(|stored| stored.kind == LogKind::Session).ok_or_else(refusals::session_not_found)?;
        let record = SessionRecord::decode(&stored.body).map_err(|why| {
            Refusal::new(ErrorCode::StoreUnavailable, format!("The session's record cannot be read: {why}."))
        })?;
        Ok((log, record))
    }

    /// The log and the record of a session of the asker's own that is not over, for those who only want to read.
    pub async fn own(
        self: &Arc<Self>,
        id: &SessionId,
        asker: &Principal,
        proof: Option<&Presented>,
    ) -> Result<(LogId, SessionRecord), Refusal> {
        let (log, record) = self.look_up(id, asker).await?;
        self.prove(&log, &record, asker, proof).await?;
        goes_by(self, &log, &record, id, true)?;
        record.is_alive()?;
        Ok((log, record))
    }

    /// Whether the caller has shown that the session is its own. The first use of a new secret is written down before
    /// anything is answered: from then on the one before it is worth nothing.
    pub async fn prove(
        self: &Arc<Self>,
        log: &LogId,
        record: &SessionRecord,
        asker: &Principal,
        proof: Option<&Presented>,
    ) -> Result<(), Refusal> {
        let ownership = self.config.session.ownership;
        record.is_proven(ownership, proof)?;
        if record.life != Life::Active || !record.is_first_use(ownership, proof) {
            return Ok(());
        }
        let current = record.current.clone().unwrap_or_else(|| SessionId::from(log));
        self.ask(&current, asker, proof.cloned(), SessionRequest::Prove).await.map(drop)
    }

    /// The id under which a session lives, if its log is still there and it is not over.
    pub async fn living(&self, id: &SessionId, owner: &Principal) -> Result<Option<SessionId>, Refusal> {
        Ok(self.living_record(id, owner).await?.map(|(current, _)| current))
    }

    /// The same, with its record.
    pub async fn living_record(
        &self,
        id: &SessionId,
        owner: &Principal,
    ) -> Result<Option<(SessionId, SessionRecord)>, Refusal> {
        match self.look_up(id, owner).await {
            Ok((log, record)) if record.life == Life::Active => {
                Ok(Some((record.current.clone().unwrap_or_else(|| SessionId::from(&log)), record)))
            }
            Ok(_) => Ok(None),
            Err(refusal) if refusal.code == ErrorCode::SessionNotFound => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// Lets every actor look whether its session is still this node's, and write, which shows whether its last commit still stands.
    pub fn verify_all(&self) {
        // One that is too busy to take it finds out when it writes.
        self.directory.offer(|| Box::new(SessionCommand::unasked(SessionRequest::Verify)));
    }

    /// Asks something of a session on behalf of its owner, and waits for what comes of it.
    pub async fn ask(
        self: &Arc<Self>,
        id: &SessionId,
        asker: &Principal,
        proof: Option<Presented>,
        ask: SessionRequest,
    ) -> CommandResult {
        let (request, answer) = RequestCaller::new(proof);
        self.send(id, asker, SessionCommand::new(CommandSender::Request(request), ask)).await?;
        answer.await.unwrap_or_else(|_gone| Err(SessionActor::unreachable()))
    }

    /// Makes a session: a new log with its first record.
    pub async fn create(self: &Arc<Self>, new: NewSession) -> Result<SessionId, Refusal> {
        self.create_with(new, true, None).await.map(|(id, _)| id)
    }

    /// The same for a client without a connection, which may need a secret to prove that the session is its own.
    pub async fn create_unheld(
        self: &Arc<Self>,
        new: NewSession,
        token: Option<&str>,
        brought: Option<&Presented>,
    ) -> Result<(SessionId, u64), Refusal> {
        let token = token.map(|token| Presented::hash(token).0);
        let token = token.map(|token| match brought {
            None => ResumeToken::first(token),
            // Good until the new one is used: the answer that brings that may be lost.
            Some(brought) => ResumeToken::first(brought.0.clone()).rotated(token, Some(&brought.0)),
        });
        self.create_with(new, false, token).await
    }

    /// Whether there is such an agent here.
    pub fn knows(&self, agent: &str, field: &str) -> Result<(), Refusal> {
        if self.agents.contains_key(agent) {
            return Ok(());
        }
        let known: Vec<&str> = self.agents.keys().map(String::as_str).collect();
        Err(Refusal::field(field, &format!("is not one of: {}", known.join(", "))))
    }

    async fn create_with(
        self: &Arc<Self>,
        new: NewSession,
        held: bool,
        resume_token: Option<ResumeToken>,
    ) -> Result<(SessionId, u64), Refusal> {
        let agent = new.agent.unwrap_or_else(|| self.config.default_agent.clone());
        let id = SessionId::from_random(entropy::u128());
        let now_ms = self.logs.clock.now_ms();
        let record = SessionRecord {
            version: VERSION,
            agent,
            config: new.config,
            client_id: new.client_id,
            app_version: new.app_version,
            title: None,
            created_ms: now_ms,
            touched_ms: now_ms,
            held,
            life: Life::Active,
            released: false,
            current: None,
            lineage: None,
            restored_from: None,
            turn: bowline_core::Turn::Idle,
            messages: 0,
            queue: MessageQueue::default(),
            operations: 0,
            operations_running: None,
            webhooks: 0,
            resume_token,
        };
        let start = Start { epoch: Epoch::from_random(entropy::u64()), after: Seq::ZERO };
        self.create_log(&new.owner, &id, &record, start, Vec::new()).await?;
        Ok((id, now_ms))
    }

    /// Makes the log of a new session, with what belongs beside it.
    pub async fn create_log(
        self: &Arc<Self>,
        owner: &Principal,
        id: &SessionId,
        record: &SessionRecord,
        start: Start,
        items: Vec<Item>,
    ) -> Result<(), Refusal> {
        self.admits_another(owner)?;
        self.reserve(owner)?;
        let mut commit = Commit::to(LogId::from(id), Fence::default(), record.touched_ms);
        commit.create = Some(start);
        commit.record = Some(store_record(owner, record));
        commit.items = items;
        if let Err(error) = self.logs.commit(commit).await {
            self.forget_live(owner);
            return Err(refusals::of_store(&error));
        }
        self.metrics.sessions_created.inc();
        self.metrics.session_state(record.state().as_str()).inc();
        Ok(())
    }
}

/// Whether a session still goes by this name. A restored one has a new one.
pub(super) fn goes_by(
    sessions: &Sessions,
    log: &LogId,
    record: &SessionRecord,
    id: &SessionId,
    admitted: bool,
) -> Result<(), Refusal> {
    let current = record.current.clone().unwrap_or_else(|| SessionId::from(log));
    if current == *id {
        return Ok(());
    }
    if sessions.config.session.ownership == Ownership::Token && !admitted {
        // A name proves nothing there, so the answer says nothing.
        return Err(refusals::session_not_found());
    }
    let message = "The session goes on under a new id.";
    let details = serde_json::json!({ "superseded_by": current });
    Err(Refusal::new(ErrorCode::SessionInactive, message).details(details))
}

fn max_of(sessions: &Sessions) -> usize {
    sessions.config.limits.sessions_per_principal_max
}

fn too_many(sessions: &Sessions) -> Refusal {
    sessions.metrics.limits_hit.inc("limits.sessions_per_principal_max");
    let message = format!("You have {} sessions already. End one with `user.end_session`.", max_of(sessions));
    Refusal::new(ErrorCode::TooManySessions, message).retry_after_ms(60_000)
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions({:?})", self.directory)
    }
}
