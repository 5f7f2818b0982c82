//! The directory of a store, and the files that it is made of.

use std::path::PathBuf;
use std::sync::Arc;

use bowline_env::Files;

#[derive(Clone, Debug)]
pub struct DataDir {
    pub path: PathBuf,
    pub files: Arc<dyn Files>,
}
