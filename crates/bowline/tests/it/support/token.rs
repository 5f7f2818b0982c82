//! A JSON Web Token as an issuer makes it that shares a secret with the server.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};

pub fn hs256(secret: &str, claims: &Value) -> String {
    let message = [&json!({ "typ": "JWT", "alg": "HS256" }), claims]
        .map(|part| URL_SAFE_NO_PAD.encode(part.to_string()))
        .join(".");
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}
