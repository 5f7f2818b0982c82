//! What the settings of `auth` mean: which credentials count, and whose a session is.

use bowline_protocol::Principal;
use bowline_protocol::frame::client::Secret;

use super::error::ConfigError;
use super::resolve::{Resolver, Result};
use super::value::{Value, WrittenToken};
use super::{AuthConfig, AuthMode, JwtConfig, JwtKeys, Ownership, StaticToken};

/// HS256 with a secret shorter than its own output can be guessed; RFC 7518 forbids it.
pub const JWT_SECRET_BYTES_MIN: usize = 32;

/// A secret that strangers may try to guess for as long as they like.
const ADMIN_TOKEN_BYTES_MIN: usize = 16;

impl Resolver<'_> {
    pub(super) fn ownership(&self, has_auth: bool, loopback: bool) -> Result<Ownership> {
        let Some(text) = self.optional("session.ownership")? else {
            return Ok(match (has_auth, loopback) {
                (true, _) => Ownership::Principal,
                (false, true) => Ownership::Open,
                (false, false) => Ownership::Token,
            });
        };
        match text.as_str() {
            "principal" if !has_auth => Err(ConfigError::conflict(
                "`session.ownership` is \"principal\", but without auth all callers are the same principal",
                "Set `auth.mode`, or use \"token\".",
            )),
            "open" if has_auth || !loopback => Err(ConfigError::conflict(
                "`session.ownership` is \"open\", which is safe only on loopback without auth",
                "Remove it to get the safe default, or use \"token\".",
            )),
            "principal" => Ok(Ownership::Principal),
            "open" => Ok(Ownership::Open),
            _ => Ok(Ownership::Token),
        }
    }

    pub(super) fn auth(&self) -> Result<AuthConfig> {
        let mode = match self.text("auth.mode")?.as_str() {
            "tokens" => AuthMode::Tokens(self.static_tokens()?),
            "jwt" => AuthMode::Jwt(self.jwt()?),
            _ => {
                self.refuse_forgotten_mode()?;
                AuthMode::None
            }
        };
        let origins = match self.written.get("auth.origins").0 {
            Value::List(origins) => origins,
            _ => Vec::new(),
        };
        for origin in &origins {
            if origin != "*" && crate::auth::origin::Origin::parse(origin).is_none() {
                return Err(
                    self.wrong("auth.origins", "origins such as \"https://app.example\", without a path, or \"*\"")
                );
            }
        }
        let hosts = match self.written.get("auth.hosts").0 {
            Value::List(hosts) => hosts,
            _ => Vec::new(),
        };
        if hosts.iter().any(|host| host != "*" && !crate::auth::origin::is_host_name(host)) {
            return Err(self.wrong("auth.hosts", "names such as \"bowline.internal\", without a port, or \"*\""));
        }
        let admin_token = self.admin_token(&mode)?;
        let first_frame_timeout = self.span("auth.first_frame_timeout")?;
        Ok(AuthConfig { mode, admin_token, origins, hosts, first_frame_timeout })
    }

    fn admin_token(&self, mode: &AuthMode) -> Result<Option<Secret>> {
        let key = "auth.admin_token";
        let token = match self.written.get(key).0 {
            Value::Secret(text) if !text.is_empty() => self.secret(key, &text)?,
            _ => return Ok(None),
        };
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
                "Set `auth.mode` to \"tokens\" or \"jwt\", or to \"none\" if nobody needs to prove anything.",
            )),
            _ => Ok(()),
        }
    }

    fn static_tokens(&self) -> Result<Vec<StaticToken>> {
        let (Value::Tokens(written), _) = self.written.get("auth.tokens") else {
            return Err(self.wrong("auth.tokens", "a list of tokens"));
        };
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
        let secret = match self.written.get("auth.jwt_secret").0 {
            Value::Secret(text) if !text.is_empty() => Some(self.secret("auth.jwt_secret", &text)?),
            _ => None,
        };
        let pem_file = self.optional("auth.jwt_public_key_file")?;
        let jwks_file = self.optional("auth.jwks_file")?;
        let jwks_url = self.optional("auth.jwks_url")?;
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
                JwtKeys::JwksUrl { url: self.jwks_url(&url)?, refresh: self.span("auth.jwks_refresh")? }
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
            issuer: self.optional("auth.issuer")?,
            audience: self.optional("auth.audience")?,
            principal_claim: self.text("auth.principal_claim")?,
            admin_claim: self.text("auth.admin_claim")?,
        })
    }

    /// Keys that came over an open wire could be anybody's, so that is left to a machine's own.
    fn jwks_url(&self, text: &str) -> Result<reqwest::Url> {
        let url = reqwest::Url::parse(text).ok();
        let safe = |url: &reqwest::Url| {
            let loopback = url.host_str().is_some_and(crate::auth::origin::is_loopback_name);
            url.scheme() == "https" || (url.scheme() == "http" && loopback)
        };
        url.filter(safe).ok_or_else(|| self.wrong("auth.jwks_url", "a URL with https://, or with http:// on loopback"))
    }

    /// Follows `env:NAME` and `file:PATH`; anything else is the secret itself.
    pub(super) fn secret(&self, key: &str, text: &str) -> Result<Secret> {
        let found = if let Some(name) = text.strip_prefix("env:") {
            let value = self.around.variables.get(name).cloned();
            value.ok_or_else(|| self.missing(key, &format!("the environment variable {name}, which is not set")))?
        } else if let Some(path) = text.strip_prefix("file:") {
            self.read(path)?.trim_end_matches(['\r', '\n']).to_owned()
        } else {
            text.to_owned()
        };
        if found.is_empty() {
            return Err(self.missing(key, "a secret that is empty"));
        }
        Ok(Secret::new(found))
    }

    pub(super) fn missing(&self, key: &str, given: &str) -> ConfigError {
        let source_of = self.written.get(key).1;
        ConfigError::Wrong { key: key.to_owned(), source_of, given: given.to_owned(), expected: "a secret".into() }
    }
}
