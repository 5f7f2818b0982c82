//! A node in a world of the caller's: a network that exists only in memory.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bowline::config::Config;
use bowline_client::{Address, AttachTarget, Client, LinkConfig, LinkEvent};
use bowline_env::Env;
use bowline_env::net::{Listener, Network, Socket};
use tokio::sync::{Mutex as AsyncMutex, mpsc};

use crate::support::{self, PATIENCE, Server};

/// Connections are pipes; no other process can reach them, and they reach none.
#[derive(Clone, Debug, Default)]
struct Pipes(Arc<Mutex<HashMap<SocketAddr, mpsc::UnboundedSender<Socket>>>>);

#[derive(Debug)]
struct Mouth {
    at: SocketAddr,
    arriving: AsyncMutex<mpsc::UnboundedReceiver<Socket>>,
}

#[async_trait]
impl Network for Pipes {
    async fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let (sender, arriving) = mpsc::unbounded_channel();
        self.0.lock().unwrap().insert(at, sender);
        Ok(Box::new(Mouth { at, arriving: AsyncMutex::new(arriving) }))
    }

    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let address: IpAddr = host.parse().map_err(|_| io::Error::other(format!("{host} is no name of this world")))?;
        Ok(vec![(address, port).into()])
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<Socket> {
        let (near, far) = tokio::io::duplex(64 << 10);
        let mouths = self.0.lock().unwrap();
        let sent = mouths.get(&to).map(|mouth| mouth.send(Box::new(far)));
        if matches!(sent, Some(Ok(()))) { Ok(Box::new(near)) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
    }
}

#[async_trait]
impl Listener for Mouth {
    async fn accept(&self) -> io::Result<Socket> {
        self.arriving.lock().await.recv().await.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.at)
    }
}

/// What the client hears until its message is answered.
async fn answer(client: &mut Client) -> String {
    let answered = async {
        loop {
            match client.next().await.expect("it goes on") {
                LinkEvent::Logged(event) if event.event == "agent.final_answer" => return event.text().to_owned(),
                LinkEvent::Stopped(cause) => panic!("{cause:?}"),
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, answered).await.expect("it is answered")
}

#[tokio::test]
async fn a_node_and_its_clients_meet_on_the_network_that_they_are_given() {
    let pipes = Pipes::default();
    // No machine has this address, so the operating system could not listen on it.
    let listen = SocketAddr::from(([10, 0, 0, 1], 8080));
    let env = Env { network: Arc::new(pipes.clone()), ..Env::default() };
    let server = Server::with(Config { listen, env, insecure_no_auth: true, ..support::config() }).await;
    assert_eq!(server.address, listen);
    let client = |host: &str| {
        let address = Address::parse(&format!("ws://{host}:8080/ws")).unwrap();
        Client::new(address, None, LinkConfig::new("c")).through(Arc::new(pipes.clone()))
    };
    let mut alice = client("10.0.0.1");
    alice.start(AttachTarget::New);
    alice.message("m-1", "hello");
    let first = answer(&mut alice).await;
    assert!(!first.is_empty());
    // The wire breaks, and the client comes back over another one of the same network.
    alice.cut();
    alice.message("m-2", "hello");
    answer(&mut alice).await;
    alice.close().await;
    let mut lost = client("elsewhere.example");
    lost.start(AttachTarget::New);
    let heard = tokio::time::timeout(PATIENCE, lost.next()).await.expect("it is told at once");
    let is_unknown = |reason: &str| reason.contains("elsewhere.example is no name of this world");
    assert!(matches!(&heard, Some(LinkEvent::Lost { reason, .. }) if is_unknown(reason)), "{heard:?}");
    server.stop().await;
}
