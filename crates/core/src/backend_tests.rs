//! Stories of a backend's life that cross states.

use super::dying::LAST_WORD;
use super::endings::REST;
use super::table::in_state;
use super::*;

const S: Duration = Duration::from_secs(1);
pub(super) const G1: Generation = Generation(1);
const G2: Generation = Generation(2);
pub(super) const MIDDLE: f64 = 0.5;

pub(super) fn now() -> Instant {
    // Any instant will do as an origin; the machine never asks for the time itself.
    #[allow(clippy::disallowed_methods)]
    Instant::now()
}

pub(super) fn call(id: QueuedCallId, t: Instant) -> QueuedCall {
    QueuedCall::new(id, t + 30 * S, ResendPolicy::IfNotExecuted)
}

pub(super) fn refused() -> Result<(), DialError> {
    Err(DialError::Passing { reason: "refused".into(), retry_after: None })
}

/// Everything the machine wants, in short words.
pub(super) fn drain(backend: &mut BackendMachine) -> String {
    let mut words = Vec::new();
    while let Some(output) = backend.poll_output() {
        words.push(match output {
            Output::Dial(g) => format!("dial {}", g.0),
            Output::Send { generation, call } => format!("send {call} on {}", generation.0),
            Output::Fail { call, outcome } => format!("fail {call} {}", outcome_word(&outcome)),
            Output::Retire(g) => format!("retire {}", g.0),
            Output::Redialled { ticket, success } => format!("redialled {ticket} {success}"),
            Output::Tell(notices) => match notices {
                BackendNotice::Connected => "connected".into(),
                BackendNotice::Disconnected { intentional } => format!("disconnected {intentional}"),
                BackendNotice::Reconnecting { attempt, next_retry } => {
                    format!("reconnecting #{attempt} in {}s", next_retry.as_secs())
                }
                BackendNotice::Reconnected { attempts_taken, down } => {
                    format!("reconnected after {attempts_taken} in {}s", down.as_secs())
                }
                BackendNotice::Removed => "removed".into(),
            },
        });
    }
    words.join(", ")
}

fn outcome_word(outcome: &CallFailure) -> &'static str {
    match outcome {
        CallFailure::Unavailable { .. } => "unavailable",
        CallFailure::Unknown { .. } => "unknown",
        CallFailure::NotExecuted { .. } => "not executed",
        CallFailure::Refused { .. } => "refused",
        CallFailure::Busy => "busy",
        CallFailure::Deadline => "deadline",
    }
}

#[test]
fn a_backend_that_is_away_for_good_is_tried_for_ever_at_growing_distances_and_told_of_with_restraint() {
    let mut t = now();
    let mut backend = BackendMachine::new(Policy::default());
    backend.start();
    let mut notices = Vec::new();
    let mut delays = Vec::new();
    backend.handle_dialled(t, backend.newest, refused(), MIDDLE);
    let began = t;
    while t < began + 24 * 3600 * S {
        while let Some(output) = backend.poll_output() {
            if let Output::Tell(BackendNotice::Reconnecting { attempt, .. }) = output {
                notices.push((attempt, t - began));
            }
        }
        let due = backend.poll_timeout().unwrap();
        delays.push((due - t).as_secs_f64());
        t = due;
        backend.handle_timeout(t);
        backend.handle_dialled(t, backend.newest, refused(), MIDDLE);
    }
    assert_eq!(delays[..9], [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 180.0]);
    assert!(delays[9..].iter().all(|delay| *delay == 180.0));
    assert_eq!(notices[..8].iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
    let later: Vec<f64> = notices[8..].windows(2).map(|pair| (pair[1].1 - pair[0].1).as_secs_f64()).collect();
    assert!(later.iter().all(|distance| *distance >= 1800.0), "{later:?}");
    assert!(notices.len() < 8 + 49, "{} events in a day", notices.len());
    assert_eq!(backend.attempt() as usize, delays.len() + 1, "the exact attempt is always known");
}

#[test]
fn jitter_stays_within_a_tenth() {
    let t = now();
    for (chance, ms) in [(0.0, 900), (1.0, 1100)] {
        let mut backend = BackendMachine::new(Policy::default());
        backend.start();
        backend.handle_dialled(t, G1, refused(), chance);
        assert_eq!(backend.next_retry(t), Some(Duration::from_millis(ms)));
    }
}

#[test]
fn every_success_starts_the_delays_over() {
    let mut t = now();
    let mut backend = BackendMachine::new(Policy::default());
    backend.start();
    // Six quick restarts, and before the last of them it is away for long.
    for restart in 0..6 {
        backend.handle_dialled(t, backend.newest, Ok(()), MIDDLE);
        assert_eq!(backend.attempt(), 0, "restart {restart}");
        t += 2 * S;
        backend.handle_lost(t, backend.newest, "eof", MIDDLE);
        assert_eq!((backend.next_retry(t), backend.attempt()), (Some(S), 1), "restart {restart}");
        for failure in 1..=restart {
            t = backend.poll_timeout().unwrap();
            backend.handle_timeout(t);
            backend.handle_dialled(t, backend.newest, refused(), MIDDLE);
            assert_eq!(backend.next_retry(t), Some(S * 2u32.pow(failure)), "restart {restart}");
        }
        t = backend.poll_timeout().unwrap();
        backend.handle_timeout(t);
    }
}

#[test]
fn a_server_that_dies_with_each_handshake_is_dialled_once_a_second_whatever_the_chance() {
    let mut t = now();
    let mut backend = BackendMachine::new(Policy::default());
    backend.start();
    for chance in [0.0, 0.1, 0.5, 1.0] {
        backend.handle_dialled(t, backend.newest, Ok(()), chance);
        backend.handle_lost(t, backend.newest, "eof", chance);
        assert!(backend.next_retry(t) >= Some(S), "{chance}: {:?}", backend.next_retry(t));
        t = backend.poll_timeout().unwrap();
        backend.handle_timeout(t);
    }
}

#[test]
fn a_call_that_the_server_refuses_ends_without_loss_and_is_not_sent_again() {
    let t = now();
    let mut backend = in_state("connected", t);
    backend.handle_refused(G1, 1, "HTTP 429", Some(7 * S));
    let outcome = CallFailure::Refused { reason: "HTTP 429".into(), retry_after: Some(7 * S) };
    assert_eq!(backend.poll_output(), Some(Output::Fail { call: 1, outcome }));
    assert_eq!((backend.poll_output(), backend.live(), backend.calls()), (None, Some(G1), (0, 0)));
    // One whose wire broke before may have run then, whatever the server says now.
    backend.handle_call(t, QueuedCall::new(8, t + 30 * S, ResendPolicy::Always));
    backend.handle_broken(t, G1, 8, "eof");
    backend.handle_timeout(t + REST);
    assert_eq!(drain(&mut backend), "send 8 on 1, send 8 on 1");
    backend.handle_refused(G1, 8, "HTTP 429", None);
    assert_eq!(drain(&mut backend), "fail 8 unknown");
}

#[test]
fn a_call_that_dials_early_does_not_push_the_planned_attempt_back() {
    let t = now();
    let mut backend = in_state("waiting", t);
    backend.handle_call(t, call(5, t));
    assert_eq!(drain(&mut backend), "dial 2");
    backend.handle_dialled(t, G2, refused(), MIDDLE);
    assert_eq!(drain(&mut backend), "fail 5 unavailable");
    assert_eq!((backend.next_retry(t), backend.attempt()), (Some(S), 1));
}

#[test]
fn retry_after_is_honoured_when_it_is_longer_up_to_an_hour() {
    let t = now();
    for (asked, waited) in [(0, 1), (40, 40), (3600, 3600), (86_400, 3600)] {
        let mut backend = BackendMachine::new(Policy::default());
        backend.start();
        let asked = DialError::Passing { reason: "503".into(), retry_after: Some(asked * S) };
        backend.handle_dialled(t, G1, Err(asked), MIDDLE);
        assert_eq!(backend.next_retry(t), Some(waited * S));
    }
}

#[test]
fn a_late_error_of_an_old_transport_touches_nothing_new() {
    let t = now();
    let mut backend = in_state("replacing", t);
    backend.handle_dialled(t, G2, Ok(()), MIDDLE);
    assert_eq!(drain(&mut backend), "disconnected true, reconnected after 1 in 0s, redialled 90 true");
    backend.handle_call(t, call(7, t));
    assert_eq!(drain(&mut backend), "send 7 on 2");
    backend.handle_lost(t, G1, "late", MIDDLE);
    assert_eq!(drain(&mut backend), "retire 1");
    backend.handle_timeout(t + LAST_WORD);
    assert_eq!(drain(&mut backend), "fail 1 unknown");
    assert_eq!((backend.status(), backend.live()), (BackendStatus::Connected, Some(G2)));
    backend.handle_lost(t, G1, "later still", MIDDLE);
    backend.handle_not_executed(t, G1, 7, "refused", MIDDLE);
    backend.handle_broken(t, G1, 7, "cut");
    assert_eq!((drain(&mut backend).as_str(), backend.live()), ("", Some(G2)));
}

#[test]
fn calls_on_the_old_transport_may_finish_for_the_grace_and_no_longer() {
    let t = now();
    let mut backend = in_state("replacing", t);
    backend.handle_dialled(t, G2, Ok(()), MIDDLE);
    drain(&mut backend);
    assert_eq!(backend.poll_timeout(), Some(t + 5 * S));
    backend.handle_timeout(t + 5 * S);
    assert_eq!(drain(&mut backend), "retire 1, fail 1 unknown");
    let mut backend = in_state("replacing", t);
    backend.handle_dialled(t, G2, Ok(()), MIDDLE);
    drain(&mut backend);
    backend.handle_answered(1);
    assert_eq!(drain(&mut backend), "retire 1");
}

#[test]
fn a_call_that_was_not_executed_is_sent_again_and_one_that_may_have_run_is_not() {
    let t = now();
    let mut backend = in_state("connected", t);
    backend.handle_call(t, call(2, t));
    drain(&mut backend);
    backend.handle_not_executed(t, G1, 2, "connection refused", MIDDLE);
    let wants = drain(&mut backend);
    assert_eq!(wants, "retire 1, disconnected false, reconnecting #1 in 1s, dial 2");
    backend.handle_dialled(t, G2, Ok(()), MIDDLE);
    assert_eq!(drain(&mut backend), "reconnected after 1 in 0s, send 2 on 2");
    assert_eq!(backend.poll_timeout(), Some(t + LAST_WORD));
    backend.handle_timeout(t + LAST_WORD);
    assert_eq!(drain(&mut backend), "fail 1 unknown");
}

#[test]
fn calls_on_a_lost_transport_have_a_moment_to_say_themselves_that_they_were_refused() {
    let t = now();
    let mut backend = in_state("connected", t);
    for id in 2..=4 {
        backend.handle_call(t, call(id, t));
    }
    drain(&mut backend);
    // The first refusal tells of the loss; the others come right behind it, and one call never says anything.
    for id in 1..=3 {
        backend.handle_not_executed(t, G1, id, "connection refused", MIDDLE);
    }
    assert_eq!(drain(&mut backend), "retire 1, disconnected false, reconnecting #1 in 1s, dial 2");
    backend.handle_dialled(t, G2, Ok(()), MIDDLE);
    assert_eq!(drain(&mut backend), "reconnected after 1 in 0s, send 1 on 2, send 2 on 2, send 3 on 2");
    backend.handle_timeout(t + LAST_WORD);
    assert_eq!(drain(&mut backend), "fail 4 unknown");
    // What it says after that is too late.
    backend.handle_not_executed(t + LAST_WORD, G1, 4, "connection refused", MIDDLE);
    assert_eq!((drain(&mut backend).as_str(), backend.live()), ("", Some(G2)));
}

#[test]
fn a_transport_that_is_lost_while_it_is_dialled_is_never_used() {
    let t = now();
    for state in ["connecting", "dialling", "replacing"] {
        let mut backend = in_state(state, t);
        let (dial, before) = (backend.dialling().unwrap(), backend.live());
        backend.handle_lost(t, dial, "it died at once", MIDDLE);
        drain(&mut backend);
        backend.handle_dialled(t, dial, Ok(()), MIDDLE);
        assert_eq!(drain(&mut backend), format!("retire {}", dial.0), "{state}");
        assert_eq!(backend.live(), before, "{state}");
    }
}

#[test]
fn a_call_that_surely_did_not_run_waits_for_the_backend_which_is_dialled_every_second() {
    let t = now();
    let mut backend = in_state("connected", t);
    backend.handle_not_executed(t, G1, 1, "connection refused", MIDDLE);
    backend.handle_call(t, call(2, t));
    drain(&mut backend);
    backend.handle_dialled(t, G2, refused(), MIDDLE);
    // Call 2 was never sent, so it is told at once; call 1 waits.
    assert_eq!(drain(&mut backend), "fail 2 unavailable");
    for second in 1..10 {
        let due = backend.poll_timeout().unwrap();
        assert_eq!(due, t + second * S);
        backend.handle_timeout(due);
        backend.handle_dialled(due, backend.newest, refused(), MIDDLE);
    }
    assert!(!drain(&mut backend).contains("fail"));
    let mut lucky = in_state("connected", t);
    lucky.handle_not_executed(t, G1, 1, "connection refused", MIDDLE);
    lucky.handle_dialled(t, G2, refused(), MIDDLE);
    lucky.handle_timeout(t + S);
    lucky.handle_dialled(t + S, lucky.newest, Ok(()), MIDDLE);
    assert!(drain(&mut lucky).ends_with("send 1 on 3"));
    // Patience ends, and the plan of the attempts was not touched by all this: 1, 3, 7 seconds, and 15 next.
    backend.handle_timeout(t + 10 * S);
    assert_eq!(drain(&mut backend), "dial 12, fail 1 unavailable");
    backend.handle_dialled(t + 10 * S, backend.newest, refused(), MIDDLE);
    assert_eq!((backend.attempt(), backend.next_retry(t + 10 * S)), (4, Some(5 * S)));
}

#[test]
fn a_backend_that_asks_for_time_is_not_hurried_by_those_who_wait() {
    let t = now();
    let mut backend = in_state("connected", t);
    backend.handle_not_executed(t, G1, 1, "connection refused", MIDDLE);
    let asked = DialError::Passing { reason: "503".into(), retry_after: Some(40 * S) };
    backend.handle_dialled(t, G2, Err(asked), MIDDLE);
    assert_eq!(backend.next_retry(t), Some(40 * S));
    assert_eq!(backend.poll_timeout(), Some(t + 10 * S), "when patience ends");
}

#[test]
fn a_backend_that_takes_connections_and_refuses_calls_is_not_asked_in_a_circle() {
    let t = now();
    let mut backend = in_state("connected", t);
    for _ in 0..10 {
        let generation = backend.newest;
        backend.handle_not_executed(t, generation, 1, "refused", MIDDLE);
        backend.handle_dialled(t, backend.newest, Ok(()), MIDDLE);
    }
    let wants = drain(&mut backend);
    assert_eq!(wants.matches("send 1").count(), 2, "{wants}");
    assert!(wants.contains("fail 1 not executed"), "{wants}");
}

#[test]
fn a_call_that_is_safe_to_repeat_is_repeated_when_its_wire_breaks() {
    let t = now();
    let mut backend = in_state("connected", t);
    backend.handle_call(t, QueuedCall::new(8, t + 30 * S, ResendPolicy::Always));
    drain(&mut backend);
    backend.handle_lost(t, G1, "eof", MIDDLE);
    backend.handle_timeout(t + LAST_WORD);
    assert!(drain(&mut backend).ends_with("fail 1 unknown, dial 2"));
    backend.handle_dialled(t + LAST_WORD, G2, Ok(()), MIDDLE);
    assert!(drain(&mut backend).ends_with("send 8 on 2"));
}

#[test]
fn a_call_that_breaks_on_a_living_transport_rests_before_it_is_sent_again() {
    let t = now();
    let mut backend = in_state("connected", t);
    backend.handle_call(t, QueuedCall::new(8, t + 30 * S, ResendPolicy::Always));
    drain(&mut backend);
    backend.handle_broken(t, G1, 8, "eof");
    assert_eq!(drain(&mut backend), "");
    let rested = backend.poll_timeout().unwrap();
    assert_eq!(rested, t + REST);
    backend.handle_timeout(rested);
    assert_eq!(drain(&mut backend), "send 8 on 1", "only that call was hurt");
    // Its transport dies with the next one.
    backend.handle_broken(rested, G1, 8, "eof");
    backend.handle_lost(rested, G1, "eof", MIDDLE);
    drain(&mut backend);
    backend.handle_timeout(rested + REST);
    assert_eq!(drain(&mut backend), "dial 2, fail 1 unknown");
    backend.handle_dialled(rested + REST, G2, Ok(()), MIDDLE);
    assert!(drain(&mut backend).ends_with("send 8 on 2"));
}

#[test]
fn no_answer_says_of_a_call_that_may_have_run_that_it_did_not() {
    let t = now();
    let broken = || {
        let mut backend = in_state("connected", t);
        backend.handle_call(t, QueuedCall::new(8, t + 30 * S, ResendPolicy::Always));
        backend.handle_lost(t, G1, "eof", MIDDLE);
        backend.handle_timeout(t + LAST_WORD);
        drain(&mut backend);
        backend
    };
    // The server stays away until the call's patience is over.
    let mut backend = broken();
    let (mut at, mut dial, mut said) = (t + LAST_WORD, G2, String::new());
    while said.is_empty() && at < t + 60 * S {
        backend.handle_dialled(at, dial, refused(), MIDDLE);
        at = backend.poll_timeout().unwrap();
        backend.handle_timeout(at);
        dial = backend.newest;
        said = drain(&mut backend).split(", ").filter(|word| word.starts_with("fail")).collect();
    }
    assert_eq!(said, "fail 8 unknown");
    // It comes back and refuses; it is removed meanwhile.
    let mut backend = broken();
    backend.handle_dialled(t, G2, Ok(()), MIDDLE);
    for _ in 0..3 {
        backend.handle_not_executed(t, backend.newest, 8, "refused", MIDDLE);
        backend.handle_dialled(t, backend.newest, Ok(()), MIDDLE);
    }
    assert!(drain(&mut backend).contains("fail 8 unknown"));
    let mut backend = broken();
    backend.remove(t);
    assert!(drain(&mut backend).contains("fail 8 unknown"));
}

#[test]
fn parking_is_bounded_and_ends_with_the_deadline() {
    let t = now();
    let mut backend = BackendMachine::new(Policy { queued_max: 1, ..Policy::default() });
    backend.start();
    backend.handle_call(t, call(1, t));
    backend.handle_call(t, call(2, t));
    assert_eq!(drain(&mut backend), "dial 1, fail 2 busy");
    assert_eq!(backend.poll_timeout(), Some(t + 30 * S));
    backend.handle_timeout(t + 30 * S);
    assert_eq!(drain(&mut backend), "fail 1 deadline");
}

#[test]
fn a_reconnect_that_fails_starts_the_delays_over() {
    let mut t = now();
    let mut backend = in_state("waiting", t);
    for _ in 0..9 {
        t = backend.poll_timeout().unwrap();
        backend.handle_timeout(t);
        backend.handle_dialled(t, backend.newest, refused(), MIDDLE);
    }
    assert_eq!(backend.next_retry(t), Some(180 * S));
    drain(&mut backend);
    backend.handle_reconnect(t, 3);
    backend.handle_dialled(t, backend.newest, refused(), MIDDLE);
    assert!(drain(&mut backend).ends_with("reconnecting #1 in 1s, redialled 3 false"));
}
