//! The seam to the network: the one way to listen and the one way to dial.
//!
//! A node is given its [`Network`] when it starts. [`OsNetwork`] is the operating system's; a simulation gives another, and
//! then decides which connections come about, what they carry and when they break.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the one place that opens sockets")]

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// What the kernel takes for one connection beyond what is on its way. Left to itself it takes megabytes for each client
/// that takes nothing, and they count as this server's.
const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// So long an address may take before the next one of the same name is tried beside it (RFC 8305).
const HEAD_START: Duration = Duration::from_millis(250);

/// A connection that was silent for so long is probed, and again after as long.
const PROBE_AFTER: Duration = Duration::from_secs(15);
/// So many probes may stay without an answer.
const PROBES_MAX: u32 = 3;
/// So long the other end may leave unconfirmed, or not take, what was sent to it.
#[cfg(target_os = "linux")]
const UNHEARD_MAX: Duration = Duration::from_secs(30);

/// Where connections come from and go to.
#[async_trait]
pub trait Network: Send + Sync + fmt::Debug {
    /// Takes the address; port 0 means one that is free.
    async fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>>;

    /// The addresses of a name, best first. An address that is written as one is its own.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;

    /// Opens a connection, which sends what is written at once (`TCP_NODELAY`).
    async fn connect(&self, to: SocketAddr) -> io::Result<Socket>;
}

/// An address that is listened on, for as long as this lives.
#[async_trait]
pub trait Listener: Send + Sync + fmt::Debug {
    /// The next connection, which sends what is written at once. Nothing is lost if this is not awaited to its end.
    async fn accept(&self) -> io::Result<Socket>;

    fn local_addr(&self) -> io::Result<SocketAddr>;
}

/// One connection. The pointer passes several buffers on in one write, if what it points to can take them so.
pub type Socket = Box<dyn Duplex>;

/// Bytes both ways.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Duplex for S {}

/// Opens a connection to the first address of a host that answers. Each has a head start before the next.
pub async fn dial(network: &dyn Network, host: &str, port: u16) -> io::Result<Socket> {
    let addresses = network.resolve(host, port).await?;
    connect_any(network, addresses).await
}

/// The same for addresses that are known.
pub async fn connect_any(network: &dyn Network, addresses: Vec<SocketAddr>) -> io::Result<Socket> {
    let mut addresses = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        attempts.extend(addresses.next().map(|address| network.connect(address)));
        let patience = if addresses.len() > 0 { HEAD_START } else { Duration::MAX };
        match timeout(patience, attempts.next()).await {
            Ok(Some(Ok(socket))) => return Ok(socket),
            Ok(Some(Err(error))) => failed = error,
            Ok(None) => return Err(failed),
            Err(_elapsed) => {}
        }
    }
}

/// The operating system's own network.
#[derive(Clone, Copy, Debug)]
pub struct OsNetwork;

#[async_trait]
impl Network for OsNetwork {
    async fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(OsListener(TcpListener::bind(at).await?)))
    }

    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<Socket> {
        let stream = TcpStream::connect(to).await?;
        let _ = stream.set_nodelay(true);
        watch_over(&SockRef::from(&stream));
        Ok(Box::new(stream))
    }
}

/// Has the kernel find out whether the machine at the other end is still there. Who waits for a long answer sends nothing, and would
/// wait for ever for one that is gone without a word. A program that is only slow is not meant: its kernel answers for it.
fn watch_over(socket: &SockRef<'_>) {
    let keepalive = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_AFTER).with_retries(PROBES_MAX);
    let _ = socket.set_tcp_keepalive(&keepalive);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(UNHEARD_MAX));
}

#[derive(Debug)]
struct OsListener(TcpListener);

#[async_trait]
impl Listener for OsListener {
    async fn accept(&self) -> io::Result<Socket> {
        let (stream, _) = self.0.accept().await?;
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
        Ok(Box::new(stream))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_connection_carries_bytes_both_ways_and_takes_several_buffers_at_once() {
        let listener = OsNetwork.listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (dialled, accepted) = tokio::join!(dial(&OsNetwork, "127.0.0.1", port), listener.accept());
        let (mut near, mut far) = (dialled.unwrap(), accepted.unwrap());
        assert!(near.is_write_vectored() && far.is_write_vectored(), "the pointer hides nothing");
        let written = near.write_vectored(&[IoSlice::new(b"two "), IoSlice::new(b"pieces")]).await.unwrap();
        assert_eq!(written, 10, "in one write");
        near.shutdown().await.unwrap();
        let mut read = String::new();
        far.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "two pieces");
        far.write_all(b"back").await.unwrap();
        drop(far);
        near.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "two piecesback");
    }

    /// A network in which each address refuses, is silent, or answers.
    #[derive(Debug, Default)]
    struct Scene {
        tried: Mutex<Vec<u16>>,
    }

    const REFUSES: u16 = 1;
    const SILENT: u16 = 2;
    const ANSWERS: u16 = 3;

    fn at(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    #[async_trait]
    impl Network for Scene {
        async fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn Listener>> {
            Err(io::ErrorKind::Unsupported.into())
        }

        async fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
            Ok(Vec::new())
        }

        async fn connect(&self, to: SocketAddr) -> io::Result<Socket> {
            self.tried.lock().unwrap().push(to.port());
            match to.port() {
                REFUSES => Err(io::ErrorKind::ConnectionRefused.into()),
                SILENT => std::future::pending().await,
                _ => Ok(Box::new(tokio::io::duplex(1).0)),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_address_does_not_hide_the_others_of_its_name() {
        let scene = Scene::default();
        let begun = tokio::time::Instant::now();
        connect_any(&scene, vec![at(REFUSES), at(ANSWERS), at(SILENT)]).await.unwrap();
        assert_eq!(*scene.tried.lock().unwrap(), [REFUSES, ANSWERS], "who answers first is taken");
        assert_eq!(begun.elapsed(), Duration::ZERO, "after a refusal, the next one has its turn at once");
        connect_any(&scene, vec![at(SILENT), at(SILENT), at(ANSWERS)]).await.unwrap();
        assert_eq!(begun.elapsed(), 2 * HEAD_START);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_fails_with_what_its_last_address_said() {
        let kind = async |addresses| connect_any(&Scene::default(), addresses).await.err().unwrap().kind();
        assert_eq!(kind(vec![at(REFUSES), at(REFUSES)]).await, io::ErrorKind::ConnectionRefused);
        assert_eq!(kind(Vec::new()).await, io::ErrorKind::NotFound);
        assert!(dial(&Scene::default(), "nowhere.example", 80).await.is_err());
    }
}
