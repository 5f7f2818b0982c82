//! Runs one target: under `fuzz/run` on whatever libFuzzer makes up, else on the files that are named.
//!
//! `cargo run -p bowline-fuzz -- TARGET FILE…` repeats an input that was found.
#![allow(clippy::disallowed_methods, reason = "this program is no part of a node")]
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
mod fuzzing {
    use std::sync::OnceLock;

    use bowline_fuzz::Target;

    static TARGET: OnceLock<Target> = OnceLock::new();

    libfuzzer_sys::fuzz_target!(
        init: {
            let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
            let target = bowline_fuzz::target(&name).unwrap_or_else(|| panic!("FUZZ_TARGET={name} is no target"));
            TARGET.get_or_init(|| target);
        },
        |data: &[u8]| {
            let target = TARGET.get().expect("libFuzzer initializes before it runs");
            (target.run)(data);
        }
    );
}

#[cfg(not(fuzzing))]
fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let Some(target) = bowline_fuzz::target(&name) else {
        let names: Vec<&str> = bowline_fuzz::TARGETS.iter().map(|target| target.name).collect();
        eprintln!("usage: bowline-fuzz TARGET FILE…, with one of these targets: {}", names.join(" "));
        std::process::exit(2);
    };
    for file in arguments {
        let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        println!("{name} {file}");
        (target.run)(&bytes);
    }
}
