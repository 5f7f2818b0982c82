//! `bowline mcp`: the hub over stdio, for clients that spawn a program.

use std::sync::Arc;

use anyhow::Context;
use bowline_hub::{Route, front};
use bowline_protocol::Principal;
use tokio::io::BufReader;

use crate::auth::LOCAL;
use crate::config::Loaded;
use crate::metrics::Metrics;
use crate::{hub, node};

/// Serves the client on stdin and stdout until it leaves. Logs go to stderr, as the protocol wants.
pub async fn run(loaded: Loaded, server: Option<String>) -> anyhow::Result<()> {
    let config = loaded.config;
    let store = node::open_store(&config).await?;
    let hub = hub::start(&config.hub, store.clone(), &Metrics::new(), None).await?;
    let principal = Principal::parse(LOCAL).context("the name of the local user is a principal")?;
    let route = server.map_or(Route::All, |name| Route::One(name.into()));
    let served = front::stdio::serve(
        Arc::clone(&hub),
        principal,
        route,
        BufReader::new(tokio::io::stdin()),
        tokio::io::stdout(),
    );
    let result = served.await;
    hub.close().await;
    store.close().await;
    Ok(result?)
}
