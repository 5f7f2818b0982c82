//! A network in memory: connections that are late, cut at any byte, or silent for ever, as the seed has it.
//!
//! Servers listen, clients and other servers dial. Bytes that were written are on their way for a while and arrive in order; what
//! falls behind the byte at which a connection is cut never does.

mod link;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use bowline_env::net::{Listener, Network, Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::link::{LinkEnd, LinkFate, SimLink};
use crate::dice::Dice;
use crate::disk::{Death, SimDisk};
use crate::trace::Trace;

/// What may be under way in one direction; a writer waits for more room.
const WINDOW_BYTES: usize = 16 << 10;
/// A client that gets no answer to its first packet sends it again so much later.
const SYN_AGAIN: Duration = Duration::from_millis(1000);

/// A connection to the backend that is silent is given up by the kernel so much later, as `env/net` has it. Other servers are not dialled by
/// nodes, but for Redis, whose answers the store waits for in a shorter time.
const UNHEARD_MS: u64 = 30_000;

/// How bad the network is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// So many of a hundred connections are cut, and so many fall silent.
    pub cuts: u64,
    pub silences: u64,
    /// So many of a hundred pieces are late.
    pub delays: u64,
}

/// The network. Clones are the same one.
#[derive(Clone)]
pub struct SimNet(Arc<Mutex<Net>>);

struct Net {
    now_ms: u64,
    dice: Dice,
    trace: Trace,
    /// That of the first node: a machine that died in the middle of a write sends nothing more.
    disk: SimDisk,
    weather: Weather,
    links: BTreeMap<u64, SimLink>,
    next_link: u64,
    servers: BTreeMap<Machine, Server>,
    /// Nothing arrives before.
    stalled_until: u64,
    /// Nothing passes between two machines before.
    parted_until: BTreeMap<(Machine, Machine), u64>,
}

/// A machine: all clients are one, each server is one.
pub type Machine = u8;

/// Where the clients are.
pub const CLIENTS: Machine = 0;
/// The nodes are this machine and the ones behind it.
pub const FIRST_NODE: Machine = 1;
pub const REDIS: Machine = 99;
/// Where the MCP server is that the hub has behind it.
pub const BACKEND: Machine = 98;

/// The address of a node, of Redis, or of the backend.
pub fn address(machine: Machine) -> SocketAddr {
    let port = match machine {
        REDIS => 6379,
        BACKEND => 3000,
        _ => 8080,
    };
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, machine)), port)
}

fn machine_at(address: SocketAddr) -> Machine {
    match address.ip() {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(_) => CLIENTS,
    }
}

fn pair(a: Machine, b: Machine) -> (Machine, Machine) {
    (a.min(b), a.max(b))
}

/// The machine that listens.
#[derive(Default)]
struct Server {
    is_on: bool,
    is_listening: bool,
    waiting: VecDeque<u64>,
    waker: Option<Waker>,
}

const CLIENT: usize = 0;
const SERVER: usize = 1;

impl SimNet {
    pub fn new(dice: Dice, trace: Trace, disk: SimDisk) -> SimNet {
        SimNet(Arc::new(Mutex::new(Net {
            now_ms: 0,
            dice,
            trace,
            disk,
            weather: Weather::default(),
            links: BTreeMap::new(),
            next_link: 0,
            servers: BTreeMap::new(),
            stalled_until: 0,
            parted_until: BTreeMap::new(),
        })))
    }

    fn net(&self) -> MutexGuard<'_, Net> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_weather(&self, weather: Weather) {
        let mut net = self.net();
        net.weather = weather;
        if weather.cuts == 0 {
            // The wires are mended: what is sound stays so. What is silent already cannot be told from a lost packet.
            net.links
                .values_mut()
                .filter(|link| link.fate != LinkFate::Silent)
                .for_each(|link| link.fate = LinkFate::Sound);
        }
    }

    /// Nothing arrives for a while.
    pub fn stall(&self, ms: u64) {
        let mut net = self.net();
        net.stalled_until = net.now_ms + ms;
        let until = net.stalled_until;
        for pipe in net.links.values_mut().flat_map(|link| &mut link.pipes) {
            for (at, _) in &mut pipe.under_way {
                *at = (*at).max(until);
            }
        }
        net.trace.fault("stall", "network", format_args!("{ms} ms"));
    }

    /// Nothing passes between two machines for a while.
    pub fn part(&self, a: Machine, b: Machine, ms: u64) {
        let mut net = self.net();
        let until = net.now_ms + ms;
        net.parted_until.insert(pair(a, b), until);
        for link in net.links.values_mut().filter(|link| pair(link.machines[0], link.machines[1]) == pair(a, b)) {
            for (at, _) in link.pipes.iter_mut().flat_map(|pipe| &mut pipe.under_way) {
                *at = (*at).max(until);
            }
        }
        net.trace.fault("partition", "network", format_args!("between {a} and {b} for {ms} ms"));
    }

    /// Lets time pass, and says whether anything is under way.
    pub fn advance(&self, now_ms: u64) -> bool {
        let mut net = self.net();
        net.now_ms = now_ms;
        let mut is_busy = false;
        for link in net.links.values_mut() {
            link.give_up_if_unheard(now_ms);
            for pipe in &mut link.pipes {
                is_busy |= pipe.deliver(now_ms);
            }
        }
        net.links.retain(|_, link| !link.is_over(now_ms));
        is_busy
    }

    /// A machine is on; what it had open before is not known to it.
    pub fn machine_on(&self, machine: Machine) {
        let mut net = self.net();
        net.servers.insert(machine, Server { is_on: true, ..Server::default() });
        let links = net.links.values_mut().filter(|link| link.machines.contains(&machine));
        links.for_each(|link| link.is_stale = true);
    }

    /// A server is gone. A process that dies has its connections reset by its machine; a machine without power says nothing.
    pub fn machine_off(&self, machine: Machine, death: Death) {
        let mut net = self.net();
        let now = net.now_ms;
        net.servers.insert(machine, Server { is_on: death == Death::Killed, ..Server::default() });
        for link in net.links.values_mut() {
            for side in (0..2).filter(|side| link.machines[*side] == machine) {
                link.pipes[1 - side].reader = None;
                link.pipes[side].writer = None;
                link.dropped_at[side].get_or_insert(now);
            }
            if link.machines.contains(&machine) {
                match death {
                    Death::Killed => link.reset(now + 1),
                    Death::PowerCut => link.fall_silent(now),
                }
            }
        }
    }

    /// Opens a connection from one machine to another. Waits for as long as that does not answer.
    pub async fn dial(&self, from: Machine, to: Machine) -> io::Result<SimSocket> {
        loop {
            let latency = self.net().latency();
            tokio::time::sleep(Duration::from_millis(latency)).await;
            {
                let mut net = self.net();
                let now = net.now_ms;
                let reached = net.servers.get(&to).filter(|server| server.is_on && now >= net.held_until([from, to]));
                if let Some(server) = reached {
                    if !server.is_listening {
                        return Err(io::ErrorKind::ConnectionRefused.into());
                    }
                    let id = net.connect([from, to]);
                    return Ok(SimSocket { net: self.clone(), link: id, side: CLIENT });
                }
            }
            tokio::time::sleep(SYN_AGAIN).await;
        }
    }
}

impl Net {
    fn latency(&mut self) -> u64 {
        if self.dice.percent(self.weather.delays) {
            let late = self.dice.between(20, 400);
            self.trace.fault("delay", "network", format_args!("{late} ms"));
            late
        } else {
            self.dice.between(1, 4)
        }
    }

    /// Until when nothing passes between two machines.
    fn held_until(&self, machines: [Machine; 2]) -> u64 {
        let parted = self.parted_until.get(&pair(machines[0], machines[1])).copied().unwrap_or(0);
        parted.max(self.stalled_until)
    }

    fn connect(&mut self, machines: [Machine; 2]) -> u64 {
        let (side, roll) = (self.dice.below(2) as usize, self.dice.below(100));
        // Most connections that break do so early, where greetings and replays are; some in the middle of much.
        let reach = [200, 1500, 6000, 40_000][self.dice.below(4) as usize];
        let at = self.dice.below(reach);
        let fate = if roll < self.weather.cuts {
            LinkFate::Cut { side, at }
        } else if roll < self.weather.cuts + self.weather.silences {
            LinkFate::Silence { side, at }
        } else {
            LinkFate::Sound
        };
        self.next_link += 1;
        let id = self.next_link;
        let pipes = Default::default();
        let link = SimLink { machines, pipes, fate, dropped_at: [None; 2], is_stale: false, unheard_until: None };
        self.links.insert(id, link);
        if let Some(server) = self.servers.get_mut(&machines[SERVER]) {
            server.waiting.push_back(id);
            server.waker.take().into_iter().for_each(Waker::wake);
        }
        id
    }

    fn write(&mut self, id: u64, side: usize, bytes: &[u8], context: &Context<'_>) -> Poll<io::Result<usize>> {
        let machines = self.links.get(&id).map(|link| link.machines);
        let sender = machines.map(|machines| machines[side]);
        if sender == Some(FIRST_NODE) && self.disk.died().is_some() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let (now, latency) = (self.now_ms, self.latency());
        let at = (now + latency).max(machines.map_or(0, |machines| self.held_until(machines)));
        let Some(link) = self.links.get_mut(&id) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        let other_left = link.dropped_at[1 - side].is_some_and(|then| then + 2 < now) && link.fate != LinkFate::Silent;
        let is_reset = matches!(link.pipes[1 - side].end, Some((when, LinkEnd::Reset)) if when <= now);
        if is_reset || other_left || link.is_stale {
            link.reset(now);
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let room = WINDOW_BYTES.saturating_sub(link.pipes[side].len());
        if room == 0 {
            link.pipes[side].writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let taken = &bytes[..bytes.len().min(room)];
        let before = link.pipes[side].written;
        link.pipes[side].written += taken.len() as u64;
        let passes = |limit: u64| usize::try_from(limit.saturating_sub(before)).unwrap_or(0).min(taken.len());
        match link.fate {
            LinkFate::Cut { side: cut, at: limit } if cut == side && before + taken.len() as u64 >= limit => {
                link.pipes[side].push(at, &taken[..passes(limit)]);
                // What is written to it from now on is lost too, and is no further fault.
                let is_first = link.pipes[side].end.is_none();
                link.reset(at);
                let who = ["to server", "to client"][side];
                if is_first {
                    self.trace.fault("cut", "network", format_args!("link {id} {who} at byte {limit}"));
                }
            }
            LinkFate::Silence { side: silent, at: limit } if silent == side && before + taken.len() as u64 >= limit => {
                link.pipes[side].push(at, &taken[..passes(limit)]);
                link.fall_silent(now);
                let who = ["to server", "to client"][side];
                self.trace.fault("half-open", "network", format_args!("link {id} {who} at byte {limit}"));
            }
            LinkFate::Silent => link.pipes[side].push(u64::MAX, taken),
            _ => link.pipes[side].push(at, taken),
        }
        Poll::Ready(Ok(taken.len()))
    }

    fn read(&mut self, id: u64, side: usize, buffer: &mut ReadBuf<'_>, context: &Context<'_>) -> Poll<io::Result<()>> {
        let (now, is_split) = (self.now_ms, self.dice.percent(10));
        let Some(link) = self.links.get_mut(&id) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        let pipe = &mut link.pipes[1 - side];
        if !pipe.arrived.is_empty() {
            let most = pipe.arrived.len().min(buffer.remaining());
            let count = if is_split { 1 + self.dice.below(most as u64) as usize } else { most };
            let bytes: Vec<u8> = pipe.arrived.drain(..count.min(most)).collect();
            buffer.put_slice(&bytes);
            pipe.writer.take().into_iter().for_each(Waker::wake);
            return Poll::Ready(Ok(()));
        }
        match pipe.end {
            Some((when, LinkEnd::Finished)) if when <= now => Poll::Ready(Ok(())),
            Some((when, LinkEnd::Reset)) if when <= now => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            _ => {
                pipe.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// A side writes no more; the other learns it behind all that was written.
    fn finish(&mut self, id: u64, side: usize) {
        let latency = self.latency();
        let now = self.now_ms;
        if let Some(link) = self.links.get_mut(&id)
            && link.fate != LinkFate::Silent
        {
            let pipe = &mut link.pipes[side];
            let last = pipe.under_way.back().map_or(0, |(at, _)| *at);
            pipe.end.get_or_insert(((now + latency).max(last), LinkEnd::Finished));
        }
    }
}

/// One side of a connection.
pub struct SimSocket {
    net: SimNet,
    link: u64,
    side: usize,
}

impl SimSocket {
    /// Which connection this is.
    pub fn link(&self) -> u64 {
        self.link
    }
}

impl fmt::Debug for SimNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimNet")
    }
}

impl fmt::Debug for SimSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimSocket({})", self.link)
    }
}

impl AsyncRead for SimSocket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.net.net().read(self.link, self.side, buffer, context)
    }
}

impl AsyncWrite for SimSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.net.net().write(self.link, self.side, bytes, context)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.net.net().finish(self.link, self.side);
        Poll::Ready(Ok(()))
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        let mut net = self.net.net();
        net.finish(self.link, self.side);
        let now = net.now_ms;
        if let Some(link) = net.links.get_mut(&self.link) {
            link.dropped_at[self.side].get_or_insert(now);
            link.pipes[1 - self.side].reader = None;
        }
    }
}

/// The network as one machine sees it.
#[derive(Clone)]
pub struct MachineNet(pub SimNet, pub Machine);

impl fmt::Debug for MachineNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MachineNet({})", self.1)
    }
}

#[async_trait]
impl Network for MachineNet {
    async fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        self.0.net().servers.entry(self.1).or_default().is_listening = true;
        Ok(Box::new(SimListener { net: self.0.clone(), machine: self.1, at }))
    }

    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let ip: IpAddr = host.parse().map_err(|_| io::ErrorKind::NotFound)?;
        Ok(vec![SocketAddr::new(ip, port)])
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<Socket> {
        Ok(Box::new(self.0.dial(self.1, machine_at(to)).await?))
    }
}

struct SimListener {
    net: SimNet,
    machine: Machine,
    at: SocketAddr,
}

impl fmt::Debug for SimListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimListener")
    }
}

#[async_trait]
impl Listener for SimListener {
    async fn accept(&self) -> io::Result<Socket> {
        let id = poll_fn(|context| {
            let mut net = self.net.net();
            let server = net.servers.entry(self.machine).or_default();
            match server.waiting.pop_front() {
                Some(id) => Poll::Ready(id),
                None => {
                    server.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        let link = id.await;
        Ok(Box::new(SimSocket { net: self.net.clone(), link, side: SERVER }))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.at)
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        if let Some(server) = self.net.net().servers.get_mut(&self.machine) {
            server.is_listening = false;
        }
    }
}
