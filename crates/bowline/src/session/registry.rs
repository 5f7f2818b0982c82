//! Finds the actor of a session, or wakes it from the store. Nothing here is the truth: the store is.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_core::proof::ResumeToken;
use bowline_protocol::{ClientId, Epoch, ErrorCode, LogId, Principal, Refusal, SessionId};
use bowline_store::{Commit, Fence, Holder, Item, Kind, Record, Start, StoreError};
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::actor::{Actor, Presence, store_record};
use super::caller::{Answered, Caller, Request};
use super::record::{Presented, Queue, SessionRecord, VERSION};
use super::{Ask, Command, Commands, Life};
use crate::cluster::Place;
use crate::config::Ownership;
use crate::decode::unreadable;
use crate::node::{self, Shared};
use crate::{alias, dice, drive};

/// Commands that may wait for one session before its senders wait too.
const COMMANDS_MAX: usize = 64;

#[derive(Default)]
pub struct Registry {
    live: Mutex<HashMap<SessionId, Entry>>,
    /// Sessions that are not over, by owner.
    counts: Mutex<HashMap<Principal, usize>>,
    /// How many have ended since somebody asked.
    ended: AtomicUsize,
}

#[derive(Clone)]
struct Entry {
    owner: Principal,
    commands: mpsc::Sender<Box<Command>>,
    presence: Arc<Presence>,
}

/// Where the actor of a session is.
enum Found {
    Here(mpsc::Sender<Box<Command>>),
    There(Holder),
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
    pub fn check(&self, shared: &Shared, place: &str) -> Result<(), Refusal> {
        let field = format!("{place}agent");
        self.agent.as_deref().map_or(Ok(()), |agent| Registry::knows(shared, agent, &field))?;
        let max = shared.config.limits.config_bytes_max;
        let bytes = serde_json::to_vec(&self.config).map_or(0, |bytes| bytes.len());
        if bytes + self.app_version.as_ref().map_or(0, String::len) <= max {
            return Ok(());
        }
        shared.metrics.limits_hit.inc("limits.config_bytes_max");
        let message = format!("`{place}config` takes {bytes} bytes; limits.config_bytes_max is {max}.");
        Err(Refusal::new(ErrorCode::MessageTooLarge, message))
    }
}

impl Registry {
    fn live(&self) -> MutexGuard<'_, HashMap<SessionId, Entry>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Principal, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is attached to a session, if it is awake.
    pub fn presence(&self, id: &SessionId) -> Option<Arc<Presence>> {
        self.live().get(id).map(|entry| entry.presence.clone())
    }

    /// Sessions with a run under way on this node. What the gauges say is not that: they count all nodes' from time to time.
    pub fn at_work(&self) -> usize {
        self.live().values().filter(|entry| entry.presence.at_work.load(Ordering::Relaxed)).count()
    }

    /// The actor leaves, unless somebody has written to it meanwhile.
    pub fn retire(&self, id: &SessionId, commands: &Commands) -> bool {
        let mut live = self.live();
        if !commands.is_empty() {
            return false;
        }
        live.remove(id);
        true
    }

    pub fn count_live(&self, owner: &Principal) {
        *self.counts().entry(owner.clone()).or_default() += 1;
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
    pub fn admits_another(shared: &Shared, owner: &Principal) -> Result<(), Refusal> {
        let full = shared.registry.counts().get(owner).is_some_and(|count| *count >= max_of(shared));
        if shared.is_draining() {
            return Err(node::draining());
        }
        if full { Err(too_many(shared)) } else { Ok(()) }
    }

    /// Counts one more session of its owner's, if there is room: looked at and counted in one step.
    fn reserve(shared: &Shared, owner: &Principal) -> Result<(), Refusal> {
        let mut counts = shared.registry.counts();
        let count = counts.entry(owner.clone()).or_default();
        if *count >= max_of(shared) {
            return Err(too_many(shared));
        }
        *count += 1;
        Ok(())
    }

    /// Puts an awake actor where others find it, and sets it going.
    pub fn install(shared: &Arc<Shared>, actor: Actor, owner: Principal) -> mpsc::Sender<Box<Command>> {
        let mut live = shared.registry.live();
        // Two who looked at the same time woke it twice; the first one installed is the one that counts.
        if let Some(entry) = live.get(actor.id()).filter(|entry| !entry.commands.is_closed()) {
            return entry.commands.clone();
        }
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let entry = Entry { owner, commands: commands.clone(), presence: actor.presence() };
        live.insert(actor.id().clone(), entry);
        drop(live);
        tokio::spawn(drive::session::drive(shared.clone(), Box::new(actor), inbox));
        commands
    }

    /// `hops` says through how many nodes the question came: those may have believed what is not so any more. `admitted` is
    /// who has shown before whose session it is.
    async fn find(
        shared: &Arc<Shared>,
        id: &SessionId,
        asker: &Principal,
        hops: u8,
        admitted: bool,
    ) -> Result<Found, Refusal> {
        // A closed door belongs to an actor that is gone; the next one is let in by `install`.
        let awake = shared.registry.live().get(id).filter(|entry| !entry.commands.is_closed()).cloned();
        if let Some(entry) = awake {
            return if entry.owner == *asker { Ok(Found::Here(entry.commands)) } else { Err(node::not_found()) };
        }
        let known = shared.cluster.as_ref().filter(|_| hops == 0).and_then(|cluster| cluster.route(id, asker));
        if let Some(elsewhere) = known {
            return Ok(Found::There(elsewhere));
        }
        let (log, record) = Registry::look_up(shared, id, asker).await?;
        goes_by(shared, &log, &record, id, admitted)?;
        if let Some(cluster) = &shared.cluster
            && let Place::There(elsewhere) = cluster.place(&log).await.map_err(|error| node::store_refusal(&error))?
        {
            return Ok(Found::There(elsewhere));
        }
        let actor = Actor::new(shared.clone(), log, asker.clone(), record);
        Ok(Found::Here(Registry::install(shared, actor, asker.clone())))
    }

    /// The log and the record of a session of the asker's own, by any name it ever had.
    pub async fn look_up(
        shared: &Shared,
        id: &SessionId,
        asker: &Principal,
    ) -> Result<(LogId, SessionRecord), Refusal> {
        let refuse = |error: StoreError| node::store_refusal(&error);
        let mine = |stored: &Record| stored.owner == *asker;
        let mut log = LogId::from(id);
        let mut stored = shared.store.record(&log).await.map_err(refuse)?.filter(mine);
        if let Some(alias) = stored.as_ref().filter(|stored| stored.kind == Kind::Alias) {
            let named = alias::listed(alias);
            let targets: Option<Vec<LogId>> = named.iter().map(|name| LogId::parse(name)).collect();
            let targets = targets.filter(|targets| !targets.is_empty());
            let targets =
                targets.ok_or_else(|| unreadable(&log, "alias", &"it does not say which session it names"))?;
            // A name that strangers share is no name of a session.
            let [target] = targets.as_slice() else { return Err(node::not_found()) };
            log = target.clone();
            stored = shared.store.record(&log).await.map_err(refuse)?.filter(mine);
        }
        let stored = stored.filter(|stored| stored.kind == Kind::Session).ok_or_else(node::not_found)?;
        let record = SessionRecord::decode(&stored.body).map_err(|why| {
            Refusal::new(ErrorCode::StoreUnavailable, format!("The session's record cannot be read: {why}."))
        })?;
        Ok((log, record))
    }

    /// The log and the record of a session of the asker's own that is not over, for those who only want to read.
    pub async fn own(
        shared: &Arc<Shared>,
        id: &SessionId,
        asker: &Principal,
        proof: Option<&Presented>,
    ) -> Result<(LogId, SessionRecord), Refusal> {
        let (log, record) = Registry::look_up(shared, id, asker).await?;
        Registry::prove(shared, &log, &record, asker, proof).await?;
        goes_by(shared, &log, &record, id, true)?;
        record.is_alive()?;
        Ok((log, record))
    }

    /// Whether the caller has shown that the session is its own. The first use of a new secret is written down before
    /// anything is answered: from then on the one before it is worth nothing.
    pub async fn prove(
        shared: &Arc<Shared>,
        log: &LogId,
        record: &SessionRecord,
        asker: &Principal,
        proof: Option<&Presented>,
    ) -> Result<(), Refusal> {
        let ownership = shared.config.session.ownership;
        record.is_proven(ownership, proof)?;
        if record.life != Life::Active || !record.is_first_use(ownership, proof) {
            return Ok(());
        }
        let current = record.current.clone().unwrap_or_else(|| SessionId::from(log));
        Registry::ask(shared, &current, asker, proof.cloned(), Ask::Prove).await.map(drop)
    }

    /// The id under which a session lives, if its log is still there and it is not over.
    pub async fn living(shared: &Shared, id: &SessionId, owner: &Principal) -> Result<Option<SessionId>, Refusal> {
        Ok(Registry::living_record(shared, id, owner).await?.map(|(current, _)| current))
    }

    /// The same, with its record.
    pub async fn living_record(
        shared: &Shared,
        id: &SessionId,
        owner: &Principal,
    ) -> Result<Option<(SessionId, SessionRecord)>, Refusal> {
        match Registry::look_up(shared, id, owner).await {
            Ok((log, record)) if record.life == Life::Active => {
                Ok(Some((record.current.clone().unwrap_or_else(|| SessionId::from(&log)), record)))
            }
            Ok(_) => Ok(None),
            Err(refusal) if refusal.code == ErrorCode::SessionNotFound => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// The same actor, under another name.
    pub fn rename(&self, old: &SessionId, new: &SessionId) {
        let mut live = self.live();
        if let Some(entry) = live.remove(old) {
            live.insert(new.clone(), entry);
        }
    }

    /// Delivers a command to a session of the asker's own, wherever it lives.
    pub async fn send(
        shared: &Arc<Shared>,
        id: &SessionId,
        asker: &Principal,
        command: Command,
    ) -> Result<(), Refusal> {
        Registry::try_send(shared, id, asker, command).await.map_err(|(_, refusal)| refusal)
    }

    /// The same for somebody who is not there any more; whoever asked is told if it cannot be.
    pub async fn deliver(shared: &Arc<Shared>, id: &SessionId, asker: &Principal, command: Command) {
        if let Err((command, refusal)) = Registry::try_send(shared, id, asker, command).await {
            command.refuse(id, &refusal);
        }
    }

    async fn try_send(
        shared: &Arc<Shared>,
        id: &SessionId,
        asker: &Principal,
        command: Command,
    ) -> Result<(), (Box<Command>, Refusal)> {
        let mut command = Box::new(command);
        // An actor that leaves at this very moment is woken again; that cannot go on for long.
        for _ in 0..100 {
            match Registry::find(shared, id, asker, command.hops, command.from.is_admitted()).await {
                Err(refusal) => return Err((command, refusal)),
                Ok(Found::There(node)) => return Registry::pass_on(shared, &node, id, asker, *command),
                Ok(Found::Here(commands)) => match commands.send(command).await {
                    Ok(()) => return Ok(()),
                    Err(returned) => command = returned.0,
                },
            }
            tokio::task::yield_now().await;
        }
        Err((command, unreachable()))
    }

    /// Hands a command over to the node that holds its session.
    pub fn pass_on(
        shared: &Shared,
        node: &Holder,
        id: &SessionId,
        asker: &Principal,
        command: Command,
    ) -> Result<(), (Box<Command>, Refusal)> {
        match &shared.cluster {
            Some(cluster) => cluster.forward(node, id, asker, command),
            None => Err((Box::new(command), unreachable())),
        }
    }

    /// Lets every actor look whether its session is still this node's.
    pub fn verify_all(&self) {
        for entry in self.live().values() {
            // One that is too busy to hear it finds out when it writes.
            let _ = entry.commands.try_send(Box::new(Command::unasked(Ask::Verify)));
        }
    }

    /// Asks something of a session on behalf of its owner, and waits for what comes of it.
    pub async fn ask(
        shared: &Arc<Shared>,
        id: &SessionId,
        asker: &Principal,
        proof: Option<Presented>,
        ask: Ask,
    ) -> Answered {
        let (request, answer) = Request::new(proof);
        Registry::send(shared, id, asker, Command::new(Caller::Request(request), ask)).await?;
        answer.await.unwrap_or_else(|_gone| Err(unreachable()))
    }

    /// Makes a session: a new log with its first record.
    pub async fn create(shared: &Arc<Shared>, new: NewSession) -> Result<SessionId, Refusal> {
        Registry::make(shared, new, true, None).await.map(|(id, _)| id)
    }

    /// The same for somebody who comes without a connection, and may need a secret to prove that it is theirs.
    pub async fn create_unheld(
        shared: &Arc<Shared>,
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
        Registry::make(shared, new, false, token).await
    }

    /// Whether there is such an agent here.
    pub fn knows(shared: &Shared, agent: &str, field: &str) -> Result<(), Refusal> {
        if shared.agents.contains_key(agent) {
            return Ok(());
        }
        let known: Vec<&str> = shared.agents.keys().map(String::as_str).collect();
        Err(Refusal::field(field, &format!("is not one of: {}", known.join(", "))))
    }

    async fn make(
        shared: &Arc<Shared>,
        new: NewSession,
        held: bool,
        resume_token: Option<ResumeToken>,
    ) -> Result<(SessionId, u64), Refusal> {
        let agent = new.agent.unwrap_or_else(|| shared.config.default_agent.clone());
        let id = SessionId::from_random(dice::u128());
        let now_ms = shared.clock.now_ms();
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
            queue: Queue::default(),
            operations: 0,
            operations_running: None,
            resume_token,
        };
        let start = Start { epoch: Epoch::from_random(dice::u64()), after: bowline_protocol::Seq::ZERO };
        Registry::found(shared, &new.owner, &id, &record, start, Vec::new()).await?;
        Ok((id, now_ms))
    }

    /// Makes the log of a new session, with what belongs beside it.
    pub async fn found(
        shared: &Arc<Shared>,
        owner: &Principal,
        id: &SessionId,
        record: &SessionRecord,
        start: Start,
        items: Vec<Item>,
    ) -> Result<(), Refusal> {
        Registry::admits_another(shared, owner)?;
        Registry::reserve(shared, owner)?;
        let mut commit = Commit::to(LogId::from(id), Fence::default(), record.touched_ms);
        commit.create = Some(start);
        commit.record = Some(store_record(owner, record));
        commit.items = items;
        if let Err(error) = shared.commit(commit).await {
            shared.registry.forget_live(owner);
            return Err(node::store_refusal(&error));
        }
        shared.metrics.sessions_created.inc();
        shared.metrics.session_state(record.state()).inc();
        Ok(())
    }
}

/// Whether a session still goes by this name. A restored one has a new one.
fn goes_by(
    shared: &Shared,
    log: &LogId,
    record: &SessionRecord,
    id: &SessionId,
    admitted: bool,
) -> Result<(), Refusal> {
    let current = record.current.clone().unwrap_or_else(|| SessionId::from(log));
    if current == *id {
        return Ok(());
    }
    if shared.config.session.ownership == Ownership::Token && !admitted {
        // A name proves nothing there, so it is told nothing.
        return Err(node::not_found());
    }
    let message = "The session goes on under a new id.";
    let details = serde_json::json!({ "superseded_by": current });
    Err(Refusal::new(ErrorCode::SessionInactive, message).details(details))
}

fn unreachable() -> Refusal {
    Refusal::new(ErrorCode::Internal, "The session could not be woken. Try again.").retry_after_ms(1000)
}

fn max_of(shared: &Shared) -> usize {
    shared.config.limits.sessions_per_principal_max
}

fn too_many(shared: &Shared) -> Refusal {
    shared.metrics.limits_hit.inc("limits.sessions_per_principal_max");
    let message = format!("You have {} sessions already. End one with `user.end_session`.", max_of(shared));
    Refusal::new(ErrorCode::TooManySessions, message).retry_after_ms(60_000)
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({} awake)", self.live().len())
    }
}
