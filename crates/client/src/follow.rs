//! The events of one session or task as operators see them, followed across lost connections.

use std::time::Duration;

use bowline_core::Backoff;
use serde_json::Value;

use crate::address::segment;
use crate::http_client::{EventStream, HttpClient, HttpError, StreamEvent};
use crate::link::BACKOFF;

/// Follows the log of one session or task over the admin API. It comes back by itself to where it was.
#[derive(Debug)]
pub struct EventFollower {
    client: HttpClient,
    log: String,
    cursor: Option<String>,
    backoff: Backoff,
    stream: Option<EventStream>,
}

/// What a follower reports.
#[derive(Debug)]
pub enum FollowEvent {
    /// The next event of the log.
    Event(StreamEvent),
    /// The connection is lost, or none can be made; the follower tries again after the delay.
    Lost {
        /// Why.
        reason: String,
        /// The pause, which has not begun yet.
        delay: Duration,
        /// The attempt that follows, from 1.
        attempt: u32,
    },
    /// The server ended the stream with an error that no attempt would change.
    Refused {
        /// The server's sentence.
        message: String,
    },
    /// The log has ended.
    End,
}

impl EventFollower {
    /// Follows a session or a task, from after `cursor` if there is one, else from its beginning.
    pub fn new(client: HttpClient, log: impl Into<String>, cursor: Option<String>) -> EventFollower {
        EventFollower { client, log: log.into(), cursor, backoff: BACKOFF, stream: None }
    }

    /// What happens next. After [`FollowEvent::Lost`] the caller sleeps for the delay and asks again. `jitter` is uniform in 0..1.
    pub async fn next(&mut self, jitter: f64) -> Result<FollowEvent, HttpError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => match self.client.get_events(&self.path()).await {
                Ok(stream) => self.stream.insert(stream),
                Err(error) if error.is_transient() => return Ok(self.lost(&error, jitter)),
                Err(error) => return Err(error),
            },
        };
        let event = match stream.next().await {
            Ok(event) => event,
            Err(HttpError::Broken(reason)) => return Ok(self.lost(&reason, jitter)),
            Err(error) => return Ok(self.lost(&error, jitter)),
        };
        self.backoff.reset();
        match event.name.as_str() {
            "end" => Ok(FollowEvent::End),
            "error" => {
                let body: Value = serde_json::from_str(&event.data).unwrap_or_default();
                let message = body["message"].as_str().unwrap_or("the server ended the stream").to_owned();
                Ok(FollowEvent::Refused { message })
            }
            _ => {
                self.cursor = event.id.clone().or(self.cursor.take());
                Ok(FollowEvent::Event(event))
            }
        }
    }

    fn lost(&mut self, reason: &impl ToString, jitter: f64) -> FollowEvent {
        self.stream = None;
        let delay = self.backoff.next(jitter);
        FollowEvent::Lost { reason: reason.to_string(), delay, attempt: self.backoff.attempt() }
    }

    fn path(&self) -> String {
        // The beginning of its name says whether it is a task or a session.
        let is_task = self.log.starts_with("task_") || self.log.starts_with("turn_");
        let kind = if is_task { "tasks" } else { "sessions" };
        let path = format!("/api/admin/{kind}/{}/events", segment(&self.log));
        match &self.cursor {
            Some(cursor) => format!("{path}?from={}", segment(cursor)),
            None => path,
        }
    }
}
