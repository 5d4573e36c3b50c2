//! The errors of Go's `net/netip` for IP addresses and networks.

use std::net::Ipv6Addr;

use super::quote;

/// An error, and the rest of the text from the place of the error on; empty if the message does not show it.
struct Fault<'t>(&'static str, &'t str);

/// Returns the error of `netip.ParseAddr`, for example `ParseAddr("1.2.3"): IPv4 address too short`; `None` if the text is an address.
pub fn fault(text: &str) -> Option<String> {
    let fault = match text.find(['.', ':', '%']).map(|at| text.as_bytes()[at]) {
        Some(b'.') => v4(text),
        Some(b':') => return v6(text),
        Some(_) => Some(Fault("missing IPv6 address", "")),
        None => Some(Fault("unable to parse IP", "")),
    };
    fault.map(|Fault(what, at)| parse_error(text, what, at))
}

/// Returns the error of `netip.ParsePrefix`, for example `netip.ParsePrefix("1.2.3.4"): no '/'`; `None` if the text is a network.
pub fn network_fault(text: &str) -> Option<String> {
    let why = match text.rsplit_once('/') {
        None => "no '/'".to_owned(),
        Some((address, bits)) => {
            let is_number = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
            let most = if address.contains(':') { 128 } else { 32 };
            match fault(address) {
                Some(fault) => fault,
                None if address.contains('%') => {
                    "IPv6 zones cannot be present in a prefix".to_owned()
                }
                None if !is_number || (bits.len() > 1 && bits.starts_with('0')) => {
                    format!("bad bits after slash: {}", quote(bits))
                }
                None if bits.parse().is_ok_and(|bits: u32| bits <= most) => return None,
                None => "prefix length out of range".to_owned(),
            }
        }
    };
    Some(format!("netip.ParsePrefix({}): {why}", quote(text)))
}

fn parse_error(text: &str, what: &str, at: &str) -> String {
    let at = match at {
        "" => String::new(),
        at => format!(" (at {})", quote(at)),
    };
    format!("ParseAddr({}): {what}{at}", quote(text))
}

fn v4(text: &str) -> Option<Fault<'_>> {
    let bytes = text.as_bytes();
    let (mut value, mut digits, mut dots) = (0, 0, 0);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                if digits == 1 && value == 0 {
                    return Some(Fault("IPv4 field has octet with leading zero", ""));
                }
                value = value * 10 + u32::from(byte - b'0');
                digits += 1;
                if value > 255 {
                    return Some(Fault("IPv4 field has value >255", ""));
                }
            }
            b'.' => {
                if digits == 0 || at + 1 == bytes.len() {
                    let what = "IPv4 field must have at least one digit";
                    return Some(Fault(what, &text[at..]));
                }
                if dots == 3 {
                    return Some(Fault("IPv4 address too long", ""));
                }
                (value, digits) = (0, 0);
                dots += 1;
            }
            _ => return Some(Fault("unexpected character", &text[at..])),
        }
    }
    (dots < 3).then_some(Fault("IPv4 address too short", ""))
}

fn v6(text: &str) -> Option<String> {
    let parse_error = |what: &str, at: &str| Some(parse_error(text, what, at));
    let mut rest = text;
    if let Some((address, zone)) = text.split_once('%') {
        if zone.is_empty() {
            return parse_error("zone must be a non-empty string", "");
        }
        rest = address;
    }
    let mut has_ellipsis = false;
    if let Some(after) = rest.strip_prefix("::") {
        has_ellipsis = true;
        rest = after;
        if rest.is_empty() {
            return None;
        }
    }
    let mut bytes = 0;
    while bytes < 16 {
        let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        if digits > 4 {
            return parse_error("each group must have 4 or less digits", rest);
        }
        if digits == 0 {
            let what = "each colon-separated field must have at least one digit";
            return parse_error(what, rest);
        }
        if rest[digits..].starts_with('.') {
            if !has_ellipsis && bytes != 12 {
                let what = "embedded IPv4 address must replace the final 2 fields of the address";
                return parse_error(what, rest);
            }
            if bytes > 12 {
                let what = "too many hex fields to fit an embedded IPv4 at the end of the address";
                return parse_error(what, rest);
            }
            if let Some(Fault(what, at)) = v4(rest) {
                return parse_error(what, at);
            }
            rest = "";
            bytes += 4;
            break;
        }
        bytes += 2;
        rest = &rest[digits..];
        if rest.is_empty() {
            break;
        }
        let Some(after) = rest.strip_prefix(':') else {
            return parse_error("unexpected character, want colon", rest);
        };
        if after.is_empty() {
            return parse_error("colon must be followed by more characters", rest);
        }
        rest = after;
        if let Some(after) = rest.strip_prefix(':') {
            if has_ellipsis {
                return parse_error("multiple :: in address", rest);
            }
            has_ellipsis = true;
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
    }
    match rest {
        "" if bytes < 16 && !has_ellipsis => parse_error("address string too short", ""),
        "" if bytes == 16 && has_ellipsis => {
            parse_error("the :: must expand to at least one field of zeros", "")
        }
        "" => None,
        rest => parse_error("trailing garbage after address", rest),
    }
}

/// Returns whether an IPv6 address, with or without a zone, is an IPv4-mapped one.
pub fn is_mapped(text: &str) -> bool {
    let address = text.split('%').next().unwrap_or_default();
    let address = address.parse::<Ipv6Addr>();
    address.is_ok_and(|address| address.to_ipv4_mapped().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_address_is_told_as_go_tells_it() {
        for (text, why) in [
            ("a", "unable to parse IP"),
            ("%eth0", "missing IPv6 address"),
            ("1.2.3", "IPv4 address too short"),
            ("1.2.3.4.5", "IPv4 address too long"),
            ("1.2.3.256", "IPv4 field has value >255"),
            ("1.2.3.04", "IPv4 field has octet with leading zero"),
            (
                "1..3.4",
                r#"IPv4 field must have at least one digit (at ".3.4")"#,
            ),
            ("1.2.3.x", r#"unexpected character (at "x")"#),
            ("::ffff:1.2.3.256", "IPv4 field has value >255"),
            ("1:2", "address string too short"),
            (
                "12345::",
                r#"each group must have 4 or less digits (at "12345::")"#,
            ),
            (
                "2001:db8:::68",
                r#"each colon-separated field must have at least one digit (at ":68")"#,
            ),
            ("1::2::3", r#"multiple :: in address (at ":3")"#),
            (
                "1:2:3:4:5:6:7:8:9",
                r#"trailing garbage after address (at "9")"#,
            ),
            (
                "1::x",
                r#"each colon-separated field must have at least one digit (at "x")"#,
            ),
            ("::1%", "zone must be a non-empty string"),
        ] {
            let parse_error = format!("ParseAddr({}): {why}", quote(text));
            assert_eq!(fault(text), Some(parse_error));
        }
        for text in [
            "1.2.3.4",
            "::",
            "::1",
            "1::",
            "fe80::1%en0",
            "::ffff:1.2.3.4",
        ] {
            assert_eq!(fault(text), None, "{text}");
        }
    }

    #[test]
    fn a_bad_network_is_told_as_go_tells_it() {
        for (text, why) in [
            ("1.2.3.4", "no '/'"),
            ("1.2.3.4/", r#"bad bits after slash: """#),
            ("1.2.3.4/024", r#"bad bits after slash: "024""#),
            ("1.2.3.4/33", "prefix length out of range"),
            ("1.2.3/8", r#"ParseAddr("1.2.3"): IPv4 address too short"#),
            ("fe80::1%e/8", "IPv6 zones cannot be present in a prefix"),
        ] {
            let parse_error = format!("netip.ParsePrefix({}): {why}", quote(text));
            assert_eq!(network_fault(text), Some(parse_error));
        }
        assert_eq!(network_fault("2001:db8::/128"), None);
    }
}
