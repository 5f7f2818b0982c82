//! The document at `/openapi.json` and the endpoints it describes; pages of other origins; how HTTP says no.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bowline::http::{self, chat, openapi, responses};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::{PATIENCE, Server, config};

/// Doors that speak no HTTP that a document could describe: the page for people, WebSockets, and MCP.
const UNDESCRIBED: [&str; 6] = ["/", "/assets/{name}", "/ws", "/produce", "/mcp", "/mcp/{server}"];

async fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let mut request =
        crate::support::http_client().build().unwrap().request(method, format!("http://{}{path}", server.address));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    tokio::time::timeout(PATIENCE, request.send()).await.expect("an answer in time").unwrap()
}

fn header(response: &Response, name: &str) -> Option<String> {
    response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
}

fn words(list: Option<String>) -> BTreeSet<String> {
    list.unwrap_or_default().split(',').map(|word| word.trim().to_ascii_lowercase()).collect()
}

/// The body, which must be JSON.
async fn json_of(response: Response) -> Value {
    serde_json::from_str(&response.text().await.unwrap()).expect("the body is JSON")
}

async fn document(server: &Server) -> Value {
    let response = ask(server, "GET", "/openapi.json", &[]).await;
    assert_eq!(response.status(), 200);
    json_of(response).await
}

#[tokio::test]
async fn the_document_and_the_router_have_the_same_paths_and_methods() {
    let server = Server::start().await;
    let mut routed = BTreeMap::new();
    for path in http::paths()
        .chain(chat::PATHS.iter().chain(responses::PATHS).chain(openapi::PATHS).copied())
        .filter(|path| !UNDESCRIBED.contains(path))
    {
        let parts = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
        let concrete = parts.collect::<Vec<_>>().join("/");
        let refused = ask(&server, "TRACE", &concrete, &[]).await;
        assert_eq!(refused.status(), 405, "{path}");
        let mut methods = words(header(&refused, "allow"));
        methods.remove("head");
        let problem: Value = json_of(refused).await;
        let code = if path.starts_with("/v1/") { &problem["error"]["code"] } else { &problem["code"] };
        assert_eq!(code, "NOT_SUPPORTED", "{path}");
        routed.insert((*path).to_owned(), methods);
    }
    let document = document(&server).await;
    let described: BTreeMap<String, BTreeSet<String>> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(path, methods)| (path.clone(), methods.as_object().unwrap().keys().cloned().collect()))
        .collect();
    assert_eq!(described, routed, "left: /openapi.json, right: the router");
    server.stop().await;
}

/// Calls `see` with every object in a value.
fn walk(value: &Value, see: &mut impl FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Object(fields) => {
            see(fields);
            fields.values().for_each(|value| walk(value, see));
        }
        Value::Array(items) => items.iter().for_each(|value| walk(value, see)),
        _ => {}
    }
}

#[test]
fn every_reference_in_the_document_leads_somewhere() {
    let document = openapi::document(true, &["demo"]);
    let mut used = BTreeSet::new();
    walk(&document, &mut |fields| {
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            let target = document.pointer(reference.trim_start_matches('#'));
            assert!(target.is_some(), "{reference} leads nowhere");
            used.insert(reference.to_owned());
        }
    });
    for schema in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(used.contains(&format!("#/components/schemas/{schema}")), "nothing uses the schema {schema}");
    }
}

#[test]
fn links_and_tags_name_what_exists_and_every_operation_has_a_name_of_its_own() {
    let document = openapi::document(true, &["demo"]);
    let tags: Vec<&Value> = document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
    let operations =
        || document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
    let mut names = BTreeSet::new();
    for operation in operations() {
        let name = operation["operationId"].as_str().unwrap();
        assert!(names.insert(name), "{name} is there twice");
        assert!(tags.contains(&&operation["tags"][0]), "{name} has a tag that is not described");
    }
    walk(&document["paths"], &mut |fields| {
        let links = fields.get("links").and_then(Value::as_object);
        for link in links.into_iter().flat_map(|links| links.values()) {
            assert!(names.contains(link["operationId"].as_str().unwrap()), "{link}");
        }
    });
}

#[test]
fn credentials_are_asked_for_only_where_they_are_needed() {
    let open = openapi::document(false, &[]);
    assert!(open["components"].get("securitySchemes").is_none());
    let closed = openapi::document(true, &[]);
    for (path, methods) in closed["paths"].as_object().unwrap() {
        for operation in methods.as_object().unwrap().values() {
            let guarded = path.starts_with("/api/") || path.starts_with("/v1/");
            assert_eq!(operation.get("security").is_some(), guarded, "{path}");
            assert_eq!(operation["responses"].get("401").is_some(), guarded, "{path}");
        }
    }
}

fn with_origin(origin: &str) -> bowline::config::Config {
    let mut config = config();
    config.auth.origins = vec![origin.to_owned()];
    config
}

#[tokio::test]
async fn a_page_of_an_allowed_origin_may_ask_and_read_the_answer() {
    let server = Server::with(with_origin("https://app.example")).await;
    let page = ("origin", "https://app.example");
    for (path, method) in [("/api/chat/sessions", "POST"), ("/api/chat/sessions/x", "DELETE"), ("/openapi.json", "GET")]
    {
        let asks =
            [page, ("access-control-request-method", method), ("access-control-request-headers", "authorization")];
        let answer = ask(&server, "OPTIONS", path, &asks).await;
        assert_eq!(answer.status(), 204, "{path}");
        assert_eq!(header(&answer, "access-control-allow-origin").as_deref(), Some("https://app.example"));
        assert!(words(header(&answer, "access-control-allow-methods")).contains(&method.to_ascii_lowercase()));
        let headers = words(header(&answer, "access-control-allow-headers"));
        for name in [
            "authorization",
            "content-type",
            "last-event-id",
            "idempotency-key",
            "producer-id",
            "producer-seq",
            "bowline-resume-token",
        ] {
            assert!(headers.contains(name), "{path}: a page may not send {name}");
        }
        assert_eq!(header(&answer, "vary").as_deref(), Some("origin"));
        assert_eq!(header(&answer, "access-control-allow-credentials"), None);
    }
    let made = ask(&server, "POST", "/api/chat/sessions", &[page]).await;
    assert_eq!(made.status(), 201);
    assert_eq!(header(&made, "access-control-allow-origin").as_deref(), Some("https://app.example"));
    let shown = words(header(&made, "access-control-expose-headers"));
    for name in
        ["x-workflow-run-id", "x-workflow-stream-tail-index", "location", "bowline-session-id", "bowline-resume-token"]
    {
        assert!(shown.contains(name), "a page may not read {name}");
    }
    // A refusal can be read too, or the page would not know what to do.
    let missing = ask(&server, "GET", "/api/chat/tasks/none", &[page]).await;
    assert_eq!(missing.status(), 404);
    assert_eq!(header(&missing, "access-control-allow-origin").as_deref(), Some("https://app.example"));
    server.stop().await;
}

#[tokio::test]
async fn the_servers_own_page_may_ask_too() {
    let server = Server::start().await;
    let own = format!("http://{}", server.address);
    let asks = [("origin", own.as_str()), ("access-control-request-method", "GET")];
    let answer = ask(&server, "OPTIONS", "/api/chat/sessions", &asks).await;
    assert_eq!((answer.status().as_u16(), header(&answer, "access-control-allow-origin")), (204, Some(own)));
    server.stop().await;
}

#[tokio::test]
async fn a_page_of_another_origin_is_refused_and_reads_nothing() {
    let server = Server::with(with_origin("https://app.example")).await;
    for origin in ["https://evil.example", "null", "https://app.example.evil.example"] {
        let page = ("origin", origin);
        for (method, path) in
            [("OPTIONS", "/api/chat/sessions"), ("POST", "/api/chat/sessions"), ("GET", "/openapi.json")]
        {
            let answer = ask(&server, method, path, &[page, ("access-control-request-method", "POST")]).await;
            assert_eq!(answer.status(), 403, "{method} {path} from {origin}");
            assert_eq!(header(&answer, "access-control-allow-origin"), None);
            let problem: Value = json_of(answer).await;
            assert_eq!(problem["code"], "UNAUTHORIZED");
        }
    }
    let (_, listed) = Api::new(server.address).get("/api/chat/sessions").await;
    assert_eq!(listed["total"], 0, "a refused page made a session");
    server.stop().await;
}

#[tokio::test]
async fn other_endpoints_share_nothing_with_other_origins() {
    let server = Server::with(with_origin("https://app.example")).await;
    for path in ["/healthz", "/metrics", "/api/admin/node"] {
        let answer = ask(&server, "GET", path, &[("origin", "https://app.example")]).await;
        assert_eq!(header(&answer, "access-control-allow-origin"), None, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_that_will_pass_says_when_in_a_header_too() {
    let mut config = config();
    config.limits.streams_max = 0;
    config.limits.sessions_per_principal_max = 1;
    let server = Server::with(config).await;
    let refused = ask(&server, "GET", "/api/chat/tasks/none/stream", &[]).await;
    assert_eq!((refused.status().as_u16(), header(&refused, "retry-after").as_deref()), (429, Some("5")));
    let body: Value = json_of(refused).await;
    assert_eq!(body["retry_after_ms"], 5000);
    ask(&server, "POST", "/api/chat/sessions", &[]).await;
    let refused = ask(&server, "POST", "/api/chat/sessions", &[]).await;
    assert_eq!((refused.status().as_u16(), header(&refused, "retry-after").as_deref()), (429, Some("60")));
    // One that does not pass by waiting says nothing.
    let missing = ask(&server, "GET", "/api/chat/tasks/none", &[]).await;
    assert_eq!((missing.status().as_u16(), header(&missing, "retry-after")), (404, None));
    server.stop().await;
}

#[tokio::test]
async fn a_path_that_is_no_text_is_refused_in_the_usual_way() {
    let server = Server::start().await;
    for path in
        ["/api/chat/sessions/%ff", "/api/chat/tasks/%c0%80/stream", "/api/chat/%fe/stream", "/api/admin/sessions/%ff"]
    {
        let refused = ask(&server, "GET", path, &[]).await;
        assert_eq!(refused.status(), 400, "{path}");
        let problem: Value = json_of(refused).await;
        assert_eq!((&problem["code"], &problem["recovery_action"]), (&json!("INVALID_PAYLOAD"), &json!("fix_request")));
    }
    for name in ["%00", "%0a", "..%2f..%2fetc", "%F0%9F%8E%8F", &"x".repeat(5000)] {
        let (status, problem) = Api::new(server.address).get(&format!("/api/chat/tasks/{name}")).await;
        assert_eq!((status, &problem["code"]), (404, &json!("TASK_NOT_FOUND")), "{name:.20}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_wrong_request_is_wrong_whatever_it_is_for() {
    let server = Server::start().await;
    let api = Api::new(server.address);
    for (query, field) in [
        ("last_message_id=%2D", "last_message_id"),
        ("last_message_id=1e5", "last_message_id"),
        ("frame=yes", "frame"),
        ("fold=2", "fold"),
        ("startIndex=99999999999999999999", "startIndex"),
    ] {
        for path in ["/api/chat/nobody/stream", "/api/chat/tasks/none/stream"] {
            let (status, problem) = api.get(&format!("{path}?{query}")).await;
            assert_eq!((status, &problem["details"]["field"]), (400, &json!(field)), "{path}?{query}: {problem}");
        }
    }
    let resuming = api.with("last-event-id", "{}");
    assert_eq!(resuming.get("/api/chat/nobody/stream").await.0, 400);
    let keyed = api.with("idempotency-key", &"k".repeat(129));
    let say =
        json!({ "id": "c", "messages": [{ "id": "m", "role": "user", "parts": [{ "type": "text", "text": "x" }] }] });
    assert_eq!(keyed.post("/api/chat", &say).await.0, 400, "a key that is wrong is wrong beside a good message id");
    assert_eq!(api.post("/api/chat", &say).await.0, 200);
    let mut elsewhere = say.clone();
    elsewhere["agent"] = "nobody".into();
    let (status, problem) = api.post("/api/chat", &elsewhere).await;
    assert_eq!((status, &problem["details"]["field"]), (400, &json!("agent")), "also where the chat exists already");
    let (status, problem) = api.post("/api/chat/tasks/none/complete", &json!({ "status": "perhaps" })).await;
    assert_eq!((status, &problem["details"]["field"]), (400, &json!("status")));
    let (status, problem) = api.post("/api/chat/operations/none/complete", &json!({})).await;
    assert_eq!((status, &problem["details"]["field"]), (400, &json!("success")));
    server.stop().await;
}

#[tokio::test]
async fn the_key_of_a_task_that_is_gone_makes_no_second_one() {
    let mut config = config();
    config.stream.ttl = Duration::from_millis(50);
    let server = Server::with(config).await;
    let api = Api::new(server.address).with("idempotency-key", "import-7");
    let (status, made) = api.post("/api/chat/tasks", &json!({ "tool_name": "import" })).await;
    assert_eq!(status, 201);
    let task = format!("/api/chat/tasks/{}", made["task_id"].as_str().unwrap());
    assert_eq!(api.post(&format!("{task}/complete"), &json!({})).await.0, 200);
    let started = Instant::now();
    while api.get(&task).await.0 != 410 {
        assert!(started.elapsed() < PATIENCE, "the task does not expire");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (status, problem) = api.post("/api/chat/tasks", &json!({ "tool_name": "import" })).await;
    assert_eq!((status, &problem["code"]), (410, &json!("TASK_EXPIRED")));
    server.stop().await;
}
