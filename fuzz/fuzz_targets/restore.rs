//! Whatever a client sends as its signed state, opening it neither panics nor takes more work than the limits allow.
#![no_main]

use bowline_core::seal::{Form, OpenLimits, SealInput};
use bowline_core::{SealKey, Keyring};
use bowline_protocol::{Principal, State};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let ring = Keyring::new(vec![SealKey::new("k1", &[7; 32], false).expect("a long key")]).expect("a ring of one");
    let owner = Principal::parse("local").expect("a name");
    let limits = OpenLimits { bytes_max: 100_000, depth_max: 64, ttl_seconds: 600, future_seconds: 60 };
    // As it came: nobody forges a signature by chance.
    assert!(ring.open(text, &owner, 1_800_000_000, &limits).is_err());
    // Properly signed, so that what lies behind the signature is reached too.
    if let Ok(state) = serde_json_state(text) {
        let sealed = ring.seal(&SealInput { state: &state, owner: &owner, now_unix: 1_800_000_000, form: Form::Object });
        let _ = ring.open(&sealed.signed.to_json(), &owner, 1_800_000_000, &limits);
    }
});

fn serde_json_state(text: &str) -> Result<State, serde_json::Error> {
    serde_json::from_str(text)
}
