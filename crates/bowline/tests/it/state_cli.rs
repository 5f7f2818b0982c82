//! `bowline keys` and `bowline state`, as an operator meets them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use bowline::config::{Config, StoreUrl};
use bowline::keys::LoadedKeys;
use bowline_core::seal::{Form, Keyring, SealInput};
use bowline_env::clock::unix_seconds;
use bowline_protocol::{Principal, State};
use serde_json::{Value, json};

const SECRET: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

struct Answer {
    code: i32,
    out: String,
    err: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.err))
    }
}

/// Runs the program in this directory until it ends. No answer may ever hold a secret.
fn bowline(dir: &Path, arguments: &[&str]) -> Answer {
    let output =
        Command::new(env!("CARGO_BIN_EXE_bowline")).args(arguments).current_dir(dir).env_clear().output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let answer = Answer { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) };
    let secrets = fs::read_to_string(dir.join("data/keys.json")).unwrap_or_default();
    let secrets: Value = serde_json::from_str(&secrets).unwrap_or_default();
    let kept = secrets["keys"].as_array().into_iter().flatten().filter_map(|key| key["secret"].as_str());
    for secret in kept.chain([SECRET]) {
        assert!(!answer.out.contains(secret) && !answer.err.contains(secret), "{arguments:?} shows a secret");
    }
    answer
}

fn ring(dir: &Path) -> Keyring {
    let mut config = Config::default();
    config.store.url = StoreUrl::Disk(dir.join("data"));
    LoadedKeys::load(&config).unwrap().ring
}

fn sealed(ring: &Keyring, owner: &str, now_unix: u64, form: Form) -> String {
    let state: State = serde_json::from_value(json!({
        "session_id": "sess_1", "epoch": "e1", "last_seq": 42, "created_at": "2026-01-01T00:00:00Z",
        "last_active_at": "2026-01-02T00:00:00Z", "plan_context": { "goal": "a garden" },
        "memory_snapshot": [{ "role": "user", "content": "hello\u{1b}[2J" }],
        "metadata": { "agent_name": "demo", "session_state": "idle" },
    }))
    .unwrap();
    let owner = Principal::parse(owner).unwrap();
    ring.seal(&SealInput { state: &state, owner: &owner, now_unix, form }).signed.to_json()
}

#[test]
fn keys_are_made_listed_and_retired() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| bowline(dir.path(), &[arguments, &["--store", "disk:./data"]].concat());
    assert!(run(&["keys", "list"]).out.contains("There is no"));
    let first = run(&["keys", "new", "--json"]).json()["made"].as_str().unwrap().to_owned();
    let mode = fs::metadata(dir.path().join("data/keys.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let refused = run(&["keys", "retire", &first]);
    assert!(refused.code == 1 && refused.err.contains("bowline keys new"), "{}", refused.err);
    let second = run(&["keys", "new", "--json"]).json()["made"].as_str().unwrap().to_owned();
    let listed = run(&["keys", "list"]).out;
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[0].starts_with(&second) && lines[0].contains("signs") && lines[0].contains("ago"), "{listed}");
    assert!(lines[1].starts_with(&first) && lines[1].contains("verifies"), "{listed}");
    let retired = run(&["keys", "retire", &first]);
    assert!(retired.code == 0 && retired.out.contains("retired"));
    let keys = run(&["keys", "list", "--json"]).json();
    assert_eq!((&keys["keys"][0]["does"], &keys["keys"][1]["does"]), (&json!("signs"), &json!("retired")));
    assert_eq!(run(&["keys", "retire", "k_none"]).code, 1);
    assert_eq!(bowline(dir.path(), &["keys", "new", "--store", "memory:"]).code, 1);
}

#[test]
fn configured_keys_are_shown_with_their_source_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bowline.toml");
    fs::write(&path, format!("[state]\nkeys = [\"k2:{SECRET}\", \"k1:{SECRET}\"]")).unwrap();
    let listed = bowline(dir.path(), &["keys", "list"]).out;
    assert!(listed.contains("k2") && listed.contains("signs") && listed.contains("bowline.toml:2"), "{listed}");
    let refused = bowline(dir.path(), &["keys", "new"]);
    assert!(refused.code == 1 && refused.err.contains("does not edit"), "{}", refused.err);
    assert!(!dir.path().join("bowline-data").exists());
    let printed = bowline(dir.path(), &["config", "print"]).out;
    assert!(printed.contains("state.keys") && printed.contains("(hidden)"), "{printed}");
    fs::write(&path, "[state]\nkeys = [\"k2:c2hvcnQ=\"]").unwrap();
    let short = bowline(dir.path(), &["serve"]);
    assert!(short.code == 1 && short.err.contains("at least 32"), "{}", short.err);
}

#[test]
fn a_state_is_verified_with_the_reason_and_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let (ring, now) = (ring(dir.path()), unix_seconds());
    let verify = |text: &str, owner: &[&str]| {
        fs::write(dir.path().join("state"), text).unwrap();
        bowline(dir.path(), &[&["state", "verify", "state", "--store", "disk:data", "--json"], owner].concat())
    };
    let alice = ["--owner", "alice"];
    let genuine = sealed(&ring, "alice", now, Form::Object);
    let forms = [
        genuine.clone(),
        sealed(&ring, "alice", now, Form::Token),
        sealed(&ring, "alice", now, Form::Encrypted([7; 24])),
    ];
    for text in forms {
        let frame = format!("{{\"event\":\"agent.state_exported\",\"metadata\":{{\"signed_state\":{text}}}}}");
        let bare = text.trim_matches('"').to_owned();
        for text in [text, frame, format!("{bare}\n")] {
            let answer = verify(&text, &alice);
            assert_eq!((answer.code, &answer.json()["session_id"]), (0, &json!("sess_1")), "{}", answer.out);
        }
    }
    let cases = [
        (genuine.clone(), "signature"),
        (genuine.replace("garden", "prison"), "signature"),
        (genuine[..genuine.len() - 9].to_owned(), "shape"),
        (sealed(&ring, "alice", now - 8 * 86_400, Form::Object), "expired"),
        (sealed(&ring, "alice", now + 3600, Form::Token), "from_the_future"),
        ("x".repeat(10 << 20), "too_large"),
        (format!("{{\"state\":{}{}}}", "[".repeat(200), "]".repeat(200)), "too_deep"),
        (genuine.replace("\"key_id\":\"k_", "\"key_id\":\"x_"), "unknown_key"),
        ("\u{fffd}".to_owned(), "shape"),
    ];
    for (at, (text, reason)) in cases.iter().enumerate() {
        let answer = verify(text, if at == 0 { &["--owner", "bob"] } else { &alice });
        assert_eq!((answer.code, &answer.json()["reason"]), (1, &json!(reason)));
    }
    let key = ring.signer().id().to_owned();
    assert_eq!(bowline(dir.path(), &["keys", "new", "--store", "disk:data"]).code, 0);
    assert_eq!(verify(&genuine, &alice).code, 0, "older keys verify");
    assert_eq!(bowline(dir.path(), &["keys", "retire", &key, "--store", "disk:data"]).code, 0);
    assert_eq!(verify(&genuine, &alice).json()["reason"], "retired_key");
    let words = bowline(dir.path(), &["state", "verify", "state", "--store", "disk:data"]);
    assert!(words.out.starts_with("refused: its key was retired (STATE_VERIFICATION_FAILED)"), "{}", words.out);
}

#[test]
fn a_state_is_shown_and_an_encrypted_one_only_with_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let (ring, now) = (ring(dir.path()), unix_seconds());
    let show = |form: Form, store: &str| {
        fs::write(dir.path().join("state"), sealed(&ring, "alice", now, form)).unwrap();
        bowline(dir.path(), &["state", "show", "state", "--store", store])
    };
    for form in [Form::Object, Form::Token] {
        let shown = show(form, "memory:");
        assert!(
            shown.code == 0 && shown.out.contains("a garden") && shown.err.contains("not verified"),
            "{}",
            shown.err
        );
        assert!(!shown.out.contains('\u{1b}'));
    }
    assert!(show(Form::Encrypted([7; 24]), "disk:data").out.contains("a garden"));
    let hidden = show(Form::Encrypted([7; 24]), "memory:");
    assert!(
        hidden.code == 1 && hidden.err.contains("not in the ring") && !hidden.out.contains("garden"),
        "{}",
        hidden.err
    );
}
