//! A signed state goes through a real JavaScript engine and comes back: parsed, reordered, written again, still ours.

use std::io::Write;
use std::process::{Command, Stdio};

use bowline_core::seal::{Form, Keyring, OpenLimits, SealInput, SealKey};
use bowline_protocol::{Principal, State};
use serde_json::{Value, json};

const NOW: u64 = 1_800_000_000;
const LIMITS: OpenLimits = OpenLimits { bytes_max: 1_000_000, depth_max: 64, ttl_seconds: 3600, future_seconds: 60 };

/// Each state three times: as it is, with its keys the other way round, and indented with all but ASCII escaped.
const SCRIPT: &str = r#"
const turned = (value) =>
  Array.isArray(value) ? value.map(turned)
  : value && typeof value === "object"
    ? Object.fromEntries(Object.entries(value).reverse().map(([key, inner]) => [key, turned(inner)]))
    : value;
const ascii = (text) => text.replace(/[\u007f-\uffff]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
let text = "";
process.stdin.setEncoding("utf8").on("data", (chunk) => (text += chunk)).on("end", () => {
  const lines = text.split("\n").filter(Boolean).flatMap((line) => {
    const value = JSON.parse(line);
    return [JSON.stringify(value), JSON.stringify(turned(value)), ascii(JSON.stringify(value, null, 1))];
  });
  process.stdout.write(JSON.stringify(lines));
});
"#;

/// Writes `input` to Node, which runs the script, and returns what it printed.
fn node(input: &str) -> Vec<String> {
    let spawned = Command::new("node").args(["-e", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = spawned.unwrap_or_else(|error| {
        panic!(
            "`node` cannot be started ({error}). Install Node 20 or newer: a browser's JSON is what this test is about."
        )
    });
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_owned());
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "node failed");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Doubles of every size, from a generator that is always the same (xorshift, seed 1).
fn doubles(count: usize) -> Vec<Value> {
    let mut bits = 1u64;
    let next = || {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        f64::from_bits(bits)
    };
    std::iter::repeat_with(next).filter(|number| number.is_finite()).take(count).map(Value::from).collect()
}

fn plans() -> Vec<Value> {
    vec![
        json!({ "one": 1.0, "minus": -0.0, "tenth": 0.1, "tiny": 5e-324, "large": 1.797_693_134_862_315_7e308, "e21": 1e21, "e20": 1e20 }),
        json!({ "id": u64::MAX, "low": i64::MIN, "edge": 9_007_199_254_740_991u64, "past": 9_007_199_254_740_992u64 }),
        json!(doubles(5000)),
        json!({ "10": "a", "9": "b", "": "empty", "__proto__": { "x": 1 }, "constructor": null, "é": 1, "e\u{301}": 2, "\u{fb33}": 3, "\u{1f600}": 4, "\r": 5 }),
        json!({ "text": "\u{0}\u{1f}\u{7f}\u{80}\u{2028}\u{2029}\u{feff}\u{fffd} \\ \" / \u{1f468}\u{200d}\u{1f469} \u{10ffff}", "deep": [[[[{ "a": [{}, [], null] }]]]] }),
    ]
}

fn state(plan: &Value) -> State {
    serde_json::from_value(json!({
        "session_id": "sess_1", "epoch": "e1", "last_seq": 42, "current_step": 5, "agent_state": "idle",
        "created_at": "2026-01-01T00:00:00Z", "last_active_at": "2026-01-02T00:00:00Z", "plan_context": plan,
        "memory_snapshot": [{ "role": "user", "content": "Größe? 🔑", "at_ms": 1_799_999_999_999u64 }],
        "metadata": { "agent_name": "demo", "agent_config": { "speed": 1.0 }, "session_state": "idle" },
    }))
    .unwrap()
}

#[test]
#[ignore = "needs Node.js"]
fn a_state_that_a_browser_has_read_and_written_again_is_still_ours() {
    let ring = Keyring::new(vec![SealKey::new("k1", &[1; 32], false).unwrap()]).unwrap();
    let owner = Principal::parse("alice").unwrap();
    let seal = |plan: &Value| {
        let input = SealInput { state: &state(plan), owner: &owner, now_unix: NOW, form: Form::Object };
        ring.seal(&input).signed.to_json()
    };
    let sealed: Vec<String> = plans().iter().map(seal).collect();
    let direct: Vec<_> = sealed.iter().map(|text| ring.open(text, &owner, NOW, &LIMITS).unwrap()).collect();
    let returned = node(&sealed.join("\n"));
    assert_eq!(returned.len(), 3 * sealed.len());
    for (at, text) in returned.iter().enumerate() {
        let opened = ring.open(text, &owner, NOW, &LIMITS);
        let opened = opened.unwrap_or_else(|refusal| panic!("plan {}, way {}: {refusal:?}", at / 3, at % 3));
        assert!(opened == direct[at / 3], "plan {} came back as something else", at / 3);
    }
    // The other way round: what JavaScript has changed is refused.
    let forged = returned[0].replace("\"one\":1", "\"one\":2");
    assert!(forged != returned[0] && ring.open(&forged, &owner, NOW, &LIMITS).is_err());
}
