//! Whatever lies in the directory, opening comes to an end without a panic, and what it decides stays decided.
//!
//! The pieces are better than chance: headers and frames whose checksums hold and whose numbers may be anything.

use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bowline_env::files::OsFiles;
use bowline_protocol::{Epoch, LogId, Seq};
use proptest::collection::vec;
use proptest::prelude::*;

use super::data_dir::DataDir;
use super::frame::{FrameFlags, HEADER_BYTES, Header, Meta, encode_frame};
use super::open::settle;
use super::recover::{LastRun, Recovered, recover};
use super::segment::{FORMAT, SegmentHeader, segment_path};
use crate::{DiskOptions, DiskStore, OpenReport, Retention};

const SALT: u32 = 7;

#[derive(Clone, Debug)]
enum Piece {
    Bytes(Vec<u8>),
    Zeros(usize),
    /// A sound frame of the log with this name.
    Frame {
        name: u8,
        lsn: u64,
        unsynced: u32,
        meta: [u64; 5],
        flags: u8,
        events: Vec<u32>,
        body: usize,
    },
    /// A sound header in front of nothing.
    Header {
        lsn: u64,
        meta_len: u32,
        body_len: u32,
    },
    /// What was written so far, once more.
    Again,
}

/// Numbers that follow each other often, and are outrageous now and then.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..6u64, 1 => Just(u64::MAX), 1 => Just(u64::MAX >> 12), 1 => any::<u64>()]
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..40u32, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn piece() -> impl Strategy<Value = Piece> {
    let frame = (0..3u8, number(), length(), [number(), number(), number(), number(), number()], any::<u8>());
    let frame =
        (frame, vec(length(), 0..3), 0..80usize).prop_map(|((name, lsn, unsynced, meta, flags), events, body)| {
            Piece::Frame { name, lsn, unsynced, meta, flags, events, body }
        });
    prop_oneof![
        2 => vec(any::<u8>(), 0..100).prop_map(Piece::Bytes),
        1 => (0..5000usize).prop_map(Piece::Zeros),
        8 => frame,
        1 => (number(), length(), length()).prop_map(|(lsn, meta_len, body_len)| Piece::Header { lsn, meta_len, body_len }),
        1 => Just(Piece::Again),
    ]
}

impl Piece {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Piece::Bytes(bytes) => out.extend_from_slice(bytes),
            Piece::Zeros(count) => out.resize(out.len() + count, 0),
            Piece::Again => out.extend_from_within(..),
            Piece::Header { lsn, meta_len, body_len } => {
                let (lsn, meta_len, body_len) = (*lsn, *meta_len, *body_len);
                let header = Header { meta_len, body_len, lsn, unsynced: 0, meta_crc: 0, body_crc: 0 };
                out.extend_from_slice(&header.encode(SALT));
            }
            Piece::Frame { name, lsn, unsynced, meta, flags, events, body } => {
                let seq = |number: u64| Seq::new(number).unwrap_or(Seq::ZERO);
                let meta = Meta {
                    log: LogId::parse(&format!("log-{name}")).unwrap(),
                    flags: FrameFlags(*flags),
                    prev_lsn: meta[0],
                    facts_lsn: meta[0],
                    fence: meta[1],
                    epoch: Epoch::from_random(meta[1]),
                    epoch_first: seq(meta[2]),
                    first: seq(meta[2]),
                    next: seq(meta[3]),
                    base: seq(meta[4]),
                    at_ms: meta[4],
                    items_total: meta[0],
                    events: events.clone(),
                    record: None,
                    items: vec![("item".into(), Some(meta[1] as u32))],
                };
                let body_len = if *flags % 4 == 0 { *body } else { (meta.body_len() as usize).min(1000) };
                let start = out.len();
                let header = encode_frame(out, &meta, |out| out.resize(out.len() + body_len, b'b'), *lsn);
                let header = Header { unsynced: *unsynced, ..header };
                out[start..start + HEADER_BYTES].copy_from_slice(&header.encode(SALT));
            }
        }
    }
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

type SegmentInput = (u32, u64, u64, bool, Vec<Piece>);

fn segment() -> impl Strategy<Value = SegmentInput> {
    (prop_oneof![9 => 1..4u32, 1 => Just(u32::MAX)], number(), number(), any::<bool>(), vec(piece(), 0..8))
}

fn write_down(segments: &[SegmentInput], dir: &Path) {
    for (number, first_lsn, prev_end, sound, pieces) in segments {
        let prev_end = if *prev_end < 5 { prev_end * 150 } else { *prev_end };
        let header = SegmentHeader {
            format: FORMAT,
            number: *number,
            first_lsn: *first_lsn,
            prev_end,
            salt: SALT,
            generation: 0,
            reserved: 0,
        };
        let mut bytes = if *sound { header.encode() } else { Vec::new() };
        for piece in pieces {
            piece.write(&mut bytes);
        }
        fs::write(segment_path(dir, *number), bytes).unwrap();
    }
}

/// Opens the store in a thread of its own, so that one that never ends is noticed.
fn open(dir: &Path) -> Result<OpenReport, String> {
    let keep = Retention { events_max: 100, age_max_ms: u64::MAX };
    let options = DiskOptions { segment_bytes: 64 << 10, ..DiskOptions::new(dir, keep) };
    let (send, opened) = mpsc::channel();
    std::thread::spawn(move || send.send(DiskStore::open(options).map(|(_, report)| report)));
    match opened.recv_timeout(Duration::from_secs(20)) {
        Ok(opened) => opened.map_err(|refused| refused.to_string()),
        Err(error) => panic!("opening did not come to an end: {error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_directory_is_opened_or_refused(segments in vec(segment(), 1..4)) {
        let dir = scratch();
        write_down(&segments, dir.path());
        // The first opening may put a file aside, and so make another one the newest.
        let first = open(dir.path());
        let held = |report: OpenReport| (report.logs, report.events);
        let (second, third) = (open(dir.path()).map(held), open(dir.path()).map(held));
        prop_assert_eq!(first.is_ok(), second.is_ok(), "{:?} and then {:?}", first, second);
        prop_assert_eq!(second, third, "what was decided is decided");
    }

    #[test]
    fn a_crash_after_the_cut_changes_no_verdict(segments in vec(segment(), 1..4)) {
        let dir = scratch();
        write_down(&segments, dir.path());
        let verdict = |found: &Recovered| {
            (found.index.len(), found.next_lsn, found.lost_through, found.last, found.fence_max, found.damage.len())
        };
        let dir = DataDir { path: dir.path().to_owned(), files: Arc::new(OsFiles) };
        let before = recover(&dir, &LastRun::default()).unwrap();
        settle(&before.cuts, &dir).unwrap();
        let after = recover(&dir, &LastRun::default()).unwrap();
        prop_assert_eq!(verdict(&before), verdict(&after));
    }
}
