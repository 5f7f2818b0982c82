//! Whatever a server and the wires to it do, in whatever order: a call runs at most once, and is never said not to have run when it
//! has.

use std::time::Duration;

use bowline_core::upstream_session::{
    CallConclusion, CallStep, DELAYS_MAX, NoSession, PATIENCE_MAX, PingOutcome, PostFailure, Reading, ResponseStatus,
    ResumeFailure, SessionPlace, UpstreamCall,
};
use proptest::prelude::*;

/// What becomes of a request at the server, and what is seen of it. Servers are honest: one that ran a call does not say that it is
/// busy or knows no session, and fails or falls silent at worst. Proxies speak for servers that died.
#[derive(Clone, Debug)]
enum Fate {
    NeverSent,
    SentAndLost {
        runs: bool,
    },
    Answered {
        error: bool,
    },
    Cut {
        runs: bool,
        resumable: bool,
    },
    /// A proxy says that the server died.
    Died {
        runs: bool,
        status: u16,
    },
    /// The server says itself that it runs nothing now.
    Busy {
        status: u16,
        wait: Option<u64>,
        body: bool,
    },
    /// The server refuses what it cannot take.
    Refused {
        status: u16,
        body: bool,
    },
    /// It does not know the session.
    Forgotten {
        status: u16,
    },
    /// Something that is no answer, after it ran.
    Garbage,
}

fn fate() -> impl Strategy<Value = Fate> {
    let any = prop::bool::ANY;
    prop_oneof![
        1 => Just(Fate::NeverSent),
        2 => any.prop_map(|runs| Fate::SentAndLost { runs }),
        2 => any.prop_map(|error| Fate::Answered { error }),
        3 => (any, any).prop_map(|(runs, resumable)| Fate::Cut { runs, resumable }),
        3 => (any, prop::sample::select(vec![500u16, 502, 503, 504])).prop_map(|(runs, status)| Fate::Died { runs, status }),
        3 => (prop::sample::select(vec![429u16, 503]), prop::option::of(0u64..60), any)
            .prop_map(|(status, wait, body)| Fate::Busy { status, wait, body }),
        2 => (prop::sample::select(vec![400u16, 401, 403, 404, 413]), any)
            .prop_map(|(status, body)| Fate::Refused { status, body }),
        4 => prop::sample::select(vec![400u16, 404, 410]).prop_map(|status| Fate::Forgotten { status }),
        1 => Just(Fate::Garbage),
    ]
}

#[derive(Debug, Default)]
struct World {
    /// How often the call ran.
    runs: u32,
    posts: u32,
    opens: u32,
    last: Option<Fate>,
    reading: Option<Reading>,
}

impl World {
    /// What a transport sees of a call that is sent now.
    fn post(&mut self, fate: Fate) -> Result<(ResponseStatus, Option<Duration>), PostFailure> {
        self.posts += 1;
        let cut = |resumable| Reading::Cut { resumable, retry: None, lasted: Duration::ZERO };
        let body = |error: bool| if error { Reading::Error } else { Reading::NoAnswer };
        let (runs, seen) = match &fate {
            Fate::NeverSent => (false, Err(PostFailure::NotSent)),
            Fate::SentAndLost { runs } => (*runs, Err(PostFailure::Unknown)),
            Fate::Answered { error } => (true, Ok((200, None, if *error { Reading::Error } else { Reading::Result }))),
            Fate::Cut { runs, resumable } => (*runs, Ok((200, None, cut(*resumable)))),
            Fate::Died { runs, status } => (*runs, Ok((*status, None, Reading::NoAnswer))),
            Fate::Busy { status, wait, body: with } => {
                (false, Ok((*status, wait.map(Duration::from_secs), body(*with))))
            }
            Fate::Refused { status, body: with } => (false, Ok((*status, None, body(*with)))),
            Fate::Forgotten { status } => (false, Ok((*status, None, Reading::NoAnswer))),
            Fate::Garbage => (true, Ok((200, None, Reading::NoAnswer))),
        };
        self.runs += u32::from(runs);
        self.last = Some(fate);
        let (status, retry_after, reading) = seen?;
        self.reading = Some(reading);
        Ok((ResponseStatus(status), retry_after))
    }

    /// What asking in the session says, after what the server did with the call.
    fn ping(&self, dice: u8) -> PingOutcome {
        match (&self.last, dice % 4) {
            (_, 0) => PingOutcome::Late,
            (Some(Fate::Forgotten { status }), _) => PingOutcome::Refused(ResponseStatus(*status)),
            // The next server at this address knows nothing of the session.
            (Some(Fate::Died { .. }), 1) => PingOutcome::Refused(ResponseStatus(404)),
            (Some(Fate::Died { .. }), 2) => PingOutcome::Unreachable,
            (Some(Fate::Died { status, .. }), _) => PingOutcome::Refused(ResponseStatus(*status)),
            _ => PingOutcome::Answered,
        }
    }

    fn is_dead(&self) -> bool {
        matches!(self.last, Some(Fate::Died { .. }))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn a_call_runs_at_most_once_and_is_never_said_not_to_have_run_when_it_has(
        place in prop::sample::select(vec![SessionPlace::Stateless, SessionPlace::OfHub, SessionPlace::OfClient]),
        named in prop::bool::ANY,
        fates in prop::collection::vec(fate(), 8),
        dice in prop::collection::vec(0u8..16, 64),
    ) {
        let (mut fates, mut dice) = (fates.into_iter(), dice.into_iter());
        let mut world = World::default();
        let (mut call, mut step) = UpstreamCall::begin(place);
        let conclusion = loop {
            // A server that never ends a stream is its caller's to give up on.
            let Some(chance) = dice.next() else { return Ok(()) };
            let next = match step {
                CallStep::Open => {
                    world.opens += 1;
                    call.handle_opened(match chance {
                        0 => Err(NoSession::Unreachable),
                        1 => Err(NoSession::Refused { retry_after: None }),
                        2 => Err(NoSession::Failed),
                        _ => Ok(named),
                    })
                }
                CallStep::Post { wait } => {
                    prop_assert!(wait <= PATIENCE_MAX);
                    prop_assert_eq!(world.runs, 0, "it is sent again although it ran: {:?}", world);
                    let certain = match &world.last {
                        None | Some(Fate::Busy { .. } | Fate::Forgotten { .. } | Fate::Refused { .. }) => true,
                        Some(_) => false,
                    };
                    prop_assert!(certain, "it is sent again although it may have run: {:?}", world);
                    let fate = fates.next().unwrap();
                    call.handle_posted(world.post(fate))
                }
                CallStep::Read => call.handle_read(world.reading.unwrap()),
                CallStep::Resume { .. } => match chance % 4 {
                    0 => call.handle_not_resumed(ResumeFailure::Late),
                    1 => call.handle_not_resumed(ResumeFailure::Refused),
                    2 if world.runs > 0 => call.handle_read(Reading::Result),
                    _ => call.handle_read(world.reading.unwrap()),
                },
                CallStep::AskSession { .. } => call.handle_session_asked(world.ping(chance)),
                CallStep::AskServer => call.handle_server_asked(!world.is_dead() && chance > 2),
                CallStep::End(conclusion) => break conclusion,
            };
            prop_assert!(next.is_some(), "{:?} is not taken where it is asked for", step);
            step = next.unwrap();
        };
        prop_assert!(world.runs <= 1);
        prop_assert!(world.posts <= 2 + DELAYS_MAX && world.opens <= 2, "{:?}", world);
        match conclusion {
            CallConclusion::NotExecuted | CallConclusion::Refused { .. } => {
                prop_assert_eq!(world.runs, 0, "{:?} is a lie: {:?}", conclusion, world);
            }
            CallConclusion::Answered => prop_assert!(
                world.runs == 1 || matches!(world.last, Some(Fate::Refused { .. })),
                "nothing answered: {:?}", world
            ),
            CallConclusion::Failed | CallConclusion::Unknown => {}
        }
        for event in [call.handle_opened(Ok(true)), call.handle_read(Reading::Result), call.handle_server_asked(true)] {
            prop_assert_eq!(event, None, "it ends once");
        }
    }
}
