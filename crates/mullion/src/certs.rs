//! The cluster's certificates, made anew at every start: a CA, the server's certificate for loopback, the administrator's client certificate.
//!
//! Nothing is written to disk but what the kubeconfig holds; a new start has a new CA, so an old kubeconfig cannot reach a new cluster by mistake.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

/// PEM texts of everything a server and its administrator need.
pub(crate) struct Certs {
    pub(crate) ca: String,
    pub(crate) server: Pair,
    pub(crate) admin: Pair,
}

/// A certificate and its private key, PEM.
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Certs {
    /// Makes a CA and what it signs, valid from yesterday for a year. `service_ip` is the address of the `kubernetes` Service.
    pub(crate) fn generate(now: Timestamp, service_ip: Ipv4Addr) -> Result<Certs, rcgen::Error> {
        let today = now.to_zoned(TimeZone::UTC).date();
        let mut params = params(today, "mullion-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;

        let mut server = params_for(today, "kube-apiserver", ExtendedKeyUsagePurpose::ServerAuth);
        for address in [
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
            IpAddr::V4(service_ip),
        ] {
            server.subject_alt_names.push(SanType::IpAddress(address));
        }
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
            .push(DnType::OrganizationName, "system:masters");

        Ok(Certs {
            server: signed(server, &ca)?,
            admin: signed(admin, &ca)?,
            ca: ca.pem(),
        })
    }
}

fn signed(
    params: CertificateParams,
    ca: &CertifiedIssuer<'_, KeyPair>,
) -> Result<Pair, rcgen::Error> {
    let key = KeyPair::generate()?;
    let cert = params.signed_by(&key, ca)?;
    Ok(Pair {
        cert: cert.pem(),
        key: key.serialize_pem(),
    })
}

fn params_for(today: Date, common_name: &str, usage: ExtendedKeyUsagePurpose) -> CertificateParams {
    let mut params = params(today, common_name);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    params.extended_key_usages = vec![usage];
    params
}

fn params(today: Date, common_name: &str) -> CertificateParams {
    let date = |date: Date| {
        rcgen::date_time_ymd(i32::from(date.year()), date.month() as u8, date.day() as u8)
    };
    let mut params = CertificateParams::default();
    params.not_before = date(today.saturating_sub(1.day()));
    params.not_after = date(today.saturating_add(1.year()));
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_has_its_own_authority() {
        let now = Timestamp::from_second(1_790_000_000).expect("a valid time");
        let one =
            Certs::generate(now, Ipv4Addr::new(10, 100, 0, 1)).expect("certificates can be made");
        let two =
            Certs::generate(now, Ipv4Addr::new(10, 100, 0, 1)).expect("certificates can be made");
        assert_ne!(one.ca, two.ca);
        assert!(one.admin.key.starts_with("-----BEGIN PRIVATE KEY-----"));
    }
}
