//! The settings of `auth`: which credentials count, and whose a session is.

use std::path::PathBuf;
use std::time::Duration;

use bowline_protocol::Principal;
use bowline_protocol::frame::client::Secret;

use super::choice::Ownership;
use super::error::ConfigError;
use super::resolve::{Resolver, Result};
use super::value::WrittenToken;
use crate::origin::{Origin, is_host_name, is_loopback, is_loopback_name};

#[derive(Clone, Debug, PartialEq)]
pub struct AuthConfig {
    pub mode: AuthMode,
    /// Without auth: what makes an admin, instead of being able to reach a loopback address.
    pub admin_token: Option<Secret>,
    /// Browser origins that may connect, besides the server's own page.
    pub origins: Vec<String>,
    /// Names that this server goes by, besides its addresses and the hosts of those origins.
    pub hosts: Vec<String>,
    /// How long a connection without a credential may wait before it sends one.
    pub first_frame_timeout: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub enum AuthMode {
    None,
    Tokens(Vec<StaticToken>),
    Jwt(JwtConfig),
}

#[derive(Clone, Debug, PartialEq)]
pub struct StaticToken {
    pub token: Secret,
    pub principal: Principal,
    pub admin: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JwtConfig {
    pub keys: JwtKeys,
    pub issuer: Option<String>,
    pub audience: Option<String>,
    /// The claim that names the principal.
    pub principal_claim: String,
    /// Principals with a claim of this name that is `true`, or a `scope` holding this word, may use the admin API.
    pub admin_claim: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum JwtKeys {
    /// One shared secret, for HS256, HS384 and HS512.
    Secret(Secret),
    /// One public key in PEM, for RS256, RS384 and RS512, or ES256 or ES384, by its kind.
    Pem(String),
    /// A JSON Web Key Set on disk.
    JwksFile(PathBuf),
    /// A JSON Web Key Set elsewhere, and how often it is fetched anew.
    JwksUrl { url: url::Url, refresh: Duration },
}

/// HS256 with a secret shorter than its own output can be guessed; RFC 7518 forbids it.
pub const JWT_SECRET_BYTES_MIN: usize = 32;

/// A secret that strangers may try to guess for as long as they like.
const ADMIN_TOKEN_BYTES_MIN: usize = 16;

impl Resolver<'_> {
    pub(super) fn has_auth(&self) -> Result<bool> {
        Ok(self.get::<String>("auth.mode")? != "none")
    }

    pub(super) fn ownership(&self, key: &str) -> Result<Ownership> {
        let (has_auth, loopback) = (self.has_auth()?, is_loopback(&self.get("listen")?));
        let Some(ownership) = self.get(key)? else {
            return Ok(match (has_auth, loopback) {
                (true, _) => Ownership::Principal,
                (false, true) => Ownership::Open,
                (false, false) => Ownership::Token,
            });
        };
        match ownership {
            Ownership::Principal if !has_auth => Err(ConfigError::conflict(
                "`session.ownership` is \"principal\", but without auth all callers are the same principal",
                "Set `auth.mode`, or use \"token\".",
            )),
            Ownership::Open if has_auth || !loopback => Err(ConfigError::conflict(
                "`session.ownership` is \"open\", which is safe only on loopback without auth",
                "Remove it to get the safe default, or use \"token\".",
            )),
            ownership => Ok(ownership),
        }
    }

    pub(super) fn auth(&self) -> Result<AuthConfig> {
        let mode = match self.get::<String>("auth.mode")?.as_str() {
            "tokens" => AuthMode::Tokens(self.static_tokens()?),
            "jwt" => AuthMode::Jwt(self.jwt()?),
            _ => {
                self.refuse_forgotten_mode()?;
                AuthMode::None
            }
        };
        let origins: Vec<String> = self.get("auth.origins")?;
        for origin in &origins {
            if origin != "*" && Origin::parse(origin).is_none() {
                return Err(
                    self.wrong("auth.origins", "origins such as \"https://app.example\", without a path, or \"*\"")
                );
            }
        }
        let hosts: Vec<String> = self.get("auth.hosts")?;
        if hosts.iter().any(|host| host != "*" && !is_host_name(host)) {
            return Err(self.wrong("auth.hosts", "names such as \"bowline.internal\", without a port, or \"*\""));
        }
        let admin_token = self.admin_token(&mode)?;
        let first_frame_timeout = self.get("auth.first_frame_timeout")?;
        Ok(AuthConfig { mode, admin_token, origins, hosts, first_frame_timeout })
    }

    fn admin_token(&self, mode: &AuthMode) -> Result<Option<Secret>> {
        let key = "auth.admin_token";
        let Some(token) = self.optional_secret(key)? else { return Ok(None) };
        if !matches!(mode, AuthMode::None) {
            return Err(ConfigError::conflict(
                "`auth.admin_token` is set, but with auth an admin is a principal",
                "Remove it, and give a token `admin = true`, or a JWT the claim that `auth.admin_claim` names.",
            ));
        }
        if token.expose().len() < ADMIN_TOKEN_BYTES_MIN {
            let expected = format!("at least {ADMIN_TOKEN_BYTES_MIN} bytes, such as from `openssl rand -hex 16`");
            return Err(self.wrong(key, &expected));
        }
        Ok(Some(token))
    }

    /// Credentials without a mode are a server that its owner believes to be locked.
    fn refuse_forgotten_mode(&self) -> Result<()> {
        let credentials =
            ["auth.tokens", "auth.jwt_secret", "auth.jwt_public_key_file", "auth.jwks_file", "auth.jwks_url"];
        match credentials.iter().find(|key| self.written.is_written(key)) {
            Some(key) if !self.written.is_written("auth.mode") => Err(ConfigError::conflict(
                format!("`{key}` is set, but `auth.mode` is not"),
                "Set `auth.mode` to \"tokens\" or \"jwt\", or to \"none\" if clients need no credential.",
            )),
            _ => Ok(()),
        }
    }

    fn static_tokens(&self) -> Result<Vec<StaticToken>> {
        let written: Vec<WrittenToken> = self.get("auth.tokens")?;
        if written.is_empty() {
            return Err(ConfigError::conflict(
                "`auth.mode` is \"tokens\", but `auth.tokens` is empty",
                "Add at least one token.",
            ));
        }
        let mut tokens: Vec<StaticToken> = Vec::new();
        for WrittenToken { token, principal, admin } in written {
            let token = self.secret("auth.tokens", &token)?;
            let principal = Principal::parse(&principal)
                .ok_or_else(|| self.wrong("auth.tokens", "a principal of 1 to 128 characters"))?;
            if tokens.iter().any(|other| other.token == token) {
                return Err(ConfigError::conflict(
                    "`auth.tokens` has the same token twice",
                    "Give each principal its own token.",
                ));
            }
            tokens.push(StaticToken { token, principal, admin });
        }
        Ok(tokens)
    }

    fn jwt(&self) -> Result<JwtConfig> {
        let secret = self.optional_secret("auth.jwt_secret")?;
        let pem_file: Option<String> = self.get("auth.jwt_public_key_file")?;
        let jwks_file: Option<String> = self.get("auth.jwks_file")?;
        let jwks_url: Option<String> = self.get("auth.jwks_url")?;
        let keys = match (secret, pem_file, jwks_file, jwks_url) {
            (Some(secret), None, None, None) if secret.expose().len() < JWT_SECRET_BYTES_MIN => {
                return Err(self.wrong(
                    "auth.jwt_secret",
                    &format!("at least {JWT_SECRET_BYTES_MIN} bytes, such as from `openssl rand -hex 32`"),
                ));
            }
            (Some(secret), None, None, None) => JwtKeys::Secret(secret),
            (None, Some(path), None, None) => JwtKeys::Pem(self.read(&path)?),
            (None, None, Some(path), None) => JwtKeys::JwksFile(self.around.path(path)),
            (None, None, None, Some(url)) => {
                JwtKeys::JwksUrl { url: self.jwks_url(&url)?, refresh: self.get("auth.jwks_refresh")? }
            }
            _ => {
                return Err(ConfigError::conflict(
                    "`auth.mode` is \"jwt\", which needs exactly one kind of key",
                    "Set one of `auth.jwt_secret`, `auth.jwt_public_key_file`, `auth.jwks_file` and `auth.jwks_url`.",
                ));
            }
        };
        Ok(JwtConfig {
            keys,
            issuer: self.get("auth.issuer")?,
            audience: self.get("auth.audience")?,
            principal_claim: self.get("auth.principal_claim")?,
            admin_claim: self.get("auth.admin_claim")?,
        })
    }

    /// Keys that came over plain HTTP could be forged, so that is allowed on loopback only.
    fn jwks_url(&self, text: &str) -> Result<url::Url> {
        let url = url::Url::parse(text).ok();
        let safe = |url: &url::Url| {
            let loopback = url.host_str().is_some_and(is_loopback_name);
            url.scheme() == "https" || (url.scheme() == "http" && loopback)
        };
        url.filter(safe).ok_or_else(|| self.wrong("auth.jwks_url", "a URL with https://, or with http:// on loopback"))
    }
}
