//! Who is asking: checks a presented credential and names the principal behind it.

mod changes;
pub mod host;
mod jwt;
mod key_set;
pub mod origin;
pub mod presented;
mod public_key;
mod remote;
mod signature;
pub mod validity;

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bowline_env::{Env, clock};
use bowline_protocol::{ErrorCode, Principal, Refusal};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::config::{AuthConfig, AuthMode, Config, StaticToken};
use crate::origin::is_loopback;
use bowline_protocol::frame::client::Secret;
use changes::Changes;
use jwt::JwtVerifier;
use tokio::sync::Notify;

pub use host::{HostRefused, check_host};
pub use origin::{OriginRefused, PageOrigin, check_origin};
pub use presented::{PresentedCredential, SUBPROTOCOL, token_from_headers};
pub use validity::{Credential, Validity};

/// The principal of all clients when there is no auth.
pub const LOCAL: &str = "local";

/// A key set in a file is looked at this often, also without requests.
const KEY_FILE_EVERY: Duration = Duration::from_secs(1);

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
    #[error("this `Authorization` is not a bearer token; send `Authorization: Bearer <token>`")]
    OtherScheme,
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
    #[error("the token is from another issuer")]
    WrongIssuer,
    #[error("the token is for another audience")]
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
    listen: SocketAddr,
    env: Env,
    mode: RwLock<Arc<Mode>>,
    changes: Changes,
    /// Wakes what keeps the mode's keys new, when there is another mode.
    replaced: Notify,
}

#[derive(Debug)]
enum Mode {
    None(Principal, Operators),
    Tokens(Vec<KnownToken>),
    Jwt(Box<JwtVerifier>),
}

/// Who is an admin where callers have to prove nothing.
enum Operators {
    /// Only this machine reaches us, and no `auth.admin_token` is set.
    Everyone,
    /// Clients that show `auth.admin_token`.
    WithToken([u8; 32]),
    Disabled,
}

impl std::fmt::Debug for Operators {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Operators::Everyone => "Everyone",
            Operators::WithToken(_) => "WithToken",
            Operators::Disabled => "Disabled",
        })
    }
}

impl Operators {
    /// A proxy, a tunnel or a container's port makes strangers come from this machine, so where a connection comes from
    /// says nothing: what counts is where we listen.
    fn new(auth: &AuthConfig, listen: &SocketAddr) -> Operators {
        match &auth.admin_token {
            Some(token) => Operators::WithToken(digest(token.expose())),
            None if is_loopback(listen) => Operators::Everyone,
            None => Operators::Disabled,
        }
    }

    fn includes(&self, token: Option<&str>) -> bool {
        match (self, token) {
            (Operators::Everyone, _) => true,
            (Operators::WithToken(known), Some(token)) => known.ct_eq(&digest(token)).into(),
            (Operators::WithToken(_), None) | (Operators::Disabled, _) => false,
        }
    }
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

impl Mode {
    fn new(auth: &AuthConfig, listen: &SocketAddr, env: &Env, changes: &Changes) -> anyhow::Result<Mode> {
        Ok(match &auth.mode {
            AuthMode::None => {
                let local = Principal::parse(LOCAL).ok_or_else(|| anyhow::anyhow!("`{LOCAL}` is not a principal"))?;
                Mode::None(local, Operators::new(auth, listen))
            }
            AuthMode::Tokens(tokens) => Mode::Tokens(tokens.iter().map(KnownToken::new).collect()),
            AuthMode::Jwt(jwt) => Mode::Jwt(Box::new(JwtVerifier::new(jwt, env, changes)?)),
        })
    }

    /// Fetches what lies elsewhere, for a while at most.
    /// Fetches what lies elsewhere. False if it could not be had.
    async fn begin(&self) -> bool {
        match self {
            Mode::Jwt(verifier) => match verifier.remote() {
                Some(remote) => remote.begin().await,
                None => true,
            },
            Mode::None(..) | Mode::Tokens(_) => true,
        }
    }

    fn check(&self, token: Option<&str>, now_unix: u64) -> Result<Identity, AuthError> {
        let known = match self {
            Mode::None(principal, operators) => {
                let admin = operators.includes(token);
                return Ok(Identity { principal: principal.clone(), admin, expires_at: None });
            }
            Mode::Tokens(known) => known,
            Mode::Jwt(verifier) => return verifier.verify(token.ok_or(AuthError::Missing)?, now_unix),
        };
        let token = token.ok_or(AuthError::Missing)?;
        let found = find(known, token).ok_or(AuthError::Unknown)?;
        Ok(Identity { principal: found.principal.clone(), admin: found.admin, expires_at: None })
    }
}

impl Authenticator {
    /// Prepares the keys. Fails if a key cannot be used, so that a server never starts with a lock it cannot open.
    pub fn new(config: &Config) -> anyhow::Result<Authenticator> {
        let changes = Changes::default();
        let mode = RwLock::new(Arc::new(Mode::new(&config.auth, &config.listen, &config.env, &changes)?));
        Ok(Authenticator { listen: config.listen, env: config.env.clone(), mode, changes, replaced: Notify::new() })
    }

    fn mode(&self) -> Arc<Mode> {
        self.mode.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks against these settings from now on. A client whose credential they no longer accept is notified.
    pub async fn replace(&self, auth: &AuthConfig) -> anyhow::Result<()> {
        let mode = Mode::new(auth, &self.listen, &self.env, &self.changes)?;
        // Keys that lie elsewhere are fetched first: without them every client would be sent away.
        anyhow::ensure!(mode.begin().await, "the key set cannot be fetched");
        *self.mode.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(mode);
        self.changes.announce();
        self.replaced.notify_one();
        Ok(())
    }

    /// Whether callers have to prove anything.
    pub fn is_required(&self) -> bool {
        !matches!(*self.mode(), Mode::None(..))
    }

    /// Fetches what lies elsewhere, for a while at most.
    pub async fn begin(&self) {
        self.mode().begin().await;
    }

    /// Keeps what lies elsewhere new, for ever.
    pub async fn follow(&self) {
        loop {
            let mode = self.mode();
            let following = std::pin::pin!(follow(&mode));
            futures_util::future::select(following, std::pin::pin!(self.replaced.notified())).await;
        }
    }

    /// Who the presented credential stands for, and until when.
    pub async fn admit(
        self: &Arc<Self>,
        presented: &PresentedCredential,
        now_unix: u64,
    ) -> Result<Credential, AuthError> {
        // Where nothing has to be proven, what a proxy wanted to know is not for us.
        if presented.other_scheme && self.is_required() {
            return Err(AuthError::OtherScheme);
        }
        let changes = self.changes.subscribe();
        let identity = self.authenticate(presented.token(), now_unix).await?;
        let proven = self.is_required() || (identity.admin && !self.is_open_to_operators());
        let validity = match &presented.token {
            Some(token) if proven => Validity::new(self.clone(), token.clone(), identity.clone(), changes),
            _ => Validity::endless(),
        };
        Ok(Credential { identity, validity })
    }

    /// Whether all clients are admins.
    fn is_open_to_operators(&self) -> bool {
        matches!(*self.mode(), Mode::None(_, Operators::Everyone))
    }

    /// Who the credential stands for. Waits for a key that is not known and may be a new one, and once a second for a look
    /// at a key set on disk.
    pub async fn authenticate(&self, token: Option<&str>, now_unix: u64) -> Result<Identity, AuthError> {
        let mode = self.mode();
        if let Mode::Jwt(verifier) = &*mode {
            verifier.look(now_unix).await;
        }
        match (mode.check(token, now_unix), &*mode, token) {
            (Err(AuthError::UnknownKey), Mode::Jwt(verifier), Some(text)) if verifier.learn(text).await => {
                mode.check(token, now_unix)
            }
            (checked, ..) => checked,
        }
    }

    /// Whether a credential that was accepted still stands for the same, after something has changed.
    fn recheck(&self, token: &Secret, before: &Identity, now_unix: u64) -> Result<(), AuthError> {
        let now = self.mode().check(Some(token.expose()), now_unix)?;
        let same = now.principal == before.principal && (now.admin || !before.admin);
        same.then_some(()).ok_or(AuthError::Unknown)
    }
}

/// Keeps the keys of one mode new, for ever.
async fn follow(mode: &Arc<Mode>) {
    let Mode::Jwt(verifier) = &**mode else { return std::future::pending().await };
    if let Some(remote) = verifier.remote() {
        return remote.follow().await;
    }
    loop {
        tokio::time::sleep(KEY_FILE_EVERY).await;
        // A key that was taken out is noticed also while no client connects.
        verifier.look(clock::unix_seconds()).await;
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

    fn with(mode: AuthMode) -> Authenticator {
        let config = Config { auth: AuthConfig { mode, ..Config::default().auth }, ..Config::default() };
        Authenticator::new(&config).unwrap()
    }

    fn token(token: &str, principal: &str, admin: bool) -> StaticToken {
        StaticToken { token: Secret::new(token), principal: Principal::parse(principal).unwrap(), admin }
    }

    #[test]
    fn without_auth_everyone_is_local_and_on_loopback_may_do_everything() {
        let auth = with(AuthMode::None);
        for token in [None, Some("anything")] {
            let identity = auth.mode().check(token, 0).unwrap();
            assert_eq!((identity.principal.as_str(), identity.admin, identity.expires_at), (LOCAL, true, None));
        }
        assert!(!auth.is_required());
    }

    #[test]
    fn without_auth_who_is_an_admin_depends_on_who_reaches_us_and_on_the_admin_token() {
        let admin_token = || Some(Secret::new("operators-only"));
        for (listen, known, shown, admin) in [
            ("127.0.0.1:1", None, None, true),
            ("[::1]:1", None, None, true),
            ("0.0.0.0:1", None, None, false),
            ("0.0.0.0:1", None, Some("operators-only"), false),
            ("10.0.0.1:1", None, Some(""), false),
            ("0.0.0.0:1", admin_token(), None, false),
            ("0.0.0.0:1", admin_token(), Some("operators-onl"), false),
            ("0.0.0.0:1", admin_token(), Some("operators-only"), true),
            ("127.0.0.1:1", admin_token(), None, false),
            ("127.0.0.1:1", admin_token(), Some("operators-only"), true),
        ] {
            let auth = AuthConfig { admin_token: known, ..Config::default().auth };
            let config = Config { auth, listen: listen.parse().unwrap(), ..Config::default() };
            let identity = Authenticator::new(&config).unwrap().mode().check(shown, 0).unwrap();
            assert_eq!((identity.principal.as_str(), identity.admin), (LOCAL, admin), "{listen} {shown:?}");
        }
    }

    #[test]
    fn a_static_token_is_taken_whole_or_not_at_all() {
        let auth = with(AuthMode::Tokens(vec![token("alpha", "alice", true), token("beta", "bob", false)]));
        let mode = auth.mode();
        let who = |text| mode.check(text, 0).map(|identity| (identity.principal.to_string(), identity.admin));
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
