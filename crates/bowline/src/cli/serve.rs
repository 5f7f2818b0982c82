//! `bowline serve`: a node in this process, from its first words to its last.

use std::io::Write;

use crate::config::{AuthMode, Config, Loaded, Ownership};
use crate::node::Node;
use crate::origin::is_loopback;

/// Serves until it gets a signal to stop.
pub async fn run(loaded: Loaded) -> anyhow::Result<()> {
    raise_descriptor_limit();
    let node = Node::start(loaded).await?;
    let health = node.maintenance.logs.store.health();
    tracing::info!(address = %node.address, loss_window = %health.loss_window, "serving");
    announce(&node);
    let stop = stop_signal()?;
    node.run(stop).await;
    tracing::info!("stopped");
    Ok(())
}

/// Says on standard output what a person wants to know first. If standard output is closed, that is no reason to stop.
fn announce(node: &Node) {
    let config = &node.maintenance.config;
    let store = &config.store.url;
    let text = format!(
        "bowline {} is serving at {scheme}://{address}/\n\
         \x20 store   {store} — loss window: {}\n\
         \x20 agent   {} — talk to it with `bowline chat {ws}://{address}/ws`\n\
         \x20 access  {}\n",
        env!("CARGO_PKG_VERSION"),
        node.maintenance.logs.store.health().loss_window,
        config.default_agent,
        access(config),
        address = node.address,
        scheme = node.scheme(),
        ws = if node.scheme() == "https" { "wss" } else { "ws" },
    );
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// What is open to whom, in one line.
fn access(config: &Config) -> String {
    let auth = &config.auth;
    match &auth.mode {
        AuthMode::Tokens(tokens) => {
            let admins = tokens.iter().filter(|token| token.admin).count();
            format!("holders of one of {} tokens; the admin API: {admins} of them", tokens.len())
        }
        AuthMode::Jwt(jwt) => {
            format!("holders of a valid JWT; the admin API: those with the claim `{}`", jwt.admin_claim)
        }
        AuthMode::None => {
            let loopback = is_loopback(&config.listen);
            let whom = if loopback { "this machine" } else { "EVERY CLIENT that can reach this address, without auth" };
            let sessions = match config.session.ownership {
                Ownership::Token => "agents and tools, and each session and task with its resume token",
                Ownership::Principal | Ownership::Open => "agents, tools, and all sessions and tasks",
            };
            let admin = match (&auth.admin_token, loopback) {
                (Some(_), _) => "holders of `auth.admin_token`",
                (None, true) => "this machine",
                (None, false) => "closed, until `auth.admin_token` is set",
            };
            format!("{whom}: {sessions}; the admin API: {admin}")
        }
    }
}

/// Waits for a signal to stop. A second one ends the process at once.
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
        // An operator who asks twice does not want to wait.
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
