//! A public key in PEM, as operators have it in a file: of which family it is, and its bytes as *ring* takes them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

#[derive(Debug, PartialEq, Eq)]
pub enum PublicKey {
    /// An `RSAPublicKey` in DER.
    Rsa(Vec<u8>),
    /// A point on a curve.
    Curve(Vec<u8>),
}

const BIT_STRING: u8 = 0x03;
const OBJECT_IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
/// `rsaEncryption`, 1.2.840.113549.1.1.1.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// `id-ecPublicKey`, 1.2.840.10045.2.1.
const CURVE: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];

impl PublicKey {
    /// Reads the first block of a file: a key, or a certificate that holds one.
    pub fn of_pem(text: &str) -> Option<PublicKey> {
        let (_, rest) = text.split_once("-----BEGIN ")?;
        let (label, rest) = rest.split_once("-----")?;
        let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
        let der = STANDARD.decode(body.split_ascii_whitespace().collect::<String>()).ok()?;
        match label {
            "RSA PUBLIC KEY" => element(&der).map(|_| PublicKey::Rsa(der.clone())),
            "PUBLIC KEY" | "CERTIFICATE" => described(&der),
            _ => None,
        }
    }
}

/// The key in a `SubjectPublicKeyInfo`, or in a certificate around one: the first bit string, once its family is known. What comes before
/// it in a certificate names other algorithms and has no bit string.
fn described(mut der: &[u8]) -> Option<PublicKey> {
    let mut family: Option<fn(Vec<u8>) -> PublicKey> = None;
    loop {
        let (tag, held, rest) = element(der)?;
        match (tag, family) {
            // What a sequence holds stands right before what follows it, so it is walked through without recursion.
            (SEQUENCE, _) => {
                der = &der[der.len() - held.len() - rest.len()..];
                continue;
            }
            (OBJECT_IDENTIFIER, None) if held == RSA => family = Some(PublicKey::Rsa),
            (OBJECT_IDENTIFIER, None) if held == CURVE => family = Some(PublicKey::Curve),
            (BIT_STRING, family) => {
                let (0, key) = held.split_first().map(|(unused, key)| (*unused, key))? else { return None };
                return family.map(|family| family(key.to_vec()));
            }
            _ => {}
        }
        der = rest;
    }
}

/// The first element: its tag, what it holds, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // Four bytes are more than any file that is read here.
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (held, rest) = rest.split_at_checked(length)?;
    Some((tag, held, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, held: &[&[u8]]) -> Vec<u8> {
        let held = held.concat();
        let length = u16::try_from(held.len()).unwrap().to_be_bytes();
        [&[tag, 0x82], &length[..], &held].concat()
    }

    fn pem(label: &str, der: &[u8]) -> String {
        let body = STANDARD.encode(der);
        let lines: Vec<&str> = body.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap()).collect();
        format!("a word before it\r\n-----BEGIN {label}-----\r\n{}\r\n-----END {label}-----\r\n", lines.join("\r\n"))
    }

    fn information(family: &[u8], key: &[u8]) -> Vec<u8> {
        let algorithm = der(SEQUENCE, &[&der(OBJECT_IDENTIFIER, &[family]), &[0x05, 0x00]]);
        der(SEQUENCE, &[&algorithm, &der(BIT_STRING, &[&[0], key])])
    }

    /// As an authority signs it: the number, the algorithm of the signature, the names and the dates come before the key.
    fn certificate(family: &[u8], key: &[u8]) -> Vec<u8> {
        let sha256_with_rsa = [&RSA[..RSA.len() - 1], &[0x0b]].concat();
        let signed_by = der(SEQUENCE, &[&der(OBJECT_IDENTIFIER, &[&sha256_with_rsa]), &[0x05, 0x00]]);
        let name = der(SEQUENCE, &[&der(0x31, &[&der(SEQUENCE, &[&der(OBJECT_IDENTIFIER, &[&[0x55, 0x04, 0x03]])])])]);
        let number = [0x02, 0x01, 0x07];
        let dates = der(SEQUENCE, &[&der(0x17, &[b"260101000000Z"]), &der(0x17, &[b"270101000000Z"])]);
        let version = der(0xa0, &[&[0x02, 0x01, 0x02]]);
        let information = information(family, key);
        let to_be_signed = der(SEQUENCE, &[&version, &number, &signed_by, &name, &dates, &name, &information]);
        der(SEQUENCE, &[&to_be_signed, &signed_by, &der(BIT_STRING, &[&[0], b"signature"])])
    }

    #[test]
    fn a_key_is_found_bare_in_its_description_and_in_a_certificate() {
        let (rsa, point) = (der(SEQUENCE, &[&[0x02, 0x01, 0x03]]), b"a point".to_vec());
        assert_eq!(PublicKey::of_pem(&pem("RSA PUBLIC KEY", &rsa)), Some(PublicKey::Rsa(rsa.clone())));
        for (label, wrapped) in [("PUBLIC KEY", information as fn(&[u8], &[u8]) -> _), ("CERTIFICATE", certificate)] {
            assert_eq!(PublicKey::of_pem(&pem(label, &wrapped(RSA, &rsa))), Some(PublicKey::Rsa(rsa.clone())));
            assert_eq!(PublicKey::of_pem(&pem(label, &wrapped(CURVE, &point))), Some(PublicKey::Curve(point.clone())));
        }
    }

    #[test]
    fn what_is_no_such_key_is_none_and_no_panic() {
        let good = information(RSA, b"key");
        let of_another_family = information(&[0x2b, 0x65, 0x70], b"key");
        for (label, der) in [("PUBLIC KEY", &of_another_family), ("PRIVATE KEY", &good), ("EC PARAMETERS", &good)] {
            assert_eq!(PublicKey::of_pem(&pem(label, der)), None, "{label}");
        }
        for end in 0..good.len() {
            assert_eq!(PublicKey::of_pem(&pem("PUBLIC KEY", &good[..end])), None, "{end} bytes");
        }
        assert_eq!(PublicKey::of_pem(&pem("PUBLIC KEY", &[SEQUENCE, 0x80, 0, 0])), None, "a length that is not said");
        for text in
            ["", "-----BEGIN ", "-----BEGIN PUBLIC KEY-----", "-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----"]
        {
            assert_eq!(PublicKey::of_pem(text), None, "{text}");
        }
    }
}
