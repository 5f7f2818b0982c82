//! A client of the hub that may lose its wire: what it is owed is in a log, what it is asked waits for it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_protocol::event::{Draft, EventName};
use bowline_protocol::{Cursor, Epoch, LogId, Principal, Seq, SessionId};
use bowline_store::{Claim, Commit, Committed, Fence, Item, Kind, Leased, Record, Release, Start, Store, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::era::Era;
use crate::fields::{Fields, Raw, raw};
use crate::link::{Caller, ClientFacts, Sink};
use crate::message::{self, Answer, Id};
use crate::neighbours::Neighbours;
use crate::pending::{Kind as AskedKind, Pending};

/// Names of what a session's log holds.
pub const MESSAGE: &str = "mcp.message";
pub const STREAM: &str = "mcp.stream";
pub const ACTIVITY: &str = "mcp.activity";

/// The stream of what belongs to no request.
pub const OWN_STREAM: &str = "own";
/// A record is touched at most this often.
const TOUCH_EVERY_MS: u64 = 60_000;

/// The log of a session that somebody names, if it can be one's name.
pub fn log_of(name: &str) -> Option<LogId> {
    LogId::parse(name).filter(|_| name.starts_with("mcp_") || name.starts_with("mcph_"))
}

/// What a client sees: everything, or one backend as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    All,
    One(Arc<str>),
}

/// What is durable about a session besides its log.
#[derive(Clone, Serialize, Deserialize)]
pub struct SessionRecord {
    pub route: Route,
    pub version: String,
    pub capabilities: Raw,
    pub info: Raw,
    pub created_ms: u64,
    /// It belongs to a client without sessions, which names it by its handle.
    #[serde(default)]
    pub handle: bool,
}

pub struct Session {
    pub id: LogId,
    pub principal: Principal,
    pub record: SessionRecord,
    pub client: Arc<ClientFacts>,
    /// Where backends send what belongs to no call.
    pub inbox: Sink,
    store: Arc<dyn Store>,
    fence: Fence,
    epoch: Epoch,
    state: Mutex<State>,
    touched_ms: AtomicU64,
    /// Another node has taken it over: nothing can be written here any more.
    lost: AtomicBool,
    pub over: CancellationToken,
}

#[derive(Default)]
struct State {
    pending: HashMap<String, Pending>,
    running: HashMap<Id, CancellationToken>,
    own_stream: Option<CancellationToken>,
    next: u64,
    log_level: Option<String>,
    subscriptions: HashMap<String, CancellationToken>,
}

/// A new stream of answers, and the cursor that stands before its first message.
#[derive(Debug)]
pub struct Opened {
    pub stream: String,
    pub at: Seq,
}

impl Session {
    /// Makes a session that was not there before.
    pub async fn create(
        store: Arc<dyn Store>,
        lessor: Option<&dyn Neighbours>,
        principal: Principal,
        record: SessionRecord,
        inbox: Sink,
    ) -> Result<Session, StoreError> {
        let prefix = if record.handle { "mcph" } else { "mcp" };
        let id = format!("{prefix}_{:032x}", clock::random_bits());
        let id = LogId::parse(&id).ok_or(StoreError::NoSuchLog)?;
        let epoch = Epoch::from_random(clock::random_bits() as u64);
        let now = clock::now_ms();
        let mut commit = Commit::to(id.clone(), Fence::default(), now);
        commit.create = Some(Start { epoch: epoch.clone(), after: Seq::ZERO });
        commit.record = Some(stored(&principal, &record, now));
        store.commit(commit).await?;
        let fence = match lessor {
            Some(lessor) => lessor.take_up(&id).await.and_then(Leased::fence)?,
            None => Fence::default(),
        };
        Ok(Session::awake(store, id, principal, record, fence, epoch, inbox))
    }

    /// Wakes one from the store, as after a restart.
    pub async fn wake(
        store: Arc<dyn Store>,
        lessor: Option<&dyn Neighbours>,
        id: LogId,
        principal: Principal,
        record: SessionRecord,
        inbox: Sink,
    ) -> Result<Session, StoreError> {
        let leased = match lessor {
            Some(lessor) => lessor.take_up(&id).await?,
            None => store.lease(&id, &Claim::alone()).await?,
        };
        let fence = leased.fence()?;
        let epoch = store.extent(&id).await?.epoch;
        let session = Session::awake(store, id, principal, record, fence, epoch, inbox);
        session.end_cut_streams().await?;
        Ok(session)
    }

    fn awake(
        store: Arc<dyn Store>,
        id: LogId,
        principal: Principal,
        record: SessionRecord,
        fence: Fence,
        epoch: Epoch,
        inbox: Sink,
    ) -> Session {
        let client = ClientFacts { capabilities: record.capabilities.clone(), info: record.info.clone() };
        Session {
            id,
            principal,
            record,
            client: Arc::new(client),
            inbox,
            store,
            fence,
            epoch,
            state: Mutex::default(),
            touched_ms: AtomicU64::new(clock::now_ms()),
            lost: AtomicBool::new(false),
            over: CancellationToken::new(),
        }
    }

    /// Calls that were under way when the last process ended: nobody knows whether they ran, and their clients are told.
    async fn end_cut_streams(&self) -> Result<(), StoreError> {
        for (key, value) in self.store.items(&self.id, "open/").await? {
            let request: CutRequest = serde_json::from_slice(&value).unwrap_or_default();
            let stream = key.trim_start_matches("open/").to_owned();
            let answer = crate::outcome::cut_by_restart(&request.method);
            let id = request.id.and_then(|id| Id::parse(&id)).unwrap_or_else(|| Id::number(0));
            self.say(&stream, Some(&message::response(&id, &answer)), true).await?;
        }
        Ok(())
    }

    pub fn caller(&self) -> Caller {
        Caller {
            lane: self.id.as_str().into(),
            owner: self.principal.as_str().into(),
            era: Era::of_version(&self.record.version).unwrap_or(Era::Legacy),
            client: self.client.clone(),
            inbox: Some(self.inbox.clone()),
        }
    }

    /// Whether the client itself can answer this kind of request.
    pub fn can(&self, method: &str) -> bool {
        crate::pending::capability(method).is_some_and(|name| Fields::of(Some(&self.client.capabilities)).has(name))
    }

    pub fn log_level(&self) -> Option<String> {
        self.state().log_level.clone()
    }

    pub fn set_log_level(&self, level: String) {
        self.state().log_level = Some(level);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub fn event_id(&self, seq: Seq) -> String {
        Cursor { epoch: Some(self.epoch.clone()), seq }.to_string()
    }

    /// A cursor of this session's log, if it is one.
    pub fn position(&self, text: &str) -> Option<Seq> {
        let cursor = Cursor::parse(text)?;
        cursor.epoch.is_none_or(|epoch| epoch == self.epoch).then_some(cursor.seq)
    }

    fn seal(&self, name: &'static str, content: Raw, metadata: Raw) -> bowline_protocol::Unnumbered {
        let draft = Draft { name: EventName::known(name), step_id: None, content, metadata: Some(metadata) };
        draft.seal(&SessionId::from(&self.id), &clock::rfc3339(clock::now_ms()))
    }

    async fn commit(&self, events: Vec<bowline_protocol::Unnumbered>, items: Vec<Item>) -> Result<Seq, StoreError> {
        let mut commit = Commit::to(self.id.clone(), self.fence, clock::now_ms());
        commit.events = events;
        commit.items = items;
        self.write(commit).await.map(|committed| committed.first)
    }

    async fn write(&self, commit: Commit) -> Result<Committed, StoreError> {
        let written = self.store.commit(commit).await;
        if matches!(written, Err(StoreError::StaleFence { .. })) && !self.lost.swap(true, Ordering::AcqRel) {
            tracing::warn!(session = %self.id, "another node has taken this session of the hub over");
            self.over.cancel();
        }
        written
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Begins the stream of one request. From here on, losing the wire loses nothing.
    pub async fn open_stream(&self, request: &Id, method: &str) -> Result<Opened, StoreError> {
        let stream = {
            let mut state = self.state();
            state.next += 1;
            format!("{:x}-{}", self.fence.0, state.next)
        };
        let cut = CutRequest { id: Some(request.as_json().to_owned()), method: method.to_owned() };
        let open = Item::put(format!("open/{stream}"), raw(&cut).get().as_bytes().to_vec());
        let event = self.seal(STREAM, raw(&json!(null)), raw(&json!({ "stream": stream })));
        let at = self.commit(vec![event], vec![open]).await?;
        Ok(Opened { stream, at })
    }

    /// Puts a message on a stream; `last` ends it.
    pub async fn say(&self, stream: &str, message: Option<&Raw>, last: bool) -> Result<Seq, StoreError> {
        let content = message.cloned().unwrap_or_else(|| raw(&json!(null)));
        let event = self.seal(MESSAGE, content, raw(&json!({ "stream": stream, "last": last })));
        let items = if last { vec![Item::delete(format!("open/{stream}"))] } else { Vec::new() };
        self.commit(vec![event], items).await
    }

    /// Tells the session something, for `await_activity`.
    pub async fn tell(&self, kind: &str, server: &str, data: &serde_json::Value) -> Result<Seq, StoreError> {
        if self.over.is_cancelled() {
            return Err(StoreError::Closed);
        }
        let event = self.seal(ACTIVITY, raw(data), raw(&json!({ "type": kind, "server": server })));
        self.commit(vec![event], Vec::new()).await
    }

    /// The newest stream of its own wins; the one before it ends.
    pub fn take_own_stream(&self) -> CancellationToken {
        let token = CancellationToken::new();
        if let Some(older) = self.state().own_stream.replace(token.clone()) {
            older.cancel();
        }
        token
    }

    /// Notes that a request is under way, so that it can be taken back.
    pub fn started(&self, id: &Id) -> CancellationToken {
        let token = CancellationToken::new();
        self.state().running.insert(id.clone(), token.clone());
        token
    }

    pub fn finished(&self, id: &Id) {
        self.state().running.remove(id);
    }

    pub fn take_back(&self, id: &Id) {
        if let Some(token) = self.state().running.remove(id) {
            token.cancel();
        }
    }

    /// Begins or ends a subscription of ours; the token of a new one, which fires when it is over.
    pub fn subscription(&self, uri: &str, wanted: bool) -> Option<CancellationToken> {
        let mut state = self.state();
        if !wanted {
            if let Some(token) = state.subscriptions.remove(uri) {
                token.cancel();
            }
            return None;
        }
        if state.subscriptions.contains_key(uri) {
            return None;
        }
        let token = self.over.child_token();
        state.subscriptions.insert(uri.to_owned(), token.clone());
        Some(token)
    }

    /// Asks the client something on behalf of a backend: natively on a stream, or by the tools.
    pub async fn ask(&self, asked: Pending, stream: Option<&str>) -> Result<String, StoreError> {
        let id = {
            let mut state = self.state();
            state.next += 1;
            format!("bl-{:x}-{}", self.fence.0, state.next)
        };
        let (kind, server) = (asked.kind, asked.server.clone());
        let request = message::request(&Id::text(&id), &asked.method, asked.params.as_ref());
        let shown = asked.shown(&id);
        self.state().pending.insert(id.clone(), Pending { stream: stream.map(ToOwned::to_owned), ..asked });
        match stream {
            Some(stream) => self.say(stream, Some(&request), false).await?,
            None => self.tell(kind.event(), &server, &shown).await?,
        };
        Ok(id)
    }

    /// The client answers. An answer counts once.
    pub fn answer(&self, id: &str, answer: Answer) -> bool {
        let pending = self.state().pending.remove(id);
        pending.is_some_and(|pending| pending.reply.send(answer).is_ok())
    }

    /// What waits for an answer by the tools.
    pub fn pending(&self, kind: Option<AskedKind>) -> Vec<serde_json::Value> {
        let mut state = self.state();
        state.pending.retain(|_, pending| !pending.reply.is_closed());
        let wanted = state.pending.iter().filter(|(_, pending)| kind.is_none_or(|kind| kind == pending.kind));
        let mut shown: Vec<_> = wanted.map(|(id, pending)| (pending.since, pending.shown(id))).collect();
        shown.sort_by_key(|(since, _)| *since);
        shown.into_iter().map(|(_, shown)| shown).collect()
    }

    /// Native requests that nobody has answered, for a client that has come back without a cursor.
    pub async fn offer_again(&self) -> Result<(), StoreError> {
        let again: Vec<Raw> = {
            let state = self.state();
            let asked = state.pending.iter().filter(|(_, pending)| pending.stream.is_some());
            let living = asked.filter(|(_, pending)| !pending.reply.is_closed());
            living
                .map(|(id, pending)| message::request(&Id::text(id), &pending.method, pending.params.as_ref()))
                .collect()
        };
        for request in again {
            self.say(OWN_STREAM, Some(&request), false).await?;
        }
        Ok(())
    }

    /// A backend is gone: what it had asked is void, and the client is told.
    pub async fn reject(&self, server: &str) -> Result<(), StoreError> {
        self.void(|pending| pending.server == server && !pending.foreign, "Server disconnected").await
    }

    /// A call is over, and what was asked on its stream with it.
    pub async fn withdraw(&self, stream: &str) -> Result<(), StoreError> {
        self.void(|pending| pending.stream.as_deref() == Some(stream), "The call is over").await
    }

    async fn void(&self, gone: impl Fn(&Pending) -> bool, reason: &str) -> Result<(), StoreError> {
        let gone: Vec<(String, Pending)> = {
            let mut state = self.state();
            let ids: Vec<String> = state.pending.iter().filter(|(_, p)| gone(p)).map(|(id, _)| id.clone()).collect();
            ids.into_iter().filter_map(|id| state.pending.remove(&id).map(|pending| (id, pending))).collect()
        };
        for (id, pending) in gone {
            match &pending.stream {
                Some(stream) => {
                    let params = raw(&json!({ "requestId": id, "reason": reason }));
                    self.say(stream, Some(&message::notification("notifications/cancelled", Some(&params))), false)
                        .await?;
                }
                None => {
                    let data = json!({ "id": id, "reason": reason });
                    self.tell(pending.kind.expired(), &pending.server, &data).await?;
                }
            }
            let _ = pending.reply.send(Err(message::error(message::INTERNAL_ERROR, reason)));
        }
        Ok(())
    }

    /// Questions that have waited too long are taken back.
    pub async fn expire(&self, patience: Duration) -> Result<(), StoreError> {
        let old: Vec<(String, Pending)> = {
            let mut state = self.state();
            let late = |pending: &Pending| pending.since + patience <= Instant::now() || pending.reply.is_closed();
            let ids: Vec<String> = state.pending.iter().filter(|(_, p)| late(p)).map(|(id, _)| id.clone()).collect();
            ids.into_iter().filter_map(|id| state.pending.remove(&id).map(|pending| (id, pending))).collect()
        };
        for (id, pending) in old {
            if pending.stream.is_none() {
                self.tell(pending.kind.expired(), &pending.server, &json!({ "id": id, "reason": "Expired" })).await?;
            }
        }
        Ok(())
    }

    /// The session was used. Written now and then, so that it does not expire.
    pub async fn touch(&self) {
        let now = clock::now_ms();
        let last = self.touched_ms.load(Ordering::Relaxed);
        let due = now.saturating_sub(last) >= TOUCH_EVERY_MS;
        if due && self.touched_ms.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let mut commit = Commit::to(self.id.clone(), self.fence, now);
            commit.record = Some(stored(&self.principal, &self.record, now));
            let _ = self.write(commit).await;
        }
    }

    pub fn touched_ms(&self) -> u64 {
        self.touched_ms.load(Ordering::Relaxed)
    }

    /// Ends it for good.
    pub async fn end(&self) {
        self.over.cancel();
        let running: Vec<CancellationToken> = self.state().running.drain().map(|(_, token)| token).collect();
        running.iter().for_each(CancellationToken::cancel);
        self.state().pending.clear();
        let mut commit = Commit::to(self.id.clone(), self.fence, clock::now_ms());
        commit.release = Some(Release::Log);
        if let Err(error) = self.write(commit).await {
            tracing::warn!(session = %self.id, %error, "a session of the hub could not be removed");
        }
    }
}

#[derive(Default, Serialize, Deserialize)]
struct CutRequest {
    id: Option<String>,
    method: String,
}

fn stored(principal: &Principal, record: &SessionRecord, now: u64) -> Record {
    let body = raw(record).get().as_bytes().to_vec();
    Record { kind: Kind::Mcp, owner: principal.clone(), touched_ms: now, body: body.into() }
}

impl fmt::Debug for SessionRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionRecord({:?}, {})", self.route, self.version)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({}, {})", self.id, self.principal)
    }
}
