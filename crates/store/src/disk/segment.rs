//! A segment: one file of frames, and the header that says where it stands in the row.

use std::path::{Path, PathBuf};

use super::codec::ByteReader;
use super::frame::{COUNT_MAX, salted_crc};

/// What this version writes and the newest that it reads.
pub const FORMAT: u32 = 1;

/// The header is there twice, since without it (above all without the salt) no frame of the segment can be read.
pub const SEGMENT_HEADER_BYTES: u64 = 2 * COPY_BYTES as u64;
const COPY_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"BOWLINEs";
const DRAFT: &str = "draft";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    pub format: u32,
    pub number: u32,
    pub first_lsn: u64,
    /// Where the segment before this one ended. What lies behind that there was never answered and does not count.
    pub prev_end: u64,
    /// Begins the checksum of every frame header in this segment.
    pub salt: u32,
    /// The run that began it, as [`State`](super::state::State) counts them; `0` if an earlier version did.
    pub generation: u64,
    /// How long the file was made when it was begun, so that one that is shorter has lost something; `0` if the file
    /// system cannot reserve.
    pub reserved: u64,
}

/// What the first bytes of a file say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentStart {
    Ours(SegmentHeader),
    /// A later version of this program wrote it.
    Newer(u32),
    Unreadable,
}

impl SegmentHeader {
    pub fn encode(&self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(COPY_BYTES);
        copy.extend_from_slice(MAGIC);
        copy.extend_from_slice(&self.format.to_le_bytes());
        copy.extend_from_slice(&self.number.to_le_bytes());
        copy.extend_from_slice(&self.first_lsn.to_le_bytes());
        copy.extend_from_slice(&self.prev_end.to_le_bytes());
        copy.extend_from_slice(&self.salt.to_le_bytes());
        copy.extend_from_slice(&self.generation.to_le_bytes());
        copy.extend_from_slice(&self.reserved.to_le_bytes());
        copy.resize(COPY_BYTES - 4, 0);
        let crc = salted_crc(0, &copy);
        copy.extend_from_slice(&crc.to_le_bytes());
        copy.repeat(2)
    }

    pub fn decode(bytes: &[u8]) -> SegmentStart {
        let copies = bytes.chunks_exact(COPY_BYTES).take(2);
        let header = copies.filter_map(decode_copy).next();
        match header {
            None => SegmentStart::Unreadable,
            Some(header) if header.format > FORMAT => SegmentStart::Newer(header.format),
            Some(header) => SegmentStart::Ours(header),
        }
    }
}

fn decode_copy(copy: &[u8]) -> Option<SegmentHeader> {
    let mut reader = ByteReader::new(copy);
    let magic = reader.take(MAGIC.len())?;
    let header = SegmentHeader {
        format: reader.u32()?,
        number: reader.u32()?,
        first_lsn: reader.u64()?,
        prev_end: reader.u64()?,
        salt: reader.u32()?,
        // Zeros where an earlier version wrote it.
        generation: reader.u64()?,
        reserved: reader.u64()?,
    };
    let crc = u32::from_le_bytes(copy.get(COPY_BYTES - 4..)?.try_into().ok()?);
    let sound = magic == MAGIC && crc == salted_crc(0, &copy[..COPY_BYTES - 4]);
    (sound && (1..COUNT_MAX).contains(&header.first_lsn)).then_some(header)
}

/// Where a frame lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FramePlace {
    pub segment: u32,
    pub offset: u32,
    pub len: u32,
}

pub fn segment_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number:010}.log"))
}

/// Where a segment is prepared. It gets its name once its header is durable, so a segment without one was damaged.
pub fn draft_path(dir: &Path, number: u32) -> PathBuf {
    segment_path(dir, number).with_extension(DRAFT)
}

pub fn is_draft(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == DRAFT)
        && segment_number(&path.with_extension("log")).is_some()
}

/// The number in a file's name, if it is a segment's. There is always one after it.
pub fn segment_number(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_suffix(".log")?;
    (name.len() == 10).then(|| name.parse().ok()).flatten().filter(|number| *number < u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_header_survives_damage_to_either_copy() {
        let header = SegmentHeader {
            format: FORMAT,
            number: 7,
            first_lsn: 99,
            prev_end: 1234,
            salt: 5,
            generation: 3,
            reserved: 32 << 20,
        };
        for at in 0..SEGMENT_HEADER_BYTES as usize {
            let mut bytes = header.encode();
            bytes[at] ^= 0x10;
            assert_eq!(SegmentHeader::decode(&bytes), SegmentStart::Ours(header), "flip at {at}");
        }
        assert_eq!(SegmentHeader::decode(&[]), SegmentStart::Unreadable);
    }

    #[test]
    fn a_later_format_is_told_apart_from_damage() {
        let (generation, reserved) = (1, 0);
        let header =
            SegmentHeader { format: FORMAT + 1, number: 1, first_lsn: 1, prev_end: 0, salt: 1, generation, reserved };
        assert_eq!(SegmentHeader::decode(&header.encode()), SegmentStart::Newer(FORMAT + 1));
    }
}
