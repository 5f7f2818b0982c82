//! One history from its first tick to its judgement: time, the server's lives and deaths, faults, then quiet.

mod end;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use bowline::config::Config;
use bowline_env::{Network as _, entropy};
use tokio::runtime::Runtime;

use crate::agent::AgentDies;
use crate::client::holder::HoldingClient;
use crate::client::observer::ObservingClient;
use crate::client::{Clients, SharedSession, mcp, mcp_stranger, producer, stranger, turns};
use crate::dice::Dice;
use crate::disk::{Death, SimDisk};
use crate::host::{self, OWNERS, SimHost, run_for};
use crate::mcp::host::BackendHost;
use crate::net::{CLIENTS, FIRST_NODE, Machine, MachineNet, REDIS, SimNet, address};
use crate::oracle::{Oracle, Promises};
use crate::redis::server::{RedisKeeping, SimRedis};
use crate::scenario::{PlannedFault, Scenario, Setup};
use crate::trace::Trace;
use crate::wire::Balancer;

/// A Wednesday in November 2026, when all histories begin.
const WALL_START_MS: u64 = 1_795_000_000_000;
/// With nothing under way, time passes in larger steps.
const IDLE_STEP_MS: u64 = 5;
/// Once the faults have stopped, every client must come to its end within this time.
const QUIET_MAX_MS: u64 = 60_000;
/// How far the wall clock may be off when the server starts: lifetimes count from it then.
const OFF_AT_START_MS: i64 = 20 * 60 * 1000;
/// With syncs every 50 ms, on a disk that takes up to 150 ms for each: so much a power cut may cost.
const UNSYNCED_MAX_MS: u64 = 400;
/// Panics of any task count, also of those whose end no other waits for.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// How a history went.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub violations: Vec<String>,
    pub hash: u64,
    pub faults: BTreeMap<&'static str, u64>,
    pub simulated_ms: u64,
    pub lines: Vec<String>,
}

struct World {
    now_ms: u64,
    dice: Dice,
    trace: Trace,
    oracle: Oracle,
    scenario: Scenario,
    disk: SimDisk,
    net: SimNet,
    nodes: Vec<SimNode>,
    redis: Option<SimRedis>,
    /// When Redis is back.
    redis_at: Option<u64>,
    backend: Option<BackendHost>,
    clients: Clients,
    runtime: Runtime,
    is_busy: bool,
    faults: VecDeque<(u64, PlannedFault)>,
    /// What ends by itself, and when.
    full_until: u64,
    slow_until: u64,
    /// When a person restarts a server whose disk has failed.
    restart_at: Option<u64>,
    /// Since when a sync has failed that was not made good by a start of the machine.
    untrue_since: Option<u64>,
}

/// A machine with a server on it.
struct SimNode {
    machine: Machine,
    config: Config,
    host: Option<SimHost>,
    boots_at: u64,
    /// It stands still until then.
    paused_until: u64,
    /// For how long it has stood still.
    missed_ms: u64,
    /// How far its wall clock is off.
    off_ms: i64,
}

impl SimNode {
    fn name(&self) -> String {
        if self.machine == FIRST_NODE { "server".into() } else { format!("server-{}", self.machine) }
    }
}

/// Runs the history of a seed.
pub fn run(seed: u64, readable: bool) -> anyhow::Result<Outcome> {
    std::panic::set_hook(Box::new(|panic| {
        if panic.payload().is::<AgentDies>() {
            return;
        }
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string());
    }));
    let _entropy = entropy::seed(seed);
    let dice = Dice::new(seed);
    let trace = Trace::new(readable);
    let scenario = Scenario::draw(seed, dice.fork(1));
    let on_disk = matches!(scenario.setup, Setup::Disk { .. });
    let promises = Promises { tells_losses_at_once: on_disk, keeps_all: scenario.events_max.is_none() };
    let oracle = Oracle::new(trace.clone(), promises);
    let disk = SimDisk::new(dice.fork(2), trace.clone(), scenario.segment_bytes);
    let net = SimNet::new(dice.fork(3), trace.clone(), disk.clone());
    let mut nodes = Vec::new();
    for machine in FIRST_NODE..FIRST_NODE + scenario.setup.nodes() {
        let config = host::config(&scenario, &disk, &net, machine)?;
        let node = SimNode { machine, config, host: None, boots_at: 0, paused_until: 0, missed_ms: 0, off_ms: 0 };
        nodes.push(node);
    }
    let redis = match scenario.setup {
        Setup::Disk { .. } => None,
        Setup::Nodes { keeping, .. } => {
            let trace = trace.clone();
            Some(SimRedis::new(keeping, Arc::new(move || (WALL_START_MS + trace.now_ms()) * 1000)))
        }
    };
    let backend = scenario.mcp.map(|mcp| BackendHost::new(&oracle, &net, &trace, dice.fork(6), mcp.is_stateless));
    trace.note("seed", format_args!("{scenario:?}"));
    net.set_weather(scenario.weather);
    let balancer = Balancer::new(dice.fork(5), scenario.setup.nodes());
    let clients = Clients::new(net.clone(), trace.clone(), oracle.clone(), balancer);
    let mut world = World {
        now_ms: 0,
        dice: dice.fork(4),
        trace,
        oracle,
        faults: scenario.faults.clone().into(),
        disk,
        net,
        nodes,
        redis_at: redis.as_ref().map(|_| 0),
        redis,
        backend,
        clients,
        runtime: host::runtime()?,
        is_busy: true,
        full_until: 0,
        slow_until: 0,
        restart_at: None,
        untrue_since: None,
        scenario,
    };
    let sessions = world.invite(&dice);
    while world.now_ms < world.scenario.quiet_from_ms {
        world.tick()?;
    }
    world.calm_down();
    world.wait_for_clients("is not done")?;
    world.repeat(&sessions, &dice)?;
    let logs = world.audit(&sessions, &dice)?;
    world.oracle.judge(&logs);
    for panic in PANICS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        world.oracle.violate("server", panic);
    }
    Ok(Outcome {
        seed,
        violations: world.oracle.violations(),
        hash: world.trace.hash(),
        faults: world.trace.faults(),
        simulated_ms: world.now_ms,
        lines: world.trace.lines(),
    })
}

impl World {
    /// Starts the clients; returns the sessions that they will have.
    fn invite(&mut self, dice: &Dice) -> Vec<SharedSession> {
        let _entered = self.runtime.enter();
        let clients = &self.clients;
        let mut part = 100;
        let mut next = || {
            part += 1;
            dice.fork(part)
        };
        let mut sessions = Vec::new();
        for (n, party) in self.scenario.sessions.iter().enumerate() {
            let session = SharedSession::new(OWNERS[n % 2], party.holders as usize);
            for h in 0..party.holders {
                let who = format!("holder-{n}{h}");
                let holder = HoldingClient::new(clients, &session, &who, next());
                clients.spawn(&who, holder.run(h == 0));
            }
            for o in 0..party.observers {
                let who = format!("observer-{n}{o}");
                clients.spawn(&who, ObservingClient::new(clients, &session, &who, next()).run());
            }
            sessions.push(session);
        }
        for (n, readers) in self.scenario.tasks.iter().enumerate() {
            let task = producer::SharedTask::new(OWNERS[n % 2], &mut next());
            let who = format!("producer-{n}");
            clients.spawn(&who, producer::produce(clients.clone(), task.clone(), who.clone(), next()));
            for r in 0..*readers {
                let who = format!("reader-{n}{r}");
                clients.spawn(&who, producer::follow(clients.clone(), task.clone(), who.clone(), next()));
            }
        }
        for n in 0..self.scenario.http_clients {
            let (who, session) = (format!("http-{n}"), SharedSession::new(OWNERS[1], 0));
            clients.spawn(&who, turns::converse(clients.clone(), session.clone(), who.clone(), next()));
            sessions.push(session);
        }
        for n in 0..self.scenario.strangers {
            let who = format!("stranger-{n}");
            clients.spawn(&who, stranger::pry(clients.clone(), OWNERS[2].into(), who.clone(), next()));
        }
        if let (Some(party), Some(backend)) = (self.scenario.mcp, &self.backend) {
            for n in 0..party.clients {
                let (who, owner) = (format!("mcp-{n}"), OWNERS[n as usize % 2].to_owned());
                let script = mcp::call_tools(clients.clone(), backend.ledger.clone(), owner, who.clone(), next());
                clients.spawn(&who, script);
            }
            for n in 0..party.strangers {
                let (who, owner) = (format!("mcp-stranger-{n}"), OWNERS[2].to_owned());
                let script = mcp_stranger::pry(clients.clone(), backend.ledger.clone(), owner, who.clone(), next());
                clients.spawn(&who, script);
            }
        }
        sessions
    }

    fn tick(&mut self) -> anyhow::Result<()> {
        let step = if self.is_busy { 1 } else { IDLE_STEP_MS };
        self.now_ms += step;
        self.trace.set_now(self.now_ms);
        self.is_busy = self.net.advance(self.now_ms);
        while self.faults.front().is_some_and(|(at, _)| *at <= self.now_ms) {
            if let Some((_, fault)) = self.faults.pop_front() {
                self.strike(fault);
            }
        }
        self.end_what_passes();
        self.run_redis();
        self.backend.iter_mut().for_each(|backend| backend.tick(self.now_ms, &self.runtime));
        for at in 0..self.nodes.len() {
            self.run_node(at, step)?;
        }
        run_for(&self.runtime, step);
        Ok(())
    }

    fn run_redis(&mut self) {
        let Some(redis) = &self.redis else { return };
        redis.note_time();
        for _ in 0..redis.take_answers_lost() {
            self.trace.fault("lost answer", "redis", "of a commit that was done");
        }
        if self.redis_at.is_some_and(|at| at <= self.now_ms) {
            self.redis_at = None;
            self.trace.note("redis", "starts");
            self.net.machine_on(REDIS);
            let (net, redis) = (MachineNet(self.net.clone(), REDIS), redis.clone());
            self.runtime.spawn(async move {
                if let Ok(listener) = net.listen(address(REDIS)).await {
                    redis.serve(listener).await;
                }
            });
        }
    }

    /// Lets one node work.
    fn run_node(&mut self, at: usize, step: u64) -> anyhow::Result<()> {
        let node = &mut self.nodes[at];
        if node.host.is_none() && self.now_ms >= node.boots_at {
            self.boot(at)?;
        }
        let node = &mut self.nodes[at];
        let Some(host) = &mut node.host else { return Ok(()) };
        if self.now_ms < node.paused_until {
            node.missed_ms += step;
            return Ok(());
        }
        if node.missed_ms > 0 {
            host.wake(std::mem::take(&mut node.missed_ms));
        }
        let (ended, name) = (host.run(step), node.name());
        if let (Some(death), true) = (self.disk.died(), self.redis.is_none()) {
            self.die(at, death, "in the middle of a write");
        } else if let Some(how) = ended {
            self.trace.note(&name, how);
            self.down(at, Death::Killed, 300);
        }
        Ok(())
    }

    fn wall_ms(&self, at: usize) -> u64 {
        (WALL_START_MS + self.now_ms).saturating_add_signed(self.nodes[at].off_ms)
    }

    fn boot(&mut self, at: usize) -> anyhow::Result<()> {
        let off_ms = self.nodes[at].off_ms.clamp(-OFF_AT_START_MS, OFF_AT_START_MS);
        self.nodes[at].off_ms = off_ms;
        if self.redis.is_none() {
            self.disk.boot();
            self.restart_at = None;
        }
        let wall = self.wall_ms(at);
        let node = &mut self.nodes[at];
        (node.paused_until, node.missed_ms) = (0, 0);
        self.net.machine_on(node.machine);
        self.trace.note(&node.name(), "starts");
        node.host = Some(SimHost::boot(&node.config, &self.oracle, self.scenario.agent_continues, wall)?);
        Ok(())
    }

    /// A server is gone, and comes back a while later.
    fn down(&mut self, at: usize, mut death: Death, away_max_ms: u64) {
        let syncs_always = !matches!(self.scenario.setup, Setup::Disk { syncs_always: false });
        if self.disk.is_untrue() && (syncs_always || self.scenario.is_lossy) {
            // Its memory may hold what the disk does not, and the power may go later: the machine is started anew.
            death = Death::PowerCut;
        }
        let failed_ms = self.untrue_since.take().unwrap_or(self.now_ms);
        if self.redis.is_none() {
            self.disk.stop(death);
        }
        if death == Death::PowerCut && !syncs_always {
            self.oracle.allow_loss(failed_ms.saturating_sub(UNSYNCED_MAX_MS));
        }
        let away_ms = self.dice.between(1, away_max_ms);
        let node = &mut self.nodes[at];
        self.net.machine_off(node.machine, death);
        if let Some(host) = node.host.take() {
            host.die();
        }
        node.boots_at = self.now_ms + away_ms;
    }

    fn die(&mut self, at: usize, death: Death, what: &str) {
        if self.nodes[at].host.is_some() {
            let kind = match death {
                Death::Killed => "kill",
                Death::PowerCut => "power cut",
            };
            self.trace.fault(kind, &self.nodes[at].name(), what);
            self.down(at, death, 2500);
        }
    }

    fn stop(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let name = node.name();
        if let Some(host) = &mut node.host {
            self.trace.fault("stop", &name, "SIGTERM");
            host.stop();
        }
    }

    fn strike(&mut self, fault: PlannedFault) {
        match fault {
            PlannedFault::Dies(death) => self.die(0, death, "at any moment"),
            PlannedFault::DiesWriting(death, after) => self.disk.plan(|plan| plan.death = Some((after, death))),
            PlannedFault::Stops => self.stop(0),
            PlannedFault::SyncFails(after) => self.disk.plan(|plan| plan.sync_fails = Some(after)),
            PlannedFault::WriteFails(after) => self.disk.plan(|plan| plan.write_fails = Some(after)),
            PlannedFault::ReadFails(after) => self.disk.plan(|plan| plan.read_fails = Some(after)),
            PlannedFault::Full { ms } => {
                self.full_until = self.now_ms + ms;
                self.disk.plan(|plan| plan.is_full = true);
            }
            PlannedFault::Slow { ms, latency_ms } => {
                self.slow_until = self.now_ms + ms;
                self.disk.plan(|plan| plan.latency_ms = latency_ms);
            }
            PlannedFault::Stalls { ms } => self.net.stall(ms),
            PlannedFault::ClockJumps { to_ms } => {
                let at = self.dice.below(self.nodes.len() as u64) as usize;
                self.nodes[at].off_ms = to_ms;
                let wall = self.wall_ms(at);
                if let Some(host) = &self.nodes[at].host {
                    self.trace.fault("clock jump", &self.nodes[at].name(), format_args!("{to_ms} ms off"));
                    host.set_wall(wall);
                }
            }
            PlannedFault::NodeDies(node) => self.die(usize::from(node), Death::Killed, "at any moment"),
            PlannedFault::NodeStops(node) => self.stop(usize::from(node)),
            PlannedFault::NodePauses { node, ms } => {
                let node = &mut self.nodes[usize::from(node)];
                if node.host.is_some() {
                    node.paused_until = self.now_ms + ms;
                    self.trace.fault("pause", &node.name(), format_args!("{ms} ms"));
                }
            }
            PlannedFault::NodeParts { node, ms } => {
                let other = if self.dice.percent(70) { REDIS } else { CLIENTS };
                self.net.part(FIRST_NODE + node, other, ms);
            }
            PlannedFault::RedisDies { unsynced_ms, away_ms } => {
                let Some(redis) = self.redis.as_ref().filter(|_| self.redis_at.is_none()) else { return };
                self.trace.fault("redis dies", "redis", format_args!("with {unsynced_ms} ms unsynced"));
                if redis.die(unsynced_ms) {
                    let keeps =
                        matches!(self.scenario.setup, Setup::Nodes { keeping: RedisKeeping::AllButTheLast, .. });
                    let lost_ms = if keeps { unsynced_ms + 20 } else { self.now_ms };
                    self.oracle.allow_loss(self.now_ms.saturating_sub(lost_ms));
                }
                self.net.machine_off(REDIS, Death::Killed);
                self.redis_at = Some(self.now_ms + away_ms);
            }
            PlannedFault::RedisFlushed => {
                if let Some(redis) = &self.redis {
                    self.trace.fault("redis flushed", "redis", "FLUSHALL");
                    redis.flush();
                    self.oracle.allow_loss(0);
                }
            }
            PlannedFault::OfBackend(fault) => {
                self.backend.iter_mut().for_each(|backend| backend.strike(fault, self.now_ms));
            }
            PlannedFault::RedisLosesAnswer(after) => {
                self.redis.iter().for_each(|redis| redis.lose_an_answer(after));
            }
        }
    }

    fn end_what_passes(&mut self) {
        let (full, slow) = (self.now_ms < self.full_until, self.now_ms < self.slow_until);
        self.disk.plan(|plan| {
            plan.is_full &= full;
            plan.latency_ms *= u64::from(slow);
        });
        if self.disk.is_untrue() && self.restart_at.is_none() {
            self.restart_at = Some(self.now_ms + self.dice.between(200, 2000));
            self.untrue_since.get_or_insert(self.now_ms);
        }
        if self.restart_at.is_some_and(|at| at <= self.now_ms) {
            self.restart_at = None;
            self.trace.note("server", "is restarted by a person, since a sync failed");
            self.down(0, Death::Killed, 500);
        }
    }
}
