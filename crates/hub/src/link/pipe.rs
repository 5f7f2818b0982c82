//! One ordered way in and one way out, shared by all callers: a child's stdin and stdout, or the older HTTP+SSE.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_core::backend::{DialError, Generation};
use futures_util::future::Either;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Caller, Dial, Ending, Facts, Inbound, LinkEvent, LinkEvents, PROBE_TIMEOUT, Renewals, SHARED_LANE, Sink, Upcall,
    ask, cancelled, initialize_params, is_modern_error, own_answer, passing, synthesised_initialize,
};
use crate::era::{self, Era};
use crate::fields::{Fields, Raw};
use crate::message::{self, Answer, Id, Message, Notification, Request, Response};

/// Messages that may wait to be written.
pub const OUT_QUEUE: usize = 256;

/// A message on its way out, and whether any of it has left. Whoever writes it says so before it tries, and takes that
/// back only if nothing went out: what is in doubt has left.
pub struct Outgoing {
    pub text: Raw,
    left: Arc<AtomicBool>,
}

impl Outgoing {
    fn new(text: Raw) -> Outgoing {
        Outgoing { text, left: Arc::default() }
    }

    pub fn set_left(&self, left: bool) {
        self.left.store(left, Ordering::Release);
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outgoing({} bytes)", self.text.get().len())
    }
}

pub struct Pipe {
    facts: std::sync::OnceLock<Facts>,
    out: mpsc::Sender<Outgoing>,
    next_id: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Waiting>>,
    /// Requests of the backend's that somebody is answering.
    asked: Mutex<HashMap<Id, CancellationToken>>,
    name: Arc<str>,
    events: LinkEvents,
    generation: Generation,
    closed: CancellationToken,
}

/// Somebody who waits for the response to a request.
struct Waiting {
    answered: oneshot::Sender<Answer>,
    sink: Option<Sink>,
    owner: Arc<str>,
    /// What the caller called its progress.
    progress: Option<Raw>,
}

impl Pipe {
    pub fn new(out: mpsc::Sender<Outgoing>, dial: &Dial, closed: CancellationToken) -> Pipe {
        Pipe {
            facts: std::sync::OnceLock::new(),
            out,
            next_id: AtomicU64::new(1),
            waiting: Mutex::default(),
            asked: Mutex::default(),
            name: dial.name.clone(),
            events: dial.events.clone(),
            generation: dial.generation,
            closed,
        }
    }

    /// Finds out what the backend is: a probe that every modern server must know, then the older handshake.
    pub async fn shake_hands(self: &Arc<Self>, remembered: Option<Era>) -> Result<(), DialError> {
        let facts = match remembered {
            Some(Era::Legacy) => self.initialize().await?,
            _ => self.find_out().await?,
        };
        let _ = self.facts.set(facts);
        Ok(())
    }

    /// A server of the older era may ignore the probe, and a program may take longer to start than the probe waits. So
    /// after a while both questions stand, and the first answer counts.
    async fn find_out(self: &Arc<Self>) -> Result<Facts, DialError> {
        let mut probe = std::pin::pin!(self.discover());
        if let Ok(found) = tokio::time::timeout(PROBE_TIMEOUT, &mut probe).await {
            return match found? {
                Some(facts) => Ok(facts),
                None => self.initialize().await,
            };
        }
        let initialize = std::pin::pin!(self.initialize());
        match futures_util::future::select(probe, initialize).await {
            Either::Left((found, initialize)) => match found? {
                Some(facts) => Ok(facts),
                None => initialize.await,
            },
            Either::Right((facts, _)) => facts,
        }
    }

    /// After a reconnect: what clients had subscribed to and set, so that nobody has to notice.
    pub async fn renew(self: &Arc<Self>, renewals: &Renewals) {
        for (method, params) in renewals.all() {
            let _ = self.send(&method, params, &SHARED_LANE.into(), None).await;
        }
    }

    async fn discover(self: &Arc<Self>) -> Result<Option<Facts>, DialError> {
        let hub = Caller::hub();
        let params = era::with_meta(None, &hub.client.capabilities, &hub.client.info, None);
        match self.send("server/discover", Some(params), &hub.owner, None).await {
            Ending::Answered { answer: Ok(result), .. } => Ok(Some(Facts::of_discover(&result))),
            Ending::Answered { answer: Err(error), .. } if is_modern_error(&error) => {
                Err(passing(format!("it speaks no version that is known here: {}", message::message_of(&error))))
            }
            Ending::Answered { .. } => Ok(None),
            Ending::NotExecuted(why) | Ending::Broken(why) => Err(passing(why)),
        }
    }

    async fn initialize(self: &Arc<Self>) -> Result<Facts, DialError> {
        let hub = Caller::hub();
        match self.send("initialize", Some(initialize_params(&hub)), &hub.owner, None).await {
            Ending::Answered { answer: Ok(result), .. } => {
                self.notify("notifications/initialized", None).await;
                Ok(Facts::of_initialize(&result))
            }
            Ending::Answered { answer: Err(error), .. } => {
                Err(passing(format!("it refused to be initialized: {}", message::message_of(&error))))
            }
            Ending::NotExecuted(why) | Ending::Broken(why) => Err(passing(why)),
        }
    }

    #[allow(clippy::expect_used)]
    pub fn facts(&self) -> &Facts {
        self.facts.get().expect("a pipe is handed out only after the handshake")
    }

    pub async fn call(self: &Arc<Self>, call: &Upcall) -> Ending {
        let Upcall { method, params, caller, sink, log_level, .. } = call;
        if method == "initialize" {
            let facts = self.facts();
            let result = facts.initialized.clone().unwrap_or_else(|| synthesised_initialize(facts));
            return Ending::answered(Ok(result));
        }
        let params = if self.facts().era == Era::Modern {
            let client = &caller.client;
            Some(match caller.era {
                Era::Modern if caller.lane.as_ref() != SHARED_LANE => {
                    params.clone().unwrap_or_else(crate::fields::empty)
                }
                _ => era::with_meta(params.as_ref(), &client.capabilities, &client.info, log_level.as_deref()),
            })
        } else if caller.era == Era::Modern {
            era::without_meta(params.as_ref())
        } else {
            params.clone()
        };
        self.send(method, params, &caller.owner, sink.clone()).await
    }

    pub async fn notify(&self, method: &str, params: Option<Raw>) {
        let _ = self.out.send(Outgoing::new(message::notification(method, params.as_ref()))).await;
    }

    pub fn close(&self) {
        self.closed.cancel();
    }

    async fn send(self: &Arc<Self>, method: &str, params: Option<Raw>, owner: &Arc<str>, sink: Option<Sink>) -> Ending {
        if self.closed.is_cancelled() {
            return Ending::NotExecuted("the connection is closed".into());
        }
        let number = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (params, progress) = own_progress_token(params, number);
        let (answered, answer) = oneshot::channel();
        let waiting = Waiting { answered, sink, owner: owner.clone(), progress };
        lock(&self.waiting).insert(number, waiting);
        let mut open = Open { pipe: self, number, over: false };
        let outgoing = Outgoing::new(message::request(&Id::number(number), method, params.as_ref()));
        let left = outgoing.left.clone();
        if self.out.send(outgoing).await.is_err() {
            open.over = true;
            return Ending::NotExecuted("the connection is closed".into());
        }
        let ending = answer.await;
        open.over = true;
        match ending {
            Ok(answer) => Ending::answered(answer),
            Err(_) if !left.load(Ordering::Acquire) => {
                Ending::NotExecuted("the connection closed before the call was sent".into())
            }
            Err(_) => Ending::Broken("the connection closed before the answer".into()),
        }
    }

    /// Everything that comes in, in its order.
    pub async fn receive(self: &Arc<Self>, message: Message) {
        match message {
            Message::Response(Response { id, answer }) => {
                let waiting = id.and_then(|id| id.as_number()).and_then(|number| lock(&self.waiting).remove(&number));
                match waiting {
                    Some(waiting) => drop(waiting.answered.send(answer)),
                    // A wrong or repeated id hurts only the call that it should have answered.
                    None => tracing::warn!("a backend answered something that was not asked"),
                }
            }
            Message::Notification(notification) => self.notified(notification).await,
            Message::Request(request) => self.requested(request),
        }
    }

    async fn notified(self: &Arc<Self>, Notification { method, params }: Notification) {
        if method == "notifications/cancelled" {
            let fields = Fields::of(params.as_deref());
            let taken_back = fields.get("requestId").map(|raw| raw.get().to_owned()).unwrap_or_default();
            lock(&self.asked).retain(|id, token| {
                let keep = id.as_json() != taken_back;
                if !keep {
                    token.cancel();
                }
                keep
            });
            return;
        }
        let (sink, params) = if method == "notifications/progress" {
            self.whose_progress(params)
        } else if belongs_to_calls(&method) {
            (self.only_caller(), params)
        } else {
            (None, params)
        };
        let inbound = Inbound::Notification { method, params };
        match sink {
            Some(sink) => drop(sink.send(inbound).await),
            None => drop(self.events.send((self.generation, LinkEvent::Inbound(inbound))).await),
        }
    }

    /// Progress goes to whoever called, under the name that the caller gave it.
    fn whose_progress(&self, params: Option<Raw>) -> (Option<Sink>, Option<Raw>) {
        let mut fields = Fields::of(params.as_deref());
        let number: Option<u64> = fields.read("progressToken");
        let waiting = lock(&self.waiting);
        let Some(found) = number.and_then(|number| waiting.get(&number)) else { return (None, params) };
        let Some(token) = &found.progress else { return (None, params) };
        fields.set("progressToken", token.clone());
        (found.sink.clone(), Some(fields.to_raw()))
    }

    /// The call that a request of the backend's belongs to: the one whose progress it names, or else as for everything
    /// that names none.
    fn asker(&self, params: Option<&Raw>) -> Option<Sink> {
        let meta = Fields::of(params.map(|raw| &**raw)).object("_meta");
        match meta.read::<u64>("progressToken") {
            Some(number) => lock(&self.waiting).get(&number).and_then(|call| call.sink.clone()),
            None => self.only_caller(),
        }
    }

    /// The pipe does not say which call a request or a log line belongs to. It goes to the newest call if all calls are
    /// one owner's, and to nobody otherwise: guessing would show one person what is another's.
    fn only_caller(&self) -> Option<Sink> {
        let waiting = lock(&self.waiting);
        let mut calls = waiting.values().filter(|call| call.sink.is_some());
        let first = calls.next()?;
        let newest = calls.try_fold(first, |_, call| (call.owner == first.owner).then_some(call))?;
        newest.sink.clone()
    }

    fn requested(self: &Arc<Self>, Request { id, method, params }: Request) {
        let pipe = self.clone();
        let token = CancellationToken::new();
        lock(&self.asked).insert(id.clone(), token.clone());
        tokio::spawn(async move {
            let answer = async {
                match own_answer(&method) {
                    Some(answer) => answer,
                    None => ask(pipe.asker(params.as_ref()).as_ref(), &pipe.name, method, params).await,
                }
            };
            let answer = token.run_until_cancelled(answer).await;
            lock(&pipe.asked).remove(&id);
            if let Some(answer) = answer {
                let _ = pipe.out.send(Outgoing::new(message::response(&id, &answer))).await;
            }
        });
    }

    /// The wire is gone: everyone who waits is told at once, by the loss of their sender.
    pub fn lost(&self) {
        self.closed.cancel();
        lock(&self.waiting).clear();
        for (_, token) in lock(&self.asked).drain() {
            token.cancel();
        }
    }
}

/// Which notifications are about a call rather than about the server.
fn belongs_to_calls(method: &str) -> bool {
    matches!(method, "notifications/message" | "notifications/elicitation/complete" | "notifications/tasks/status")
}

/// Callers may use the same progress token, so each call gets its own: its number.
fn own_progress_token(params: Option<Raw>, number: u64) -> (Option<Raw>, Option<Raw>) {
    let mut fields = Fields::of(params.as_deref());
    let mut meta = fields.object("_meta");
    let Some(token) = meta.get("progressToken").map(ToOwned::to_owned) else { return (params, None) };
    meta.put("progressToken", &number);
    fields.set("_meta", meta.to_raw());
    (Some(fields.to_raw()), Some(token))
}

/// A request whose caller may walk away.
struct Open<'a> {
    pipe: &'a Pipe,
    number: u64,
    over: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        lock(&self.pipe.waiting).remove(&self.number);
        if !self.over {
            let params = cancelled(&Id::number(self.number));
            let taken_back = message::notification("notifications/cancelled", Some(&params));
            let _ = self.pipe.out.try_send(Outgoing::new(taken_back));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pipe({} waiting)", lock(&self.waiting).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe() -> (Arc<Pipe>, mpsc::Receiver<Outgoing>) {
        let (out, outgoing) = mpsc::channel(OUT_QUEUE);
        let (events, _) = mpsc::channel(1);
        let dial = Dial {
            name: "b".into(),
            generation: Generation(1),
            era: None,
            only_era: false,
            events,
            http: reqwest::Client::new(),
            allow_private: true,
            renewals: Arc::default(),
        };
        (Arc::new(Pipe::new(out, &dial, CancellationToken::new())), outgoing)
    }

    async fn ending(leaves: Option<bool>) -> Ending {
        let (pipe, mut outgoing) = pipe();
        let owner: Arc<str> = "alice".into();
        let call = pipe.send("tools/call", None, &owner, None);
        let fate = async {
            let message = outgoing.recv().await.unwrap();
            // As a writer does: it says so before it tries, and takes that back if not a byte went out.
            if let Some(leaves) = leaves {
                message.set_left(true);
                message.set_left(leaves);
            }
            pipe.lost();
        };
        futures_util::future::join(call, fate).await.0
    }

    #[tokio::test]
    async fn a_call_of_which_nothing_left_did_not_run_and_any_other_may_have() {
        assert!(matches!(ending(None).await, Ending::NotExecuted(_)), "it waited in the queue");
        assert!(matches!(ending(Some(false)).await, Ending::NotExecuted(_)), "the first byte was refused");
        assert!(matches!(ending(Some(true)).await, Ending::Broken(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_starts_slowly_is_known_by_its_first_answer() {
        let (pipe, mut outgoing) = pipe();
        let program = async {
            let (probe, handshake) = (outgoing.recv().await.unwrap(), outgoing.recv().await.unwrap());
            assert!(probe.text.get().contains("server/discover") && handshake.text.get().contains("initialize"));
            let facts = r#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}}"#;
            let refusal = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"no such method"}}"#;
            for answer in [facts, refusal] {
                pipe.receive(Message::parse(answer).unwrap()).await;
            }
        };
        let (shaken, ()) = futures_util::future::join(pipe.shake_hands(None), program).await;
        shaken.unwrap();
        assert_eq!(pipe.facts().era, Era::Modern);
    }
}
