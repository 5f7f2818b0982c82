//! Webhooks: the addresses that get the ends of responses, and the key that signs what they get.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bowline_env::http::Endpoint;
use bowline_hub::{Reach, check_address};
use ring::hmac;
use url::Url;

use super::resolve::{Resolver, Result};

const PREFIX: &str = "whsec_";
/// What the Standard Webhooks rules ask of a key.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

#[derive(Clone, Debug)]
pub struct WebhookConfig {
    pub targets: Vec<Endpoint>,
    pub key: WebhookKey,
    pub allow_private: bool,
    pub timeout: Duration,
    pub retry_for: Duration,
    pub owed_per_session_max: u64,
}

/// What webhooks are signed with.
#[derive(Clone)]
pub struct WebhookKey(hmac::Key);

impl WebhookKey {
    /// `whsec_` and Base64, as receivers are given it.
    fn parse(secret: &str) -> Option<WebhookKey> {
        let bytes = BASE64.decode(secret.strip_prefix(PREFIX)?).ok()?;
        KEY_BYTES.contains(&bytes.len()).then(|| WebhookKey(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The value of `webhook-signature`.
    pub fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut signed = format!("{id}.{timestamp}.").into_bytes();
        signed.extend_from_slice(body);
        format!("v1,{}", BASE64.encode(hmac::sign(&self.0, &signed)))
    }
}

impl fmt::Debug for WebhookKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookKey")
    }
}

impl Resolver<'_> {
    /// None if no target is named.
    pub fn webhooks(&self) -> Result<Option<WebhookConfig>> {
        let urls: Vec<String> = self.get("webhooks.urls")?;
        if urls.is_empty() {
            return Ok(None);
        }
        let allow_private = self.get("webhooks.allow_private")?;
        let targets = urls.iter().map(|url| self.webhook_target(url, allow_private)).collect::<Result<_>>()?;
        let secret = self.optional_secret("webhooks.secret")?;
        let key = secret.and_then(|secret| WebhookKey::parse(secret.expose()));
        let expected = "`whsec_` and 24 to 64 bytes in Base64, which `webhooks.urls` needs";
        let key = key.ok_or_else(|| self.wrong("webhooks.secret", expected))?;
        let (timeout, retry_for) = (self.get("webhooks.timeout")?, self.get("webhooks.retry_for")?);
        let owed_per_session_max = self.get("webhooks.owed_per_session_max")?;
        Ok(Some(WebhookConfig { targets, key, allow_private, timeout, retry_for, owed_per_session_max }))
    }

    fn webhook_target(&self, text: &str, allow_private: bool) -> Result<Endpoint> {
        let key = "webhooks.urls";
        let url: Option<Url> = text.parse().ok();
        let read = url.and_then(|url| Some((Endpoint::new(&url).ok()?, url)));
        let (target, url) = read.ok_or_else(|| self.wrong(key, "URLs such as \"https://example.com/hook\""))?;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        // What a name leads to is looked at when it is dialled.
        if host.parse().is_ok_and(|address| check_address(address, Reach::of_added(allow_private)).is_err()) {
            return Err(self.wrong(key, "public addresses, unless `webhooks.allow_private` is set"));
        }
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification.
    #[test]
    fn signatures_are_those_of_the_specification() {
        let key = WebhookKey::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        let signature = key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_key_has_a_prefix_and_enough_bytes() {
        for wrong in ["", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAA", "whsec_not base64"] {
            assert!(WebhookKey::parse(wrong).is_none(), "{wrong}");
        }
    }
}
