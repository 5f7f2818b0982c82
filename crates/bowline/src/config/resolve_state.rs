//! What the settings of `state` mean: which keys seal, and how much a client may carry.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bowline_core::seal::{KEY_BYTES_MIN, Key, Ring};

use super::StateConfig;
use super::error::ConfigError;
use super::resolve::{Resolver, Result};
use super::value::Value;

/// Padding or not: both `openssl rand -base64 32` and a URL-safe writer are right.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

impl Resolver<'_> {
    pub(super) fn state(&self) -> Result<StateConfig> {
        let state = StateConfig {
            ttl: self.span("state.ttl")?,
            encrypt: self.flag("state.encrypt")?,
            single_use: self.flag("state.single_use")?,
            messages_max: self.count("state.messages_max")?,
            bytes_max: self.count("state.bytes_max")?,
            keys: self.state_keys()?,
            scrub: match self.written.get("state.scrub").0 {
                Value::List(names) => names,
                _ => Vec::new(),
            },
            checkpoint_interval: self.span("state.checkpoint_interval")?,
            agent_state_bytes_max: self.count("state.agent_state_bytes_max")?,
            tools_max: self.count("state.tools_max")?,
        };
        // As base64 and with its envelope it must fit into the frame that brings it back.
        let frame_bytes_max = self.count("limits.frame_bytes_max")?;
        if state.bytes_max / 3 * 4 + 4096 > frame_bytes_max {
            return Err(ConfigError::conflict(
                format!(
                    "`state.bytes_max` is {}, but `limits.frame_bytes_max` is {frame_bytes_max}: such a state could be taken \
                     away and not brought back",
                    state.bytes_max
                ),
                "Let a frame be at least half as large again as a state.",
            ));
        }
        Ok(state)
    }

    fn state_keys(&self) -> Result<Vec<Key>> {
        let (Value::Secrets(written), _) = self.written.get("state.keys") else {
            return Err(self.wrong("state.keys", "a list of keys"));
        };
        let keys: Vec<Key> = written.iter().map(|text| self.state_key(text)).collect::<Result<_>>()?;
        if !keys.is_empty() {
            Ring::new(keys.clone()).map_err(|error| self.bad_key(&error.to_string()))?;
        }
        Ok(keys)
    }

    fn state_key(&self, text: &str) -> Result<Key> {
        let secret = self.secret("state.keys", text)?;
        let (id, encoded) =
            secret.expose().trim().split_once(':').ok_or_else(|| self.bad_key("a text that is not `ID:BASE64`"))?;
        let bytes = decode(encoded).ok_or_else(|| self.bad_key("a key whose second part is not base64"))?;
        Key::new(id, &bytes, false).map_err(|error| self.bad_key(&error.to_string()))
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
