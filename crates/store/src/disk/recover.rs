//! Reading the segments back into an index: frame by frame, telling a torn tail from damage.
//!
//! Torn is what was never answered: it is cut. Damage is what was: it is reported, and affects only the logs that it touches.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::{io, thread};

use bowline_env::files::read_start;
use bowline_mutant::mutant;

use super::data_dir::DataDir;
use super::frame::{FrameFlags, HEADER_BYTES, Header, Meta, Names};
use super::index::LogIndex;
use super::log::Applied;
use super::segment::{
    FramePlace, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentStart, is_draft, segment_number, segment_path,
};
use super::space::Space;

/// The index as the disk tells it, and what was noticed on the way.
#[derive(Debug)]
pub struct Recovered {
    pub index: LogIndex,
    pub space: Space,
    /// What the next frame will be.
    pub next_lsn: u64,
    /// The newest segment, and where it ends.
    pub last: Option<(u32, u64)>,
    /// How long to leave those segments that have an empty or torn end, and the newest one.
    pub cuts: Vec<(u32, u64)>,
    /// No fence was higher, and no segment of a later run.
    pub fence_max: u64,
    pub generation_max: u64,
    pub torn_bytes: u64,
    pub damage: Vec<String>,
    /// The newest frame that is known to be lost. Logs without a newer one may have lost their end.
    pub lost_through: u64,
    /// Files that were begun and never became a segment; they may go.
    pub unborn: Vec<PathBuf>,
    /// Files whose content is lost to us; they are kept aside for inspection.
    pub unreadable: Vec<PathBuf>,
}

/// What is known of the run before, beyond what the segments tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastRun {
    /// Frames up to this one are known to have been safe once, so they cannot be torn.
    pub durable: u64,
    /// Which run it was, if it was not closed. Its newest segment must be as long as it was made then, and have a header.
    pub unclosed: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("{0} was written by a later version (format {1})")]
    Newer(PathBuf, u32),
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

/// Reads everything in `dir`.
pub fn recover(dir: &DataDir, last_run: &LastRun) -> Result<Recovered, RecoverError> {
    let (segments, drafts) = list_segments(dir)?;
    let mut scan = Scan::new(last_run, segments.values().next());
    scan.out.unborn = drafts;
    thread::scope(|scope| {
        // One segment is read while the one before it is gone through.
        let (send, files) = mpsc::sync_channel(1);
        // Buffers that were used once: memory that is new costs more than what is read into it.
        let (give_back, used) = mpsc::channel();
        let starts = &segments;
        scope.spawn(move || {
            for number in starts.keys() {
                let path = segment_path(&dir.path, *number);
                let bytes = used.try_recv().unwrap_or_default();
                let read = SegmentContent::read(dir, &path, end_by_next(starts, *number), bytes);
                let read = read.map_err(|error| RecoverError::Io(path.clone(), error));
                if send.send((path, read)).is_err() {
                    return;
                }
            }
        });
        let newest = segments.keys().next_back();
        for (number, start) in &segments {
            let Ok((path, content)) = files.recv() else { break };
            let content = content?;
            match start {
                Some(header) => scan.segment(*header, &content, Some(number) == newest),
                None => scan.unreadable_segment(path, &content.bytes, Some(number) == newest),
            }
            // After the last segment the receiver is gone.
            let _ = give_back.send(content.bytes);
        }
        scan.look_for_a_missing_end();
        Ok(scan.out)
    })
}

type Starts = BTreeMap<u32, Option<SegmentHeader>>;

/// The next segment knows where this one ended; behind that lies only what was never answered.
fn end_by_next(starts: &Starts, number: u32) -> Option<u64> {
    let next = starts.get(&number.checked_add(1)?)?.as_ref()?;
    Some(next.prev_end)
}

/// What of a segment counts.
struct SegmentContent {
    bytes: Vec<u8>,
    /// The length of the file.
    len: u64,
    /// Whether the next segment says that it ends here.
    ended: bool,
}

impl SegmentContent {
    /// Reads up to `end`, or else as far as anything was ever written, in place of what `bytes` holds.
    fn read(dir: &DataDir, path: &Path, end: Option<u64>, mut bytes: Vec<u8>) -> io::Result<SegmentContent> {
        let file = dir.files.open_to_read(path)?;
        let len = file.size()?;
        let wanted = end.map_or_else(|| file.data_end(), Ok)?;
        read_start(&*file, wanted, &mut bytes)?;
        Ok(SegmentContent { bytes, len, ended: end.is_some() })
    }
}

/// The segments, and what was to become one.
fn list_segments(dir: &DataDir) -> Result<(Starts, Vec<PathBuf>), RecoverError> {
    let (mut starts, mut drafts) = (Starts::new(), Vec::new());
    let mut start = Vec::new();
    let listed = dir.files.list(&dir.path).map_err(|error| RecoverError::Io(dir.path.clone(), error))?;
    for path in listed {
        if is_draft(&path) {
            drafts.push(path);
            continue;
        }
        let Some(number) = segment_number(&path) else { continue };
        let opened = dir.files.open_to_read(&path);
        let read = opened.and_then(|file| read_start(&*file, SEGMENT_HEADER_BYTES, &mut start));
        read.map_err(|error| RecoverError::Io(path.clone(), error))?;
        let header = match SegmentHeader::decode(&start) {
            SegmentStart::Newer(format) => return Err(RecoverError::Newer(path, format)),
            SegmentStart::Ours(header) if header.number == number => Some(header),
            SegmentStart::Ours(_) | SegmentStart::Unreadable => None,
        };
        starts.insert(number, header);
    }
    Ok((starts, drafts))
}

/// How many bytes there are before nothing but zeros follows.
fn written_len(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

struct Scan {
    out: Recovered,
    last_run: LastRun,
    /// The newest segment of the run before, if that was not closed, and how long its file is.
    newest_of_run: Option<(SegmentHeader, u64)>,
    /// Frames before this one were compacted away long ago, so they are not missing.
    oldest_lsn: u64,
    names: Names,
}

/// What stands at one place in a segment.
enum FoundFrame {
    Frame(Header, Meta, bool),
    /// A frame whose length is known and whose meaning is not.
    Meaningless(Header),
    Nothing,
}

impl Scan {
    fn new(last_run: &LastRun, oldest: Option<&Option<SegmentHeader>>) -> Scan {
        let oldest_lsn = oldest.copied().flatten().map_or(1, |header| header.first_lsn);
        Scan {
            out: Recovered {
                index: LogIndex::new(),
                space: Space::default(),
                next_lsn: oldest_lsn,
                last: None,
                cuts: Vec::new(),
                fence_max: 0,
                generation_max: 0,
                torn_bytes: 0,
                damage: Vec::new(),
                lost_through: 0,
                unborn: Vec::new(),
                unreadable: Vec::new(),
            },
            last_run: *last_run,
            newest_of_run: None,
            oldest_lsn,
            names: Names::new(),
        }
    }

    fn segment(&mut self, header: SegmentHeader, content: &SegmentContent, newest: bool) {
        if header.first_lsn > self.out.next_lsn {
            let what = format!("something is missing before segment {}", header.number);
            self.lose_up_to(header.first_lsn, &what);
        }
        self.out.generation_max = self.out.generation_max.max(header.generation);
        if self.last_run.unclosed == Some(header.generation) {
            self.newest_of_run = Some((header, content.len));
        }
        let (end, whole) = self.frames(header, &content.bytes, newest);
        self.out.last = Some((header.number, end as u64));
        // Where something is damaged nothing is cut but zeros: a torn frame may be all that says of an unreadable one
        // before it that it was synced, and the next opening must come to the same verdict.
        let rest = content.bytes.get(end..).unwrap_or_default();
        let evidence = if whole { 0 } else { written_len(rest) };
        let kept = if content.ended { content.bytes.len() } else { end + evidence };
        let kept = content.len.min(SEGMENT_HEADER_BYTES.max(kept as u64));
        self.out.space.set_bytes(header.number, kept);
        if newest || kept < content.len {
            self.out.cuts.push((header.number, kept));
        }
    }

    /// A crash leaves the newest segment as long as it was made. If it is shorter, it was truncated: commits that may have been
    /// answered are gone, and it is not known of which logs.
    fn look_for_a_missing_end(&mut self) {
        let Some((SegmentHeader { number, reserved, .. }, len)) = self.newest_of_run else { return };
        if len < reserved {
            let missing = format!("segment {number} has {len} bytes of the {reserved} that it was made with");
            self.out.damage.push(format!("{missing}: commits at the end may be missing, of which logs is unknown"));
            self.out.lost_through = u64::MAX;
        }
    }

    /// Goes through the frames of one segment. Returns where they end, and whether all was well before that.
    fn frames(&mut self, segment: SegmentHeader, bytes: &[u8], newest: bool) -> (usize, bool) {
        let mut whole = true;
        let mut at = SEGMENT_HEADER_BYTES as usize;
        while at < bytes.len() {
            let found = self.look(&bytes[at..], segment.salt);
            let unsure = !matches!(found, FoundFrame::Frame(_, _, true));
            if newest && mutant("lose-the-tail-at-recovery") && self.is_last(&found, bytes, at) {
                return (at, whole);
            }
            if unsure && newest && self.is_torn(&bytes[at..], segment.salt) {
                self.out.torn_bytes += written_len(&bytes[at..]) as u64;
                return (at, whole);
            }
            whole &= !unsure;
            match found {
                FoundFrame::Frame(header, meta, sound) => {
                    let len = header.frame_len() as usize;
                    let place = FramePlace { segment: segment.number, offset: at as u32, len: len as u32 };
                    let body = &bytes[at + HEADER_BYTES + header.meta_len as usize..at + len];
                    if !sound {
                        let sentence = format!("segment {}, byte {at}: log {} is damaged", segment.number, meta.log);
                        self.out.damage.push(sentence);
                    }
                    self.apply(&header, &meta, place, sound.then_some(body));
                    at += len;
                }
                FoundFrame::Meaningless(header) => {
                    self.lose_up_to(header.lsn + 1, &format!("segment {}, byte {at}", segment.number));
                    at += header.frame_len() as usize;
                }
                FoundFrame::Nothing => match self.find_next(bytes, at + 1, segment.salt) {
                    Some((next_at, lsn)) => {
                        self.lose_up_to(lsn, &format!("segment {}, byte {at}", segment.number));
                        at = next_at;
                    }
                    None => {
                        let rest = &bytes[at..];
                        if rest.iter().any(|byte| *byte != 0) {
                            let sentence = format!("segment {}, from byte {at} on: unreadable", segment.number);
                            self.out.damage.push(sentence);
                        }
                        return (at, whole);
                    }
                },
            }
        }
        (at, whole)
    }

    /// Whether nothing follows this frame.
    fn is_last(&self, found: &FoundFrame, bytes: &[u8], at: usize) -> bool {
        let FoundFrame::Frame(header, ..) = found else { return false };
        bytes.get(at + header.frame_len() as usize..).is_none_or(|rest| written_len(rest) == 0)
    }

    fn look(&mut self, bytes: &[u8], salt: u32) -> FoundFrame {
        let Some(header) = Header::decode(bytes, salt) else {
            return FoundFrame::Nothing;
        };
        let fits = header.lsn == self.out.next_lsn && header.frame_len() <= bytes.len() as u64;
        if !fits {
            return FoundFrame::Nothing;
        }
        let (meta, rest) = bytes[HEADER_BYTES..].split_at(header.meta_len as usize);
        let body = &rest[..header.body_len as usize];
        let sound = crc32fast::hash(meta) == header.meta_crc;
        let meta = sound.then(|| Meta::decode_next(meta, &mut self.names)).flatten();
        match meta.filter(|meta| meta.body_len() == u64::from(header.body_len)) {
            Some(meta) => {
                let sound = crc32fast::hash(body) == header.body_crc || mutant("accept-a-torn-frame");
                FoundFrame::Frame(header, meta, sound)
            }
            None => FoundFrame::Meaningless(header),
        }
    }

    /// Whether the frame that should stand here may never have been answered: nothing says that it was ever synced.
    fn is_torn(&self, bytes: &[u8], salt: u32) -> bool {
        let expected = self.out.next_lsn;
        let (mut durable, mut at) = (self.last_run.durable, 0);
        while let Some(hit) = Header::find(bytes, at, salt) {
            durable = durable.max(Header::decode(&bytes[hit..], salt).map_or(0, |header| header.synced()));
            at = hit + 1;
        }
        durable < expected
    }

    /// The next frame behind damage, and its number.
    fn find_next(&self, bytes: &[u8], mut from: usize, salt: u32) -> Option<(usize, u64)> {
        let plausible = self.out.next_lsn..=self.out.next_lsn + (bytes.len() / HEADER_BYTES) as u64 + 1;
        loop {
            let at = Header::find(bytes, from, salt)?;
            let lsn = Header::decode(&bytes[at..], salt)?.lsn;
            if plausible.contains(&lsn) {
                return Some((at, lsn));
            }
            from = at + 1;
        }
    }

    fn lose_up_to(&mut self, lsn: u64, place: &str) {
        let lost = lsn.saturating_sub(self.out.next_lsn);
        if lost > 0 {
            self.out.lost_through = self.out.lost_through.max(lsn - 1);
            self.out.damage.push(format!("{place}: {lost} commits are unreadable, of which logs is unknown"));
            self.out.next_lsn = lsn;
        }
    }

    fn apply(&mut self, header: &Header, meta: &Meta, place: FramePlace, body: Option<&[u8]>) {
        let out = &mut self.out;
        let applied = Applied { lsn: header.lsn, place, meta_len: header.meta_len, body, cached: None };
        let before = out.index.apply(meta, applied, &mut out.space);
        let suspect = match before {
            _ if meta.flags.has(FrameFlags::CREATE) => false,
            None => meta.prev_lsn >= self.oldest_lsn && meta.facts_lsn >= self.oldest_lsn,
            Some(last) => meta.prev_lsn != last && meta.facts_lsn > last,
        };
        if suspect {
            out.index.change(&meta.log, |log| {
                log.quarantined = Some("a change to its record or items was lost".into());
            });
        }
        out.fence_max = out.fence_max.max(meta.fence);
        out.next_lsn = header.lsn + 1;
    }

    /// A file that does not begin as a segment does: a creation that was cut short, or damage.
    fn unreadable_segment(&mut self, path: PathBuf, bytes: &[u8], newest: bool) {
        let out = &mut self.out;
        let content = bytes.get(SEGMENT_HEADER_BYTES as usize..).unwrap_or_default();
        // An earlier version gave a segment its name before its header.
        let unborn = self.last_run.unclosed.is_none() && content.iter().all(|byte| *byte == 0);
        if newest && unborn {
            out.torn_bytes += written_len(bytes) as u64;
            out.unborn.push(path);
            return;
        }
        let sentence = format!("{} has lost its header, so nothing in it can be read", path.display());
        out.damage.push(sentence);
        out.unreadable.push(path);
        if newest {
            out.lost_through = u64::MAX;
        }
    }
}
