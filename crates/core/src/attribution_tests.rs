//! Everything that can be under way on a connection meets everything that a server can say.

use super::*;

/// `place | what is under way | what is said | whose it is`. Every triple is here.
const TABLE: &str = include_str!("attribution_table.txt");

const SHARED: &[&str] = &[
    "nothing",
    "a",
    "a a",
    "a b",
    "?",
    "? ?",
    "a left-a",
    "a left-b",
    "a left-?",
    "left-b",
    "listens-a",
    "listens-a b",
    "ours",
    "a ours",
    "tenant-a",
    "tenant-a a",
    "tenant-a a a",
    "tenant-a b",
    "tenant-a left-a",
    "tenant-a left-b",
    "tenant-a a left-b",
];
const OWN: &[&str] = &["nothing", "a", "a a", "a left-a", "ours"];
const EVENTS: &[&str] = &[
    "word",
    "word of 1",
    "word of 9",
    "progress of 1",
    "progress of 9",
    "progress",
    "list changed",
    "subscription 1",
    "subscription 9",
    "subscription 9 list changed",
    "resource updated",
    "other",
    "nameless answer",
    "late answer",
    "wrong answer",
];

#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    // The machine has no clock, so tests have one.
    Instant::now()
}

fn client(name: &str) -> Option<Arc<str>> {
    (name != "?").then(|| name.into())
}

/// A connection on which this is under way: `a` is a call of client a, `?` one of a client without a session, `ours` is
/// housekeeping, `listens-` a subscription, `left-` a call that was given up.
fn in_state(place: ConnectionScope, under_way: &str, t: Instant) -> Attribution {
    let mut attribution = Attribution::new(place);
    for word in under_way.split(' ').filter(|word| *word != "nothing") {
        let call = |name: &str, listener| AttributedRequest { client: client(name), listener, wants_progress: true };
        let (waiting, has_left) = match word.split_once('-') {
            Some(("tenant", name)) => {
                attribution.set_tenant(client(name));
                continue;
            }
            Some(("listens", name)) => (call(name, RequestListener::Subscriber), false),
            Some(("left", name)) => (call(name, RequestListener::Caller), true),
            _ if word == "ours" => {
                (AttributedRequest { client: None, listener: RequestListener::Absent, wants_progress: false }, false)
            }
            _ => (call(word, RequestListener::Caller), false),
        };
        let number = attribution.next_number();
        attribution.handle_sent(number, waiting);
        if has_left {
            attribution.handle_given_up(t, number);
        }
    }
    attribution
}

fn happen(event: &str, attribution: &mut Attribution, t: Instant) -> String {
    let said = match event {
        "word" => ServerMessage::Word(None),
        "word of 1" => ServerMessage::Word(Some(1)),
        "word of 9" => ServerMessage::Word(Some(9)),
        "progress of 1" => ServerMessage::Progress(Some(1)),
        "progress of 9" => ServerMessage::Progress(Some(9)),
        "progress" => ServerMessage::Progress(None),
        "list changed" => ServerMessage::ListChanged,
        "subscription 1" => ServerMessage::OfSubscription { number: 1, changes_list: false },
        "subscription 9" => ServerMessage::OfSubscription { number: 9, changes_list: false },
        "subscription 9 list changed" => ServerMessage::OfSubscription { number: 9, changes_list: true },
        "resource updated" => ServerMessage::ResourceUpdated,
        "other" => ServerMessage::Other,
        answer => {
            let ended = match answer {
                "nameless answer" => attribution.handle_nameless_answer(),
                "late answer" => {
                    attribution.handle_ended(1).then_some(1).or_else(|| attribution.handle_stray_answer(Some(1)))
                }
                "wrong answer" => attribution.handle_stray_answer(Some(99)),
                other => panic!("no event {other}"),
            };
            return ended.map_or_else(|| "no call ends".to_owned(), |number| format!("call {number} ends"));
        }
    };
    match attribution.whose(t, said) {
        Recipient::Call(number) => format!("call {number}"),
        Recipient::OneOfCalls(number) => format!("one of the calls, as likely {number}"),
        Recipient::Client => "the client".to_owned(),
        Recipient::Unaddressed => "unaddressed".to_owned(),
        Recipient::Departed => "departed".to_owned(),
        Recipient::Ambiguous => "ambiguous".to_owned(),
    }
}

#[test]
fn whatever_is_under_way_meets_whatever_is_said_as_the_table_says() {
    let t = now();
    let places = [
        ("shared", ConnectionScope::Shared, SHARED),
        ("session", ConnectionScope::OwnSession, OWN),
        ("process", ConnectionScope::OwnProcess, OWN),
    ];
    let mut lines = Vec::new();
    for (name, place, states) in places {
        for state in states {
            for event in EVENTS {
                let whose = happen(event, &mut in_state(place, state, t), t);
                lines.push(format!("{name} | {state} | {event} | {whose}"));
            }
        }
    }
    let expected: Vec<&str> = TABLE.lines().collect();
    for (got, expected) in lines.iter().zip(&expected) {
        assert_eq!(got, expected);
    }
    assert_eq!(lines.len(), expected.len(), "the table has other rows than the machine:\n{}", lines.join("\n"));
}

#[test]
fn what_was_given_up_counts_for_a_while_only() {
    let t = now();
    let mut attribution = in_state(ConnectionScope::Shared, "a left-b", t);
    assert_eq!(attribution.whose(t, ServerMessage::Word(None)), Recipient::Ambiguous);
    let later = t + GIVEN_UP_FOR;
    assert_eq!(attribution.whose(later, ServerMessage::Word(None)), Recipient::Call(1));
}

#[test]
fn the_oldest_of_too_many_that_were_given_up_make_room() {
    let t = now();
    let mut attribution = Attribution::new(ConnectionScope::Shared);
    for _ in 0..=GIVEN_UP_MAX {
        let number = attribution.next_number();
        attribution.handle_sent(
            number,
            AttributedRequest { client: client("a"), listener: RequestListener::Caller, wants_progress: false },
        );
        attribution.handle_given_up(t, number);
    }
    assert_eq!(attribution.given_up.len(), GIVEN_UP_MAX);
    assert!(!attribution.given_up.contains_key(&1));
}
