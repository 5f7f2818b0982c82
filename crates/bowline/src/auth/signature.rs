//! How the signature of a JSON Web Token is verified: by *ring*, the cryptography that TLS uses as well.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::hmac;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};

static PROVIDER: CryptoProvider =
    CryptoProvider { signer_factory: no_signer, verifier_factory: verifier, key_utils: KeyUtils::new_unimplemented() };

/// Makes this the way in which tokens are verified in this process. Later calls change nothing.
pub fn install() {
    let _ = PROVIDER.install_default();
}

/// The server verifies tokens and issues none.
fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    Ok(Box::new(TokenVerifier { algorithm: *algorithm, method: Method::of(*algorithm)?, key: key.clone() }))
}

struct TokenVerifier {
    algorithm: Algorithm,
    method: Method,
    key: DecodingKey,
}

enum Method {
    Hmac(hmac::Algorithm),
    Rsa(&'static RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

impl Method {
    fn of(algorithm: Algorithm) -> Result<Method> {
        Ok(match algorithm {
            Algorithm::HS256 => Method::Hmac(hmac::HMAC_SHA256),
            Algorithm::HS384 => Method::Hmac(hmac::HMAC_SHA384),
            Algorithm::HS512 => Method::Hmac(hmac::HMAC_SHA512),
            Algorithm::RS256 => Method::Rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => Method::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => Method::Rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::ES256 => Method::Curve(&signature::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => Method::Curve(&signature::ECDSA_P384_SHA384_FIXED),
            // No key of ours may be used with any other: see `key_set`.
            _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
        })
    }
}

impl Verifier<Vec<u8>> for TokenVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let verified = match (&self.method, self.key.kind()) {
            (Method::Hmac(algorithm), DecodingKeyKind::SecretOrDer(secret)) => {
                hmac::verify(&hmac::Key::new(*algorithm, secret), message, signature)
            }
            (Method::Rsa(parameters), DecodingKeyKind::SecretOrDer(der)) => {
                UnparsedPublicKey::new(*parameters, der).verify(message, signature)
            }
            (Method::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Method::Curve(algorithm), DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(*algorithm, point).verify(message, signature)
            }
            (Method::Hmac(_) | Method::Curve(_), DecodingKeyKind::RsaModulusExponent { .. }) => {
                return Err(Error::new());
            }
        };
        verified.map_err(|_| Error::new())
    }
}

impl JwtVerifier for TokenVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
