//! What must be known before the first frame is read: who this store is, how it last ran, and whether it was closed.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use bowline_env::entropy;
use bowline_env::files::{Files, WritableFile};

use super::data_dir::DataDir;
use super::segment::FORMAT;

/// One line of a few numbers; more is none of ours.
const STATE_BYTES_MAX: u64 = 4096;

/// The small file beside the segments, replaced as a whole when the store opens and when it closes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Names this store's witness.
    pub instance: u64,
    /// Grows with every opening; fences begin with it.
    pub generation: u64,
    /// Whether the last run synced only now and then.
    pub interval: bool,
    /// The last frame, if the store was closed properly.
    pub closed_at: Option<u64>,
    /// The last frame that was there when this run began; all up to it were durable. Not known of a run that was closed, nor
    /// of one of an earlier version.
    pub began_at: Option<u64>,
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundState {
    Nothing,
    State(State),
    Newer(String),
    Unreadable,
}

fn path(dir: &Path) -> PathBuf {
    dir.join("STATE")
}

impl State {
    pub fn fresh() -> io::Result<State> {
        Ok(State { instance: entropy::u64(), generation: 0, interval: false, closed_at: None, began_at: None })
    }

    pub fn load(dir: &DataDir) -> io::Result<FoundState> {
        match dir.files.read(&path(&dir.path), STATE_BYTES_MAX) {
            Ok(bytes) => Ok(State::parse(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FoundState::Nothing),
            Err(error) => Err(error),
        }
    }

    pub fn save(&self, dir: &DataDir) -> io::Result<()> {
        // Earlier versions take everything that is no number for "not closed".
        let closed_at = match (self.closed_at, self.began_at) {
            (Some(lsn), _) => lsn.to_string(),
            (None, Some(lsn)) => format!("-{lsn}"),
            (None, None) => "-".to_owned(),
        };
        let sync = if self.interval { "interval" } else { "always" };
        let text = format!("bowline-store {FORMAT} {:016x} {} {sync} {closed_at}", self.instance, self.generation);
        let line = format!("{text} {:08x}\n", crc32fast::hash(text.as_bytes()));
        dir.files.replace(&path(&dir.path), line.as_bytes())
    }

    fn parse(bytes: &[u8]) -> FoundState {
        let Some(text) = std::str::from_utf8(bytes).ok().and_then(|text| text.strip_suffix('\n')) else {
            return FoundState::Unreadable;
        };
        let Some((text, crc)) = text.rsplit_once(' ') else {
            return FoundState::Unreadable;
        };
        if u32::from_str_radix(crc, 16) != Ok(crc32fast::hash(text.as_bytes())) {
            return FoundState::Unreadable;
        }
        match text.split(' ').collect::<Vec<_>>()[..] {
            ["bowline-store", format, ..] if format != FORMAT.to_string() => FoundState::Newer(format.to_owned()),
            ["bowline-store", _, instance, generation, sync, closed_at] => {
                let state = u64::from_str_radix(instance, 16).ok().zip(generation.parse().ok());
                state.map_or(FoundState::Unreadable, |(instance, generation)| {
                    FoundState::State(State {
                        instance,
                        generation,
                        interval: sync == "interval",
                        closed_at: closed_at.parse().ok(),
                        began_at: closed_at.strip_prefix('-').and_then(|lsn| lsn.parse().ok()),
                    })
                })
            }
            _ => FoundState::Unreadable,
        }
    }
}

/// The last frame that was handed to the operating system, kept where a power cut erases it and nothing else does.
///
/// If it is there after a crash, the machine did not lose power, and it says how far the log must reach.
pub struct Witness {
    file: Box<dyn WritableFile>,
    generation: u64,
}

const WITNESS_BYTES: usize = 20;

impl Witness {
    /// `None` where nothing is erased by a power cut alone.
    fn path(files: &dyn Files, instance: u64) -> Option<PathBuf> {
        Some(files.witness_dir()?.join(format!("bowline-{instance:016x}")))
    }

    /// What the run with this state saw last, if its witness is still there.
    pub fn last_lsn(files: &dyn Files, state: &State) -> Option<u64> {
        let bytes = files.read(&Witness::path(files, state.instance)?, WITNESS_BYTES as u64 + 1).ok()?;
        let (numbers, crc) = bytes.split_at_checked(WITNESS_BYTES - 4)?;
        let generation = u64::from_le_bytes(numbers[..8].try_into().ok()?);
        let lsn = u64::from_le_bytes(numbers[8..].try_into().ok()?);
        // The next run leaves its witness before its state, and answers nothing until it has left both.
        let current = generation == state.generation || generation == state.generation + 1;
        (crc == crc32fast::hash(numbers).to_le_bytes() && current).then_some(lsn)
    }

    /// Without one, a crash is taken for a power cut, which is safe.
    pub fn create(files: &dyn Files, state: &State, lsn: u64) -> Option<Witness> {
        let file = files.open_or_create(&Witness::path(files, state.instance)?).ok()?;
        let witness = Witness { file, generation: state.generation };
        witness.note(lsn).ok()?;
        Some(witness)
    }

    pub fn note(&self, lsn: u64) -> io::Result<()> {
        let mut bytes = [0; WITNESS_BYTES];
        bytes[..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[8..16].copy_from_slice(&lsn.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..16]);
        bytes[16..].copy_from_slice(&crc.to_le_bytes());
        self.file.write_all_at(&bytes, 0)
    }

    /// Not needed any more once the store was closed.
    pub fn remove(files: &dyn Files, instance: u64) {
        if let Some(path) = Witness::path(files, instance) {
            // A witness that stays behind does no harm: its generation is over.
            let _ = files.remove(&path);
        }
    }
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Witness(run {})", self.generation)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use bowline_env::files::OsFiles;

    use super::*;

    #[test]
    fn a_state_reads_back_and_any_flipped_bit_is_noticed() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = DataDir { path: temporary.path().to_owned(), files: Arc::new(OsFiles) };
        assert_eq!(State::load(&dir).unwrap(), FoundState::Nothing);
        for (closed_at, began_at) in [(None, None), (None, Some(7)), (Some(99), None)] {
            let state = State { instance: 0xabc, generation: 7, interval: true, closed_at, began_at };
            state.save(&dir).unwrap();
            assert_eq!(State::load(&dir).unwrap(), FoundState::State(state));
        }
        let sound = fs::read(path(&dir.path)).unwrap();
        for at in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 1;
            assert_eq!(State::parse(&bytes), FoundState::Unreadable, "flip at {at}");
        }
    }
}
