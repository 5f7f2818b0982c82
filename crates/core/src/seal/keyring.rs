//! The keys that seal state: the newest signs, older ones still verify, retired ones refuse.

use std::fmt;

use bowline_protocol::Principal;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::{Nonce, hex};

/// What a signature is for. Whatever else these keys may sign one day has another label, so neither passes for the other.
const LABEL: &str = "bowline.state.v1";

/// A shorter key than HMAC's own output would be the weakest part.
pub const KEY_BYTES_MIN: usize = 32;

const ID_BYTES_MAX: usize = 64;

/// One key of the ring. What it keeps is derived, one key for each purpose; the secret itself is not kept.
#[derive(Clone)]
pub struct SealKey {
    id: String,
    signing: [u8; 32],
    encrypting: [u8; 32],
    retired: bool,
}

/// At least one key that may sign. Newest first.
#[derive(Clone, Debug)]
pub struct Keyring {
    keys: Vec<SealKey>,
    signer: usize,
}

/// What is wrong with a key or a ring. Never says anything about the secret but its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyringError {
    ShortKey { id: String, bytes: usize },
    BadId,
    SameIdTwice { id: String },
    NoKeyToSign,
}

impl SealKey {
    pub fn new(id: &str, secret: &[u8], retired: bool) -> Result<SealKey, KeyringError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if id.is_empty() || id.len() > ID_BYTES_MAX || !id.bytes().all(plain) {
            return Err(KeyringError::BadId);
        }
        if secret.len() < KEY_BYTES_MIN {
            return Err(KeyringError::ShortKey { id: id.to_owned(), bytes: secret.len() });
        }
        let (signing, encrypting) = (derive(secret, "sign"), derive(secret, "encrypt"));
        Ok(SealKey { id: id.to_owned(), signing, encrypting, retired })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// The signature of a canonical state, in hex.
    pub(super) fn sign(&self, timestamp: u64, version: &str, owner: &Principal, state: &[u8]) -> String {
        let timestamp = timestamp.to_string();
        let parts =
            [LABEL.as_bytes(), self.id.as_bytes(), timestamp.as_bytes(), version.as_bytes(), owner.as_str().as_bytes()];
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.signing).expect("HMAC takes any length");
        mac.update(&framed(&parts));
        mac.update(&(state.len() as u64).to_be_bytes());
        mac.update(state);
        hex(&mac.finalize().into_bytes())
    }

    pub(super) fn encrypt(&self, nonce: &Nonce, plain: &[u8]) -> Vec<u8> {
        let aad = self.associated();
        let payload = Payload { msg: plain, aad: &aad };
        self.cipher().encrypt(&XNonce::from(*nonce), payload).expect("a state is far shorter than 256 GiB")
    }

    pub(super) fn decrypt(&self, nonce: &Nonce, sealed: &[u8]) -> Option<Vec<u8>> {
        let aad = self.associated();
        self.cipher().decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: &aad }).ok()
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&self.encrypting.into())
    }

    fn associated(&self) -> Vec<u8> {
        framed(&[LABEL.as_bytes(), self.id.as_bytes()])
    }
}

impl Keyring {
    /// Takes keys newest first.
    pub fn new(keys: Vec<SealKey>) -> Result<Keyring, KeyringError> {
        for (at, key) in keys.iter().enumerate() {
            if keys[..at].iter().any(|other| other.id == key.id) {
                return Err(KeyringError::SameIdTwice { id: key.id.clone() });
            }
        }
        let signer = keys.iter().position(|key| !key.retired).ok_or(KeyringError::NoKeyToSign)?;
        Ok(Keyring { keys, signer })
    }

    /// The key that signs.
    pub fn signer(&self) -> &SealKey {
        &self.keys[self.signer]
    }

    pub fn keys(&self) -> &[SealKey] {
        &self.keys
    }

    pub(super) fn find(&self, id: &str) -> Option<&SealKey> {
        self.keys.iter().find(|key| key.id == id)
    }
}

fn derive(secret: &[u8], purpose: &str) -> [u8; 32] {
    let mut key = [0; 32];
    let info = framed(&[LABEL.as_bytes(), purpose.as_bytes()]);
    Hkdf::<Sha256>::new(None, secret).expand(&info, &mut key).expect("32 bytes are one block of HKDF");
    key
}

/// Each part behind its length, so that no two lists of parts have the same bytes.
fn framed(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}{})", self.id, if self.retired { ", retired" } else { "" })
    }
}

impl fmt::Display for KeyringError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyringError::ShortKey { id, bytes } => {
                write!(f, "the key `{id}` has {bytes} bytes; at least {KEY_BYTES_MIN} are needed")
            }
            KeyringError::BadId => {
                write!(f, "a key's id has 1 to {ID_BYTES_MAX} letters, digits, dots, dashes and underscores")
            }
            KeyringError::SameIdTwice { id } => write!(f, "two keys have the id `{id}`"),
            KeyringError::NoKeyToSign => f.write_str("no key is left that may sign"),
        }
    }
}

impl std::error::Error for KeyringError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str, retired: bool) -> SealKey {
        SealKey::new(id, &[7; 32], retired).unwrap()
    }

    #[test]
    fn a_short_key_an_odd_id_and_a_ring_that_cannot_sign_are_refused() {
        assert_eq!(
            SealKey::new("k", &[7; 31], false).unwrap_err(),
            KeyringError::ShortKey { id: "k".into(), bytes: 31 }
        );
        for id in ["", "a b", "a:b", "é", &"x".repeat(65)] {
            assert_eq!(SealKey::new(id, &[7; 32], false).unwrap_err(), KeyringError::BadId, "{id:?}");
        }
        assert_eq!(Keyring::new(vec![]).unwrap_err(), KeyringError::NoKeyToSign);
        assert_eq!(Keyring::new(vec![key("a", true)]).unwrap_err(), KeyringError::NoKeyToSign);
        let twice = Keyring::new(vec![key("a", false), key("a", true)]);
        assert_eq!(twice.unwrap_err(), KeyringError::SameIdTwice { id: "a".into() });
    }

    #[test]
    fn the_newest_key_that_is_not_retired_signs() {
        let ring = Keyring::new(vec![key("c", true), key("b", false), key("a", false)]).unwrap();
        assert_eq!(ring.signer().id(), "b");
    }

    #[test]
    fn no_two_lists_of_parts_have_the_same_bytes() {
        assert_ne!(framed(&[b"ab", b"c"]), framed(&[b"a", b"bc"]));
        assert_ne!(framed(&[b"ab", b""]), framed(&[b"ab"]));
    }

    #[test]
    fn each_purpose_has_a_key_of_its_own_and_none_is_shown() {
        let key = key("k", false);
        assert_ne!(key.signing, key.encrypting);
        assert_ne!(key.signing, [7; 32]);
        assert_eq!(format!("{key:?}"), "Key(k)");
    }
}
