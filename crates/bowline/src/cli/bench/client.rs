//! One client of the load: it sends messages, is cut off, and counts what it saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bowline_client::{Address, AttachTarget, Client, LinkConfig, LinkEvent, StopCause};
use bowline_core::Backoff;
use bowline_env::{clock, entropy};
use bowline_protocol::event::names as events;
use tokio::time::timeout;

use super::tally::Tally;

/// A server that says nothing for so long has forgotten us.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a cut client dials before it gives up, and how long it waits in between.
const DIALS_MAX: u32 = 50;
const DIAL_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct LoadClient {
    client: Client,
    tally: Tally,
    /// When the connection was cut, while it is not back.
    cut: Option<Instant>,
}

impl LoadClient {
    pub fn new(address: Address, token: Option<String>, number: u32) -> LoadClient {
        let backoff = Backoff::new(DIAL_PAUSE, DIAL_PAUSE, 0.0).at_once_within(Duration::ZERO);
        let client_id = format!("bench-{number}-{:016x}", entropy::u64());
        let config = LinkConfig { backoff, attempts_max: Some(DIALS_MAX), ..LinkConfig::new(client_id) };
        LoadClient { client: Client::new(address, token, config), tally: Tally::default(), cut: None }
    }

    /// Sends its messages one after the other, each after the answer to the one before.
    pub async fn work(
        mut self,
        messages: u32,
        message: String,
        cut_after: Option<u32>,
        answered: Arc<AtomicU64>,
    ) -> Tally {
        let worked = self.converse(messages, &message, cut_after, &answered).await;
        let stats = self.client.stats();
        (self.tally.events, self.tally.lost, self.tally.twice) = (stats.events, stats.missing, stats.repeated);
        let ended = match worked {
            Ok(()) => self.end().await,
            Err(why) => Err(why),
        };
        if let Err(why) = ended {
            self.tally.refuse(&why);
        }
        self.tally
    }

    async fn converse(
        &mut self,
        messages: u32,
        message: &str,
        cut_after: Option<u32>,
        answered: &AtomicU64,
    ) -> Result<(), String> {
        self.client.start(AttachTarget::New);
        while !matches!(self.next().await?, LinkEvent::Live) {}
        for number in 0..messages {
            self.exchange(number, message, cut_after).await?;
            answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<(), String> {
        self.client.end_session();
        loop {
            match timeout(PATIENCE, self.client.next()).await.map_err(|_elapsed| "silence")? {
                Some(LinkEvent::Stopped(StopCause::SessionEnded { .. })) => return Ok(()),
                Some(LinkEvent::Stopped(cause)) => return Err(why(cause)),
                Some(_) => {}
                None => return Err("the connection ended".into()),
            }
        }
    }

    /// One message and its answer. With `cut_after`, the connection is cut after so many of its events.
    async fn exchange(&mut self, number: u32, message: &str, cut_after: Option<u32>) -> Result<(), String> {
        let sent = clock::now();
        self.client.message(format!("m-{number}"), message);
        let (mut first, mut seen, mut ended) = (None, 0, false);
        let mut cut_after = cut_after;
        while !ended || self.cut.is_some() {
            match self.next().await? {
                LinkEvent::Logged(event) => {
                    first.get_or_insert_with(|| clock::since(sent));
                    seen += 1;
                    ended |= matches!(event.event.as_str(), events::FINAL_ANSWER | events::CANCELLED);
                    if !ended && cut_after.is_some_and(|events| seen > events) {
                        cut_after = None;
                        self.cut = Some(clock::now());
                        self.client.cut();
                    }
                }
                LinkEvent::Replayed { .. } => {
                    self.tally.returns.extend(self.cut.take().map(clock::since));
                }
                _ => {}
            }
        }
        self.tally.firsts.extend(first);
        self.tally.answers.push(clock::since(sent));
        Ok(())
    }

    /// The next thing that happens; an error if the server refuses something or is lost unasked.
    async fn next(&mut self) -> Result<LinkEvent, String> {
        let event = timeout(PATIENCE, self.client.next()).await.map_err(|_elapsed| "silence".to_owned())?;
        match event.ok_or("the connection ended")? {
            LinkEvent::Logged(event) if event.event == events::ERROR => {
                Err(event.word("error_code").unwrap_or("?").to_owned())
            }
            LinkEvent::Refused(refusal) | LinkEvent::Failed { refusal, .. } => Err(refusal.code.as_str().to_owned()),
            LinkEvent::Lost { reason, .. } if self.cut.is_none() => Err(reason),
            LinkEvent::Stopped(cause) => Err(why(cause)),
            event => Ok(event),
        }
    }
}

fn why(cause: StopCause) -> String {
    match cause {
        StopCause::Refused(refusal) => refusal.code.as_str().to_owned(),
        StopCause::Unreachable(reason) | StopCause::GaveUp { reason } | StopCause::TakenOver { reason } => reason,
        StopCause::ClosedByServer { code, reason } => format!("{code} {reason}"),
        StopCause::SessionEnded { message, .. } => message,
        StopCause::Closed => "closed".into(),
    }
}
