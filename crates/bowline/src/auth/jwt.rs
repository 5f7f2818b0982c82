//! JSON Web Tokens: which key, which algorithm, how long, for whom. The algorithm follows from the key, never from the token.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::Context;
use bowline_protocol::Principal;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};

use super::{AuthError, Identity};
use crate::config::{JWT_SECRET_BYTES_MIN, JwtConfig, JwtKeys};

/// How far `nbf` may lie ahead of us, since the clocks of issuer and server differ.
pub const LEEWAY_SECONDS: u64 = 30;

#[derive(Debug)]
pub struct JwtVerifier {
    keys: Keys,
    issuer: Option<String>,
    audience: Option<String>,
    principal_claim: String,
    admin_claim: String,
}

#[derive(Debug)]
enum Keys {
    One(Arc<VerifyingKey>),
    File(KeyFile),
}

/// A key and the one algorithm that it may be used with.
#[derive(Debug)]
struct VerifyingKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

/// A key set on disk. Looked at once a second at most, and read again when it has changed.
#[derive(Debug)]
struct KeyFile {
    path: PathBuf,
    state: Mutex<KeyFileState>,
}

#[derive(Debug)]
struct KeyFileState {
    keys: Vec<Arc<VerifyingKey>>,
    version: Version,
    checked_at_unix: u64,
}

/// What changes when a file is written or replaced.
type Version = (SystemTime, u64);

impl JwtVerifier {
    pub fn new(config: &JwtConfig) -> anyhow::Result<JwtVerifier> {
        let keys = match &config.keys {
            JwtKeys::Secret(secret) => {
                let bytes = secret.expose().as_bytes();
                anyhow::ensure!(
                    bytes.len() >= JWT_SECRET_BYTES_MIN,
                    "the JWT secret must have at least {JWT_SECRET_BYTES_MIN} bytes"
                );
                let key = DecodingKey::from_secret(bytes);
                Keys::One(Arc::new(VerifyingKey { id: None, algorithm: Algorithm::HS256, key }))
            }
            JwtKeys::Pem(pem) => Keys::One(Arc::new(pem_key(pem)?)),
            JwtKeys::JwksFile(path) => Keys::File(KeyFile::open(path)?),
        };
        Ok(JwtVerifier {
            keys,
            issuer: config.issuer.clone(),
            audience: config.audience.clone(),
            principal_claim: config.principal_claim.clone(),
            admin_claim: config.admin_claim.clone(),
        })
    }

    pub fn verify(&self, token: &str, now_unix: u64) -> Result<Identity, AuthError> {
        let header = decode_header(token).map_err(|error| told(&error))?;
        let key = match &self.keys {
            Keys::One(key) => key.clone(),
            Keys::File(file) => file.find(header.kid.as_deref(), now_unix).ok_or(AuthError::UnknownKey)?,
        };
        let claims = decode::<Map<String, Value>>(token, &key.key, &self.validation(key.algorithm));
        let claims = claims.map_err(|error| told(&error))?.claims;
        let expires_at = self.check_time(&claims, now_unix)?;
        let name = claims.get(&self.principal_claim).and_then(Value::as_str);
        let principal = name.and_then(Principal::parse).ok_or(AuthError::NoPrincipal)?;
        Ok(Identity { principal, admin: self.is_admin(&claims), expires_at: Some(expires_at) })
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        // Time is checked by ourselves, against the caller's clock.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.required_spec_claims.clear();
        validation.validate_aud = self.audience.is_some();
        if let Some(audience) = &self.audience {
            validation.set_audience(&[audience]);
            validation.required_spec_claims.insert("aud".into());
        }
        if let Some(issuer) = &self.issuer {
            validation.set_issuer(&[issuer]);
            validation.required_spec_claims.insert("iss".into());
        }
        validation
    }

    /// The second from which the token is refused.
    fn check_time(&self, claims: &Map<String, Value>, now_unix: u64) -> Result<u64, AuthError> {
        let expiry = claims.get("exp").and_then(seconds).ok_or(AuthError::NoExpiry)?;
        // An expired credential is expired: leeway here would be time that its issuer did not grant.
        if now_unix >= expiry {
            return Err(AuthError::Expired);
        }
        match claims.get("nbf") {
            None => {}
            Some(value) => {
                let begin = seconds(value).ok_or(AuthError::Malformed)?;
                if begin > now_unix.saturating_add(LEEWAY_SECONDS) {
                    return Err(AuthError::NotYetValid);
                }
            }
        }
        Ok(expiry)
    }

    fn is_admin(&self, claims: &Map<String, Value>) -> bool {
        let word = self.admin_claim.as_str();
        let in_scope = match claims.get("scope") {
            Some(Value::String(scope)) => scope.split_whitespace().any(|one| one == word),
            Some(Value::Array(scopes)) => scopes.iter().any(|one| one == word),
            _ => false,
        };
        in_scope || claims.get(word) == Some(&Value::Bool(true))
    }
}

impl KeyFile {
    fn open(path: &Path) -> anyhow::Result<KeyFile> {
        let version = version_of(path).with_context(|| format!("cannot read the key set {}", path.display()))?;
        let keys = read_key_set(path)?;
        let state = Mutex::new(KeyFileState { keys, version, checked_at_unix: 0 });
        Ok(KeyFile { path: path.to_owned(), state })
    }

    /// The key that the token names. A token without a key id is fine as long as there is only one key.
    fn find(&self, id: Option<&str>, now_unix: u64) -> Option<Arc<VerifyingKey>> {
        // Nothing panics while the lock is held, and the state is whole at every point.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.checked_at_unix != now_unix {
            state.checked_at_unix = now_unix;
            self.refresh(&mut state);
        }
        match (id, state.keys.as_slice()) {
            (Some(id), keys) => keys.iter().find(|key| key.id.as_deref() == Some(id)).cloned(),
            (None, [only]) => Some(only.clone()),
            (None, _) => None,
        }
    }

    /// Keeps the old keys if the new file cannot be used: a half-written file must not lock everyone out.
    fn refresh(&self, state: &mut KeyFileState) {
        let version = match version_of(&self.path) {
            Ok(version) if version != state.version => version,
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the key set cannot be read; the old keys stay in use");
                return;
            }
        };
        match read_key_set(&self.path) {
            Ok(keys) => {
                tracing::info!(path = %self.path.display(), keys = keys.len(), "the key set has changed");
                (state.keys, state.version) = (keys, version);
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), error = %format!("{error:#}"), "the key set cannot be used; the old keys stay in use");
            }
        }
    }
}

fn version_of(path: &Path) -> std::io::Result<Version> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.modified()?, metadata.len()))
}

fn read_key_set(path: &Path) -> anyhow::Result<Vec<Arc<VerifyingKey>>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the key set {}", path.display()))?;
    let set: JwkSet =
        serde_json::from_str(&text).with_context(|| format!("{} is not a JSON Web Key Set", path.display()))?;
    let keys: Vec<_> = set.keys.iter().filter_map(set_key).map(Arc::new).collect();
    anyhow::ensure!(!keys.is_empty(), "{} has no RSA or P-256 key for signatures", path.display());
    Ok(keys)
}

/// The keys of a set that we can use. Shared secrets have no place in a file of public keys, so they are left out.
fn set_key(jwk: &Jwk) -> Option<VerifyingKey> {
    let (algorithm, named) = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        _ => return None,
    };
    let for_this = jwk.common.key_algorithm.is_none_or(|declared| declared == named);
    let for_signatures = jwk.common.public_key_use.as_ref().is_none_or(|declared| *declared == PublicKeyUse::Signature);
    let key = DecodingKey::from_jwk(jwk).ok()?;
    (for_this && for_signatures).then(|| VerifyingKey { id: jwk.common.key_id.clone(), algorithm, key })
}

fn pem_key(pem: &str) -> anyhow::Result<VerifyingKey> {
    anyhow::ensure!(
        !pem.contains("PRIVATE KEY"),
        "the JWT key file holds a private key; give the server the public one only"
    );
    let rsa = DecodingKey::from_rsa_pem(pem.as_bytes()).map(|key| (Algorithm::RS256, key));
    let found = rsa.or_else(|_| DecodingKey::from_ec_pem(pem.as_bytes()).map(|key| (Algorithm::ES256, key)));
    let (algorithm, key) = found.ok().context("the JWT key file is not an RSA or P-256 public key in PEM")?;
    Ok(VerifyingKey { id: None, algorithm, key })
}

/// A NumericDate: seconds, possibly with a fraction, which is dropped.
fn seconds(value: &Value) -> Option<u64> {
    let fraction = || value.as_f64().filter(|number| (0.0..9e15).contains(number)).map(|number| number as u64);
    value.as_u64().or_else(fraction)
}

fn told(error: &jsonwebtoken::errors::Error) -> AuthError {
    match error.kind() {
        ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => AuthError::WrongAlgorithm,
        ErrorKind::InvalidSignature => AuthError::BadSignature,
        ErrorKind::InvalidIssuer => AuthError::WrongIssuer,
        ErrorKind::InvalidAudience => AuthError::WrongAudience,
        ErrorKind::MissingRequiredClaim(claim) if claim == "iss" => AuthError::WrongIssuer,
        ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => AuthError::WrongAudience,
        _ => AuthError::Malformed,
    }
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
