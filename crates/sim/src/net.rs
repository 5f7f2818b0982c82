//! A network in memory: connections that are late, cut at any byte, or silent for ever, as the seed has it.
//!
//! One server listens, many clients dial. Bytes that were written are on their way for a while and arrive in order; what
//! falls behind the byte at which a connection is cut never does.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use bowline_env::net::{Listener, Network, Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::dice::Dice;
use crate::disk::{Death, SimDisk};
use crate::trace::Trace;

/// What may be under way in one direction; a writer waits for more room.
const WINDOW_BYTES: usize = 64 << 10;
/// A client that gets no answer to its first packet sends it again so much later.
const SYN_AGAIN: Duration = Duration::from_millis(1000);

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
    /// The server's: a machine that died in the middle of a write sends nothing more.
    disk: SimDisk,
    weather: Weather,
    links: BTreeMap<u64, Link>,
    next_link: u64,
    server: Server,
    /// Nothing arrives before.
    stalled_until: u64,
}

/// The machine that listens.
#[derive(Default)]
struct Server {
    is_on: bool,
    is_listening: bool,
    waiting: VecDeque<u64>,
    waker: Option<Waker>,
}

/// One connection: what each side wrote is in its pipe, the client's first.
struct Link {
    pipes: [Pipe; 2],
    fate: Fate,
    /// When a side let go of it.
    dropped_at: [Option<u64>; 2],
    /// The server's machine was off since: whatever reaches it is answered with a reset.
    is_stale: bool,
}

#[derive(Default)]
struct Pipe {
    under_way: VecDeque<(u64, Vec<u8>)>,
    arrived: VecDeque<u8>,
    written: u64,
    /// How it ends, and when the reader learns that.
    end: Option<(u64, End)>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finished,
    Reset,
}

/// What will become of a connection, when so many bytes were written on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Sound,
    Cut {
        side: usize,
        at: u64,
    },
    Silence {
        side: usize,
        at: u64,
    },
    /// Nothing arrives any more, and neither side is told.
    Silent,
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
            server: Server::default(),
            stalled_until: 0,
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
            net.links.values_mut().filter(|link| link.fate != Fate::Silent).for_each(|link| link.fate = Fate::Sound);
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

    /// Lets time pass, and says whether anything is under way.
    pub fn advance(&self, now_ms: u64) -> bool {
        let mut net = self.net();
        net.now_ms = now_ms;
        let mut is_busy = false;
        for link in net.links.values_mut() {
            for pipe in &mut link.pipes {
                is_busy |= pipe.deliver(now_ms);
            }
        }
        net.links.retain(|_, link| !link.is_over(now_ms));
        is_busy
    }

    /// The machine of the server is on; what it had open before is not known to it.
    pub fn server_on(&self) {
        let mut net = self.net();
        net.server = Server { is_on: true, ..Server::default() };
        net.links.values_mut().for_each(|link| link.is_stale = true);
    }

    /// The server is gone. A process that dies has its connections reset by its machine; a machine without power says nothing.
    pub fn server_off(&self, death: Death) {
        let mut net = self.net();
        let now = net.now_ms;
        net.server = Server { is_on: death == Death::Killed, ..Server::default() };
        for link in net.links.values_mut() {
            link.pipes[CLIENT].reader = None;
            link.pipes[SERVER].writer = None;
            link.dropped_at[SERVER].get_or_insert(now);
            match death {
                Death::Killed => link.reset(now + 1),
                Death::PowerCut => link.fate = Fate::Silent,
            }
        }
    }

    /// Opens a connection to the server. Waits for as long as the machine does not answer.
    pub async fn dial(&self) -> io::Result<SimSocket> {
        loop {
            let latency = self.net().latency();
            tokio::time::sleep(Duration::from_millis(latency)).await;
            {
                let mut net = self.net();
                let now = net.now_ms;
                if net.server.is_on && now >= net.stalled_until {
                    if !net.server.is_listening {
                        return Err(io::ErrorKind::ConnectionRefused.into());
                    }
                    let id = net.connect();
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

    fn connect(&mut self) -> u64 {
        let (side, roll) = (self.dice.below(2) as usize, self.dice.below(100));
        // Most connections that break do so early, where greetings and replays are; some in the middle of much.
        let reach = [200, 1500, 6000, 40_000][self.dice.below(4) as usize];
        let at = self.dice.below(reach);
        let fate = if roll < self.weather.cuts {
            Fate::Cut { side, at }
        } else if roll < self.weather.cuts + self.weather.silences {
            Fate::Silence { side, at }
        } else {
            Fate::Sound
        };
        self.next_link += 1;
        let id = self.next_link;
        let link = Link { pipes: Default::default(), fate, dropped_at: [None; 2], is_stale: false };
        self.links.insert(id, link);
        self.server.waiting.push_back(id);
        self.server.waker.take().into_iter().for_each(Waker::wake);
        id
    }

    fn write(&mut self, id: u64, side: usize, bytes: &[u8], context: &Context<'_>) -> Poll<io::Result<usize>> {
        if side == SERVER && self.disk.died().is_some() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let (now, latency) = (self.now_ms, self.latency());
        let at = (now + latency).max(self.stalled_until);
        let Some(link) = self.links.get_mut(&id) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        let other_left = link.dropped_at[1 - side].is_some_and(|then| then + 2 < now) && link.fate != Fate::Silent;
        let is_reset = matches!(link.pipes[1 - side].end, Some((when, End::Reset)) if when <= now);
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
            Fate::Cut { side: cut, at: limit } if cut == side && before + taken.len() as u64 >= limit => {
                link.pipes[side].push(at, &taken[..passes(limit)]);
                link.reset(at);
                let who = ["to server", "to client"][side];
                self.trace.fault("cut", "network", format_args!("link {id} {who} at byte {limit}"));
            }
            Fate::Silence { side: silent, at: limit } if silent == side && before + taken.len() as u64 >= limit => {
                link.pipes[side].push(at, &taken[..passes(limit)]);
                link.fate = Fate::Silent;
                let who = ["to server", "to client"][side];
                self.trace.fault("half-open", "network", format_args!("link {id} {who} at byte {limit}"));
            }
            Fate::Silent => link.pipes[side].push(u64::MAX, taken),
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
            Some((when, End::Finished)) if when <= now => Poll::Ready(Ok(())),
            Some((when, End::Reset)) if when <= now => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
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
            && link.fate != Fate::Silent
        {
            let pipe = &mut link.pipes[side];
            let last = pipe.under_way.back().map_or(0, |(at, _)| *at);
            pipe.end.get_or_insert(((now + latency).max(last), End::Finished));
        }
    }
}

impl Link {
    fn reset(&mut self, at: u64) {
        for pipe in &mut self.pipes {
            if !matches!(pipe.end, Some((when, _)) if when <= at) {
                pipe.end = Some((at, End::Reset));
            }
            pipe.writer.take().into_iter().for_each(Waker::wake);
            pipe.reader.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Both sides have let go, long enough ago for the last bytes to have arrived.
    fn is_over(&self, now: u64) -> bool {
        self.dropped_at.iter().all(|dropped| dropped.is_some_and(|then| then + 1000 < now))
    }
}

impl Pipe {
    fn len(&self) -> usize {
        self.arrived.len() + self.under_way.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
    }

    fn push(&mut self, at: u64, bytes: &[u8]) {
        let last = self.under_way.back().map_or(0, |(at, _)| *at);
        self.under_way.push_back((at.max(last), bytes.to_vec()));
    }

    /// Moves what has arrived, and says whether more is coming.
    fn deliver(&mut self, now: u64) -> bool {
        let mut is_news = false;
        while self.under_way.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, bytes)) = self.under_way.pop_front() {
                self.arrived.extend(bytes);
                is_news = true;
            }
        }
        let ends_now = matches!(self.end, Some((at, _)) if at == now || at < now && self.reader.is_some());
        if is_news || ends_now {
            self.reader.take().into_iter().for_each(Waker::wake);
        }
        let coming = self.under_way.front().is_some_and(|(at, _)| *at != u64::MAX);
        coming || is_news || matches!(self.end, Some((at, _)) if at > now)
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

/// The network as the server sees it.
#[derive(Clone)]
pub struct ServerSide(pub SimNet);

impl fmt::Debug for ServerSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerSide")
    }
}

#[async_trait]
impl Network for ServerSide {
    async fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        self.0.net().server.is_listening = true;
        Ok(Box::new(SimListener(self.0.clone(), at)))
    }

    async fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        Err(io::ErrorKind::NotFound.into())
    }

    async fn connect(&self, _: SocketAddr) -> io::Result<Socket> {
        Err(io::ErrorKind::ConnectionRefused.into())
    }
}

struct SimListener(SimNet, SocketAddr);

impl fmt::Debug for SimListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimListener")
    }
}

#[async_trait]
impl Listener for SimListener {
    async fn accept(&self) -> io::Result<Socket> {
        let id = poll_fn(|context| {
            let mut net = self.0.net();
            match net.server.waiting.pop_front() {
                Some(id) => Poll::Ready(id),
                None => {
                    net.server.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        let link = id.await;
        Ok(Box::new(SimSocket { net: self.0.clone(), link, side: SERVER }))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.1)
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.0.net().server.is_listening = false;
    }
}
