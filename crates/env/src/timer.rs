//! A timer whose deadline moves with every message, and which is seldom set for that.

use std::pin::Pin;
use std::time::Instant;

use tokio::time::Sleep;

use crate::clock;

/// Waits until then; for ever without a deadline.
///
/// Setting a timer and taking it back costs more than much of what happens in between. So `sleep` stays set to an earlier
/// deadline as long as the one that is asked for is later, and is moved when it fires. Cancel-safe.
pub async fn until(mut sleep: Pin<&mut Sleep>, deadline: Option<Instant>) {
    let Some(deadline) = deadline else { return std::future::pending().await };
    if sleep.deadline().into_std() > deadline {
        sleep.as_mut().reset(deadline.into());
    }
    loop {
        sleep.as_mut().await;
        if clock::now() >= deadline {
            return;
        }
        sleep.as_mut().reset(deadline.into());
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_ends_at_the_deadline_whether_that_moved_ahead_or_back() {
        let start = clock::now();
        let mut sleep = pin!(tokio::time::sleep(10 * S));
        // A wait that is given up, as in a loop that does something else first.
        assert!(tokio::time::timeout(S, until(sleep.as_mut(), Some(start + 10 * S))).await.is_err());
        until(sleep.as_mut(), Some(start + 30 * S)).await;
        assert_eq!(clock::since(start), 30 * S, "later than it was set");
        until(sleep.as_mut(), Some(start + 40 * S)).await;
        assert_eq!(clock::since(start), 40 * S, "after it has fired");
        assert!(tokio::time::timeout(S, until(sleep.as_mut(), Some(start + 90 * S))).await.is_err());
        until(sleep.as_mut(), Some(start + 50 * S)).await;
        assert_eq!(clock::since(start), 50 * S, "earlier than it was set");
        until(sleep.as_mut(), Some(start)).await;
        assert_eq!(clock::since(start), 50 * S, "what is past is due at once");
        assert!(tokio::time::timeout(100 * S, until(sleep.as_mut(), None)).await.is_err());
    }
}
