//! The settings of signed state: which keys seal it, how much a client may carry, and for how long it is good.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bowline_core::seal::{KEY_BYTES_MIN, Keyring, OpenLimits, SealKey};
use bowline_core::shorten::StateLimits;

use super::error::ConfigError;
use super::resolve::{Resolver, Result};
use super::table::{Limits, StateConfig};

/// How far the clocks of those who seal and open may be apart.
const FUTURE_SECONDS: u64 = 60;

impl StateConfig {
    /// What an export may hold.
    pub fn limits(&self) -> StateLimits {
        StateLimits { messages_max: self.messages_max, bytes_max: self.bytes_max }
    }

    /// What is looked at when a state comes back.
    pub fn open_limits(&self, limits: &Limits) -> OpenLimits {
        OpenLimits {
            bytes_max: self.bytes_max,
            depth_max: limits.json_depth_max,
            ttl_seconds: self.ttl.as_secs(),
            future_seconds: FUTURE_SECONDS,
        }
    }
}

/// Padding or not: both `openssl rand -base64 32` and a URL-safe writer are right.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

impl Resolver<'_> {
    /// As base64 and with its envelope a state must fit into the frame that brings it back.
    pub(super) fn check_state_fits(&self, state: &StateConfig, limits: &Limits) -> Result<()> {
        let (bytes_max, frame_bytes_max) = (state.bytes_max, limits.frame_bytes_max);
        if bytes_max / 3 * 4 + 4096 <= frame_bytes_max {
            return Ok(());
        }
        Err(ConfigError::conflict(
            format!(
                "`state.bytes_max` is {bytes_max}, but `limits.frame_bytes_max` is {frame_bytes_max}: such a state could be taken \
                 away and not brought back"
            ),
            "Let a frame be at least half as large again as a state.",
        ))
    }

    pub(super) fn state_keys(&self, key: &str) -> Result<Vec<SealKey>> {
        let written: Vec<String> = self.get(key)?;
        let keys: Vec<SealKey> = written.iter().map(|text| self.state_key(text)).collect::<Result<_>>()?;
        if !keys.is_empty() {
            Keyring::new(keys.clone()).map_err(|error| self.bad_key(&error.to_string()))?;
        }
        Ok(keys)
    }

    fn state_key(&self, text: &str) -> Result<SealKey> {
        let secret = self.secret("state.keys", text)?;
        let (id, encoded) =
            secret.expose().trim().split_once(':').ok_or_else(|| self.bad_key("a text that is not `ID:BASE64`"))?;
        let bytes = decode(encoded).ok_or_else(|| self.bad_key("a key whose second part is not base64"))?;
        SealKey::new(id, &bytes, false).map_err(|error| self.bad_key(&error.to_string()))
    }

    /// Says what is wrong with a key without saying what it is.
    fn bad_key(&self, given: &str) -> ConfigError {
        let source_of = self.written.get("state.keys").1;
        let expected = format!(
            "keys such as \"k1:BASE64\" of at least {KEY_BYTES_MIN} bytes, from `openssl rand -base64 {KEY_BYTES_MIN}`"
        );
        ConfigError::Wrong { key: "state.keys".into(), source_of, given: given.to_owned(), expected }
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let engine = |alphabet| GeneralPurpose::new(alphabet, LENIENT);
    engine(&alphabet::STANDARD).decode(text).or_else(|_| engine(&alphabet::URL_SAFE).decode(text)).ok()
}
