//! A Redis in memory: it speaks the protocol, and does the commands and the scripts that the store uses as the real one does.
//!
//! The scripts are recognised by their source, which is compiled in from the store, and done here in Rust. What they must do says the
//! store's contract suite, which runs against this model (`tests/it/redis_model.rs`) and against a real Redis (in the store's own
//! tests). There is one database, no cluster, no replicas.
//!
//! | module | holds |
//! |---|---|
//! | [`keyspace`] | keys and their values, as the commands see them |
//! | [`scripts`] | what the Lua files of the store do |
//! | [`resp`] | the protocol |
//! | [`server`] | connections, subscriptions, lives and deaths |

pub mod keyspace;
pub mod resp;
pub mod scripts;
pub mod server;
