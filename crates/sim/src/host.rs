//! The machine that the server runs on: the real node, on a runtime of its own, which dies when the runtime is dropped.

use std::sync::Arc;
use std::time::Duration;

use bowline::config::{AuthMode, Config, Ownership, StaticToken, StoreUrl, SyncMode};
use bowline::node::{Node, Own};
use bowline_core::seal::SealKey;
use bowline_env::Env;
use bowline_env::clock::{self, SimulatedClock};
use bowline_protocol::Principal;
use bowline_protocol::frame::client::Secret;
use bowline_store::RedisUrl;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::agent::SimAgent;
use crate::disk::SimDisk;
use crate::mcp::tool::SERVER;
use crate::net::{BACKEND, Machine, MachineNet, REDIS, SimNet, address};
use crate::oracle::Oracle;
use crate::scenario::{Scenario, Setup};
use crate::wire::HEARTBEAT;

/// Who may come.
pub const OWNERS: [&str; 3] = ["alice", "bob", "mallory"];
const AGENT: &str = "sim";
const SERVERS_FILE: &str = "/etc/mcp.json";

/// A server that runs.
pub struct SimHost {
    runtime: Runtime,
    clock: SimulatedClock,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Result<(), String>>,
}

impl std::fmt::Debug for SimHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Host")
    }
}

/// A runtime whose time passes only as we say, without any way to the real world.
pub fn runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_time().start_paused(true).build()?)
}

/// Lets a runtime work for so long.
pub fn run_for(runtime: &Runtime, ms: u64) {
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(ms)).await });
}

/// The settings of one node.
pub fn config(scenario: &Scenario, disk: &SimDisk, net: &SimNet, machine: Machine) -> anyhow::Result<Config> {
    let env = Env { files: Arc::new(disk.clone()), network: Arc::new(MachineNet(net.clone(), machine)) };
    let mut config = Config { listen: address(machine), env, ..Config::default() };
    config.default_agent = AGENT.into();
    match scenario.setup {
        Setup::Disk { syncs_always } => {
            config.store.url = StoreUrl::Disk("/data".into());
            config.store.sync = if syncs_always { SyncMode::Always } else { SyncMode::Interval };
        }
        Setup::Nodes { .. } => {
            let url = RedisUrl::parse(&format!("redis://{}", address(REDIS))).map_err(anyhow::Error::msg)?;
            config.store.url = StoreUrl::Redis(url);
            config.store.timeout = Duration::from_secs(2);
            config.lease.ttl = Duration::from_secs(2);
            config.lease.answer_timeout = Duration::from_secs(3);
        }
    }
    config.session.ownership = Ownership::Principal;
    config.state.keys = vec![SealKey::new("k1", &[7; 32], false)?];
    config.heartbeat.interval = HEARTBEAT;
    config.limits.send_window_bytes = scenario.window_bytes;
    // The wall clock is at most 20 minutes off when a server starts, and jumps by hours while it runs.
    config.session.ttl = Duration::from_secs(3600);
    config.drain.timeout = Duration::from_millis(500);
    if let Some(most) = scenario.events_max {
        (config.buffer.events_max, config.stream.events_max) = (most, most);
    }
    if scenario.mcp.is_some() {
        let url = format!("http://{}/mcp", address(BACKEND));
        disk.install(SERVERS_FILE, json!({ "mcpServers": { SERVER: { "url": url } } }).to_string());
        config.hub.servers_file = Some(SERVERS_FILE.into());
    }
    let token = |owner: &str| {
        let principal = Principal::parse(owner).ok_or_else(|| anyhow::anyhow!("{owner} is no principal"))?;
        anyhow::Ok(StaticToken { token: Secret::new(format!("token-of-{owner}")), principal, admin: false })
    };
    config.auth.mode = AuthMode::Tokens(OWNERS.into_iter().map(token).collect::<anyhow::Result<_>>()?);
    Ok(config)
}

impl SimHost {
    /// Starts the server; its wall clock shows `wall_ms`.
    pub fn boot(config: &Config, oracle: &Oracle, continues: bool, wall_ms: u64) -> anyhow::Result<SimHost> {
        let runtime = runtime()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let agent = Arc::new(SimAgent::new(oracle.clone(), continues));
        let config = config.clone();
        let entered = runtime.enter();
        let clock = clock::simulate(wall_ms);
        let running = runtime.spawn(async move {
            let mut own = Own::default();
            own.agents.insert(AGENT.into(), agent);
            let node = Box::pin(Node::start_with(config.into(), own)).await.map_err(|error| format!("{error:#}"))?;
            Box::pin(node.run(async move { drop(stopped.await) })).await;
            Ok(())
        });
        drop(entered);
        Ok(SimHost { runtime, clock, stop: Some(stop), running })
    }

    /// Lets the server work for so long. Returns how it ended, if it did.
    pub fn run(&mut self, ms: u64) -> Option<String> {
        self.clock.enter();
        run_for(&self.runtime, ms);
        if !self.running.is_finished() {
            return None;
        }
        let ended = self.runtime.block_on(&mut self.running);
        Some(match ended {
            Ok(Ok(())) => "stopped".into(),
            Ok(Err(error)) => error,
            Err(panic) => panic.to_string(),
        })
    }

    /// The process stood still for so long (SIGSTOP), and finds that its clock has moved on.
    pub fn wake(&mut self, ms: u64) {
        self.clock.enter();
        self.runtime.block_on(tokio::time::advance(Duration::from_millis(ms)));
    }

    /// As SIGTERM does.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    pub fn set_wall(&self, wall_ms: u64) {
        let _entered = self.runtime.enter();
        self.clock.set_wall(wall_ms);
    }

    /// Everything that the process had in memory is gone.
    pub fn die(self) {
        let SimHost { runtime, clock, running, .. } = self;
        clock.enter();
        drop(running);
        drop(runtime);
        drop(clock);
    }
}
