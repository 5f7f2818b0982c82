//! Every state of a call over HTTP meets every event.

use super::*;

const S: Duration = Duration::from_secs(1);

/// A call in the named state, reached by what leads there.
fn in_state(name: &str) -> UpstreamCall {
    let refused = |call: &mut UpstreamCall, status: u16| {
        call.handle_opened(Ok(true)).unwrap();
        call.handle_posted(Ok((ResponseStatus(status), None))).unwrap();
        call.handle_read(Reading::NoAnswer).unwrap();
    };
    let (place, wanted) = name.split_once(' ').unwrap();
    let place = match place {
        "stateless" => SessionPlace::Stateless,
        "hub's" => SessionPlace::OfHub,
        _ => SessionPlace::OfClient,
    };
    let (mut call, _) = UpstreamCall::begin(place);
    match wanted {
        "opening" => {}
        "posting" => drop(call.handle_opened(Ok(true))),
        "posting unnamed" => drop(call.handle_opened(Ok(false))),
        "posting delayed" => {
            call.handle_opened(Ok(true));
            for _ in 0..DELAYS_MAX {
                call.handle_posted(Ok((ResponseStatus(503), Some(S)))).unwrap();
            }
        }
        "posting again" => {
            refused(&mut call, 404);
            call.handle_session_asked(PingOutcome::Refused(ResponseStatus(404))).unwrap();
            call.handle_server_asked(true).unwrap();
            call.handle_opened(Ok(true)).unwrap();
        }
        "reading 200" | "reading 404" | "reading 500" | "reading 503" => {
            call.handle_opened(Ok(true));
            let status = wanted.rsplit(' ').next().unwrap().parse().unwrap();
            call.handle_posted(Ok((ResponseStatus(status), None))).unwrap();
        }
        "resuming" => {
            call = in_state("client's reading 200");
            call.handle_read(Reading::Cut { resumable: true, retry: Some(2 * S), lasted: S }).unwrap();
        }
        "asking session 404" => refused(&mut call, 404),
        "asking session 500" => refused(&mut call, 500),
        "asking server" => {
            refused(&mut call, 404);
            call.handle_session_asked(PingOutcome::Refused(ResponseStatus(404))).unwrap();
        }
        "asking whether busy" => {
            call.handle_opened(Ok(false));
            call.handle_posted(Ok((ResponseStatus(503), None))).unwrap();
            call.handle_read(Reading::NoAnswer).unwrap();
        }
        "ended" => {
            call.handle_opened(Ok(true));
            call.handle_posted(Err(PostFailure::NotSent)).unwrap();
        }
        other => panic!("no state {other}"),
    }
    call
}

fn happen(event: &str, call: &mut UpstreamCall) -> Option<CallStep> {
    let head = |status, wait: Option<u64>| Ok((ResponseStatus(status), wait.map(Duration::from_secs)));
    match event {
        "opened" => call.handle_opened(Ok(true)),
        "opened unnamed" => call.handle_opened(Ok(false)),
        "unreachable" => call.handle_opened(Err(NoSession::Unreachable)),
        "session refused" => call.handle_opened(Err(NoSession::Refused { retry_after: Some(5 * S) })),
        "session failed" => call.handle_opened(Err(NoSession::Failed)),
        "not sent" => call.handle_posted(Err(PostFailure::NotSent)),
        "unknown" => call.handle_posted(Err(PostFailure::Unknown)),
        "200" => call.handle_posted(head(200, None)),
        "429 in 2 s" => call.handle_posted(head(429, Some(2))),
        "503 in 31 s" => call.handle_posted(head(503, Some(31))),
        "503" => call.handle_posted(head(503, None)),
        "result" => call.handle_read(Reading::Result),
        "error" => call.handle_read(Reading::Error),
        "no answer" => call.handle_read(Reading::NoAnswer),
        "cut" => call.handle_read(Reading::Cut { resumable: false, retry: None, lasted: S }),
        "cut at once" => call.handle_read(Reading::Cut { resumable: true, retry: None, lasted: Duration::ZERO }),
        "cut, in 60 s" => call.handle_read(Reading::Cut { resumable: true, retry: Some(60 * S), lasted: S }),
        "not resumed" => call.handle_not_resumed(ResumeFailure::Refused),
        "resumed late" => call.handle_not_resumed(ResumeFailure::Late),
        "session known" => call.handle_session_asked(PingOutcome::Answered),
        "session forgotten" => call.handle_session_asked(PingOutcome::Refused(ResponseStatus(404))),
        "session fails" => call.handle_session_asked(PingOutcome::Refused(ResponseStatus(500))),
        "session silent" => call.handle_session_asked(PingOutcome::Late),
        "server there" => call.handle_server_asked(true),
        "server gone" => call.handle_server_asked(false),
        other => panic!("no event {other}"),
    }
}

const STATES: &[&str] = &[
    "client's opening",
    "client's posting",
    "stateless posting",
    "client's posting unnamed",
    "client's posting delayed",
    "client's posting again",
    "client's reading 200",
    "client's reading 404",
    "client's reading 500",
    "client's reading 503",
    "stateless reading 503",
    "client's resuming",
    "client's asking session 404",
    "hub's asking session 404",
    "client's asking session 500",
    "client's asking server",
    "client's asking whether busy",
    "stateless asking whether busy",
    "client's ended",
];

const EVENTS: &[&str] = &[
    "opened",
    "opened unnamed",
    "unreachable",
    "session refused",
    "session failed",
    "not sent",
    "unknown",
    "200",
    "429 in 2 s",
    "503 in 31 s",
    "503",
    "result",
    "error",
    "no answer",
    "cut",
    "cut at once",
    "cut, in 60 s",
    "not resumed",
    "resumed late",
    "session known",
    "session forgotten",
    "session fails",
    "session silent",
    "server there",
    "server gone",
];

/// `state | event | step`. Every pair is here; a pair that changes nothing says so.
const TABLE: &str = include_str!("upstream_session_table.txt");

#[test]
fn every_state_meets_every_event_as_the_table_says() {
    let mut lines = Vec::new();
    for state in STATES {
        for event in EVENTS {
            let mut call = in_state(state);
            let before = format!("{call:?}");
            let step = match happen(event, &mut call) {
                Some(step) => format!("{step:?}"),
                None => "-".to_owned(),
            };
            assert!(step != "-" || format!("{call:?}") == before, "{state} | {event}: what is ignored changes nothing");
            lines.push(format!("{state} | {event} | {step}"));
        }
    }
    let expected: Vec<&str> = TABLE.lines().collect();
    for (got, expected) in lines.iter().zip(&expected) {
        assert_eq!(got, expected);
    }
    assert_eq!(lines.len(), expected.len(), "the table has other rows than the machine:\n{}", lines.join("\n"));
}

#[test]
fn a_server_is_there_unless_it_is_silent_or_refuses_what_it_was_met_with() {
    let refused = |status| PingOutcome::Refused(ResponseStatus(status));
    for (outcome, named, unnamed) in [
        (PingOutcome::Answered, Presence::There, Presence::There),
        (PingOutcome::Unreachable, Presence::Gone, Presence::Gone),
        (PingOutcome::Late, Presence::Gone, Presence::Gone),
        (refused(200), Presence::Gone, Presence::Gone),
        (refused(400), Presence::Gone, Presence::Gone),
        (refused(404), Presence::Gone, Presence::Gone),
        (refused(500), Presence::AskAnew, Presence::There),
        (refused(502), Presence::Gone, Presence::Gone),
        (refused(503), Presence::Gone, Presence::Gone),
        (refused(504), Presence::Gone, Presence::Gone),
    ] {
        assert_eq!((outcome.presence(true), outcome.presence(false)), (named, unnamed), "{outcome:?}");
    }
}

#[test]
fn a_held_stream_is_asked_for_more_patiently_and_more_rarely_until_it_opens() {
    let mut stream = HeldStream::default();
    assert_eq!(stream.handle_refused(), HeldStep::NotOffered);
    assert_eq!(stream.patience(), OPEN_TIMEOUT);
    for expected in [20, 40, 80, 160, 300, 300] {
        assert_eq!(stream.handle_late(), HeldStep::Again(Duration::ZERO));
        assert_eq!(stream.patience(), Duration::from_secs(expected));
    }
    assert!(!stream.handle_opened(), "nothing was missed");
    assert_eq!((stream.patience(), stream.was_open()), (OPEN_TIMEOUT, true));
    for expected in [1, 2, 4, 8, 16, 30, 30] {
        assert_eq!(stream.handle_refused(), HeldStep::Again(Duration::from_secs(expected)));
    }
    assert!(stream.handle_opened());
    assert_eq!(stream.handle_refused(), HeldStep::Again(REOPEN_PAUSE));
    assert_eq!(stream.handle_ended(None, 2 * S), HeldStep::Again(Duration::ZERO));
    assert_eq!(stream.handle_ended(None, Duration::ZERO), HeldStep::Again(REOPEN_PAUSE));
    assert_eq!(stream.handle_ended(Some(60 * S), 2 * S), HeldStep::Again(REOPEN_PAUSE));
    assert_eq!(stream.handle_ended(Some(Duration::ZERO), 2 * S), HeldStep::Again(RETRY_MIN));
}
