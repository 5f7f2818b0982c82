//! True checksums for any bytes, so that a fuzzer gets behind them.

use super::frame::{HEADER_BYTES, Header, salted_crc};
use super::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, SegmentStart};

/// Makes the checksums of a segment true: those of its header, and of each frame that the lengths before it lead to.
pub fn reseal(segment: &mut [u8]) {
    let start = SEGMENT_HEADER_BYTES as usize;
    let Some(header) = segment.get_mut(..start) else { return };
    for copy in header.chunks_exact_mut(start / 2) {
        seal(copy, 0);
    }
    let SegmentStart::Ours(SegmentHeader { salt, .. }) = SegmentHeader::decode(header) else { return };
    let mut rest = &mut segment[start..];
    while rest.len() >= HEADER_BYTES {
        let length = |at: usize| Header::meta_len_of(&rest[at - 4..]) as usize;
        let (meta, body) = (HEADER_BYTES + length(4), length(8));
        let Some(end) = meta.checked_add(body).filter(|end| *end <= rest.len()) else { return };
        let (meta_crc, body_crc) = (crc32fast::hash(&rest[HEADER_BYTES..meta]), crc32fast::hash(&rest[meta..end]));
        rest[24..28].copy_from_slice(&meta_crc.to_le_bytes());
        rest[28..32].copy_from_slice(&body_crc.to_le_bytes());
        seal(&mut rest[..HEADER_BYTES], salt);
        rest = &mut rest[end..];
    }
}

/// The last four bytes become the checksum of those before.
fn seal(bytes: &mut [u8], salt: u32) {
    let (bytes, crc) = bytes.split_at_mut(bytes.len() - 4);
    crc.copy_from_slice(&salted_crc(salt, bytes).to_le_bytes());
}
