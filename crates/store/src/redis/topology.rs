//! Who serves what: one server, the master that sentinels name, or the masters of a cluster by slot.
//!
//! The routing is our own, because a client that repeats what it lost on the way would commit twice. Here only what a
//! server has refused is sent elsewhere; what may have been done is for the write queue to decide.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_env::clock;
use redis::{Pipeline, Value};
use tokio::sync::Notify;

use super::operation::RedisOperation;
use super::options::{HostPort, RedisOptions};
use super::reply::{Refused, list, number, text};
use super::server::{Server, ServerConnection, ServerHosts, rest};
use super::write_queue::WriteQueue;
use crate::StoreError;
use crate::sync::{Mutex, lock};

/// So many commands are sent in one piece when many are asked at once.
const CHUNK: usize = 256;

pub struct Topology {
    pub options: RedisOptions,
    /// The server that was named, or that the sentinels name; in a cluster, one way in.
    home: Arc<Master>,
    map: Mutex<Map>,
    changes: Arc<AtomicU64>,
    /// An operation reached a server that did not have the slot that the map said.
    pub moved: Notify,
}

/// A server that takes writes, and the queue of writes to it.
#[derive(Debug)]
pub struct Master {
    pub server: Arc<Server>,
    pub queue: WriteQueue,
}

#[derive(Default)]
struct Map {
    is_cluster: bool,
    masters: HashMap<HostPort, Arc<Master>>,
    /// Ranges of slots, both ends included.
    slots: Vec<(u16, u16, HostPort)>,
}

impl Topology {
    pub fn new(options: RedisOptions) -> Arc<Topology> {
        let way = match &options.url.master {
            None => ServerHosts::Hosts(options.url.hosts.clone()),
            Some(name) => ServerHosts::Sentinels(options.url.hosts.clone(), name.clone()),
        };
        Arc::new_cyclic(|topology| {
            let changes = Arc::default();
            let server = Arc::new(Server::new(way, options.clone(), Arc::clone(&changes)));
            let queue = WriteQueue::start(topology.clone(), server.clone(), &options);
            let home = Arc::new(Master { server, queue });
            Topology { options, home, changes, map: Mutex::default(), moved: Notify::new() }
        })
    }

    /// Finds the servers. Fails if there are none.
    pub async fn open(self: &Arc<Self>) -> Result<(), StoreError> {
        let until = clock::now() + self.options.timeout;
        let mut attempt = 0;
        loop {
            match self.home.server.reader().await {
                Ok(wire) if wire.facts.cluster => return self.refresh().await,
                Ok(_) => return Ok(()),
                Err(why) if clock::now() >= until => return Err(StoreError::Unavailable(why)),
                Err(_) => tokio::time::sleep(rest(attempt)).await,
            }
            attempt += 1;
        }
    }

    /// Grows whenever a server turns out to be another one, or in another life, than before.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub fn is_cluster(&self) -> bool {
        lock(&self.map).is_cluster
    }

    /// Who serves a slot, as far as is known.
    pub fn master(&self, slot: u16) -> Arc<Master> {
        let map = lock(&self.map);
        let found = map.slots.iter().find(|(start, end, _)| (*start..=*end).contains(&slot));
        found.and_then(|(_, _, address)| map.masters.get(address)).unwrap_or(&self.home).clone()
    }

    /// All servers that have slots.
    pub fn masters(&self) -> Vec<Arc<Master>> {
        let map = lock(&self.map);
        let mut masters: Vec<Arc<Master>> = Vec::new();
        for (_, _, address) in &map.slots {
            if let Some(master) = map.masters.get(address)
                && !masters.iter().any(|known| Arc::ptr_eq(known, master))
            {
                masters.push(master.clone());
            }
        }
        if masters.is_empty() {
            masters.push(self.home.clone());
        }
        masters
    }

    /// The server at this address, which has said that a slot is there, or was named by one that knows.
    pub fn master_at(self: &Arc<Self>, address: &HostPort) -> Arc<Master> {
        self.master_in(&mut lock(&self.map), address)
    }

    fn master_in(self: &Arc<Self>, map: &mut Map, address: &HostPort) -> Arc<Master> {
        let new = || {
            let way = ServerHosts::Hosts(vec![address.clone()]);
            let server = Arc::new(Server::new(way, self.options.clone(), self.changes.clone()));
            let queue = WriteQueue::start(Arc::downgrade(self), server.clone(), &self.options);
            Arc::new(Master { server, queue })
        };
        map.masters.entry(address.clone()).or_insert_with(new).clone()
    }

    /// A slot has moved. The whole map is asked for again soon.
    pub fn note_moved(self: &Arc<Self>, slot: u16, to: &HostPort) -> Arc<Master> {
        let mut map = lock(&self.map);
        map.is_cluster = true;
        map.slots.insert(0, (slot, slot, to.clone()));
        self.moved.notify_one();
        self.master_in(&mut map, to)
    }

    /// Fetches the slot map of the cluster from the first server that answers.
    pub async fn refresh(self: &Arc<Self>) -> Result<(), StoreError> {
        let mut why = String::from("no server could be asked");
        let mut masters = self.masters();
        masters.push(self.home.clone());
        for master in masters {
            match self.ask_map(&master.server).await {
                Ok(slots) if !slots.is_empty() => {
                    let mut map = lock(&self.map);
                    map.is_cluster = true;
                    for (_, _, address) in &slots {
                        self.master_in(&mut map, address);
                    }
                    map.masters.retain(|address, _| slots.iter().any(|(_, _, known)| known == address));
                    map.slots = slots;
                    return Ok(());
                }
                Ok(_) => why = format!("{} knows of no slots", master.server),
                Err(error) => why = error,
            }
        }
        Err(StoreError::Unavailable(why))
    }

    async fn ask_map(&self, server: &Server) -> Result<Vec<(u16, u16, HostPort)>, String> {
        let mut wire = server.reader().await?;
        let mut commands = Pipeline::new();
        commands.cmd("CLUSTER").arg("SLOTS");
        let answer = wire.send(&commands, self.options.timeout).await.inspect_err(|_| server.drop_reader())?;
        let answer = answer.into_iter().next().ok_or("no answer")?.map_err(|refused| refused.to_string())?;
        let own_host = self.options.url.hosts.first().map(|address| address.host.clone()).unwrap_or_default();
        let range = |range: Value| {
            let mut parts = list(range).into_iter();
            let (start, end) = (number(parts.next()?)? as u16, number(parts.next()?)? as u16);
            let mut master = list(parts.next()?).into_iter();
            let host = master.next().and_then(text).filter(|host| !host.is_empty()).unwrap_or(own_host.clone());
            Some((start, end, HostPort { host, port: number(master.next()?)? as u16 }))
        };
        Ok(list(answer).into_iter().filter_map(range).collect())
    }

    /// Asks something that may be asked twice, until there is an answer or time is up.
    pub async fn call(self: &Arc<Self>, operation: &RedisOperation) -> Result<Value, StoreError> {
        let mut answers = self.call_at(operation.slot, std::slice::from_ref(operation)).await?;
        answers.pop().ok_or_else(|| StoreError::Io("no answer".into()))
    }

    /// Asks many things that may be asked twice, in any order of their doing. The answers come in the order of `operations`.
    pub async fn call_each(self: &Arc<Self>, operations: &[RedisOperation]) -> Result<Vec<Value>, StoreError> {
        let mut answers: Vec<Value> = vec![Value::Nil; operations.len()];
        let mut groups: Vec<(Arc<Master>, Vec<usize>)> = Vec::new();
        for (at, operation) in operations.iter().enumerate() {
            let master = self.master(operation.slot);
            match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &master)) {
                Some((_, group)) => group.push(at),
                None => groups.push((master, vec![at])),
            }
        }
        for (_, group) in groups {
            for chunk in group.chunks(CHUNK) {
                let asked: Vec<RedisOperation> = chunk.iter().map(|at| operations[*at].clone()).collect();
                let slot = asked.first().map_or(0, |operation| operation.slot);
                for (at, answer) in chunk.iter().zip(self.call_at(slot, &asked).await?) {
                    answers[*at] = answer;
                }
            }
        }
        Ok(answers)
    }

    async fn call_at(self: &Arc<Self>, slot: u16, operations: &[RedisOperation]) -> Result<Vec<Value>, StoreError> {
        let until = clock::now() + self.options.timeout;
        let mut answers: Vec<Option<Value>> = vec![None; operations.len()];
        let (mut master, mut asking, mut attempt) = (self.master(slot), false, 0);
        loop {
            let open: Vec<usize> = (0..operations.len()).filter(|at| answers[*at].is_none()).collect();
            if open.is_empty() {
                return Ok(answers.into_iter().flatten().collect());
            }
            let left = until.saturating_duration_since(clock::now());
            let why = match ask(&master.server, operations, &open, asking, left).await {
                Err(why) => why,
                Ok(said) => {
                    let mut why = None;
                    for (at, said) in open.iter().zip(said) {
                        match said {
                            Ok(value) => answers[*at] = Some(value),
                            Err(refused) => why = why.or(Some((*at, refused))),
                        }
                    }
                    let Some((at, refused)) = why else { continue };
                    asking = false;
                    match refused {
                        Refused::Moved(to) => master = self.note_moved(operations[at].slot, &to),
                        Refused::Ask(to) => (master, asking) = (self.master_at(&to), true),
                        Refused::Full(why) => return Err(StoreError::Full(why)),
                        Refused::Other(why) => return Err(StoreError::Io(why)),
                        Refused::NoScript | Refused::ReadOnly(_) => master.server.drop_reader(),
                        Refused::Later(_) => {}
                    }
                    refused_sentence(&master.server)
                }
            };
            // Once it is known to be away for long, waiting would not help.
            let away = master.server.outage().is_some_and(|(since, _)| clock::since(since) > self.options.timeout);
            if away || clock::now() + rest(0) >= until {
                return Err(StoreError::Unavailable(why));
            }
            // A redirection is followed at once; everything else gets a moment.
            if attempt > 2 || !self.is_cluster() {
                tokio::time::sleep(rest(attempt).min(until.saturating_duration_since(clock::now()))).await;
            }
            if !asking {
                master = self.master(slot_of(operations, &answers, slot));
            }
            attempt += 1;
        }
    }
}

fn slot_of(operations: &[RedisOperation], answers: &[Option<Value>], slot: u16) -> u16 {
    operations.iter().zip(answers).find(|(_, answer)| answer.is_none()).map_or(slot, |(operation, _)| operation.slot)
}

fn refused_sentence(server: &Server) -> String {
    format!("Redis at {server} does not serve this now")
}

async fn ask(
    server: &Server,
    operations: &[RedisOperation],
    open: &[usize],
    asking: bool,
    left: Duration,
) -> Result<Vec<Result<Value, Refused>>, String> {
    let reader = tokio::time::timeout(left, server.reader()).await;
    let mut wire: ServerConnection = reader.unwrap_or_else(|_| Err(format!("Redis at {server} does not answer")))?;
    let mut commands = Pipeline::new();
    for at in open {
        if asking {
            commands.cmd("ASKING");
        }
        operations[*at].add_to(&mut commands, &wire, &[]);
    }
    let said = wire.send(&commands, left).await.inspect_err(|why| {
        server.note_outage(&format!("Redis at {server} cannot be used: {why}"));
        server.drop_reader();
    })?;
    server.note_fine();
    let step = if asking { 2 } else { 1 };
    Ok(said.into_iter().skip(step - 1).step_by(step).collect())
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topology({})", self.options.url)
    }
}
