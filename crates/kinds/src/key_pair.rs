//! Checks that a certificate and a key belong together, with the errors of Go's `tls.X509KeyPair`.

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer},
    sign::CertifiedKey,
};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Returns Go's error for a certificate and key; `None` if they belong together.
pub(super) fn complaint(certificate: &[u8], key: &[u8]) -> Option<String> {
    judge(certificate, key).err()
}

fn judge(certificate: &[u8], key: &[u8]) -> Result<(), String> {
    let leaf = find(certificate, |kind| kind == "CERTIFICATE").map_err(|skipped| {
        match skipped.as_slice() {
            [] => "tls: failed to find any PEM data in certificate input".to_owned(),
            [one] if one.ends_with("PRIVATE KEY") => "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched".to_owned(),
            several => format!("tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [{}]", several.join(" ")),
        }
    })?;
    let is_key = |kind: &str| kind == "PRIVATE KEY" || kind.ends_with(" PRIVATE KEY");
    let key = find(key, is_key).map_err(|skipped| match skipped.as_slice() {
        [] => "tls: failed to find any PEM data in key input".to_owned(),
        [one] if one == "CERTIFICATE" => {
            "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
        }
        several => format!(
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [{}]",
            several.join(" ")
        ),
    })?;
    if !X509Certificate::from_der(&leaf).is_ok_and(|(rest, _)| rest.is_empty()) {
        return Err("x509: malformed certificate".to_owned());
    }
    let unreadable = || "tls: failed to parse private key".to_owned();
    let key = PrivateKeyDer::try_from(key).map_err(|_| unreadable())?;
    let key = ring::sign::any_supported_type(&key).map_err(|_| unreadable())?;
    match CertifiedKey::new(vec![CertificateDer::from(leaf)], key).keys_match() {
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err("tls: private key does not match public key".to_owned())
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
            let found = complaint(certificate.as_bytes(), key.as_bytes());
            assert_eq!(found.as_deref(), expected);
        }
    }
}
