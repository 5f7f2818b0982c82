//! Which servers there are: those of the configuration, those added or removed at run time, and what was last seen of each.

pub(crate) mod desired;
pub(crate) mod forced_reconnects;
pub(crate) mod remembered;
pub(crate) mod stored;
pub(crate) mod users;
