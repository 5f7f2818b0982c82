//! `bowline serve`: a node in this process, from its first words to its last.

use std::io::Write;

use crate::config::Loaded;
use crate::node::Node;

/// Serves until it is told to stop.
pub async fn run(loaded: Loaded) -> anyhow::Result<()> {
    raise_descriptor_limit();
    let node = Node::start(loaded).await?;
    let health = node.shared.store.health();
    tracing::info!(address = %node.address, loss_window = %health.loss_window, "serving");
    announce(&node);
    let stop = stop_signal()?;
    node.run(stop).await;
    tracing::info!("stopped");
    Ok(())
}

/// Says on standard output what a person wants to know first. If nobody reads it, that is no reason to stop.
fn announce(node: &Node) {
    let config = &node.shared.config;
    let store = &config.store.url;
    let text = format!(
        "bowline {} is serving at {scheme}://{address}/\n\
         \x20 store   {store} — loss window: {}\n\
         \x20 agent   {} — talk to it with `bowline chat {ws}://{address}/ws`\n",
        env!("CARGO_PKG_VERSION"),
        node.shared.store.health().loss_window,
        config.default_agent,
        address = node.address,
        scheme = node.shared.scheme(),
        ws = if node.shared.tls.is_some() { "wss" } else { "ws" },
    );
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Waits until somebody asks the process to stop. Asking a second time ends it at once.
pub(super) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        {
            let terminated = std::pin::pin!(terminate.recv());
            let interrupted = std::pin::pin!(interrupt.recv());
            futures_util::future::select(terminated, interrupted).await;
        }
        tracing::info!("asked to stop");
        // Whoever asks twice does not want to wait.
        tokio::spawn(async move {
            let terminated = std::pin::pin!(terminate.recv());
            let interrupted = std::pin::pin!(interrupt.recv());
            futures_util::future::select(terminated, interrupted).await;
            std::process::exit(130);
        });
    })
}

/// Each connection is a descriptor; the soft limit is often 1024.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
