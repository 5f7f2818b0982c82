//! Where the next frames are written: the newest segment, how it is followed by another, and what happens when it fails.

use std::{fmt, io};

use bowline_env::entropy;
use bowline_env::files::{Allocated, WritableFile, is_full};
use bowline_mutant::mutant;

use super::data_dir::DataDir;
use super::frame::{HEADER_BYTES, Header};
use super::segment::{FORMAT, SEGMENT_HEADER_BYTES, SegmentHeader, draft_path, segment_path};
use crate::StoreError;

/// When a whole segment does not fit on the disk any more, smaller ones may.
const SMALLER_SEGMENTS: [u64; 3] = [4 << 20, 1 << 20, 256 << 10];

pub struct SegmentWriter {
    dir: DataDir,
    segment_bytes: u64,
    /// The run that writes.
    generation: u64,
    current: Option<OpenSegment>,
    /// The segment before, until its successor is durable. Only then is it cut: while it is the newest it must be as long
    /// as it was made, or else it has lost something.
    full: Option<OpenSegment>,
    /// The newest segment that was begun, and where it ends.
    last: Option<(u32, u64)>,
    /// Segments that were finished since this was last taken, and their lengths.
    finished: Vec<(u32, u64)>,
    /// Every frame up to this one is synced, up to the other one written.
    synced_lsn: u64,
    written_lsn: u64,
}

struct OpenSegment {
    file: Box<dyn WritableFile>,
    number: u32,
    salt: u32,
    end: u64,
    capacity: u64,
    allocated: Allocated,
}

/// Where a group of frames begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenAt {
    pub segment: u32,
    pub offset: u64,
}

impl SegmentWriter {
    pub fn new(
        dir: DataDir,
        (segment_bytes, generation): (u64, u64),
        last: Option<(u32, u64)>,
        last_lsn: u64,
    ) -> SegmentWriter {
        let (finished, synced_lsn, written_lsn) = (Vec::new(), last_lsn, last_lsn);
        let (current, full) = (None, None);
        SegmentWriter { dir, segment_bytes, generation, current, full, last, finished, synced_lsn, written_lsn }
    }

    pub fn is_synced(&self) -> bool {
        self.synced_lsn == self.written_lsn
    }

    pub fn written_lsn(&self) -> u64 {
        self.written_lsn
    }

    /// What segments take on disk that were written to since this was last asked. Each finished one is returned once:
    /// later it may be gone.
    pub fn take_sizes(&mut self) -> impl Iterator<Item = (u32, u64)> {
        let current = self.current.as_ref().map(|segment| match segment.allocated {
            Allocated::Reserved => (segment.number, segment.capacity),
            Allocated::Unsupported => (segment.number, segment.end),
        });
        self.finished.drain(..).chain(current)
    }

    /// Whether so much can be written without beginning another segment. More may be taken in while that is asked, so a
    /// little is left.
    pub fn has_room(&self, bytes: usize) -> bool {
        let needed = 2 * bytes as u64 + (64 << 10);
        self.current.as_ref().is_some_and(|segment| segment.end + needed <= segment.capacity)
    }

    /// Writes frames in one piece. When this fails nothing of them counts, and what may stand in the file is left
    /// behind for ever: the next frames go to a new segment, which says where this one ended.
    pub fn write(&mut self, frames: &mut [u8], headers: &[(usize, Header)]) -> Result<WrittenAt, StoreError> {
        let needed = frames.len() as u64;
        let fits = |segment: &OpenSegment| segment.end + needed <= segment.capacity;
        if !self.current.as_ref().is_some_and(fits) {
            self.finish_segment()?;
            self.begin_segment(needed)?;
        }
        let Some(segment) = &mut self.current else {
            return Err(StoreError::Io("there is no segment to write to".into()));
        };
        let mut last_lsn = self.written_lsn;
        for (start, header) in headers {
            let unsynced = (header.lsn - 1).saturating_sub(self.synced_lsn);
            let header = Header { unsynced: u32::try_from(unsynced).unwrap_or(u32::MAX), ..*header };
            frames[*start..start + HEADER_BYTES].copy_from_slice(&header.encode(segment.salt));
            last_lsn = header.lsn;
        }
        let written = WrittenAt { segment: segment.number, offset: segment.end };
        match segment.file.write_all_at(frames, segment.end) {
            Ok(()) => {
                segment.end += needed;
                self.written_lsn = last_lsn;
                Ok(written)
            }
            Err(error) => {
                self.finish_segment()?;
                Err(refusal("could not write", &error))
            }
        }
    }

    /// Makes everything written durable. A failure is final: the kernel may have dropped the pages and would say
    /// "ok" the next time.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        if let (Some(segment), false) = (&self.current, self.is_synced() || mutant("skip-the-sync")) {
            let synced = segment.file.sync_data();
            synced.map_err(|error| StoreError::ReadOnly(format!("a sync to disk failed: {error}")))?;
        }
        self.synced_lsn = self.written_lsn;
        Ok(())
    }

    /// Takes back frames that were written and must not count, as well as that can be done after a failed sync.
    pub fn take_back(&mut self, written: WrittenAt) {
        if let Some(segment) = self.current.take() {
            // Nothing is left to do about a failure here: the store is read-only, and these frames were not answered.
            let cut = segment.file.truncate(written.offset);
            if segment.allocated == Allocated::Reserved {
                let _ = cut.and_then(|()| segment.file.allocate(segment.capacity));
            }
            self.note_finished(segment.number, written.offset);
        }
    }

    /// Ends the segment where its last good frame ends, durably.
    fn finish_segment(&mut self) -> Result<(), StoreError> {
        let Some(segment) = self.current.take() else {
            return Ok(());
        };
        self.note_finished(segment.number, segment.end);
        let synced = if self.is_synced() { Ok(()) } else { segment.file.sync_data() };
        self.full = Some(segment);
        synced.map_err(|error| StoreError::ReadOnly(format!("a sync to disk failed: {error}")))?;
        self.synced_lsn = self.written_lsn;
        Ok(())
    }

    /// Gives back what the finished segment reserved and did not use. To be called once something durable says where that
    /// segment ended: the header of the next one, or that the store was closed.
    pub fn cut_finished(&mut self) {
        if let Some(segment) = self.full.take() {
            // It may keep a tail if this fails; the next opening tries again.
            let _ = segment.file.truncate(segment.end).and_then(|()| segment.file.sync_data());
        }
    }

    fn note_finished(&mut self, number: u32, end: u64) {
        self.last = Some((number, end));
        self.finished.push((number, end));
    }

    fn begin_segment(&mut self, needed: u64) -> Result<(), StoreError> {
        let (number, prev_end) = self.last.map_or((1, 0), |(number, end)| (number + 1, end));
        let files = self.dir.files.clone();
        let (draft, path) = (draft_path(&self.dir.path, number), segment_path(&self.dir.path, number));
        let begun = files.create(&draft).and_then(|file| {
            let (capacity, allocated) = allocate(&*file, self.segment_bytes, needed + SEGMENT_HEADER_BYTES)?;
            let header = SegmentHeader {
                format: FORMAT,
                number,
                first_lsn: self.written_lsn + 1,
                prev_end,
                salt: entropy::u64() as u32,
                generation: self.generation,
                reserved: if allocated == Allocated::Reserved { capacity } else { 0 },
            };
            file.write_all_at(&header.encode(), 0)?;
            Ok((file, (capacity, allocated), header.salt))
        });
        let (file, (capacity, allocated), salt) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                // Left behind it would only be removed at the next opening.
                let _ = files.remove(&draft);
                return Err(refusal("could not begin a segment", &error));
            }
        };
        let named = || files.rename(&draft, &path).and_then(|()| files.sync_dir(&self.dir.path));
        let named = || if mutant("skip-the-sync-of-a-name") { files.rename(&draft, &path) } else { named() };
        let synced = file.sync_data().and_then(|()| named());
        synced.map_err(|error| StoreError::ReadOnly(format!("a sync to disk failed: {error}")))?;
        self.cut_finished();
        self.current = Some(OpenSegment { file, number, salt, end: SEGMENT_HEADER_BYTES, capacity, allocated });
        Ok(())
    }

    /// Ends the current segment at the end.
    pub fn close(&mut self) -> Result<(), StoreError> {
        self.finish_segment()
    }
}

/// Reserves as much as there is, down to the smallest segment that is worth a file.
fn allocate(file: &dyn WritableFile, segment_bytes: u64, needed: u64) -> io::Result<(u64, Allocated)> {
    let whole = segment_bytes.max(needed);
    let smaller = SMALLER_SEGMENTS.into_iter().filter(|size| *size >= needed && *size < whole);
    let mut sizes = std::iter::once(whole).chain(smaller).peekable();
    loop {
        let size = sizes.next().unwrap_or(needed);
        match file.allocate(size) {
            Ok(allocated) => return Ok((size, allocated)),
            Err(error) if is_full(&error) && sizes.peek().is_some() => {}
            Err(error) => return Err(error),
        }
    }
}

fn refusal(what: &str, error: &io::Error) -> StoreError {
    let sentence = format!("{what}: {error}");
    if is_full(error) { StoreError::Full(sentence) } else { StoreError::Io(sentence) }
}

impl fmt::Debug for SegmentWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SegmentWriter(written {}, synced {})", self.written_lsn, self.synced_lsn)
    }
}
