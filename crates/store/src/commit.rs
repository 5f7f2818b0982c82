//! The one way to change anything: a commit to one log, and what comes back.

use std::fmt;
use std::sync::Arc;

use bowline_protocol::{Epoch, LogId, Principal, Recorded, Seq, Unnumbered};
use bytes::Bytes;

/// The growing number of a right to write. The newest wins; a stale one cannot write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub u64);

impl Fence {
    /// That of a log which was never leased, and is open to all: a node's inbox and its heartbeat, a lock, a name.
    ///
    /// Many may write such a log at the same time, and a commit whose answer was lost may take effect later than the
    /// ones after it. So what is written must be right in any order and when repeated: because it is numbered by its
    /// writer, or creates the log, or is only as true as the next one. A commit in doubt does not shut its writer out.
    pub const OPEN: Fence = Fence(0);
}

/// The node that may write to a log, by the name of the running server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(Arc<str>);

impl Holder {
    /// Long enough for any name of a log.
    pub const LEN_MAX: usize = 128;

    /// Printable ASCII without spaces.
    pub fn parse(text: &str) -> Option<Holder> {
        let sound = (1..=Holder::LEN_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        sound.then(|| Holder(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who asks for the right to write, and from whom it may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub by: Holder,
    /// A holder that is known not to write any more, or is to be shut out.
    pub instead_of: Option<Holder>,
}

impl Claim {
    pub fn by(by: Holder) -> Claim {
        Claim { by, instead_of: None }
    }

    /// That of a server which shares its store with no other: it gets whatever it asks for.
    pub fn alone() -> Claim {
        Claim::by(Holder("node".into()))
    }

    /// Whether this is granted while `holder` has the log.
    pub(crate) fn beats(&self, holder: Option<&Holder>) -> bool {
        holder.is_none_or(|holder| *holder == self.by || Some(holder) == self.instead_of.as_ref())
    }
}

/// What a claim came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leased {
    Granted(Fence),
    /// Another holder has the log, and nothing was changed.
    Held(Holder),
}

impl Leased {
    /// The fence, for those who can do nothing without it.
    pub fn fence(self) -> Result<Fence, StoreError> {
        match self {
            Leased::Granted(fence) => Ok(fence),
            Leased::Held(by) => Err(StoreError::Held(by)),
        }
    }
}

/// What a log is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LogKind {
    Session = 1,
    Task = 2,
    /// Another name of a session's log.
    Alias = 3,
    /// How far the signed states of one session were restored.
    Restored = 4,
    /// What one client of the MCP hub is owed.
    Mcp = 5,
    /// What the MCP hub itself has to remember.
    Hub = 6,
    /// A running server: the log is its inbox, the record its heartbeat.
    Node = 7,
}

impl LogKind {
    pub fn from_byte(byte: u8) -> Option<LogKind> {
        match byte {
            1 => Some(LogKind::Session),
            2 => Some(LogKind::Task),
            3 => Some(LogKind::Alias),
            4 => Some(LogKind::Restored),
            5 => Some(LogKind::Mcp),
            6 => Some(LogKind::Hub),
            7 => Some(LogKind::Node),
            _ => None,
        }
    }
}

/// What the directory knows of a log. `body` is the caller's own; the store only keeps it.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    pub kind: LogKind,
    pub owner: Principal,
    /// When it was last touched, in milliseconds since 1970, as the caller says.
    pub touched_ms: u64,
    pub body: Bytes,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({:?} of {}, {} bytes)", self.kind, self.owner, self.body.len())
    }
}

/// A small durable fact beside a log: a message of the conversation, an idempotency key, a mark.
#[derive(Clone, PartialEq, Eq)]
pub struct Item {
    pub key: String,
    /// `None` deletes it.
    pub value: Option<Bytes>,
}

impl Item {
    pub fn put(key: impl Into<String>, value: impl Into<Bytes>) -> Item {
        Item { key: key.into(), value: Some(value.into()) }
    }

    pub fn delete(key: impl Into<String>) -> Item {
        Item { key: key.into(), value: None }
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Item({}, {:?} bytes)", self.key, self.value.as_ref().map(Bytes::len))
    }
}

/// How a new log begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub epoch: Epoch,
    /// The first event gets the number after this one; `0` for a log that is new to the world.
    pub after: Seq,
}

/// What to let go of, after the rest of the commit has been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Events and items; the record stays as a tombstone, and numbering goes on where it was.
    Contents,
    /// Everything: the log was never there.
    Log,
}

/// One atomic change to one log.
#[derive(Clone, Debug)]
pub struct Commit {
    pub log: LogId,
    pub fence: Fence,
    /// Creates the log; it must not exist. Without this it must.
    pub create: Option<Start>,
    pub events: Vec<Unnumbered>,
    /// The time of these events, in milliseconds since 1970, for retention by age.
    pub at_ms: u64,
    pub record: Option<Record>,
    pub items: Vec<Item>,
    pub release: Option<Release>,
}

impl Commit {
    pub fn to(log: LogId, fence: Fence, at_ms: u64) -> Commit {
        Commit { log, fence, create: None, events: Vec::new(), at_ms, record: None, items: Vec::new(), release: None }
    }

    /// Names are checked when they are made from text, but not when they come through `serde`. One that could not be
    /// read back would look like damage. A log that exists has been checked when it was created.
    pub(crate) fn check_names(&self) -> Result<(), StoreError> {
        let owner = self.record.as_ref().map(|record| record.owner.as_str());
        let epoch = self.create.as_ref().map(|start| start.epoch.as_str());
        let sound = self.create.as_ref().is_none_or(|_| LogId::parse(self.log.as_str()).is_some())
            && owner.is_none_or(|owner| Principal::parse(owner).is_some())
            && epoch.is_none_or(|epoch| Epoch::parse(epoch).is_some());
        sound.then_some(()).ok_or_else(|| StoreError::Io("a name in this commit is not one that can be stored".into()))
    }

    /// About how many bytes this will take.
    pub fn len_hint(&self) -> usize {
        let events: usize = self.events.iter().map(Unnumbered::len_max).sum();
        let items: usize = self.items.iter().map(|i| i.key.len() + i.value.as_ref().map_or(0, Bytes::len) + 8).sum();
        events + items + self.record.as_ref().map_or(0, |r| r.body.len() + 64) + 64
    }
}

/// What a commit did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub epoch: Epoch,
    /// The number of the first event of this commit; that of the next one to come if it had none.
    pub first: Seq,
    pub next: Seq,
    /// What retention by count let go of because of this commit.
    pub trimmed: Option<Trimmed>,
}

/// Events `from .. to` of a log can no longer be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trimmed {
    pub log: LogId,
    pub from: Seq,
    pub to: Seq,
}

/// How much to read at once. At least one event is returned if there is one, whatever its size.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimit {
    pub events: usize,
    pub bytes: usize,
}

/// Events in order without holes, beginning at `max(from, first)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub events: Vec<Recorded>,
    /// The epoch that the log is in now: while a reader has been away, the log may have changed to another.
    pub epoch: Epoch,
    /// Where the log begins now.
    pub first: Seq,
    pub next: Seq,
}

/// Why a store could not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("no such log")]
    NoSuchLog,
    #[error("the log exists already")]
    Exists,
    #[error("fence {given:?} is stale, {current:?} was granted since")]
    StaleFence { given: Fence, current: Fence },
    #[error("the right to write is {0}'s")]
    Held(Holder),
    /// The disk is full; it heals when there is space again.
    #[error("no space left: {0}")]
    Full(String),
    /// A sync failed. What the disk holds is uncertain, so nothing more is written until a restart.
    #[error("the store is read-only: {0}")]
    ReadOnly(String),
    #[error("the log is damaged and was set aside: {0}")]
    Quarantined(String),
    /// The commit is larger than the store can hold in one piece.
    #[error("a commit of {bytes} bytes is larger than {max}")]
    TooLarge { bytes: usize, max: usize },
    /// The store is out of reach and did nothing; it heals when it is back.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    /// The connection to the store was lost, and it is not known whether the commit was done. The fence of this commit is
    /// shut out, so that nothing can be done twice: take a new lease, and look what the log holds.
    #[error("it is not known whether the store kept this: {0}")]
    InDoubt(String),
    #[error("the store is closed")]
    Closed,
    #[error("input or output failed: {0}")]
    Io(String),
}
