//! The public keys that service accounts' tokens are checked with: RSA (`RS256`) and ECDSA on P-256 and P-384 (`ES256`, `ES384`), from PEM
//! files and from the server's own key. Each is published as a JSON web key.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use mullion_kinds::key_pair;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256,
    UnparsedPublicKey, VerificationAlgorithm,
};
use rustls::{crypto::ring::sign::any_supported_type, pki_types::PrivateKeyDer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use x509_parser::{
    prelude::{FromDer, X509Certificate},
    public_key::PublicKey,
    x509::SubjectPublicKeyInfo,
};

/// The object identifiers of the curves.
const P256: &str = "1.2.840.10045.3.1.7";
const P384: &str = "1.3.132.0.34";
/// The fewest bits of an RSA key.
const RSA_BITS: usize = 2048;

/// The keys that tokens of service accounts may be signed with, beside the server's own (kube-apiserver: `--service-account-key-file`).
#[derive(Debug, Default)]
pub struct TokenKeys(pub(crate) Vec<VerifyingKey>);

/// The error for a file of keys without a usable key.
#[derive(Debug, thiserror::Error)]
#[error(
    "it has no public or private key in PEM that is RSA with 2048 bits or more, or ECDSA on P-256 or P-384"
)]
pub struct KeyFileError;

impl TokenKeys {
    /// Adds the keys of a PEM file: public keys, private keys, whose public halves count, and certificates. Blocks that are something else
    /// are passed over, as kube-apiserver does.
    ///
    /// # Errors
    /// No block is a key that can be used.
    pub fn add_pem(&mut self, text: &[u8]) -> Result<(), KeyFileError> {
        let before = self.0.len();
        let text = String::from_utf8_lossy(text);
        let mut rest = text.as_ref();
        while let Some((kind, block, after)) = key_pair::next_block(rest) {
            self.0.extend(of_block(kind, &block));
            rest = after;
        }
        if self.0.len() > before {
            Ok(())
        } else {
            Err(KeyFileError)
        }
    }
}

/// Returns the public key in a PEM block of this kind.
fn of_block(kind: &str, block: &[u8]) -> Option<VerifyingKey> {
    if kind == "CERTIFICATE" {
        let (_, certificate) = X509Certificate::from_der(block).ok()?;
        return VerifyingKey::from_der(certificate.public_key().raw);
    }
    if kind.ends_with("PRIVATE KEY") {
        let key = PrivateKeyDer::try_from(block.to_vec()).ok()?;
        let key = any_supported_type(&key).ok()?;
        return VerifyingKey::from_der(&key.public_key()?);
    }
    VerifyingKey::from_der(block)
}

/// A public key.
pub(crate) struct VerifyingKey {
    /// The key's `kid` in tokens: the digest of the key.
    id: String,
    /// The algorithm's name in tokens.
    algorithm: &'static str,
    verification: &'static dyn VerificationAlgorithm,
    /// The key in the form that `verification` takes.
    bytes: Vec<u8>,
    /// The members of the JSON web key besides id and algorithm.
    parts: Value,
}

impl VerifyingKey {
    /// Reads a SubjectPublicKeyInfo in DER, and returns `None` if tokens cannot be checked with it.
    pub(super) fn from_der(der: &[u8]) -> Option<Self> {
        let (_, info) = SubjectPublicKeyInfo::from_der(der).ok()?;
        let bytes = info.subject_public_key.data.to_vec();
        let verification: &'static dyn VerificationAlgorithm;
        let (algorithm, parts) = match info.parsed().ok()? {
            PublicKey::RSA(key) if key.key_size() >= RSA_BITS => {
                let number = |digits: &[u8]| {
                    // RFC 7518 wants numbers without leading zeros, while DER may begin with one for the sign.
                    let zeros = digits.iter().take_while(|digit| **digit == 0).count();
                    URL_SAFE_NO_PAD.encode(&digits[zeros..])
                };
                let parts =
                    json!({"kty": "RSA", "n": number(key.modulus), "e": number(key.exponent)});
                verification = &RSA_PKCS1_2048_8192_SHA256;
                ("RS256", parts)
            }
            PublicKey::EC(point) => {
                let curve = info.algorithm.parameters.as_ref()?.as_oid().ok()?;
                let (algorithm, name) = match curve.to_id_string().as_str() {
                    P256 => {
                        verification = &ECDSA_P256_SHA256_FIXED;
                        ("ES256", "P-256")
                    }
                    P384 => {
                        verification = &ECDSA_P384_SHA384_FIXED;
                        ("ES384", "P-384")
                    }
                    _ => return None,
                };
                // An uncompressed point: one byte that says so, then both coordinates.
                let (_, point) = point.data().split_first().filter(|(form, _)| **form == 4)?;
                let (x, y) = point.split_at(point.len() / 2);
                let [x, y] = [x, y].map(|part| URL_SAFE_NO_PAD.encode(part));
                (algorithm, json!({"kty": "EC", "crv": name, "x": x, "y": y}))
            }
            _ => return None,
        };
        Some(VerifyingKey {
            // kube-apiserver's keyIDFromPublicKey, so that tokens of a migrated cluster still name their key.
            id: URL_SAFE_NO_PAD.encode(Sha256::digest(info.raw)),
            algorithm,
            verification,
            bytes,
            parts,
        })
    }

    /// Returns the key's `kid`, as tokens name it.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the algorithm's name, as tokens name it.
    pub(crate) fn algorithm(&self) -> &'static str {
        self.algorithm
    }

    /// Returns whether `signature` over `signed` was made with this key.
    pub(crate) fn verifies(&self, signed: &[u8], signature: &[u8]) -> bool {
        let key = UnparsedPublicKey::new(self.verification, &self.bytes);
        key.verify(signed, signature).is_ok()
    }

    /// Returns the key as a JSON web key.
    pub(crate) fn to_json(&self) -> Value {
        let mut key = json!({"use": "sig", "kid": self.id, "alg": self.algorithm});
        if let (Some(key), Value::Object(parts)) = (key.as_object_mut(), self.parts.clone()) {
            key.extend(parts);
        }
        key
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifyingKey({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// A public key of RSA, its id, and its signature over `signed`, all made by OpenSSL.
    const RSA: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAu8dKHrVckIrZLUhux8+X
4ZyXsDHap/AfRT6phbBYvJnQWVX4ydLvaDGYfcihCBYFwYtLUL2WpNnGvmI1A3Pw
ESKDIV6RMQf+xOBM6IUJ7h5D2i0ttCF/G3xsRtSNEGG0Ci0VfDJPW+MK1GJDdhEF
YBSNPeIkpyaD32Yx8wHLszUiYShfLB1VX9/KZrwcAHCAlEyElT4N50WPW19h49AR
lHyJQ+0cwiXL3dNagCHwX6n8bCtKC/S3fHgB6eKDU9+aOME5k9qAAFirG96TJlZK
1+B+9imEXOo1EuIf5xcEYgzfPwckHHvU/hUpsk96ks+URY2V2nhIF39Bp0NAWgDU
4wIDAQAB
-----END PUBLIC KEY-----
";
    const RSA_ID: &str = "D-9_WZrcROjIbb6msek4P2tWvL8TTEufzA8fF26Rw_c";
    const SIGNATURE: &str = "sm3v9XksghkbwnMDVfSbQqU/khL2gtQQFNLO219gzA22Tw2FeUVu56lJ7Kw14NiMyxhiihRbgbZILz1Z/BnGWRrbhGqdsNQBiDvPGzkW1MnlLRuiTVM5ocBSHAG27/ylwJ9v5vnwNNTY0B23GtSzzAJ93nKMwHDrQYM1yYTA2Pb+kyFPJSqBbzep41NwC3HgA9RGVpsxaQ5ZYIq8bJPaKXD9LbAnclU3qr114FSh4jPmsZDvB95PRiNNjabau0xH6lYd12255ndKLbgiEOoSaHC5vPTdXL3IyLGPewO24OEijScNf8SdHus43AI0+iEc+ku0xPMSlYnF6WMQTnzPPQ==";

    fn keys(text: &str) -> Vec<VerifyingKey> {
        let mut keys = TokenKeys::default();
        keys.add_pem(text.as_bytes()).expect("it has keys");
        keys.0
    }

    #[test]
    fn an_rsa_key_verifies_what_openssl_signed() {
        let [key] = &keys(RSA)[..] else {
            panic!("one key");
        };
        assert_eq!((key.id(), key.algorithm()), (RSA_ID, "RS256"));
        let signature = STANDARD.decode(SIGNATURE).unwrap();
        assert!(key.verifies(b"signed", &signature));
        assert!(!key.verifies(b"Signed", &signature));
        let json = key.to_json();
        assert_eq!(json["e"], "AQAB");
        // 2048 bits without a leading zero.
        assert_eq!(json["n"].as_str().map(str::len), Some(342));
    }

    #[test]
    fn one_file_may_have_several_keys_and_other_blocks() {
        let pairs = [
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ECDSA_P384_SHA384,
        ]
        .map(|algorithm| rcgen::KeyPair::generate_for(algorithm).unwrap());
        let certificate = rcgen::CertificateParams::default()
            .self_signed(&pairs[0])
            .unwrap();
        let other =
            "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
        let file = [
            other,
            &pairs[0].serialize_pem(),
            &pairs[1].public_key_pem(),
            &certificate.pem(),
            RSA,
        ]
        .join("\n");
        let keys = keys(&file);
        let algorithms: Vec<_> = keys.iter().map(VerifyingKey::algorithm).collect();
        assert_eq!(algorithms, ["ES256", "ES384", "ES256", "RS256"]);
        assert_eq!(keys[0].id(), keys[2].id());
        let error = TokenKeys::default().add_pem(other.as_bytes()).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("it has no public or private key"),
            "{error}"
        );
    }
}
