//! Keys that verify JSON Web Tokens, and sets of them: each key with the algorithms that it may be used with.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use bowline_env::Files;
use bowline_env::files::{Look, read_text};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use super::changes::Changes;
use super::public_key::PublicKey;

const HS: &[Algorithm] = &[Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
const RS: &[Algorithm] = &[Algorithm::RS256, Algorithm::RS384, Algorithm::RS512];
/// A key has one curve, and what is signed for the other does not verify with it.
const ES: &[Algorithm] = &[Algorithm::ES256, Algorithm::ES384];

/// A key and the algorithms that it may be used with, all of one family.
#[derive(Debug)]
pub struct VerifyingKey {
    id: Option<String>,
    pub algorithms: Vec<Algorithm>,
    pub key: DecodingKey,
}

impl VerifyingKey {
    pub fn secret(bytes: &[u8]) -> VerifyingKey {
        VerifyingKey { id: None, algorithms: HS.to_vec(), key: DecodingKey::from_secret(bytes) }
    }

    pub fn pem(pem: &str) -> anyhow::Result<VerifyingKey> {
        anyhow::ensure!(
            !pem.contains("PRIVATE KEY"),
            "the JWT key file holds a private key; give the server the public one only"
        );
        let key = PublicKey::of_pem(pem).context("the JWT key file is not an RSA or EC public key in PEM")?;
        let (algorithms, key) = match key {
            PublicKey::Rsa(der) => (RS, DecodingKey::from_rsa_der(&der)),
            PublicKey::Curve(point) => (ES, DecodingKey::from_ec_der(&point)),
        };
        Ok(VerifyingKey { id: None, algorithms: algorithms.to_vec(), key })
    }

    /// A key of a set that we can use. Shared secrets have no place in a set of public keys, so they are left out.
    fn of_set(jwk: &Jwk) -> Option<VerifyingKey> {
        let possible: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => RS,
            AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => &[Algorithm::ES256],
            AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P384 => &[Algorithm::ES384],
            _ => return None,
        };
        let declared = jwk.common.key_algorithm;
        let for_this = |algorithm: &&Algorithm| declared.is_none_or(|declared| declared == (**algorithm).into());
        let algorithms: Vec<Algorithm> = possible.iter().filter(for_this).copied().collect();
        let for_signatures =
            jwk.common.public_key_use.as_ref().is_none_or(|declared| *declared == PublicKeyUse::Signature);
        let key = DecodingKey::from_jwk(jwk).ok()?;
        let usable = for_signatures && !algorithms.is_empty();
        usable.then(|| VerifyingKey { id: jwk.common.key_id.clone(), algorithms, key })
    }
}

/// The keys of a JSON Web Key Set that we can use.
pub type KeySet = Vec<Arc<VerifyingKey>>;

#[derive(Deserialize)]
struct WrittenSet {
    keys: Vec<Value>,
}

/// Reads a set. A key that is not understood is left out and costs the others nothing.
pub fn read(text: &str) -> anyhow::Result<KeySet> {
    let set: WrittenSet = serde_json::from_str(text).context("this is not a JSON Web Key Set")?;
    let jwks = set.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    let keys: KeySet = jwks.filter_map(|jwk| VerifyingKey::of_set(&jwk)).map(Arc::new).collect();
    anyhow::ensure!(!keys.is_empty(), "the key set has no RSA, P-256 or P-384 key for signatures");
    Ok(keys)
}

/// The key that a token names. A token without a key id is fine as long as there is only one key.
pub fn find(keys: &KeySet, id: Option<&str>) -> Option<Arc<VerifyingKey>> {
    match (id, keys.as_slice()) {
        (Some(id), keys) => keys.iter().find(|key| key.id.as_deref() == Some(id)).cloned(),
        (None, [only]) => Some(only.clone()),
        (None, _) => None,
    }
}

/// A key set on disk. Looked at once a second at most, and read again when it has changed.
#[derive(Debug)]
pub struct KeySetFile {
    files: Arc<dyn Files>,
    path: PathBuf,
    state: Mutex<KeyFileState>,
    changes: Changes,
}

#[derive(Debug)]
struct KeyFileState {
    keys: KeySet,
    look: Look,
    checked_at_unix: u64,
}

impl KeySetFile {
    pub fn open(files: &Arc<dyn Files>, path: &Path, changes: &Changes) -> anyhow::Result<KeySetFile> {
        let look = files.look(path).with_context(|| format!("cannot read the key set {}", path.display()))?;
        let state = Mutex::new(KeyFileState { keys: read_file(&**files, path)?, look, checked_at_unix: 0 });
        Ok(KeySetFile { files: files.clone(), path: path.to_owned(), state, changes: changes.clone() })
    }

    /// A key as the file was at the last [`look`](KeySetFile::look).
    pub fn find(&self, id: Option<&str>) -> Option<Arc<VerifyingKey>> {
        find(&self.state().keys, id)
    }

    /// Takes the file as it is now, on a thread that may wait for a slow disk. Keeps the old keys if the new file cannot
    /// be used: a half-written file must not lock everyone out.
    pub async fn look(&self, now_unix: u64) {
        let (files, path, known) = {
            let mut state = self.state();
            if state.checked_at_unix == now_unix {
                return;
            }
            state.checked_at_unix = now_unix;
            (self.files.clone(), self.path.clone(), state.look)
        };
        let changed = tokio::task::spawn_blocking(move || {
            let look = files.look(&path)?;
            if look == known { Ok(None) } else { read_file(&*files, &path).map(|keys| Some((keys, look))) }
        });
        // It fails only when the runtime ends.
        let Ok(changed) = changed.await else { return };
        match changed {
            Ok(None) => {}
            Ok(Some((keys, look))) => {
                tracing::info!(path = %self.path.display(), keys = keys.len(), "the key set has changed");
                let mut state = self.state();
                (state.keys, state.look) = (keys, look);
                self.changes.announce();
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), error = %format!("{error:#}"), "the key set cannot be used; the old keys stay in use");
            }
        }
    }

    /// Nothing panics while the lock is held, and the state is whole at every point.
    fn state(&self) -> MutexGuard<'_, KeyFileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_file(files: &dyn Files, path: &Path) -> anyhow::Result<KeySet> {
    let text = read_text(files, path).with_context(|| format!("cannot read the key set {}", path.display()))?;
    read(&text).with_context(|| path.display().to_string())
}
