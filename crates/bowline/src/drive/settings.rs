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
    let (mut seen, mut reported) = (None, None);
    loop {
        let looking = reread.clone();
        let Ok(looks) = tokio::task::spawn_blocking(move || looking.look()).await else { return };
        // Also at the first look: the file may have changed since it was read.
        if seen.as_ref() != Some(&looks) {
            match take_up(&auth, &reread, &mut in_force).await {
                Ok(next) => {
                    (seen, reported) = (Some(looks), None);
                    if let Some(next) = next.filter(|next| !next.has_same_files(&reread)) {
                        // Other files hold the credentials now, and have not been looked at.
                        (reread, seen) = (next, None);
                    }
                }
                Err(error) => {
                    // Tried again, since what is missing may lie in a file that is not looked at yet; logged once.
                    if reported.as_ref() != Some(&error) {
                        tracing::warn!(error, "the credentials in the settings cannot be used; those in force stay");
                    }
                    reported = Some(error);
                }
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Puts the credentials that the settings name now in force. Returns where they are to be looked for from now on.
async fn take_up(auth: &Authenticator, reread: &Reread, in_force: &mut AuthConfig) -> Result<Option<Reread>, String> {
    let reading = reread.clone();
    let loaded = tokio::task::spawn_blocking(move || reading.load()).await.map_err(|error| error.to_string())?;
    let loaded = loaded.map_err(|error| error.to_string())?;
    let wanted = loaded.config.auth;
    let same_mode = std::mem::discriminant(&wanted.mode) == std::mem::discriminant(&in_force.mode);
    if !same_mode {
        tracing::warn!(
            "`auth.mode` has changed in the settings; that needs a restart, and nothing else of it is taken up"
        );
    } else if wanted.mode != in_force.mode || wanted.admin_token != in_force.admin_token {
        auth.replace(&wanted).await.map_err(|error| format!("{error:#}"))?;
        tracing::info!("the credentials in the settings have changed and are in force");
        (in_force.mode, in_force.admin_token) = (wanted.mode, wanted.admin_token);
    }
    Ok(loaded.reread)
}
