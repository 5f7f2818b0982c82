//! The tools of the simulated backend. What one answers follows from its name and its key, so that a client knows an answer that is not
//! its own.

use crate::dice::Dice;

/// As which server the hub knows the backend.
pub const SERVER: &str = "work";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimTool {
    /// Runs at once.
    Count,
    /// Takes its time, says how far it is, and has its effect at its end.
    Slow,
    /// Runs, and says that it failed.
    Fail,
}

impl SimTool {
    pub const ALL: [SimTool; 3] = [SimTool::Count, SimTool::Slow, SimTool::Fail];

    pub fn name(self) -> &'static str {
        match self {
            SimTool::Count => "count",
            SimTool::Slow => "slow",
            SimTool::Fail => "fail",
        }
    }

    pub fn of(name: &str) -> Option<SimTool> {
        SimTool::ALL.into_iter().find(|tool| tool.name() == name)
    }

    pub fn draw(dice: &mut Dice) -> SimTool {
        match dice.below(10) {
            0..5 => SimTool::Slow,
            5 => SimTool::Fail,
            _ => SimTool::Count,
        }
    }

    /// What it answers to the call with this key.
    pub fn answer(self, key: &str) -> String {
        let sum = key.bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)) % 1_000_003);
        format!("{} {key} {sum}", self.name())
    }
}
