//! Reading: what Redis holds, and for those who follow a log, what all of them have just read together.

use bowline_protocol::{Epoch, Extent, LogId, Recorded, Seq};
use redis::Value;

use super::RedisStore;
use super::follower_cache::{CacheAnswer, Fetched, Flight};
use super::operation::RedisOperation;
use super::reply::{bytes, list, number, text};
use super::script::Script;
use super::strange;
use crate::{Batch, EventLog, ReadLimit, StoreError};

/// One read holds Redis up for no longer than this takes, whatever was asked for.
const READ_EVENTS_MAX: usize = 8192;
const READ_BYTES_MAX: usize = 8 << 20;

/// What is read at once for all who follow a log. If there is more, it is read on as far as a reader wants it.
const FOLLOW: ReadLimit = ReadLimit { events: 1024, bytes: 1 << 20 };

/// A log that changes faster than memory can follow is read from Redis in the end.
const LOOKS_MAX: usize = 8;

impl RedisStore {
    pub(super) async fn fetch(&self, log: &LogId, from: Seq, limit: ReadLimit) -> Result<Fetched, StoreError> {
        let keys = self.keys.of(log);
        let operation = RedisOperation::script(Script::Read, vec![keys.head(), keys.events()])
            .arg(from.to_string())
            .arg(limit.events.min(READ_EVENTS_MAX).to_string())
            .arg(limit.bytes.min(READ_BYTES_MAX).to_string());
        let mut parts = list(self.topology.call(&operation).await?).into_iter();
        if parts.next().and_then(text).as_deref() == Some("none") {
            return Err(StoreError::NoSuchLog);
        }
        let extent = read_extent(&mut parts)?;
        let from = parts.next().and_then(number).and_then(Seq::new).ok_or_else(strange)?;
        let (mut seq, mut events) = (from, Vec::new());
        for bytes in parts.next().map(list).unwrap_or_default().into_iter().filter_map(bytes) {
            events.push(Recorded { seq, bytes });
            seq = seq.next();
        }
        Ok(Fetched { extent, from, events })
    }

    pub(super) async fn fetch_extent(&self, log: &LogId) -> Result<Extent, StoreError> {
        let operation = ["e", "s", "f", "n"]
            .into_iter()
            .fold(RedisOperation::command("HMGET", &self.keys.of(log).head()), RedisOperation::arg);
        let parts = list(self.topology.call(&operation).await?);
        if parts.contains(&Value::Nil) {
            return Err(StoreError::NoSuchLog);
        }
        read_extent(&mut parts.into_iter())
    }

    pub(super) async fn glance_at(&self, log: &LogId) -> Result<Extent, StoreError> {
        match self.recall(log, |since| self.cache.extent(log, since)).await {
            Some(known) => known,
            None => self.extent(log).await,
        }
    }

    pub(super) async fn follow_from(&self, log: &LogId, from: Seq, limit: ReadLimit) -> Result<Batch, StoreError> {
        match self.recall(log, |since| self.cache.read(log, since, from, limit)).await {
            Some(known) => known,
            None => self.read(log, from, limit).await,
        }
    }

    /// What memory says, once it is as new as the last wake-up. One of all who ask reads for them.
    async fn recall<T>(
        &self,
        log: &LogId,
        mut look: impl FnMut(&mut Option<u64>) -> CacheAnswer<T>,
    ) -> Option<Result<T, StoreError>> {
        let mut since = None;
        for _ in 0..LOOKS_MAX {
            let landed = match look(&mut since) {
                CacheAnswer::Cold => return None,
                CacheAnswer::Warm(known) => return Some(known),
                CacheAnswer::Fetch(flight) => self.fly(log, flight).await,
                CacheAnswer::Wait(mut landed) => match landed.wait_for(Option::is_some).await {
                    Ok(outcome) => outcome.clone().unwrap_or(Ok(())),
                    // The reader that asked has left.
                    Err(_) => Ok(()),
                },
            };
            match landed {
                // That it is gone is known with its moment, which may be too early for this reader.
                Ok(()) | Err(StoreError::NoSuchLog) => {}
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }

    async fn fly(&self, log: &LogId, flight: Flight) -> Result<(), StoreError> {
        let fetched = match flight.from {
            Some(from) => self.fetch(log, from, FOLLOW).await,
            None => {
                self.fetch_extent(log).await.map(|extent| Fetched { from: extent.next, events: Vec::new(), extent })
            }
        };
        flight.land(fetched)
    }
}

pub fn read_extent(parts: &mut impl Iterator<Item = Value>) -> Result<Extent, StoreError> {
    let epoch = parts.next().and_then(text).as_deref().and_then(Epoch::parse).ok_or_else(strange)?;
    let mut seq = || parts.next().and_then(number).and_then(Seq::new).ok_or_else(strange);
    Ok(Extent { epoch, epoch_first: seq()?, first: seq()?, next: seq()? })
}
