//! The memory that readers may take together: what was read for them and has not left yet.
//!
//! A reader that takes nothing keeps what was read for it. So the more is held in all, the less each reader is given at
//! a time, down to a minimum that every reader gets; what is held then grows with the number of readers, but slowly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a reader is given at least, however many there are.
pub const WINDOW_BYTES_MIN: usize = 8 << 10;
/// No reader is given more than this part of what is left, so that there is something left for the next one.
const PART_OF_WHAT_IS_LEFT: usize = 8;

#[derive(Debug)]
pub struct ReadBudget {
    bytes_max: usize,
    held: AtomicUsize,
}

impl ReadBudget {
    pub fn new(bytes_max: usize) -> Arc<ReadBudget> {
        Arc::new(ReadBudget { bytes_max, held: AtomicUsize::new(0) })
    }

    /// How much may be read now for one reader that wants `most`.
    pub fn window(&self, most: usize) -> usize {
        let left = self.bytes_max.saturating_sub(self.held());
        (left / PART_OF_WHAT_IS_LEFT).max(WINDOW_BYTES_MIN).min(most)
    }

    /// What all readers hold.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

/// What one reader holds, until this is dropped.
#[derive(Debug)]
pub struct HeldBytes {
    budget: Arc<ReadBudget>,
    bytes: usize,
}

impl HeldBytes {
    pub fn new(budget: &Arc<ReadBudget>) -> HeldBytes {
        HeldBytes { budget: budget.clone(), bytes: 0 }
    }

    pub fn set(&mut self, bytes: usize) {
        if bytes >= self.bytes {
            self.budget.held.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            self.budget.held.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Reads for one HTTP response, one piece at a time: the next piece is read when the one before it has left for the
/// socket. The HTTP library would take many of them before it looks whether the client takes any.
#[derive(Debug)]
pub struct Pacer {
    budget: Arc<ReadBudget>,
    turns: Arc<Semaphore>,
    turn: Option<(OwnedSemaphorePermit, HeldBytes)>,
}

impl Pacer {
    pub fn new(budget: &Arc<ReadBudget>) -> Pacer {
        Pacer { budget: budget.clone(), turns: Arc::new(Semaphore::new(1)), turn: None }
    }

    /// Waits until the last piece has left, and says how much may be read for the next one. That much counts as held.
    pub async fn room(&mut self, most: usize) -> usize {
        if self.turn.is_none() {
            // The semaphore is never closed.
            let Ok(permit) = self.turns.clone().acquire_owned().await else { return WINDOW_BYTES_MIN.min(most) };
            self.turn = Some((permit, HeldBytes::new(&self.budget)));
        }
        let window = self.budget.window(most);
        if let Some((_, held)) = &mut self.turn {
            held.set(window);
        }
        window
    }

    /// Nothing was there to be read.
    pub fn rest(&mut self) {
        self.turn = None;
    }

    /// The next piece, which counts until its sender drops it.
    pub fn piece(&mut self, bytes: impl Into<Bytes>) -> Bytes {
        let bytes = bytes.into();
        let Some((permit, mut held)) = self.turn.take() else { return bytes };
        held.set(bytes.len());
        Bytes::from_owner(BudgetedBytes { bytes, _held: held, _permit: permit })
    }
}

struct BudgetedBytes {
    bytes: Bytes,
    _held: HeldBytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for BudgetedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 256 << 10;

    #[test]
    fn readers_that_keep_all_they_get_stay_within_the_budget_and_a_little_each() {
        let budget = ReadBudget::new(8 << 20);
        assert_eq!(budget.window(MOST), MOST, "one reader alone is not held back");
        let stuck: Vec<HeldBytes> = (0..1000)
            .map(|_| {
                let mut held = HeldBytes::new(&budget);
                held.set(budget.window(MOST));
                held
            })
            .collect();
        assert!(budget.held() <= (8 << 20) + 1000 * WINDOW_BYTES_MIN, "{}", budget.held());
        assert_eq!(budget.window(MOST), WINDOW_BYTES_MIN, "the next one is still served");
        assert_eq!(budget.window(100), 100, "and gets no more than it wants");
        drop(stuck);
        assert_eq!((budget.held(), budget.window(MOST)), (0, MOST));
    }

    #[tokio::test]
    async fn the_next_piece_is_read_when_the_one_before_has_left() {
        let budget = ReadBudget::new(8 << 20);
        let mut pacer = Pacer::new(&budget);
        assert_eq!(pacer.room(MOST).await, MOST);
        let piece = pacer.piece(vec![1_u8; 1000]);
        assert_eq!((&piece[..3], budget.held()), (&[1, 1, 1][..], 1000));
        let mut next = Box::pin(pacer.room(MOST));
        let waiting = std::future::poll_fn(|context| std::task::Poll::Ready(next.as_mut().poll(context).is_pending()));
        assert!(waiting.await, "the client has not taken the first one");
        drop(piece);
        assert_eq!(next.await, MOST);
        pacer.rest();
        assert_eq!(budget.held(), 0, "a reader that waits for events holds nothing");
    }
}
