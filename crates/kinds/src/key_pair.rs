//! Checks that a certificate and a key belong together, with the errors of Go's `tls.X509KeyPair`.

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer},
    sign::CertifiedKey,
};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The reason why a certificate and a key do not belong together.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum KeyPairError {
    /// The certificate is not PEM.
    #[error("tls: failed to find any PEM data in certificate input")]
    NoCertificateData,
    /// A key stands where the certificate should.
    #[error(
        "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched"
    )]
    KeyAsCertificate,
    /// Only blocks of these kinds stand where the certificate should.
    #[error(
        "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [{}]",
        .0.join(" ")
    )]
    NoCertificate(Vec<String>),
    /// The key is not PEM.
    #[error("tls: failed to find any PEM data in key input")]
    NoKeyData,
    /// A certificate stands where the key should.
    #[error("tls: found a certificate rather than a key in the PEM for the private key")]
    CertificateAsKey,
    /// Only blocks of these kinds stand where the key should.
    #[error(
        "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [{}]",
        .0.join(" ")
    )]
    NoKey(Vec<String>),
    /// The block of the certificate has another content.
    #[error("x509: malformed certificate")]
    MalformedCertificate,
    /// The block of the key has another content, or a key of an unknown type.
    #[error("tls: failed to parse private key")]
    MalformedKey,
    /// The certificate is for another key.
    #[error("tls: private key does not match public key")]
    Mismatch,
}

/// Checks that a certificate and a key belong together.
pub(super) fn check(certificate: &[u8], key: &[u8]) -> Result<(), KeyPairError> {
    let leaf = find(certificate, |kind| kind == "CERTIFICATE").map_err(|skipped| match skipped
        .as_slice()
    {
        [] => KeyPairError::NoCertificateData,
        [one] if one.ends_with("PRIVATE KEY") => KeyPairError::KeyAsCertificate,
        _ => KeyPairError::NoCertificate(skipped),
    })?;
    let is_key = |kind: &str| kind == "PRIVATE KEY" || kind.ends_with(" PRIVATE KEY");
    let key = find(key, is_key).map_err(|skipped| match skipped.as_slice() {
        [] => KeyPairError::NoKeyData,
        [one] if one == "CERTIFICATE" => KeyPairError::CertificateAsKey,
        _ => KeyPairError::NoKey(skipped),
    })?;
    if !X509Certificate::from_der(&leaf).is_ok_and(|(rest, _)| rest.is_empty()) {
        return Err(KeyPairError::MalformedCertificate);
    }
    let key = PrivateKeyDer::try_from(key).map_err(|_| KeyPairError::MalformedKey)?;
    let key = ring::sign::any_supported_type(&key).map_err(|_| KeyPairError::MalformedKey)?;
    match CertifiedKey::new(vec![CertificateDer::from(leaf)], key).keys_match() {
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(KeyPairError::Mismatch)
        }
        _ => Ok(()),
    }
}

/// Returns the content of the first PEM block of a wanted kind, or the kinds of all blocks if there is none.
fn find(text: &[u8], wanted: impl Fn(&str) -> bool) -> Result<Vec<u8>, Vec<String>> {
    let text = String::from_utf8_lossy(text);
    let mut skipped = Vec::new();
    let mut rest = text.as_ref();
    while let Some((kind, block, after)) = next_block(rest) {
        if wanted(kind) {
            return Ok(block);
        }
        skipped.push(kind.to_owned());
        rest = after;
    }
    Err(skipped)
}

/// Returns the kind and the content of the next well-formed PEM block, and the text after it.
pub fn next_block(text: &str) -> Option<(&str, Vec<u8>, &str)> {
    const BEGIN: &str = "-----BEGIN ";
    const DASHES: &str = "-----";
    let mut rest = text;
    loop {
        let start = rest.find(BEGIN)?;
        // Go's pem.Decode finds a block only at the start of a line.
        let at_line = start == 0 || rest.as_bytes()[start - 1] == b'\n';
        rest = &rest[start + BEGIN.len()..];
        let Some((line, body)) = rest.split_once('\n').filter(|_| at_line) else {
            continue;
        };
        let Some(kind) = line.trim_end().strip_suffix(DASHES) else {
            continue;
        };
        let Some((body, after)) = body.split_once(&format!("-----END {kind}{DASHES}")) else {
            continue;
        };
        // Headers, for example of encrypted keys, end with an empty line.
        let body = body.rsplit_once("\n\n").map_or(body, |(_, body)| body);
        let digits: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        if let Ok(block) = STANDARD.decode(digits) {
            return Some((kind, block, after));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_a_pair_is_named_as_go_names_it() {
        let make = || rcgen::generate_simple_self_signed(vec!["a.example.com".to_owned()]).unwrap();
        let (one, other) = (make(), make());
        let (certificate, key) = (one.cert.pem(), one.signing_key.serialize_pem());
        let other_key = other.signing_key.serialize_pem();
        let block = |kind: &str| format!("-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----\n");
        for (certificate, key, expected) in [
            (certificate.as_str(), key.as_str(), None),
            (
                "",
                "",
                Some("tls: failed to find any PEM data in certificate input"),
            ),
            (
                &key,
                &key,
                Some(
                    "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched",
                ),
            ),
            (
                &block("A"),
                "",
                Some(
                    "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [A]",
                ),
            ),
            (
                &certificate,
                "x",
                Some("tls: failed to find any PEM data in key input"),
            ),
            (
                &certificate,
                &certificate,
                Some("tls: found a certificate rather than a key in the PEM for the private key"),
            ),
            (
                &block("CERTIFICATE"),
                &key,
                Some("x509: malformed certificate"),
            ),
            (
                &certificate,
                &block("PRIVATE KEY"),
                Some("tls: failed to parse private key"),
            ),
            (
                &certificate,
                &other_key,
                Some("tls: private key does not match public key"),
            ),
        ] {
            let found = check(certificate.as_bytes(), key.as_bytes()).err();
            let found = found.map(|error| error.to_string());
            assert_eq!(found.as_deref(), expected);
        }
    }
}
