//! One frame of the log on disk: a fixed header, what the frame is about, and the bytes that it carries.
//!
//! ```text
//! header 36 bytes │ meta: which log, where it stands now, lengths and keys │ body: events, record, item values
//! ```
//! A frame is one commit and is valid as a whole or not at all. Every frame states the whole position of its log, so
//! the newest one that survives is enough to know where the log stands, and a lost one is noticed by its successor.

use bowline_protocol::{Epoch, LogId, Principal, Seq};

use super::codec::{ByteReader, push_bytes, push_number};
use crate::LogKind;

pub const HEADER_BYTES: usize = 36;

/// Nothing that is counted here comes near this in any lifetime, so more than this is not something that we wrote. Below
/// it no sum can overflow.
pub const COUNT_MAX: u64 = 1 << 62;

/// Two of these bytes never occur in UTF-8, so no event can hold something that looks like a frame.
const MAGIC: [u8; 4] = [0xF5, b'B', b'w', 0xFE];

/// The fixed part. Its checksum begins with the salt of the segment, so that a frame is valid in its own segment only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub meta_len: u32,
    pub body_len: u32,
    pub lsn: u64,
    /// How many frames right before this one were not yet known to be synced when it was written. What lies further
    /// back was, so that if it is unreadable now it is damaged, not torn.
    pub unsynced: u32,
    pub meta_crc: u32,
    pub body_crc: u32,
}

impl Header {
    pub fn encode(&self, salt: u32) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&self.meta_len.to_le_bytes());
        out[8..12].copy_from_slice(&self.body_len.to_le_bytes());
        out[12..20].copy_from_slice(&self.lsn.to_le_bytes());
        out[20..24].copy_from_slice(&self.unsynced.to_le_bytes());
        out[24..28].copy_from_slice(&self.meta_crc.to_le_bytes());
        out[28..32].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = salted_crc(salt, &out[..32]);
        out[32..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header at the start of `bytes`, if there is a sound one.
    pub fn decode(bytes: &[u8], salt: u32) -> Option<Header> {
        let bytes = bytes.get(..HEADER_BYTES)?;
        let mut reader = ByteReader::new(bytes);
        let magic = reader.take(4)?;
        let header = Header {
            meta_len: reader.u32()?,
            body_len: reader.u32()?,
            lsn: reader.u64()?,
            unsynced: reader.u32()?,
            meta_crc: reader.u32()?,
            body_crc: reader.u32()?,
        };
        let sound = magic == MAGIC && reader.u32()? == salted_crc(salt, &bytes[..32]);
        (sound && (1..COUNT_MAX).contains(&header.lsn)).then_some(header)
    }

    /// How long the description is, of a frame that is known to be sound.
    pub fn meta_len_of(frame: &[u8]) -> u32 {
        ByteReader::new(frame.get(4..).unwrap_or_default()).u32().unwrap_or(0)
    }

    /// The next place at or after `from` where a frame may begin, for finding the way after damage.
    pub fn find(bytes: &[u8], from: usize, salt: u32) -> Option<usize> {
        let tail = bytes.get(from..)?;
        let mut at = 0;
        while let Some(hit) = tail.get(at..)?.iter().position(|byte| *byte == MAGIC[0]) {
            at += hit;
            if Header::decode(&tail[at..], salt).is_some() {
                return Some(from + at);
            }
            at += 1;
        }
        None
    }

    pub fn frame_len(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.meta_len) + u64::from(self.body_len)
    }

    /// Everything before this number was on the platter when the frame was written.
    pub fn synced(&self) -> u64 {
        self.lsn.saturating_sub(1).saturating_sub(u64::from(self.unsynced))
    }
}

pub fn salted_crc(salt: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(bytes);
    hasher.finalize()
}

/// What is special about a frame, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameFlags(pub u8);

impl FrameFlags {
    /// The log begins here: whatever had this name before is gone.
    pub const CREATE: FrameFlags = FrameFlags(1);
    /// The log got a new epoch here.
    pub const EPOCH: FrameFlags = FrameFlags(2);
    /// The log has a record after this frame.
    pub const HAS_RECORD: FrameFlags = FrameFlags(4);
    pub const RELEASE_CONTENTS: FrameFlags = FrameFlags(8);
    pub const RELEASE_LOG: FrameFlags = FrameFlags(16);
    /// Carries old things forward from a segment that is about to go.
    pub const COPY: FrameFlags = FrameFlags(32);
    /// The log was found damaged; it stays set aside although the damage itself may be gone by now.
    pub const QUARANTINED: FrameFlags = FrameFlags(64);

    pub fn has(self, other: FrameFlags) -> bool {
        self.0 & other.0 != 0
    }

    pub fn with(self, other: FrameFlags, on: bool) -> FrameFlags {
        if on { FrameFlags(self.0 | other.0) } else { self }
    }
}

/// So many numbers stand between the names and the lengths.
const NUMBERS: usize = 9;

/// How many names are remembered. A log that shares its place with another one costs what it would cost without this.
const NAMES: usize = 4096;

/// What a frame is about: everything but the bytes themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    pub log: LogId,
    pub flags: FrameFlags,
    /// The frame of this log before this one, `0` if there was none.
    pub prev_lsn: u64,
    /// The newest frame before this one that held the record or items.
    pub facts_lsn: u64,
    pub fence: u64,
    pub epoch: Epoch,
    pub epoch_first: Seq,
    pub first: Seq,
    pub next: Seq,
    /// The number of the first event in this frame.
    pub base: Seq,
    pub at_ms: u64,
    /// How many items the log has after this frame.
    pub items_total: u64,
    pub events: Vec<u32>,
    pub record: Option<RecordHead>,
    /// Keys with the length of their value; `None` deletes.
    pub items: Vec<(String, Option<u32>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHead {
    pub kind: LogKind,
    pub owner: Principal,
    pub touched_ms: u64,
    pub len: u32,
}

impl Meta {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.flags.0);
        push_bytes(out, self.log.as_str().as_bytes());
        push_bytes(out, self.epoch.as_str().as_bytes());
        let numbers: [u64; NUMBERS] = [
            self.prev_lsn,
            self.facts_lsn,
            self.fence,
            self.epoch_first.get(),
            self.first.get(),
            self.next.get(),
            self.base.get(),
            self.at_ms,
            self.items_total,
        ];
        for number in numbers {
            push_number(out, number);
        }
        push_number(out, self.events.len() as u64);
        for len in &self.events {
            push_number(out, u64::from(*len));
        }
        match &self.record {
            None => out.push(0),
            Some(record) => {
                out.push(record.kind as u8);
                push_bytes(out, record.owner.as_str().as_bytes());
                push_number(out, record.touched_ms);
                push_number(out, u64::from(record.len));
            }
        }
        push_number(out, self.items.len() as u64);
        for (key, len) in &self.items {
            push_bytes(out, key.as_bytes());
            push_number(out, len.map_or(0, |len| u64::from(len) + 1));
        }
    }

    /// `None` if this is not something that [`encode`](Meta::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Option<Meta> {
        Meta::decode_with(bytes, |log, epoch| LogId::parse(log).zip(Epoch::parse(epoch)))
    }

    /// The same, for one that reads many in a row.
    pub fn decode_next(bytes: &[u8], names: &mut Names) -> Option<Meta> {
        Meta::decode_with(bytes, |log, epoch| names.parse(log, epoch))
    }

    fn decode_with(bytes: &[u8], parse: impl FnOnce(&str, &str) -> Option<(LogId, Epoch)>) -> Option<Meta> {
        let mut reader = ByteReader::new(bytes);
        let flags = FrameFlags(reader.u8()?);
        let (log, epoch) = parse(reader.text()?, reader.text()?)?;
        let (prev_lsn, facts_lsn, fence) = (reader.number()?, reader.number()?, reader.number()?);
        let mut seq = || reader.number().and_then(Seq::new);
        let (epoch_first, first, next, base) = (seq()?, seq()?, seq()?, seq()?);
        let (at_ms, items_total) = (reader.number()?, reader.number()?);
        let events = (0..reader.count()?).map(|_| reader.number_u32()).collect::<Option<_>>()?;
        let record = match reader.u8()? {
            0 => None,
            kind => Some(RecordHead {
                kind: LogKind::from_byte(kind)?,
                owner: Principal::parse(reader.text()?)?,
                touched_ms: reader.number()?,
                len: reader.number_u32()?,
            }),
        };
        let items = (0..reader.count()?)
            .map(|_| {
                let key = reader.text()?.to_owned();
                let len = reader.number()?;
                let value = len.checked_sub(1).map(u32::try_from).transpose().ok()?;
                Some((key, value))
            })
            .collect::<Option<_>>()?;
        let meta = Meta {
            log,
            flags,
            prev_lsn,
            facts_lsn,
            fence,
            epoch,
            epoch_first,
            first,
            next,
            base,
            at_ms,
            items_total,
            events,
            record,
            items,
        };
        let counts = [meta.prev_lsn, meta.facts_lsn, meta.fence, meta.items_total];
        let sound = reader.is_empty()
            && meta.first <= meta.next
            && meta.end() <= meta.next
            && counts.into_iter().all(|count| count < COUNT_MAX);
        sound.then_some(meta)
    }

    /// The lengths of the events alone, of a description that is known to be sound.
    pub fn event_lens(bytes: &[u8]) -> impl Iterator<Item = u32> {
        let mut reader = ByteReader::new(bytes);
        let mut count = || {
            reader.u8()?;
            reader.text()?;
            reader.text()?;
            for _ in 0..NUMBERS {
                reader.number()?;
            }
            reader.count()
        };
        let count = count().unwrap_or(0);
        (0..count).map_while(move |_| reader.number_u32())
    }

    /// The number after the last event in this frame.
    pub fn end(&self) -> Seq {
        self.base.plus(self.events.len() as u64)
    }

    pub fn events_len(&self) -> u64 {
        self.events.iter().map(|len| u64::from(*len)).sum()
    }

    /// How long the body must be.
    pub fn body_len(&self) -> u64 {
        let items: u64 = self.items.iter().filter_map(|(_, len)| *len).map(u64::from).sum();
        self.events_len() + self.record.as_ref().map_or(0, |record| u64::from(record.len)) + items
    }

    /// Whether it says anything about the record or the items.
    pub fn has_facts(&self) -> bool {
        self.record.is_some() || !self.items.is_empty()
    }

    /// Where in the body the record begins.
    pub fn record_at(&self) -> usize {
        self.events_len() as usize
    }

    /// Where in the body each item's value lies.
    pub fn item_spans(&self) -> impl Iterator<Item = (&str, Option<(usize, usize)>)> {
        let mut at = self.record_at() + self.record.as_ref().map_or(0, |record| record.len as usize);
        self.items.iter().map(move |(key, len)| {
            let span = len.map(|len| (at, len as usize));
            at += len.unwrap_or(0) as usize;
            (key.as_str(), span)
        })
    }
}

/// Names that were read before: a log's stand in each of its frames, and are made once if they are found here.
#[derive(Debug)]
pub struct Names(Vec<Option<(LogId, Epoch)>>);

impl Names {
    pub fn new() -> Names {
        Names(vec![None; NAMES])
    }

    fn parse(&mut self, log: &str, epoch: &str) -> Option<(LogId, Epoch)> {
        let slot = &mut self.0[crc32fast::hash(log.as_bytes()) as usize % NAMES];
        let known = slot.as_ref().filter(|known| (known.0.as_str(), known.1.as_str()) == (log, epoch));
        if known.is_none() {
            *slot = LogId::parse(log).zip(Epoch::parse(epoch));
        }
        slot.clone()
    }
}

/// Encodes a frame behind what `out` holds, with room for its header, which is written when the segment is known.
/// `push_body` writes as many bytes as `meta` says.
pub fn encode_frame(out: &mut Vec<u8>, meta: &Meta, push_body: impl FnOnce(&mut Vec<u8>), lsn: u64) -> Header {
    let start = out.len() + HEADER_BYTES;
    out.resize(start, 0);
    meta.encode(out);
    let body_start = out.len();
    push_body(out);
    let (meta_bytes, body) = out[start..].split_at(body_start - start);
    Header {
        meta_len: meta_bytes.len() as u32,
        body_len: body.len() as u32,
        lsn,
        unsynced: 0,
        meta_crc: crc32fast::hash(meta_bytes),
        body_crc: crc32fast::hash(body),
    }
}

/// Takes a whole frame apart; `None` unless every checksum in it holds.
pub fn decode_frame(bytes: &[u8], salt: u32) -> Option<(Meta, &[u8])> {
    let header = Header::decode(bytes, salt)?;
    let rest = &bytes[HEADER_BYTES..];
    let (meta, body) = rest.split_at_checked(header.meta_len as usize)?;
    let sound = crc32fast::hash(meta) == header.meta_crc
        && body.len() == header.body_len as usize
        && crc32fast::hash(body) == header.body_crc;
    let meta = sound.then(|| Meta::decode(meta)).flatten()?;
    (meta.body_len() == body.len() as u64).then_some((meta, body))
}
