//! The token form: a signed state as one line of base64url, in the clear or encrypted.
//!
//! ```text
//! plain:      base64url(canonical JSON of the object form)
//! encrypted:  base64url("bwlst1" · length of key id · key id · nonce · XChaCha20-Poly1305(plain token's bytes))
//! ```

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bowline_protocol::SignedState;

use super::{Keyring, Nonce, OpenLimits, SealKey, SealRefusal, object};
use crate::canonical::canonical;

/// Six bytes are eight characters of base64, so every encrypted token begins alike: `Yndsc3Qx`.
const MAGIC: &[u8] = b"bwlst1";

pub fn plain(signed: &SignedState) -> String {
    URL_SAFE_NO_PAD.encode(bytes(signed))
}

pub fn encrypted(signed: &SignedState, key: &SealKey, nonce: &Nonce) -> String {
    // A key's id is at most 64 bytes long.
    let id_bytes = key.id().len() as u8;
    let sealed = key.encrypt(nonce, &bytes(signed));
    URL_SAFE_NO_PAD.encode([MAGIC, &[id_bytes], key.id().as_bytes(), nonce, &sealed].concat())
}

/// Reads a token. Its bytes must be exactly those that we would write: a token is not reformatted on the way.
pub fn read(token: &str, ring: Option<&Keyring>, limits: &OpenLimits) -> Result<SignedState, SealRefusal> {
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| SealRefusal::Shape)?;
    let Some(sealed) = bytes.strip_prefix(MAGIC) else {
        return exactly(&bytes, limits);
    };
    let (id, nonce, sealed) = split(sealed).ok_or(SealRefusal::Shape)?;
    let key = ring.and_then(|ring| ring.find(id)).ok_or(SealRefusal::UnknownKey)?;
    if key.is_retired() {
        return Err(SealRefusal::RetiredKey);
    }
    let plain = key.decrypt(nonce, sealed).ok_or(SealRefusal::Signature)?;
    let signed = exactly(&plain, limits)?;
    if signed.key_id == id { Ok(signed) } else { Err(SealRefusal::Signature) }
}

fn split(bytes: &[u8]) -> Option<(&str, &Nonce, &[u8])> {
    let (id_bytes, rest) = bytes.split_first()?;
    let (id, rest) = rest.split_at_checked(usize::from(*id_bytes))?;
    let (nonce, sealed) = rest.split_first_chunk()?;
    Some((str::from_utf8(id).ok()?, nonce, sealed))
}

fn exactly(written: &[u8], limits: &OpenLimits) -> Result<SignedState, SealRefusal> {
    let text = str::from_utf8(written).map_err(|_| SealRefusal::Shape)?;
    let signed = object(text, limits)?;
    if bytes(&signed) == written { Ok(signed) } else { Err(SealRefusal::Shape) }
}

fn bytes(signed: &SignedState) -> Vec<u8> {
    // Our own type: its keys are text and its numbers finite.
    canonical(&serde_json::to_value(signed).unwrap_or_default())
}
