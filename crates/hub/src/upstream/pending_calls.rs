//! Who waits at a pipe for what, and so whose an answer, a notification or a question of the backend's is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::abandoned_calls::GivenUp;
use super::inbound_queue::Said;
use crate::call::{Caller, Ending, SHARED_LANE, SUBSCRIPTION_ID, Sink};
use crate::catalogue::ListKind;
use crate::fields::{Fields, Raw};
use crate::message::Id;
use crate::scan::Scan;

/// Somebody who waits for the response to a request.
pub(super) struct Waiting {
    pub answered: oneshot::Sender<Ending>,
    /// Where things go that belong to the call, if somebody listens.
    pub said: Option<Arc<Said>>,
    /// The client's session; the shared lane if it has none.
    pub lane: Arc<str>,
    /// What the caller called its progress.
    pub progress: Option<Raw>,
    /// It is a subscription: what belongs to it names it, and its answer is its end.
    pub listens: bool,
}

impl Waiting {
    /// Whether it is a client's, and one that things without a name can belong to.
    fn is_spoken_to(&self) -> bool {
        self.said.is_some() && !self.listens
    }
}

/// Whose something is that a backend says.
pub(super) enum Whose {
    Calls(Arc<Said>),
    /// One of several calls of one client: the newest, as likely as not.
    OneOfCalls(Arc<Said>),
    /// The only client's, but none of its calls'.
    Clients(Sink),
    Nobodys,
    /// It was somebody's who has left.
    NobodysAnyMore,
    /// One of several clients', and nothing says whose.
    Somebodys,
}

impl Whose {
    fn of_call(call: Option<&Waiting>) -> Whose {
        call.and_then(|call| call.said.clone()).map_or(Whose::Nobodys, Whose::Calls)
    }
}

/// What is at the other end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A process, which knows nothing of others.
    Process,
    /// One of several sessions with one server.
    Session,
}

/// The calls that are under way on one pipe, by the ids that they have there.
pub(super) struct WaitingRoom {
    calls: Mutex<BTreeMap<u64, Waiting>>,
    next_id: AtomicU64,
    given_up: GivenUp,
    /// Where things go that belong to no call, if the pipe is one client's alone.
    inbox: Option<Sink>,
    /// The only one of several clients that is here now.
    tenant: Mutex<Option<Caller>>,
    kind: Kind,
}

impl WaitingRoom {
    /// Of a pipe that all share, or of one client's own.
    pub fn new(client: Option<&Caller>, kind: Kind) -> WaitingRoom {
        let inbox = client.and_then(|client| client.inbox.clone());
        WaitingRoom {
            calls: Mutex::default(),
            next_id: AtomicU64::new(1),
            given_up: GivenUp::default(),
            inbox,
            tenant: Mutex::default(),
            kind,
        }
    }

    /// From now on what is said to nobody in particular is for this client, or for whoever may hear it.
    pub fn set_tenant(&self, client: Option<&Caller>) {
        let mut tenant = self.tenant.lock().unwrap_or_else(PoisonError::into_inner);
        let inbox = |caller: Option<&Caller>| caller.and_then(|caller| caller.inbox.clone());
        let same = match (inbox(tenant.as_ref()), inbox(client)) {
            (Some(before), Some(now)) => before.same_channel(&now),
            (before, now) => before.is_none() && now.is_none(),
        };
        if !same {
            *tenant = client.cloned();
        }
    }

    /// A number for the next request.
    pub fn number(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub fn enter(&self, number: u64, waiting: Waiting) {
        self.lock().insert(number, waiting);
    }

    pub fn leave(&self, number: u64) -> Option<Waiting> {
        self.lock().remove(&number)
    }

    /// A call's caller has walked away after it was sent.
    pub fn give_up(&self, number: u64) {
        // What nobody listens to asks nobody.
        if let Some(call) = self.leave(number).filter(Waiting::is_spoken_to) {
            self.given_up.add(number, (*call.lane != *SHARED_LANE).then_some(call.lane));
        }
    }

    /// Everyone who waits is told at once, by the loss of their sender.
    pub fn clear(&self) {
        self.lock().clear();
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// The call that it names, or the only one that it can mean.
    pub fn whose_answer(&self, scan: &Scan) -> Option<Waiting> {
        match scan.id() {
            Some(id) => self.leave(id.as_number()?),
            None => self.only_call(),
        }
    }

    /// The call that an answer to something that was never asked can mean. What was asked once may be answered late or
    /// twice; anything else can only be a call's answer under a wrong name.
    pub fn wrongly_named(&self, id: Option<&Id>) -> Option<Waiting> {
        let asked = self.next_id.load(Ordering::Relaxed);
        let late = id.and_then(Id::as_number).filter(|number| (1..asked).contains(number));
        match late {
            Some(number) => {
                self.given_up.ended(number);
                None
            }
            None => self.only_call(),
        }
    }

    /// The call that an answer without a name can mean: the only one. Our own housekeeping is not what anybody answers so
    /// badly, unless there is nothing else.
    fn only_call(&self) -> Option<Waiting> {
        let mut calls = self.lock();
        let of_clients: Vec<u64> =
            calls.iter().filter(|(_, call)| call.is_spoken_to()).map(|(number, _)| *number).collect();
        let number = match (of_clients.as_slice(), calls.len()) {
            ([only], _) => *only,
            ([], 1) => *calls.keys().next()?,
            _ => return None,
        };
        calls.remove(&number)
    }

    /// Whose a notification is, and what it says there.
    pub fn whose_notification(&self, method: &str, params: Option<Raw>) -> (Whose, Option<Raw>) {
        let changed = ListKind::ALL.iter().any(|kind| kind.changed() == method);
        if let Some(whose) = self.whose_subscription(params.as_ref()) {
            // A change of a list is found out for all, whoever was told of it.
            let late = matches!(whose, Whose::NobodysAnyMore);
            return (if late && changed { Whose::Nobodys } else { whose }, params);
        }
        match method {
            // What changes in one client's process changes there alone.
            _ if changed && self.inbox.is_some() && self.kind == Kind::Process => (self.clients(), params),
            // Each client's pipe tells of a change; whether there is one is found out once, for all.
            _ if changed => (Whose::Nobodys, params),
            "notifications/progress" => self.whose_progress(params),
            "notifications/message" | "notifications/elicitation/complete" | "notifications/tasks/status" => {
                (self.whose_word(params.as_ref()), params)
            }
            // Others than the only client may have subscribed; who has is known elsewhere.
            "notifications/resources/updated" if self.inbox.is_none() => (Whose::Nobodys, params),
            _ => (self.clients(), params),
        }
    }

    /// A subscription is named by the id of the request that asked for it.
    fn whose_subscription(&self, params: Option<&Raw>) -> Option<Whose> {
        let meta = Fields::of(params.map(|raw| &**raw)).object("_meta");
        let number: u64 = meta.read(SUBSCRIPTION_ID)?;
        Some(match self.lock().get(&number) {
            Some(call) => Whose::of_call(Some(call)),
            None => Whose::NobodysAnyMore,
        })
    }

    /// Progress goes to whoever called, under the name that the caller gave it.
    fn whose_progress(&self, params: Option<Raw>) -> (Whose, Option<Raw>) {
        let mut fields = Fields::of(params.as_deref());
        let number: Option<u64> = fields.read("progressToken");
        let calls = self.lock();
        let Some(found) = number.and_then(|number| calls.get(&number)) else { return (Whose::Nobodys, params) };
        let Some(token) = &found.progress else { return (Whose::Nobodys, params) };
        fields.set("progressToken", token.clone());
        (Whose::of_call(Some(found)), Some(fields.to_raw()))
    }

    /// The call that a request or a word of the backend's belongs to: the one whose progress it names, or else as for
    /// everything that names none.
    pub fn whose_word(&self, params: Option<&Raw>) -> Whose {
        let meta = Fields::of(params.map(|raw| &**raw)).object("_meta");
        match meta.read::<u64>("progressToken") {
            Some(number) => self.lock().get(&number).map_or(Whose::NobodysAnyMore, |call| Whose::of_call(Some(call))),
            None => self.only_callers(),
        }
    }

    /// A shared pipe does not say which call a request or a log line belongs to. It goes to the newest call if all calls
    /// are one client's; otherwise guessing would show one client what is another's.
    fn only_callers(&self) -> Whose {
        let calls = self.lock();
        let mut calls = calls.values().filter(|call| call.is_spoken_to());
        let Some(first) = calls.next() else { return self.clients() };
        let same = |one: &Waiting, other: &Waiting| one.lane == other.lane && *one.lane != *SHARED_LANE;
        let client = (*first.lane != *SHARED_LANE).then_some(&first.lane);
        if self.tenant().is_some_and(|tenant| client != Some(&tenant.lane)) {
            return Whose::Somebodys;
        }
        match calls.try_fold((first, 1), |(_, n), call| same(call, first).then_some((call, n + 1))) {
            Some((newest, n)) if self.inbox.is_some() || self.given_up.are_only(client) => match &newest.said {
                Some(said) if n > 1 => Whose::OneOfCalls(said.clone()),
                _ => Whose::of_call(Some(newest)),
            },
            _ => Whose::Somebodys,
        }
    }

    /// What belongs to no call is the only client's.
    fn clients(&self) -> Whose {
        let tenant = self.tenant();
        if tenant.is_some() && self.only_client().is_none() {
            return Whose::Somebodys;
        }
        let inbox = self.inbox.clone().or_else(|| tenant?.inbox);
        inbox.map_or(Whose::Nobodys, Whose::Clients)
    }

    /// The tenant, if nobody else can be meant by anything.
    pub fn only_client(&self) -> Option<Arc<str>> {
        self.tenant().map(|tenant| tenant.lane).filter(|lane| self.given_up.are_only(Some(lane)))
    }

    fn tenant(&self) -> Option<Caller> {
        self.tenant.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Waiting>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::raw;
    use serde_json::{Value, json};

    fn enter(room: &WaitingRoom, lane: &str) -> (u64, Arc<Said>) {
        let (number, said) = (room.number(), Arc::new(Said::new(&"b".into())));
        let (answered, _) = oneshot::channel();
        let waiting = Waiting { answered, said: Some(said.clone()), lane: lane.into(), progress: None, listens: false };
        room.enter(number, waiting);
        (number, said)
    }

    fn whose(room: &WaitingRoom, params: &Value) -> Whose {
        room.whose_notification("notifications/message", Some(raw(params))).0
    }

    #[test]
    fn a_log_line_that_may_be_one_clients_or_anothers_is_told_to_neither() {
        let room = WaitingRoom::new(None, Kind::Process);
        let line = json!({ "level": "info", "data": "x" });
        assert!(matches!(whose(&room, &line), Whose::Nobodys), "with no call under way it is for whoever may hear it");
        let (first, alices) = enter(&room, "alice");
        assert!(matches!(whose(&room, &line), Whose::Calls(said) if Arc::ptr_eq(&said, &alices)));
        let (second, bobs) = enter(&room, "bob");
        assert!(matches!(whose(&room, &line), Whose::Somebodys));
        for (number, of) in [(first, alices), (second, bobs)] {
            let named = json!({ "level": "info", "data": "x", "_meta": { "progressToken": number } });
            assert!(matches!(whose(&room, &named), Whose::Calls(said) if Arc::ptr_eq(&said, &of)));
            room.leave(number);
            assert!(matches!(whose(&room, &named), Whose::NobodysAnyMore));
        }
    }

    #[test]
    fn what_belongs_to_no_call_is_the_tenants_unless_it_may_be_anothers() {
        let room = WaitingRoom::new(None, Kind::Process);
        let line = json!({ "level": "info", "data": "x" });
        let (inbox, _said) = tokio::sync::mpsc::channel(1);
        room.set_tenant(Some(&Caller { lane: "alice".into(), inbox: Some(inbox), ..Caller::hub() }));
        assert!(matches!(whose(&room, &line), Whose::Clients(_)));
        let (first, alices) = enter(&room, "alice");
        assert!(matches!(whose(&room, &line), Whose::Calls(said) if Arc::ptr_eq(&said, &alices)));
        room.leave(first);
        let (second, _) = enter(&room, "bob");
        assert!(matches!(whose(&room, &line), Whose::Somebodys), "alice may be meant");
        room.give_up(second);
        assert!(matches!(whose(&room, &line), Whose::Somebodys), "bob may still be meant");
        let updated = room.whose_notification("notifications/resources/updated", None).0;
        assert!(matches!(updated, Whose::Nobodys), "others may have subscribed");
        room.set_tenant(None);
        assert!(matches!(whose(&room, &line), Whose::Nobodys));
    }
}
