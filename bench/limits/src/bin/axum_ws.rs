//! What a good team writes in an afternoon: axum 0.8 WebSockets, one tokio broadcast channel
//! per stream, the last 1000 messages in memory for replay, no durability, one send per message.
use anyhow::Result;
use axum::{
    extract::{
        ws::{Message, Utf8Bytes, WebSocket, WebSocketUpgrade},
        Path, RawQuery, State,
    },
    response::Response,
    routing::get,
    Router,
};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
};
use tokio::sync::broadcast;

struct Ring {
    base: usize,
    msgs: VecDeque<Utf8Bytes>,
}

struct Stream {
    tx: broadcast::Sender<Utf8Bytes>,
    ring: Mutex<Ring>,
}

type Streams = Arc<Mutex<HashMap<String, Arc<Stream>>>>;

fn stream(all: &Streams, name: String) -> Arc<Stream> {
    let new = || {
        let ring = Mutex::new(Ring { base: 0, msgs: VecDeque::new() });
        Arc::new(Stream { tx: broadcast::channel(256).0, ring })
    };
    all.lock().unwrap().entry(name).or_insert_with(new).clone()
}

async fn publish(State(all): State<Streams>, Path(name): Path<String>, up: WebSocketUpgrade) -> Response {
    let st = stream(&all, name);
    up.on_upgrade(move |mut ws: WebSocket| async move {
        while let Some(Ok(m)) = ws.recv().await {
            if let Message::Text(t) = m {
                let mut r = st.ring.lock().unwrap();
                r.msgs.push_back(t.clone());
                if r.msgs.len() > 1000 {
                    r.msgs.pop_front();
                    r.base += 1;
                }
                let _ = st.tx.send(t);
            }
        }
    })
}

async fn subscribe(
    State(all): State<Streams>,
    Path(name): Path<String>,
    RawQuery(q): RawQuery,
    up: WebSocketUpgrade,
) -> Response {
    let st = stream(&all, name);
    let from: Option<usize> = q.as_deref().and_then(|q| q.strip_prefix("from=")).and_then(|v| v.parse().ok());
    // Subscribe before the upgrade is answered, so that nothing published after it is missed.
    let (missed, mut rx) = {
        let r = st.ring.lock().unwrap();
        let missed: Vec<_> = from.map_or(vec![], |f| r.msgs.iter().skip(f.saturating_sub(r.base)).cloned().collect());
        (missed, st.tx.subscribe())
    };
    up.on_upgrade(move |mut ws: WebSocket| async move {
        for m in missed {
            if ws.send(Message::Text(m)).await.is_err() {
                return;
            }
        }
        loop {
            tokio::select! {
                m = rx.recv() => match m {
                    Ok(m) => if ws.send(Message::Text(m)).await.is_err() { return },
                    Err(_) => return,
                },
                r = ws.recv() => if !matches!(r, Some(Ok(_))) { return },
            }
        }
    })
}

fn main() -> Result<()> {
    limits::block_on(async {
        let app = Router::new()
            .route("/pub/{stream}", get(publish))
            .route("/sub/{stream}", get(subscribe))
            .with_state(Streams::default());
        let listener = tokio::net::TcpListener::bind(limits::addr()).await?;
        let listener = axum::serve::ListenerExt::tap_io(listener, |t| {
            let _ = t.set_nodelay(true);
        });
        Ok(axum::serve(listener, app).await?)
    })
}
