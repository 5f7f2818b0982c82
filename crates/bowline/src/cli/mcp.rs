//! `bowline mcp`: the hub over stdio, for clients that spawn a program.

use std::sync::Arc;

use anyhow::Context;
use bowline_env::files::OsFiles;
use bowline_hub::{Requester, Route, downstream, file};
use bowline_protocol::Principal;
use bowline_store::Store;
use futures_util::future::{Either, select};
use tokio::io::BufReader;
use tokio::signal::unix::{SignalKind, signal};

use super::serve::stop_signal;
use crate::auth::LOCAL;
use crate::config::{Config, Loaded, StoreUrl};
use crate::metrics::Metrics;
use crate::{format, hub, node};

/// Serves the client on stdin and stdout until it leaves. Logs go to stderr, as the protocol wants.
pub async fn run(loaded: Loaded, server: Option<String>) -> anyhow::Result<()> {
    // A terminal that is closed takes its programs along; they must not find out for themselves.
    let mut hangup = signal(SignalKind::hangup())?;
    let stop = stop_signal()?;
    let stop = async move {
        select(std::pin::pin!(stop), std::pin::pin!(hangup.recv())).await;
    };
    let config = loaded.config;
    if let Some(path) = &config.hub.servers_file {
        // Run for one client, this prints at once what a server would only write to its log.
        file::read(&OsFiles, path).context("the servers cannot be known")?;
    }
    let store = open_store(&config).await?;
    let clock = bowline_store::clock_of(store.as_ref()).await?;
    format::check(&store, clock.now_ms()).await?;
    let hub = hub::start(&config, store.clone(), clock, &Metrics::new(), None).await?;
    let principal = Principal::parse(LOCAL).context("the name of the local user is a principal")?;
    let route = server.map_or(Route::All, |name| Route::One(name.into()));
    let served = downstream::stdio::serve(
        Arc::clone(&hub),
        Requester::operator(principal),
        route,
        config.hub.body_bytes_max,
        BufReader::new(tokio::io::stdin()),
        tokio::io::stdout(),
    );
    // Also a client that kills us must not leave the programs behind that we have started.
    let result = match select(std::pin::pin!(served), std::pin::pin!(stop)).await {
        Either::Left((served, _)) => served,
        Either::Right(_) => Ok(()),
    };
    hub.close().await;
    store.close().await;
    Ok(result?)
}

/// The store of this process alone.
async fn open_store(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    // On Redis there may be nodes, whose sessions and tasks are theirs; this process is none of them.
    anyhow::ensure!(
        !matches!(config.store.url, StoreUrl::Redis(_)),
        "`bowline mcp` is no node, and cannot share the Redis store of those that are. Give it --store disk:DIR or --store \
         memory:, or use /mcp of a node."
    );
    node::open_store(config).await.with_context(|| {
        let url = &config.store.url;
        format!(
            "`bowline mcp` cannot have the store {url}. Give it one of its own with --store disk:DIR or --store memory:"
        )
    })
}
