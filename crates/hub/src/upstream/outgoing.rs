//! A message on its way out of a pipe, and how far it has come: what is sent again must not have left.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::fields::Raw;

const QUEUED: u8 = 0;
/// It is being written, or has been: what is in doubt counts as sent.
const LEAVING: u8 = 1;
/// Nothing of it has left, and nothing will.
const STAYED: u8 = 2;

/// How far a message has come. The task that writes it and the one that waits for its answer may decide that at the same moment, so
/// only one of them can take the step out of the queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Departure(Arc<AtomicU8>);

impl Departure {
    /// Keeps the message back, if it has not left yet. Whether it has stayed.
    pub fn keep_back(&self) -> bool {
        match self.0.compare_exchange(QUEUED, STAYED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(now) => now == STAYED,
        }
    }
}

pub struct Outgoing {
    pub text: Raw,
    /// What it asks for is called this.
    pub number: Option<u64>,
    pub(super) departure: Departure,
}

impl Outgoing {
    pub fn new(text: Raw) -> Outgoing {
        Outgoing { text, number: None, departure: Departure::default() }
    }

    pub fn request(text: Raw, number: u64) -> Outgoing {
        Outgoing { number: Some(number), ..Outgoing::new(text) }
    }

    /// Called before the first byte is written. False if the message was withdrawn and must not be sent.
    pub fn leaves(&self) -> bool {
        let Departure(state) = &self.departure;
        state.compare_exchange(QUEUED, LEAVING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// It was tried, and not a byte went out.
    pub fn stayed(&self) {
        self.departure.0.store(STAYED, Ordering::Release);
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outgoing({} bytes)", self.text.get().len())
    }
}
