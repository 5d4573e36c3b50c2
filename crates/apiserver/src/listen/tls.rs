//! TLS certificates and keys: the server's own, and the CA of its clients.

use std::sync::Arc;

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
    server::WebPkiClientVerifier,
};

use crate::auth;

/// The server's certificate, and the CA that signs client certificates.
#[derive(Clone)]
pub struct Tls {
    pub(super) config: Arc<ServerConfig>,
    /// The names in the certificate.
    pub(super) names: Arc<[String]>,
}

/// An error in certificates or keys.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The input is not PEM, or lacks the expected content.
    #[error("cannot read {what}: {source}")]
    Pem {
        /// The input in question.
        what: &'static str,
        /// The parser's error.
        source: pem::Error,
    },
    /// The CA cannot be used.
    #[error("client CA: {0}")]
    ClientAuthority(#[from] rustls::client::VerifierBuilderError),
    /// Certificate and key do not match, or cannot be used.
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
}

impl Tls {
    /// Creates the configuration from PEM: the server's certificate chain, its key, and the CA of client certificates.
    ///
    /// # Errors
    /// A text is not PEM, or certificate and key do not match.
    pub fn from_pem(
        certificates: &[u8],
        key: &[u8],
        client_authority: &[u8],
    ) -> Result<Self, TlsError> {
        let read = |what, text| {
            let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
            certificates.map_err(|source| TlsError::Pem { what, source })
        };
        let mut roots = RootCertStore::empty();
        for authority in read("the client CA", client_authority)? {
            roots.add(authority)?;
        }
        let chain = read("the server certificate", certificates)?;
        let names = chain.first().map(|leaf| auth::names_of(leaf));
        let names = names.unwrap_or_default().into();
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|source| TlsError::Pem {
            what: "the server key",
            source,
        })?;
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                // A client may have a token instead of a certificate, and the probes need neither.
                .allow_unauthenticated()
                .build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        // HTTP/2 first, so that all watches of a client share one connection.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Tls {
            config: Arc::new(config),
            names,
        })
    }
}
