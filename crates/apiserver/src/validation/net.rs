//! IP addresses and CIDRs as Kubernetes reads them: what was once accepted (leading zeros in IPv4 octets are decimal, IPv4 may be mapped
//! into IPv6) is still understood where it is stored, and refused or warned of where it is written.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::field::{Errors, Path};

const NO_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

/// An address in the old, forgiving form.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Some(v4) = parse_v4(text) {
        return Some(IpAddr::V4(v4));
    }
    if let Ok(v6) = text.parse::<Ipv6Addr>() {
        return Some(v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4));
    }
    let (head, tail) = text.rsplit_once(':')?;
    let mapped: Ipv6Addr = format!("{head}:{}", parse_v4(tail)?).parse().ok()?;
    Some(
        mapped
            .to_ipv4_mapped()
            .map_or(IpAddr::V6(mapped), IpAddr::V4),
    )
}

fn parse_v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

/// A network in the old, forgiving form, as Go's `net` package keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// The address before the slash.
    pub address: IpAddr,
    /// That address without its host bits. One that maps an IPv4 address into IPv6 is IPv4 as far as the prefix covers the mapping.
    pub network: IpAddr,
    /// The length of the prefix, in bits of the network's family.
    pub length: u8,
    /// The length as it is written.
    pub written: u8,
    /// How many bits an address has as it is written: 32 or 128.
    pub bits: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.length)
    }
}

impl Cidr {
    /// Whether the address is in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                masked_v4(address, self.length) == network
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                masked_v6(address, self.length) == network
            }
            _ => false,
        }
    }

    /// Whether the address has bits that the prefix does not cover.
    fn has_host_bits(&self) -> bool {
        match self.address {
            IpAddr::V4(v4) if self.bits == 128 => {
                let mapped = v4.to_ipv6_mapped();
                masked_v6(mapped, self.written) != mapped
            }
            address => address != self.network,
        }
    }
}

/// A network in the old, forgiving form.
pub fn parse_cidr(text: &str) -> Option<Cidr> {
    let (address, length) = text.split_once('/')?;
    if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let written: u8 = length.parse().ok()?;
    let bits = if address.contains(':') { 128 } else { 32 };
    let address = parse_ip(address).filter(|_| written <= bits)?;
    let v6 = match address {
        IpAddr::V4(v4) if bits == 32 => {
            return Some(Cidr {
                address,
                network: masked_v4(v4, written).into(),
                length: written,
                written,
                bits,
            });
        }
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let v6 = masked_v6(v6, written);
    let (network, length) = match v6.to_ipv4_mapped() {
        Some(v4) => (v4.into(), written.saturating_sub(96)),
        None => (v6.into(), written),
    };
    Some(Cidr {
        address,
        network,
        length,
        written,
        bits,
    })
}

fn masked_v4(address: Ipv4Addr, length: u8) -> Ipv4Addr {
    let host_bits = 32 - u32::from(length.min(32));
    let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
    (u32::from(address) & mask).into()
}

fn masked_v6(address: Ipv6Addr, length: u8) -> Ipv6Addr {
    let host_bits = 128 - u32::from(length.min(128));
    let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
    (u128::from(address) & mask).into()
}

/// Whether the text names an IPv6 address.
pub fn is_v6(text: &str) -> bool {
    matches!(parse_ip(text), Some(IpAddr::V6(_)))
}

/// The address in its canonical text.
pub fn canonical(text: &str) -> Option<String> {
    parse_ip(text).map(|ip| ip.to_string())
}

/// Records an error unless the value is an IP address in a form that every reader understands alike (1.36: `StrictIPCIDRValidation`).
pub fn ip(errors: &mut Errors, path: &Path<'_>, value: &str) -> Option<IpAddr> {
    let Some(ip) = parse_ip(value) else {
        errors.invalid(path, value, NO_IP);
        return None;
    };
    match ambiguity(value) {
        Some(why) => {
            errors.invalid(path, value, why);
            None
        }
        None => Some(ip),
    }
}

/// Why readers of an address may understand it differently.
fn ambiguity(value: &str) -> Option<&'static str> {
    match value.parse::<IpAddr>() {
        Err(_) => Some("must not have leading 0s"),
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => {
            Some("must not be an IPv4-mapped IPv6 address")
        }
        Ok(_) => None,
    }
}

/// Records an error for addresses that no traffic may be sent to.
pub fn ordinary_ip(errors: &mut Errors, path: &Path<'_>, text: &str) {
    let Some(ip) = parse_ip(text) else {
        return errors.invalid(path, text, "must be a valid IP address");
    };
    let (link_local, link_local_multicast) = match ip {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (
            v6.segments()[0] & 0xffc0 == 0xfe80,
            v6.segments()[0] & 0xff0f == 0xff02,
        ),
    };
    if ip.is_unspecified() {
        errors.invalid(path, text, format!("may not be unspecified ({text})"));
    }
    if ip.is_loopback() {
        errors.invalid(
            path,
            text,
            "may not be in the loopback range (127.0.0.0/8, ::1/128)",
        );
    }
    if link_local {
        errors.invalid(
            path,
            text,
            "may not be in the link-local range (169.254.0.0/16, fe80::/10)",
        );
    }
    if link_local_multicast {
        errors.invalid(
            path,
            text,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        );
    }
}

/// Records an error unless the value is a CIDR that every reader understands alike. Whether it is one.
pub fn cidr(errors: &mut Errors, path: &Path<'_>, value: &str) -> bool {
    let Some(range) = parse_cidr(value) else {
        let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        errors.invalid(path, value, why);
        return false;
    };
    let (form, mut found) = (form(value), Vec::new());
    match form {
        Form::Zeros => found.push("must not have leading 0s in IP or prefix length"),
        Form::Mapped => found.push("must not have an IPv4-mapped IPv6 address"),
        Form::Good => {}
    }
    if range.has_host_bits() && form != Form::Mapped {
        found.push("must not have bits set beyond the prefix length");
    }
    for why in &found {
        errors.invalid(path, value, *why);
    }
    found.is_empty()
}

/// Records an error unless the value is the canonical form of an address with the length of its network's prefix.
pub fn interface_address(errors: &mut Errors, path: &Path<'_>, value: &str) {
    let Some(cidr) = parse_cidr(value) else {
        let why = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return errors.invalid(path, value, why);
    };
    // An IPv4 address that was written as an IPv6 one.
    let length = match cidr.address {
        IpAddr::V4(_) if cidr.written > 32 => i16::from(cidr.written) - 96,
        _ => i16::from(cidr.written),
    };
    let canonical = format!("{}/{length}", cidr.address);
    if value != canonical {
        let why = format!("must be in canonical form ({canonical:?})");
        errors.invalid(path, value, why);
    }
}

/// What is wrong with an address that must be in its one canonical form (newer API fields).
pub fn strict_ip(value: &str) -> Vec<String> {
    let Some(ip) = parse_ip(value) else {
        return vec![NO_IP.to_owned()];
    };
    let canonical = ip.to_string();
    match ambiguity(value) {
        Some(why) => vec![why.to_owned()],
        None if canonical != value => vec![format!("must be in canonical form ({canonical:?})")],
        None => Vec::new(),
    }
}

/// Records what is wrong with a CIDR that must be in its one canonical form (newer API fields).
pub fn strict_cidr(errors: &mut Errors, path: &Path<'_>, value: &str) {
    if !cidr(errors, path, value) {
        return;
    }
    let canonical = parse_cidr(value).map(|range| range.to_string());
    if let Some(canonical) = canonical.filter(|canonical| canonical != value) {
        let why = format!("must be in canonical form ({canonical:?})");
        errors.invalid(path, value, why);
    }
}

/// What is odd about a CIDR that can be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Good,
    /// Zeros lead an octet or the length.
    Zeros,
    /// An IPv4 address in an IPv6 one.
    Mapped,
}

fn form(cidr: &str) -> Form {
    let (address, length) = cidr.split_once('/').unwrap_or((cidr, ""));
    match address.parse::<IpAddr>() {
        _ if length.len() > 1 && length.starts_with('0') => Form::Zeros,
        Err(_) => Form::Zeros,
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => Form::Mapped,
        Ok(_) => Form::Good,
    }
}

/// What to tell a client about an address in a form that will be refused one day.
pub fn ip_warning(path: &Path<'_>, value: &str) -> Option<String> {
    let ip = parse_ip(value)?;
    match value.parse::<IpAddr>() {
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_none() => {
            (v6.to_string() != value).then(|| {
                format!(
                    "{path}: IPv6 address {value:?} should be in RFC 5952 canonical format ({:?})",
                    v6.to_string()
                )
            })
        }
        Ok(IpAddr::V4(_)) => None,
        Ok(IpAddr::V6(_)) | Err(_) => Some(format!(
            "{path}: non-standard IP address {value:?} will be considered invalid in a future Kubernetes release: use {:?}",
            ip.to_string()
        )),
    }
}

/// What to tell a client about a CIDR in a form that will be refused one day.
pub fn cidr_warnings(path: &Path<'_>, value: &str) -> Vec<String> {
    let Some(range) = parse_cidr(value) else {
        return Vec::new();
    };
    let (canonical, mut warnings) = (range.to_string(), Vec::new());
    if range.has_host_bits() {
        let single = format!("{}/{}", range.address, range.bits);
        warnings.push(format!(
            "{path}: CIDR value {value:?} is ambiguous in this context (should be {canonical:?} or {single:?}?)"
        ));
    }
    if form(value) != Form::Good {
        warnings.push(format!(
            "{path}: non-standard CIDR value {value:?} will be considered invalid in a future Kubernetes release: use {canonical:?}"
        ));
    }
    if warnings.is_empty() && range.bits == 128 && canonical != value {
        warnings.push(format!(
            "{path}: IPv6 CIDR value {value:?} should be in RFC 5952 canonical format ({canonical:?})"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::causes;

    #[test]
    fn leading_zeros_are_decimal_and_worth_a_warning() {
        assert_eq!(canonical("010.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(parse_ip("1.2.3"), None);
        assert_eq!(canonical("::ffff:1.2.3.4").as_deref(), Some("1.2.3.4"));
        let path = Path::new("ip");
        assert_eq!(
            ip_warning(&path, "010.0.0.1").as_deref(),
            Some(
                r#"ip: non-standard IP address "010.0.0.1" will be considered invalid in a future Kubernetes release: use "10.0.0.1""#
            )
        );
        assert_eq!(ip_warning(&path, "10.0.0.1"), None);
    }

    #[test]
    fn a_cidr_with_host_bits_is_ambiguous() {
        let warnings = cidr_warnings(&Path::new("c"), "10.0.0.1/8");
        assert_eq!(
            warnings,
            [
                r#"c: CIDR value "10.0.0.1/8" is ambiguous in this context (should be "10.0.0.0/8" or "10.0.0.1/32"?)"#
            ]
        );
        assert_eq!(parse_cidr("10.0.0.0/33"), None);
    }

    #[test]
    fn a_cidr_of_ipv4_may_be_written_as_one_of_ipv6() {
        const AMBIGUOUS: &str = "is ambiguous in this context";
        const ODD: &str = "will be considered invalid in a future Kubernetes release: use";
        let rows: [(&str, &str, Vec<String>); 6] = [
            (
                "::ffff:192.12.2.0/120",
                "192.12.2.0/24",
                vec![format!(
                    r#"c: non-standard CIDR value "::ffff:192.12.2.0/120" {ODD} "192.12.2.0/24""#
                )],
            ),
            (
                "::ffff:192.12.2.8/120",
                "192.12.2.0/24",
                vec![
                    format!(
                        r#"c: CIDR value "::ffff:192.12.2.8/120" {AMBIGUOUS} (should be "192.12.2.0/24" or "192.12.2.8/128"?)"#
                    ),
                    format!(
                        r#"c: non-standard CIDR value "::ffff:192.12.2.8/120" {ODD} "192.12.2.0/24""#
                    ),
                ],
            ),
            // The prefix ends before the mapping does.
            (
                "::ffff:1.1.1.0/24",
                "::/24",
                vec![
                    format!(
                        r#"c: CIDR value "::ffff:1.1.1.0/24" {AMBIGUOUS} (should be "::/24" or "1.1.1.0/128"?)"#
                    ),
                    format!(r#"c: non-standard CIDR value "::ffff:1.1.1.0/24" {ODD} "::/24""#),
                ],
            ),
            (
                "192.12.2.0/024",
                "192.12.2.0/24",
                vec![format!(
                    r#"c: non-standard CIDR value "192.12.2.0/024" {ODD} "192.12.2.0/24""#
                )],
            ),
            ("::/0", "::/0", vec![]),
            ("0.0.0.0/0", "0.0.0.0/0", vec![]),
        ];
        for (text, canonical, warnings) in rows {
            let range = parse_cidr(text).expect("a range");
            assert_eq!(range.to_string(), canonical);
            assert_eq!(cidr_warnings(&Path::new("c"), text), warnings);
        }
        let refused = |text: &str| causes(|errors| strict_cidr(errors, &Path::new("c"), text));
        for text in ["::ffff:1.1.1.0/24", "::ffff:1.1.1.0/120"] {
            let why = "must not have an IPv4-mapped IPv6 address";
            assert_eq!(
                refused(text),
                [format!("c: Invalid value: {text:?}: {why}")]
            );
        }
        let range = parse_cidr("::ffff:10.0.0.0/104").expect("a range");
        assert!(range.contains(IpAddr::from([10, 9, 8, 7])));
        assert!(!range.contains(IpAddr::from([11, 0, 0, 1])));
    }

    #[test]
    fn what_readers_may_understand_differently_is_refused() {
        let path = Path::new("f");
        for (value, why) in [
            (
                "010.0.0.1",
                r#"f: Invalid value: "010.0.0.1": must not have leading 0s"#,
            ),
            (
                "::ffff:1.2.3.4",
                r#"f: Invalid value: "::ffff:1.2.3.4": must not be an IPv4-mapped IPv6 address"#,
            ),
        ] {
            let found = causes(|errors| assert_eq!(ip(errors, &path, value), None));
            assert_eq!(found, [why]);
        }
        let found = causes(|errors| assert!(!cidr(errors, &path, "10.0.00.1/08")));
        let expected = [
            r#"f: Invalid value: "10.0.00.1/08": must not have leading 0s in IP or prefix length"#,
            r#"f: Invalid value: "10.0.00.1/08": must not have bits set beyond the prefix length"#,
        ];
        assert_eq!(found, expected);
        assert!(causes(|errors| assert!(cidr(errors, &path, "FE80::/10"))).is_empty());
    }
}
