//! Follows the settings file while the server runs: what it says of credentials is in force as soon as it is written.

use std::sync::Arc;
use std::time::Duration;

use crate::auth::Authenticator;
use crate::config::{AuthConfig, Reread};

/// A token that was taken out stops working within about this time.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Looks for ever. Settings other than credentials wait for the next start.
pub async fn follow(auth: Arc<Authenticator>, reread: Reread, in_force: AuthConfig) {
    let (mut reread, mut in_force) = (reread, in_force);
    let mut seen = None;
    loop {
        let looking = reread.clone();
        let Ok(versions) = tokio::task::spawn_blocking(move || looking.versions()).await else { return };
        // Also at the first look: the file may have changed since it was read.
        if seen.as_ref() != Some(&versions) {
            seen = Some(versions);
            if let Some(next) = take_up(&auth, &reread, &mut in_force).await
                && !next.has_same_files(&reread)
            {
                // Other files hold the credentials now, and have not been looked at.
                (reread, seen) = (next, None);
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Puts the credentials that the settings name now in force. Returns where they are to be looked for from now on.
async fn take_up(auth: &Authenticator, reread: &Reread, in_force: &mut AuthConfig) -> Option<Reread> {
    let reading = reread.clone();
    let loaded = match tokio::task::spawn_blocking(move || reading.load()).await.ok()? {
        Ok(loaded) => loaded,
        Err(error) => {
            tracing::warn!(%error, "the settings cannot be read again; those in force stay");
            return None;
        }
    };
    let wanted = loaded.config.auth;
    let same_mode = std::mem::discriminant(&wanted.mode) == std::mem::discriminant(&in_force.mode);
    if !same_mode {
        tracing::warn!(
            "`auth.mode` has changed in the settings; that needs a restart, and nothing else of it is taken up"
        );
    } else if wanted.mode != in_force.mode || wanted.admin_token != in_force.admin_token {
        match auth.replace(&wanted).await {
            Ok(()) => {
                tracing::info!("the credentials in the settings have changed and are in force");
                (in_force.mode, in_force.admin_token) = (wanted.mode, wanted.admin_token);
            }
            Err(error) => {
                tracing::warn!(error = %format!("{error:#}"), "the credentials in the settings cannot be used; those in force stay");
            }
        }
    }
    loaded.reread
}
