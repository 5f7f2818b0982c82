//! `bowline-sim`: runs seeds, each in a process of its own and twice, and says what went wrong and how to repeat it.

mod hunt;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, ExitCode, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bowline_env::clock;
use bowline_sim::{picture, seeded_libc, world};
use clap::Parser;
use serde_json::{Value, json};

/// The real server in a deterministic simulation.
#[derive(Debug, Parser)]
struct Cli {
    /// How many seeds to run
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// How many at a time
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Run each seed once, without comparing two runs
    #[arg(long)]
    once: bool,
    /// Fail unless each kind of fault was delivered so often
    #[arg(long, default_value_t = 0)]
    floor: u64,
    /// Print the history of one seed
    #[arg(long, value_name = "SEED")]
    trace: Option<u64>,
    /// Draw the history of one seed as SVG
    #[arg(long, value_name = "SEED")]
    picture: Option<u64>,
    /// What of it to draw: from this simulated millisecond on
    #[arg(long, default_value_t = 0)]
    from_ms: u64,
    /// … up to this one
    #[arg(long, default_value_t = u64::MAX)]
    to_ms: u64,
    /// … and only these clients, if any is named
    #[arg(long, value_delimiter = ',')]
    clients: Vec<String>,
    /// Run one seed in this process and print its outcome as JSON
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Plant each flaw in turn, or those whose names contain this, and count the seeds until it is found
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    mutants: Option<String>,
    /// Plant this flaw in this process
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
}

#[cfg(feature = "mutants")]
fn plant(name: &str) -> bool {
    bowline_mutant::plant(name);
    true
}

#[cfg(not(feature = "mutants"))]
fn plant(_: &str) -> bool {
    false
}

/// What can be done to a server; each must have been done in a run with a floor.
const KINDS: &[&str] = &[
    "agent dies",
    "backend dies",
    "backend forgets",
    "backend pauses",
    "backend refuses",
    "clock jump",
    "cut",
    "delay",
    "disk full",
    "half-open",
    "kill",
    "lost answer",
    "lost sectors",
    "partition",
    "pause",
    "power cut",
    "read fails",
    "redis dies",
    "redis flushed",
    "slow disk",
    "stall",
    "stop",
    "sync fails",
    "write fails",
];

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(name) = &cli.mutant
        && !plant(name)
    {
        say("flaws are planted only by a build with --features mutants");
        return ExitCode::FAILURE;
    }
    let done = match (cli.seed, cli.trace, &cli.mutants) {
        (Some(seed), ..) => one(seed, false),
        (_, Some(seed), _) => one(seed, true),
        (.., Some(named)) => hunt::all(&cli, named),
        _ if cli.picture.is_some() => draw(&cli),
        _ => many(&cli),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One seed in this process.
fn one(seed: u64, readable: bool) -> anyhow::Result<bool> {
    seeded_libc::seed(seed);
    let outcome = world::run(seed, readable)?;
    let mut out = std::io::stdout().lock();
    for line in &outcome.lines {
        writeln!(out, "{line}")?;
    }
    let facts = json!({
        "seed": seed,
        "hash": format!("{:016x}", outcome.hash),
        "violations": outcome.violations,
        "faults": outcome.faults,
        "simulated_ms": outcome.simulated_ms,
    });
    writeln!(out, "{facts}")?;
    Ok(outcome.violations.is_empty())
}

/// The history of one seed, or a part of it, as a picture.
fn draw(cli: &Cli) -> anyhow::Result<bool> {
    let seed = cli.picture.unwrap_or_default();
    seeded_libc::seed(seed);
    let outcome = world::run(seed, true)?;
    say(picture::svg(&outcome.lines, (cli.from_ms, cli.to_ms), &cli.clients).trim_end());
    Ok(outcome.violations.is_empty())
}

#[derive(Default)]
struct Sum {
    done: u64,
    failed: Vec<u64>,
    simulated_ms: u64,
    faults: BTreeMap<String, u64>,
}

/// Many seeds, each in processes of their own.
fn many(cli: &Cli) -> anyhow::Result<bool> {
    let (next, sum) = (AtomicU64::new(cli.from), Mutex::new(Sum::default()));
    let (end, began) = (cli.from + cli.seeds, clock::now());
    std::thread::scope(|scope| {
        for _ in 0..cli.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let told = judge(seed, cli.once);
                    let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                    sum.add(seed, &told);
                    if sum.done.is_multiple_of(100) || sum.done == cli.seeds {
                        say(&sum.progress(cli, clock::since(began).as_secs_f64()));
                    }
                }
            });
        }
    });
    let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    say(&format!(
        "{} seeds, {} simulated seconds, {} faults delivered",
        sum.done,
        sum.simulated_ms / 1000,
        sum.total()
    ));
    for (kind, count) in &sum.faults {
        say(&format!("  {kind:<14} {count}"));
    }
    let scarce: Vec<&&str> =
        KINDS.iter().filter(|kind| sum.faults.get(**kind).copied().unwrap_or(0) < cli.floor).collect();
    if !scarce.is_empty() {
        say(&format!("delivered less than {} times: {scarce:?}", cli.floor));
    }
    if !sum.failed.is_empty() {
        say(&format!("failed: {:?}", sum.failed));
    }
    Ok(sum.failed.is_empty() && scarce.is_empty())
}

impl Sum {
    fn total(&self) -> u64 {
        self.faults.values().sum()
    }

    /// A line for one who looks in from time to time, or goes on later from where this was stopped.
    fn progress(&self, cli: &Cli, seconds: f64) -> String {
        let (done, rate) = (self.done, self.done as f64 / seconds);
        let (faults, failed) = (self.total(), self.failed.len());
        // Those that other threads are at may be run again.
        let next = cli.from + done.saturating_sub(cli.jobs.max(1) - 1);
        format!(
            "{done} of {} seeds, {rate:.1} a second, {faults} faults, {failed} failed; go on with --from {next}",
            cli.seeds
        )
    }

    fn add(&mut self, seed: u64, told: &Result<Value, String>) {
        self.done += 1;
        match told {
            Ok(facts) => {
                self.simulated_ms += facts["simulated_ms"].as_u64().unwrap_or(0);
                for (kind, count) in facts["faults"].as_object().into_iter().flatten() {
                    *self.faults.entry(kind.clone()).or_default() += count.as_u64().unwrap_or(0);
                }
            }
            Err(why) => {
                self.failed.push(seed);
                say(&format!(
                    "seed {seed} FAILED\n{why}\nrepeat: cargo run --release -p bowline-sim -- --trace {seed}"
                ));
            }
        }
    }
}

/// Runs a seed in one process, and in another to compare.
fn judge(seed: u64, once: bool) -> Result<Value, String> {
    let first = child(seed, None)?;
    if !once {
        let second = child(seed, None)?;
        if first != second {
            return Err(format!("two runs differ:\n  {first}\n  {second}"));
        }
    }
    let violations: Vec<&str> =
        first["violations"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if violations.is_empty() { Ok(first) } else { Err(format!("  {}", violations.join("\n  "))) }
}

/// Runs a seed in a process of its own, with a flaw or without.
fn child(seed: u64, mutant: Option<&str>) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["--seed", &seed.to_string()]);
    if let Some(name) = mutant {
        command.args(["--mutant", name]);
    }
    let ran = command.output();
    let Output { status, stdout, stderr } = ran.map_err(|error| error.to_string())?;
    let last = String::from_utf8_lossy(&stdout).lines().last().map(str::to_owned).unwrap_or_default();
    serde_json::from_str(&last).map_err(|_| format!("{status}: {}", String::from_utf8_lossy(&stderr)))
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
