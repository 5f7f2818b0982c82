//! A client that comes back by itself.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Client, Incoming};

/// What refuses the way back for now. Whoever only listened on would wait for ever.
const REFUSALS: [&str; 5] =
    ["STORE_UNAVAILABLE", "INTERNAL", "SERVER_DRAINING", "RATE_LIMITED", "SESSION_ALREADY_ACTIVE"];

/// A client that comes back by itself, and checks that it sees each event once and in order.
pub struct Survivor {
    pub session: String,
    pub last: Option<String>,
    pub next: u64,
    pub verdicts: Vec<String>,
}

impl Survivor {
    pub fn new(session: String) -> Survivor {
        Survivor { session, last: None, next: 1, verdicts: Vec::new() }
    }

    pub async fn back(&mut self, address: SocketAddr) -> Option<Client> {
        let mut client = Client::dial(address, &[]).await.ok()?;
        client.session = self.session.clone();
        let mut content = self.last.as_ref().map_or(json!({ "last_seq": 0 }), |id| json!({ "last_event_id": id }));
        content["take_over"] = true.into();
        let frame = json!({ "event": "user.reconnect", "session_id": self.session, "content": content });
        futures_util::SinkExt::send(&mut client.socket, frame.to_string().into()).await.ok()?;
        Some(client)
    }

    /// Follows until a frame fits (that frame), or the wire breaks or the way back is refused (none).
    pub async fn follow(&mut self, client: &mut Client, fits: impl Fn(&Value) -> bool) -> Option<Value> {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            assert!(Instant::now() < until, "the frame that was waited for does not come, seq {} is next", self.next);
            let Incoming::Frame(frame) = client.incoming().await else { return None };
            if let Some(verdict) = frame["metadata"]["resume"]["verdict"].as_str() {
                self.verdicts.push(verdict.to_owned());
            }
            if let Some(seq) = frame["seq"].as_u64() {
                assert_eq!(seq, self.next, "once, in order, nothing missing: {frame}");
                self.next += 1;
                self.last = frame["event_id"].as_str().map(str::to_owned);
            }
            if fits(&frame) {
                return Some(frame);
            }
            let code = frame["metadata"]["error_code"].as_str().filter(|_| frame["seq"].is_null());
            if code.is_some_and(|code| REFUSALS.contains(&code)) {
                return None;
            }
        }
    }

    /// Comes back as often as it must until a frame fits.
    pub async fn insist(&mut self, address: SocketAddr, fits: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < until, "it did not come");
            if let Some(mut client) = self.back(address).await
                && let Some(frame) = self.follow(&mut client, &fits).await
            {
                return frame;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn assert_nothing_was_lost(&self) {
        let fine = |verdict: &String| verdict == "replay" || verdict == "caught_up";
        assert!(self.verdicts.iter().all(fine), "{:?}", self.verdicts);
    }
}
