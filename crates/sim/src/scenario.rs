//! What one seed has in store: who comes, how the server is set up, and what goes wrong when.

use crate::dice::Dice;
use crate::disk::Death;
use crate::net::Weather;

/// One history, before it happens.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Sync before every answer, or now and then.
    pub syncs_always: bool,
    /// How many events a log keeps; none means all.
    pub events_max: Option<u64>,
    pub segment_bytes: u64,
    /// Whether agents go on with a run after a crash.
    pub agent_continues: bool,
    pub sessions: Vec<Party>,
    /// For each task, how many read it.
    pub tasks: Vec<u64>,
    pub http_clients: u64,
    pub strangers: u64,
    pub weather: Weather,
    pub faults: Vec<(u64, PlannedFault)>,
    pub quiet_from_ms: u64,
}

/// Who meets in one session.
#[derive(Clone, Copy, Debug)]
pub struct Party {
    pub holders: u64,
    pub observers: u64,
}

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
}

impl Scenario {
    pub fn draw(mut dice: Dice) -> Scenario {
        let syncs_always = dice.percent(80);
        let quiet_from_ms = dice.between(2_000, 12_000);
        // Each seed has its own selection: what is everywhere hides what needs a calm sea.
        let kinds: Vec<u64> = (0..10).filter(|_| dice.percent(45)).collect();
        let count = if kinds.is_empty() { 0 } else { dice.between(1, 9) };
        let mut faults: Vec<(u64, PlannedFault)> = (0..count)
            .map(|_| {
                let kind = kinds[dice.below(kinds.len() as u64) as usize];
                (dice.below(quiet_from_ms), PlannedFault::draw(kind, &mut dice, syncs_always))
            })
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        let party = |dice: &mut Dice| Party { holders: dice.between(1, 3), observers: dice.below(3) };
        let sessions = (0..dice.between(1, 4)).map(|_| party(&mut dice)).collect();
        let tasks = (0..dice.below(3)).map(|_| dice.between(1, 3)).collect();
        Scenario {
            syncs_always,
            events_max: dice.percent(15).then(|| dice.between(10, 60)),
            segment_bytes: [8 << 10, 32 << 10, 1 << 20][dice.below(3) as usize],
            agent_continues: dice.percent(40),
            sessions,
            tasks,
            http_clients: dice.below(2),
            strangers: dice.below(2),
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

impl PlannedFault {
    fn draw(kind: u64, dice: &mut Dice, syncs_always: bool) -> PlannedFault {
        // Without a sync before each answer, a power cut may lose what was answered; that is told and not promised against.
        let death = if syncs_always && dice.percent(60) { Death::PowerCut } else { Death::Killed };
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
            _ => {
                let day = 25 * 3600 * 1000;
                PlannedFault::ClockJumps { to_ms: dice.below(2 * day) as i64 - day as i64 }
            }
        }
    }
}
