//! What the backend says of one call, in order. A client that lost its wire reads on where it was.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::Notify;

/// The messages of one call; the answer is the last.
#[derive(Debug)]
pub struct CallStream {
    pub number: u64,
    said: Mutex<Said>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Said {
    messages: Vec<String>,
    is_over: bool,
}

/// What comes next.
#[derive(Debug)]
pub enum CallStreamItem {
    /// A message, and whether it is the last.
    Message(String, bool),
    Over,
}

impl CallStream {
    pub fn new(number: u64) -> CallStream {
        CallStream { number, said: Mutex::default(), changed: Notify::new() }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn say(&self, message: &Value, is_last: bool) {
        let mut said = self.said();
        said.messages.push(message.to_string());
        said.is_over = is_last;
        drop(said);
        self.changed.notify_waiters();
    }

    /// The message at a place, when it is there.
    pub async fn at(&self, place: usize) -> CallStreamItem {
        loop {
            // Whoever is asked before it is looked at is told of what changes between the two.
            let changed = self.changed.notified();
            {
                let said = self.said();
                let is_last = said.is_over && place + 1 == said.messages.len();
                match said.messages.get(place) {
                    Some(message) => return CallStreamItem::Message(message.clone(), is_last),
                    None if said.is_over => return CallStreamItem::Over,
                    None => {}
                }
            }
            changed.await;
        }
    }

    /// The answer, when it is there.
    pub async fn answer(&self) -> String {
        let mut place = 0;
        loop {
            match self.at(place).await {
                CallStreamItem::Message(message, true) => return message,
                CallStreamItem::Message(_, false) => place += 1,
                CallStreamItem::Over => return String::new(),
            }
        }
    }

    /// The event with the message at a place, whose id says where it stands.
    pub fn event(&self, place: usize, message: &str) -> String {
        format!("id: {}-{place}\ndata: {message}\n\n", self.number)
    }
}

/// The call and the place that an event's id names.
pub fn place_of(id: &str) -> Option<(u64, usize)> {
    let (number, place) = id.split_once('-')?;
    Some((number.parse().ok()?, place.parse().ok()?))
}
