//! The hub's tools are the same on every endpoint: over HTTP and over stdio, for clients of both eras, field by field.

use std::collections::BTreeSet;
use std::sync::Arc;

use bowline_hub::{Exchange, Hub, Route};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support;
use crate::support::wire::Wire;
use crate::support::{Client, Fixture, PATIENCE, hub, modern};

/// What is another each time: names that were made up, and times.
const MADE_UP: &[&str] =
    &["id", "taskId", "handle", "last_event_id", "createdAt", "endedAt", "connectedAt", "nextRetryMs"];
/// Their results are somebody else's, given as they are.
const PASSED_ON: &[&str] = &["execute_tool", "get_task_result"];

/// One client: a face and an era.
struct Face {
    way: Way,
    era: Exchange,
    /// What a client without a session passes with each call.
    handle: Option<Value>,
    told: Vec<(String, Value)>,
    succeeded: BTreeSet<String>,
    refused: BTreeSet<String>,
}

enum Way {
    Http(Client),
    Stdio(Wire),
}

/// A call that is under way.
enum Begun {
    Http(JoinHandle<Value>),
    Stdio(u64),
}

impl Face {
    async fn open(hub: &Arc<Hub>, era: Exchange, http: bool) -> Face {
        let way = match (http, era) {
            (true, Exchange::Session) => Way::Http(Client::open(hub, "alice", Route::All, json!({})).await.0),
            (true, Exchange::Stateless) => Way::Http(Client {
                hub: hub.clone(),
                who: support::principal("alice"),
                route: Route::All,
                session: String::new(),
            }),
            (false, era) => {
                let mut wire = Wire::open(hub, "alice", Route::All);
                if era == Exchange::Session {
                    wire.initialize(json!({})).await;
                }
                Way::Stdio(wire)
            }
        };
        let (succeeded, refused) = Default::default();
        let mut face = Face { way, era, handle: None, told: Vec::new(), succeeded, refused };
        let first =
            face.ask("tools/call", json!({ "name": "await_activity", "arguments": { "timeout_ms": 100 } })).await;
        if era == Exchange::Stateless {
            face.handle = Some(first["result"]["structuredContent"]["handle"].clone());
        }
        face
    }

    async fn begin(&mut self, method: &str, params: Value) -> Begun {
        match (&mut self.way, self.era) {
            (Way::Http(client), era) => {
                let (client, method) = (client.clone(), method.to_owned());
                Begun::Http(tokio::spawn(async move {
                    if era == Exchange::Session {
                        return client.ask(&method, params).await;
                    }
                    let answer = modern(&client.hub, "alice", &Route::All, &method, params, json!({})).await;
                    answer.messages().await.pop().unwrap()
                }))
            }
            (Way::Stdio(wire), Exchange::Session) => Begun::Stdio(wire.begin(method, params).await),
            (Way::Stdio(wire), Exchange::Stateless) => Begun::Stdio(wire.begin_modern(method, params, json!({})).await),
        }
    }

    async fn end(&mut self, begun: Begun) -> Value {
        let mut answer = match (begun, &mut self.way) {
            (Begun::Http(answer), _) => answer.await.unwrap(),
            (Begun::Stdio(id), Way::Stdio(wire)) => wire.response(id).await,
            (Begun::Stdio(_), Way::Http(_)) => unreachable!(),
        };
        // The id of a request is its client's own.
        answer.as_object_mut().unwrap().remove("id");
        answer
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let begun = self.begin(method, params).await;
        self.end(begun).await
    }

    fn params(&self, tool: &str, mut arguments: Value) -> Value {
        if let Some(handle) = &self.handle {
            arguments["handle"] = handle.clone();
        }
        json!({ "name": tool, "arguments": arguments })
    }

    /// Calls a tool and keeps what it came to, for the comparison; its structured content.
    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let params = self.params(tool, arguments);
        let answer = self.ask("tools/call", params).await;
        self.keep(tool, answer)
    }

    fn keep(&mut self, tool: &str, mut answer: Value) -> Value {
        let result = &mut answer["result"];
        let structured = result["structuredContent"].clone();
        let failed = result["isError"] == true;
        if !structured.is_null() {
            let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
            assert_eq!(text, structured, "{tool}: the text and the structure say the same");
            result["content"][0]["text"] = "as structured".into();
        } else {
            assert!(PASSED_ON.contains(&tool) && !failed, "{tool} has no structure: {result}");
        }
        let of_its_kind = if failed { &mut self.refused } else { &mut self.succeeded };
        of_its_kind.insert(tool.to_owned());
        level(&mut answer);
        self.told.push((tool.to_owned(), answer));
        structured
    }

    /// Waits until a tool says so, and keeps only that.
    async fn until(&mut self, tool: &str, arguments: Value, done: impl Fn(&Value) -> bool) -> Value {
        let started = std::time::Instant::now();
        loop {
            let params = self.params(tool, arguments.clone());
            let answer = self.ask("tools/call", params).await;
            if done(&answer["result"]["structuredContent"]) {
                return self.keep(tool, answer);
            }
            assert!(started.elapsed() < PATIENCE, "{tool} never said so: {answer}");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// Everything that has happened so far; the cursor after it.
    async fn all_events(&mut self) -> (Vec<Value>, Value) {
        let (mut all, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let params = self.params("await_activity", json!({ "timeout_ms": 200, "last_event_id": cursor }));
            let seen = self.ask("tools/call", params).await["result"]["structuredContent"].clone();
            cursor = seen["last_event_id"].clone();
            all.extend(seen["events"].as_array().unwrap().clone());
            if seen["triggered_by"] == "timeout" {
                return (all, cursor);
            }
        }
    }
}

/// Makes equal what must differ.
fn level(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if MADE_UP.contains(&name.as_str()) && !member.is_null() {
                    *member = format!("some {name}").into();
                } else {
                    level(member);
                }
            }
        }
        Value::Array(entries) => entries.iter_mut().for_each(level),
        _ => {}
    }
}

async fn servers(face: &mut Face, url: &str) {
    face.call("list_servers", json!({})).await;
    let added = face.call("add_server", json!({ "name": "added", "url": url })).await;
    assert_eq!(added["status"], "connected", "{added}");
    face.call("add_server", json!({ "name": "b", "url": url })).await;
    face.call("add_server", json!({ "name": "program", "command": "true" })).await;
    face.call("add_server", json!({ "name": "neither" })).await;
    face.call("reconnect_server", json!({ "name": "added" })).await;
    face.call("reconnect_server", json!({ "name": "nobody" })).await;
    face.call("remove_server", json!({ "name": "added" })).await;
    face.call("remove_server", json!({ "name": "added" })).await;
    face.call("remove_server", json!({ "name": "b" })).await;
}

async fn offers(face: &mut Face) {
    for tool in ["list_tools", "list_resources", "list_resource_templates", "list_prompts"] {
        face.call(tool, json!({ "server": "b" })).await;
        face.call(tool, json!({ "tool": "e*" })).await;
        face.call(tool, json!({ "server": 5 })).await;
    }
    face.call("read_resource", json!({ "server": "b", "uri": "test://one" })).await;
    face.call("read_resource", json!({ "server": "b" })).await;
    face.call("get_prompt", json!({ "server": "b", "name": "greet" })).await;
    face.call("get_prompt", json!({ "server": "nobody", "name": "greet" })).await;
    for tool in ["subscribe_resource", "unsubscribe_resource"] {
        face.call(tool, json!({ "server": "b", "uri": "test://one" })).await;
        face.call(tool, json!({ "uri": "test://one" })).await;
    }
}

/// A server asks twice: once it is answered, once it is refused.
async fn questions(face: &mut Face, asks: &str, [list, respond, cancel]: [&str; 3], answer: Value) {
    face.call(list, json!({ "server": "nobody" })).await;
    face.call(list, json!({ "server": {} })).await;
    for answered in [true, false] {
        let params = face.params("execute_tool", json!({ "server": "b", "tool": asks }));
        let asking = face.begin("tools/call", params).await;
        let one = |seen: &Value| seen["requests"].as_array().is_some_and(|all| all.len() == 1);
        let seen = face.until(list, json!({}), one).await;
        let mut arguments = answer.clone();
        arguments["id"] = seen["requests"][0]["id"].clone();
        match answered {
            true => face.call(respond, arguments.clone()).await,
            false => face.call(cancel, json!({ "id": arguments["id"], "reason": "no" })).await,
        };
        let ended = face.end(asking).await;
        face.told.push((format!("{asks}, {answered}"), ended));
        arguments["id"] = "nobody's".into();
        face.call(respond, arguments).await;
        face.call(respond, json!({ "id": "nobody's" })).await;
        face.call(cancel, json!({ "id": "nobody's" })).await;
    }
}

async fn calls(face: &mut Face) {
    face.call("execute_tool", json!({ "server": "b", "tool": "echo", "args": { "text": "hi" } })).await;
    face.call("execute_tool", json!({ "server": "b", "tool": "odd" })).await;
    face.call("execute_tool", json!({ "server": "nobody", "tool": "echo" })).await;
    face.call("execute_tool", json!({ "server": "b", "tool": "echo", "args": "hi" })).await;
    let args = json!({ "id": "x", "ms": 0 });
    let short =
        face.call("execute_tool", json!({ "server": "b", "tool": "count", "args": args, "as_task": true })).await;
    let task = json!({ "task_id": short["taskId"] });
    face.until("get_task", task.clone(), |shown| shown["status"] == "completed").await;
    face.call("get_task_result", task.clone()).await;
    let args = json!({ "id": "y", "ms": 600_000 });
    let long =
        face.call("execute_tool", json!({ "server": "b", "tool": "count", "args": args, "timeout_ms": 100 })).await;
    face.call("get_task_result", json!({ "task_id": long["taskId"] })).await;
    face.call("cancel_task", json!({ "task_id": long["taskId"] })).await;
    face.call("cancel_task", task).await;
    let two = |seen: &Value| seen["tasks"].as_array().is_some_and(|all| all.len() == 2);
    face.until("list_tasks", json!({}), two).await;
    let no_handle = json!({ "name": "list_tasks", "arguments": { "handle": 5 } });
    let answer = face.ask("tools/call", no_handle).await;
    face.keep("list_tasks", answer);
    for tool in ["get_task", "get_task_result", "cancel_task"] {
        face.call(tool, json!({ "task_id": "nobody's" })).await;
    }
}

async fn events(face: &mut Face) {
    let (mut all, cursor) = face.all_events().await;
    // The first lists of `b` may be told just before the client is there, or just after.
    all.retain(|event| {
        event["server"] != "b" || !event["data"]["method"].as_str().unwrap_or("").ends_with("list_changed")
    });
    // What happens at the same time may be told in any order.
    all.sort_by_key(|event| (event["type"].to_string(), event["server"].to_string(), event["data"].to_string()));
    let mut kinds: Vec<Value> = Vec::new();
    for mut event in all {
        level(&mut event);
        event["data"]["downMs"] = Value::Null;
        if !kinds.contains(&event) {
            kinds.push(event);
        }
    }
    assert!(kinds.iter().any(|event| event["type"] == "task_cancelled"), "{kinds:?}");
    face.told.push(("events".to_owned(), kinds.into()));
    face.call("await_activity", json!({ "timeout_ms": 100, "last_event_id": cursor })).await;
    face.call("await_activity", json!({ "timeout_ms": 99 })).await;
    face.call("await_activity", json!({})).await;
    for tool in ["get_notifications", "get_logs"] {
        face.call(tool, json!({ "server": "b", "last_event_id": cursor })).await;
        face.call(tool, json!({ "last_event_id": "nobody's" })).await;
    }
}

/// Everything that a client can do with the tools, in one order.
async fn story(hub: &Arc<Hub>, era: Exchange, http: bool, url: &str) -> Face {
    let mut face = Face::open(hub, era, http).await;
    let listed = face.ask("tools/list", json!({})).await;
    face.told.push(("tools/list".to_owned(), listed));
    servers(&mut face, url).await;
    offers(&mut face).await;
    let written = json!({ "role": "assistant", "content": { "type": "text", "text": "written" }, "model": "m" });
    let sampling = ["get_sampling_requests", "respond_to_sampling", "cancel_sampling_request"];
    questions(&mut face, "sample", sampling, json!({ "result": written })).await;
    let elicitation = ["get_elicitations", "respond_to_elicitation", "cancel_elicitation_request"];
    questions(&mut face, "ask", elicitation, json!({ "action": "accept", "content": { "name": "Ann" } })).await;
    calls(&mut face).await;
    events(&mut face).await;
    face
}

/// Every tool was called, and refused where it takes anything.
fn covered(face: &Face) {
    let tools = face.told[0].1["result"]["tools"].as_array().unwrap().clone();
    let ours = tools.iter().filter(|tool| !tool["name"].as_str().unwrap().starts_with("b__"));
    for tool in ours {
        let name = tool["name"].as_str().unwrap();
        assert!(face.succeeded.contains(name), "{name} never succeeded here: the story needs it");
        let takes = !tool["inputSchema"]["properties"].as_object().unwrap().is_empty();
        assert!(!takes || face.refused.contains(name), "{name} was never refused here: the story needs it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node.js"]
async fn every_tool_gives_the_same_over_http_and_over_stdio_in_both_eras() {
    for backend in ["legacy", "modern"] {
        let fixture = Fixture::start(&[&format!("--era={backend}")]).await;
        for era in [Exchange::Session, Exchange::Stateless] {
            // Each has a hub of its own, so that nobody sees what the other left behind.
            let hubs = (hub(&[("b", fixture.spec())]).await, hub(&[("b", fixture.spec())]).await);
            let url = fixture.url();
            let (http, stdio) = tokio::join!(story(&hubs.0, era, true, &url), story(&hubs.1, era, false, &url));
            covered(&http);
            assert_eq!(http.told.len(), stdio.told.len());
            for ((tool, over_http), (_, over_stdio)) in http.told.iter().zip(&stdio.told) {
                assert_eq!(over_http, over_stdio, "{tool}, a client of the era {era:?}, a {backend} backend");
            }
        }
    }
}
