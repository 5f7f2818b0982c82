//! A curtain before a server: while it is down, its wires are cut, and whoever comes is let in and told nothing.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub struct Curtain {
    pub port: u16,
    down: watch::Sender<bool>,
}

impl Curtain {
    /// Before the server at this port of ours.
    pub async fn before(port: u16) -> Curtain {
        let behind = SocketAddr::from(([127, 0, 0, 1], port));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (down, is_down) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, behind, is_down.clone()));
            }
        });
        Curtain { port, down }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    pub fn fall(&self) {
        self.down.send_replace(true);
    }

    pub fn rise(&self) {
        self.down.send_replace(false);
    }
}

async fn carry(mut client: TcpStream, behind: SocketAddr, mut is_down: watch::Receiver<bool>) {
    if *is_down.borrow_and_update() {
        // Also when the curtain is up again: what was not heard then is not heard later.
        while is_down.changed().await.is_ok() {}
        return;
    }
    let Ok(mut server) = TcpStream::connect(behind).await else { return };
    let carried = tokio::io::copy_bidirectional(&mut client, &mut server);
    let falls = is_down.wait_for(|down| *down);
    futures_util::future::select(std::pin::pin!(carried), std::pin::pin!(falls)).await;
}
