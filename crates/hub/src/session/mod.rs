//! A client of the hub that may lose its wire: what it is owed is in a log, what it is asked waits for it.

pub(crate) mod actor;
pub(crate) mod cancellation;
pub(crate) mod elicitation_and_sampling;
pub(crate) mod registry;
pub(crate) mod stream_reader;
pub(crate) mod subscriptions;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bowline_core::resume;
use bowline_env::{clock, entropy};
use bowline_mutant::mutant;
use bowline_protocol::event::{Draft, EventName};
use bowline_protocol::{Cursor, Epoch, LogId, Principal, Seq, SessionId};
use bowline_store::{
    Clock, Commit, Committed, Fence, Follower, Item, LeasedLog, ReadBudget, Release, Start, Store, StoreError, WakeSet,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use self::cancellation::{CallGuard, CancellableCalls};
use self::subscriptions::{KeptRequest, KeptRequests};
use crate::call::facts::{self, ClientFacts};
use crate::call::{Caller, Exchange, InboundSink, outcome};
use crate::config::BackendKey;
use crate::fields::{Raw, raw};
use crate::message::{self, RpcId};
use crate::peers::{self, PeerNodes};
use crate::session::elicitation_and_sampling::PendingServerRequest;
use crate::session::registry::HubSessions;

pub(crate) use self::elicitation_and_sampling::GONE;
pub use crate::session::registry::{HubSessionRecord, Route};
pub use crate::session::stream_reader::ReadingGuard;

/// Names of what a session's log holds.
pub const MESSAGE: &str = "mcp.message";
pub const STREAM: &str = "mcp.stream";
pub const ACTIVITY: &str = "mcp.activity";

/// The stream of what belongs to no request.
pub const OWN_STREAM: &str = "own";
/// A record is touched at most this often.
const TOUCH_EVERY_MS: u64 = 60_000;
/// Subscriptions that one session may have at stateless servers; as many as at all its servers together.
const SUBSCRIPTIONS_MAX: usize = 1000;

/// The log of the session with this name, if it can be a session's name.
pub fn log_of(name: &str) -> Option<LogId> {
    LogId::parse(name).filter(|_| name.starts_with("mcp_") || name.starts_with("mcph_"))
}

pub struct HubSession {
    pub id: LogId,
    pub principal: Principal,
    pub record: HubSessionRecord,
    pub client: Arc<ClientFacts>,
    /// Who calls, for servers. They are told once what the client can do, with the first of its calls.
    caller: Caller,
    /// It has the hub's tools, and can answer with them what it cannot answer itself.
    pub has_tools: bool,
    /// Where backends send what belongs to no call.
    pub inbox: InboundSink,
    /// Where its actor is found.
    host: Weak<HubSessions>,
    store: Arc<dyn Store>,
    clock: Clock,
    /// What its readers may hold.
    pub reading: Arc<ReadBudget>,
    log: LeasedLog,
    /// Its lease, which makes the names of its streams and questions new each time it is woken.
    fence: Fence,
    epoch: Epoch,
    state: Mutex<State>,
    touched_ms: AtomicU64,
    /// It cannot go on here, and has to be woken anew, here or on another node.
    lost: AtomicBool,
    running: CancellableCalls,
    /// Fires when it has ended for good, which takes its calls back. A session that is only lost has not ended.
    ended: CancellationToken,
    /// What servers are to go on doing for it.
    pub kept_requests: KeptRequests,
    pub over: CancellationToken,
}

#[derive(Default)]
struct State {
    pending: HashMap<String, PendingServerRequest>,
    own_stream: Option<CancellationToken>,
    readers: stream_reader::StreamReaders,
    next: u64,
    log_level: Option<String>,
    /// By the server and the address there, since two servers may have a resource of the same address.
    subscriptions: HashMap<(BackendKey, String), CancellationToken>,
}

/// What a session is given by the hub around it.
pub struct HubSessionParts {
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    pub reading: Arc<ReadBudget>,
    pub inbox: InboundSink,
    pub host: Weak<HubSessions>,
    /// The way to the other nodes, if there are any.
    pub peers: Option<Arc<dyn PeerNodes>>,
    /// Whether clients that see everything have the hub's own tools.
    pub has_hub_tools: bool,
}

impl HubSessionParts {
    /// The session's log, and the lease under which it is written from now on.
    async fn lease(&self, id: LogId) -> Result<(LeasedLog, Fence), StoreError> {
        let mut log = LeasedLog::new(self.store.clone(), peers::lessor(&self.store, self.peers.as_ref()), id);
        let fence = log.acquire().await?;
        Ok((log, fence))
    }
}

/// What becomes of a wish to subscribe, or not to.
#[derive(Debug)]
pub enum Subscribing {
    /// It is new. The token fires when it is over.
    Begun(CancellationToken),
    /// It stands already, or it is gone as was wished.
    Settled,
    TooMany,
}

/// A new stream of answers, and the cursor that stands before its first message.
#[derive(Debug)]
pub struct OpenedStream {
    pub stream: String,
    pub at: Seq,
}

impl HubSession {
    /// Makes a session that was not there before.
    pub async fn create(
        parts: HubSessionParts,
        principal: Principal,
        record: HubSessionRecord,
    ) -> Result<HubSession, StoreError> {
        let prefix = if record.handle { "mcph" } else { "mcp" };
        let id = format!("{prefix}_{:032x}", entropy::u128());
        let id = LogId::parse(&id).ok_or(StoreError::NoSuchLog)?;
        let epoch = Epoch::from_random(entropy::u128() as u64);
        let now = parts.clock.now_ms();
        let mut commit = Commit::to(id.clone(), Fence::OPEN, now);
        commit.create = Some(Start { epoch: epoch.clone(), after: Seq::ZERO });
        commit.record = Some(record.stored(&principal, now));
        parts.store.commit(commit).await?;
        let (log, fence) = match parts.peers {
            Some(_) => parts.lease(id).await?,
            None => (LeasedLog::made(parts.store.clone(), peers::lessor(&parts.store, None), id), Fence::OPEN),
        };
        Ok(HubSession::awake(parts, log, principal, record, (fence, epoch)))
    }

    /// Wakes one from the store, as after a restart.
    pub async fn wake(
        parts: HubSessionParts,
        id: LogId,
        principal: Principal,
        record: HubSessionRecord,
    ) -> Result<HubSession, StoreError> {
        let (log, fence) = parts.lease(id).await?;
        let epoch = parts.store.extent(log.id()).await?.epoch;
        let standing = KeptRequests::of(parts.store.items(log.id(), subscriptions::PREFIX).await?);
        let mut session = HubSession::awake(parts, log, principal, record, (fence, epoch));
        session.state().log_level = standing.log_level();
        session.kept_requests = standing;
        session.end_cut_streams().await?;
        Ok(session)
    }

    fn awake(
        HubSessionParts { store, clock, reading, inbox, host, has_hub_tools, .. }: HubSessionParts,
        log: LeasedLog,
        principal: Principal,
        record: HubSessionRecord,
        (fence, epoch): (Fence, Epoch),
    ) -> HubSession {
        let client = Arc::new(ClientFacts { capabilities: record.capabilities.clone(), info: record.info.clone() });
        let has_tools = has_hub_tools && record.route == Route::All;
        let everything =
            || ClientFacts { capabilities: facts::with_tools(&client.capabilities), info: client.info.clone() };
        let caller = Caller {
            session_name: log.id().as_str().into(),
            number: 0,
            owner: principal.as_str().into(),
            exchange: if record.handle { Exchange::Stateless } else { Exchange::Session },
            client: if has_tools { Arc::new(everything()) } else { client.clone() },
            inbox: Some(inbox.clone()),
        };
        let ended = CancellationToken::new();
        HubSession {
            id: log.id().clone(),
            principal,
            record,
            client,
            caller,
            has_tools,
            inbox,
            host,
            store,
            clock,
            reading,
            log,
            fence,
            epoch,
            state: Mutex::default(),
            touched_ms: AtomicU64::new(clock.now_ms()),
            lost: AtomicBool::new(false),
            running: CancellableCalls::new(&ended),
            ended,
            kept_requests: KeptRequests::default(),
            over: CancellationToken::new(),
        }
    }

    /// Calls that were under way when the last process ended: it is not known whether they ran, and their clients get that as the answer.
    async fn end_cut_streams(&self) -> Result<(), StoreError> {
        for (key, value) in self.store.items(&self.id, "open/").await? {
            if mutant("leave-a-cut-call-open") {
                continue;
            }
            let request: CutRequest = serde_json::from_slice(&value).unwrap_or_default();
            let stream = key.trim_start_matches("open/").to_owned();
            let answer = outcome::cut_by_restart(&request.method).answer;
            let id = request.id.and_then(|id| RpcId::parse(&id)).unwrap_or_else(|| RpcId::number(0));
            self.say(&stream, Some(&message::response(&id, &answer)), true).await?;
        }
        Ok(())
    }

    pub fn caller(&self) -> Caller {
        self.caller.clone()
    }

    /// Whether the client itself can answer this request.
    pub fn can(&self, method: &str, params: Option<&Raw>) -> bool {
        facts::is_answerable(&self.client.capabilities, method, params)
    }

    pub fn log_level(&self) -> Option<String> {
        self.state().log_level.clone()
    }

    pub fn set_log_level(&self, level: String) {
        self.state().log_level = Some(level);
    }

    /// Keeps a request that stands, so that it survives us.
    pub async fn keep(&self, request: KeptRequest) {
        let Some(item) = self.kept_requests.note(request) else { return };
        if let Err(error) = self.commit(Vec::new(), vec![item]).await {
            tracing::warn!(session = %self.id, %error, "what a client asked for would not survive a restart");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// A reader of its log for what follows `after`.
    pub fn follow(&self, after: Seq, wake: &Arc<WakeSet>) -> Follower {
        Follower::new(&self.store, &self.id, (&self.epoch, after.next()), wake, 0)
    }

    pub fn event_id(&self, seq: Seq) -> String {
        Cursor { epoch: Some(self.epoch.clone()), seq }.to_string()
    }

    /// A cursor of this session's log, if it is one.
    pub fn position(&self, text: &str) -> Option<Seq> {
        let cursor = Cursor::parse(text)?;
        (!resume::is_foreign(&cursor, &self.epoch)).then_some(cursor.seq)
    }

    fn seal(&self, name: &'static str, content: Raw, metadata: Raw) -> bowline_protocol::Unnumbered {
        let draft = Draft { name: EventName::known(name), step_id: None, content, metadata: Some(metadata) };
        draft.seal(&SessionId::from(&self.id), &clock::rfc3339(clock::wall_ms()))
    }

    async fn commit(&self, events: Vec<bowline_protocol::Unnumbered>, items: Vec<Item>) -> Result<Seq, StoreError> {
        let mut commit = self.change();
        commit.events = events;
        commit.items = items;
        self.write(commit).await.map(|committed| committed.first)
    }

    /// A commit to its log, empty so far. It gets its fence where it is written.
    fn change(&self) -> Commit {
        Commit::to(self.id.clone(), Fence::OPEN, self.clock.now_ms())
    }

    /// Its calls write at the same time, each with a copy of the writer and all under one lease, so that the store can
    /// write them down together. A copy that finds the lease void ends the session, and none takes another lease.
    async fn write(&self, commit: Commit) -> Result<Committed, StoreError> {
        if self.is_lost() {
            return Err(StoreError::Closed);
        }
        let written = self.log.clone().commit_leased(commit).await;
        match &written {
            Ok(committed) => {
                self.is_in(&committed.epoch);
            }
            Err(StoreError::StaleFence { .. }) => self.lose("another node has taken it over"),
            // The right to write is void with that. Only a writer with a new lease knows what the log holds.
            Err(StoreError::InDoubt(_)) => self.lose("the store does not know what it kept"),
            Err(_) => {}
        }
        written
    }

    /// Whether the log is still the one whose cursors this session gives out. Numbers of another epoch mean something else.
    pub fn is_in(&self, epoch: &Epoch) -> bool {
        let same = *epoch == self.epoch;
        if !same {
            self.lose("its log has begun anew");
        }
        same
    }

    /// It cannot go on as it is. Its readers end; their clients reconnect to the session as its actor activates it again.
    pub fn lose(&self, why: &str) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            tracing::warn!(session = %self.id, why, "a session of the hub cannot go on as it is");
            self.over.cancel();
            if let Some(sessions) = self.host.upgrade() {
                sessions.renew(&self.id);
            }
        }
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Begins the stream of one request. From here on, losing the wire loses nothing.
    pub async fn open_stream(&self, request: &RpcId, method: &str) -> Result<OpenedStream, StoreError> {
        let stream = {
            let mut state = self.state();
            state.next += 1;
            format!("{:x}-{}", self.fence.0, state.next)
        };
        let cut = CutRequest { id: Some(request.as_json().to_owned()), method: method.to_owned() };
        let open = Item::put(format!("open/{stream}"), raw(&cut).get().as_bytes().to_vec());
        let event = self.seal(STREAM, raw(&json!(null)), raw(&json!({ "stream": stream })));
        let at = self.commit(vec![event], vec![open]).await?;
        Ok(OpenedStream { stream, at })
    }

    /// Puts a message on a stream; `last` ends it.
    pub async fn say(&self, stream: &str, message: Option<&Raw>, last: bool) -> Result<Seq, StoreError> {
        let content = message.cloned().unwrap_or_else(|| raw(&json!(null)));
        let event = self.seal(MESSAGE, content, raw(&json!({ "stream": stream, "last": last })));
        let items = if last { vec![Item::delete(format!("open/{stream}"))] } else { Vec::new() };
        self.commit(vec![event], items).await
    }

    /// Tells the session something, for `await_activity`.
    pub async fn tell(&self, kind: &str, server: &str, data: &impl Serialize) -> Result<Seq, StoreError> {
        self.note(raw(data), json!({ "type": kind, "server": server })).await
    }

    /// The same for a notification that the client also gets as it is.
    pub async fn tell_too(&self, server: &str, data: &impl Serialize) -> Result<Seq, StoreError> {
        self.note(raw(data), json!({ "type": "notification", "server": server, "native": true })).await
    }

    async fn note(&self, data: Raw, metadata: serde_json::Value) -> Result<Seq, StoreError> {
        if self.over.is_cancelled() {
            return Err(StoreError::Closed);
        }
        self.commit(vec![self.seal(ACTIVITY, data, raw(&metadata))], Vec::new()).await
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
    pub fn started(&self, id: &RpcId) -> CallGuard {
        self.running.begin(id)
    }

    pub fn take_back(&self, id: &RpcId) {
        self.running.take_back(id);
    }

    /// Begins or ends a subscription of ours.
    pub fn subscription(&self, server: &BackendKey, uri: &str, wanted: bool) -> Subscribing {
        let (mut state, key) = (self.state(), (server.clone(), uri.to_owned()));
        if !wanted {
            if let Some(token) = state.subscriptions.remove(&key) {
                token.cancel();
            }
            return Subscribing::Settled;
        }
        if state.subscriptions.contains_key(&key) {
            return Subscribing::Settled;
        }
        if state.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            return Subscribing::TooMany;
        }
        let token = self.over.child_token();
        state.subscriptions.insert(key, token.clone());
        Subscribing::Begun(token)
    }

    /// The session was used. Written now and then, so that it does not expire.
    pub async fn touch(&self) {
        let now = self.clock.now_ms();
        let last = self.touched_ms.load(Ordering::Relaxed);
        let due = now.saturating_sub(last) >= TOUCH_EVERY_MS;
        if due && self.touched_ms.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            Box::pin(self.write_touch(now)).await;
        }
    }

    /// The same, whenever it was last written.
    pub async fn touch_now(&self) {
        let now = self.clock.now_ms();
        self.touched_ms.store(now, Ordering::Relaxed);
        self.write_touch(now).await;
    }

    async fn write_touch(&self, now: u64) {
        let mut commit = self.change();
        commit.record = Some(self.record.stored(&self.principal, now));
        if let Err(error) = self.write(commit).await {
            tracing::debug!(session = %self.id, %error, "a session's use could not be written down");
        }
    }

    /// Whether a client reads one of its streams now.
    pub fn is_read(&self) -> bool {
        self.state().readers.are_there()
    }

    pub fn touched_ms(&self) -> u64 {
        self.touched_ms.load(Ordering::Relaxed)
    }

    /// It is to end for good: its calls are taken back, and its readers end.
    pub fn close(&self) {
        self.over.cancel();
        self.ended.cancel();
        self.state().pending.clear();
    }

    /// Lets go of what the store has of it.
    pub(super) async fn release(&self) -> Result<(), StoreError> {
        self.close();
        let mut commit = self.change();
        commit.release = Some(Release::Log);
        self.write(commit).await.map(drop)
    }
}

#[derive(Default, Serialize, Deserialize)]
struct CutRequest {
    id: Option<String>,
    method: String,
}

impl fmt::Debug for HubSessionParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionParts({:?})", self.clock)
    }
}

impl fmt::Debug for HubSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({}, {})", self.id, self.principal)
    }
}
