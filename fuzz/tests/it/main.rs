//! What fuzzing found, and what it began with, run with the ordinary toolchain.
#![allow(clippy::disallowed_methods, reason = "a test is no part of a node")]

use std::fs;
use std::path::{Path, PathBuf};

use bowline_fuzz::TARGETS;

fn corpus(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.sort();
    files
}

#[test]
fn every_target_takes_its_corpus() {
    for target in TARGETS {
        let files = corpus(target.name);
        assert!(files.len() >= 5, "{} has a corpus of {} files", target.name, files.len());
        for file in files {
            // A panic says which one it was.
            println!("{}", file.display());
            (target.run)(&fs::read(&file).expect("a readable file"));
        }
    }
}
