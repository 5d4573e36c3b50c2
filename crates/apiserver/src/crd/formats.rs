//! String formats that custom resource schemas may ask for, as `k8s.io/kube-openapi/pkg/validation/strfmt` knows them.
//!
//! A format that is not known here is not checked, as upstream does not check it.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::LazyLock,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use regex::Regex;

static HOSTNAME: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"^[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?)*$",
    )
});
static UUID: LazyLock<Regex> = LazyLock::new(|| {
    compiled(r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$")
});
static EMAIL: LazyLock<Regex> = LazyLock::new(|| compiled(r"^[^@\s<>]+@[^@\s<>]+$"));
static DURATION: LazyLock<Regex> =
    LazyLock::new(|| compiled(r"^[-+]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$"));
static LONG_DURATION: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"(?i)([0-9]+)\s*(ns|nanos?|nanoseconds?|us|µs|micros?|microseconds?|ms|millis?|milliseconds?|s|sec|seconds?|m|min|minutes?|h|hr|hours?|d|days?|w|wk|weeks?)\b",
    )
});
static HEX_COLOR: LazyLock<Regex> =
    LazyLock::new(|| compiled("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"));
static MAC: LazyLock<Regex> =
    LazyLock::new(|| compiled(r"^([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}$"));

fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is a constant")
}

/// Whether a text has a format.
pub(crate) fn holds(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "datetime" => {
            text.len() >= 20
                && matches!(text.as_bytes()[10], b'T' | b't' | b' ')
                && text.parse::<jiff::Timestamp>().is_ok()
        }
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "duration" => text == "0" || DURATION.is_match(text) || LONG_DURATION.is_match(text),
        "uri" => {
            text.starts_with('/')
                || text
                    .split_once(':')
                    .is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty())
        }
        "email" => EMAIL.is_match(text),
        "hostname" => is_hostname(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => MAC.is_match(text),
        "uuid" => UUID.is_match(text),
        "uuid3" | "uuid4" | "uuid5" => {
            let version = text.replace('-', "").as_bytes().get(12).copied();
            UUID.is_match(text) && version == format.as_bytes().last().copied()
        }
        "hexcolor" => HEX_COLOR.is_match(text),
        "byte" => !text.is_empty() && STANDARD.decode(text).is_ok(),
        "password" => true,
        _ => true,
    }
}

/// Names with a dot must end in a label of at least two letters.
fn is_hostname(text: &str) -> bool {
    let last = text.rsplit('.').next().unwrap_or_default();
    HOSTNAME.is_match(text)
        && (!text.contains('.')
            || (last.len() >= 2 && last.chars().all(|c| c.is_ascii_alphabetic())))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let Ok(bits) = bits.parse::<u8>() else {
        return false;
    };
    (address.parse::<Ipv4Addr>().is_ok() && bits <= 32)
        || (address.parse::<Ipv6Addr>().is_ok() && bits <= 128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_accept_and_refuse_what_upstream_does() {
        for (format, good, bad) in [
            ("date-time", "2024-01-01T00:00:00Z", "nope"),
            ("duration", "5m", "x"),
            ("hostname", "a.example", "a.b"),
            ("ipv4", "1.2.3.4", "z"),
            ("byte", "AA==", "*"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
        ] {
            assert!(holds(format, good), "{format} {good}");
            assert!(!holds(format, bad), "{format} {bad}");
        }
        assert!(holds("no-such-format", "anything"));
    }
}
