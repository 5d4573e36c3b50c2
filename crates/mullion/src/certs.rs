//! The cluster's certificates: an authority, and the certificates that it signs at every start: the server's for loopback, and the
//! administrator's client certificate.
//!
//! A cluster in memory has a new authority at every start, so an old kubeconfig cannot reach a new cluster by mistake. A cluster on disk
//! keeps its authority, so its kubeconfigs stay valid.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use jiff::{Span, Timestamp, ToSpan, civil::Date, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// The common name of [`Authority`].
const NAME: &str = "mullion-ca";

/// The certificate authority of a cluster.
pub(crate) struct Authority {
    pem: String,
    key: String,
}

/// The PEM texts that a server and its administrator need.
pub(crate) struct Certs {
    pub(crate) ca: String,
    pub(crate) server: CertificatePair,
    pub(crate) admin: CertificatePair,
}

/// A certificate and its private key, in PEM.
pub(crate) struct CertificatePair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    /// Generates an authority, valid from yesterday for ten years.
    pub(crate) fn generate(now: Timestamp) -> Result<Authority, rcgen::Error> {
        let key = KeyPair::generate()?;
        Ok(Authority {
            pem: authority_params(date(now), NAME).self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Creates an authority from its certificate and key.
    pub(crate) fn from_pem(pem: String, key: String) -> Authority {
        Authority { pem, key }
    }

    /// Returns the certificate and the key.
    pub(crate) fn to_pem(&self) -> (&str, &str) {
        (&self.pem, &self.key)
    }

    /// Signs a certificate for a webhook server with these names or addresses, valid from yesterday for 90 days.
    pub(crate) fn webhook(
        &self,
        now: Timestamp,
        names: &[String],
    ) -> Result<CertificatePair, rcgen::Error> {
        let today = date(now);
        let issuer = Issuer::new(authority_params(today, NAME), KeyPair::from_pem(&self.key)?);
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        let mut server = params(today, "mullion-webhook", 90.days());
        for_usage(&mut server, usage);
        for name in names {
            // TLS clients compare an IP address only with the addresses in a certificate, never with its DNS names.
            server.subject_alt_names.push(match name.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.as_str().try_into()?),
            });
        }
        signed(server, &issuer)
    }

    /// Signs the certificates for a start, valid from yesterday for a year. `addresses` are those of the server beside 127.0.0.1 and
    /// ::1: the address of the Service `kubernetes`, and those of its endpoints.
    pub(crate) fn issue(
        &self,
        now: Timestamp,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<Certs, rcgen::Error> {
        let today = date(now);
        // Only the name and the key of the authority affect the certificates that it signs.
        let issuer = Issuer::new(authority_params(today, NAME), KeyPair::from_pem(&self.key)?);
        let mut server = params_for(today, "kube-apiserver", ExtendedKeyUsagePurpose::ServerAuth);
        let loopback = [
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ];
        for address in loopback.into_iter().chain(addresses) {
            server.subject_alt_names.push(SanType::IpAddress(address));
        }
        // Programs in pods reach the API server by the names of the Service `kubernetes`.
        for name in [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ] {
            server
                .subject_alt_names
                .push(SanType::DnsName(name.try_into()?));
        }

        let mut admin = params_for(
            today,
            "kubernetes-admin",
            ExtendedKeyUsagePurpose::ClientAuth,
        );
        admin
            .distinguished_name
            // The API server takes the organization of a client certificate as the user's group.
            .push(DnType::OrganizationName, "system:masters");

        Ok(Certs {
            server: signed(server, &issuer)?,
            admin: signed(admin, &issuer)?,
            ca: self.pem.clone(),
        })
    }
}

impl Certs {
    /// Issues certificates of a new authority.
    pub(crate) fn generate(now: Timestamp, service_ip: Ipv4Addr) -> Result<Certs, rcgen::Error> {
        Authority::generate(now)?.issue(now, [service_ip.into()])
    }
}

/// Generates an authority for front proxies, valid from yesterday for ten years, and drops its key. Servers behind the API server need such
/// an authority to start, but there is no front proxy, so it never signs.
pub(crate) fn front_proxy_authority(now: Timestamp) -> Result<String, rcgen::Error> {
    let params = authority_params(date(now), "front-proxy-ca");
    Ok(params.self_signed(&KeyPair::generate()?)?.pem())
}

fn date(now: Timestamp) -> Date {
    now.to_zoned(TimeZone::UTC).date()
}

fn signed(
    params: CertificateParams,
    ca: &Issuer<'_, KeyPair>,
) -> Result<CertificatePair, rcgen::Error> {
    let key = KeyPair::generate()?;
    let cert = params.signed_by(&key, ca)?;
    Ok(CertificatePair {
        cert: cert.pem(),
        key: key.serialize_pem(),
    })
}

fn authority_params(today: Date, common_name: &str) -> CertificateParams {
    let mut params = params(today, common_name, 10.years());
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}

fn params_for(today: Date, common_name: &str, usage: ExtendedKeyUsagePurpose) -> CertificateParams {
    let mut params = params(today, common_name, 1.year());
    for_usage(&mut params, usage);
    params
}

fn for_usage(params: &mut CertificateParams, usage: ExtendedKeyUsagePurpose) {
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    params.extended_key_usages = vec![usage];
}

fn params(today: Date, common_name: &str, valid_for: Span) -> CertificateParams {
    let date = |date: Date| {
        rcgen::date_time_ymd(i32::from(date.year()), date.month() as u8, date.day() as u8)
    };
    let mut params = CertificateParams::default();
    // Since yesterday, so that machines whose clocks are behind accept a certificate that was just issued.
    params.not_before = date(today.saturating_sub(1.day()));
    params.not_after = date(today.saturating_add(valid_for));
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_790_000_000).expect("a valid time")
    }

    #[test]
    fn every_authority_is_another_one() {
        let ip = Ipv4Addr::new(10, 100, 0, 1);
        let one = Certs::generate(now(), ip).expect("certificates can be made");
        let two = Certs::generate(now(), ip).expect("certificates can be made");
        assert_ne!(one.ca, two.ca);
        assert!(one.admin.key.starts_with("-----BEGIN PRIVATE KEY-----"));
    }

    #[test]
    fn what_a_kept_authority_signs_fits_what_it_signed_before() {
        let first = Authority::generate(now()).expect("an authority can be made");
        let (pem, key) = first.to_pem();
        let kept = Authority::from_pem(pem.to_owned(), key.to_owned());
        let later = now() + jiff::SignedDuration::from_hours(24 * 400);
        let certs = kept.issue(later, []);
        let certs = certs.expect("certificates can be made");
        assert_eq!(certs.ca, pem);
        mullion_apiserver::Tls::from_pem(
            certs.server.cert.as_bytes(),
            certs.server.key.as_bytes(),
            certs.ca.as_bytes(),
        )
        .expect("they go together");
    }
}
