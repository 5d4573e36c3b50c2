//! IP addresses and CIDRs as Kubernetes reads them: "sloppily" (leading zeros in IPv4 octets are decimal, IPv4 may be mapped into IPv6)
//! where old API fields must keep accepting what they once accepted, with a warning for what a later release will refuse.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::field::{Errors, Path};

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

/// A network in the old, forgiving form: the address as written, and the prefix length.
pub fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let length: u8 = length.parse().ok()?;
    let ip = parse_ip(address)?;
    let max = if address.contains(':') { 128 } else { 32 };
    (length <= max).then_some((ip, length))
}

/// Whether the text names an IPv6 address.
pub fn is_v6(text: &str) -> bool {
    matches!(parse_ip(text), Some(IpAddr::V6(_)))
}

/// The address in its canonical text.
pub fn canonical(text: &str) -> Option<String> {
    parse_ip(text).map(|ip| ip.to_string())
}

/// Records an error unless the value is an IP address.
pub fn ip(errors: &mut Errors, path: &Path<'_>, value: &str) -> Option<IpAddr> {
    let parsed = parse_ip(value);
    if parsed.is_none() {
        errors.invalid(
            path,
            value,
            "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        );
    }
    parsed
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

/// Records an error unless the value is a CIDR.
pub fn cidr(errors: &mut Errors, path: &Path<'_>, value: &str) {
    if parse_cidr(value).is_none() {
        errors.invalid(
            path,
            value,
            "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        );
    }
}

/// Records an error unless the value is the canonical form of an address with the length of its network's prefix.
pub fn interface_address(errors: &mut Errors, path: &Path<'_>, value: &str) {
    let Some((ip, length)) = parse_cidr(value) else {
        let why = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return errors.invalid(path, value, why);
    };
    // An IPv4 address that was written as an IPv6 one.
    let length = match ip {
        IpAddr::V4(_) if length > 32 => i16::from(length) - 96,
        _ => i16::from(length),
    };
    let canonical = format!("{ip}/{length}");
    if value != canonical {
        let why = format!("must be in canonical form ({canonical:?})");
        errors.invalid(path, value, why);
    }
}

/// What is wrong with an address that must be in its one canonical form (newer API fields).
pub fn strict_ip(value: &str) -> Vec<String> {
    let Some(ip) = parse_ip(value) else {
        return vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()];
    };
    match value.parse::<IpAddr>() {
        Err(_) => vec!["must not have leading 0s".to_owned()],
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => {
            vec!["must not be an IPv4-mapped IPv6 address".to_owned()]
        }
        Ok(_) if ip.to_string() != value => {
            vec![format!("must be in canonical form ({:?})", ip.to_string())]
        }
        Ok(_) => Vec::new(),
    }
}

/// Records what is wrong with a CIDR that must be in its one canonical form (newer API fields).
pub fn strict_cidr(errors: &mut Errors, path: &Path<'_>, value: &str) {
    let Some((ip, length)) = parse_cidr(value) else {
        return cidr(errors, path, value);
    };
    let (address, digits) = value.split_once('/').unwrap_or((value, ""));
    let base = network(ip, length);
    let canonical = format!("{base}/{length}");
    let zeros = address.parse::<IpAddr>().is_err() || (digits.len() > 1 && digits.starts_with('0'));
    let mapped = address
        .parse::<Ipv6Addr>()
        .is_ok_and(|v6| v6.to_ipv4_mapped().is_some());
    let mut found = false;
    let mut refuse = |why: String| {
        errors.invalid(path, value, why);
        found = true;
    };
    if zeros {
        refuse("must not have leading 0s in IP or prefix length".to_owned());
    } else if mapped {
        refuse("must not have an IPv4-mapped IPv6 address".to_owned());
    }
    if base != ip {
        refuse("must not have bits set beyond the prefix length".to_owned());
    }
    if !found && canonical != value {
        errors.invalid(
            path,
            value,
            format!("must be in canonical form ({canonical:?})"),
        );
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

/// The network address of a CIDR: host bits cleared.
pub fn network(ip: IpAddr, length: u8) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            IpAddr::V6((u128::from(v6) & mask).into())
        }
    }
}

/// What to tell a client about a CIDR in a form that will be refused one day.
pub fn cidr_warnings(path: &Path<'_>, value: &str) -> Vec<String> {
    let Some((ip, length)) = parse_cidr(value) else {
        return Vec::new();
    };
    let base = network(ip, length);
    let mut warnings = Vec::new();
    if base != ip {
        let full = if ip.is_ipv4() { 32 } else { 128 };
        warnings.push(format!(
            "{path}: CIDR value {value:?} is ambiguous in this context (should be {:?} or {:?}?)",
            format!("{base}/{length}"),
            format!("{ip}/{full}")
        ));
    }
    let address = value.split('/').next().unwrap_or("");
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => {}
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_none() => {
            let canonical = format!("{v6}/{length}");
            if warnings.is_empty() && canonical != value {
                warnings.push(format!("{path}: IPv6 CIDR value {value:?} should be in RFC 5952 canonical format ({canonical:?})"));
            }
        }
        Ok(IpAddr::V6(_)) | Err(_) => warnings.push(format!(
            "{path}: non-standard CIDR value {value:?} will be considered invalid in a future Kubernetes release: use {:?}",
            format!("{base}/{length}")
        )),
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
