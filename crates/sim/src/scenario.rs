//! What one seed has in store: who comes, how the server is set up, and what goes wrong when.

use crate::dice::Dice;
use crate::disk::Death;
use crate::mcp::host::BackendFault;
use crate::net::Weather;
use crate::redis::server::RedisKeeping;

/// One history, before it happens.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub setup: Setup,
    /// What was answered may be lost by something that happens, and that has to be told.
    pub is_lossy: bool,
    /// How many events a log keeps; none means all.
    pub events_max: Option<u64>,
    pub segment_bytes: u64,
    /// How much is handed to a socket before it must have taken it.
    pub window_bytes: usize,
    /// Whether agents go on with a run after a crash.
    pub agent_continues: bool,
    pub sessions: Vec<Party>,
    /// For each task, how many read it.
    pub tasks: Vec<u64>,
    pub http_clients: u64,
    pub strangers: u64,
    pub mcp: Option<McpParty>,
    pub weather: Weather,
    pub faults: Vec<(u64, PlannedFault)>,
    pub quiet_from_ms: u64,
}

/// What runs where.
#[derive(Clone, Copy, Debug)]
pub enum Setup {
    /// One node on a disk, which is synced before every answer or now and then.
    Disk { syncs_always: bool },
    /// Some nodes on one Redis.
    Nodes { nodes: u8, keeping: RedisKeeping },
}

impl Setup {
    pub fn nodes(self) -> u8 {
        match self {
            Setup::Disk { .. } => 1,
            Setup::Nodes { nodes, .. } => nodes,
        }
    }
}

/// Who meets in one session.
#[derive(Clone, Copy, Debug)]
pub struct Party {
    pub holders: u64,
    pub observers: u64,
}

/// Who comes to the hub, if it has a backend.
#[derive(Clone, Copy, Debug)]
pub struct McpParty {
    pub clients: u64,
    pub strangers: u64,
    /// The backend speaks the revision without sessions.
    pub is_stateless: bool,
}

/// The dice of this part of a seed: drawn beside all others, which fall as they did before there was a backend. So do whole seeds that
/// have none; this number leaves those that docs/proof.md and the tests name without one.
const MCP_PART: u64 = 2830;

/// What happens to a node is counted from the first one.
#[derive(Clone, Copy, Debug)]
pub enum PlannedFault {
    Dies(Death),
    /// In the middle of an operation of the disk, so many from now.
    DiesWriting(Death, u64),
    /// SIGTERM.
    Stops,
    SyncFails(u64),
    WriteFails(u64),
    ReadFails(u64),
    Full {
        ms: u64,
    },
    Slow {
        ms: u64,
        latency_ms: u64,
    },
    Stalls {
        ms: u64,
    },
    ClockJumps {
        to_ms: i64,
    },
    NodeDies(u8),
    NodeStops(u8),
    /// SIGSTOP, and SIGCONT later.
    NodePauses {
        node: u8,
        ms: u64,
    },
    /// Nothing passes between a node and Redis.
    NodeParts {
        node: u8,
        ms: u64,
    },
    RedisDies {
        unsynced_ms: u64,
        away_ms: u64,
    },
    RedisFlushed,
    /// So many commits from now one is done and its answer lost.
    RedisLosesAnswer(u64),
    OfBackend(BackendFault),
}

impl Scenario {
    /// Of three seeds, one has several nodes.
    pub fn draw(seed: u64, mut dice: Dice) -> Scenario {
        let mut mcp_dice = dice.fork(MCP_PART);
        let setup = if seed.is_multiple_of(3) {
            let keeping = match dice.below(10) {
                0..6 => RedisKeeping::Everything,
                6..9 => RedisKeeping::AllButTheLast,
                _ => RedisKeeping::Nothing,
            };
            Setup::Nodes { nodes: dice.between(2, 4) as u8, keeping }
        } else {
            Setup::Disk { syncs_always: dice.percent(80) }
        };
        let may_lose = dice.percent(40);
        let quiet_from_ms = dice.between(2_000, 12_000);
        // Each seed has its own selection: what is everywhere hides what needs a calm sea.
        let kinds: Vec<u64> = (0..10).filter(|_| dice.percent(45)).collect();
        let count = if kinds.is_empty() { 0 } else { dice.between(1, 9) };
        let mut faults: Vec<(u64, PlannedFault)> = (0..count)
            .map(|_| {
                let kind = kinds[dice.below(kinds.len() as u64) as usize];
                let at = dice.below(quiet_from_ms);
                let fault = match setup {
                    Setup::Disk { syncs_always } => PlannedFault::of_disk(kind, &mut dice, syncs_always || may_lose),
                    Setup::Nodes { nodes, keeping } => {
                        PlannedFault::of_nodes(kind, &mut dice, nodes, may_lose || keeping == RedisKeeping::Everything)
                    }
                };
                (at, fault)
            })
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        let is_lossy = faults.iter().any(|(_, fault)| fault.loses(setup));
        let party = |dice: &mut Dice| Party { holders: dice.between(1, 3), observers: dice.below(3) };
        let sessions = (0..dice.between(1, 4)).map(|_| party(&mut dice)).collect();
        let tasks: Vec<u64> = (0..dice.below(3)).map(|_| dice.between(1, 3)).collect();
        let http_clients = dice.below(2);
        let mcp = McpParty::draw(&mut mcp_dice);
        if mcp.is_some() {
            let count = mcp_dice.below(6);
            faults.extend((0..count).map(|_| {
                let at = mcp_dice.below(quiet_from_ms);
                (at, PlannedFault::OfBackend(BackendFault::draw(&mut mcp_dice, setup.nodes())))
            }));
            faults.sort_by_key(|(at, _)| *at);
        }
        Scenario {
            setup,
            is_lossy,
            events_max: dice.percent(15).then(|| dice.between(10, 60)),
            segment_bytes: [8 << 10, 32 << 10, 1 << 20][dice.below(3) as usize],
            window_bytes: [1 << 10, 8 << 10, 256 << 10][dice.below(3) as usize],
            agent_continues: dice.percent(40),
            sessions,
            // These have no script for what to do when their task or session is gone.
            tasks: if is_lossy { Vec::new() } else { tasks },
            http_clients: if is_lossy { 0 } else { http_clients },
            strangers: dice.below(2),
            mcp,
            weather: Weather {
                cuts: [0, 10, 40][dice.below(3) as usize],
                silences: [0, 0, 10][dice.below(3) as usize],
                delays: [0, 2, 10][dice.below(3) as usize],
            },
            faults,
            quiet_from_ms,
        }
    }
}

impl McpParty {
    /// One seed of three has a backend.
    fn draw(dice: &mut Dice) -> Option<McpParty> {
        dice.percent(33).then(|| McpParty {
            clients: dice.between(1, 4),
            strangers: dice.below(2),
            is_stateless: dice.percent(35),
        })
    }
}

impl PlannedFault {
    /// Whether what was answered may be gone after it.
    fn loses(self, setup: Setup) -> bool {
        match (self, setup) {
            (
                PlannedFault::Dies(Death::PowerCut) | PlannedFault::DiesWriting(Death::PowerCut, _),
                Setup::Disk { syncs_always },
            ) => !syncs_always,
            (PlannedFault::RedisDies { .. }, Setup::Nodes { keeping, .. }) => keeping != RedisKeeping::Everything,
            (PlannedFault::RedisFlushed, _) => true,
            _ => false,
        }
    }

    /// `cuts_power` says whether the power may be cut.
    fn of_disk(kind: u64, dice: &mut Dice, cuts_power: bool) -> PlannedFault {
        let death = if cuts_power && dice.percent(60) { Death::PowerCut } else { Death::Killed };
        match kind {
            0 => PlannedFault::Dies(death),
            1 | 2 => PlannedFault::DiesWriting(death, dice.below(60)),
            3 => PlannedFault::Stops,
            4 => PlannedFault::SyncFails(dice.below(15)),
            5 => PlannedFault::WriteFails(dice.below(15)),
            6 => PlannedFault::ReadFails(dice.below(10)),
            7 => PlannedFault::Full { ms: dice.between(200, 3000) },
            8 if dice.percent(50) => {
                PlannedFault::Slow { ms: dice.between(200, 2000), latency_ms: dice.between(2, 150) }
            }
            8 => PlannedFault::Stalls { ms: dice.between(100, 3000) },
            _ => PlannedFault::clock(dice),
        }
    }

    /// `redis_dies` says whether Redis may.
    fn of_nodes(kind: u64, dice: &mut Dice, nodes: u8, redis_dies: bool) -> PlannedFault {
        let node = dice.below(u64::from(nodes)) as u8;
        match kind {
            0 | 1 => PlannedFault::NodeDies(node),
            2 => PlannedFault::NodeStops(node),
            3 | 4 => PlannedFault::NodePauses { node, ms: dice.between(100, 6000) },
            5 => PlannedFault::NodeParts { node, ms: dice.between(100, 5000) },
            6 | 7 => PlannedFault::RedisLosesAnswer(dice.below(40)),
            8 if redis_dies && dice.percent(15) => PlannedFault::RedisFlushed,
            8 if redis_dies => {
                PlannedFault::RedisDies { unsynced_ms: dice.below(1000), away_ms: dice.between(1, 3000) }
            }
            8 => PlannedFault::Stalls { ms: dice.between(100, 3000) },
            _ => PlannedFault::clock(dice),
        }
    }

    fn clock(dice: &mut Dice) -> PlannedFault {
        let day = 25 * 3600 * 1000;
        PlannedFault::ClockJumps { to_ms: dice.below(2 * day) as i64 - day as i64 }
    }
}
