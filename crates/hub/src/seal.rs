//! What the hub gives to clients to bring back, sealed, so that it is recognised and cannot be forged.

use std::sync::Arc;

use bowline_env::entropy;
use bowline_protocol::{Epoch, LogId, Principal, Seq};
use bowline_store::{Clock, Commit, Fence, LogKind, Record, Start, Store, StoreError};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The log whose record is the key. It is in the store, so that a seal means the same after a restart and on every node.
const LOG: &str = "hub_task_key";
/// Half of the hash is still too much to guess.
const SEAL_BYTES: usize = 16;

pub struct Seal {
    key: Vec<u8>,
}

impl Seal {
    pub async fn open(store: &Arc<dyn Store>, clock: &Clock) -> Result<Seal, StoreError> {
        let (Some(log), Some(hub_principal)) = (LogId::parse(LOG), Principal::parse("hub")) else {
            return Err(StoreError::NoSuchLog);
        };
        if let Some(record) = store.record(&log).await? {
            return Ok(Seal { key: record.body.to_vec() });
        }
        let now = clock.now_ms();
        let body = [entropy::u128().to_be_bytes(), entropy::u128().to_be_bytes()].concat();
        let mut commit = Commit::to(log.clone(), Fence::default(), now);
        commit.create = Some(Start { epoch: Epoch::from_random(entropy::u128() as u64), after: Seq::ZERO });
        commit.record = Some(Record { kind: LogKind::Hub, owner: hub_principal, touched_ms: now, body: body.into() });
        match store.commit(commit).await {
            // Another node was faster; all nodes use its key.
            Ok(_) | Err(StoreError::Exists | StoreError::StaleFence { .. }) => {}
            Err(error) => return Err(error),
        }
        let record = store.record(&log).await?.ok_or(StoreError::NoSuchLog)?;
        Ok(Seal { key: record.body.to_vec() })
    }

    /// The seal of these parts, in hexadecimal.
    pub fn of(&self, parts: &[&str]) -> String {
        let seal = self.mac(parts).finalize().into_bytes();
        seal[..SEAL_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn fits(&self, parts: &[&str], seal: &str) -> bool {
        if seal.len() != 2 * SEAL_BYTES || !seal.is_ascii() {
            return false;
        }
        let byte = |at: usize| u8::from_str_radix(&seal[2 * at..2 * at + 2], 16).ok();
        let bytes: Option<Vec<u8>> = (0..SEAL_BYTES).map(byte).collect();
        bytes.is_some_and(|bytes| self.mac(parts).verify_truncated_left(&bytes).is_ok())
    }

    #[allow(clippy::expect_used)]
    fn mac(&self, parts: &[&str]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.key).expect("HMAC takes any length");
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        mac
    }

    #[cfg(test)]
    pub fn with_key(key: Vec<u8>) -> Arc<Seal> {
        Arc::new(Seal { key })
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_fits_what_it_was_made_of_and_nothing_else() {
        let seal = Seal::with_key(vec![7; 32]);
        let made = seal.of(&["a", "bc"]);
        assert!(seal.fits(&["a", "bc"], &made));
        assert!(!seal.fits(&["ab", "c"], &made), "parts are told apart");
        assert!(!Seal::with_key(vec![8; 32]).fits(&["a", "bc"], &made), "another hub's");
        for wrong in
            ["", "z", "é23456789012345678901234567890", &made[1..], &format!("{made}0"), &made.replace(&made[..1], "z")]
        {
            assert!(!seal.fits(&["a", "bc"], wrong), "{wrong}");
        }
    }

    #[tokio::test]
    async fn all_who_share_a_store_share_the_seal() {
        let all = bowline_store::Retention { events_max: 10, age_max_ms: u64::MAX };
        let store: Arc<dyn Store> = Arc::new(bowline_store::memory::MemoryStore::new(all));
        let clock = Clock::start();
        let (one, other) = (Seal::open(&store, &clock).await.unwrap(), Seal::open(&store, &clock).await.unwrap());
        assert!(other.fits(&["a"], &one.of(&["a"])));
        assert_eq!(one.key.len(), 32);
    }
}
