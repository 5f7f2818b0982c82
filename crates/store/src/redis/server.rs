//! One Redis server: how it is reached, who it says it is, and the connection that all reads share.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bowline_env::{clock, entropy, net, tls};
use redis::aio::{MultiplexedConnection, SendError};
use redis::{AsyncConnectionConfig, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, Value};
use tokio::task::JoinSet;

use super::options::{HostPort, RedisOptions};
use super::reply::{Refused, list, server_error, text};
use super::script::{Hashes, Script};
use crate::sync::{Mutex, lock};

/// Longest wait between two attempts to dial.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
const BACKOFF_MIN: Duration = Duration::from_millis(25);

/// The oldest Redis that has all we use: sharded channels, and scripts that replicate what they did.
const MAJOR_MIN: u32 = 7;

/// Receives what a server pushes.
pub type Push = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// A refusal says something about the next moment, but not for ever.
const REFUSAL_COUNTS: Duration = Duration::from_secs(5);

/// One connection, which always leads to one and the same life of one server.
#[derive(Clone)]
pub struct ServerConnection {
    connection: MultiplexedConnection,
    /// What reads and writes for it, and ends with its last clone.
    _driver: Arc<JoinSet<()>>,
    pub facts: ServerInfo,
    hashes: Hashes,
    gone: Arc<AtomicBool>,
}

/// What a server says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// Names this life of this server: another one after a restart, and after it was promoted.
    pub run: String,
    pub cluster: bool,
    pub replicas: u64,
    pub bytes: u64,
    pub keeping: Keeping,
    /// It became a master by a promotion, not by a start.
    pub promoted: bool,
}

/// How the server persists what was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keeping {
    /// Nothing survives its end.
    #[default]
    Nothing,
    Snapshots,
    /// An append-only file, synced as it says (`always`, `everysec`, `no`); unknown if it will not tell.
    File {
        sync: Option<String>,
    },
}

impl ServerInfo {
    /// Whether what was answered was on its disk.
    pub fn syncs_first(&self) -> bool {
        matches!(&self.keeping, Keeping::File { sync: Some(sync) } if sync == "always")
    }

    /// Whether it started with what its own file held.
    pub fn began_with_its_file(&self) -> bool {
        matches!(self.keeping, Keeping::File { .. }) && !self.promoted
    }
}

impl ServerConnection {
    /// Sends commands in one go, and gives an answer for each.
    pub async fn send(
        &mut self,
        commands: &Pipeline,
        timeout: Duration,
    ) -> Result<Vec<Result<Value, Refused>>, String> {
        let sent = self.connection.send_packed_commands(commands, 0, commands.len());
        let answers = match tokio::time::timeout(timeout, sent).await {
            Err(_) => return Err(format!("no answer within {} ms", timeout.as_millis())),
            Ok(Err(error)) => return Err(error.to_string()),
            Ok(Ok(answers)) => answers,
        };
        if answers.len() != commands.len() {
            return Err("fewer answers than questions".into());
        }
        Ok(answers.into_iter().map(server_error).collect())
    }

    /// Whether its other end is known to be gone, so that nothing more can be sent over it.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub fn hash(&self, script: Script) -> &str {
        self.hashes.of(script)
    }

    /// Gives the server the scripts (again, if they were flushed).
    pub async fn load(&mut self, timeout: Duration) -> Result<(), String> {
        let mut commands = Pipeline::new();
        for script in Script::ALL {
            commands.cmd("SCRIPT").arg("LOAD").arg(script.source());
        }
        let answers = self.send(&commands, timeout).await?;
        for (hash, answer) in self.hashes.0.iter_mut().zip(answers) {
            *hash = text(answer.map_err(|refused| refused.to_string())?).ok_or("a script has no hash")?;
        }
        Ok(())
    }

    /// Who is at the other end now.
    pub async fn ask(&mut self, era: &str, timeout: Duration) -> Result<ServerInfo, String> {
        let mut commands = Pipeline::new();
        for section in ["server", "replication", "persistence", "memory"] {
            commands.cmd("INFO").arg(section);
        }
        commands.cmd("CONFIG").arg("GET").arg("appendfsync").arg("save");
        let mut answers = self.send(&commands, timeout).await?;
        // Hosted servers may not let us ask this; then we assume the worst.
        let config = answers.pop().and_then(Result::ok).map(pairs).unwrap_or_default();
        let mut info = HashMap::new();
        for answer in answers {
            let section = text(answer.map_err(|refused| refused.to_string())?).unwrap_or_default();
            let lines = section.lines().filter_map(|line| line.split_once(':'));
            info.extend(lines.map(|(key, value)| (key.to_owned(), value.to_owned())));
        }
        ServerInfo::read(&info, &config, era)
    }
}

impl ServerInfo {
    fn read(info: &HashMap<String, String>, config: &HashMap<String, String>, era: &str) -> Result<ServerInfo, String> {
        let say = |key: &str| info.get(key).map(String::as_str).unwrap_or_default();
        let version = say("redis_version");
        let major: u32 = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
        if major < MAJOR_MIN {
            return Err(format!("it is Redis {version}; {MAJOR_MIN} or newer is needed"));
        }
        if say("role") != "master" {
            return Err("it is a replica, and takes no commits".into());
        }
        if say("loading") == "1" {
            return Err("it is still loading its data".into());
        }
        let (run, lineage) = (say("run_id"), say("master_replid"));
        let short = |name: &str| name.get(..12).unwrap_or(name).to_owned();
        let keeping = match (say("aof_enabled"), config.get("save").map(String::as_str)) {
            ("1", _) => Keeping::File { sync: config.get("appendfsync").cloned() },
            (_, Some("")) => Keeping::Nothing,
            _ => Keeping::Snapshots,
        };
        Ok(ServerInfo {
            run: format!("{era}/{}-{}", short(run), short(lineage)),
            cluster: say("redis_mode") == "cluster",
            replicas: say("connected_slaves").parse().unwrap_or(0),
            bytes: say("used_memory").parse().unwrap_or(0),
            keeping,
            promoted: say("master_replid2").bytes().any(|byte| byte != b'0'),
        })
    }
}

pub fn pairs(value: Value) -> HashMap<String, String> {
    match value {
        Value::Map(pairs) => pairs.into_iter().filter_map(|(key, value)| Some((text(key)?, text(value)?))).collect(),
        other => {
            let mut list = list(other).into_iter();
            let mut pairs = HashMap::new();
            while let (Some(key), Some(value)) = (list.next(), list.next()) {
                pairs.extend(text(key).zip(text(value)));
            }
            pairs
        }
    }
}

/// How to reach one server.
#[derive(Clone, Debug)]
pub enum ServerHosts {
    /// Any of these that is a master.
    Hosts(Vec<HostPort>),
    /// The server that the sentinels name.
    Sentinels(Vec<HostPort>, String),
}

pub struct Server {
    way: ServerHosts,
    options: RedisOptions,
    reader: tokio::sync::Mutex<ReadConnection>,
    /// Why it cannot be reached, and since when.
    outage: Mutex<Option<(Instant, String)>>,
    /// Why it would not take a commit, and when that was.
    refusal: Mutex<Option<(Instant, String)>>,
    facts: Mutex<ServerInfo>,
    /// How often a server was found to be another one than before.
    changes: Arc<AtomicU64>,
    /// Connections made before this was set lead to a server that has changed since.
    stale: AtomicBool,
}

#[derive(Default)]
struct ReadConnection {
    wire: Option<ServerConnection>,
    attempts: u32,
    not_before: Option<Instant>,
}

impl Server {
    pub fn new(way: ServerHosts, options: RedisOptions, changes: Arc<AtomicU64>) -> Server {
        Server {
            way,
            options,
            changes,
            reader: tokio::sync::Mutex::default(),
            outage: Mutex::default(),
            refusal: Mutex::default(),
            facts: Mutex::default(),
            stale: AtomicBool::new(false),
        }
    }

    /// A connection of its own, with the scripts loaded.
    pub async fn dial(&self, push: Option<&Push>) -> Result<ServerConnection, String> {
        let dialled = tokio::time::timeout(self.options.timeout, self.try_each(push)).await;
        let dialled =
            dialled.unwrap_or_else(|_| Err(format!("no answer within {} ms", self.options.timeout.as_millis())));
        match dialled {
            Ok(wire) => {
                self.note_fine();
                self.note_facts(wire.facts.clone());
                Ok(wire)
            }
            Err(why) => {
                let why = format!("Redis at {self} cannot be used: {why}");
                self.note_outage(&why);
                Err(why)
            }
        }
    }

    async fn try_each(&self, push: Option<&Push>) -> Result<ServerConnection, String> {
        let hosts = match &self.way {
            ServerHosts::Hosts(hosts) => hosts.clone(),
            ServerHosts::Sentinels(sentinels, name) => vec![self.ask_sentinels(sentinels, name).await?],
        };
        let share = self.options.timeout / hosts.len().max(1) as u32;
        let mut why = String::from("no host is known");
        for host in &hosts {
            match tokio::time::timeout(share, self.shake_hands(host, push)).await {
                Ok(Ok(wire)) => return Ok(wire),
                Ok(Err(error)) => why = error,
                Err(_) => why = format!("{host} does not answer"),
            }
        }
        Err(why)
    }

    async fn shake_hands(&self, host: &HostPort, push: Option<&Push>) -> Result<ServerConnection, String> {
        let gone = Arc::new(AtomicBool::new(false));
        let (connection, driver) = self.connect(host, self.options.url.db, watch(&gone, push.cloned())).await?;
        let (facts, hashes) = (ServerInfo::default(), Hashes::default());
        let mut wire = ServerConnection { connection, _driver: Arc::new(driver), facts, hashes, gone };
        wire.facts = wire.ask(&self.options.url.era, self.options.timeout).await?;
        wire.load(self.options.timeout).await?;
        Ok(wire)
    }

    /// A connection, and the task that reads and writes for it.
    async fn connect(
        &self,
        host: &HostPort,
        db: i64,
        push: Push,
    ) -> Result<(MultiplexedConnection, JoinSet<()>), String> {
        let dialled = net::dial(&*self.options.network, &host.host, host.port).await;
        let mut socket = dialled.map_err(|error| error.to_string())?;
        if self.options.url.tls {
            socket = tls::secure(&host.host, socket).await.map_err(|error| error.to_string())?;
        }
        let who = RedisConnectionInfo::default().set_db(db).set_protocol(ProtocolVersion::RESP3);
        // Servers before 7.2 do not know how to note a library's name, and users with few rights may not.
        let mut who = who.set_skip_set_lib_name();
        if let Some(user) = &self.options.url.user {
            who = who.set_username(user);
        }
        if let Some(password) = &self.options.url.password {
            who = who.set_password(password);
        }
        // Each use has a timeout of its own, as this one; the connection's would be half a second for everything.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let config = config.set_push_sender(move |info| -> Result<(), SendError> {
            push(info);
            Ok(())
        });
        let made = MultiplexedConnection::new_with_config(&who, socket, config).await;
        let (connection, drive) = made.map_err(|error| error.to_string())?;
        let mut driver = JoinSet::new();
        driver.spawn(drive);
        Ok((connection, driver))
    }

    async fn ask_sentinels(&self, sentinels: &[HostPort], name: &str) -> Result<HostPort, String> {
        let share = self.options.timeout / (2 * sentinels.len().max(1)) as u32;
        let mut why = String::from("no sentinel is known");
        for sentinel in sentinels {
            match tokio::time::timeout(share, self.ask_sentinel(sentinel, name)).await {
                Ok(Ok(address)) => return Ok(address),
                Ok(Err(error)) => why = format!("sentinel {sentinel}: {error}"),
                Err(_) => why = format!("sentinel {sentinel} does not answer"),
            }
        }
        Err(why)
    }

    async fn ask_sentinel(&self, sentinel: &HostPort, name: &str) -> Result<HostPort, String> {
        let (mut connection, _driver) = self.connect(sentinel, 0, Arc::new(drop)).await?;
        let command = redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).to_owned();
        let answer = connection.send_packed_command(&command).await.map_err(|error| error.to_string())?;
        let mut parts = list(answer).into_iter().map(text);
        match (parts.next().flatten(), parts.next().flatten().and_then(|port| port.parse().ok())) {
            (Some(host), Some(port)) => Ok(HostPort { host, port }),
            _ => Err(format!("no master is called {name}")),
        }
    }

    /// The connection that all reads share. While the server is away, one attempt after another is made, and callers that
    /// come in between get an error at once.
    pub async fn reader(&self) -> Result<ServerConnection, String> {
        let mut reader = self.reader.lock().await;
        if self.stale.swap(false, Ordering::AcqRel) {
            reader.wire = None;
        }
        if let Some(wire) = reader.wire.as_ref().filter(|wire| !wire.is_gone()) {
            return Ok(wire.clone());
        }
        if reader.not_before.is_some_and(|then| clock::now() < then) {
            return Err(self.outage().map(|(_, why)| why).unwrap_or_default());
        }
        match self.dial(None).await {
            Ok(wire) => {
                *reader = ReadConnection { wire: Some(wire.clone()), ..ReadConnection::default() };
                Ok(wire)
            }
            Err(why) => {
                reader.not_before = Some(clock::now() + rest(reader.attempts));
                reader.attempts = reader.attempts.saturating_add(1);
                Err(why)
            }
        }
    }

    /// The shared connection does not serve any more.
    pub fn drop_reader(&self) {
        self.stale.store(true, Ordering::Release);
    }

    pub fn note_facts(&self, facts: ServerInfo) {
        let mut known = lock(&self.facts);
        if !known.run.is_empty() && known.run != facts.run {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
        *known = facts;
    }

    pub fn facts(&self) -> ServerInfo {
        lock(&self.facts).clone()
    }

    pub fn note_outage(&self, why: &str) {
        let mut outage = lock(&self.outage);
        match &mut *outage {
            Some((_, known)) => why.clone_into(known),
            None => {
                tracing::warn!(%why, "the store is out of reach; this is tried again until it is back");
                *outage = Some((clock::now(), why.to_owned()));
            }
        }
    }

    pub fn note_fine(&self) {
        if let Some((since, _)) = lock(&self.outage).take() {
            tracing::info!(server = %self, away_ms = clock::since(since).as_millis() as u64, "the store is back");
        }
    }

    /// It is there, and takes no commits.
    pub fn note_refusal(&self, why: &str) {
        let mut refusal = lock(&self.refusal);
        if refusal.is_none() {
            tracing::warn!(%why, "the store takes no commits");
        }
        *refusal = Some((clock::now(), why.to_owned()));
    }

    pub fn note_taken(&self) {
        *lock(&self.refusal) = None;
    }

    pub fn refusal(&self) -> Option<String> {
        let refusal = lock(&self.refusal);
        refusal.as_ref().filter(|(then, _)| clock::since(*then) < REFUSAL_COUNTS).map(|(_, why)| why.clone())
    }

    /// Since when and why it cannot be used.
    pub fn outage(&self) -> Option<(Instant, String)> {
        lock(&self.outage).clone()
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |hosts: &[HostPort]| hosts.iter().map(HostPort::to_string).collect::<Vec<_>>().join(",");
        match &self.way {
            ServerHosts::Hosts(hosts) => f.write_str(&join(hosts)),
            ServerHosts::Sentinels(sentinels, name) => write!(f, "{name} (sentinels {})", join(sentinels)),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({self})")
    }
}

/// Notes when the connection is gone, and passes everything on.
fn watch(gone: &Arc<AtomicBool>, push: Option<Push>) -> Push {
    let gone = gone.clone();
    Arc::new(move |info: PushInfo| {
        if info.kind == PushKind::Disconnection {
            gone.store(true, Ordering::Release);
        }
        if let Some(push) = &push {
            push(info);
        }
    })
}

/// How long to rest before the next attempt: longer each time, and never the same for two of us.
pub fn rest(attempt: u32) -> Duration {
    let longest = (BACKOFF_MIN * 2u32.saturating_pow(attempt.min(16))).min(BACKOFF_MAX);
    let chance = entropy::chance();
    BACKOFF_MIN + longest.mul_f64(chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_come_back_do_not_come_at_once() {
        for attempt in [0, 3, 40] {
            let mut rests: Vec<Duration> = (0..200).map(|_| rest(attempt)).collect();
            rests.sort();
            rests.dedup();
            assert!(rests.len() > 190, "no two of us rest as long");
            assert!(rests[0] >= BACKOFF_MIN && rests[rests.len() - 1] <= BACKOFF_MIN + BACKOFF_MAX);
        }
        let longest = |attempt| (0..200).map(|_| rest(attempt)).max().unwrap();
        assert!(longest(6) > 8 * longest(0), "longer each time");
    }
}
