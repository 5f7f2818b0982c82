//! Wake-ups from other nodes: one connection to each server for all logs that have a reader here.
//!
//! Each log has a sharded channel, on which every commit says that there was one. So Redis tells only
//! the nodes that have a reader for a log, thousands of readers share a connection, and in a cluster no server tells
//! another. (Blocking reads of thousands of streams would cost Redis a walk over all of them for each; one channel for
//! everything would have every node hear every commit.)
//!
//! A message says how far the log has come, so that a reader that has that much already need not look. It is not the truth:
//! that is read, once for all readers (see [`FollowerCache`]).
//!
//! Redis does not repeat what it published before a subscription. So a reader that has just been subscribed is woken once, and every few
//! seconds the logs that are waited for are looked at.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_env::clock;
use bowline_protocol::{Epoch, LogId, Seq};
use redis::{Pipeline, PushInfo, PushKind, Value};
use tokio::sync::mpsc;

use super::follower_cache::{FollowerCache, News};
use super::keys::RedisKeys;
use super::operation::RedisOperation;
use super::reply::{list, number, text};
use super::server::{Push, ServerConnection, rest};
use super::topology::{Master, Topology};
use crate::follow::Tails;

/// How often logs are looked at although nothing was heard of them.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// So many logs are subscribed to in one piece.
const CHUNK: usize = 512;

pub enum ListenerCommand {
    /// A reader waits for this log now.
    Want(LogId),
    /// A connection was lost.
    Lost,
}

pub struct RedisListener {
    pub topology: Arc<Topology>,
    pub keys: RedisKeys,
    pub tails: Arc<Tails>,
    pub cache: Arc<FollowerCache>,
    pub tell: mpsc::WeakUnboundedSender<ListenerCommand>,
    ears: Vec<SubscriberConnection>,
    /// Where each log stood when it was last looked at.
    seen: HashMap<LogId, Value>,
}

/// A connection to one server, and what it is subscribed to there.
struct SubscriberConnection {
    master: Arc<Master>,
    wire: ServerConnection,
    logs: HashSet<LogId>,
}

impl RedisListener {
    pub fn new(
        topology: Arc<Topology>,
        keys: RedisKeys,
        tails: Arc<Tails>,
        cache: Arc<FollowerCache>,
        tell: mpsc::WeakUnboundedSender<ListenerCommand>,
    ) -> RedisListener {
        RedisListener { topology, keys, tails, cache, tell, ears: Vec::new(), seen: HashMap::new() }
    }

    pub async fn run(mut self, mut heard: mpsc::UnboundedReceiver<ListenerCommand>) {
        let (mut look_at, mut attempt) = (clock::now() + LOOK_EVERY, 0);
        loop {
            let left = look_at.saturating_duration_since(clock::now());
            let mut wanted = Vec::new();
            match tokio::time::timeout(left, heard.recv()).await {
                Ok(None) => return,
                Ok(Some(ListenerCommand::Want(log))) => wanted.push(log),
                Ok(Some(ListenerCommand::Lost)) => {
                    // All at once would be hard on a server that has just come back.
                    tokio::time::sleep(rest(2)).await;
                    self.ears.clear();
                    self.cache.clear();
                    look_at = clock::now();
                }
                Err(_) => {
                    look_at = clock::now() + LOOK_EVERY;
                    wanted = self.put_in_order().await;
                    self.look().await;
                }
            }
            while let Ok(ListenerCommand::Want(log)) = heard.try_recv() {
                wanted.push(log);
            }
            if self.subscribe(wanted).await {
                attempt = 0;
            } else {
                look_at = clock::now() + rest(attempt);
                attempt += 1;
            }
        }
    }

    /// Subscribes to what is not subscribed yet, and wakes it. False if a server could not be reached.
    async fn subscribe(&mut self, wanted: Vec<LogId>) -> bool {
        let mut fine = true;
        let mut by_master: Vec<(Arc<Master>, Vec<LogId>)> = Vec::new();
        for log in wanted {
            let master = self.topology.master(self.keys.of(&log).slot);
            match by_master.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &master)) {
                Some((_, logs)) => logs.push(log),
                None => by_master.push((master, vec![log])),
            }
        }
        for (master, logs) in by_master {
            fine &= self.subscribe_at(&master, logs).await.is_ok();
        }
        fine
    }

    async fn subscribe_at(&mut self, master: &Arc<Master>, logs: Vec<LogId>) -> Result<(), String> {
        let at = match self.ears.iter().position(|ear| Arc::ptr_eq(&ear.master, master)) {
            Some(at) => at,
            None => {
                let wire = master.server.dial(Some(&self.push())).await?;
                self.ears.push(SubscriberConnection { master: master.clone(), wire, logs: HashSet::new() });
                self.ears.len() - 1
            }
        };
        let ear = &mut self.ears[at];
        let new: Vec<LogId> = logs.into_iter().filter(|log| ear.logs.insert(log.clone())).collect();
        for chunk in new.chunks(CHUNK) {
            let mut commands = Pipeline::new();
            for log in chunk {
                commands.cmd("SSUBSCRIBE").arg(self.keys.of(log).channel());
            }
            let sent = ear.wire.send(&commands, self.topology.options.timeout).await;
            let refused = sent.as_ref().is_ok_and(|said| said.iter().any(Result::is_err));
            if sent.is_ok() && !refused {
                self.cache.note_subscribed(chunk);
            }
            // Whether or not it worked: a wake-up too many costs little.
            self.tails.wake_each(chunk);
            if refused {
                // The map is old; everything is subscribed anew with the next one.
                self.topology.moved.notify_one();
            }
            if refused || sent.is_err() {
                for log in self.ears.remove(at).logs {
                    self.cache.note_unsubscribed(&log);
                }
                return Err("a subscription failed".into());
            }
        }
        Ok(())
    }

    /// Wakes right where the message arrives, so that no wait of this driver delays it.
    fn push(&self) -> Push {
        let (keys, tails, cache, tell) = (self.keys.clone(), self.tails.clone(), self.cache.clone(), self.tell.clone());
        Arc::new(move |info: PushInfo| match info.kind {
            PushKind::SMessage => {
                let mut said = info.data.into_iter().map(text);
                let log = said.next().flatten().and_then(|channel| keys.log_of_channel(&channel));
                let (Some(log), said) = (log, said.next().flatten().unwrap_or_default()) else { return };
                let news = News::parse(&said);
                if news.as_ref().is_none_or(|(id, _)| !cache.is_expected(id)) {
                    cache.note_change(&log, news.as_ref().map(|(_, news)| news));
                    tails.wake(&log);
                }
            }
            PushKind::Disconnection => {
                cache.clear();
                if let Some(tell) = tell.upgrade() {
                    // When the store closes, the receiver is gone already.
                    let _ = tell.send(ListenerCommand::Lost);
                }
            }
            // Asked for, or because the slot has moved.
            PushKind::SUnsubscribe => {
                let channel = info.data.into_iter().next().and_then(text);
                if let Some(log) = channel.and_then(|channel| keys.log_of_channel(&channel)) {
                    cache.note_unsubscribed(&log);
                }
            }
            _ => {}
        })
    }

    /// Ends subscriptions that no reader needs or that are at the wrong server; gives those that are missing.
    async fn put_in_order(&mut self) -> Vec<LogId> {
        let wanted: HashSet<LogId> = self.tails.logs().into_iter().collect();
        self.seen.retain(|log, _| wanted.contains(log));
        // The process at the other end of such a connection is not the server any more.
        let is_past = |ear: &SubscriberConnection| ear.wire.facts.run != ear.master.server.facts().run;
        if self.ears.iter().any(is_past) {
            self.ears.clear();
            self.cache.clear();
        }
        let mut served = HashSet::new();
        for ear in &mut self.ears {
            let fits = |log: &LogId| {
                wanted.contains(log) && Arc::ptr_eq(&self.topology.master(self.keys.of(log).slot), &ear.master)
            };
            let idle: Vec<LogId> = ear.logs.iter().filter(|log| !fits(log)).cloned().collect();
            for chunk in idle.chunks(CHUNK) {
                let mut commands = Pipeline::new();
                for log in chunk {
                    commands.cmd("SUNSUBSCRIBE").arg(self.keys.of(log).channel());
                    ear.logs.remove(log);
                    self.cache.note_unsubscribed(log);
                }
                // One that stays by mistake does no harm: it has no reader to wake.
                let _ = ear.wire.send(&commands, self.topology.options.timeout).await;
            }
            served.extend(ear.logs.iter().cloned());
        }
        wanted.into_iter().filter(|log| !served.contains(log)).collect()
    }

    /// Looks whether a log has changed since the last time, and wakes its readers if so.
    async fn look(&mut self) {
        let logs = self.tails.logs();
        let ask = |log: &LogId| RedisOperation::command("HMGET", &self.keys.of(log).head()).arg("e").arg("f").arg("n");
        let operations: Vec<RedisOperation> = logs.iter().map(ask).collect();
        // The health check reports a store that is away.
        let Ok(answers) = self.topology.call_each(&operations).await else { return };
        for (log, answer) in logs.into_iter().zip(answers) {
            if self.seen.get(&log) != Some(&answer) {
                self.cache.note_change(&log, read_news(&answer).as_ref());
                self.tails.wake(&log);
                self.seen.insert(log, answer);
            }
        }
    }
}

/// What the fields `e`, `f` and `n` of a head say.
pub fn read_news(answer: &Value) -> Option<News> {
    let mut parts = list(answer.clone()).into_iter();
    let epoch = Epoch::parse(&text(parts.next()?)?)?;
    let mut seq = || parts.next().and_then(number).and_then(Seq::new);
    Some(News { epoch, first: seq()?, next: seq()? })
}
