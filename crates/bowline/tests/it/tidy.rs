//! Reads the sources and holds the house rules that neither the compiler nor clippy can.
//!
//! Each rule is a function from sources to complaints. Below, each is run over the real sources and over a made-up one
//! that breaks it: a rule that cannot fail proves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bowline_protocol::CloseCode;

/// A file may have this many lines before its tests. At that length there are usually two nouns in it.
const LINES_MAX: usize = 500;

/// Types that hold a credential or what a person wrote.
const PRIVATE: &[&str] = &[
    "Secret",
    "Content",
    "Delta",
    "Draft",
    "Unnumbered",
    "Recorded",
    "LoggedEvent",
    "EventView",
    "Chunk",
    "ChunkView",
    "Record",
    "Item",
    "Input",
    "OpenQuestion",
    "ServerFrame",
    "ClientRequest",
    "RequestOutcome",
    "SessionTarget",
    "LinkOutput",
    "LinkEvent",
    "OperationRequest",
    "Reply",
    "Confirm",
    "PlanCommand",
    "Message",
    "Answer",
    "UpstreamFinish",
    "ToolCall",
    "ToolOutcome",
    "SignedState",
    "MemoryMessage",
    "PendingConfirmation",
    "StateMetadata",
    "Signed",
    "StoredKey",
    "Fields",
    "ServerSpec",
    "Target",
    "Response",
    "Inbound",
    "ClientFacts",
    "CallReply",
    "AnswerReceiver",
    "SuspendedQuestion",
    "RemoteQuestion",
    "RpcResult",
    "RpcMessage",
    "RpcRequest",
    "RpcResponse",
    "RpcNotification",
    "PartFields",
    "ContentFields",
    "NodeAnswer",
    "CommitReply",
    "QueuedRequest",
    "SegmentContent",
    "AttachTarget",
    "ClientFrame",
    "UpstreamQuestion",
    "UpstreamRecord",
    "Responder",
    "RequestCaller",
    "UpstreamError",
    "AccumulatedText",
    "BodyFields",
];

struct Source {
    /// Relative to `crates/`, with forward slashes.
    path: String,
    text: String,
}

impl Source {
    fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }

    /// Numbered lines of code: no comments, nothing from the tests on.
    fn code(&self) -> Vec<(usize, &str)> {
        if self.path.ends_with("_tests.rs") || self.path.contains("/tests/") {
            return Vec::new();
        }
        let lines: Vec<&str> = self.text.lines().collect();
        let end = tests_begin(&lines).unwrap_or(lines.len());
        let numbered = lines[..end].iter().enumerate().map(|(at, line)| (at + 1, *line));
        numbered.filter(|(_, line)| !line.trim_start().starts_with("//")).collect()
    }

    /// One complaint for each line of code that `wrong` objects to.
    fn complaints(&self, wrong: impl Fn(&str) -> bool) -> Vec<String> {
        let bad = self.code().into_iter().filter(|(_, line)| wrong(line));
        bad.map(|(at, line)| format!("crates/{}:{at}: {}", self.path, line.trim())).collect()
    }
}

/// Where `#[cfg(test)] mod …` stands.
fn tests_begin(lines: &[&str]) -> Option<usize> {
    let opens_module = |at: usize| {
        let mut rest = lines[at + 1..].iter().map(|line| line.trim()).skip_while(|line| line.starts_with("#["));
        rest.next().is_some_and(|line| line.starts_with("mod "))
    };
    (0..lines.len()).find(|at| lines[*at].trim() == "#[cfg(test)]" && opens_module(*at))
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All Rust files below `crates/*/<folder>`.
fn sources(folder: &str) -> Vec<Source> {
    let mut found = Vec::new();
    for name in entries(&crates()) {
        walk(&name.join(folder), &mut found);
    }
    assert!(!found.is_empty(), "no sources were found below crates/*/{folder}");
    found
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).map(|dir| dir.map(|entry| entry.unwrap().path()).collect()).unwrap_or_default();
    paths.sort();
    paths
}

fn walk(folder: &Path, found: &mut Vec<Source>) {
    for path in entries(folder) {
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let relative = path.strip_prefix(crates()).unwrap().to_str().unwrap().replace('\\', "/");
            found.push(Source { path: relative, text: fs::read_to_string(&path).unwrap() });
        }
    }
}

/// The contents of the string literals on one line. Escapes are not looked at: no name has any.
fn literals(line: &str) -> Vec<&str> {
    line.split('"').skip(1).step_by(2).collect()
}

/// Words of a line: runs of letters, digits and underscores.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

fn is_frame_name(text: &str) -> bool {
    let namespaces = ["user", "agent", "system", "plan", "solver", "aggregate", "pipeline", "error"];
    text.split_once('.').is_some_and(|(namespace, name)| {
        namespaces.contains(&namespace) && !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
    })
}

fn is_metric_name(text: &str) -> bool {
    let crates = [
        "bowline_actor",
        "bowline_api",
        "bowline_client",
        "bowline_core",
        "bowline_env",
        "bowline_hub",
        "bowline_protocol",
        "bowline_sim",
        "bowline_store",
    ];
    words(text).any(|word| word.starts_with("bowline_") && !crates.contains(&word))
}

fn is_close_code(word: &str) -> bool {
    // 1000 is also just a number.
    let codes = CloseCode::ALL.iter().filter(|code| **code != CloseCode::Normal);
    codes.map(|code| code.code().to_string()).any(|code| word.replace('_', "") == code)
}

// The rules.

fn waits_outside_drivers(source: &Source) -> Vec<String> {
    let of_the_hub = [
        "hub/src/backend/dispatcher.rs",
        "hub/src/backend/supervisor/",
        "hub/src/call/mod.rs",
        "hub/src/downstream/mod.rs",
    ];
    let is_driver = source.path.contains("/drive/") || source.path.ends_with("/drive.rs");
    if is_driver || source.is_in(&["bowline/src/cli/"]) || source.is_in(&of_the_hub) {
        return Vec::new();
    }
    source.complaints(|line| line.contains("select!"))
}

fn frame_names_outside_protocol(source: &Source) -> Vec<String> {
    if source.is_in(&[
        "protocol/src/event.rs",
        "protocol/src/control_names.rs",
        "protocol/src/frame/",
        "bowline/src/cli/",
    ]) {
        return Vec::new();
    }
    source.complaints(|line| literals(line).into_iter().any(is_frame_name))
}

fn metric_names_outside_metrics(source: &Source) -> Vec<String> {
    if source.is_in(&["bowline/src/metrics.rs"]) {
        return Vec::new();
    }
    source.complaints(|line| literals(line).into_iter().any(is_metric_name))
}

fn close_codes_outside_their_file(source: &Source) -> Vec<String> {
    if source.is_in(&["protocol/src/error.rs", "bowline/src/cli/"]) {
        return Vec::new();
    }
    source.complaints(|line| words(line).any(is_close_code))
}

/// Where the dialect of the AI SDK may be named: its folder and the table of dialects beside it, the words of its chunks, its endpoints
/// and the document that describes them, the agent whose upstream speaks it, and clients that read it.
const AI_SDK: &[&str] = &[
    "core/src/dialect/ai_sdk/",
    "core/src/dialect/registry.rs",
    "protocol/src/chunk/",
    "protocol/src/lib.rs",
    "bowline/src/http/chat/",
    "bowline/src/http/openapi/",
    "bowline/src/agent/http/ui.rs",
    "bowline/src/agent/http/body.rs",
    "sim/src/client/",
];

/// The same for the dialect of the Responses API.
const RESPONSES: &[&str] =
    &["core/src/dialect/responses/", "core/src/dialect/registry.rs", "bowline/src/http/responses/"];

fn dialects_named_elsewhere(source: &Source) -> Vec<String> {
    let names_folder = |line: &str| {
        line.split("dialect::").skip(1).any(|rest| {
            let name = words(rest).next().unwrap_or_default();
            let places = if name == "responses" { RESPONSES } else { AI_SDK };
            let is_folder = name.starts_with(|c: char| c.is_ascii_lowercase()) && rest[name.len()..].starts_with("::");
            is_folder && !source.is_in(places)
        })
    };
    let chunk_types = ["ChunkKind", "ChunkView", "ChunkBuilder", "ChunkError"];
    // Fields and states of its parts; what a chunk is called begins like the last three.
    let fields = ["toolCallId", "toolName", "errorText"];
    let states = ["output-", "input-", "tool-", "text-", "data-"];
    let is_of_a_chunk = |text: &str| {
        let begins_like = |begin: &&str| {
            let rest = text.strip_prefix(begin);
            rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'))
        };
        fields.contains(&text) || states.iter().any(begins_like)
    };
    let names_a_chunk = |line: &str| {
        words(line).any(|word| chunk_types.contains(&word)) || literals(line).into_iter().any(is_of_a_chunk)
    };
    let of_the_ai_sdk = source.is_in(AI_SDK);
    source.complaints(|line| names_folder(line) || (!of_the_ai_sdk && names_a_chunk(line)))
}

/// A node takes time, randomness, files and sockets from `env`. These are the files that may ask the machine itself: what `env` is made
/// of, what breaks real files for the store's tests, and what holds the simulation's list of mutants against the sources.
fn seams_that_are_gone_around(source: &Source) -> Vec<String> {
    let seams = ["clock.rs", "entropy.rs", "files.rs", "net.rs"].map(|file| format!("env/src/{file}"));
    let of_tests = ["store/src/disk/faults.rs", "sim/src/mutants.rs"];
    if seams.contains(&source.path) || source.is_in(&of_tests) {
        return Vec::new();
    }
    source.complaints(|line| line.contains("clippy::disallowed_") && !line.contains("cfg_attr(test,"))
}

fn answers_without_a_type(source: &Source) -> Vec<String> {
    // Where all answers become JSON, and the document, which is made of their types.
    if !source.is_in(&["bowline/src/http/"])
        || source.is_in(&["bowline/src/http/sorted.rs", "bowline/src/http/openapi/"])
    {
        return Vec::new();
    }
    source.complaints(|line| {
        words(line).any(|word| word == "Json") || line.contains("Sorted(json!") || line.contains("Sorted<Value>")
    })
}

fn kinds_of_agent_in_sessions(source: &Source) -> Vec<String> {
    if !source.is_in(&["bowline/src/session/"]) {
        return Vec::new();
    }
    let kinds = ["PlanCommand", "PlanProgress", "axum", "reqwest"];
    let modules = ["crate::agent::", "crate::cluster", "crate::http"];
    source.complaints(|line| {
        words(line).any(|word| kinds.contains(&word)) || modules.iter().any(|module| line.contains(module))
    })
}

fn too_long(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    let length = tests_begin(&lines).unwrap_or(lines.len());
    let over = length > LINES_MAX;
    over.then(|| format!("crates/{}: {length} lines before its tests, {LINES_MAX} are allowed", source.path))
        .into_iter()
        .collect()
}

fn without_first_sentence(source: &Source) -> Vec<String> {
    let begins = source.text.starts_with("//! ");
    if begins { Vec::new() } else { vec![format!("crates/{}", source.path)] }
}

fn machines_that_do_more_than_decide(source: &Source) -> Vec<String> {
    if !source.is_in(&["core/src/"]) {
        return Vec::new();
    }
    let forbidden = ["async", "await", "tokio", "tracing", "rand", "getrandom", "thread", "println", "eprintln"];
    let doings = ["Instant::now", "SystemTime::now", "std::fs", "std::net", ".elapsed()"];
    source.complaints(|line| {
        words(line).any(|word| forbidden.contains(&word)) || doings.iter().any(|doing| line.contains(doing))
    })
}

fn words_that_do_something(source: &Source) -> Vec<String> {
    if !source.is_in(&["protocol/src/"]) {
        return Vec::new();
    }
    let forbidden = ["async", "await", "tokio", "tracing", "rand", "getrandom"];
    let doings = ["std::fs", "std::net", "std::thread", "Instant::now", "SystemTime::now"];
    source.complaints(|line| {
        words(line).any(|word| forbidden.contains(&word)) || doings.iter().any(|doing| line.contains(doing))
    })
}

/// Unlike the others, this one also looks into tests. A test that starts a program which is not part of Rust is left to `./test programs`.
fn unfinished(source: &Source) -> Vec<String> {
    let marks = ["todo!", "unimplemented!", "dbg!", "#[ignore"];
    let lines = source.text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim_start().starts_with("#[ignore = \"needs "));
    let bad = lines.filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)));
    bad.map(|(at, line)| format!("crates/{}:{}: {}", source.path, at + 1, line.trim())).collect()
}

fn private_types_that_show_themselves(source: &Source) -> Vec<String> {
    source.complaints(|line| {
        let shown = line.split_once("Display for ").map(|(_, rest)| rest);
        shown.is_some_and(|rest| words(rest).next().is_some_and(|name| PRIVATE.contains(&name)))
    })
}

fn derived_debug_of_private_types(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut derives_debug = false;
    for (at, line) in source.code() {
        let line = line.trim();
        if line.starts_with("#[derive(") {
            derives_debug = words(line).any(|word| word == "Debug");
        } else if !line.starts_with("#[") {
            let mut parts = words(line.strip_prefix("pub ").unwrap_or(line));
            let defines = matches!(parts.next(), Some("struct" | "enum"));
            let private = parts.next().is_some_and(|name| PRIVATE.contains(&name));
            if derives_debug && defines && private {
                complaints.push(format!("crates/{}:{at}: {line}", source.path));
            }
            derives_debug = false;
        }
    }
    complaints
}

/// The hub knows revisions of the protocol where messages enter and leave; its configuration has a setting for them.
fn revisions_between_the_edges(source: &Source) -> Vec<String> {
    let edges =
        ["hub/src/revision/", "hub/src/downstream/", "hub/src/upstream/", "hub/src/config/spec.rs", "hub/src/lib.rs"];
    if !source.is_in(&["hub/src/"]) || source.is_in(&edges) {
        return Vec::new();
    }
    // What is stored has its own names.
    let is_stored = |line: &str| line.trim_start().starts_with("#[serde(rename");
    source.complaints(|line| {
        !is_stored(line)
            && words(line)
                .map(str::to_ascii_lowercase)
                .any(|word| ["revision", "v2025", "v2026", "modern", "legacy"].iter().any(|known| word.contains(known)))
    })
}

/// A revision of the protocol, and each of its versions, is named where its codec is, so that another one changes nothing else.
fn revisions_outside_their_codecs(source: &Source) -> Vec<String> {
    if !source.is_in(&["hub/src/"]) || source.is_in(&["hub/src/revision/"]) {
        return Vec::new();
    }
    let is_date = |text: &[u8]| {
        text.iter().zip(b"2000-00-00").all(|(byte, like)| byte == like || (*like == b'0' && byte.is_ascii_digit()))
    };
    let is_codec =
        |word: &str| word.strip_prefix("v20").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
    source.complaints(|line| line.as_bytes().windows(10).any(is_date) || words(line).any(is_codec))
}

type Rule = fn(&Source) -> Vec<String>;

/// Runs a rule over every source and fails with all complaints and the advice.
fn hold(rule: Rule, advice: &str) {
    let complaints: Vec<String> = sources("src").iter().flat_map(rule).collect();
    assert!(complaints.is_empty(), "{advice}\n  {}", complaints.join("\n  "));
}

#[test]
fn only_drivers_wait_for_several_things_at_once() {
    hold(
        waits_outside_drivers,
        "`select!` belongs into a file `drive.rs` or a folder `drive`. Let a machine decide and a driver wait:",
    );
}

#[test]
fn names_of_frames_and_events_are_written_in_one_place() {
    hold(
        frame_names_outside_protocol,
        "Use the constant from protocol/src/event.rs or protocol/src/frame instead of the literal:",
    );
}

#[test]
fn names_of_metrics_are_written_in_one_place() {
    hold(metric_names_outside_metrics, "Add the metric to bowline/src/metrics.rs and use its field:");
}

#[test]
fn close_codes_are_written_in_one_place() {
    hold(close_codes_outside_their_file, "Use `CloseCode` from protocol/src/error.rs instead of the number:");
}

#[test]
fn a_dialect_is_named_by_its_folder_and_its_endpoint_alone() {
    hold(dialects_named_elsewhere, "Use what core/src/dialect/mod.rs offers for all dialects:");
}

#[test]
fn only_env_goes_around_its_seams() {
    hold(
        seams_that_are_gone_around,
        "Take the clock, randomness, files and sockets from `bowline_env`, and do not allow what clippy.toml forbids:",
    );
}

#[test]
fn every_http_answer_has_a_type() {
    hold(
        answers_without_a_type,
        "Answer with a struct that derives `Serialize` and `JsonSchema`, in `Sorted`; /openapi.json and the SDK follow from it:",
    );
}

#[test]
fn a_session_knows_no_kind_of_agent_no_http_and_no_cluster() {
    hold(kinds_of_agent_in_sessions, "Ask the agent's `Work` (api/src/work.rs), or hand in what the session needs:");
}

#[test]
fn between_its_edges_the_hub_knows_no_revision() {
    hold(
        revisions_between_the_edges,
        "Translate where messages enter and leave (hub/src/revision); between, ask how they are exchanged (`Exchange`):",
    );
}

#[test]
fn a_revision_of_the_protocol_is_a_codec_and_a_line_in_a_table() {
    hold(
        revisions_outside_their_codecs,
        "What differs between revisions is asked of the codec that was agreed on (hub/src/revision):",
    );
}

#[test]
fn no_file_holds_two_nouns() {
    hold(too_long, "Find the second noun in this file and give it a file of its own:");
}

#[test]
fn every_file_begins_with_what_it_is_for() {
    hold(without_first_sentence, "Begin the file with `//! ` and one sentence that says what it is for:");
}

#[test]
fn the_machines_have_no_clock_no_randomness_and_nothing_to_wait_for() {
    hold(
        machines_that_do_more_than_decide,
        "`core` only decides. Take the time, the chance or the wait as an argument:",
    );
}

#[test]
fn the_words_do_nothing() {
    hold(words_that_do_something, "`protocol` is types only. Move what acts into `store` or `bowline`:");
}

#[test]
fn private_types_are_not_displayed() {
    hold(private_types_that_show_themselves, "This type holds what must not reach a log line. Remove its `Display`:");
    hold(derived_debug_of_private_types, "Write `Debug` for this type by hand, so that it shows only a length:");
}

#[test]
fn nothing_is_left_unfinished() {
    let complaints: Vec<String> = ["src", "tests"]
        .iter()
        .flat_map(|folder| sources(folder))
        // This file names the marks.
        .filter(|source| source.path != "bowline/tests/it/tidy.rs")
        .flat_map(|source| unfinished(&source))
        .collect();
    assert!(complaints.is_empty(), "Finish it, or say in README.md that it is missing:\n  {}", complaints.join("\n  "));
}

/// Which crates of ours one of them may use; none if this table does not know it.
fn may_use(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "env" | "mutant" | "protocol" => &[],
        "api" => &["protocol"],
        "core" => &["mutant", "protocol"],
        "store" | "interleavings" => &["env", "mutant", "protocol"],
        "client" => &["core", "env", "protocol"],
        "actor" => &["env", "protocol", "store"],
        "hub" => &["actor", "core", "env", "mutant", "protocol", "store"],
        "bowline" => &["actor", "api", "client", "core", "env", "hub", "mutant", "protocol", "store"],
        // It judges the server by what clients see, and so shares no code with the server's own client.
        "sim" => &["api", "bowline", "core", "env", "mutant", "protocol", "store"],
        _ => return None,
    })
}

/// HTTP clients that dial by themselves, beside the one of `env`. Tests may use them.
const FORBIDDEN_EVERYWHERE: &[&str] = &["reqwest", "ureq"];

/// Complaints about the dependencies of one crate, given its manifest.
fn forbidden_dependencies(name: &str, manifest: &str) -> Vec<String> {
    let forbidden: &[&str] = match name {
        "env" => &["tracing", "axum"],
        "protocol" => &["tokio", "tracing", "axum", "hyper", "getrandom"],
        "core" => &["tokio", "tracing", "axum", "hyper", "getrandom", "rand", "async-trait"],
        "api" => &["axum", "hyper", "tracing", "getrandom", "prometheus-client"],
        "client" => &["axum", "hyper", "getrandom"],
        "actor" => &["axum", "hyper", "getrandom"],
        "store" => &["axum", "hyper", "tokio-tungstenite", "getrandom"],
        // It is given requests, and sends some by the client of `env`.
        "hub" => &["axum", "hyper", "tokio-tungstenite", "prometheus-client", "getrandom"],
        "sim" => &["axum", "hyper", "tracing", "getrandom", "rand"],
        _ => &[],
    };
    let Some(own) = may_use(name) else { return vec![format!("{name} has no row in the table of crates")] };
    let is_forbidden = |key: &str| match key.strip_prefix("bowline") {
        Some("") => !own.contains(&"bowline"),
        Some(rest) => !own.contains(&rest.trim_start_matches('-')),
        None => forbidden.contains(&key) || FORBIDDEN_EVERYWHERE.contains(&key),
    };
    let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
    let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table).cloned().unwrap_or_default();
    dependencies.keys().filter(|key| is_forbidden(key)).map(|key| format!("{name} → {key}")).collect()
}

#[test]
fn the_crates_depend_one_way() {
    let mut complaints = Vec::new();
    for folder in entries(&crates()) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        complaints.extend(forbidden_dependencies(&name, &manifest));
    }
    assert!(
        complaints.is_empty(),
        "A crate exists because of what it may not use; ARCHITECTURE.md draws the arrows. Remove:\n  {}",
        complaints.join("\n  ")
    );
}

/// The top-level modules of one crate, and which others each names through `crate::`, also by what lib.rs re-exports of them.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The imports of each crate, read from all its sources.
fn imports(sources: &[Source]) -> BTreeMap<String, Imports> {
    let mut crates: BTreeMap<String, Imports> = BTreeMap::new();
    for source in sources {
        let Some((name, path)) = source.path.split_once("/src/") else { continue };
        let module = path.split('/').next().unwrap().trim_end_matches(".rs");
        if !["lib", "main"].contains(&module) {
            let code: Vec<&str> = source.code().into_iter().map(|(_, line)| line).collect();
            let modules = crates.entry(name.to_owned()).or_default();
            modules.entry(module.to_owned()).or_default().extend(named_modules(&code.join("\n")));
        }
    }
    for (name, modules) in &mut crates {
        let known: BTreeSet<String> = modules.keys().cloned().collect();
        let first_page = sources.iter().find(|source| source.path == format!("{name}/src/lib.rs"));
        let homes = first_page.map(re_exports).unwrap_or_default();
        for (module, named) in modules {
            let named_here = std::mem::take(named).into_iter();
            let resolved = named_here.map(|name| if known.contains(&name) { name } else { home_of(&homes, name) });
            *named = resolved.filter(|home| known.contains(home) && home != module).collect();
        }
    }
    crates
}

/// The names that a crate's first page re-exports, each with the module that it is from.
fn re_exports(first_page: &Source) -> BTreeMap<String, String> {
    let code: Vec<&str> = first_page.code().into_iter().map(|(_, line)| line).collect();
    let code = code.join("\n");
    let mut homes = BTreeMap::new();
    for use_of in code.split("pub use ").skip(1).chain(code.split("pub(crate) use ").skip(1)) {
        let path = use_of.split(';').next().unwrap_or_default();
        let mut names = words(path).filter(|word| !word.is_empty());
        if let Some(home) = names.by_ref().find(|word| !["crate", "self"].contains(word)) {
            homes.extend(names.map(|name| (name.to_owned(), home.to_owned())));
        }
    }
    homes
}

/// The module that a name is from, if the first page re-exports it.
fn home_of(homes: &BTreeMap<String, String>, name: String) -> String {
    homes.get(&name).cloned().unwrap_or(name)
}

/// The first names of all paths that begin with `crate::`, also within `crate::{…}`.
fn named_modules(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            found.extend(words(rest).next().map(str::to_owned));
            continue;
        };
        let mut depth = 0;
        let mut name_begins = true;
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => name_begins = true,
                c if name_begins && !c.is_whitespace() => {
                    found.extend(words(&group[at..]).next().map(str::to_owned));
                    name_begins = false;
                }
                _ => {}
            }
        }
    }
    found
}

/// The modules from which a way leads back to themselves.
fn on_cycles(imports: &Imports) -> BTreeSet<String> {
    let reaches_itself = |module: &&String| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![*module]);
        while let Some(next) = todo.pop() {
            for named in imports.get(next).into_iter().flatten() {
                if named == *module {
                    return true;
                }
                if seen.insert(named) {
                    todo.push(named);
                }
            }
        }
        false
    };
    imports.keys().filter(reaches_itself).cloned().collect()
}

#[test]
fn modules_import_each_other_one_way() {
    let mut complaints = Vec::new();
    for (name, imports) in imports(&sources("src")) {
        let found = on_cycles(&imports);
        for module in &found {
            let named = imports[module].iter().filter(|named| found.contains(*named)).cloned().collect::<Vec<_>>();
            complaints.push(format!("{name}: `{module}` is on an import cycle; it names {}", named.join(", ")));
        }
    }
    let advice = "A module knows what lies below it and never what uses it. Move what is shared down, or hand it over:";
    assert!(complaints.is_empty(), "{advice}\n  {}", complaints.join("\n  "));
}

/// Names that several public types have: common words that mean the same everywhere. The list may only become shorter.
const SHARED_TYPE_NAMES: &[&str] = &["Input", "Options", "Output", "State"];

/// The types of a source that other modules can name, each with its place.
fn public_types(source: &Source) -> Vec<(String, String)> {
    fn named(line: &str) -> Option<&str> {
        let rest = ["pub ", "pub(crate) ", "pub(super) "].iter().find_map(|visible| line.strip_prefix(visible))?;
        let mut parts = words(rest);
        matches!(parts.next(), Some("struct" | "enum" | "trait" | "type")).then(|| parts.next()).flatten()
    }
    let code = source.code().into_iter();
    code.filter_map(|(at, line)| Some((named(line)?.to_owned(), format!("crates/{}:{at}", source.path)))).collect()
}

/// Public types that share their name with another, in any crate.
fn shared_type_names(sources: &[Source]) -> BTreeMap<String, Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, place) in sources.iter().flat_map(public_types) {
        places.entry(name).or_default().push(place);
    }
    places.retain(|_, places| places.len() > 1);
    places
}

#[test]
fn a_public_type_has_a_name_of_its_own() {
    let shared = shared_type_names(&sources("src"));
    let (known, new): (Vec<_>, Vec<_>) =
        shared.iter().partition(|(name, _)| SHARED_TYPE_NAMES.contains(&name.as_str()));
    let complaints: Vec<String> = new.iter().map(|(name, places)| format!("{name}: {}", places.join(", "))).collect();
    assert!(
        complaints.is_empty(),
        "Give each type the name that says which one it is (`SessionRecord`, not `Record`):\n  {}",
        complaints.join("\n  ")
    );
    let known: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
    let settled: Vec<&&str> = SHARED_TYPE_NAMES.iter().filter(|name| !known.contains(name)).collect();
    assert!(settled.is_empty(), "Only one public type has this name now. Take it off `SHARED_TYPE_NAMES`: {settled:?}");
}

/// Words that are not the field's, each with what to write instead. A reader who knows servers guesses the second, and has to look the
/// first up.
const BANNED_WORDS: &[(&str, &str)] = &[
    ("anybody", "the client, caller or node that acts"),
    ("approach", "request"),
    ("bury", "declare dead"),
    ("chair", "slot, process"),
    ("claimant", "attacher"),
    ("crowd", "overflow, clients"),
    ("desk", "dispatcher"),
    ("dice", "entropy, chance"),
    ("door", "endpoint"),
    ("errand", "operation"),
    ("everybody", "all clients"),
    ("fleet", "topology, nodes"),
    ("guest", "client"),
    ("hot", "cached"),
    ("judge", "verdict, check"),
    ("legacy", "revision"),
    ("letter", "message"),
    ("modern", "revision"),
    ("neighbour", "peer, sibling"),
    ("nobody", "no client, no node, None"),
    ("parcel", "envelope, message"),
    ("parked", "queued"),
    ("pen", "segment_writer"),
    ("roster", "registry"),
    ("scribe", "projection"),
    ("seat", "slot, hold"),
    ("seldom", "rate_limited"),
    ("skim", "read"),
    ("somebody", "the client, caller or node that acts"),
    ("spoken", "accumulated text"),
    ("told", "sent, reported, announced"),
    ("trouble", "error, outage"),
    ("upkeep", "maintenance"),
    ("visitor", "remote connection"),
    ("whoever", "the client, caller or node that acts"),
];

/// Sources in which the words are not held yet.
const WORDS_NOT_HELD: &[&str] = &["hub/src/", "sim/src/"];

/// Where a banned word stays: it is stored, sent, another project's name, or means what the word says.
const ALLOWED_WORDS: &[(&str, &str)] = &[
    // The characters of a text.
    ("bowline/src/auth/mod.rs", "letters"),
    ("bowline/src/config/units.rs", "letters"),
    // Names on the wire between nodes.
    ("bowline/src/cluster/", "Nobody"),
    ("bowline/src/cluster/", "WebhookTold"),
    ("bowline/src/cluster/wire/tests.rs", "parcel"),
    // Members of what `/readyz` answers.
    ("bowline/src/cli/status.rs", "troubles"),
    ("bowline/src/http/health.rs", "trouble"),
    ("bowline/src/readiness.rs", "troubles"),
    // A function of the hub.
    ("bowline/src/drive/cluster.rs", "serve_neighbour"),
    // A trait of serde.
    ("core/src/dialect/ai_sdk/sanitize.rs", "Visitor"),
];

/// The words of an identifier in lower case: those of `snake_case` and of `CamelCase`.
fn words_of(identifier: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut before = '_';
    for c in identifier.chars() {
        if c == '_' || (c.is_ascii_uppercase() && !before.is_ascii_uppercase()) || before == '_' {
            found.push(String::new());
        }
        if c != '_'
            && let Some(word) = found.last_mut()
        {
            word.push(c.to_ascii_lowercase());
        }
        before = c;
    }
    found.retain(|word| !word.is_empty());
    found
}

/// A line without the contents of its string literals and without the comment at its end.
fn without_text(line: &str) -> String {
    let code: Vec<&str> = line.split('"').step_by(2).collect();
    code.join("\"\"").split("//").next().unwrap_or_default().to_owned()
}

fn banned_words(source: &Source) -> Vec<String> {
    if source.is_in(WORDS_NOT_HELD) {
        return Vec::new();
    }
    let is_allowed = |identifier: &str| {
        ALLOWED_WORDS.iter().any(|(place, allowed)| source.is_in(&[place]) && *allowed == identifier)
    };
    let instead = |word: &str| {
        let is_it = |banned: &str| word == banned || word.strip_suffix('s') == Some(banned);
        BANNED_WORDS.iter().find(|(banned, _)| is_it(banned)).map(|(banned, instead)| format!("`{banned}`: {instead}"))
    };
    let mut complaints = Vec::new();
    for (at, line) in source.code() {
        let code = without_text(line);
        for identifier in words(&code).filter(|identifier| !is_allowed(identifier)) {
            let banned = words_of(identifier).iter().find_map(|word| instead(word));
            complaints.extend(banned.map(|banned| format!("crates/{}:{at}: {identifier} (not {banned})", source.path)));
        }
    }
    complaints
}

#[test]
fn names_are_the_fields_words() {
    hold(banned_words, "An expert does not guess this name. Write what stands behind the colon:");
}

#[test]
fn a_word_is_allowed_only_where_it_stands() {
    let sources = sources("src");
    let stands = |place: &str, word: &str| {
        let mut held = sources.iter().filter(|source| source.is_in(&[place]));
        held.any(|source| source.code().into_iter().any(|(_, line)| words(line).any(|one| one == word)))
    };
    let gone: Vec<_> = ALLOWED_WORDS.iter().filter(|(place, word)| !stands(place, word)).collect();
    assert!(gone.is_empty(), "Take these off `ALLOWED_WORDS`: {gone:?}");
}

#[test]
fn the_private_types_exist() {
    let sources = sources("src");
    let defined: BTreeSet<&str> = sources
        .iter()
        .flat_map(Source::code)
        .filter_map(|(_, line)| {
            let mut parts = words(line.trim()).skip_while(|word| ["pub", "crate", "super", "", "in"].contains(word));
            matches!(parts.next(), Some("struct" | "enum" | "type")).then(|| parts.next()).flatten()
        })
        .collect();
    let gone: Vec<_> = PRIVATE.iter().filter(|name| !defined.contains(*name)).collect();
    assert!(gone.is_empty(), "No type has this name any more, so `PRIVATE` guards nothing: {gone:?}");
}

/// Public modules that the first page of their crate does not name.
fn modules_without_a_word(source: &Source) -> Vec<String> {
    if !source.path.ends_with("/src/lib.rs") {
        return Vec::new();
    }
    let page: Vec<&str> = source.text.lines().filter(|line| line.starts_with("//!")).flat_map(words).collect();
    source.complaints(|line| {
        let module = line.strip_prefix("pub mod ").and_then(|rest| words(rest).next());
        module.is_some_and(|module| !page.contains(&module))
    })
}

#[test]
fn each_crates_first_page_names_its_modules() {
    hold(modules_without_a_word, "Say on the crate's first page (the `//!` of its lib.rs) what is in this module:");
}

#[test]
fn each_rule_can_fail() {
    let cases: &[(&str, Rule, &str, &str)] = &[
        ("select", waits_outside_drivers, "bowline/src/node.rs", "    tokio::select! {"),
        ("select beside a driver", waits_outside_drivers, "actor/src/directory.rs", "    tokio::select! {"),
        ("frame name", frame_names_outside_protocol, "bowline/src/node.rs", r#"if event == "user.ack" {"#),
        ("event name", frame_names_outside_protocol, "core/src/link.rs", r#"json!({ "event": "agent.thinking" })"#),
        ("metric", metric_names_outside_metrics, "bowline/src/node.rs", r#"counter("bowline_lost_total")"#),
        ("close code", close_codes_outside_their_file, "bowline/src/drive/connection.rs", "close(4201)"),
        (
            "dialects",
            dialects_named_elsewhere,
            "bowline/src/session/turns.rs",
            "use bowline_core::dialect::ai_sdk::Mark;",
        ),
        (
            "seams",
            seams_that_are_gone_around,
            "store/src/disk/log.rs",
            "#![allow(clippy::disallowed_methods, reason = \"it is faster\")]",
        ),
        ("words of a dialect", dialects_named_elsewhere, "bowline/src/session/background.rs", r#"part["errorText"]"#),
        ("chunks", dialects_named_elsewhere, "bowline/src/http/guard.rs", r#"json!({ "type": "data-unauthorized" })"#),
        (
            "dialects of another endpoint",
            dialects_named_elsewhere,
            "bowline/src/http/chat/view.rs",
            "use bowline_core::dialect::responses::Wait;",
        ),
        ("untyped answers", answers_without_a_type, "bowline/src/http/admin.rs", "Json(json!({ \"ok\": true }))"),
        ("untyped answers, sorted", answers_without_a_type, "bowline/src/http/admin.rs", "-> Sorted<Value> {"),
        (
            "sessions",
            kinds_of_agent_in_sessions,
            "bowline/src/session/messages.rs",
            "use bowline_protocol::frame::PlanCommand;",
        ),
        ("revisions", revisions_between_the_edges, "hub/src/relay/call.rs", "use crate::revision::v2026;"),
        (
            "codecs",
            revisions_outside_their_codecs,
            "hub/src/upstream/pipe.rs",
            "let result = v2026::server_facts(&result);",
        ),
        (
            "versions",
            revisions_outside_their_codecs,
            "hub/src/downstream/session_http.rs",
            r#"let primed = version >= "2025-11-25";"#,
        ),
        ("revisions by another word", revisions_between_the_edges, "hub/src/tools/mod.rs", "backend.is_modern()"),
        ("first sentence", without_first_sentence, "core/src/link.rs", "use std::fmt;"),
        ("async core", machines_that_do_more_than_decide, "core/src/link.rs", "pub async fn f() {}"),
        ("clock in core", machines_that_do_more_than_decide, "core/src/link.rs", "let now = Instant::now();"),
        ("doing words", words_that_do_something, "protocol/src/id.rs", "use tokio::sync::mpsc;"),
        ("first page", modules_without_a_word, "core/src/lib.rs", "pub mod link;"),
        ("words", banned_words, "core/src/process_pool.rs", "    seats: BTreeMap<SlotId, ProcessSlot>,"),
        ("words in a type", banned_words, "bowline/src/session/attach.rs", "struct GuestList { text: &'static str }"),
        ("todo", unfinished, "store/src/memory.rs", "todo!()"),
        ("ignored test", unfinished, "core/tests/x.rs", "#[ignore = \"slow\"]"),
        ("display", private_types_that_show_themselves, "bowline/src/auth/mod.rs", "impl fmt::Display for Secret {"),
        (
            "debug",
            derived_debug_of_private_types,
            "bowline/src/auth/mod.rs",
            "#[derive(Clone, Debug)]\npub struct Secret(String);",
        ),
    ];
    for (what, rule, path, text) in cases {
        let breaks = Source { path: (*path).to_owned(), text: (*text).to_owned() };
        assert_eq!(rule(&breaks).len(), 1, "the rule on {what} does not see that it is broken");
        let in_tests = Source { text: format!("//! x\n#[cfg(test)]\nmod tests {{\n{text}\n}}"), ..breaks };
        if !["todo", "ignored test"].contains(what) {
            assert!(rule(&in_tests).is_empty(), "the rule on {what} reaches into tests");
        }
    }
    let quiet = "    let name = \"seat\"; // Nobody has a chair.";
    let quiet = Source { path: "core/src/link.rs".to_owned(), text: quiet.to_owned() };
    assert_eq!(banned_words(&quiet), [""; 0], "texts and comments are not names");
    let long = Source { path: "core/src/link.rs".into(), text: "//! x\n".repeat(LINES_MAX + 1) };
    assert_eq!(too_long(&long).len(), 1);
    let module = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    let cycle = [
        module("core/src/lib.rs", "use crate::a;\npub use e::{\n    E,\n    one_of,\n};\npub use f::F;"),
        module("core/src/a.rs", "use crate::{d::{x, y}, b};"),
        module("core/src/b/mod.rs", "//! crate::a is below."),
        module("core/src/b/inner.rs", "fn f() { crate::c::g() }"),
        module("core/src/c.rs", "use crate::a::A;\n#[cfg(test)]\nmod tests {\nuse crate::d;\n}"),
        module("core/src/d.rs", ""),
        module("core/src/e.rs", "use crate::{F, d};"),
        module("core/src/f.rs", "use crate::one_of;"),
    ];
    assert_eq!(on_cycles(&imports(&cycle)["core"]), ["a", "b", "c", "e", "f"].map(str::to_owned).into());
    let twice = [
        module("core/src/link.rs", "pub struct Link;\nstruct Phase;"),
        module("client/src/link.rs", "pub(super) enum Link {}\npub enum Phase {}"),
    ];
    assert_eq!(shared_type_names(&twice).keys().collect::<Vec<_>>(), ["Link"]);
    let manifest = "[dependencies]\nbowline-store.workspace = true\ntokio = \"1\"";
    assert_eq!(forbidden_dependencies("core", manifest).len(), 2);
    assert!(forbidden_dependencies("bowline", manifest).is_empty());
    assert_eq!(forbidden_dependencies("bowline", "[dependencies]\nreqwest = \"0.13\"").len(), 1);
    assert!(forbidden_dependencies("bowline", "[dev-dependencies]\nreqwest = \"0.13\"").is_empty());
}
