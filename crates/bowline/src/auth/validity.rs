//! For how long an accepted credential goes on being good: everything that outlives its request waits for the end of that.

use std::sync::Arc;
use std::time::Duration;

use bowline_env::clock;
use bowline_protocol::frame::client::Secret;
use bowline_protocol::{ErrorCode, Refusal};
use tokio::sync::watch;

use super::{AuthError, Authenticator, Identity};

/// An expiry is a time of the wall clock, which may be set while we wait for it. So it is looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// A credential that was accepted, and who it stands for.
#[derive(Clone, Debug)]
pub struct Credential {
    pub identity: Identity,
    pub validity: Validity,
}

/// Ends when the same credential would be refused: it has expired, or was withdrawn.
#[derive(Clone, Debug)]
pub struct Validity(Option<Box<AcceptedCredential>>);

#[derive(Clone)]
struct AcceptedCredential {
    auth: Arc<Authenticator>,
    token: Secret,
    identity: Identity,
    changes: watch::Receiver<u64>,
}

impl Validity {
    /// Of a client without auth, which nothing can change.
    pub const fn endless() -> Validity {
        Validity(None)
    }

    /// `changes` was subscribed to before the token was checked, so that nothing slips in between.
    pub(super) fn new(
        auth: Arc<Authenticator>,
        token: Secret,
        identity: Identity,
        changes: watch::Receiver<u64>,
    ) -> Validity {
        Validity(Some(Box::new(AcceptedCredential { auth, token, identity, changes })))
    }

    pub fn can_end(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until the credential is good no more, and says why.
    pub async fn ended(self) -> AuthError {
        match self.0 {
            Some(mut accepted) => accepted.ended().await,
            None => std::future::pending().await,
        }
    }
}

impl AcceptedCredential {
    async fn ended(&mut self) -> AuthError {
        loop {
            // The authenticator that is held here is what tells of changes, so it never stops doing so.
            let changed = match self.identity.expires_at {
                None => self.changes.changed().await.is_ok(),
                Some(at) => {
                    let left = at.saturating_mul(1000).saturating_sub(clock::wall_ms());
                    if left == 0 {
                        return AuthError::Expired;
                    }
                    let wait = Duration::from_millis(left).min(LOOK_EVERY);
                    matches!(tokio::time::timeout(wait, self.changes.changed()).await, Ok(Ok(())))
                }
            };
            if changed && let Err(why) = self.auth.recheck(&self.token, &self.identity, clock::unix_seconds()) {
                return why;
            }
        }
    }
}

impl std::fmt::Debug for AcceptedCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Accepted({})", self.identity.principal)
    }
}

/// What a client gets whose credential is not valid any more.
pub fn ended(why: AuthError) -> Refusal {
    let message = match why {
        AuthError::Expired => "Your credential has expired. Connect with a new one.",
        _ => "Your credential was withdrawn. Connect with another one.",
    };
    Refusal::new(ErrorCode::Unauthorized, message)
}
