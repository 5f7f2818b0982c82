//! What one connection is subscribed to on behalf of several clients: the server sees one subscriber, the hub.

use std::collections::BTreeSet;
use std::sync::Arc;

use bowline_core::backend::Generation;
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};

use super::renewals::{RenewableRequest, Renewals, is_subscription, uri_of};
use crate::call::{BackendCall, CallEnding};
use crate::fields::{Raw, raw};

pub(super) const UNSUBSCRIBE: &str = "resources/unsubscribe";

pub(super) struct Subscriptions {
    /// Who wants what.
    renewals: Arc<Renewals>,
    generation: Generation,
    /// What the server was asked for. A request holds this until it has been sent, so that the server
    /// hears things in the order in which they were decided.
    uris: Mutex<BTreeSet<String>>,
}

impl Subscriptions {
    pub fn new(renewals: Arc<Renewals>, generation: Generation) -> Subscriptions {
        Subscriptions { renewals, generation, uris: Mutex::default() }
    }

    fn is_wanted(&self, uri: &str) -> bool {
        self.renewals.is_wanted(self.generation, uri)
    }

    /// A call's turn to be sent; none if it is not to be sent, because another client still wants the subscription that it would end.
    pub async fn turn<'a>(&'a self, call: &'a BackendCall) -> Option<SubscriptionTurn<'a>> {
        let subscribes = match call.method.as_str() {
            "resources/subscribe" => true,
            UNSUBSCRIBE => false,
            _ => return Some(SubscriptionTurn { order: None, claim: None }),
        };
        let uri = uri_of(call.params.as_ref());
        let mut uris = self.uris.lock().await;
        // Recorded before it is granted, so that no other call ends it in the meantime.
        let is_new = self.renewals.note(call);
        if subscribes {
            uris.insert(uri);
            let claim = is_new.then_some(SubscriptionClaim { renewals: &self.renewals, call, granted: false });
            return Some(SubscriptionTurn { order: Some(uris), claim });
        }
        if self.is_wanted(&uri) {
            return None;
        }
        uris.remove(&uri);
        Some(SubscriptionTurn { order: Some(uris), claim: None })
    }

    /// What clients had subscribed to is asked for again.
    pub async fn renewed(&self, kept: &[RenewableRequest]) {
        let uris = kept.iter().filter(|one| is_subscription(one));
        self.uris.lock().await.extend(uris.map(|(_, params)| uri_of(params.as_ref())));
    }

    /// A client has left: the subscriptions that no other client wants, as parameters of the requests that end them, and the right to send those.
    pub async fn unwanted(&self) -> (Vec<Raw>, MutexGuard<'_, BTreeSet<String>>) {
        let mut uris = self.uris.lock().await;
        let unwanted: Vec<String> = uris.iter().filter(|uri| !self.is_wanted(uri)).cloned().collect();
        uris.retain(|uri| !unwanted.contains(uri));
        (unwanted.iter().map(|uri| raw(&json!({ "uri": uri }))).collect(), uris)
    }
}

/// The right to send a call now, and what it claims if it is granted.
pub(super) struct SubscriptionTurn<'a> {
    order: Option<MutexGuard<'a, BTreeSet<String>>>,
    claim: Option<SubscriptionClaim<'a>>,
}

impl SubscriptionTurn<'_> {
    /// The call is on its way, and others may follow it.
    pub fn sent(&mut self) {
        self.order = None;
    }

    pub fn ended(mut self, ending: CallEnding) -> CallEnding {
        if let Some(claim) = &mut self.claim {
            claim.granted = matches!(ending, CallEnding::Answered { answer: Ok(_), .. });
        }
        ending
    }
}

/// A subscription that was not granted yet. Its caller may walk away.
struct SubscriptionClaim<'a> {
    renewals: &'a Renewals,
    call: &'a BackendCall,
    granted: bool,
}

impl Drop for SubscriptionClaim<'_> {
    fn drop(&mut self) {
        if !self.granted {
            self.renewals.drop_subscription(self.call);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Caller;

    fn call(lane: &str, method: &str) -> BackendCall {
        let caller = Caller { lane: lane.into(), ..Caller::hub() };
        BackendCall { caller, ..BackendCall::of_hub(method, Some(raw(&json!({ "uri": "test://one" })))) }
    }

    #[tokio::test]
    async fn what_one_client_gives_up_is_ended_only_if_nobody_else_wants_it() {
        let renewals = Arc::new(Renewals::default());
        let shared = Subscriptions::new(renewals.clone(), Generation(1));
        for lane in ["a", "b"] {
            let subscribe = call(lane, "resources/subscribe");
            let turn = shared.turn(&subscribe).await.unwrap();
            drop(turn.ended(CallEnding::answered(Ok(crate::fields::empty()))));
        }
        assert!(shared.turn(&call("a", UNSUBSCRIBE)).await.is_none(), "b still wants it");
        assert!(shared.unwanted().await.0.is_empty());
        let refused = call("c", "resources/subscribe");
        drop(shared.turn(&refused).await.unwrap().ended(CallEnding::failed("no")));
        renewals.forget("b");
        assert_eq!(shared.unwanted().await.0.len(), 1, "neither does c, whom it was refused");
        assert!(shared.unwanted().await.0.is_empty(), "it is ended once");
    }

    #[tokio::test]
    async fn the_last_who_gives_it_up_ends_it_also_if_all_do_at_once() {
        let shared = Subscriptions::new(Arc::default(), Generation(1));
        for lane in ["a", "b"] {
            let subscribe = call(lane, "resources/subscribe");
            drop(shared.turn(&subscribe).await.unwrap().ended(CallEnding::answered(Ok(crate::fields::empty()))));
        }
        let (one, other) = (call("a", UNSUBSCRIBE), call("b", UNSUBSCRIBE));
        let (one, other) = (shared.turn(&one).await.is_some(), shared.turn(&other).await.is_some());
        assert_eq!((one, other), (false, true));
    }
}
