//! Nobody can forge, alter, extend or borrow a sealed state: everything that can be changed is changed here.

use bowline_core::seal::{Form, Keyring, OpenLimits, OpenedState, SealInput, SealKey, SealRefusal, Signed, peek};
use bowline_protocol::{ErrorCode, Principal, SignedState, State};
use proptest::prelude::*;
use serde_json::{Value, json};

const NOW: u64 = 1_800_000_000;
const WEEK: u64 = 7 * 24 * 3600;
const LIMITS: OpenLimits = OpenLimits { bytes_max: 100_000, depth_max: 64, ttl_seconds: WEEK, future_seconds: 60 };
const NONCE: [u8; 24] = [9; 24];
const FORMS: [Form; 3] = [Form::Object, Form::Token, Form::Encrypted(NONCE)];

fn key(id: &str, byte: u8) -> SealKey {
    SealKey::new(id, &[byte; 32], false).unwrap()
}

fn ring() -> Keyring {
    Keyring::new(vec![key("k1", 1)]).unwrap()
}

fn alice() -> Principal {
    Principal::parse("alice").unwrap()
}

fn state(plan: &Value) -> State {
    serde_json::from_value(json!({
        "session_id": "sess_1", "epoch": "e1", "last_seq": 42, "current_step": 5, "stage": "solving",
        "agent_state": { "mood": "good", "share": 0.1 }, "created_at": "2026-01-01T00:00:00Z",
        "last_active_at": "2026-01-02T00:00:00Z", "plan_context": plan, "current_task": { "id": "t2" },
        "completed_tasks": [{ "id": "t1", "title": "Größe ✓" }, { "id": "t0" }],
        "memory_snapshot": [{ "role": "user", "content": "plaintext-marker\n\"é\" \u{1f511}" }, { "role": "assistant", "content": "yes" }],
        "tool_states": { "weather": { "name": "weather" } },
        "pending_confirmations": [{ "step_id": "step_1", "question": "Sure?", "state": { "n": 1 }, "asked_ms": 1_799_999_999_999u64 }],
        "metadata": { "agent_name": "demo", "agent_config": { "speed": 1.5 }, "session_state": "waiting" },
    }))
    .unwrap()
}

fn seal(ring: &Keyring, state: &State, form: Form) -> Signed {
    ring.seal(&SealInput { state, owner: &alice(), now_unix: NOW, form }).signed
}

fn object(ring: &Keyring, state: &State) -> SignedState {
    match seal(ring, state, Form::Object) {
        Signed::Object(signed) => *signed,
        Signed::Token(_) => unreachable!("an object was asked for"),
    }
}

fn open(input: &str) -> Result<OpenedState, SealRefusal> {
    ring().open(input, &alice(), NOW, &LIMITS)
}

fn refused(signed: &Value) -> SealRefusal {
    open(&signed.to_string()).expect_err("this must be refused")
}

/// Every place in a value, as JSON pointers.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| places(item, &format!("{at}/{index}"), found));
        }
        Value::Object(fields) => fields.iter().for_each(|(name, value)| places(value, &format!("{at}/{name}"), found)),
        _ => {}
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::from),
        (-1000i32..1000).prop_map(|tenths| Value::from(f64::from(tenths) / 10.0)),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((".{0,6}", inner), 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_was_sealed_is_opened_as_it_was(plan in any_json(), form in prop::sample::select(FORMS.to_vec())) {
        let opened = open(&seal(&ring(), &state(&plan), form).to_json()).unwrap();
        prop_assert_eq!((opened.timestamp, opened.key_id.as_str()), (NOW, "k1"));
        let again = seal(&ring(), &opened.state, form);
        prop_assert_eq!(again, seal(&ring(), &state(&plan), form));
    }

    #[test]
    fn a_flipped_bit_in_an_object_is_refused_or_means_the_same(plan in any_json(), at: prop::sample::Index, bit in 0u8..8) {
        let sealed = seal(&ring(), &state(&plan), Form::Object).to_json();
        let mut bytes = sealed.clone().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let Ok(text) = String::from_utf8(bytes) else { return Ok(()) };
        // JSON has spellings that differ in one bit and mean the same: `1e5` and `1E5`.
        if let Ok(opened) = open(&text) {
            prop_assert_eq!(opened, open(&sealed).unwrap());
        }
    }

    #[test]
    fn a_flipped_bit_in_a_token_is_refused(
        plan in any_json(), at: prop::sample::Index, bit in 0u8..8, form in prop::sample::select(FORMS[1..].to_vec()),
    ) {
        let Signed::Token(token) = seal(&ring(), &state(&plan), form) else { unreachable!("a token was asked for") };
        let mut bytes = token.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let Ok(text) = String::from_utf8(bytes) else { return Ok(()) };
        // White space around a token is no part of it.
        prop_assume!(text.trim().len() == text.len());
        prop_assert_eq!(open(&text).unwrap_err().code(), ErrorCode::StateVerificationFailed);
    }

    #[test]
    fn a_cut_state_is_refused(form in prop::sample::select(FORMS.to_vec()), at: prop::sample::Index) {
        let whole = match seal(&ring(), &state(&json!(1)), form) {
            Signed::Token(token) => token,
            object => object.to_json(),
        };
        let at = at.index(whole.len());
        prop_assume!(whole.is_char_boundary(at));
        prop_assert_eq!(open(&whole[..at]).unwrap_err().code(), ErrorCode::StateVerificationFailed);
    }

    #[test]
    fn any_value_put_in_the_place_of_another_is_refused(plan in any_json(), other in any_json(), at: prop::sample::Index) {
        let genuine = serde_json::to_value(object(&ring(), &state(&plan))).unwrap();
        let mut found = Vec::new();
        places(&genuine, "", &mut found);
        let mut forged = genuine.clone();
        let place = forged.pointer_mut(&found[at.index(found.len())].replace('~', "~0"));
        prop_assume!(place.is_some());
        *place.unwrap() = other;
        let same = bowline_core::canonical::canonical(&forged) == bowline_core::canonical::canonical(&genuine);
        prop_assume!(!same);
        prop_assert_eq!(refused(&forged).code(), ErrorCode::StateVerificationFailed);
    }

    #[test]
    fn the_next_double_is_another_number(number: f64) {
        prop_assume!(number.is_finite() && number.next_up().is_finite());
        let mut signed = serde_json::to_value(object(&ring(), &state(&json!(number)))).unwrap();
        signed["state"]["plan_context"] = json!(number.next_up());
        // Both zeros are one number.
        prop_assume!(number.next_up() != number);
        prop_assert_eq!(refused(&signed), SealRefusal::Signature);
    }

    #[test]
    fn no_input_at_all_makes_it_panic(text in ".{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        use base64::Engine;
        let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode([b"bwlst1".as_slice(), &bytes].concat());
        for input in [text.as_str(), &format!("{{{text}}}"), &format!("\"{text}\""), &token] {
            prop_assert!(open(input).is_err());
        }
    }
}

#[test]
fn order_matters_in_lists_and_not_in_objects() {
    let genuine = serde_json::to_value(object(&ring(), &state(&json!({ "b": 1, "a": 2.50, "é": [1, 2] })))).unwrap();
    let mut forged = genuine.clone();
    forged["state"]["completed_tasks"].as_array_mut().unwrap().reverse();
    assert_eq!(refused(&forged), SealRefusal::Signature);
    // The keys the other way round, spaces, escapes and another spelling of the number.
    let fields: Vec<String> =
        genuine.as_object().unwrap().iter().rev().map(|(name, value)| format!("{name:?} : {value}")).collect();
    let text = format!("{{ {} }}", fields.join(" ,\n")).replace("2.5", "25e-1").replace('é', "\\u00e9");
    assert!(open(&text).is_ok(), "{text}");
}

#[test]
fn a_field_added_or_left_out_is_refused() {
    let genuine = serde_json::to_value(object(&ring(), &state(&json!(null)))).unwrap();
    let mut places_of = Vec::new();
    places(&genuine, "", &mut places_of);
    for place in places_of {
        let mut more = genuine.clone();
        if let Some(Value::Object(fields)) = more.pointer_mut(&place) {
            fields.insert("zz".into(), json!(1));
            assert_eq!(refused(&more).code(), ErrorCode::StateVerificationFailed, "{place}");
        }
        let Some((parent, name)) = place.rsplit_once('/') else { continue };
        let mut less = genuine.clone();
        if let Some(Value::Object(fields)) = less.pointer_mut(parent) {
            fields.remove(name).unwrap();
            assert_eq!(refused(&less).code(), ErrorCode::StateVerificationFailed, "{place}");
        }
    }
}

#[test]
fn every_field_of_the_envelope_is_bound() {
    let genuine = serde_json::to_value(object(&ring(), &state(&json!(1)))).unwrap();
    let upper = |name: &str| json!(genuine[name].as_str().unwrap().to_uppercase());
    let forgeries = [
        ("timestamp", json!(NOW + 1)),
        ("timestamp", json!(NOW.to_string())),
        ("version", json!("1.1")),
        ("key_id", json!("K1")),
        ("checksum", json!("")),
        ("checksum", upper("checksum")),
        ("signature", upper("signature")),
        ("signature", json!("")),
        ("signature", json!(null)),
        ("state", json!(null)),
    ];
    for (name, value) in forgeries {
        let mut forged = genuine.clone();
        forged[name] = value;
        assert_eq!(refused(&forged).code(), ErrorCode::StateVerificationFailed, "{name}");
    }
}

#[test]
fn a_token_is_taken_only_as_it_was_written() {
    use base64::Engine;
    let encode = |text: String| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    let signed = object(&ring(), &state(&json!(1e21)));
    let canonical =
        String::from_utf8(bowline_core::canonical::canonical(&serde_json::to_value(&signed).unwrap())).unwrap();
    assert!(open(&encode(canonical.clone())).is_ok());
    for text in [canonical.replace("1e+21", "1E+21"), canonical.replace(',', ", "), format!("{canonical} ")] {
        assert_eq!(open(&encode(text)), Err(SealRefusal::Shape));
    }
}

#[test]
fn the_wrong_owner_ring_key_or_time_gets_the_right_refusal() {
    let old = Keyring::new(vec![key("k1", 1)]).unwrap();
    let rotated = Keyring::new(vec![key("k2", 2), key("k1", 1)]).unwrap();
    let retired = Keyring::new(vec![key("k2", 2), SealKey::new("k1", &[1; 32], true).unwrap()]).unwrap();
    let foreign = Keyring::new(vec![key("k1", 3)]).unwrap();
    let other = Keyring::new(vec![key("k9", 1)]).unwrap();
    let bob = Principal::parse("bob").unwrap();
    for form in FORMS {
        let sealed = seal(&old, &state(&json!(1)), form).to_json();
        let open = |ring: &Keyring, owner: &Principal, now: u64| ring.open(&sealed, owner, now, &LIMITS).map(|_| ());
        assert_eq!(open(&old, &alice(), NOW), Ok(()));
        assert_eq!(open(&rotated, &alice(), NOW), Ok(()), "older keys verify");
        assert_eq!(open(&retired, &alice(), NOW), Err(SealRefusal::RetiredKey));
        assert_eq!(open(&foreign, &alice(), NOW), Err(SealRefusal::Signature));
        assert_eq!(open(&other, &alice(), NOW), Err(SealRefusal::UnknownKey));
        assert_eq!(open(&old, &bob, NOW), Err(SealRefusal::Signature));
        assert_eq!(open(&old, &alice(), NOW + WEEK), Ok(()));
        assert_eq!(open(&old, &alice(), NOW + WEEK + 1), Err(SealRefusal::Expired));
        assert_eq!(open(&old, &alice(), NOW - 60), Ok(()));
        assert_eq!(open(&old, &alice(), NOW - 61), Err(SealRefusal::FromTheFuture));
        // Of several reasons the first counts: a stranger does not learn that it has expired.
        assert_eq!(open(&old, &bob, NOW + WEEK + 1), Err(SealRefusal::Signature));
    }
    assert_eq!(object(&rotated, &state(&json!(1))).key_id, "k2", "the newest signs");
}

#[test]
fn the_same_secret_under_another_id_is_another_key() {
    let mut signed = serde_json::to_value(object(&ring(), &state(&json!(1)))).unwrap();
    signed["key_id"] = json!("k2");
    let ring = Keyring::new(vec![key("k1", 1), key("k2", 1)]).unwrap();
    assert_eq!(ring.open(&signed.to_string(), &alice(), NOW, &LIMITS), Err(SealRefusal::Signature));
}

#[test]
fn what_is_too_large_or_too_deep_is_refused_before_it_is_read() {
    let huge = format!("{{\"state\":\"{}\"}}", "x".repeat(10 << 20));
    assert_eq!(open(&huge), Err(SealRefusal::TooLarge));
    assert_eq!(open(&"A".repeat(10 << 20)), Err(SealRefusal::TooLarge));
    let deep = format!("{}{}", "{\"state\":".repeat(200), "}".repeat(200));
    assert_eq!(open(&deep), Err(SealRefusal::TooDeep));
    assert_eq!(SealRefusal::TooDeep.code(), ErrorCode::StateVerificationFailed);
    use base64::Engine;
    let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(deep);
    assert_eq!(open(&token), Err(SealRefusal::TooDeep));
}

#[test]
fn the_largest_state_still_comes_back_in_every_form() {
    let mut state = state(&json!(null));
    state.memory_snapshot[0].content = "\u{1f511}é".repeat(16_000);
    for form in FORMS {
        let sealed = ring().seal(&SealInput { state: &state, owner: &alice(), now_unix: NOW, form });
        assert!((96_000..100_000).contains(&sealed.state_bytes));
        let text = sealed.signed.to_json();
        // As a writer that knows only ASCII would send it.
        let escape = |c: char| {
            if c.is_ascii() {
                c.to_string()
            } else {
                c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
            }
        };
        assert!(open(&text.chars().map(escape).collect::<String>()).is_ok(), "{form:?}");
    }
}

#[test]
fn an_encrypted_token_shows_nothing_but_the_id_of_its_key() {
    use base64::Engine;
    let Signed::Token(token) = seal(&ring(), &state(&json!("plan-marker")), Form::Encrypted(NONCE)) else { panic!() };
    assert!(token.starts_with("Yndsc3Qx"), "{}", &token[..12]);
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(&token).unwrap();
    for marker in ["marker", "sess_1", "alice", "state", "signature"] {
        assert!(!bytes.windows(marker.len()).any(|window| window == marker.as_bytes()), "{marker}");
    }
    let other = seal(&ring(), &state(&json!("plan-marker")), Form::Encrypted([8; 24]));
    assert_ne!(other, Signed::Token(token.clone()));
    assert_eq!(peek(&token, None, &LIMITS), Err(SealRefusal::UnknownKey));
    assert_eq!(peek(&token, Some(&ring()), &LIMITS).unwrap().state["plan_context"], "plan-marker");
}

#[test]
fn numbers_that_round_to_one_double_are_one_number_after_opening() {
    let genuine = serde_json::to_value(object(&ring(), &state(&json!(9_007_199_254_740_992.0)))).unwrap();
    let mut other = genuine.clone();
    other["state"]["plan_context"] = json!(9_007_199_254_740_993u64);
    let plan = |signed: &Value| open(&signed.to_string()).unwrap().state.plan_context;
    assert_eq!(plan(&genuine), plan(&other));
    // Our own large whole numbers are text on the way, so that none is rounded.
    let large = object(&ring(), &state(&json!(u64::MAX)));
    assert_eq!(large.state["plan_context"], u64::MAX.to_string());
}

#[test]
fn a_debug_line_shows_nothing_of_the_state() {
    for form in FORMS {
        let sealed = ring().seal(&SealInput { state: &state(&json!(1)), owner: &alice(), now_unix: NOW, form });
        let shown = format!("{sealed:?} {:?}", open(&sealed.signed.to_json()));
        assert!(!shown.contains("marker") && shown.len() < 400, "{shown}");
    }
}
