//! One neutral load generator, many peers. Prints one JSON line per run.
mod driver;
mod drivers;
mod payload;
mod procstat;
mod proto;
mod stats;
mod workloads;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use std::{net::SocketAddr, sync::Arc, time::Duration};

#[derive(Parser)]
#[command(about = "Load generator for resumable session/stream servers")]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Args, Clone)]
pub struct Common {
    /// Peer protocol, one of drivers/*.rs
    #[arg(long)]
    pub driver: String,
    /// Where subscribers connect
    #[arg(long)]
    pub addr: SocketAddr,
    /// Where publishers connect, when that is a different process
    #[arg(long)]
    pub pub_addr: Option<SocketAddr>,
    /// Pids whose CPU and memory are charged to the server
    #[arg(long, value_delimiter = ',')]
    pub server_pid: Vec<u32>,
    /// Name in the result line (default: the driver)
    #[arg(long)]
    pub label: Option<String>,
    /// Runtime threads; 1 is right when the generator is pinned to one core
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Give up on connecting, draining or replaying after this many seconds
    #[arg(long, default_value_t = 60)]
    pub timeout: u64,
    /// Handshakes in flight at once
    #[arg(long, default_value_t = 256)]
    pub connect_parallel: usize,
    /// Run server and generator at SCHED_RR during the measured phase (needs privilege)
    #[arg(long)]
    pub realtime: bool,
    /// Stream name prefix; change it to avoid state left by an earlier run
    #[arg(long, default_value = "s")]
    pub prefix: String,
}

#[derive(Subcommand)]
enum Workload {
    /// One publisher, N subscribers on one stream
    Fanout(workloads::live::FanoutArgs),
    /// S independent streams, one publisher and one subscriber each
    Many(workloads::live::ManyArgs),
    /// K clients resume at once, each owed B buffered messages
    Resume(workloads::resume::ResumeArgs),
    /// C idle subscribers, each on its own stream
    Idle(workloads::idle::IdleArgs),
}

pub struct Ctx {
    pub c: Common,
    pub driver: Arc<dyn driver::Driver>,
}

impl Ctx {
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.c.timeout)
    }
}

async fn run(cli: Cli) -> Result<serde_json::Value> {
    let c = cli.common;
    let driver = drivers::make(&c)?;
    driver.prepare().await?;
    let ctx = Arc::new(Ctx { c, driver });
    let label = ctx.c.label.clone().unwrap_or(ctx.c.driver.clone());
    let mut v = match cli.workload {
        Workload::Fanout(a) => workloads::live::fanout(ctx, a).await?,
        Workload::Many(a) => workloads::live::many(ctx, a).await?,
        Workload::Resume(a) => workloads::resume::run(ctx, a).await?,
        Workload::Idle(a) => workloads::idle::run(ctx, a).await?,
    };
    v["peer"] = label.into();
    v["client_cpu_s"] = procstat::cpu_s(&[std::process::id()]).into();
    Ok(v)
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    payload::now_ns();
    let rt = match cli.common.threads {
        1 => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        n => tokio::runtime::Builder::new_multi_thread().worker_threads(n).enable_all().build()?,
    };
    let result = rt.block_on(run(cli));
    rt.shutdown_background();
    match result {
        Ok(v) => println!("{v}"),
        Err(e) => {
            eprintln!("load: {e:#}");
            std::process::exit(1);
        }
    }
    Ok(())
}
