//! IP addresses and CIDRs as Kubernetes parses them. Older API fields accepted a lenient form (leading zeros in IPv4 octets, which are
//! decimal; IPv4-mapped IPv6; CIDRs with bits beyond the prefix). New values must be strict (`StrictIPCIDRValidation`, on since 1.36).
//! Stored lenient values stay valid, with a warning, where kube-apiserver compares with the old object: see [`OldValues`].

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::field::{Errors, Path};

const NO_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const MAPPED: &str = "must not be an IPv4-mapped IPv6 address";

/// Parses an IP address in the lenient form of older API fields: IPv4 octets may have leading zeros, and an IPv4-mapped IPv6 address
/// becomes an IPv4 address.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Some(v4) = parse_v4(text) {
        return Some(IpAddr::V4(v4));
    }
    if let Ok(v6) = text.parse::<Ipv6Addr>() {
        return Some(v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4));
    }
    // Rust refuses leading zeros in the IPv4 part of `::ffff:010.0.0.1`, so that part is parsed separately.
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

/// A network in the lenient form, as Go's `net` package represents it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// The address before the slash.
    pub address: IpAddr,
    /// The address without its host bits. An IPv4-mapped IPv6 address becomes IPv4 if the prefix covers the mapping.
    pub network: IpAddr,
    /// The prefix length, in bits of the network's family.
    pub length: u8,
    /// The prefix length as written.
    pub written: u8,
    /// The bits of an address in the written family: 32 or 128.
    pub bits: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.length)
    }
}

impl Cidr {
    /// Returns whether an address is in the network.
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

    /// Returns whether the address has bits beyond the prefix.
    fn has_host_bits(&self) -> bool {
        match self.address {
            // It was written as an IPv4-mapped address, so its prefix counts the bits of IPv6.
            IpAddr::V4(v4) if self.bits == 128 => {
                let mapped = v4.to_ipv6_mapped();
                masked_v6(mapped, self.written) != mapped
            }
            address => address != self.network,
        }
    }
}

/// Parses a CIDR in the lenient form of older API fields: octets and the prefix length may have leading zeros, and bits beyond the prefix
/// may be set.
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

/// Returns whether the text is an IPv6 address.
pub fn is_v6(text: &str) -> bool {
    matches!(parse_ip(text), Some(IpAddr::V6(_)))
}

/// Returns the canonical text of an address.
pub fn canonical(text: &str) -> Option<String> {
    parse_ip(text).map(|ip| ip.to_string())
}

/// The values that a field had before the update, which stay valid.
#[derive(Clone, Debug, Default)]
pub struct OldValues<'a>(BTreeSet<&'a str>);

impl<'a> OldValues<'a> {
    /// No earlier values: the object is new, or kube-apiserver ignores them.
    pub const NONE: &'static OldValues<'static> = &OldValues(BTreeSet::new());

    fn has(&self, value: &str) -> bool {
        self.0.contains(value)
    }
}

impl<'a> FromIterator<&'a str> for OldValues<'a> {
    fn from_iter<I: IntoIterator<Item = &'a str>>(values: I) -> Self {
        OldValues(values.into_iter().collect())
    }
}

/// Checks an IP address in a field that once accepted the lenient form (Go's `IsValidIPForLegacyField`), and returns whether it is valid.
/// The address must be strict unless the field had the same value before the update.
pub fn ip(errors: &mut Errors, path: &Path<'_>, value: &str, kept: &OldValues<'_>) -> bool {
    let why = match (parse_ip(value), value.parse::<IpAddr>()) {
        (None, _) => NO_ADDRESS,
        (_, Err(_)) => "must not have leading 0s",
        (_, Ok(IpAddr::V6(v6))) if v6.to_ipv4_mapped().is_some() => MAPPED,
        _ => return true,
    };
    if kept.has(value) {
        return true;
    }
    errors.invalid(path, value, why);
    false
}

/// Records an error for an address that is unspecified, loopback, link-local or link-local multicast.
pub fn ordinary_ip(errors: &mut Errors, path: &Path<'_>, text: &str) {
    let Some(ip) = parse_ip(text) else {
        return errors.invalid(path, text, "must be a valid IP address");
    };
    let (link_local, link_local_multicast) = match ip {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (
            v6.segments()[0] & 0xffc0 == 0xfe80,
            // The flags in between do not matter, only the scope.
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

/// Checks a CIDR in a field that once accepted the lenient form (Go's `IsValidCIDRForLegacyField`). The CIDR must be strict unless the
/// field had the same value before the update.
pub fn cidr(errors: &mut Errors, path: &Path<'_>, value: &str, kept: &OldValues<'_>) {
    if let Some(why) = not_strict(value)
        && !kept.has(value)
    {
        errors.invalid(path, value, why);
    }
}

fn not_strict(value: &str) -> Option<&'static str> {
    let Some(range) = parse_cidr(value) else {
        return Some("must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)");
    };
    match form(value) {
        Form::Zeros => Some("must not have leading 0s in IP or prefix length"),
        Form::Mapped => Some("must not have an IPv4-mapped IPv6 address"),
        Form::Good => range
            .has_host_bits()
            .then_some("must not have bits set beyond the prefix length"),
    }
}

/// Records an error unless the value is an address in canonical form with the prefix length of its network.
pub fn interface_address(errors: &mut Errors, path: &Path<'_>, value: &str) {
    let Some(cidr) = parse_cidr(value) else {
        let why = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return errors.invalid(path, value, why);
    };
    // An IPv4 address written in IPv6 form has the 96 bits of the mapping in its prefix.
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

/// Checks an address that must be in canonical form (newer API fields).
pub fn strict_ip(value: &str) -> Vec<String> {
    let Some(ip) = parse_ip(value) else {
        return vec![NO_ADDRESS.to_owned()];
    };
    match value.parse::<IpAddr>() {
        Err(_) => vec!["must not have leading 0s".to_owned()],
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => {
            vec![MAPPED.to_owned()]
        }
        Ok(_) if ip.to_string() != value => {
            vec![format!("must be in canonical form ({:?})", ip.to_string())]
        }
        Ok(_) => Vec::new(),
    }
}

/// Records an error unless a CIDR is in canonical form (newer API fields).
pub fn strict_cidr(errors: &mut Errors, path: &Path<'_>, value: &str) {
    if let Some(why) = not_strict(value) {
        return errors.invalid(path, value, why);
    }
    let canonical = parse_cidr(value).map(|range| range.to_string());
    if let Some(canonical) = canonical
        && canonical != value
    {
        let why = format!("must be in canonical form ({canonical:?})");
        errors.invalid(path, value, why);
    }
}

/// The form of a CIDR that can be parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Good,
    /// An octet or the prefix length has leading zeros.
    Zeros,
    /// An IPv4-mapped IPv6 address.
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

/// Returns the warning for an address in a form that will become invalid.
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

/// Returns the warnings for a CIDR in a form that will become invalid.
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
mod tests;
