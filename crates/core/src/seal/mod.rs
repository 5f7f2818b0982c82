//! Sealed state: a session's state in the client's hands, which cannot be forged, altered, extended or used by another principal.
//!
//! ```text
//! seal: state ─▶ canonical ─▶ checksum, signature ─▶ object ─▶ (token) ─▶ (encrypted token)
//! open: size ─▶ shape ─▶ key and signature ─▶ version ─▶ time ─▶ structure
//! ```
//!
//! The order of opening is part of the promise: nothing is parsed above a limit, and before the signature is known to be
//! ours every "no" is the same "no".

mod keyring;
mod refusal;
mod token;

use std::fmt;

use bowline_protocol::state::{SignedState, State, VERSION};
use bowline_protocol::{Principal, json};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::canonical::{canonical, settled, spell_out};

pub use keyring::{KEY_BYTES_MIN, Keyring, KeyringError, SealKey};
pub use refusal::SealRefusal;

/// Random bytes for one encryption. 24 of them never collide, so no counter is needed.
pub type Nonce = [u8; 24];

/// How the client gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An object that the client can read.
    Object,
    /// The same as one line of text.
    Token,
    /// A line of text that only this ring can read.
    Encrypted(Nonce),
}

#[derive(Debug)]
pub struct SealInput<'a> {
    pub state: &'a State,
    pub owner: &'a Principal,
    pub now_unix: u64,
    pub form: Form,
}

/// What a client keeps. It is serialised as the object or the string that `signed_state` is.
#[derive(Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Signed {
    Object(Box<SignedState>),
    Token(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sealed {
    pub signed: Signed,
    /// Bytes of the canonical state: what `state.bytes_max` counts.
    pub state_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenLimits {
    /// Bytes of a state, as its exporter counts them.
    pub bytes_max: usize,
    pub depth_max: usize,
    pub ttl_seconds: u64,
    /// How far clocks of several nodes may be apart.
    pub future_seconds: u64,
}

impl OpenLimits {
    /// Bytes of a signed state as a client may send it. A writer of JSON that escapes everything but ASCII makes three
    /// bytes of one, which is more than base64 does; the rest is for the envelope.
    pub const fn input_bytes_max(&self) -> usize {
        self.bytes_max.saturating_mul(3).saturating_add(4096)
    }
}

/// A state that is ours, its owner's, unaltered and in time.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenedState {
    pub state: State,
    /// When it was exported, in Unix seconds.
    pub timestamp: u64,
    pub key_id: String,
    /// The signature, which names this one export: what a memory of used states may keep.
    pub signature: String,
}

impl Keyring {
    /// Signs with the newest key.
    pub fn seal(&self, input: &SealInput<'_>) -> Sealed {
        let key = self.signer();
        // Our own type: its keys are text and its numbers finite, so it always becomes a Value.
        let mut state = serde_json::to_value(input.state).unwrap_or_default();
        spell_out(&mut state);
        let bytes = canonical(&state);
        let signed = SignedState {
            state: settled(&bytes).unwrap_or(state),
            timestamp: input.now_unix,
            version: VERSION.to_owned(),
            key_id: key.id().to_owned(),
            checksum: checksum(&bytes),
            signature: key.sign(input.now_unix, VERSION, input.owner, &bytes),
        };
        let signed = match input.form {
            Form::Object => Signed::Object(Box::new(signed)),
            Form::Token => Signed::Token(token::plain(&signed)),
            Form::Encrypted(nonce) => Signed::Token(token::encrypted(&signed, key, &nonce)),
        };
        Sealed { signed, state_bytes: bytes.len() }
    }

    /// Opens what a client sent as `signed_state`: an object, the same as text, a string, or a bare token.
    pub fn open(
        &self,
        input: &str,
        owner: &Principal,
        now_unix: u64,
        limits: &OpenLimits,
    ) -> Result<OpenedState, SealRefusal> {
        let signed = peek(input, Some(self), limits)?;
        let state = self.verify(&signed, owner)?;
        if signed.version != VERSION {
            return Err(SealRefusal::OtherVersion);
        }
        if now_unix.saturating_sub(signed.timestamp) > limits.ttl_seconds {
            return Err(SealRefusal::Expired);
        }
        if signed.timestamp.saturating_sub(now_unix) > limits.future_seconds {
            return Err(SealRefusal::FromTheFuture);
        }
        let state = serde_json::from_value(state).map_err(|_| SealRefusal::Structure)?;
        Ok(OpenedState { state, timestamp: signed.timestamp, key_id: signed.key_id, signature: signed.signature })
    }

    /// The state as it was signed, not as it was written.
    fn verify(&self, signed: &SignedState, owner: &Principal) -> Result<Value, SealRefusal> {
        let bytes = canonical(&signed.state);
        let named = self.find(&signed.key_id);
        // An unknown key costs as much time as a wrong signature.
        let key = named.unwrap_or_else(|| self.signer());
        let signature = key.sign(signed.timestamp, &signed.version, owner, &bytes);
        // Compared as text, so that not even the case of a hex digit can be changed.
        let same_signature = signature.as_bytes().ct_eq(signed.signature.as_bytes());
        let same_checksum = checksum(&bytes).as_bytes().ct_eq(signed.checksum.as_bytes());
        match named {
            None => Err(SealRefusal::UnknownKey),
            Some(key) if key.is_retired() => Err(SealRefusal::RetiredKey),
            Some(_) if !bool::from(same_signature & same_checksum) => Err(SealRefusal::Signature),
            Some(_) => settled(&bytes).ok_or(SealRefusal::Shape),
        }
    }
}

/// Reads a signed state without checking it. For an encrypted one the ring is needed.
pub fn peek(input: &str, ring: Option<&Keyring>, limits: &OpenLimits) -> Result<SignedState, SealRefusal> {
    if input.len() > limits.input_bytes_max() {
        return Err(SealRefusal::TooLarge);
    }
    let input = input.trim();
    match input.as_bytes().first() {
        Some(b'{') => object(input, limits),
        Some(b'"') => {
            let text: String = serde_json::from_str(input).map_err(|_| SealRefusal::Shape)?;
            // Some clients keep text only, and send the object back as they kept it.
            if text.trim_start().starts_with('{') { object(&text, limits) } else { token::read(&text, ring, limits) }
        }
        _ => token::read(input, ring, limits),
    }
}

fn object(text: &str, limits: &OpenLimits) -> Result<SignedState, SealRefusal> {
    if json::depth(text, limits.depth_max) > limits.depth_max {
        return Err(SealRefusal::TooDeep);
    }
    serde_json::from_str(text).map_err(|_| SealRefusal::Shape)
}

fn checksum(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    digits.map(char::from).collect()
}

impl fmt::Debug for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Signed::Object(signed) => signed.fmt(f),
            Signed::Token(token) => write!(f, "Token({} bytes)", token.len()),
        }
    }
}

impl Signed {
    /// The JSON text that stands for it in a frame.
    pub fn to_json(&self) -> String {
        json::raw(self).get().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LIMITS: OpenLimits = OpenLimits { bytes_max: 1000, depth_max: 8, ttl_seconds: 10, future_seconds: 60 };

    /// Opens something that another server with our key has properly signed.
    fn open(state: Value, version: &str, timestamp: u64, now: u64) -> SealRefusal {
        let (key, owner) = (SealKey::new("k", &[1; 32], false).unwrap(), Principal::parse("alice").unwrap());
        let bytes = canonical(&state);
        let signature = key.sign(timestamp, version, &owner, &bytes);
        let (version, key_id) = (version.to_owned(), "k".to_owned());
        let signed = SignedState { state, timestamp, version, key_id, checksum: checksum(&bytes), signature };
        let text = Signed::Object(Box::new(signed)).to_json();
        Keyring::new(vec![key]).unwrap().open(&text, &owner, now, &LIMITS).unwrap_err()
    }

    #[test]
    fn version_then_time_then_structure_are_looked_at_once_the_signature_is_ours() {
        assert_eq!(open(json!({}), "2.0", 0, 100), SealRefusal::OtherVersion);
        assert_eq!(open(json!({}), VERSION, 0, 100), SealRefusal::Expired);
        assert_eq!(open(json!({}), VERSION, 161, 100), SealRefusal::FromTheFuture);
        assert_eq!(open(json!({}), VERSION, 100, 100), SealRefusal::Structure);
        assert_eq!(open(json!([1]), VERSION, u64::MAX, 100), SealRefusal::FromTheFuture);
    }

    /// The signature as it is documented. If this changes, every state that clients hold is void.
    #[test]
    fn the_signature_stays_what_it_is() {
        let key = SealKey::new("k1", &[1; 32], false).unwrap();
        let signature = key.sign(1_800_000_000, VERSION, &Principal::parse("alice").unwrap(), b"{\"a\":1}");
        assert_eq!(signature, "8a234e7af50d6aed2b2a79206dcfcacdf7b03a1d946b4a90e31d65002f782796");
    }
}
