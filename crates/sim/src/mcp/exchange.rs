//! What the backend answers to each request of Streamable HTTP.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::backend::SimBackend;
use super::http::{BackendConnection, BackendRequest};
use super::stream::{CallStream, CallStreamItem, place_of};
use super::tool::SimTool;
use super::{STATELESS, WITH_SESSIONS};

/// A stream that says nothing says at least that it is there.
const QUIET_FOR: Duration = Duration::from_secs(5);

/// Answers one request.
pub async fn respond(
    backend: &SimBackend,
    connection: &mut BackendConnection,
    request: &BackendRequest,
) -> io::Result<()> {
    let message: Value = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
    let method = message["method"].as_str().unwrap_or_default();
    if backend.is_stateless() {
        return respond_alone(backend, connection, method, &message).await;
    }
    if request.method == "POST" && method == "initialize" {
        let session = backend.open_session();
        backend.note(format_args!("begins {session}"));
        let result = json!({
            "protocolVersion": WITH_SESSIONS, "capabilities": { "tools": {} },
            "serverInfo": { "name": "sim", "version": "1" },
        });
        let header = format!("mcp-session-id: {session}\r\n");
        return connection.answer(200, &header, &result_of(&message["id"], &result)).await;
    }
    let Some(session) = request.header("mcp-session-id") else {
        return connection.answer(400, "", &error_of(&message["id"], -32600, "a session is needed")).await;
    };
    if !backend.knows(session) {
        return connection.answer(404, "", &error_of(&Value::Null, -32001, "session not found")).await;
    }
    match (request.method.as_str(), method) {
        ("POST", "tools/call") => call(backend, connection, Some(session), &message).await,
        ("POST", _) if message["id"].is_null() || method.is_empty() => connection.answer(202, "", "").await,
        ("POST", "ping") => connection.answer(200, "", &result_of(&message["id"], &json!({}))).await,
        ("POST", "tools/list") => connection.answer(200, "", &result_of(&message["id"], &tools())).await,
        ("POST", _) => connection.answer(200, "", &error_of(&message["id"], -32601, "no such method")).await,
        ("GET", _) => match request.header("last-event-id") {
            None => own_stream(backend, connection, session).await,
            Some(last) => {
                let known = place_of(last).and_then(|(number, place)| Some((backend.stream(session, number)?, place)));
                match known {
                    Some((stream, place)) => say(backend, connection, &stream, place + 1, usize::MAX).await,
                    None => connection.answer(400, "", &error_of(&Value::Null, -32600, "no such event")).await,
                }
            }
        },
        ("DELETE", _) => {
            backend.end_session(session);
            connection.answer(200, "", "").await
        }
        _ => connection.answer(405, "", "").await,
    }
}

/// The same of the revision in which each request stands alone.
async fn respond_alone(
    backend: &SimBackend,
    connection: &mut BackendConnection,
    method: &str,
    message: &Value,
) -> io::Result<()> {
    match method {
        "tools/call" => call(backend, connection, None, message).await,
        "server/discover" => {
            let result = json!({
                "supportedVersions": [STATELESS], "capabilities": { "tools": {} }, "resultType": "complete",
                "ttlMs": 0, "cacheScope": "private",
            });
            connection.answer(200, "", &result_of(&message["id"], &result)).await
        }
        "tools/list" => connection.answer(200, "", &result_of(&message["id"], &tools())).await,
        _ if message["id"].is_null() => connection.answer(202, "", "").await,
        _ => connection.answer(404, "", &error_of(&message["id"], -32601, "no such method")).await,
    }
}

fn tools() -> Value {
    let one = |tool: SimTool| json!({ "name": tool.name(), "inputSchema": { "type": "object" } });
    json!({ "tools": SimTool::ALL.map(one), "resultType": "complete", "ttlMs": 0, "cacheScope": "private" })
}

async fn call(
    backend: &SimBackend,
    connection: &mut BackendConnection,
    session: Option<&str>,
    message: &Value,
) -> io::Result<()> {
    let (id, params) = (message["id"].clone(), &message["params"]);
    let key = params["arguments"]["key"].as_str().unwrap_or_default().to_owned();
    let Some(tool) = SimTool::of(params["name"].as_str().unwrap_or_default()) else {
        return connection.answer(200, "", &error_of(&id, -32602, "no such tool")).await;
    };
    let mut dice = backend.roll();
    if dice.percent(4) {
        backend.busy();
        let refusals = [(503, "retry-after: 1\r\n"), (429, "retry-after: 40\r\n"), (503, ""), (429, "")];
        let (status, wait) = refusals[dice.below(4) as usize];
        return connection.answer(status, wait, "").await;
    }
    let stream = backend.begin_call(session, &key);
    let ms = params["arguments"]["ms"].as_u64().unwrap_or(0);
    let token = params["_meta"]["progressToken"].clone();
    if dice.percent(3) {
        // What fails may have run before.
        backend.run(&key);
        return connection.answer(500, "", "").await;
    }
    let work = work(backend.clone(), stream.clone(), (tool, key), ms, (id, token));
    backend.spawn(work);
    if dice.percent(40) {
        let answer = stream.answer().await;
        backend.gate().await;
        return connection.answer(200, "", &answer).await;
    }
    // A server may end a stream and have its client come back for the rest.
    let most = if session.is_some() && dice.percent(15) { dice.between(1, 4) as usize } else { usize::MAX };
    say(backend, connection, &stream, 0, most).await
}

/// Runs a tool, whoever still waits for it.
async fn work(
    backend: SimBackend,
    stream: Arc<CallStream>,
    (tool, key): (SimTool, String),
    ms: u64,
    (id, token): (Value, Value),
) {
    if tool == SimTool::Slow {
        for n in 1..=3 {
            tokio::time::sleep(Duration::from_millis(ms / 3)).await;
            backend.gate().await;
            let progress = json!({ "progressToken": token, "progress": n, "total": 3, "message": key });
            let told = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": progress });
            stream.say(&told, false);
        }
    }
    backend.run(&key);
    let text = tool.answer(&key);
    let result = json!({ "content": [{ "type": "text", "text": text }], "isError": tool == SimTool::Fail, "resultType": "complete" });
    stream.say(&json!({ "jsonrpc": "2.0", "id": id, "result": result }), true);
}

/// Says what there is of a call from a place on, and so many messages at the most.
async fn say(
    backend: &SimBackend,
    connection: &mut BackendConnection,
    stream: &CallStream,
    from: usize,
    most: usize,
) -> io::Result<()> {
    connection.begin_stream().await?;
    let mut place = from;
    while place - from < most {
        match tokio::time::timeout(QUIET_FOR, stream.at(place)).await {
            Err(_elapsed) => connection.piece(": still here\n\n").await?,
            Ok(CallStreamItem::Over) => break,
            Ok(CallStreamItem::Message(message, is_last)) => {
                backend.gate().await;
                // Without sessions there is no coming back, and no event has an id.
                let event =
                    if backend.is_stateless() { format!("data: {message}\n\n") } else { stream.event(place, &message) };
                connection.piece(&event).await?;
                place += 1;
                if is_last {
                    break;
                }
            }
        }
    }
    connection.end_stream().await
}

/// What belongs to no call: nothing ever, for as long as the session is known.
async fn own_stream(backend: &SimBackend, connection: &mut BackendConnection, session: &str) -> io::Result<()> {
    connection.begin_stream().await?;
    while backend.knows(session) {
        connection.piece(": still here\n\n").await?;
        tokio::time::sleep(QUIET_FOR).await;
        backend.gate().await;
    }
    connection.end_stream().await
}

fn result_of(id: &Value, result: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string()
}

fn error_of(id: &Value, code: i64, text: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": text } }).to_string()
}
