//! Credentials: what each endpoint does with one that is good, wrong, expired or withdrawn, and who is an admin.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use bowline::config::{AuthMode, Config, Flags, JwtConfig, JwtKeys, Loaded, Ownership, Surroundings};
use bowline::node::Own;
use bowline_protocol::frame::client::Secret;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::support;
use crate::support::api::Api;
use crate::support::{Client, Incoming, PATIENCE, Server, get};

const SECRET: &str = "a secret that is long enough for HS256!";

fn with_jwt() -> Config {
    let mut config = support::config();
    config.session.ownership = Ownership::Principal;
    // The runs that are streamed here would go on for long.
    config.drain.timeout = Duration::from_millis(100);
    config.auth.mode = AuthMode::Jwt(JwtConfig {
        keys: JwtKeys::Secret(Secret::new(SECRET)),
        issuer: None,
        audience: None,
        principal_claim: "sub".into(),
        admin_claim: "admin".into(),
    });
    config
}

/// A token of an admin that expires so many seconds from now.
fn jwt(seconds: u64) -> String {
    let claims = json!({ "sub": "carol", "admin": true, "exp": bowline_env::clock::unix_seconds() + seconds });
    support::token::hs256(SECRET, &claims)
}

/// The settings in a file, with these tokens in it.
fn settings(dir: &Path, tokens: &str) -> Loaded {
    let path = write_settings(dir, tokens);
    let around = Surroundings { dir: dir.to_owned(), ..Surroundings::default() };
    Config::load_from(&Flags { config: Some(path), ..Flags::default() }, &around).unwrap()
}

fn write_settings(dir: &Path, tokens: &str) -> std::path::PathBuf {
    let (path, new) = (dir.join("bowline.toml"), dir.join("bowline.toml.new"));
    let text = format!(
        "listen = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n[drain]\ntimeout = \"100ms\"\n[auth]\nmode = \"tokens\"\ntokens = [{tokens}]\n[agents.demo]\nkind = \"demo\"\n"
    );
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, &path).unwrap();
    path
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn produce(address: SocketAddr, token: &str) -> Socket {
    let mut request = format!("ws://{address}/produce").into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    tokio_tungstenite::connect_async(request).await.expect("a producer comes in").0
}

/// What a producer's connection says until it is closed: the frames, and the close code.
async fn rest_of(socket: &mut Socket) -> (Vec<Value>, Option<u16>) {
    let mut frames = Vec::new();
    loop {
        match tokio::time::timeout(PATIENCE, socket.next()).await.expect("an end within 30 s") {
            Some(Ok(Message::Text(text))) => frames.push(serde_json::from_str(&text).unwrap()),
            Some(Ok(Message::Close(frame))) => return (frames, frame.map(|frame| frame.code.into())),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return (frames, None),
        }
    }
}

/// A streamed answer, and what it is called when it does not do as it should.
struct Streamed {
    name: &'static str,
    response: reqwest::Response,
    /// Whether the end of the body itself says that more was to come.
    broken_off: bool,
}

impl Streamed {
    /// The whole text from here on, and whether it ended as a whole body does.
    async fn rest(self) -> (String, bool) {
        let (mut text, mut pieces) = (String::new(), self.response.bytes_stream());
        loop {
            let piece = tokio::time::timeout(PATIENCE, pieces.next()).await;
            match piece.unwrap_or_else(|_| panic!("{} never ends", self.name)) {
                Some(Ok(piece)) => text.push_str(std::str::from_utf8(&piece).unwrap()),
                Some(Err(_)) => return (text, false),
                None => return (text, true),
            }
        }
    }
}

struct Caller {
    base: String,
    token: String,
    http: reqwest::Client,
}

impl Caller {
    fn new(address: SocketAddr, token: &str) -> Caller {
        Caller {
            base: format!("http://{address}"),
            token: token.to_owned(),
            http: support::http_client().build().unwrap(),
        }
    }

    fn api(&self, address: SocketAddr) -> Api {
        Api::new(address).with("authorization", &format!("Bearer {}", self.token))
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> reqwest::Response {
        let request = request.header("authorization", format!("Bearer {}", self.token));
        tokio::time::timeout(PATIENCE, request.send()).await.expect("an answer in time").expect("an answer")
    }

    async fn get(&self, name: &'static str, path: &str, broken_off: bool) -> Streamed {
        let request = self.http.get(format!("{}{path}", self.base)).header("accept", "text/event-stream");
        let response = self.send(request).await;
        assert_eq!(response.status(), 200, "{name}");
        Streamed { name, response, broken_off }
    }

    async fn post(&self, name: &'static str, path: &str, body: &Value, headers: &[(&str, &str)]) -> Streamed {
        let mut request = self.http.post(format!("{}{path}", self.base)).body(body.to_string());
        request = request.header("content-type", "application/json");
        request = request.header("accept", "application/json, text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.send(request).await;
        assert_eq!(response.status(), 200, "{name}");
        Streamed { name, response, broken_off: true }
    }
}

/// Opens one of each kind of stream that there is.
async fn every_stream(address: SocketAddr, token: &str) -> Vec<Streamed> {
    let caller = Caller::new(address, token);
    let api = caller.api(address);
    let session = api.session().await;
    let id = session.rsplit('/').next().unwrap();
    // It runs for longer than any of these streams.
    let run = json!({ "message": "/long 10000 100" });
    let turn = caller.post("the stream of a new turn", &format!("{session}/stream"), &run, &[]).await;
    let (_, made) = api.post("/api/chat/tasks", &json!({})).await;
    let task = made["task_id"].as_str().unwrap();
    let chat = json!({ "id": "c", "messages": [{ "id": "m", "role": "user", "parts": [{ "type": "text", "text": "/long 10000 100" }] }] });
    let mut streams = vec![
        turn,
        caller.post("a chat", "/api/chat", &chat, &[]).await,
        caller.get("a resumed chat", "/api/chat/c/stream", true).await,
        caller.get("a session's running turn", &format!("{session}/stream"), true).await,
        caller.get("a task", &format!("/api/chat/tasks/{task}/stream"), true).await,
        caller.get("a log for operators", &format!("/api/admin/sessions/{id}/events"), false).await,
        caller.get("a task's log for operators", &format!("/api/admin/tasks/{task}/events"), false).await,
    ];
    let version = "2025-11-25";
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } });
    let opened = caller.post("initialize", "/mcp", &initialize, &[]).await;
    let mcp_session = opened.response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    let request = caller.http.get(format!("{}/mcp", caller.base)).header("accept", "text/event-stream");
    let request = request.header("mcp-session-id", &mcp_session).header("mcp-protocol-version", version);
    let response = caller.send(request).await;
    assert_eq!(response.status(), 200, "an MCP stream");
    streams.push(Streamed { name: "an MCP stream", response, broken_off: false });
    let meta = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
                       "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" } });
    let listen = json!({ "jsonrpc": "2.0", "id": "m1", "method": "subscriptions/listen",
                         "params": { "notifications": { "toolsListChanged": true }, "_meta": meta } });
    let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "subscriptions/listen")];
    let listening = caller.post("an MCP subscription", "/mcp", &listen, &headers).await;
    streams.push(Streamed { broken_off: false, ..listening });
    streams
}

/// Each ends, says that it is the credential, and says nothing that would make it look finished.
async fn all_end_unauthorized(streams: Vec<Streamed>) {
    for stream in streams {
        let (name, broken_off) = (stream.name, stream.broken_off);
        let (text, whole) = stream.rest().await;
        assert!(text.contains("UNAUTHORIZED"), "{name} does not say why: {text}");
        for end in
            ["[DONE]", "\"type\":\"finish\"", "\"type\":\"abort\"", "\"type\":\"error\"", "event: end", "\"result\""]
        {
            assert!(!text.contains(end), "{name} looks finished ({end}): {text}");
        }
        assert_eq!(whole, !broken_off, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_that_expires_ends_every_stream_and_says_so() {
    let server = Server::with(with_jwt()).await;
    let token = jwt(6);
    let streams = every_stream(server.address, &token).await;
    let mut producer = produce(server.address, &token).await;
    let (frames, code) = rest_of(&mut producer).await;
    assert_eq!(code, Some(4203), "{frames:?}");
    assert_eq!(frames.last().unwrap()["code"], "UNAUTHORIZED");
    assert_eq!(frames.last().unwrap()["recovery_action"], "authenticate");
    all_end_unauthorized(streams).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_taken_out_of_the_settings_ends_whatever_it_opened() {
    let dir = TempDir::new().unwrap();
    let (alice, root) = (
        r#"{ token = "alice-secret", principal = "alice", admin = true }"#,
        r#"{ token = "root-secret", principal = "root", admin = true }"#,
    );
    let server = Server::loaded(settings(dir.path(), &format!("{alice}, {root}")), Own::default()).await;
    let as_user = async |token: &str| {
        let header = format!("Bearer {token}");
        let mut client = Client::dial(server.address, &[("authorization", &header)]).await.unwrap();
        client.expect("system.connected").await;
        client
    };
    let (mut hers, mut roots) = (as_user("alice-secret").await, as_user("root-secret").await);
    let mut producer = produce(server.address, "alice-secret").await;
    let streams = every_stream(server.address, "alice-secret").await;
    let kept = Caller::new(server.address, "root-secret");
    let (_, made) = kept.api(server.address).post("/api/chat/tasks", &json!({})).await;
    let path = format!("/api/chat/tasks/{}", made["task_id"].as_str().unwrap());
    let kept_stream = kept.get("root's own stream", &format!("{path}/stream"), true).await;

    let carol = r#"{ token = "carol-secret", principal = "carol" }"#;
    write_settings(dir.path(), &format!("{root}, {carol}"));
    assert_eq!(hers.refusal().await.0, "UNAUTHORIZED");
    assert_eq!(hers.closed().await, Some(4203));
    let (frames, code) = rest_of(&mut producer).await;
    assert_eq!((code, &frames.last().unwrap()["code"]), (Some(4203), &json!("UNAUTHORIZED")));
    all_end_unauthorized(streams).await;
    let status = async |token: &str| {
        get(server.address, "/api/chat/sessions", &[("authorization", &format!("Bearer {token}"))]).await.0
    };
    assert_eq!((status("alice-secret").await, status("carol-secret").await), (401, 200));
    // The others notice nothing.
    roots.create().await;
    assert_eq!(roots.ask("/echo still here").await.last().unwrap()["content"], "still here");
    assert_eq!(kept.api(server.address).post(&format!("{path}/complete"), &json!({})).await.0, 200);
    let (text, whole) = kept_stream.rest().await;
    assert!(whole && text.contains("[DONE]"), "{text}");

    // A file that cannot be used changes nothing.
    std::fs::write(dir.path().join("bowline.toml"), "[auth\n").unwrap();
    roots.create().await;
    assert_eq!(status("root-secret").await, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_refreshes_its_credential_on_its_connection() {
    let server = Server::with(with_jwt()).await;
    let token = jwt(6);
    let api = Api::new(server.address).with("authorization", &format!("Bearer {token}"));
    let (_, made) = api.post("/api/chat/tasks", &json!({})).await;
    let mut producer = produce(server.address, &token).await;
    let say = async |producer: &mut Socket, frame: Value| -> Value {
        producer.send(Message::text(frame.to_string())).await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, producer.next()).await.unwrap().unwrap().unwrap();
        serde_json::from_str(answer.to_text().unwrap()).unwrap()
    };
    let authenticate = |token: &str| json!({ "event": "user.authenticate", "content": { "token": token } });
    let refused = say(&mut producer, authenticate("made up")).await;
    assert_eq!((&refused["event"], &refused["code"]), (&json!("user.authenticate"), &json!("UNAUTHORIZED")));
    let mut other = json!({ "sub": "mallory", "exp": bowline_env::clock::unix_seconds() + 60 });
    other["admin"] = true.into();
    let other = support::token::hs256(SECRET, &other);
    assert_eq!(say(&mut producer, authenticate(&other)).await["code"], "UNAUTHORIZED", "another principal's");
    let renewed = jwt(3600);
    let answer = say(&mut producer, authenticate(&renewed)).await;
    assert_eq!((&answer["event"], &answer["code"]), (&json!("user.authenticate"), &Value::Null), "{answer}");
    assert!(answer["expires_at"].as_u64().unwrap() > bowline_env::clock::unix_seconds() + 3000, "{answer}");
    // Wait until the first token is worth nothing; what it opened goes on.
    let started = Instant::now();
    while api.get("/api/chat/sessions").await.0 != 401 {
        assert!(started.elapsed() < PATIENCE, "the token never expires");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let frame = json!({ "task_id": made["task_id"], "producer_seq": 0, "chunks": [{ "type": "data-x", "data": 1 }] });
    assert!(say(&mut producer, frame).await["last_message_id"].is_string());
    server.stop().await;
}

fn local(server: &Server) -> SocketAddr {
    ([127, 0, 0, 1], server.address.port()).into()
}

const ADMIN_PATHS: [(&str, &str); 13] = [
    ("GET", "/api/admin/node"),
    ("GET", "/api/admin/metrics"),
    ("GET", "/api/admin/config"),
    ("GET", "/api/admin/sessions"),
    ("GET", "/api/admin/sessions/x"),
    ("GET", "/api/admin/sessions/x/events"),
    ("GET", "/api/admin/tasks"),
    ("GET", "/api/admin/tasks/task_x/events"),
    ("GET", "/api/admin/backends"),
    ("POST", "/api/admin/backends"),
    ("DELETE", "/api/admin/backends/x"),
    ("POST", "/api/admin/backends/x/reconnect"),
    ("GET", "/api/admin/sessions?limit=1"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_an_address_that_others_reach_strangers_are_clients_and_not_admins() {
    let mut config = support::config();
    config.listen = ([0, 0, 0, 0], 0).into();
    config.insecure_no_auth = true;
    config.session.ownership = Ownership::Token;
    let server = Server::with(config).await;
    let stranger = Api::new(local(&server));
    for (method, path) in ADMIN_PATHS {
        let (status, body) = stranger.call(method.parse().unwrap(), path, None).await;
        assert_eq!((status, &body["code"]), (401, &json!("UNAUTHORIZED")), "{method} {path}: {body}");
        assert!(body["message"].as_str().unwrap().contains("auth.admin_token"), "it says what helps: {body}");
        let guess = stranger.with("authorization", "Bearer guessed");
        assert_eq!(guess.call(method.parse().unwrap(), path, None).await.0, 403, "{method} {path}");
    }
    assert_eq!(stranger.post("/api/chat/sessions", &json!({})).await.0, 201);
    let mut client = Client::dial(local(&server), &[]).await.unwrap();
    client.create().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_auth_the_admin_token_makes_an_admin() {
    let dir = TempDir::new().unwrap();
    let load = |listen: &str, token: &str| {
        let text = format!(
            "listen = \"{listen}\"\ninsecure_no_auth = true\n[store]\nurl = \"memory:\"\n[auth]\nadmin_token = \"env:ADMIN\"\n[agents.demo]\nkind = \"demo\"\n"
        );
        std::fs::write(dir.path().join("bowline.toml"), text).unwrap();
        let around = Surroundings {
            variables: BTreeMap::from([("ADMIN".to_owned(), token.to_owned())]),
            dir: dir.path().to_owned(),
            ..Surroundings::default()
        };
        Config::load_from(&Flags::default(), &around).unwrap()
    };
    for listen in ["0.0.0.0:0", "127.0.0.1:0"] {
        let server = Server::loaded(load(listen, "the operator's own secret"), Own::default()).await;
        let stranger = Api::new(local(&server));
        assert_eq!(stranger.get("/api/admin/node").await.0, 401, "{listen}");
        let admin = stranger.with("authorization", "Bearer the operator's own secret");
        assert_eq!(admin.get("/api/admin/node").await.0, 200, "{listen}");
        let shown = admin.get("/api/admin/config").await.1.to_string();
        assert!(!shown.contains("operator's own"), "{shown}");
        assert_eq!(stranger.with("authorization", "Bearer guess").get("/api/admin/node").await.0, 403, "{listen}");
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_of_another_scheme_is_refused_as_such_at_every_endpoint() {
    let server = Server::loaded(
        settings(TempDir::new().unwrap().path(), r#"{ token = "t", principal = "alice", admin = true }"#),
        Own::default(),
    )
    .await;
    for value in ["Basic YWxpY2U6dA==", "bogus", "Bearer", "Bearer ", "Digest username=\"a\""] {
        for path in ["/api/chat/sessions", "/api/admin/node", "/mcp", "/produce"] {
            let (status, body) = get(server.address, path, &[("authorization", value)]).await;
            assert_eq!(status, 401, "{path}: {body}");
            assert!(body.contains("UNAUTHORIZED") && body.contains("Bearer"), "{path} {value}: {body}");
        }
        let refused = Client::dial(server.address, &[("authorization", value)]).await.err();
        let refused = refused.unwrap_or_else(|| panic!("{value} was taken for no credential at all"));
        let tokio_tungstenite::tungstenite::Error::Http(response) = refused else { panic!("{refused}") };
        assert_eq!(response.status(), 401, "{value}");
        let body = String::from_utf8_lossy(response.body().as_deref().unwrap_or_default()).into_owned();
        assert!(body.contains("Bearer"), "{body}");
    }
    // A browser cannot choose what its `Authorization` says, so a token beside it counts.
    let offered = [("authorization", "Basic x"), ("sec-websocket-protocol", "bowline.v1, bearer.t")];
    let mut browser = Client::dial(server.address, &offered).await.unwrap();
    assert!(matches!(browser.incoming().await, Incoming::Frame(_)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_was_made_to_lead_here_reads_nothing_but_that_we_are_alive() {
    let dir = TempDir::new().unwrap();
    let token = r#"{ token = "t", principal = "alice", admin = true }"#;
    let with_auth = Server::loaded(settings(dir.path(), token), Own::default()).await;
    let open = Server::start().await;
    let asset = {
        let page = open.get("/").await.1;
        let at = page.find("/assets/").expect("the page has assets");
        page[at..].split('"').next().unwrap().to_owned()
    };
    let public = ["/", asset.as_str(), "/readyz", "/metrics", "/openapi.json", "/no/such/path"];
    for path in public {
        for server in [&open, &with_auth] {
            let ours = get(server.address, path, &[]).await.0;
            assert_ne!(ours, 403, "{path}");
            assert_eq!(by_name(server.address, path).await, 403, "{path}");
        }
    }
    for path in ["/api/chat/sessions", "/api/chat/config/ttl", "/api/admin/node", "/mcp", "/ws", "/produce"] {
        assert_eq!(by_name(open.address, path).await, 403, "{path}");
    }
    for server in [&open, &with_auth] {
        assert_eq!(by_name(server.address, "/healthz").await, 200);
    }
    let upgrade = Client::dial(open.address, &[("host", "evil.example")]).await;
    assert!(upgrade.err().unwrap().to_string().contains("403"), "no page, but no name of ours either");
    open.stop().await;
    with_auth.stop().await;
}

/// The status of a request for a name that is not ours.
async fn by_name(address: SocketAddr, path: &str) -> u16 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: evil.example:8080\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().parse().unwrap()
}
