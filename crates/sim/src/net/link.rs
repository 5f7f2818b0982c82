//! One connection: what is under way on it, what has arrived, and what will become of it.

use std::collections::VecDeque;
use std::task::Waker;

use super::{BACKEND, Machine, SERVER, UNHEARD_MS};

/// One connection: what each side wrote is in its pipe, the client's first.
#[derive(Debug)]
pub struct SimLink {
    /// Whose it is on either side.
    pub machines: [Machine; 2],
    pub pipes: [SimPipe; 2],
    pub fate: LinkFate,
    /// When a side let go of it.
    pub dropped_at: [Option<u64>; 2],
    /// A machine of its was off since: whatever reaches that is answered with a reset.
    pub is_stale: bool,
    /// When the kernel of the one who dialled gives it up, if that watches over it and hears nothing.
    pub unheard_until: Option<u64>,
}

#[derive(Debug, Default)]
pub struct SimPipe {
    pub under_way: VecDeque<(u64, Vec<u8>)>,
    pub arrived: VecDeque<u8>,
    pub written: u64,
    /// How it ends, and when the reader learns that.
    pub end: Option<(u64, LinkEnd)>,
    pub reader: Option<Waker>,
    pub writer: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    Finished,
    Reset,
}

/// What will become of a connection, when so many bytes were written on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFate {
    Sound,
    Cut {
        side: usize,
        at: u64,
    },
    Silence {
        side: usize,
        at: u64,
    },
    /// Nothing arrives any more, and neither side is told.
    Silent,
}

impl SimLink {
    pub fn fall_silent(&mut self, now: u64) {
        self.fate = LinkFate::Silent;
        if self.machines[SERVER] == BACKEND {
            self.unheard_until.get_or_insert(now + UNHEARD_MS);
        }
    }

    pub fn give_up_if_unheard(&mut self, now: u64) {
        if self.unheard_until.is_some_and(|until| until <= now) {
            self.unheard_until = None;
            self.reset(now);
        }
    }

    pub fn reset(&mut self, at: u64) {
        for pipe in &mut self.pipes {
            if !matches!(pipe.end, Some((when, _)) if when <= at) {
                pipe.end = Some((at, LinkEnd::Reset));
            }
            pipe.writer.take().into_iter().for_each(Waker::wake);
            pipe.reader.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Both sides have let go, long enough ago for the last bytes to have arrived.
    pub fn is_over(&self, now: u64) -> bool {
        self.dropped_at.iter().all(|dropped| dropped.is_some_and(|then| then + 1000 < now))
    }
}

impl SimPipe {
    pub fn len(&self) -> usize {
        self.arrived.len() + self.under_way.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
    }

    pub fn push(&mut self, at: u64, bytes: &[u8]) {
        let last = self.under_way.back().map_or(0, |(at, _)| *at);
        self.under_way.push_back((at.max(last), bytes.to_vec()));
    }

    /// Moves what has arrived, and says whether more is coming.
    pub fn deliver(&mut self, now: u64) -> bool {
        let mut is_news = false;
        while self.under_way.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, bytes)) = self.under_way.pop_front() {
                self.arrived.extend(bytes);
                is_news = true;
            }
        }
        let ends_now = matches!(self.end, Some((at, _)) if at == now || at < now && self.reader.is_some());
        if is_news || ends_now {
            self.reader.take().into_iter().for_each(Waker::wake);
        }
        let coming = self.under_way.front().is_some_and(|(at, _)| *at != u64::MAX);
        coming || is_news || matches!(self.end, Some((at, _)) if at > now)
    }
}
