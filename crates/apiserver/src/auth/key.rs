//! The key that signs service accounts' tokens: ECDSA on P-256 (`ES256`), published as a JSON web key.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::json;

use super::public_key::VerifyingKey;

/// The DER bytes of a SubjectPublicKeyInfo before an uncompressed P-256 point.
const PUBLIC_KEY_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A private key for tokens. A server that must recognize the tokens of an earlier run is given the key of that run.
pub struct SigningKey {
    pkcs8: Box<[u8]>,
    pair: EcdsaKeyPair,
    random: SystemRandom,
    public: VerifyingKey,
}

/// A key cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum SigningKeyError {
    /// The system gives no randomness.
    #[error("no key for service account tokens can be made: the system gives no random numbers")]
    Random,
    /// The text is not a PKCS#8 document with a P-256 key.
    #[error(
        "the key for service account tokens cannot be used: {0}; give a P-256 key as PKCS#8 DER"
    )]
    Rejected(String),
}

impl SigningKey {
    /// Generates a new key.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn generate() -> Result<Self, SigningKeyError> {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
            .map_err(|_| SigningKeyError::Random)?;
        SigningKey::from_pkcs8(pkcs8.as_ref())
    }

    /// Parses the key in a PKCS#8 DER document, as [`SigningKey::to_pkcs8`] returned it.
    ///
    /// # Errors
    /// It holds no P-256 key.
    pub fn from_pkcs8(pkcs8: &[u8]) -> Result<Self, SigningKeyError> {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8, &random)
            .map_err(|why| SigningKeyError::Rejected(why.to_string()))?;
        let public = [&PUBLIC_KEY_PREFIX[..], pair.public_key().as_ref()].concat();
        let public = VerifyingKey::from_der(&public)
            .ok_or_else(|| SigningKeyError::Rejected("its public half is malformed".to_owned()))?;
        Ok(SigningKey {
            pkcs8: pkcs8.into(),
            pair,
            random,
            public,
        })
    }

    /// Returns the key as a PKCS#8 DER document, which is a secret.
    pub fn to_pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// Returns a JSON web signature of some claims.
    pub(super) fn sign(&self, claims: &[u8]) -> Result<String, SigningKeyError> {
        let header = json!({"alg": self.public.algorithm(), "kid": self.public.id()});
        let mut token = URL_SAFE_NO_PAD.encode(header.to_string());
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(claims, &mut token);
        let signature = self
            .pair
            .sign(&self.random, token.as_bytes())
            .map_err(|_| SigningKeyError::Random)?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature.as_ref(), &mut token);
        Ok(token)
    }

    /// Returns the public half.
    pub(crate) fn public(&self) -> &VerifyingKey {
        &self.public
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_kept_verifies_what_it_signed_before() {
        let key = SigningKey::generate().unwrap();
        let token = key.sign(br#"{"sub":"x"}"#).unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let same = SigningKey::from_pkcs8(key.to_pkcs8()).unwrap();
        assert_eq!(same.public().to_json(), key.public().to_json());
        assert!(same.public().verifies(signed.as_bytes(), &signature));
        let other = SigningKey::generate().unwrap();
        assert!(!other.public().verifies(signed.as_bytes(), &signature));
        assert!(!format!("{key:?}").contains("pkcs8"));
    }

    #[test]
    fn something_else_is_no_key() {
        let error = SigningKey::from_pkcs8(b"nothing").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the key for service account tokens cannot be used")
        );
    }
}
