//! What things are called in Redis, and which slot of a cluster they lie in.
//!
//! All keys of one log share its name as their hash tag, so that one script may touch them all.

use bowline_protocol::{LogId, Principal};

use crate::LogKind;

/// How many slots a Redis Cluster has.
const SLOTS: u16 = 16_384;

/// Over so many keys the index of each kind is spread: enough that no one server of a cluster holds it all, few enough
/// that walking them is cheap.
pub const BUCKETS: u32 = 16;

#[derive(Clone, Debug)]
pub struct RedisKeys {
    prefix: String,
}

/// The keys of one log.
#[derive(Clone, Debug)]
pub struct LogKeys {
    stem: String,
    pub slot: u16,
}

impl RedisKeys {
    pub fn new(prefix: &str) -> RedisKeys {
        RedisKeys { prefix: escape(prefix) }
    }

    pub fn of(&self, log: &LogId) -> LogKeys {
        let stem = format!("{}:{{{}}}:", self.prefix, escape(log.as_str()));
        let slot = slot(stem.as_bytes());
        LogKeys { stem, slot }
    }

    /// The log that a channel wakes.
    pub fn log_of_channel(&self, channel: &str) -> Option<LogId> {
        let name = channel.strip_prefix(&self.prefix)?.strip_prefix(":{")?.strip_suffix("}:w")?;
        LogId::parse(&name.replace("%7B", "{").replace("%7D", "}").replace("%25", "%"))
    }

    /// Where logs of one kind are listed, for all owners. Logs without a record have a list of their own.
    pub fn by_kind(&self, kind: Option<LogKind>, bucket: u32) -> String {
        format!("{}:{{kind{}.{bucket}}}", self.prefix, kind_digit(kind))
    }

    /// How far the nodes' time is from the time of the server that has this key.
    pub fn time(&self) -> String {
        format!("{}:{{time}}", self.prefix)
    }

    pub fn by_owner(&self, kind: LogKind, owner: &Principal) -> String {
        format!("{}:{{owner{}.{}}}", self.prefix, kind_digit(Some(kind)), escape(owner.as_str()))
    }
}

impl LogKeys {
    /// Where the log stands, and its record.
    pub fn head(&self) -> String {
        format!("{}h", self.stem)
    }

    pub fn events(&self) -> String {
        format!("{}e", self.stem)
    }

    pub fn items(&self) -> String {
        format!("{}i", self.stem)
    }

    /// What a commit that released the log was answered, for a while.
    pub fn ghost(&self) -> String {
        format!("{}g", self.stem)
    }

    /// The channel on which readers are woken.
    pub fn channel(&self) -> String {
        format!("{}w", self.stem)
    }
}

pub fn bucket(log: &LogId) -> u32 {
    crc32fast::hash(log.as_str().as_bytes()) % BUCKETS
}

pub fn kind_digit(kind: Option<LogKind>) -> u8 {
    kind.map_or(0, |kind| kind as u8)
}

/// Braces in a name would end the hash tag early, and keys of one log would part.
fn escape(name: &str) -> String {
    name.replace('%', "%25").replace('{', "%7B").replace('}', "%7D")
}

/// The slot of a key: CRC16 (XMODEM) of its hash tag, or of all of it without one.
pub fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    let crc = tag.unwrap_or(key).iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ 0x1021,
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{}{bar}"), slot(b"foo{}{bar}"));
        assert_ne!(slot(b"foo{}{bar}"), slot(b"bar"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
    }

    #[test]
    fn the_keys_of_one_log_lie_in_one_slot_whatever_its_name() {
        for name in ["a", "}", "{}", "a{b}c", "%7D", "{"] {
            let keys = RedisKeys::new("p{q}").of(&LogId::parse(name).unwrap());
            assert_eq!(RedisKeys::new("p{q}").log_of_channel(&keys.channel()).unwrap().as_str(), name);
            for key in [keys.head(), keys.events(), keys.items(), keys.ghost(), keys.channel()] {
                assert_eq!(slot(key.as_bytes()), keys.slot, "{key}");
            }
        }
        let stem = |name| RedisKeys::new("p").of(&LogId::parse(name).unwrap()).stem;
        assert_ne!(stem("}"), stem("%7D"), "two names stay two");
    }
}
