//! Verifies the certificates of webhooks: an authority in the configuration's `caBundle` must have signed them, or the bundle holds them.
//!
//! Go accepts a certificate that is itself in the bundle, even if it is marked as an authority (as `openssl req -x509` makes it). webpki
//! does not, so that case is checked first.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        VerifierBuilderError, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::ring,
    pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The reason why no client can be made for a webhook.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// The host of the webhook is neither a name nor an address.
    #[error("the webhook's host is no name: {}", InvalidDnsNameError)]
    Host,
    /// There is neither a bundle nor an authority of the system.
    #[error(
        "unable to load root certificates: the webhook has no caBundle, and this machine trusts no authority"
    )]
    NoAuthority,
    /// The bundle has no certificate.
    #[error(
        "unable to load root certificates: the webhook's caBundle holds no certificate in PEM form"
    )]
    EmptyBundle,
    /// The certificates cannot verify others.
    #[error("unable to load root certificates: {0}")]
    Verifier(VerifierBuilderError),
    /// TLS has no common version.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// Returns the TLS configuration that trusts the certificates of this PEM bundle, or the system's authorities if the bundle is empty.
pub(super) fn client_config(bundle: &[u8]) -> Result<ClientConfig, ClientError> {
    let pinned: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(bundle)
        .filter_map(Result::ok)
        .collect();
    let mut roots = RootCertStore::empty();
    if bundle.is_empty() {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    } else {
        roots.add_parsable_certificates(pinned.iter().cloned());
    }
    if roots.is_empty() {
        return Err(if bundle.is_empty() {
            ClientError::NoAuthority
        } else {
            ClientError::EmptyBundle
        });
    }
    let provider = Arc::new(ring::default_provider());
    let webpki =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let verifier = Verifier {
        webpki: webpki.map_err(ClientError::Verifier)?,
        pinned,
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    // A server that agreed to HTTP/2 would not understand the pool, which speaks HTTP/1.1.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Formats a handshake error, with Go's text where it is known.
pub(super) fn words(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(error) = error else {
        return format!("tls: {error}");
    };
    let why = match error {
        CertificateError::UnknownIssuer => "certificate signed by unknown authority".to_owned(),
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => {
            "certificate has expired or is not yet valid".to_owned()
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => not_valid_for(expected, presented),
        // An authority's own certificate that is not in the bundle.
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "certificate signed by unknown authority".to_owned()
        }
        other => other.to_string(),
    };
    format!("tls: failed to verify certificate: x509: {why}")
}

/// Formats the error for a certificate with other names. webpki prints the names as `DnsName("a")` and `IpAddress(::1)`.
fn not_valid_for(expected: &ServerName<'_>, presented: &[String]) -> String {
    let wanted = expected.to_str();
    let is_address = matches!(expected, ServerName::IpAddress(_));
    let of_kind = |name: &&String| name.starts_with("IpAddress") == is_address;
    let inner = |name: &String| {
        let inner = name
            .split_once('(')
            .map_or(name.as_str(), |(_, inner)| inner);
        inner.trim_end_matches(')').trim_matches('"').to_owned()
    };
    let names: Vec<String> = presented.iter().filter(of_kind).map(inner).collect();
    match (names.is_empty(), is_address) {
        (true, true) => format!(
            "cannot validate certificate for {wanted} because it doesn't contain any IP SANs"
        ),
        (true, false) => {
            format!("certificate is not valid for any names, but wanted to match {wanted}")
        }
        (false, _) => format!(
            "certificate is valid for {}, not {wanted}",
            names.join(", ")
        ),
    }
}

#[derive(Debug)]
struct Verifier {
    webpki: Arc<WebPkiServerVerifier>,
    pinned: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if !self.pinned.iter().any(|pinned| pinned == certificate) {
            let webpki = &self.webpki;
            return webpki.verify_server_cert(certificate, intermediates, name, ocsp, now);
        }
        let (_, parsed) = X509Certificate::from_der(certificate)
            .map_err(|_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let validity = parsed.validity();
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        // A pinned certificate is trusted, but it must still be valid now and for this name, as Go's verification demands.
        if now > validity.not_after.timestamp() {
            return Err(CertificateError::Expired.into());
        }
        if now < validity.not_before.timestamp() {
            return Err(CertificateError::NotValidYet.into());
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let webpki = &self.webpki;
        webpki.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let webpki = &self.webpki;
        webpki.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
