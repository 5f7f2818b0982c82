//! Every crash state of small histories: the disk as a kill or a power cut at any moment may leave it, opened again and judged.
//!
//! By default a few histories are tried, and some of the states. `CRASH_HISTORIES=200` tries so many histories, `CRASH_SEED=7` only
//! that one, and all states of them wherever there are no more than 4096 at one moment. [`platter`] says what a
//! power cut may leave.

mod disk;
mod expected;
mod history;
mod platter;

use std::collections::HashSet;

use bowline_env::entropy;
use bowline_store::contract::append;
use bowline_store::disk::Sync;
use bowline_store::{Directory, EventLog};

use self::disk::{Entry, TracedDisk};
use self::expected::{Bounds, Crash, LOGS, Life, Note, View};
use self::history::{Running, lives};
use self::platter::{Platter, Step};
use crate::common::Dice;

const HISTORIES: u64 = 20;

/// How many states of one moment are tried.
#[derive(Clone, Copy, Debug)]
struct Thoroughness {
    /// If there are no more than this, all of them.
    all_max: usize,
    /// Else so many.
    drawn: usize,
}

const THOROUGH: Thoroughness = Thoroughness { all_max: 4096, drawn: 256 };
/// For a run that must not take long.
const QUICK: Thoroughness = Thoroughness { all_max: 4, drawn: 4 };

/// One state in so many is also written to after it was opened.
const WRITTEN_EACH: u64 = 8;

const PAGE_BYTES: usize = 4096;

#[derive(Debug, Default)]
struct Counts {
    histories: u64,
    lives: u64,
    steps: u64,
    kills: u64,
    power_cuts: u64,
    /// Moments at which not all states were tried.
    sampled: u64,
    moments: u64,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[test]
fn whatever_a_crash_leaves_holds_all_that_was_answered_and_nothing_else() {
    let (seeds, thoroughness) = match (number("CRASH_SEED"), number("CRASH_HISTORIES")) {
        (Some(seed), _) => (seed..seed + 1, THOROUGH),
        (None, Some(histories)) => (1..histories + 1, THOROUGH),
        (None, None) => (1..HISTORIES + 1, QUICK),
    };
    let mut counts = Counts::default();
    for seed in seeds {
        let _entropy = entropy::seed(seed);
        counts.histories += 1;
        if counts.histories % 20 == 0 {
            println!("{counts:?}");
        }
        for (nth, life) in lives(seed).iter().enumerate() {
            counts.lives += 1;
            let dice = Dice(seed | 1 << 40);
            let mut trial = Trial { life, counts: &mut counts, thoroughness, seen: HashSet::new(), dice };
            if let Err(violation) = trial.run() {
                panic!("CRASH_SEED={seed}, life {nth} with sync {:?}: {violation}", life.sync);
            }
        }
    }
    println!("{counts:?}");
    // One history alone may be short.
    let is_enough = counts.histories == 1 || counts.power_cuts > 10 * counts.histories;
    assert!(is_enough, "too few states to mean anything: {counts:?}");
}

/// All crash states of one life.
struct Trial<'a> {
    life: &'a Life,
    counts: &'a mut Counts,
    thoroughness: Thoroughness,
    /// States that were judged already, by the same bounds.
    seen: HashSet<(u64, Bounds, Crash, bool)>,
    dice: Dice,
}

impl Trial<'_> {
    fn run(&mut self) -> Result<(), String> {
        let life = self.life;
        let (mut platter, mut bounds) = (life.start.clone(), Bounds::new());
        for (at, entry) in life.entries.iter().enumerate() {
            let told = |violation| format!("within step {at}, {}: {violation}", described(entry));
            match entry {
                Entry::Disk(step) => {
                    self.counts.steps += 1;
                    self.kill_within(&platter, step, &bounds).map_err(told)?;
                    platter.apply(step);
                }
                Entry::Note(note) => bounds.apply(note),
            }
            let told = |violation| format!("after step {at}, {}: {violation}", described(entry));
            self.kill(&platter, &bounds).map_err(told)?;
            self.cut_power(&platter, &bounds).map_err(told)?;
            if platter.is_synced() {
                bounds.synced.clone_from(&bounds.answered);
            }
        }
        Ok(())
    }

    /// A process dies between two pages that it writes, and not within one.
    fn kill_within(&mut self, platter: &Platter, step: &Step, bounds: &Bounds) -> Result<(), String> {
        let Step::Write { inode, offset, bytes } = step else { return Ok(()) };
        let first = PAGE_BYTES - *offset as usize % PAGE_BYTES;
        for end in (first..bytes.len()).step_by(PAGE_BYTES) {
            let mut torn = platter.clone();
            torn.apply(&Step::Write { inode: *inode, offset: *offset, bytes: bytes[..end].to_vec() });
            self.kill(&torn, bounds)?;
        }
        Ok(())
    }

    fn kill(&mut self, platter: &Platter, bounds: &Bounds) -> Result<(), String> {
        if self.is_new(platter, bounds, Crash::Kill) {
            self.counts.kills += 1;
            self.judge(platter.clone(), bounds, Crash::Kill).map_err(|violation| format!("killed: {violation}"))?;
        }
        Ok(())
    }

    fn cut_power(&mut self, platter: &Platter, bounds: &Bounds) -> Result<(), String> {
        let choices = platter.choices();
        let Thoroughness { all_max, drawn } = self.thoroughness;
        self.counts.moments += 1;
        let states = choices.iter().try_fold(1_usize, |states, ways| states.checked_mul(*ways));
        let all = states.filter(|states| *states <= all_max);
        self.counts.sampled += u64::from(all.is_none());
        for nth in 0..all.unwrap_or(drawn) {
            let chosen = if all.is_some() { in_turn(&choices, nth) } else { self.drawn(&choices, nth) };
            let left = platter.after_power_cut(&chosen);
            if self.is_new(&left, bounds, Crash::PowerCut) {
                self.counts.power_cuts += 1;
                let told = |violation| format!("power cut that leaves {chosen:?} of {choices:?}: {violation}");
                self.judge(left, bounds, Crash::PowerCut).map_err(told)?;
            }
        }
        Ok(())
    }

    fn is_new(&mut self, platter: &Platter, bounds: &Bounds, crash: Crash) -> bool {
        self.seen.insert((platter.fingerprint(), bounds.clone(), crash, platter.is_synced()))
    }

    /// Of too many states: none of what was not synced, all of it, each thing alone kept, each alone lost, and some drawn.
    fn drawn(&mut self, choices: &[usize], nth: usize) -> Vec<usize> {
        let all: Vec<usize> = choices.iter().map(|ways| ways - 1).collect();
        let none = vec![0; choices.len()];
        let alone = |one: usize, base: &[usize], other: &[usize]| {
            let mut chosen = base.to_vec();
            chosen[one] = other[one];
            chosen
        };
        match nth {
            0 => none,
            1 => all,
            nth if nth - 2 < choices.len() => alone(nth - 2, &none, &all),
            nth if nth - 2 < 2 * choices.len() => alone(nth - 2 - choices.len(), &all, &none),
            _ => choices.iter().map(|ways| self.dice.roll(*ways as u64) as usize).collect(),
        }
    }

    /// Opens the store on what a crash has left, and again after a power cut that costs all it can.
    fn judge(&mut self, left: Platter, bounds: &Bounds, crash: Crash) -> Result<(), String> {
        let disk = TracedDisk::on(left);
        let (view, running) = opened(&disk, self.life.sync)?;
        self.life.versions_of(&view, bounds, crash)?;
        let report = &running.report;
        let may_lose = crash == Crash::PowerCut && self.life.sync != Sync::Always;
        if !report.damage.is_empty() || (report.epochs_changed > 0 && !may_lose && self.life.epochs_left.is_empty()) {
            return Err(format!("the store takes it for damage: {report:?}"));
        }
        drop(running);
        let nothing_more = vec![0; disk.platter().choices().len()];
        let disk = TracedDisk::on(disk.platter().after_power_cut(&nothing_more));
        let (again, running) = opened(&disk, self.life.sync)?;
        same(&view, &again, self.life.sync == Sync::Always).map_err(|what| format!("opened a second time, {what}"))?;
        if self.dice.roll(WRITTEN_EACH) != 0 {
            return Ok(());
        }
        let mut expected = again;
        for (log, look) in expected.iter_mut().enumerate() {
            let Some(look) = look else { continue };
            let done = running.block_on(append(&*running.store, LOGS[log], &["one more"]));
            let first = done.map_err(|error| format!("{} takes no event: {error}", LOGS[log]))?.first.get();
            if first != look.next {
                return Err(format!("{} gives the number {first} where {} is next", LOGS[log], look.next));
            }
            // Which old ones that trims, the store says; the new one is what matters here.
            *look =
                running.block_on(crate::common::look(&*running.store, LOGS[log])).map_err(|error| error.to_string())?;
        }
        running.block_on(running.store.close());
        drop(running);
        let (after, running) = opened(&disk, self.life.sync)?;
        same(&expected, &after, true).map_err(|what| format!("written to and closed, {what}"))?;
        match running.store.health().problems.first() {
            Some(trouble) => Err(format!("written to and closed, it says: {trouble}")),
            None => Ok(()),
        }
    }
}

fn opened(disk: &TracedDisk<Note>, sync: Sync) -> Result<(View, Running), String> {
    let running = Running::open(disk, sync)?;
    Ok((running.view()?, running))
}

fn same(one: &View, other: &View, with_epochs: bool) -> Result<(), String> {
    for (log, (one, other)) in one.iter().zip(other).enumerate() {
        let mut other = other.clone();
        if let (Some(one), Some(other), false) = (one, &mut other, with_epochs) {
            other.epoch.clone_from(&one.epoch);
        }
        if *one != other {
            return Err(format!("{} was {one:?} and is {other:?}", LOGS[log]));
        }
    }
    Ok(())
}

/// The nth of all combinations.
fn in_turn(choices: &[usize], mut nth: usize) -> Vec<usize> {
    let digit = |ways: &usize| {
        let chosen = nth % ways;
        nth /= ways;
        chosen
    };
    choices.iter().map(digit).collect()
}

/// A step without the bytes that it writes.
fn described(entry: &Entry<Note>) -> String {
    match entry {
        Entry::Disk(Step::Write { inode, offset, bytes }) => {
            format!("Write {} bytes at {offset} of {inode}", bytes.len())
        }
        other => format!("{other:?}"),
    }
}
