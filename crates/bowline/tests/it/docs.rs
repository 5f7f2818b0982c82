//! Holds the documents to the code: what a client or operator can meet is described, and what is described exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use bowline_protocol::frame::ClientFrame;
use bowline_protocol::{CloseCode, ErrorCode, event, frame};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path} cannot be read: {error}"))
}

/// Fails with everything of `wanted` that no document in `places` has between backticks.
fn described<'a>(places: &[&str], wanted: impl IntoIterator<Item = &'a str>, what: &str) {
    let text: String = places.iter().map(|place| read(place)).collect();
    let missing: Vec<&str> = wanted.into_iter().filter(|name| !text.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "Describe {what} in {}: {missing:?}", places.join(" or "));
}

/// The pages that say what is on the wire: the minimal client, and the whole by reader.
const PROTOCOL: &[&str] = &[
    "PROTOCOL.md",
    "docs/protocol/authentication.md",
    "docs/protocol/reference.md",
    "docs/protocol/state.md",
    "docs/protocol/tasks.md",
    "docs/protocol/websocket.md",
];

/// Every document, as a path relative to the root.
fn documents() -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["", "docs", "docs/errors", "docs/protocol"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                found.push(Path::new(folder).join(name).to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_frame_event_and_close_code_is_in_the_protocol() {
    described(PROTOCOL, frame::names::CLIENT.iter().copied(), "the client frame");
    described(PROTOCOL, frame::names::CONTROL.iter().copied(), "the control frame");
    described(PROTOCOL, event::names::ALL.iter().copied(), "the event");
    described(PROTOCOL, CloseCode::ALL.iter().map(|code| code.name()), "the close code");
}

#[test]
fn every_error_code_has_its_page_and_its_row() {
    let protocol = read("docs/protocol/reference.md");
    let index = read("docs/errors/README.md");
    for code in ErrorCode::ALL {
        let page = read(&format!("docs/errors/{code}.md"));
        let action = format!("`{}`", code.action().as_str());
        assert!(page.starts_with(&format!("# {code}\n")), "docs/errors/{code}.md must begin with its code");
        assert!(page.contains(&action), "docs/errors/{code}.md must name its recovery action {action}");
        assert!(page.contains(&format!("HTTP {}", code.status())), "docs/errors/{code}.md must name its HTTP status");
        assert!(index.contains(&format!("({code}.md)")), "docs/errors/README.md must link to {code}.md");
        let row = protocol.lines().find(|line| line.starts_with(&format!("| [`{code}`](../errors/{code}.md)")));
        let row = row.unwrap_or_else(|| panic!("docs/protocol/reference.md must have a row for {code}"));
        assert!(row.contains(&action), "the row for {code} in docs/protocol/reference.md must say {action}: {row}");
    }
}

#[test]
fn no_page_describes_a_code_that_does_not_exist() {
    let known: BTreeSet<String> = ErrorCode::ALL.iter().map(|code| format!("docs/errors/{code}.md")).collect();
    let pages = documents().into_iter().filter(|path| path.starts_with("docs/errors/") && !path.ends_with("README.md"));
    let stale: Vec<String> = pages.filter(|page| !known.contains(page)).collect();
    assert!(stale.is_empty(), "Remove the pages of codes that are gone: {stale:?}");
}

#[test]
fn every_metric_is_described() {
    described(&["docs/metrics.md"], bowline::metrics::ALL.iter().map(|(name, _)| *name), "the metric");
}

#[test]
fn every_endpoint_is_described() {
    described(&["README.md", "docs/operations.md", "docs/protocol/tasks.md"], bowline::http::paths(), "the path");
    described(&["README.md", "docs/operations.md"], bowline::http::openapi::PATHS.iter().copied(), "the path");
}

#[test]
fn every_endpoint_of_the_responses_api_is_in_the_protocol_and_in_its_document() {
    for document in ["docs/protocol/tasks.md", "docs/responses.md"] {
        let text = read(document);
        // A method stands before the path.
        let missing = bowline::http::responses::PATHS.iter().filter(|path| !text.contains(&format!(" {path}`")));
        let missing: Vec<_> = missing.collect();
        assert!(missing.is_empty(), "Describe in {document}: {missing:?}");
    }
}

#[test]
fn every_endpoint_of_the_chat_api_is_in_the_protocol_and_in_openapi() {
    let protocol = read("docs/protocol/tasks.md");
    let document = bowline::http::openapi::document(false, &[]);
    let mut missing = Vec::new();
    for path in bowline::http::chat::PATHS {
        let Some(methods) = document["paths"][path].as_object() else {
            missing.push(format!("{path} in openapi.json"));
            continue;
        };
        for method in methods.keys().map(|method| method.to_uppercase()) {
            // A query may follow the path in the table.
            let told = ["`", "?"].iter().any(|after| protocol.contains(&format!("`{method} {path}{after}")));
            if !told {
                missing.push(format!("{method} {path} in docs/protocol/tasks.md"));
            }
        }
    }
    assert!(missing.is_empty(), "Describe: {missing:?}");
}

/// The sources of the hub, as one text.
fn hub_sources() -> String {
    let mut folders = vec![root().join("crates/hub/src")];
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => text.push_str(&fs::read_to_string(path).unwrap()),
            }
        }
    }
    text
}

/// What stands after `before` and up to the next quote, wherever it consists of these letters only.
fn quoted<'a>(text: &'a str, before: &str, letters: fn(char) -> bool) -> BTreeSet<&'a str> {
    let found = text.match_indices(before).filter_map(|(at, _)| text[at + before.len()..].split_once('"'));
    found.map(|(word, _)| word).filter(|word| !word.is_empty() && word.chars().all(letters)).collect()
}

#[test]
fn every_event_and_every_code_of_the_hub_is_described() {
    let sources = hub_sources();
    let small = |c: char| c.is_ascii_lowercase() || c == '_';
    let mut events = BTreeSet::from(["notification".to_owned(), "log".to_owned()]);
    for family in ["server_", "task_", "elicitation_", "sampling_"] {
        events.extend(quoted(&sources, &format!("\"{family}"), small).iter().map(|rest| format!("{family}{rest}")));
    }
    events.remove("task_id");
    assert!(events.len() >= 20, "the events are not found any more: {events:?}");
    described(&["docs/hub.md"], events.iter().map(String::as_str), "the event");
    let mut codes = quoted(&sources, "\"code\": \"", |c| c.is_ascii_uppercase() || c == '_');
    codes.insert(bowline_hub::outcome::OUTCOME_UNKNOWN);
    assert!(codes.len() >= 7, "the codes are not found any more: {codes:?}");
    described(&["docs/hub.md"], codes, "the code");
    let keys: Vec<String> = quoted(&sources, "\"bowline/", small).iter().map(|key| format!("bowline/{key}")).collect();
    described(&["docs/hub.md"], keys.iter().map(String::as_str), "the key of `_meta`");
}

#[test]
fn every_tool_of_the_hub_is_described_with_its_parameters() {
    let source = read("crates/hub/src/catalogue/hub_tools.rs");
    let (_, rest) = source.split_once("const TOOLS").expect("the list of tools");
    let (list, _) = rest.split_once("\n];").expect("its end");
    // A parameter that several tools have stands there by a name of its own.
    let list = list.replace("HANDLE", "\"handle?:\"");
    let page = read("docs/hub.md");
    let (mut tools, mut row, mut missing) = (0, "", Vec::new());
    let is_name = |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    for word in list.split('"').skip(1).step_by(2) {
        match word.split_once(':') {
            Some((name, _)) if is_name(name.trim_end_matches('?')) && !row.contains(&format!("`{name}`")) => {
                missing.push(format!("{name} in {row:?}"));
            }
            None if is_name(word) => {
                tools += 1;
                let named =
                    |line: &&str| line.split('|').nth(1).is_some_and(|cell| cell.contains(&format!("`{word}`")));
                row = page.lines().filter(|line| line.starts_with("| `")).find(named).unwrap_or_default();
                if row.is_empty() {
                    missing.push(word.to_owned());
                }
            }
            // A parameter that is there, or a description.
            _ => {}
        }
    }
    assert!(tools >= 26, "the tools are not found any more: {tools}");
    assert!(missing.is_empty(), "Describe the hub's tools in docs/hub.md: {missing:?}");
}

#[test]
fn every_directive_of_the_demo_agent_is_in_the_readme() {
    let directives = bowline::agent::demo::DIRECTIVES.iter().map(|(directive, _)| *directive);
    described(&["README.md"], directives, "the directive");
}

#[test]
fn the_readme_names_the_command_that_ci_runs() {
    let ci = read(".ci/run");
    let command = ci.lines().find_map(|line| line.strip_prefix("exec ")).expect(".ci/run ends with `exec COMMAND`");
    assert!(root().join(command).is_file(), ".ci/run calls {command}, which does not exist");
    let named = read("README.md").lines().any(|line| line.split('#').next().unwrap_or_default().trim() == command);
    assert!(named, "README.md must show `{command}` on a line of its own: it is what .ci/run calls");
}

/// The targets of the links in a document.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// How a heading is addressed, as GitHub does it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> Vec<String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// Takes `..` and `.` out of a path without asking the disk.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
        path
    })
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for document in documents() {
        let text = read(&document);
        for link in links(&text) {
            let (path, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let folder = Path::new(&document).parent().unwrap();
            let target = if path.is_empty() { PathBuf::from(&document) } else { plain(&folder.join(path)) };
            let exists = root().join(&target).exists();
            let found = fragment.is_empty()
                || target.extension().is_none_or(|extension| extension != "md")
                || exists && anchors(&read(target.to_str().unwrap())).iter().any(|anchor| anchor == fragment);
            if !exists || !found {
                broken.push(format!("{document} → {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "Mend these links:\n  {}", broken.join("\n  "));
}

/// The JSON values in the ```json blocks of a document.
fn examples(document: &str) -> Vec<Value> {
    let text = read(document);
    let blocks = text.split("```json\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(block, _)| block);
    let values = blocks.flat_map(|block| serde_json::Deserializer::from_str(block).into_iter::<Value>());
    values.map(|value| value.unwrap_or_else(|error| panic!("{document}: an example is not JSON: {error}"))).collect()
}

#[test]
fn every_example_frame_is_one_that_exists() {
    for document in documents() {
        for example in examples(&document) {
            let Some(event) = example["event"].as_str() else { continue };
            // An ack may carry a `seq` of its own; only what came from a log has an `event_id`.
            let logged = example["event_id"].is_string();
            if frame::names::CLIENT.contains(&event) && !logged {
                let read = ClientFrame::parse(&example.to_string(), 64);
                assert!(read.is_ok(), "{document}: the server would refuse this example: {read:?}\n{example}");
                continue;
            }
            let known = if logged { event::names::ALL } else { frame::names::CONTROL };
            let refusal = !logged && event == event::names::ERROR;
            assert!(known.contains(&event) || refusal, "{document}: no such frame: {example}");
            if logged {
                let id = example["event_id"].as_str().unwrap_or_default();
                assert!(
                    id.ends_with(&format!("-{}", example["seq"])),
                    "{document}: event_id and seq differ: {example}"
                );
            }
        }
    }
}

#[test]
fn every_example_of_an_error_has_the_action_of_its_code() {
    let mut pages_with_examples = 0;
    for document in documents() {
        let page = ErrorCode::ALL.iter().find(|code| document == format!("docs/errors/{code}.md"));
        let mut shown = 0;
        for example in examples(&document) {
            let facts = if example["metadata"].is_object() { &example["metadata"] } else { &example };
            let told = ["error_code", "code"].iter().find_map(|key| facts[key].as_str());
            let Some(told) = told else { continue };
            let code = ErrorCode::ALL.iter().find(|code| code.as_str() == told);
            let code = code.unwrap_or_else(|| panic!("{document}: there is no code {told}"));
            assert_eq!(facts["recovery_action"], code.action().as_str(), "{document}: {example}");
            shown += u32::from(Some(code) == page);
        }
        if let Some(code) = page {
            assert!(shown > 0, "docs/errors/{code}.md must show a frame with its code");
            pages_with_examples += 1;
        }
    }
    assert_eq!(pages_with_examples, ErrorCode::ALL.len());
}

/// The example of docs/agents.md. It stands here so that it is compiled; the page must show the same lines.
mod example {
    // example: begin
    use async_trait::async_trait;
    use bowline_api::{Agent, AgentError, Answer, Confirm, Input, OpenQuestion, Reply, Run, RunResult};
    use serde_json::json;
    use std::time::Duration;

    pub struct Deployer;

    #[async_trait]
    impl Agent for Deployer {
        async fn run(&self, run: Run) -> RunResult {
            let Input::Message { text: target } = &run.input else {
                return Err(AgentError::failed("It takes messages only."));
            };
            run.emit.thinking("A build comes first.", "building").await?;
            let step = run.emit.tool_call("Building", "build", &json!({ "target": target }), None).await?;
            run.pause(Duration::from_secs(1)).await?;
            let facts = json!({ "tool": "build", "status": "success", "duration_ms": 1000 });
            run.emit.tool_result(step, "Built", &facts).await?;
            // Whatever is needed after the answer goes into the state: this process may be gone by then.
            let confirm = Confirm::custom(format!("Deploy {target}?"), json!({ "target": target }));
            let reply = run.emit.confirm(confirm).await?;
            deploy(&run, target, &reply).await
        }

        async fn answered(&self, run: Run, question: OpenQuestion, reply: Reply) -> RunResult {
            let target = question.state["target"].as_str().unwrap_or_default();
            deploy(&run, target, &reply).await
        }
    }

    async fn deploy(run: &Run, target: &str, reply: &Reply) -> RunResult {
        if !reply.confirmed {
            return Ok(Answer::text(format!("Then {target} stays where it is.")));
        }
        run.emit.partial_answer(format!("{target} is deployed.")).await?;
        Ok(Answer::text(format!("{target} is deployed.")))
    }
    // example: end
}

#[test]
fn the_example_agent_is_one_that_compiles() {
    let _: &dyn bowline_api::Agent = &example::Deployer;
    let source = include_str!("docs.rs");
    let (_, rest) = source.split_once("    // example: begin\n").expect("the begin mark");
    let (example, _) = rest.split_once("    // example: end\n").expect("the end mark");
    let lines = example.lines().map(|line| line.strip_prefix("    ").unwrap_or(line));
    let shown: String = lines.flat_map(|line| [line, "\n"]).collect();
    assert!(read("docs/agents.md").contains(&shown), "docs/agents.md must show exactly:\n{shown}");
}
