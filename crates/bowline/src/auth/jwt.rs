//! JSON Web Tokens: which key, which algorithms, how long, for whom. The kind of algorithm follows from the key, never from the
//! token.

use std::sync::Arc;

use bowline_env::Env;
use bowline_protocol::Principal;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::{Map, Value};

use super::changes::Changes;
use super::key_set::{KeySetFile, VerifyingKey};
use super::remote::RemoteKeys;
use super::{AuthError, Identity, signature};
use crate::config::{JWT_SECRET_BYTES_MIN, JwtConfig, JwtKeys};

/// How far `nbf` may lie ahead of us, since the clocks of issuer and server differ.
pub const LEEWAY_SECONDS: u64 = 30;

#[derive(Debug)]
pub struct JwtVerifier {
    keys: VerifyingKeys,
    issuer: Option<String>,
    audience: Option<String>,
    principal_claim: String,
    admin_claim: String,
}

#[derive(Debug)]
enum VerifyingKeys {
    One(Arc<VerifyingKey>),
    File(KeySetFile),
    Remote(Box<RemoteKeys>),
}

impl JwtVerifier {
    /// `changes` hears of it when keys come or go.
    pub fn new(config: &JwtConfig, env: &Env, changes: &Changes) -> anyhow::Result<JwtVerifier> {
        signature::install();
        let keys = match &config.keys {
            JwtKeys::Secret(secret) => {
                let bytes = secret.expose().as_bytes();
                anyhow::ensure!(
                    bytes.len() >= JWT_SECRET_BYTES_MIN,
                    "the JWT secret must have at least {JWT_SECRET_BYTES_MIN} bytes"
                );
                VerifyingKeys::One(Arc::new(VerifyingKey::secret(bytes)))
            }
            JwtKeys::Pem(pem) => VerifyingKeys::One(Arc::new(VerifyingKey::pem(pem)?)),
            JwtKeys::JwksFile(path) => VerifyingKeys::File(KeySetFile::open(&env.files, path, changes)?),
            JwtKeys::JwksUrl { url, refresh } => {
                VerifyingKeys::Remote(Box::new(RemoteKeys::new(url, *refresh, &env.network, changes)?))
            }
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
        let header = decode_header(token).map_err(|error| auth_error(&error))?;
        let key = match &self.keys {
            VerifyingKeys::One(key) => key.clone(),
            VerifyingKeys::File(file) => file.find(header.kid.as_deref()).ok_or(AuthError::UnknownKey)?,
            VerifyingKeys::Remote(remote) => remote.find(header.kid.as_deref()).ok_or(AuthError::UnknownKey)?,
        };
        let claims = decode::<Map<String, Value>>(token, &key.key, &self.validation(&key));
        let claims = claims.map_err(|error| auth_error(&error))?.claims;
        let expires_at = self.check_time(&claims, now_unix)?;
        let name = claims.get(&self.principal_claim).and_then(Value::as_str);
        let principal = name.and_then(Principal::parse).ok_or(AuthError::NoPrincipal)?;
        Ok(Identity { principal, admin: self.is_admin(&claims), expires_at: Some(expires_at) })
    }

    /// Looks whether a key set on disk has changed, once a second at most.
    pub async fn look(&self, now_unix: u64) {
        if let VerifyingKeys::File(file) = &self.keys {
            file.look(now_unix).await;
        }
    }

    /// The key set, if it is behind a URL.
    pub fn remote(&self) -> Option<&RemoteKeys> {
        match &self.keys {
            VerifyingKeys::Remote(remote) => Some(remote),
            VerifyingKeys::One(_) | VerifyingKeys::File(_) => None,
        }
    }

    /// After [`AuthError::UnknownKey`]: whether the key that the token names is known by now.
    pub async fn learn(&self, token: &str) -> bool {
        match (self.remote(), decode_header(token)) {
            (Some(remote), Ok(header)) => remote.learn(header.kid.as_deref()).await,
            _ => false,
        }
    }

    fn validation(&self, key: &VerifyingKey) -> Validation {
        let mut validation = Validation::new_for_family(key.key.family());
        validation.algorithms.retain(|algorithm| key.algorithms.contains(algorithm));
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

/// A NumericDate: seconds, possibly with a fraction, which is dropped.
fn seconds(value: &Value) -> Option<u64> {
    let fraction = || value.as_f64().filter(|number| (0.0..9e15).contains(number)).map(|number| number as u64);
    value.as_u64().or_else(fraction)
}

fn auth_error(error: &jsonwebtoken::errors::Error) -> AuthError {
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
