//! Tokens that are right, and every way known to us in which they can be wrong. Keys of curves are made afresh for each run; *ring*
//! makes no RSA keys, so two of those are kept in `tests/keys`, for nothing but these tests.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bowline_protocol::frame::client::Secret;
use jsonwebtoken::Algorithm;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::rsa;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair,
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RsaEncoding,
};
use serde_json::json;

use std::time::SystemTime;

use super::*;

const NOW: u64 = 1_800_000_000;
const SECRET: &str = "0123456789abcdef0123456789abcdef";
const RSA_KEYS: [(&str, &str); 2] = [
    (include_str!("../../tests/keys/rsa-1.pem"), include_str!("../../tests/keys/rsa-1.pub.pem")),
    (include_str!("../../tests/keys/rsa-2.pem"), include_str!("../../tests/keys/rsa-2.pub.pem")),
];
/// What stands before the point in the public key of a curve (RFC 5480).
const P256_HEAD: &[u8] =
    b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
const P384_HEAD: &[u8] =
    b"\x30\x76\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x22\x03\x62\x00";

fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let lines: Vec<&str> = body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

fn der(pem: &str) -> Vec<u8> {
    STANDARD.decode(pem.lines().filter(|line| !line.starts_with("-----")).collect::<String>()).unwrap()
}

enum Signing {
    Secret(Vec<u8>),
    Rsa(rsa::KeyPair),
    Curve(EcdsaKeyPair),
}

struct TestKey {
    algorithm: Algorithm,
    signing: Signing,
    public_pem: String,
}

fn rsa() -> TestKey {
    rsa_key(RSA_KEYS[0])
}

fn rsa_key((private, public): (&str, &str)) -> TestKey {
    let signing = Signing::Rsa(rsa::KeyPair::from_pkcs8(&der(private)).unwrap());
    TestKey { algorithm: Algorithm::RS256, signing, public_pem: public.to_owned() }
}

fn ec() -> TestKey {
    curve(&ECDSA_P256_SHA256_FIXED_SIGNING, Algorithm::ES256, P256_HEAD)
}

fn ec_384() -> TestKey {
    curve(&ECDSA_P384_SHA384_FIXED_SIGNING, Algorithm::ES384, P384_HEAD)
}

fn curve(curve: &'static EcdsaSigningAlgorithm, algorithm: Algorithm, head: &[u8]) -> TestKey {
    let random = SystemRandom::new();
    let private = EcdsaKeyPair::generate_pkcs8(curve, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(curve, private.as_ref(), &random).unwrap();
    let public_pem = pem("PUBLIC KEY", &[head, pair.public_key().as_ref()].concat());
    TestKey { algorithm, signing: Signing::Curve(pair), public_pem }
}

/// A token that is signed with this algorithm.
fn encode(algorithm: Algorithm, kid: Option<&str>, claims: &Value, key: &Signing) -> String {
    let mut header = json!({ "typ": "JWT", "alg": algorithm });
    if let Some(kid) = kid {
        header["kid"] = kid.into();
    }
    let [header, body] = [&header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    let message = format!("{header}.{body}");
    let signature = signature(algorithm, message.as_bytes(), key);
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn signature(algorithm: Algorithm, message: &[u8], key: &Signing) -> Vec<u8> {
    let random = SystemRandom::new();
    match key {
        Signing::Secret(secret) => {
            let hash = match algorithm {
                Algorithm::HS384 => hmac::HMAC_SHA384,
                Algorithm::HS512 => hmac::HMAC_SHA512,
                _ => hmac::HMAC_SHA256,
            };
            hmac::sign(&hmac::Key::new(hash, secret), message).as_ref().to_vec()
        }
        Signing::Rsa(pair) => {
            let hash: &'static dyn RsaEncoding = match algorithm {
                Algorithm::RS384 => &RSA_PKCS1_SHA384,
                Algorithm::RS512 => &RSA_PKCS1_SHA512,
                _ => &RSA_PKCS1_SHA256,
            };
            let mut signature = vec![0; pair.public().modulus_len()];
            pair.sign(hash, &random, message, &mut signature).unwrap();
            signature
        }
        Signing::Curve(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
    }
}

fn secret(bytes: &[u8]) -> Signing {
    Signing::Secret(bytes.to_vec())
}

impl TestKey {
    fn sign(&self, kid: Option<&str>, claims: &Value) -> String {
        encode(self.algorithm, kid, claims, &self.signing)
    }

    fn jwk(&self, kid: &str) -> Value {
        let base64 = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (alg, kid) = (self.algorithm, kid.to_owned());
        match &self.signing {
            Signing::Secret(secret) => json!({ "kty": "oct", "kid": kid, "k": base64(secret) }),
            Signing::Rsa(pair) => {
                let public: rsa::PublicKeyComponents<Vec<u8>> = pair.public().into();
                json!({ "kty": "RSA", "alg": alg, "kid": kid, "n": base64(&public.n), "e": base64(&public.e) })
            }
            Signing::Curve(pair) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let crv = if x.len() == 32 { "P-256" } else { "P-384" };
                json!({ "kty": "EC", "alg": alg, "kid": kid, "crv": crv, "x": base64(x), "y": base64(y) })
            }
        }
    }
}

fn config(keys: JwtKeys) -> JwtConfig {
    JwtConfig { keys, issuer: None, audience: None, principal_claim: "sub".into(), admin_claim: "admin".into() }
}

fn with_secret() -> JwtVerifier {
    JwtVerifier::new(&config(JwtKeys::Secret(Secret::new(SECRET))), &Env::default(), &Changes::default()).unwrap()
}

fn hs256(claims: &Value) -> String {
    encode(Algorithm::HS256, None, claims, &secret(SECRET.as_bytes()))
}

fn alice() -> Value {
    json!({ "sub": "alice", "exp": NOW + 600 })
}

#[test]
fn a_good_token_names_its_principal_and_its_end() {
    let identity = with_secret().verify(&hs256(&alice()), NOW).unwrap();
    assert_eq!((identity.principal.as_str(), identity.admin), ("alice", false));
    assert_eq!(identity.expires_at, Some(NOW + 600));
}

#[test]
fn a_token_is_refused_from_the_second_that_its_identity_told() {
    let (verifier, token) = (with_secret(), hs256(&alice()));
    let end = verifier.verify(&token, NOW).unwrap().expires_at.unwrap();
    assert!(verifier.verify(&token, end - 1).is_ok());
    assert_eq!(verifier.verify(&token, end), Err(AuthError::Expired));
}

#[test]
fn claims_are_checked() {
    let cases = [
        (json!({ "sub": "a" }), Err(AuthError::NoExpiry)),
        (json!({ "sub": "a", "exp": "tomorrow" }), Err(AuthError::NoExpiry)),
        (json!({ "sub": "a", "exp": -5 }), Err(AuthError::NoExpiry)),
        (json!({ "sub": "a", "exp": NOW as f64 + 1.5 }), Ok(())),
        (json!({ "sub": "a", "exp": NOW + 1 }), Ok(())),
        (json!({ "sub": "a", "exp": NOW }), Err(AuthError::Expired)),
        (json!({ "sub": "a", "exp": NOW + 9, "nbf": NOW + 30 }), Ok(())),
        (json!({ "sub": "a", "exp": NOW + 9, "nbf": NOW + 31 }), Err(AuthError::NotYetValid)),
        (json!({ "sub": "a", "exp": NOW + 9, "nbf": "soon" }), Err(AuthError::Malformed)),
        (json!({ "exp": NOW + 9 }), Err(AuthError::NoPrincipal)),
        (json!({ "sub": 7, "exp": NOW + 9 }), Err(AuthError::NoPrincipal)),
        (json!({ "sub": "", "exp": NOW + 9 }), Err(AuthError::NoPrincipal)),
        // No audience is configured, so any will do.
        (json!({ "sub": "a", "exp": NOW + 9, "aud": "someone" }), Ok(())),
    ];
    for (claims, wanted) in cases {
        assert_eq!(with_secret().verify(&hs256(&claims), NOW).map(|_| ()), wanted, "{claims}");
    }
}

#[test]
fn issuer_and_audience_are_required_once_they_are_configured() {
    let mut config = config(JwtKeys::Secret(Secret::new(SECRET)));
    (config.issuer, config.audience) = (Some("https://id.example".into()), Some("bowline".into()));
    let verifier = JwtVerifier::new(&config, &Env::default(), &Changes::default()).unwrap();
    let verify = |iss: Value, aud: Value| {
        let mut claims = json!({ "sub": "a", "exp": NOW + 9, "iss": iss, "aud": aud });
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        verifier.verify(&hs256(&claims), NOW).map(|_| ())
    };
    let ours = || json!("https://id.example");
    assert_eq!(verify(ours(), json!("bowline")), Ok(()));
    assert_eq!(verify(ours(), json!(["other", "bowline"])), Ok(()));
    assert_eq!(verify(ours(), json!("other")), Err(AuthError::WrongAudience));
    assert_eq!(verify(ours(), Value::Null), Err(AuthError::WrongAudience));
    assert_eq!(verify(json!("https://id.example.evil"), json!("bowline")), Err(AuthError::WrongIssuer));
    assert_eq!(verify(Value::Null, json!("bowline")), Err(AuthError::WrongIssuer));
}

#[test]
fn an_admin_has_the_claim_or_the_scope() {
    let admin = |extra: Value| {
        let mut claims = alice();
        claims.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        with_secret().verify(&hs256(&claims), NOW).unwrap().admin
    };
    assert!(admin(json!({ "admin": true })));
    assert!(admin(json!({ "scope": "chat admin" })));
    assert!(admin(json!({ "scope": ["admin"] })));
    for no in [
        json!({ "admin": "true" }),
        json!({ "admin": 1 }),
        json!({ "scope": "administrator" }),
        json!({ "scope": "chat" }),
    ] {
        assert!(!admin(no.clone()), "{no}");
    }
}

#[test]
fn a_tampered_token_is_refused() {
    let token = hs256(&alice());
    let parts: Vec<&str> = token.split('.').collect();
    let forged = URL_SAFE_NO_PAD.encode(json!({ "sub": "root", "exp": NOW + 600 }).to_string());
    let other = encode(Algorithm::HS256, None, &alice(), &secret(b"another secret of enough bytes.."));
    let cases = [
        (format!("{}.{forged}.{}", parts[0], parts[2]), AuthError::BadSignature),
        (format!("{}.{}.", parts[0], parts[1]), AuthError::BadSignature),
        (other, AuthError::BadSignature),
        (format!("{}.{}", parts[0], parts[1]), AuthError::Malformed),
        ("not a token".into(), AuthError::Malformed),
        (String::new(), AuthError::Malformed),
    ];
    for (token, error) in cases {
        assert_eq!(with_secret().verify(&token, NOW), Err(error), "{token}");
    }
}

#[test]
fn the_algorithm_follows_from_the_key_and_not_from_the_token() {
    let (rsa, ec) = (rsa(), ec());
    let by_rsa =
        JwtVerifier::new(&config(JwtKeys::Pem(rsa.public_pem.clone())), &Env::default(), &Changes::default()).unwrap();
    let by_ec =
        JwtVerifier::new(&config(JwtKeys::Pem(ec.public_pem.clone())), &Env::default(), &Changes::default()).unwrap();
    assert!(by_rsa.verify(&rsa.sign(None, &alice()), NOW).is_ok());
    assert!(by_ec.verify(&ec.sign(None, &alice()), NOW).is_ok());

    // The classic confusion: a token signed with HMAC, whose secret is the public key that everyone knows.
    let public = secret(rsa.public_pem.as_bytes());
    let confused = encode(Algorithm::HS256, None, &alice(), &public);
    let none = format!(
        "{}.{}.",
        URL_SAFE_NO_PAD.encode(r#"{"alg":"none","typ":"JWT"}"#),
        URL_SAFE_NO_PAD.encode(alice().to_string())
    );
    assert_eq!(by_rsa.verify(&confused, NOW), Err(AuthError::WrongAlgorithm));
    assert_eq!(by_rsa.verify(&ec.sign(None, &alice()), NOW), Err(AuthError::WrongAlgorithm));
    assert_eq!(by_ec.verify(&rsa.sign(None, &alice()), NOW), Err(AuthError::WrongAlgorithm));
    assert_eq!(with_secret().verify(&rsa.sign(None, &alice()), NOW), Err(AuthError::WrongAlgorithm));
    for verifier in [&by_rsa, &by_ec, &with_secret()] {
        assert_eq!(verifier.verify(&none, NOW), Err(AuthError::Malformed));
    }
}

#[test]
fn a_key_is_good_for_every_algorithm_of_its_kind() {
    for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
        let token = encode(algorithm, None, &alice(), &secret(SECRET.as_bytes()));
        assert!(with_secret().verify(&token, NOW).is_ok(), "{algorithm:?}");
    }
    let (rsa, p256, p384) = (rsa(), ec(), ec_384());
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut strict = rsa.jwk("strict");
    let mut any = rsa.jwk("any");
    any.as_object_mut().unwrap().remove("alg");
    strict["alg"] = "RS384".into();
    let set = json!({ "keys": [any, strict, p256.jwk("p256"), p384.jwk("p384"), { "kty": "RSA", "kid": "half" }] });
    std::fs::write(file.path(), set.to_string()).unwrap();
    let by_set =
        JwtVerifier::new(&config(JwtKeys::JwksFile(file.path().to_owned())), &Env::default(), &Changes::default())
            .unwrap();
    let by_pem = |key: &TestKey| {
        JwtVerifier::new(&config(JwtKeys::Pem(key.public_pem.clone())), &Env::default(), &Changes::default()).unwrap()
    };
    for algorithm in [Algorithm::RS256, Algorithm::RS384, Algorithm::RS512] {
        let sign = |kid: Option<&str>| encode(algorithm, kid, &alice(), &rsa.signing);
        assert!(by_pem(&rsa).verify(&sign(None), NOW).is_ok(), "{algorithm:?}");
        assert!(by_set.verify(&sign(Some("any")), NOW).is_ok(), "{algorithm:?}");
        let declared = by_set.verify(&sign(Some("strict")), NOW);
        assert_eq!(declared.is_ok(), algorithm == Algorithm::RS384, "a key that names its algorithm has no other");
    }
    for (key, kid) in [(&p256, "p256"), (&p384, "p384")] {
        assert!(by_set.verify(&key.sign(Some(kid), &alice()), NOW).is_ok(), "{kid}");
        assert!(by_pem(key).verify(&key.sign(None, &alice()), NOW).is_ok(), "{kid}");
    }
    assert!(by_pem(&p384).verify(&p256.sign(None, &alice()), NOW).is_err(), "another curve is another key");
}

#[test]
fn the_key_id_selects_and_a_foreign_one_selects_nothing() {
    let (stranger, rsa, ec) = (rsa_key(RSA_KEYS[1]), rsa(), ec());
    let file = tempfile::NamedTempFile::new().unwrap();
    let shared = json!({ "kty": "oct", "kid": "shared", "k": URL_SAFE_NO_PAD.encode(SECRET) });
    let set = json!({ "keys": [rsa.jwk("one"), ec.jwk("two"), shared, { "kty": "new", "kid": "x" }] });
    std::fs::write(file.path(), set.to_string()).unwrap();
    let verifier =
        JwtVerifier::new(&config(JwtKeys::JwksFile(file.path().to_owned())), &Env::default(), &Changes::default())
            .unwrap();
    let verify = |token: String| verifier.verify(&token, NOW).map(|identity| identity.principal.to_string());

    assert_eq!(verify(rsa.sign(Some("one"), &alice())), Ok("alice".into()));
    assert_eq!(verify(ec.sign(Some("two"), &alice())), Ok("alice".into()));
    assert_eq!(verify(rsa.sign(Some("three"), &alice())), Err(AuthError::UnknownKey));
    assert_eq!(verify(rsa.sign(None, &alice())), Err(AuthError::UnknownKey));
    assert_eq!(verify(rsa.sign(Some("two"), &alice())), Err(AuthError::WrongAlgorithm));
    assert_eq!(verify(stranger.sign(Some("one"), &alice())), Err(AuthError::BadSignature));
    // A shared secret in a file of public keys is not a key of ours.
    let by_secret = encode(Algorithm::HS256, Some("shared"), &alice(), &secret(SECRET.as_bytes()));
    assert_eq!(verify(by_secret), Err(AuthError::UnknownKey));
}

#[tokio::test]
async fn a_changed_key_set_is_taken_up_within_a_second_and_a_broken_one_is_not() {
    let (old, new) = (ec(), ec());
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |text: String, age_seconds: u64| {
        std::fs::write(file.path(), text).unwrap();
        let when = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000 - age_seconds);
        std::fs::File::options().write(true).open(file.path()).unwrap().set_modified(when).unwrap();
    };
    write(json!({ "keys": [old.jwk("old")] }).to_string(), 3);
    let verifier =
        JwtVerifier::new(&config(JwtKeys::JwksFile(file.path().to_owned())), &Env::default(), &Changes::default())
            .unwrap();
    let (by_old, by_new) = (old.sign(Some("old"), &alice()), new.sign(Some("new"), &alice()));
    verifier.look(NOW).await;
    assert!(verifier.verify(&by_old, NOW).is_ok());

    write(json!({ "keys": [new.jwk("new")] }).to_string(), 2);
    verifier.look(NOW).await;
    assert_eq!(verifier.verify(&by_new, NOW), Err(AuthError::UnknownKey), "the same second is not looked at twice");
    verifier.look(NOW + 1).await;
    assert!(verifier.verify(&by_new, NOW + 1).is_ok());
    assert_eq!(verifier.verify(&by_old, NOW + 1), Err(AuthError::UnknownKey));

    write("{ half".into(), 1);
    verifier.look(NOW + 2).await;
    assert!(verifier.verify(&by_new, NOW + 2).is_ok());
    std::fs::remove_file(file.path()).unwrap();
    verifier.look(NOW + 3).await;
    assert!(verifier.verify(&by_new, NOW + 3).is_ok());
}

#[test]
fn keys_that_cannot_be_used_are_refused_at_the_start() {
    let missing = JwtKeys::JwksFile("/nonexistent/jwks.json".into());
    let private = JwtKeys::Pem("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----".into());
    for keys in [JwtKeys::Secret(Secret::new("short")), JwtKeys::Pem("nonsense".into()), private, missing] {
        assert!(JwtVerifier::new(&config(keys.clone()), &Env::default(), &Changes::default()).is_err(), "{keys:?}");
    }
    let empty = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(empty.path(), r#"{"keys": []}"#).unwrap();
    assert!(
        JwtVerifier::new(&config(JwtKeys::JwksFile(empty.path().to_owned())), &Env::default(), &Changes::default())
            .is_err()
    );
}
