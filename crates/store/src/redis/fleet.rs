//! Who serves what: one server, the master that sentinels name, or the masters of a cluster by slot.
//!
//! The routing is our own, because a client that repeats what it lost on the way would commit twice. Here only what a
//! server has refused is sent elsewhere; what may have been done is for the lane to judge.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{Pipeline, Value};
use tokio::sync::Notify;

use super::act::Act;
use super::lane::Lane;
use super::options::{Address, RedisOptions};
use super::reply::{Refused, list, number, text};
use super::server::{Server, Way, Wire, rest};
use crate::StoreError;
use crate::tail::lock;

/// So many commands are sent in one piece when many are asked at once.
const CHUNK: usize = 256;

pub struct Fleet {
    pub options: RedisOptions,
    /// The server that was named, or that the sentinels name; in a cluster, one way in.
    home: Arc<Post>,
    map: Mutex<Map>,
    changes: Arc<AtomicU64>,
    /// Somebody met a server that did not have what the map said.
    pub moved: Notify,
}

/// A server and the lane of writes to it.
#[derive(Debug)]
pub struct Post {
    pub server: Arc<Server>,
    pub lane: Lane,
}

#[derive(Default)]
struct Map {
    is_cluster: bool,
    posts: HashMap<Address, Arc<Post>>,
    /// Ranges of slots, both ends included.
    slots: Vec<(u16, u16, Address)>,
}

impl Fleet {
    pub fn new(options: RedisOptions) -> Arc<Fleet> {
        let way = match &options.url.master {
            None => Way::Hosts(options.url.hosts.clone()),
            Some(name) => Way::Sentinels(options.url.hosts.clone(), name.clone()),
        };
        Arc::new_cyclic(|fleet| {
            let changes = Arc::default();
            let server = Arc::new(Server::new(way, options.url.clone(), options.timeout, Arc::clone(&changes)));
            let lane = Lane::start(fleet.clone(), server.clone(), &options);
            let home = Arc::new(Post { server, lane });
            Fleet { options, home, changes, map: Mutex::default(), moved: Notify::new() }
        })
    }

    /// Finds out who is there. Fails if nobody is.
    pub async fn open(self: &Arc<Self>) -> Result<(), StoreError> {
        let until = Instant::now() + self.options.timeout;
        let mut attempt = 0;
        loop {
            match self.home.server.reader().await {
                Ok(wire) if wire.facts.cluster => return self.refresh().await,
                Ok(_) => return Ok(()),
                Err(why) if Instant::now() >= until => return Err(StoreError::Unavailable(why)),
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
    pub fn post(&self, slot: u16) -> Arc<Post> {
        let map = lock(&self.map);
        let found = map.slots.iter().find(|(start, end, _)| (*start..=*end).contains(&slot));
        found.and_then(|(_, _, address)| map.posts.get(address)).unwrap_or(&self.home).clone()
    }

    /// Everybody who serves slots.
    pub fn posts(&self) -> Vec<Arc<Post>> {
        let map = lock(&self.map);
        let mut posts: Vec<Arc<Post>> = Vec::new();
        for (_, _, address) in &map.slots {
            if let Some(post) = map.posts.get(address)
                && !posts.iter().any(|known| Arc::ptr_eq(known, post))
            {
                posts.push(post.clone());
            }
        }
        if posts.is_empty() {
            posts.push(self.home.clone());
        }
        posts
    }

    /// The server at this address, which has said that a slot is there, or was named by one that knows.
    pub fn post_at(self: &Arc<Self>, address: &Address) -> Arc<Post> {
        self.post_in(&mut lock(&self.map), address)
    }

    fn post_in(self: &Arc<Self>, map: &mut Map, address: &Address) -> Arc<Post> {
        let new = || {
            let way = Way::Hosts(vec![address.clone()]);
            let server =
                Arc::new(Server::new(way, self.options.url.clone(), self.options.timeout, self.changes.clone()));
            let lane = Lane::start(Arc::downgrade(self), server.clone(), &self.options);
            Arc::new(Post { server, lane })
        };
        map.posts.entry(address.clone()).or_insert_with(new).clone()
    }

    /// A slot has moved. The whole map is asked for again soon.
    pub fn note_moved(self: &Arc<Self>, slot: u16, to: &Address) -> Arc<Post> {
        let mut map = lock(&self.map);
        map.is_cluster = true;
        map.slots.insert(0, (slot, slot, to.clone()));
        self.moved.notify_one();
        self.post_in(&mut map, to)
    }

    /// Asks for the map of the cluster, whoever can tell.
    pub async fn refresh(self: &Arc<Self>) -> Result<(), StoreError> {
        let mut why = String::from("nobody could be asked");
        let mut posts = self.posts();
        posts.push(self.home.clone());
        for post in posts {
            match self.ask_map(&post.server).await {
                Ok(slots) if !slots.is_empty() => {
                    let mut map = lock(&self.map);
                    map.is_cluster = true;
                    for (_, _, address) in &slots {
                        self.post_in(&mut map, address);
                    }
                    map.posts.retain(|address, _| slots.iter().any(|(_, _, known)| known == address));
                    map.slots = slots;
                    return Ok(());
                }
                Ok(_) => why = format!("{} knows of no slots", post.server),
                Err(error) => why = error,
            }
        }
        Err(StoreError::Unavailable(why))
    }

    async fn ask_map(&self, server: &Server) -> Result<Vec<(u16, u16, Address)>, String> {
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
            Some((start, end, Address { host, port: number(master.next()?)? as u16 }))
        };
        Ok(list(answer).into_iter().filter_map(range).collect())
    }

    /// Asks something that may be asked twice, until there is an answer or time is up.
    pub async fn call(self: &Arc<Self>, act: &Act) -> Result<Value, StoreError> {
        let mut answers = self.call_at(act.slot, std::slice::from_ref(act)).await?;
        answers.pop().ok_or_else(|| StoreError::Io("no answer".into()))
    }

    /// Asks many things that may be asked twice, in any order of their doing. The answers come in the order of `acts`.
    pub async fn call_each(self: &Arc<Self>, acts: &[Act]) -> Result<Vec<Value>, StoreError> {
        let mut answers: Vec<Value> = vec![Value::Nil; acts.len()];
        let mut groups: Vec<(Arc<Post>, Vec<usize>)> = Vec::new();
        for (at, act) in acts.iter().enumerate() {
            let post = self.post(act.slot);
            match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &post)) {
                Some((_, group)) => group.push(at),
                None => groups.push((post, vec![at])),
            }
        }
        for (_, group) in groups {
            for chunk in group.chunks(CHUNK) {
                let asked: Vec<Act> = chunk.iter().map(|at| acts[*at].clone()).collect();
                let slot = asked.first().map_or(0, |act| act.slot);
                for (at, answer) in chunk.iter().zip(self.call_at(slot, &asked).await?) {
                    answers[*at] = answer;
                }
            }
        }
        Ok(answers)
    }

    async fn call_at(self: &Arc<Self>, slot: u16, acts: &[Act]) -> Result<Vec<Value>, StoreError> {
        let until = Instant::now() + self.options.timeout;
        let mut answers: Vec<Option<Value>> = vec![None; acts.len()];
        let (mut post, mut asking, mut attempt) = (self.post(slot), false, 0);
        loop {
            let open: Vec<usize> = (0..acts.len()).filter(|at| answers[*at].is_none()).collect();
            if open.is_empty() {
                return Ok(answers.into_iter().flatten().collect());
            }
            let left = until.saturating_duration_since(Instant::now());
            let why = match ask(&post.server, acts, &open, asking, left).await {
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
                        Refused::Moved(to) => post = self.note_moved(acts[at].slot, &to),
                        Refused::Ask(to) => (post, asking) = (self.post_at(&to), true),
                        Refused::Full(why) => return Err(StoreError::Full(why)),
                        Refused::Other(why) => return Err(StoreError::Io(why)),
                        Refused::NoScript | Refused::ReadOnly(_) => post.server.drop_reader(),
                        Refused::Later(_) => {}
                    }
                    refused_sentence(&post.server)
                }
            };
            // Once it is known to be away for long, waiting would not help.
            let away = post.server.trouble().is_some_and(|(since, _)| since.elapsed() > self.options.timeout);
            if away || Instant::now() + rest(0) >= until {
                return Err(StoreError::Unavailable(why));
            }
            // A redirection is followed at once; everything else gets a moment.
            if attempt > 2 || !self.is_cluster() {
                tokio::time::sleep(rest(attempt).min(until.saturating_duration_since(Instant::now()))).await;
            }
            if !asking {
                post = self.post(slot_of(acts, &answers, slot));
            }
            attempt += 1;
        }
    }
}

fn slot_of(acts: &[Act], answers: &[Option<Value>], slot: u16) -> u16 {
    acts.iter().zip(answers).find(|(_, answer)| answer.is_none()).map_or(slot, |(act, _)| act.slot)
}

fn refused_sentence(server: &Server) -> String {
    format!("Redis at {server} does not serve this now")
}

async fn ask(
    server: &Server,
    acts: &[Act],
    open: &[usize],
    asking: bool,
    left: Duration,
) -> Result<Vec<Result<Value, Refused>>, String> {
    let reader = tokio::time::timeout(left, server.reader()).await;
    let mut wire: Wire = reader.unwrap_or_else(|_| Err(format!("Redis at {server} does not answer")))?;
    let mut commands = Pipeline::new();
    for at in open {
        if asking {
            commands.cmd("ASKING");
        }
        acts[*at].add_to(&mut commands, &wire, &[]);
    }
    let said = wire.send(&commands, left).await.inspect_err(|why| {
        server.note_trouble(&format!("Redis at {server} cannot be used: {why}"));
        server.drop_reader();
    })?;
    server.note_fine();
    let step = if asking { 2 } else { 1 };
    Ok(said.into_iter().skip(step - 1).step_by(step).collect())
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fleet({})", self.options.url)
    }
}
