//! What the hub answers by itself.

use crate::fields::{Fields, Raw};

/// A list with its entries, marked as stale when its origin is away.
pub fn list(member: &str, entries: &[Raw], stale: bool, meta: Option<Raw>) -> Raw {
    let mut result = Fields::default();
    result.put(member, entries);
    if stale {
        result.put("ttlMs", &0);
        result.put("cacheScope", "private");
    }
    if let Some(meta) = meta {
        result.set("_meta", meta);
    }
    result.to_raw()
}
