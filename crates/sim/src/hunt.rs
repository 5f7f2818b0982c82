//! The hunt for planted flaws: each is given seeds until one of them shows it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use bowline_sim::mutants::{FLAWS, PlantedFlaw};
use serde_json::Value;

use super::{Cli, child, say};

/// How a flaw was found.
struct Caught {
    /// How many seeds were run until then.
    seeds: u64,
    /// The first rule that it broke.
    by: String,
}

/// Plants each flaw whose name contains one of the words in `named`, with commas between them. False if one survives all seeds.
pub fn all(cli: &Cli, named: &str) -> anyhow::Result<bool> {
    anyhow::ensure!(cfg!(feature = "mutants"), "flaws are planted only by a build with --features mutants");
    let is_named = |flaw: &&PlantedFlaw| named.split(',').any(|word| flaw.name.contains(word));
    let flaws: Vec<&PlantedFlaw> = FLAWS.iter().filter(is_named).collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..cli.jobs.max(1) {
            scope.spawn(|| {
                while let Some(flaw) = flaws.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let caught = hunt(flaw, cli.from, cli.seeds);
                    let seeds = caught.as_ref().map_or("not found".into(), |caught| format!("seed {}", caught.seeds));
                    say(&format!("{}: {seeds}", flaw.name));
                    found.lock().unwrap_or_else(PoisonError::into_inner).insert(flaw.name, caught);
                }
            });
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    say("| flaw | what it does | seeds until found | found by |\n|---|---|---|---|");
    for flaw in &flaws {
        let (seeds, by) = match found.get(flaw.name).and_then(Option::as_ref) {
            Some(caught) => (caught.seeds.to_string(), caught.by.as_str()),
            None => (format!("**not in {}**", cli.seeds), ""),
        };
        say(&format!("| `{}` | {} | {seeds} | {by} |", flaw.name, flaw.what));
    }
    let survivors = found.values().filter(|caught| caught.is_none()).count();
    say(&format!("{} flaws planted, {survivors} not found", flaws.len()));
    Ok(survivors == 0)
}

/// Runs seeds until one breaks a rule that it keeps without the flaw.
fn hunt(flaw: &PlantedFlaw, from: u64, seeds: u64) -> Option<Caught> {
    for seed in from..from + seeds {
        let by = match child(seed, Some(flaw.name)) {
            Ok(facts) => facts["violations"].as_array().and_then(|all| all.first()).map(shown),
            Err(_) => Some("the process of the simulation died".into()),
        };
        let is_clean =
            || child(seed, None).is_ok_and(|facts| facts["violations"].as_array().is_some_and(Vec::is_empty));
        if let Some(by) = by.filter(|_| is_clean()) {
            return Some(Caught { seeds: seed - from + 1, by });
        }
    }
    None
}

/// The beginning of a sentence, for a table.
fn shown(violation: &Value) -> String {
    let sentence = violation.as_str().unwrap_or_default().replace(['|', '\n', '`'], " ");
    let short: String = sentence.chars().take(90).collect();
    if short.len() < sentence.len() { format!("{short}…") } else { short }
}
