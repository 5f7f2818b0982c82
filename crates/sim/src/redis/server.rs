//! The model as a server: its connections, who is subscribed to what, and what it remembers after it died.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_env::net::{Listener, Socket};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::keyspace::Keyspace;
use super::resp::{RespReply, take_request};
use super::scripts::{ModelScript, ScriptRun};

/// How often it is noted what a file would hold that is synced now and then, and for how long.
const NOTED_EVERY_MS: u64 = 10;
const NOTED_FOR_MS: u64 = 1200;

/// What outlives the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisKeeping {
    /// An append-only file that is synced before each answer.
    Everything,
    /// One that is synced each second.
    AllButTheLast,
    Nothing,
}

/// The time of the server, in microseconds since 1970.
pub type RedisTime = Arc<dyn Fn() -> u64 + Send + Sync>;

/// A Redis. Clones are the same one.
#[derive(Clone)]
pub struct SimRedis(Arc<Mutex<RedisState>>);

struct RedisState {
    keys: Keyspace,
    keeping: RedisKeeping,
    time: RedisTime,
    /// Which life it is in.
    life: u64,
    scripts: BTreeSet<&'static str>,
    next_connection: u64,
    connections: BTreeMap<u64, mpsc::UnboundedSender<Vec<u8>>>,
    subscribed: BTreeMap<Bytes, BTreeSet<u64>>,
    tasks: JoinSet<()>,
    noted: VecDeque<(u64, Keyspace)>,
    /// So many commits from now one is done and its answer is lost with the connection.
    loses_answer: Option<u64>,
    /// How many answers were lost so.
    answers_lost: u64,
}

/// What becomes of a connection after a request.
enum Served {
    Answers(RespReply),
    /// It is closed without an answer.
    Closes,
}

impl SimRedis {
    pub fn new(keeping: RedisKeeping, time: RedisTime) -> SimRedis {
        SimRedis(Arc::new(Mutex::new(RedisState {
            keys: Keyspace::default(),
            keeping,
            time,
            life: 1,
            scripts: BTreeSet::new(),
            next_connection: 0,
            connections: BTreeMap::new(),
            subscribed: BTreeMap::new(),
            tasks: JoinSet::new(),
            noted: VecDeque::new(),
            loses_answer: None,
            answers_lost: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, RedisState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes connections for as long as it lives.
    pub async fn serve(self, listener: Box<dyn Listener>) {
        while let Ok(socket) = listener.accept().await {
            self.take(socket);
        }
    }

    /// Serves a connection, on the current runtime.
    fn take(&self, socket: Socket) {
        let (out, mut answers) = mpsc::unbounded_channel::<Vec<u8>>();
        let mut state = self.state();
        state.next_connection += 1;
        let (id, redis) = (state.next_connection, self.clone());
        state.connections.insert(id, out.clone());
        while state.tasks.try_join_next().is_some() {}
        state.tasks.spawn(async move {
            let (mut reading, mut writing) = tokio::io::split(socket);
            let mut writer = JoinSet::new();
            writer.spawn(async move {
                while let Some(bytes) = answers.recv().await {
                    if writing.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
            });
            let mut read = BytesMut::new();
            'served: loop {
                while let Some(request) = take_request(&mut read) {
                    match redis.handle(id, &request) {
                        Served::Answers(reply) => {
                            let mut bytes = Vec::new();
                            reply.encode(&mut bytes);
                            // A connection that is gone needs no answer.
                            let _ = out.send(bytes);
                        }
                        Served::Closes => break 'served,
                    }
                }
                match reading.read_buf(&mut read).await {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => break,
                }
            }
            redis.forget(id);
        });
    }

    fn forget(&self, id: u64) {
        let mut state = self.state();
        state.connections.remove(&id);
        for ids in state.subscribed.values_mut() {
            ids.remove(&id);
        }
    }

    fn handle(&self, id: u64, request: &[Bytes]) -> Served {
        self.state().handle(id, request)
    }

    /// Time passes: notes what a file would hold.
    pub fn note_time(&self) {
        let mut state = self.state();
        let now_ms = state.now_ms();
        if state.noted.back().is_none_or(|(at, _)| at + NOTED_EVERY_MS <= now_ms) {
            let keys = state.keys.clone();
            state.noted.push_back((now_ms, keys));
        }
        while state.noted.front().is_some_and(|(at, _)| at + NOTED_FOR_MS < now_ms) {
            state.noted.pop_front();
        }
    }

    /// The process dies. What it had not synced is lost: of the last `unsynced_ms` at the most. Says whether something may be.
    pub fn die(&self, unsynced_ms: u64) -> bool {
        let mut state = self.state();
        state.tasks.abort_all();
        state.connections.clear();
        state.subscribed.clear();
        state.scripts.clear();
        state.life += 1;
        let until = state.now_ms().saturating_sub(unsynced_ms);
        match state.keeping {
            RedisKeeping::Everything => false,
            RedisKeeping::AllButTheLast => {
                // What it began its life with was in the file then already.
                let kept = state.noted.iter().rev().find(|(at, _)| *at <= until).or(state.noted.front());
                state.keys = kept.map(|(_, keys)| keys.clone()).unwrap_or_default();
                let (now_ms, keys) = (state.now_ms(), state.keys.clone());
                state.noted = VecDeque::from([(now_ms, keys)]);
                true
            }
            RedisKeeping::Nothing => {
                state.keys = Keyspace::default();
                true
            }
        }
    }

    /// FLUSHALL.
    pub fn flush(&self) {
        let mut state = self.state();
        state.keys = Keyspace::default();
        state.noted.clear();
    }

    /// So many commits from now, one is done and its answer is lost.
    pub fn lose_an_answer(&self, after: u64) {
        self.state().loses_answer = Some(after);
    }

    /// How many answers were lost since this was last asked.
    pub fn take_answers_lost(&self) -> u64 {
        std::mem::take(&mut self.state().answers_lost)
    }

    /// Nothing goes wrong any more.
    pub fn calm(&self) {
        self.state().loses_answer = None;
    }
}

impl RedisState {
    fn now_ms(&self) -> u64 {
        (self.time)() / 1000
    }

    fn handle(&mut self, id: u64, request: &[Bytes]) -> Served {
        let now_ms = self.now_ms();
        self.keys.expire(now_ms);
        let name = request.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
        let args = request.get(1..).unwrap_or_default();
        let arg = |at: usize| args.get(at).cloned().unwrap_or_default();
        Served::Answers(match (name.as_slice(), args.len()) {
            (b"HELLO", _) => RespReply::Map(vec![
                (RespReply::text("server"), RespReply::text("redis")),
                (RespReply::text("proto"), RespReply::Int(3)),
                (RespReply::text("mode"), RespReply::text("standalone")),
                (RespReply::text("role"), RespReply::text("master")),
            ]),
            (b"PING", _) => RespReply::text("PONG"),
            (b"SELECT" | b"CLIENT", _) => RespReply::Ok,
            (b"WAIT", _) => RespReply::Int(0),
            (b"INFO", 1) => RespReply::text(self.info(&arg(0))),
            (b"CONFIG", _) => {
                let sync = if self.keeping == RedisKeeping::Everything { "always" } else { "everysec" };
                let pair = |key: &str, value: &str| (RespReply::text(key), RespReply::text(value));
                RespReply::Map(vec![pair("appendfsync", sync), pair("save", "")])
            }
            (b"SCRIPT", 2) => match ModelScript::of(&arg(1)) {
                Some(script) => {
                    self.scripts.insert(script.name());
                    RespReply::text(script.name())
                }
                None => RespReply::error("ERR this script is not one of those that the model knows"),
            },
            (b"EVALSHA", 2..) => return self.evaluate(&arg(0), &args[1..]),
            (b"HGET", 2) => RespReply::maybe(self.keys.hash_get(&arg(0), &arg(1))),
            (b"HMGET", 2..) => RespReply::Array(
                args[1..].iter().map(|field| RespReply::maybe(self.keys.hash_get(&args[0], field))).collect(),
            ),
            (b"ZSCORE", 2) => {
                self.keys.score(&arg(0), &arg(1)).map_or(RespReply::Nil, |score| RespReply::text(score.to_string()))
            }
            (b"ZCARD", 1) => RespReply::Int(self.keys.names(&arg(0)).len() as i64),
            (b"ZRANGE", 3) => RespReply::list(self.keys.names(&arg(0))),
            (b"SSUBSCRIBE", 1) => self.subscribe(id, &arg(0)),
            (b"SUNSUBSCRIBE", 1) => self.unsubscribe(id, &arg(0)),
            (b"PUBSUB", 2) => {
                let count = self.subscribed.get(&arg(1)).map_or(0, BTreeSet::len);
                RespReply::Array(vec![RespReply::Bulk(arg(1)), RespReply::Int(count as i64)])
            }
            _ => RespReply::Error(format!("ERR unknown command '{}'", String::from_utf8_lossy(&name))),
        })
    }

    fn evaluate(&mut self, hash: &Bytes, rest: &[Bytes]) -> Served {
        let named = ModelScript::all_names().into_iter().find(|(name, _)| hash == *name);
        let Some((_, script)) = named.filter(|(name, _)| self.scripts.contains(name)) else {
            return Served::Answers(RespReply::error("NOSCRIPT No matching script. Please use EVAL."));
        };
        let count = std::str::from_utf8(&rest[0]).ok().and_then(|count| count.parse().ok()).unwrap_or(0);
        let Some((keys, args)) = rest[1..].split_at_checked(count) else {
            return Served::Answers(RespReply::error("ERR Number of keys can't be greater than number of args"));
        };
        let mut published = Vec::new();
        let now_us = (self.time)();
        let reply = ScriptRun { keys: &mut self.keys, now_us, published: &mut published }.run(script, keys, args);
        for (channel, message) in published {
            self.publish(&channel, &message);
        }
        if script == ModelScript::Commit {
            match &mut self.loses_answer {
                Some(0) => {
                    self.loses_answer = None;
                    self.answers_lost += 1;
                    return Served::Closes;
                }
                Some(left) => *left -= 1,
                None => {}
            }
        }
        Served::Answers(reply)
    }

    fn publish(&self, channel: &Bytes, message: &Bytes) {
        let said = RespReply::Push(vec![
            RespReply::text("smessage"),
            RespReply::Bulk(channel.clone()),
            RespReply::Bulk(message.clone()),
        ]);
        for id in self.subscribed.get(channel).into_iter().flatten() {
            self.tell(*id, &said);
        }
    }

    fn tell(&self, id: u64, reply: &RespReply) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        if let Some(out) = self.connections.get(&id) {
            // A connection that is gone hears nothing.
            let _ = out.send(bytes);
        }
    }

    fn subscribe(&mut self, id: u64, channel: &Bytes) -> RespReply {
        self.subscribed.entry(channel.clone()).or_default().insert(id);
        RespReply::Push(vec![
            RespReply::text("ssubscribe"),
            RespReply::Bulk(channel.clone()),
            RespReply::Int(self.count(id)),
        ])
    }

    fn unsubscribe(&mut self, id: u64, channel: &Bytes) -> RespReply {
        if let Some(ids) = self.subscribed.get_mut(channel) {
            ids.remove(&id);
        }
        RespReply::Push(vec![
            RespReply::text("sunsubscribe"),
            RespReply::Bulk(channel.clone()),
            RespReply::Int(self.count(id)),
        ])
    }

    /// How many channels a connection is subscribed to.
    fn count(&self, id: u64) -> i64 {
        self.subscribed.values().filter(|ids| ids.contains(&id)).count() as i64
    }

    fn info(&self, section: &Bytes) -> String {
        let aof = u8::from(self.keeping != RedisKeeping::Nothing);
        match section.as_ref() {
            b"server" => {
                format!("redis_version:7.4.0\r\nredis_mode:standalone\r\nrun_id:{:012x}{:028}\r\n", self.life, 0)
            }
            b"replication" => {
                let lineage = self.life + 0xfeed_0000;
                format!(
                    "role:master\r\nconnected_slaves:0\r\nmaster_replid:{lineage:012x}{:028}\r\nmaster_replid2:{:040}\r\n",
                    0, 0
                )
            }
            b"persistence" => format!("loading:0\r\naof_enabled:{aof}\r\n"),
            b"memory" => "used_memory:1000000\r\n".into(),
            _ => String::new(),
        }
    }
}

impl fmt::Debug for SimRedis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimRedis(life {})", self.state().life)
    }
}
