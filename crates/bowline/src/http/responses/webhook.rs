//! Webhooks: servers that the operator names get a POST when a response in the background has ended, by the Standard Webhooks rules.
//!
//! The commit that begins a response notes that its end is owed to them, and the note is deleted once they have it. So each of them gets it
//! at least once, whatever dies in between, and under the same `webhook-id` each time.

use std::collections::HashSet;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::dialect::Projection as _;
use bowline_core::dialect::responses::{ResponseId, ResponseProjector, Wait, logged_at};
use bowline_env::http::{Endpoint, Http1Client};
use bowline_env::{clock, entropy};
use bowline_hub::{Reach, guarded_client};
use bowline_protocol::Recorded;
use bowline_protocol::event::names;
use bowline_store::{Followed, Passed, ReadLimit, StoreError, WakeSet, read_through};
use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::show::status_of;
use crate::config::{Config, WebhookConfig};
use crate::decode::decode;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::session::record::keys;
use crate::session::turns::{TurnEnd, TurnEntry};
use crate::session::{Announcer, OwedEnd};

/// The first wait before a webhook is sent again, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Requests under way at once, so that a target that answers slowly cannot take all connections.
const REQUESTS_MAX: usize = 64;
const READ: ReadLimit = ReadLimit { events: 1024, bytes: 1 << 20 };
const STORE_RETRY: Duration = Duration::from_secs(1);
/// How often the store itself is asked whether a response has ended, should a wake-up be missed.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Posts ends of responses to the addresses that the settings name.
struct Webhooks {
    config: WebhookConfig,
    logs: Arc<Logs>,
    metrics: Arc<Metrics>,
    client: Http1Client,
    closing: CancellationToken,
    requests: Semaphore,
    /// What this node is posting now.
    running: Mutex<HashSet<String>>,
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Webhooks({} targets)", self.config.targets.len())
    }
}

/// A response whose end is owed.
#[derive(Debug)]
struct OwedWebhook {
    response: ResponseId,
    /// The item beside the session's log that says so.
    key: String,
    agent: String,
}

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WebhookOutcome {
    Delivered,
    GivenUp,
}

/// The end of a response, as it stands in the log.
struct End {
    status: String,
    at_seconds: u64,
}

/// What is known of the end of a response.
enum FoundEnd {
    Ended(End),
    NotYet,
    /// Neither its events nor its turn are kept any more.
    Forgotten,
}

impl FoundEnd {
    /// The end to post, or that there is none; nothing if it has to be waited for.
    fn settled(self, owed: &OwedWebhook) -> Option<Option<End>> {
        match self {
            FoundEnd::Ended(end) => Some(Some(end)),
            FoundEnd::NotYet => None,
            FoundEnd::Forgotten => {
                tracing::warn!(response = %owed.response, "a webhook is dropped: its response is no longer kept");
                Some(None)
            }
        }
    }
}

/// What posts them; none if the settings name no target.
pub fn announcer(
    config: &Config,
    logs: &Arc<Logs>,
    metrics: &Arc<Metrics>,
    closing: &CancellationToken,
) -> Option<Arc<dyn Announcer>> {
    let network = &config.env.network;
    let config = config.webhooks.clone()?;
    let client = guarded_client(Reach::of_added(config.allow_private), network);
    Some(Arc::new(Webhooks {
        config,
        logs: logs.clone(),
        metrics: metrics.clone(),
        client,
        closing: closing.clone(),
        requests: Semaphore::new(REQUESTS_MAX),
        running: Mutex::default(),
    }))
}

impl Webhooks {
    /// Posts to every target.
    async fn post_all(&self, owed: &OwedWebhook) {
        let Some(end) = self.end_of(owed).await else { return };
        let body = WebhookEvent::of(&owed.response, &end);
        let body = bytes::Bytes::from(serde_json::to_vec(&body).unwrap_or_default());
        let sends = self.config.targets.iter().map(|target| self.post_until_taken(target, owed, &end, &body));
        futures_util::future::join_all(sends).await;
    }

    /// How the response ended, once it has; none if its log is gone.
    async fn end_of(&self, owed: &OwedWebhook) -> Option<End> {
        loop {
            match self.follow(owed).await {
                Ok(end) => return end,
                Err(StoreError::NoSuchLog) => return None,
                Err(error) => {
                    tracing::debug!(response = %owed.response, %error, "the store cannot be read for a webhook");
                    tokio::time::sleep(STORE_RETRY).await;
                }
            }
        }
    }

    /// Waits for the end of a response. If its events are trimmed before they are read here, it has ended once its turn has, and as that
    /// did: what is kept beside the log says so.
    async fn follow(&self, owed: &OwedWebhook) -> Result<Option<End>, StoreError> {
        let OwedWebhook { response, .. } = owed;
        let epoch = self.logs.store.extent(&response.log).await?.epoch;
        let wake = WakeSet::new();
        let mut follower = self.logs.follow(&response.log, (&epoch, response.first()), &wake, 0);
        let mut trimmed = false;
        loop {
            match self.logs.next(&mut follower, READ).await? {
                Followed::Events(events) => {
                    for event in events.iter().filter(|event| may_end(event)) {
                        let found = match trimmed {
                            false => self.project(owed, event).await?.map_or(FoundEnd::NotYet, FoundEnd::Ended),
                            true => self.end_of_turn(owed).await?,
                        };
                        if let Some(end) = found.settled(owed) {
                            return Ok(end);
                        }
                    }
                }
                Followed::Idle => {
                    if timeout(LOOK_AGAIN, wake.woken()).await.is_ok() {
                        wake.take();
                        follower.wake();
                    } else {
                        follower.doubt();
                    }
                }
                Followed::Gap { .. } => {
                    trimmed = true;
                    if let Some(end) = self.end_of_turn(owed).await?.settled(owed) {
                        return Ok(end);
                    }
                }
                // What is left of it is read again: a run that lost its end gets another one there. If its beginning was lost, so was
                // the note that its end is owed.
                Followed::Epoch(extent) => {
                    if self.logs.store.item(&response.log, &owed.key).await?.is_none() {
                        return Ok(None);
                    }
                    follower.enter(&extent.epoch);
                    follower.seek(response.first());
                }
            }
        }
    }

    async fn end_of_turn(&self, owed: &OwedWebhook) -> Result<FoundEnd, StoreError> {
        let (log, key) = (&owed.response.log, keys::turn(owed.response.turn));
        let entry = self.logs.store.item(log, &key).await?;
        // An entry that cannot be read was logged, and says no more than one that is gone.
        let entry: Option<TurnEntry> = decode(log, &key, entry).unwrap_or_default();
        let Some(entry) = entry else { return Ok(FoundEnd::Forgotten) };
        let end = |end: TurnEnd| End { status: end.status.as_str().to_owned(), at_seconds: end.at_ms / 1000 };
        Ok(entry.ended.map_or(FoundEnd::NotYet, |ended| FoundEnd::Ended(end(ended))))
    }

    /// The response as it stands with this event, if that is its end.
    async fn project(&self, owed: &OwedWebhook, last: &Recorded) -> Result<Option<End>, StoreError> {
        let mut projector = ResponseProjector::new(&ResponseProjector::name(&owed.response, &owed.agent));
        let (log, first) = (&owed.response.log, owed.response.first());
        let through = read_through(&*self.logs.store, log, first, |passed| {
            match passed {
                Passed::Event(event) if event.seq > last.seq => return ControlFlow::Break(()),
                Passed::Event(event) => projector.pass_event(event),
                // A webhook says how a response ended, which follows from what is left of it.
                Passed::Gap { .. } => {}
            }
            if projector.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        through.await?;
        let response = projector.response().filter(|_| projector.is_over());
        let status = response.and_then(|raw| status_of(raw.get()).map(str::to_owned));
        Ok(status.map(|status| End { status, at_seconds: logged_at(last) }))
    }

    async fn post_until_taken(&self, target: &Endpoint, owed: &OwedWebhook, end: &End, body: &bytes::Bytes) {
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1, 0.25);
        let id = event_id(&owed.response);
        loop {
            match self.send(target, &id, body).await {
                Ok(outcome) => {
                    let outcome = if outcome == WebhookOutcome::Delivered { "delivered" } else { "given_up" };
                    return self.metrics.webhooks.inc(outcome);
                }
                Err(why) => {
                    let age = Duration::from_secs(clock::unix_seconds().saturating_sub(end.at_seconds));
                    if age >= self.config.retry_for {
                        tracing::warn!(webhook = %id, %why, "a webhook is given up: its target did not take it in time");
                        return self.metrics.webhooks.inc("given_up");
                    }
                    self.metrics.webhooks.inc("retried");
                    let delay = backoff.next(entropy::chance());
                    tracing::info!(webhook = %id, %why, delay_ms = delay.as_millis() as u64, "a webhook is sent again");
                    tokio::time::sleep(delay).await;
                    // Its session may be over, or another node may have posted it.
                    if let Ok(None) = self.logs.store.item(&owed.response.log, &owed.key).await {
                        return;
                    }
                }
            }
        }
    }

    /// One attempt.
    async fn send(&self, target: &Endpoint, id: &str, body: &bytes::Bytes) -> Result<WebhookOutcome, String> {
        let timestamp = clock::unix_seconds();
        let signature = self.config.key.sign(id, timestamp, body);
        let _permit = self.requests.acquire().await;
        let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        headers.insert("webhook-timestamp", timestamp.into());
        for (name, value) in [("webhook-id", id), ("webhook-signature", &signature)] {
            let value = HeaderValue::from_str(value).map_err(|_| format!("`{name}` cannot be sent"))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        let request = self.client.send(Method::POST, target, headers, body.clone());
        let answer = timeout(self.config.timeout, request).await.map_err(|_elapsed| "it does not answer in time")?;
        match answer.map_err(|error| error.why)?.status() {
            status if status.is_success() => Ok(WebhookOutcome::Delivered),
            // The target wants no more webhooks.
            StatusCode::GONE => Ok(WebhookOutcome::GivenUp),
            status => Err(format!("it answered {}", status.as_u16())),
        }
    }
}

impl Announcer for Webhooks {
    /// It is done once at a time, however often it is asked for.
    fn post(self: Arc<Self>, owed: OwedEnd, delivered: BoxFuture<'static, ()>) {
        let OwedEnd { log, turn, question, key, agent } = owed;
        let owed = OwedWebhook { response: ResponseId { log, turn, question }, key, agent };
        let id = owed.response.to_string();
        if !self.running.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone()) {
            return;
        }
        tokio::spawn(async move {
            let closing = self.closing.clone();
            if closing.run_until_cancelled(self.post_all(&owed)).await.is_some() {
                delivered.await;
            }
            self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        });
    }
}

/// Whether a response can end with this event.
fn may_end(event: &Recorded) -> bool {
    event.view().is_some_and(|view| {
        let ends = names::TERMINAL.contains(&view.event) || view.event == names::USER_RESPONSE;
        ends || Wait::of(&view).is_some()
    })
}

/// The name of the event, the same in each attempt.
fn event_id(response: &ResponseId) -> String {
    format!("evt_{}", response.to_string().trim_start_matches("resp_"))
}

/// What is posted: that a response ended, and how. A receiver that wants to know more retrieves it.
#[derive(Serialize)]
struct WebhookEvent {
    id: String,
    object: &'static str,
    created_at: u64,
    #[serde(rename = "type")]
    kind: String,
    data: Data,
}

#[derive(Serialize)]
struct Data {
    id: String,
}

impl WebhookEvent {
    fn of(response: &ResponseId, end: &End) -> WebhookEvent {
        WebhookEvent {
            id: event_id(response),
            object: "event",
            created_at: end.at_seconds,
            kind: format!("response.{}", end.status),
            data: Data { id: response.to_string() },
        }
    }
}
