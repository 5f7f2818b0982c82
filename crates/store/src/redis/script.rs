//! The atomic operations, one Lua file each. A server is given all of them when it is dialled, and called by their hashes.

/// An operation that Redis does in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    Commit,
    Lease,
    GiveBack,
    Read,
    Items,
    Trim,
    Enter,
    Leave,
    Time,
}

impl Script {
    pub const ALL: [Script; 9] = [
        Script::Commit,
        Script::Lease,
        Script::GiveBack,
        Script::Read,
        Script::Items,
        Script::Trim,
        Script::Enter,
        Script::Leave,
        Script::Time,
    ];

    pub fn source(self) -> &'static str {
        match self {
            Script::Commit => include_str!("lua/commit.lua"),
            Script::Lease => include_str!("lua/lease.lua"),
            Script::GiveBack => include_str!("lua/give_back.lua"),
            Script::Read => include_str!("lua/read.lua"),
            Script::Items => include_str!("lua/items.lua"),
            Script::Trim => include_str!("lua/trim.lua"),
            Script::Enter => include_str!("lua/enter.lua"),
            Script::Leave => include_str!("lua/leave.lua"),
            Script::Time => include_str!("lua/time.lua"),
        }
    }
}

/// What the server calls the scripts that it was given.
#[derive(Clone, Debug, Default)]
pub struct Hashes(pub [String; Script::ALL.len()]);

impl Hashes {
    pub fn of(&self, script: Script) -> &str {
        &self.0[script as usize]
    }
}
