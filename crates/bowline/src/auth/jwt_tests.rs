//! Tokens that are right, and every way known to us in which they can be wrong. Keys are made afresh for each run.

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair,
    RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bowline_protocol::frame::client::Secret;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;

use std::time::SystemTime;

use super::*;

const NOW: u64 = 1_800_000_000;
const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let lines: Vec<&str> = body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

struct TestKey {
    algorithm: Algorithm,
    signing: EncodingKey,
    public_pem: String,
}

fn rsa() -> TestKey {
    let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let private: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    let signing = EncodingKey::from_rsa_pem(pem("PRIVATE KEY", private.as_ref()).as_bytes()).unwrap();
    TestKey { algorithm: Algorithm::RS256, signing, public_pem: pem("PUBLIC KEY", public.as_ref()) }
}

fn ec() -> TestKey {
    curve(&ECDSA_P256_SHA256_FIXED_SIGNING, Algorithm::ES256)
}

fn ec_384() -> TestKey {
    curve(&ECDSA_P384_SHA384_FIXED_SIGNING, Algorithm::ES384)
}

fn curve(curve: &'static EcdsaSigningAlgorithm, algorithm: Algorithm) -> TestKey {
    let pair = EcdsaKeyPair::generate(curve).unwrap();
    let private = pair.to_pkcs8v1().unwrap();
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    let signing = EncodingKey::from_ec_pem(pem("PRIVATE KEY", private.as_ref()).as_bytes()).unwrap();
    TestKey { algorithm, signing, public_pem: pem("PUBLIC KEY", public.as_ref()) }
}

impl TestKey {
    fn sign(&self, kid: Option<&str>, claims: &Value) -> String {
        let header = Header { kid: kid.map(ToOwned::to_owned), ..Header::new(self.algorithm) };
        encode(&header, claims, &self.signing).unwrap()
    }

    fn jwk(&self, kid: &str) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.signing, self.algorithm).unwrap();
        jwk.common.key_id = Some(kid.to_owned());
        serde_json::to_value(jwk).unwrap()
    }
}

fn config(keys: JwtKeys) -> JwtConfig {
    JwtConfig { keys, issuer: None, audience: None, principal_claim: "sub".into(), admin_claim: "admin".into() }
}

fn with_secret() -> JwtVerifier {
    JwtVerifier::new(&config(JwtKeys::Secret(Secret::new(SECRET))), &Changes::default()).unwrap()
}

fn hs256(claims: &Value) -> String {
    encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(SECRET.as_bytes())).unwrap()
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
        // Nobody said which audience to expect, so any will do.
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
    let verifier = JwtVerifier::new(&config, &Changes::default()).unwrap();
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
    let other = encode(
        &Header::new(Algorithm::HS256),
        &alice(),
        &EncodingKey::from_secret(b"another secret of enough bytes.."),
    )
    .unwrap();
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
    let by_rsa = JwtVerifier::new(&config(JwtKeys::Pem(rsa.public_pem.clone())), &Changes::default()).unwrap();
    let by_ec = JwtVerifier::new(&config(JwtKeys::Pem(ec.public_pem.clone())), &Changes::default()).unwrap();
    assert!(by_rsa.verify(&rsa.sign(None, &alice()), NOW).is_ok());
    assert!(by_ec.verify(&ec.sign(None, &alice()), NOW).is_ok());

    // The classic confusion: a token signed with HMAC, whose secret is the public key that everyone knows.
    let public = EncodingKey::from_secret(rsa.public_pem.as_bytes());
    let confused = encode(&Header::new(Algorithm::HS256), &alice(), &public).unwrap();
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
    let secret = EncodingKey::from_secret(SECRET.as_bytes());
    for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
        let token = encode(&Header::new(algorithm), &alice(), &secret).unwrap();
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
    let by_set = JwtVerifier::new(&config(JwtKeys::JwksFile(file.path().to_owned())), &Changes::default()).unwrap();
    let by_pem =
        |key: &TestKey| JwtVerifier::new(&config(JwtKeys::Pem(key.public_pem.clone())), &Changes::default()).unwrap();
    for algorithm in [Algorithm::RS256, Algorithm::RS384, Algorithm::RS512] {
        let sign = |kid: Option<&str>| {
            let header = Header { kid: kid.map(ToOwned::to_owned), ..Header::new(algorithm) };
            encode(&header, &alice(), &rsa.signing).unwrap()
        };
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
    let (stranger, rsa, ec) = (rsa(), rsa(), ec());
    let file = tempfile::NamedTempFile::new().unwrap();
    let shared = json!({ "kty": "oct", "kid": "shared", "k": URL_SAFE_NO_PAD.encode(SECRET) });
    let set = json!({ "keys": [rsa.jwk("one"), ec.jwk("two"), shared, { "kty": "new", "kid": "x" }] });
    std::fs::write(file.path(), set.to_string()).unwrap();
    let verifier = JwtVerifier::new(&config(JwtKeys::JwksFile(file.path().to_owned())), &Changes::default()).unwrap();
    let verify = |token: String| verifier.verify(&token, NOW).map(|identity| identity.principal.to_string());

    assert_eq!(verify(rsa.sign(Some("one"), &alice())), Ok("alice".into()));
    assert_eq!(verify(ec.sign(Some("two"), &alice())), Ok("alice".into()));
    assert_eq!(verify(rsa.sign(Some("three"), &alice())), Err(AuthError::UnknownKey));
    assert_eq!(verify(rsa.sign(None, &alice())), Err(AuthError::UnknownKey));
    assert_eq!(verify(rsa.sign(Some("two"), &alice())), Err(AuthError::WrongAlgorithm));
    assert_eq!(verify(stranger.sign(Some("one"), &alice())), Err(AuthError::BadSignature));
    // A shared secret in a file of public keys is not a key of ours.
    let header = Header { kid: Some("shared".into()), ..Header::new(Algorithm::HS256) };
    let by_secret = encode(&header, &alice(), &EncodingKey::from_secret(SECRET.as_bytes())).unwrap();
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
    let verifier = JwtVerifier::new(&config(JwtKeys::JwksFile(file.path().to_owned())), &Changes::default()).unwrap();
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
        assert!(JwtVerifier::new(&config(keys.clone()), &Changes::default()).is_err(), "{keys:?}");
    }
    let empty = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(empty.path(), r#"{"keys": []}"#).unwrap();
    assert!(JwtVerifier::new(&config(JwtKeys::JwksFile(empty.path().to_owned())), &Changes::default()).is_err());
}
