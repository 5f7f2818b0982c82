//! What the server refuses in the same words wherever it does: what is not there, a server that leaves, a store in trouble.

use bowline_protocol::{ErrorCode, Refusal};
use bowline_store::{FollowError, StoreError};
use serde_json::json;

/// Unknown and foreign sessions are answered with exactly this.
pub fn session_not_found() -> Refusal {
    Refusal::new(ErrorCode::SessionNotFound, "There is no such session. Create a new one.")
}

/// Unknown and foreign tasks are answered with exactly this.
pub fn task_not_found() -> Refusal {
    Refusal::new(ErrorCode::TaskNotFound, "There is no such task.")
}

pub fn task_expired() -> Refusal {
    Refusal::new(ErrorCode::TaskExpired, "The task's stream was kept for a while after its end, and is gone.")
}

/// What a store's trouble means to a client that asks for a task.
pub fn of_task(error: &StoreError) -> Refusal {
    match error {
        StoreError::NoSuchLog => task_not_found(),
        error => of_store(error),
    }
}

/// What it means to a client that a task cannot be followed.
pub fn of_follower(error: &FollowError) -> Refusal {
    match error {
        FollowError::Store(error) => of_task(error),
        FollowError::EpochChanged => {
            let message = "The log has just begun a new epoch. Ask again, with the same position.";
            Refusal::new(ErrorCode::StoreUnavailable, message).retry_after_ms(100)
        }
    }
}

pub fn draining() -> Refusal {
    Refusal::new(ErrorCode::ServerDraining, "The server is shutting down. Try again in a moment.").retry_after_ms(2000)
}

/// What a store's trouble means to a client.
pub fn of_store(error: &StoreError) -> Refusal {
    match error {
        StoreError::NoSuchLog => session_not_found(),
        StoreError::Quarantined(_) => {
            let message = "The session's log is damaged and was set aside. An operator has to look at it.";
            Refusal::new(ErrorCode::StoreUnavailable, message).details(json!({ "quarantined": true }))
        }
        StoreError::TooLarge { .. } => {
            Refusal::new(ErrorCode::MessageTooLarge, "This is more than the store takes at once.")
        }
        StoreError::InDoubt(_) => {
            let message = "The store was lost while it kept this, so it may or may not have been accepted. Look, or try \
                           again under the same id.";
            Refusal::new(ErrorCode::StoreUnavailable, message).retry_after_ms(1000).details(json!({ "in_doubt": true }))
        }
        _ => {
            let message = "The store cannot keep this now, so it was not accepted. Try again.";
            Refusal::new(ErrorCode::StoreUnavailable, message).retry_after_ms(1000)
        }
    }
}
