//! Whatever is begun, answered and given up on a connection, in whatever order: nothing that may be one client's is shown to
//! another, and an answer counts once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_core::attribution::{
    AttributedRequest, Attribution, CallNumber, ConnectionScope, GIVEN_UP_FOR, Recipient, RequestListener,
    ServerMessage,
};
use proptest::prelude::*;

/// What chance does. Numbers pick among what there is.
#[derive(Clone, Debug)]
enum Act {
    Send(usize, usize),
    Answer(usize),
    GiveUp(usize),
    Stray(u64),
    Nameless,
    Tenant(usize),
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0usize..4, 0usize..4).prop_map(|(client, listener)| Act::Send(client, listener)),
        3 => (0usize..8).prop_map(Act::Answer),
        3 => (0usize..8).prop_map(Act::GiveUp),
        1 => (0u64..12).prop_map(Act::Stray),
        1 => Just(Act::Nameless),
        1 => (0usize..4).prop_map(Act::Tenant),
        2 => (0u64..400).prop_map(Act::Pass),
    ]
}

/// `None` is a client without a session: two of these may be two clients.
fn client(pick: usize) -> Option<Arc<str>> {
    ["a", "b", "c"].get(pick).map(|name| (*name).into())
}

/// The world as it really is, beside what the machine believes.
struct World {
    attribution: Attribution,
    t: Instant,
    open: BTreeMap<CallNumber, AttributedRequest>,
    left: BTreeMap<CallNumber, (AttributedRequest, Instant)>,
    tenant: Option<Arc<str>>,
}

impl World {
    #[allow(clippy::disallowed_methods)]
    fn new() -> World {
        // The machine has no clock, so tests have one.
        let (attribution, t) = (Attribution::new(ConnectionScope::Shared), Instant::now());
        World { attribution, t, open: BTreeMap::new(), left: BTreeMap::new(), tenant: None }
    }

    fn pick(&self, at: usize) -> Option<CallNumber> {
        let open: Vec<_> = self.open.keys().copied().collect();
        (!open.is_empty()).then(|| open[at % open.len()])
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Send(pick, listener) => {
                let listener = [
                    RequestListener::Caller,
                    RequestListener::Caller,
                    RequestListener::Subscriber,
                    RequestListener::Absent,
                ][listener];
                let client = if listener == RequestListener::Absent { None } else { client(pick) };
                let waiting = AttributedRequest { client, listener, wants_progress: pick % 2 == 0 };
                let number = self.attribution.next_number();
                assert!(self.open.insert(number, waiting.clone()).is_none(), "a number is used once");
                self.attribution.handle_sent(number, waiting);
            }
            Act::Answer(at) => {
                let Some(number) = self.pick(at) else { return };
                self.open.remove(&number);
                assert!(self.attribution.handle_ended(number));
                assert!(!self.attribution.handle_ended(number), "an answer counts once");
            }
            Act::GiveUp(at) => {
                let Some(number) = self.pick(at) else { return };
                if let Some(waiting) = self.open.remove(&number) {
                    self.left.insert(number, (waiting, self.t));
                }
                self.attribution.handle_given_up(self.t, number);
            }
            Act::Stray(number) if self.open.contains_key(&number) => {}
            Act::Stray(number) => {
                self.left.remove(&number);
                let meant = self.attribution.handle_stray_answer(Some(number));
                self.ended(meant);
            }
            Act::Nameless => {
                let meant = self.attribution.handle_nameless_answer();
                self.ended(meant);
            }
            Act::Tenant(pick) => {
                self.tenant = client(pick);
                self.attribution.set_tenant(self.tenant.clone());
            }
            Act::Pass(seconds) => self.t += Duration::from_secs(seconds),
        }
    }

    /// An answer without a good name has ended this call: it was the only one of a client, or the only one at all.
    fn ended(&mut self, meant: Option<CallNumber>) {
        let Some(number) = meant else { return };
        let callers = self.open.values().filter(|call| call.listener == RequestListener::Caller).count();
        let call = self.open.remove(&number).expect("it was under way");
        assert!(callers == 1 && call.listener == RequestListener::Caller || callers == 0 && self.open.is_empty());
    }

    /// Everyone who can be meant by what names no call.
    fn could_be_meant(&self) -> Vec<Option<Arc<str>>> {
        let open =
            self.open.values().filter(|call| call.listener == RequestListener::Caller).map(|call| call.client.clone());
        let counts = |left: &&(AttributedRequest, Instant)| {
            left.0.listener == RequestListener::Caller && self.t < left.1 + GIVEN_UP_FOR
        };
        let left = self.left.values().filter(counts).map(|(call, _)| call.client.clone());
        let tenant = self.tenant.clone().map(Some);
        open.chain(left).chain(tenant).collect()
    }

    fn check(&mut self) {
        let meant = self.could_be_meant();
        let unnamed = self.attribution.whose(self.t, ServerMessage::Word(None));
        match unnamed {
            Recipient::Call(number) | Recipient::OneOfCalls(number) => {
                let owner = &self.open[&number].client;
                assert!(meant.iter().all(|other| other == owner), "{meant:?} could be meant, and {owner:?} gets it");
                assert!(owner.is_some() || meant.len() == 1, "two without sessions may be two clients");
            }
            Recipient::Client => {
                assert!(meant.iter().all(|other| *other == self.tenant), "{meant:?}, not only the tenant");
            }
            Recipient::Unaddressed => {
                assert!(
                    self.tenant.is_none() && !self.open.values().any(|call| call.listener == RequestListener::Caller)
                );
            }
            Recipient::Ambiguous => assert!(meant.len() > 1, "only {meant:?} can be meant"),
            Recipient::Departed => panic!("it names nobody who could be gone"),
        }
        if self.attribution.whose(self.t, ServerMessage::Other) == Recipient::Client {
            assert!(
                meant.iter().all(|other| *other == self.tenant),
                "{meant:?} could be meant, and the tenant gets it"
            );
        }
        for number in 0..16 {
            for said in [ServerMessage::Word(Some(number)), ServerMessage::Progress(Some(number))] {
                match self.attribution.whose(self.t, said) {
                    Recipient::Call(named) => assert!(named == number && self.open.contains_key(&number)),
                    Recipient::Departed => assert!(!self.open.contains_key(&number)),
                    Recipient::Unaddressed => {}
                    other => panic!("{said:?} is {other:?}: what names a call is that call's or nobody's"),
                }
            }
        }
        assert_eq!(self.attribution.len(), self.open.len());
    }
}

proptest! {
    #[test]
    fn nothing_is_shown_to_a_client_that_may_be_anothers(acts in prop::collection::vec(act(), 1..60)) {
        let mut world = World::new();
        for act in &acts {
            world.act(act);
            world.check();
        }
    }
}
