//! Settings that are read again while the server runs: from which files, and whether those have changed.

use std::path::{Path, PathBuf};

use bowline_env::files::Look;

use super::Config;
use super::error::ConfigError;
use super::load::{Flags, Loaded, Surroundings};
use super::value::Value;
use super::written::Written;

/// Where the settings came from. `Surroundings` may hold secrets, so nothing of them is shown.
#[derive(Clone)]
pub struct Reread {
    flags: Flags,
    around: Surroundings,
    /// The settings file, and the files that credentials are in.
    files: Vec<PathBuf>,
}

/// How the files look; none while one cannot be looked at.
pub type Looks = Vec<Option<Look>>;

impl Reread {
    pub(super) fn new(flags: &Flags, around: &Surroundings, file: Option<&Path>, written: &Written) -> Reread {
        let mut files: Vec<PathBuf> = file.into_iter().map(|file| around.path(file)).collect();
        let mut refer = |text: &str| files.extend(text.strip_prefix("file:").map(|path| around.path(path)));
        for key in ["auth.admin_token", "auth.jwt_secret"] {
            if let Value::Secret(text) = written.get(key).0 {
                refer(&text);
            }
        }
        if let Value::Tokens(tokens) = written.get("auth.tokens").0 {
            tokens.iter().for_each(|token| refer(&token.token));
        }
        if let Value::Text(path) = written.get("auth.jwt_public_key_file").0 {
            files.push(around.path(path));
        }
        Reread { flags: flags.clone(), around: around.clone(), files }
    }

    /// The settings as they are now.
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        Config::load_from(&self.flags, &self.around)
    }

    /// Whether both look at the same files.
    pub fn has_same_files(&self, other: &Reread) -> bool {
        self.files == other.files
    }

    pub fn look(&self) -> Looks {
        self.files.iter().map(|path| self.around.env.files.look(path).ok()).collect()
    }
}

impl std::fmt::Debug for Reread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reread({:?})", self.files)
    }
}
