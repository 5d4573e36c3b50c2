//! Checks the string formats that custom resource schemas may name (source: `k8s.io/kube-openapi/pkg/validation/strfmt`).
//!
//! As in kube-apiserver, a format that is not known is not checked.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::LazyLock,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use regex::Regex;

use crate::{golang::url::Url, names};

/// The formats that are checked, without dashes.
const KNOWN: &[&str] = &[
    "bsonobjectid",
    "byte",
    "cidr",
    "creditcard",
    "date",
    "datetime",
    "duration",
    "email",
    "hexcolor",
    "hostname",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "k8slongname",
    "k8sshortname",
    "mac",
    "password",
    "rgbcolor",
    "ssn",
    "uri",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
];

static HOSTNAME: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z0-9\p{S}\p{L}])(-?[a-zA-Z0-9\p{S}\p{L}]){1,62})$",
    )
});
static UUID: LazyLock<Regex> = LazyLock::new(|| {
    compiled(r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$")
});
/// An address `local@domain`, alone or in angle brackets after a display name, as Go's `net/mail` parses it.
static EMAIL: LazyLock<Regex> = LazyLock::new(|| {
    const ATOM: &str = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\x{80}-\x{10FFFF}-]+";
    const QUOTED: &str = r#""(?:[^"\\\x00-\x08\x0A-\x1F\x7F]|\\[\x20-\x7E\t])*""#;
    let address =
        format!(r"(?:{ATOM}(?:\.{ATOM})*|{QUOTED}) *@ *(?:{ATOM}(?:\.{ATOM})*|\[[0-9A-Fa-f.:]+\])");
    let words = format!(r"(?:(?:{ATOM}\.?|{QUOTED})[ \t]*)*");
    compiled(&format!(r"^[ \t]*(?:{address}|{words}<{address}>)[ \t]*$"))
});
static DURATION: LazyLock<Regex> =
    LazyLock::new(|| compiled(r"^[-+]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$"));
static LONG_DURATION: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"(?i)([0-9]+)\s*(ns|nanos?|nanoseconds?|us|µs|micros?|microseconds?|ms|millis?|milliseconds?|s|sec|seconds?|m|min|minutes?|h|hr|hours?|d|days?|w|wk|weeks?)\b",
    )
});
static HEX_COLOR: LazyLock<Regex> =
    LazyLock::new(|| compiled("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"));
static RGB_COLOR: LazyLock<Regex> = LazyLock::new(|| {
    let part = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    let spaced = format!(r"\s*{part}\s*");
    compiled(&format!(r"^rgb\({spaced},{spaced},{spaced}\)$"))
});
static SOCIAL_SECURITY: LazyLock<Regex> =
    LazyLock::new(|| compiled(r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"));
static CREDIT_CARD: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$",
    )
});
static MAC: LazyLock<Regex> = LazyLock::new(|| {
    let of_length = |more: u8| {
        let pairs = format!("([0-9a-fA-F]{{2}}:){{{more}}}[0-9a-fA-F]{{2}}");
        let dashes = pairs.replace(':', "-");
        let quads = format!(r"([0-9a-fA-F]{{4}}\.){{{}}}[0-9a-fA-F]{{4}}", more / 2);
        format!("{pairs}|{dashes}|{quads}")
    };
    compiled(&format!(
        "^({}|{}|{})$",
        of_length(5),
        of_length(7),
        of_length(19)
    ))
});

fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is a constant")
}

/// Returns whether values are checked against the format.
pub fn is_known(format: &str) -> bool {
    KNOWN.contains(&format.replace('-', "").as_str())
}

/// Returns whether kube-apiserver knows a format for values of an OpenAPI type; it warns of all others and does not check them.
pub fn is_known_of(kind: &str, format: &str) -> bool {
    match kind {
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        "" | "string" => is_known(format),
        _ => false,
    }
}

/// Returns whether a string is valid in a format.
pub fn holds(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "datetime" => {
            // jiff also parses shorter forms, which kube-openapi refuses.
            text.len() >= 20
                && matches!(text.as_bytes()[10], b'T' | b't')
                && text.parse::<jiff::Timestamp>().is_ok()
        }
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "duration" => text == "0" || DURATION.is_match(text) || LONG_DURATION.is_match(text),
        "uri" => Url::check_request(text).is_ok(),
        "email" => EMAIL.is_match(text),
        "hostname" => is_hostname(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => MAC.is_match(text),
        "uuid" => UUID.is_match(text),
        kind @ ("uuid3" | "uuid4" | "uuid5") => is_uuid_of(kind, text),
        "hexcolor" => HEX_COLOR.is_match(text),
        "rgbcolor" => RGB_COLOR.is_match(text),
        "byte" => !text.is_empty() && STANDARD.decode(text).is_ok(),
        "ssn" => SOCIAL_SECURITY.is_match(text),
        "creditcard" => is_credit_card(text),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
        "k8sshortname" => names::dns_label(text).is_empty(),
        "k8slongname" => names::dns_subdomain(text).is_empty(),
        // `password` has no rules.
        _ => true,
    }
}

fn is_hostname(text: &str) -> bool {
    text.len() <= 255 && text.split('.').all(|label| label.len() <= 63) && HOSTNAME.is_match(text)
}

/// Returns whether a text is a UUID of the version that `kind` names; for versions 4 and 5 the variant is checked too.
fn is_uuid_of(kind: &str, text: &str) -> bool {
    let digits = text.replace('-', "");
    let digit = |at: usize| digits.as_bytes().get(at).map(u8::to_ascii_lowercase);
    UUID.is_match(text)
        && digit(12) == kind.bytes().last()
        && (kind == "uuid3" || digit(16).is_some_and(|digit| b"89ab".contains(&digit)))
}

/// Returns whether a text has the digits of a credit card number, the last of which is the check digit of the others (Luhn).
fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let sum: u32 = digits
        .bytes()
        .rev()
        .map(|digit| u32::from(digit - b'0'))
        .enumerate()
        .map(|(place, digit)| match (place % 2, digit * 2) {
            (0, _) => digit,
            (_, twice) if twice >= 10 => twice - 9,
            (_, twice) => twice,
        })
        .sum();
    CREDIT_CARD.is_match(&digits) && sum.is_multiple_of(10)
}

fn without_separators(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_whitespace() && *c != '-')
        .collect()
}

fn is_isbn10(text: &str) -> bool {
    let text = without_separators(text);
    let Some((last, first)) = text
        .as_bytes()
        .split_last()
        .filter(|(_, first)| first.len() == 9)
    else {
        return false;
    };
    let check = match last {
        b'X' => 10,
        digit if digit.is_ascii_digit() => u32::from(digit - b'0'),
        _ => return false,
    };
    // Each digit is weighted by its place, and the sum is a multiple of 11; `X` stands for 10.
    let weighted = first
        .iter()
        .zip(1..)
        .map(|(digit, weight)| u32::from(digit.wrapping_sub(b'0')) * weight);
    first.iter().all(u8::is_ascii_digit) && (weighted.sum::<u32>() + 10 * check).is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let text = without_separators(text);
    let digits = text.bytes();
    // The weights 1 and 3 alternate, and the sum is a multiple of 10.
    let sum: u32 = digits
        .zip([1, 3].into_iter().cycle())
        .map(|(digit, weight)| u32::from(digit.wrapping_sub(b'0')) * weight)
        .sum();
    text.len() == 13 && text.bytes().all(|b| b.is_ascii_digit()) && sum.is_multiple_of(10)
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
            ("hostname", "localhost", "-a"),
            (
                "uuid3",
                "123e4567-e89b-32d3-7456-426614174000",
                "123e4567-e89b-42d3-a456-426614174000",
            ),
            (
                "uuid4",
                "123E4567-E89B-42D3-A456-426614174000",
                "123e4567-e89b-42d3-7456-426614174000",
            ),
            (
                "uuid5",
                "123e4567e89b52d38456426614174000",
                "123e4567e89b42d38456426614174000",
            ),
            ("isbn", "978-0321751041", "978-0321751042"),
            ("isbn10", "0321751043", "0321751044"),
            ("isbn13", "978-0321751041", "0321751043"),
            ("creditcard", "4111-1111-1111-1111", "4111-1111-1111-1112"),
            ("ssn", "111-11-1111", "111-111-1111"),
            ("rgbcolor", "rgb(0, 100,255)", "rgb(0,100,256)"),
            ("hexcolor", "#fff", "#ffff"),
            ("bson-object-id", "507f1f77bcf86cd799439011", "507f1f77"),
            ("mac", "01:02:03:04:05:06", "01:02:03:04:05"),
            ("email", "a.b+c@d", "a..b@d"),
            (
                "email",
                "\"Joe B\" <joe@example.com>",
                "Joe B joe@example.com",
            ),
            ("email", "\"a b\"@[1.2.3.4]", "a b@c"),
            ("email", "Jöe <jö@ä.de>", "<a@b> c"),
            ("uri", "mailto:a@b", "../a"),
            ("uri", "/a b", "http://a:b/"),
            ("mac", "0102.0304.0506.0708", "0102:0304:0506"),
            ("k8s-short-name", "a-b", "a.b"),
            ("k8s-long-name", "a.b", "A"),
        ] {
            assert!(holds(format, good), "{format} {good}");
            assert!(!holds(format, bad), "{format} {bad}");
        }
        assert!(holds("no-such-format", "anything") && !is_known("no-such-format"));
    }
}
