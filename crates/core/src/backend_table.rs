//! Every state of a backend's life meets every event.

use super::tests::{G1, MIDDLE, call, drain, now, refused};
use super::*;

const S: Duration = Duration::from_secs(1);

/// A machine in the named state, with call 1 queued or in flight where that can be.
pub(super) fn in_state(name: &str, t: Instant) -> BackendMachine {
    let mut backend = BackendMachine::new(Policy::default());
    match name {
        "new" => {}
        "connecting" => {
            backend.start();
            backend.handle_call(t, call(1, t));
        }
        "connected" => {
            backend.start();
            backend.handle_call(t, call(1, t));
            backend.handle_dialled(t, G1, Ok(()), MIDDLE);
        }
        "replacing" => {
            backend = in_state("connected", t);
            backend.handle_reconnect(t, 90);
        }
        "dying" => {
            backend = in_state("connected", t);
            backend.handle_lost(t, G1, "eof", MIDDLE);
        }
        "waiting" => {
            backend = in_state("connected", t);
            backend.handle_answered(1);
            backend.handle_lost(t, G1, "eof", MIDDLE);
        }
        "dialling" => {
            backend = in_state("waiting", t);
            backend.handle_call(t, call(1, t));
        }
        "error" => {
            backend.start();
            backend.handle_dialled(t, G1, Err(DialError::Fatal { reason: "bad url".into() }), MIDDLE);
        }
        "disabled" => {
            backend = in_state("waiting", t);
            backend.disable(t);
        }
        "removed" => {
            backend = in_state("waiting", t);
            backend.remove(t);
        }
        other => panic!("no state {other}"),
    }
    drain(&mut backend);
    backend
}

/// One event, on the generation that is dialled or lives (or the last one there was).
fn happen(event: &str, backend: &mut BackendMachine, t: Instant) {
    let live = backend.live().unwrap_or(G1);
    let dialled = backend.dialling().unwrap_or(backend.newest);
    match event {
        "start" => backend.start(),
        "call" => backend.handle_call(t, call(2, t)),
        "answer" => backend.handle_answered(1),
        "cancel" => backend.handle_cancelled(1),
        "not executed" => backend.handle_not_executed(t, live, 1, "refused", MIDDLE),
        "refused" => backend.handle_refused(live, 1, "429", None),
        "broken" => backend.handle_broken(t, live, 1, "cut"),
        "lost" => backend.handle_lost(t, live, "eof", MIDDLE),
        "dial ok" => backend.handle_dialled(t, dialled, Ok(()), MIDDLE),
        "dial fails" => backend.handle_dialled(t, dialled, refused(), MIDDLE),
        "dial fatal" => {
            let fatal = DialError::Fatal { reason: "bad url".into() };
            backend.handle_dialled(t, dialled, Err(fatal), MIDDLE);
        }
        "reconnect" => backend.handle_reconnect(t, 91),
        "woke" => backend.handle_woke(t),
        "timeout" => backend.handle_timeout(t + 2 * S),
        "disable" => backend.disable(t),
        "remove" => backend.remove(t),
        other => panic!("no event {other}"),
    }
}

/// `state | event | state afterwards | what it wants`. Every pair is here; a pair that changes nothing says so.
const TABLE: &str = include_str!("backend_table.txt");

const STATES: &[&str] =
    &["new", "connecting", "connected", "replacing", "dying", "waiting", "dialling", "error", "disabled", "removed"];
const EVENTS: &[&str] = &[
    "start",
    "call",
    "answer",
    "cancel",
    "not executed",
    "refused",
    "broken",
    "lost",
    "dial ok",
    "dial fails",
    "dial fatal",
    "reconnect",
    "woke",
    "timeout",
    "disable",
    "remove",
];

#[test]
fn every_state_meets_every_event_as_the_table_says() {
    let t = now();
    let mut lines = Vec::new();
    for state in STATES {
        for event in EVENTS {
            let mut backend = in_state(state, t);
            happen(event, &mut backend, t);
            let wants = drain(&mut backend);
            lines.push(format!("{state} | {event} | {} | {wants}", backend.status().as_str()).trim_end().to_owned());
        }
    }
    let expected: Vec<&str> = TABLE.lines().map(str::trim_end).collect();
    for (got, expected) in lines.iter().zip(&expected) {
        assert_eq!(got, expected);
    }
    assert_eq!(lines.len(), expected.len(), "the table has other rows than the machine:\n{}", lines.join("\n"));
}
