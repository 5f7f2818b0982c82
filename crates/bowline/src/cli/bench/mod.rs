//! `bowline bench`: clients that talk, are cut off and come back, as many as one likes; what they saw, in one table.

mod client;
mod tally;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_client::{Address, DEFAULT_WS};
use bowline_env::clock;
use bowline_env::net::OsNetwork;
use clap::Args;
use tokio::task::JoinSet;

use super::{out, token};
use client::LoadClient;
use tally::Tally;

#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// The server; its default agent must be the demo agent
    #[arg(value_name = "URL", default_value = DEFAULT_WS)]
    url: String,
    /// Clients at once, each with a session of its own
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Messages that each client sends, one after the other
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    messages: u32,
    /// Events that each answer is streamed in
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tokens: u32,
    /// Milliseconds between two of them; 0 is as fast as the server can
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pause: u32,
    /// Cut each client's wire in the middle of each answer, and come back
    #[arg(long)]
    cut: bool,
    /// Credential [env: BOWLINE_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// A server that does not take a connection for so long is not there.
const DIAL_PATIENCE: Duration = Duration::from_secs(10);
/// How often progress is printed.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Fails if any client saw an event twice, missed one, or could not go on.
pub async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let address = Address::parse(&args.url)?;
    let credential = token(args.token.clone(), "BOWLINE_TOKEN");
    reach(&address).await?;
    let answered = Arc::new(AtomicU64::new(0));
    let started = clock::now();
    let mut clients = JoinSet::new();
    for number in 0..args.clients {
        let client = LoadClient::new(address.clone(), credential.clone(), number);
        let (message, answered) = (format!("/long {} {}", args.tokens, args.pause), answered.clone());
        let (messages, cut_after) = (args.messages, args.cut.then_some(args.tokens / 2));
        clients.spawn(client.work(messages, message, cut_after, answered));
    }
    let total = u64::from(args.clients) * u64::from(args.messages);
    let progress = tokio::spawn(show_progress(answered, total));
    let mut tally = Tally::default();
    while let Some(ended) = clients.join_next().await {
        tally.add(ended?);
    }
    progress.abort();
    clear_progress();
    let report = tally.report(clock::since(started));
    if args.json {
        out::line(&report.to_json().to_string())?;
    } else {
        out::write(&report.to_table())?;
    }
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Figures of a server that is not there would only be zeros.
async fn reach(address: &Address) -> anyhow::Result<()> {
    let dialled = tokio::time::timeout(DIAL_PATIENCE, address.dial(&OsNetwork)).await;
    let why = match dialled {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    let url = address.ws_url();
    anyhow::bail!("cannot reach {url}: {why}. Is the server running? `bowline serve` starts one; URL names another.")
}

async fn show_progress(answered: Arc<AtomicU64>, total: u64) {
    while std::io::stderr().is_terminal() {
        tokio::time::sleep(PROGRESS_EVERY).await;
        out::overwrite(&format!("{} of {total} answers", answered.load(Ordering::Relaxed)));
    }
}

fn clear_progress() {
    if std::io::stderr().is_terminal() {
        out::overwrite("");
    }
}
