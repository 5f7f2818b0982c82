//! One thing asked of Redis: a script or a command, and the slot that it concerns.

use bytes::Bytes;
use redis::{Cmd, Pipeline};

use super::keys;
use super::script::Script;
use super::server::ServerConnection;

#[derive(Clone)]
pub struct RedisOperation {
    pub slot: u16,
    what: What,
    args: Vec<Bytes>,
}

#[derive(Clone)]
enum What {
    Script(Script, Vec<String>),
    Command(&'static str),
}

impl RedisOperation {
    /// All keys must lie in one slot.
    pub fn script(script: Script, keys: Vec<String>) -> RedisOperation {
        let slot = keys.first().map_or(0, |key| keys::slot(key.as_bytes()));
        RedisOperation { slot, what: What::Script(script, keys), args: Vec::new() }
    }

    pub fn command(name: &'static str, key: &str) -> RedisOperation {
        let args = vec![Bytes::copy_from_slice(key.as_bytes())];
        RedisOperation { slot: keys::slot(key.as_bytes()), what: What::Command(name), args }
    }

    /// A command that does not begin with its key, to the server that has it.
    pub fn about(name: &'static str, key: &str) -> RedisOperation {
        RedisOperation { slot: keys::slot(key.as_bytes()), what: What::Command(name), args: Vec::new() }
    }

    #[must_use]
    pub fn arg(mut self, arg: impl Into<Bytes>) -> RedisOperation {
        self.push(arg);
        self
    }

    pub fn push(&mut self, arg: impl Into<Bytes>) {
        self.args.push(arg.into());
    }

    /// Adds this to what is sent over `wire`; `first` are arguments that depend on who is at its other end.
    pub fn add_to(&self, commands: &mut Pipeline, wire: &ServerConnection, first: &[&[u8]]) {
        let mut command = match &self.what {
            What::Command(name) => Cmd::new().arg(*name).to_owned(),
            What::Script(script, keys) => {
                let mut command = Cmd::new().arg("EVALSHA").arg(wire.hash(*script)).arg(keys.len()).to_owned();
                for key in keys {
                    command.arg(key);
                }
                command
            }
        };
        for arg in first.iter().copied().chain(self.args.iter().map(AsRef::as_ref)) {
            command.arg(arg);
        }
        commands.add_command(command);
    }

    pub fn len(&self) -> usize {
        self.args.iter().map(Bytes::len).sum::<usize>() + 200
    }
}

/// The arguments may hold what people wrote.
impl std::fmt::Debug for RedisOperation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match &self.what {
            What::Script(script, _) => format!("{script:?}"),
            What::Command(name) => (*name).to_owned(),
        };
        write!(f, "Operation({what}, {} bytes)", self.len())
    }
}
