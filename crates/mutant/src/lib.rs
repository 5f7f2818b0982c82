//! Flaws that are planted on purpose, to show that the simulation finds them.
//!
//! `if mutant("skip-the-sync") { … }` stands in the real code where such a flaw would be. Without the feature `planted`, which only
//! the simulation turns on, it is `false` to the compiler, and nothing of it is left in a build. With the feature, `plant`
//! chooses one flaw for the whole process; what each is about says `crates/sim/src/mutants.rs`.

#[cfg(feature = "planted")]
static CHOSEN: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// Plants a flaw in this process. The first one stays.
#[cfg(feature = "planted")]
pub fn plant(name: &str) {
    let _ = CHOSEN.set(name.to_owned());
}

/// Whether this flaw is planted here.
#[cfg(feature = "planted")]
pub fn mutant(name: &str) -> bool {
    CHOSEN.get().is_some_and(|chosen| chosen == name)
}

/// Whether this flaw is planted here: in this build none is.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn mutant(_: &str) -> bool {
    false
}
