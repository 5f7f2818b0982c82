//! Who is asking: checks a presented credential and names the principal behind it.

pub mod host;
mod jwt;
mod key_set;
pub mod origin;
pub mod presented;
mod remote;

use bowline_protocol::{ErrorCode, Principal, Refusal};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::config::{AuthMode, Config, StaticToken};
use jwt::JwtVerifier;

pub use host::{HostRefused, check_host};
pub use origin::{OriginRefused, Page, check_origin};
pub use presented::{Presented, SUBPROTOCOL, token_from_headers};

/// Everyone's name when nobody has to prove anything.
pub const LOCAL: &str = "local";

/// Who a credential stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub principal: Principal,
    /// May use the admin API.
    pub admin: bool,
    /// The Unix second from which the same credential would be refused.
    pub expires_at: Option<u64>,
}

/// Why a credential was not taken. Says nothing that helps to guess one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("no credential was given")]
    Missing,
    #[error("the credential is not known here")]
    Unknown,
    #[error("the credential is not a JSON Web Token")]
    Malformed,
    #[error("the token is signed with an algorithm that is not accepted")]
    WrongAlgorithm,
    #[error("the token names no key that is known here")]
    UnknownKey,
    #[error("the token's signature is wrong")]
    BadSignature,
    #[error("the token has no expiry")]
    NoExpiry,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
    #[error("the token was issued by someone else")]
    WrongIssuer,
    #[error("the token was issued for someone else")]
    WrongAudience,
    #[error("the token names no principal")]
    NoPrincipal,
}

impl From<AuthError> for Refusal {
    fn from(error: AuthError) -> Refusal {
        let sentence = error.to_string();
        let mut letters = sentence.chars();
        let capital: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
        Refusal::new(ErrorCode::Unauthorized, format!("{capital}."))
    }
}

#[derive(Debug)]
pub struct Authenticator {
    mode: Mode,
}

#[derive(Debug)]
enum Mode {
    None(Principal),
    Tokens(Vec<KnownToken>),
    Jwt(Box<JwtVerifier>),
}

struct KnownToken {
    digest: [u8; 32],
    principal: Principal,
    admin: bool,
}

impl std::fmt::Debug for KnownToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KnownToken({})", self.principal)
    }
}

impl Authenticator {
    /// Prepares the keys. Fails if a key cannot be used, so that a server never starts with a lock it cannot open.
    pub fn new(config: &Config) -> anyhow::Result<Authenticator> {
        let mode = match &config.auth.mode {
            AuthMode::None => {
                let local = Principal::parse(LOCAL);
                Mode::None(local.ok_or_else(|| anyhow::anyhow!("`{LOCAL}` is not a principal"))?)
            }
            AuthMode::Tokens(tokens) => Mode::Tokens(tokens.iter().map(KnownToken::new).collect()),
            AuthMode::Jwt(jwt) => Mode::Jwt(Box::new(JwtVerifier::new(jwt)?)),
        };
        Ok(Authenticator { mode })
    }

    /// Whether callers have to prove anything.
    pub fn is_required(&self) -> bool {
        !matches!(self.mode, Mode::None(_))
    }

    /// Fetches what lies elsewhere, for a while at most.
    pub async fn begin(&self) {
        if let Some(remote) = self.remote() {
            remote.begin().await;
        }
    }

    /// Keeps what lies elsewhere new, for ever.
    pub async fn follow(&self) {
        match self.remote() {
            Some(remote) => remote.follow().await,
            None => std::future::pending().await,
        }
    }

    fn remote(&self) -> Option<&remote::RemoteKeys> {
        match &self.mode {
            Mode::Jwt(verifier) => verifier.remote(),
            Mode::None(_) | Mode::Tokens(_) => None,
        }
    }

    /// Who the credential stands for. Waits for a key that is not known and may be a new one, and once a second for a look
    /// at a key set on disk.
    pub async fn authenticate(&self, token: Option<&str>, now_unix: u64) -> Result<Identity, AuthError> {
        if let Mode::Jwt(verifier) = &self.mode {
            verifier.look(now_unix).await;
        }
        match (self.check(token, now_unix), &self.mode, token) {
            (Err(AuthError::UnknownKey), Mode::Jwt(verifier), Some(text)) if verifier.learn(text).await => {
                self.check(token, now_unix)
            }
            (checked, ..) => checked,
        }
    }

    fn check(&self, token: Option<&str>, now_unix: u64) -> Result<Identity, AuthError> {
        let known = match &self.mode {
            Mode::None(principal) => {
                return Ok(Identity { principal: principal.clone(), admin: true, expires_at: None });
            }
            Mode::Tokens(known) => known,
            Mode::Jwt(verifier) => return verifier.verify(token.ok_or(AuthError::Missing)?, now_unix),
        };
        let token = token.ok_or(AuthError::Missing)?;
        let found = find(known, token).ok_or(AuthError::Unknown)?;
        Ok(Identity { principal: found.principal.clone(), admin: found.admin, expires_at: None })
    }
}

impl KnownToken {
    fn new(token: &StaticToken) -> KnownToken {
        KnownToken { digest: digest(token.token.expose()), principal: token.principal.clone(), admin: token.admin }
    }
}

/// Both sides are hashed, so that lengths do not show, and every token is compared, so that its place does not.
fn find<'a>(known: &'a [KnownToken], token: &str) -> Option<&'a KnownToken> {
    let presented = digest(token);
    let mut found = u32::MAX;
    for (place, candidate) in (0u32..).zip(known) {
        let equal: Choice = candidate.digest.ct_eq(&presented);
        found.conditional_assign(&place, equal);
    }
    known.get(found as usize)
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AuthConfig, AuthMode};
    use bowline_protocol::frame::client::Secret;

    fn with(mode: AuthMode) -> Authenticator {
        let config = Config { auth: AuthConfig { mode, ..Config::default().auth }, ..Config::default() };
        Authenticator::new(&config).unwrap()
    }

    fn token(token: &str, principal: &str, admin: bool) -> StaticToken {
        StaticToken { token: Secret::new(token), principal: Principal::parse(principal).unwrap(), admin }
    }

    #[test]
    fn without_auth_everyone_is_local_and_may_do_everything() {
        let auth = with(AuthMode::None);
        for token in [None, Some("anything")] {
            let identity = auth.check(token, 0).unwrap();
            assert_eq!((identity.principal.as_str(), identity.admin, identity.expires_at), (LOCAL, true, None));
        }
        assert!(!auth.is_required());
    }

    #[test]
    fn a_static_token_is_taken_whole_or_not_at_all() {
        let auth = with(AuthMode::Tokens(vec![token("alpha", "alice", true), token("beta", "bob", false)]));
        let who = |text| auth.check(text, 0).map(|identity| (identity.principal.to_string(), identity.admin));
        assert_eq!(who(Some("alpha")), Ok(("alice".into(), true)));
        assert_eq!(who(Some("beta")), Ok(("bob".into(), false)));
        for wrong in ["", "alph", "alphaa", "Alpha", " alpha", "alpha\0", "betaalpha"] {
            assert_eq!(who(Some(wrong)), Err(AuthError::Unknown), "{wrong:?}");
        }
        assert_eq!(who(None), Err(AuthError::Missing));
        assert!(auth.is_required());
    }

    #[test]
    fn a_refusal_is_a_sentence_with_the_right_code() {
        let refusal = Refusal::from(AuthError::Expired);
        assert_eq!((refusal.code, refusal.message.as_str()), (ErrorCode::Unauthorized, "The token has expired."));
    }
}
