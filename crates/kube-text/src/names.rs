//! The name formats of Kubernetes: DNS labels and subdomains, qualified names, label values, and the names of ports, environment
//! variables and keys.
//!
//! Each function returns kube-apiserver's error messages, none for a valid name. The matchers are hand-written because they run for every
//! label of every write; each is one pass over the bytes.

use std::borrow::Cow;

use crate::validation::net::strict_ip;

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_ERROR: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const SUBDOMAIN_ERROR: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const SUBDOMAIN_UNDERSCORE: &str =
    r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
const SUBDOMAIN_UNDERSCORE_ERROR: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character";
const LABEL_1035: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const LABEL_1035_ERROR: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
const WILDCARD: &str = r"\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const WILDCARD_ERROR: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_KEY_ERROR: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const LABEL_VALUE_ERROR: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const CONFIG_KEY: &str = "[-._a-zA-Z0-9]+";
const CONFIG_KEY_ERROR: &str =
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
const ENV_NAME: &str = "[-._a-zA-Z][-._a-zA-Z0-9]*";
const ENV_NAME_ERROR: &str = "a valid environment variable name must consist of alphabetic characters, digits, '_', '-', or '.', and must not start with a digit";
const RELAXED_ENV_NAME_ERROR: &str = "a valid environment variable name must consist only of printable ASCII characters other than '='";
const C_IDENTIFIER: &str = "[A-Za-z_][A-Za-z0-9_]*";
const C_IDENTIFIER_ERROR: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'";
const HTTP_HEADER: &str = "[-A-Za-z0-9]+";
const HTTP_HEADER_ERROR: &str =
    "a valid HTTP header must consist of alphanumeric characters or '-'";
const PERCENT: &str = "[0-9]+%";
const PERCENT_ERROR: &str =
    "a valid percent string must be a numeric string followed by an ending '%'";
const HTTP_PATH: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";

/// The most bytes of a DNS subdomain.
pub const MAX_SUBDOMAIN: usize = 253;

/// The error messages of a check; empty if the value is valid.
pub type Sentences = Vec<String>;

/// Returns `must be no more than N characters`.
pub fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// Returns `must be no more than N bytes`.
pub fn too_many_bytes(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// Returns apimachinery's message about a regular expression, with examples.
pub fn mismatch(message: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{pattern}')");
    }
    let examples: Vec<String> = examples
        .iter()
        .map(|example| format!("'{example}', "))
        .collect();
    format!(
        "{message} (e.g. {}regex used for validation is '{pattern}')",
        examples.join(" or ")
    )
}

/// Returns `must be between LOW and HIGH, inclusive`.
pub fn outside(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

fn lower_or_digit(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Returns whether the first and last byte satisfy `edge`, and all others satisfy `edge` or are in `inner`.
fn bounded(value: &str, edge: fn(u8) -> bool, inner: &[u8]) -> bool {
    let bytes = value.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    edge(first)
        && edge(last)
        && bytes
            .iter()
            .all(|&byte| edge(byte) || inner.contains(&byte))
}

fn is_label(value: &str) -> bool {
    bounded(value, lower_or_digit, b"-")
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

/// Checks an RFC 1123 label.
pub fn dns_label(value: &str) -> Sentences {
    let mut sentences = Vec::new();
    if value.len() > 63 {
        sentences.push(too_long(63));
    }
    if !is_label(value) {
        // A valid subdomain has only its dots wrong, and a message of its own.
        sentences.push(if is_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            mismatch(LABEL_ERROR, LABEL, &["my-name", "123-abc"])
        });
    }
    sentences
}

/// Checks an RFC 1123 subdomain.
pub fn dns_subdomain(value: &str) -> Sentences {
    let mut sentences = Vec::new();
    if value.len() > 253 {
        sentences.push(too_long(253));
    }
    if !is_subdomain(value) {
        sentences.push(mismatch(SUBDOMAIN_ERROR, SUBDOMAIN, &["example.com"]));
    }
    sentences
}

/// Checks an RFC 1123 subdomain whose labels may contain underscores (DNS search paths).
pub fn dns_subdomain_with_underscore(value: &str) -> Sentences {
    let mut sentences = Vec::new();
    if value.len() > 253 {
        sentences.push(too_long(253));
    }
    if !value.split('.').all(|label| {
        bounded(
            label.strip_prefix('_').unwrap_or(label),
            lower_or_digit,
            b"-_",
        )
    }) {
        sentences.push(mismatch(
            SUBDOMAIN_UNDERSCORE_ERROR,
            SUBDOMAIN_UNDERSCORE,
            &["example.com"],
        ));
    }
    sentences
}

/// Checks an RFC 1035 label, which starts with a letter.
pub fn dns1035_label(value: &str) -> Sentences {
    let mut sentences = Vec::new();
    if value.len() > 63 {
        sentences.push(too_long(63));
    }
    if !(is_label(value) && value.starts_with(|c: char| c.is_ascii_lowercase())) {
        sentences.push(mismatch(
            LABEL_1035_ERROR,
            LABEL_1035,
            &["my-name", "abc-123"],
        ));
    }
    sentences
}

/// Checks a wildcard: `*.` and a subdomain.
pub fn wildcard_subdomain(value: &str) -> Sentences {
    let mut sentences = Vec::new();
    if value.len() > 253 {
        sentences.push(too_long(253));
    }
    if !value.strip_prefix("*.").is_some_and(is_subdomain) {
        sentences.push(mismatch(WILDCARD_ERROR, WILDCARD, &["*.example.com"]));
    }
    sentences
}

fn alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

/// Checks a label key, also called a qualified name: an optional subdomain and `/`, then a name.
pub fn qualified_name(value: &str) -> Sentences {
    let mut sentences = Vec::new();
    let (prefix, name) = match value.split_once('/') {
        None => (None, value),
        Some((_, rest)) if rest.contains('/') => {
            let text = mismatch(
                LABEL_KEY_ERROR,
                LABEL_KEY,
                &["MyName", "my.name", "123-abc"],
            );
            return vec![format!(
                "a valid label key {text} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some((prefix, name)) => (Some(prefix), name),
    };
    match prefix {
        None => {}
        Some("") => sentences.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => sentences.extend(
            dns_subdomain(prefix)
                .into_iter()
                .map(|text| format!("prefix part {text}")),
        ),
    }
    // apimachinery reports an empty name twice: as empty, and as not matching the pattern.
    if name.is_empty() {
        sentences.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        sentences.push(format!("name part {}", too_many_bytes(63)));
    }
    if !bounded(name, alphanumeric, b"-_.") {
        sentences.push(format!(
            "name part {}",
            mismatch(
                LABEL_KEY_ERROR,
                LABEL_KEY,
                &["MyName", "my.name", "123-abc"]
            )
        ));
    }
    sentences
}

/// Checks a qualified name that must have a prefix.
pub fn prefixed_name(value: &str) -> Sentences {
    let sentences = qualified_name(value);
    if sentences.is_empty() && !value.contains('/') {
        return vec!["must include a prefix (e.g. 'example.com/key')".to_owned()];
    }
    sentences
}

/// Checks a label's value.
pub fn label_value(value: &str) -> Sentences {
    let mut sentences = Vec::new();
    if value.len() > 63 {
        sentences.push(too_many_bytes(63));
    }
    if !value.is_empty() && !bounded(value, alphanumeric, b"-_.") {
        sentences.push(mismatch(
            LABEL_VALUE_ERROR,
            LABEL_VALUE,
            &["MyValue", "my_value", "12345"],
        ));
    }
    sentences
}

/// Checks a segment of a URL path (RBAC names).
pub fn path_segment(value: &str) -> Sentences {
    if value == "." || value == ".." {
        return vec![format!("may not be '{value}'")];
    }
    ['/', '%']
        .into_iter()
        .filter(|&c| value.contains(c))
        .map(|c| format!("may not contain '{c}'"))
        .collect()
}

/// The rule for `metadata.name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// An RFC 1123 subdomain of at most 253 characters.
    DnsSubdomain,
    /// As [`NameRule::DnsSubdomain`], for kinds of which kube-apiserver checks the name and not `generateName`.
    GeneratedSubdomain,
    /// An RFC 1123 label of at most 63 characters.
    DnsLabel,
    /// Any name that is one path segment (RBAC).
    PathSegment,
    /// An IP address in its canonical form (IPAddress).
    Address,
    /// Any name: the kind leaves the check to the rules for all kinds (CertificateSigningRequest).
    Any,
}

/// Checks a name by the kind's rule. `prefix` is set for `generateName`, which may end in a dash.
pub fn by_rule(rule: NameRule, value: &str, prefix: bool) -> Sentences {
    match rule {
        NameRule::PathSegment => return path_segment(value),
        NameRule::Address => return strict_ip(value),
        NameRule::Any => return Sentences::new(),
        NameRule::GeneratedSubdomain if prefix => return Sentences::new(),
        NameRule::GeneratedSubdomain | NameRule::DnsSubdomain | NameRule::DnsLabel => {}
    }
    let value = if prefix {
        masked(value)
    } else {
        Cow::Borrowed(value)
    };
    match rule {
        NameRule::DnsLabel => dns_label(&value),
        _ => dns_subdomain(&value),
    }
}

/// Returns a name prefix in the form in which it is checked as a name: a dash at its end is allowed.
pub fn masked(value: &str) -> Cow<'_, str> {
    if value.len() > 1 && value.ends_with('-') {
        // apimachinery replaces the last two bytes; a name that is not ASCII there is invalid anyway.
        format!("{}a", value.get(..value.len() - 2).unwrap_or(value)).into()
    } else {
        value.into()
    }
}

/// Checks a port number.
pub fn port_number(port: i64) -> Sentences {
    in_range(port, 1, 65535)
}

/// Checks that a number is within bounds.
pub fn in_range(value: i64, low: i64, high: i64) -> Sentences {
    if (low..=high).contains(&value) {
        Vec::new()
    } else {
        vec![outside(low, high)]
    }
}

/// Checks a port's name (an IANA service name).
pub fn port_name(value: &str) -> Sentences {
    let mut sentences = Vec::new();
    if value.len() > 15 {
        sentences.push(too_long(15));
    }
    if value.is_empty()
        || !value
            .bytes()
            .all(|byte| lower_or_digit(byte) || byte == b'-')
    {
        sentences.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !value.bytes().any(|byte| byte.is_ascii_lowercase()) {
        sentences.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        sentences.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        sentences.push("must not begin or end with a hyphen".to_owned());
    }
    sentences
}

fn dots(value: &str) -> Option<String> {
    match value {
        "." => Some("must not be '.'".to_owned()),
        ".." => Some("must not be '..'".to_owned()),
        value if value.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

/// Checks the name of an environment variable by the strict rule: letters, digits, `-`, `.` and `_`, with no digit at the start.
pub fn env_name(value: &str) -> Sentences {
    let mut sentences = Vec::new();
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if value.is_empty()
        || !value.bytes().all(good)
        || value.starts_with(|c: char| c.is_ascii_digit())
    {
        sentences.push(mismatch(
            ENV_NAME_ERROR,
            ENV_NAME,
            &["my.env-name", "MY_ENV.NAME", "MyEnvName1"],
        ));
    }
    sentences.extend(dots(value));
    sentences
}

/// Checks the name of an environment variable by the relaxed rule, which holds for pods since Kubernetes 1.34: all printable ASCII
/// characters except `=`.
pub fn relaxed_env_name(value: &str) -> Sentences {
    let mut sentences = Vec::new();
    if value.is_empty() {
        sentences.push("environment variable name must be non-empty".to_owned());
    }
    if !value
        .bytes()
        .all(|byte| (0x20..0x7f).contains(&byte) && byte != b'=')
    {
        sentences.push(RELAXED_ENV_NAME_ERROR.to_owned());
    }
    sentences
}

/// Checks a key of a ConfigMap or Secret.
pub fn config_key(value: &str) -> Sentences {
    let mut sentences = Vec::new();
    if value.len() > 253 {
        sentences.push(too_long(253));
    }
    if value.is_empty()
        || !value
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    {
        sentences.push(mismatch(
            CONFIG_KEY_ERROR,
            CONFIG_KEY,
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    sentences.extend(dots(value));
    sentences
}

/// Checks a C identifier.
pub fn c_identifier(value: &str) -> Sentences {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if value.is_empty()
        || !value.bytes().all(good)
        || value.starts_with(|c: char| c.is_ascii_digit())
    {
        return vec![mismatch(
            C_IDENTIFIER_ERROR,
            C_IDENTIFIER,
            &["my_name", "MY_NAME", "MyName"],
        )];
    }
    Vec::new()
}

/// Checks the name of an HTTP header.
pub fn http_header(value: &str) -> Sentences {
    if value.is_empty()
        || !value
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    {
        return vec![mismatch(HTTP_HEADER_ERROR, HTTP_HEADER, &["X-Header-Name"])];
    }
    Vec::new()
}

/// Checks a percentage such as `25%`.
pub fn percent(value: &str) -> Sentences {
    let number = value.strip_suffix('%').unwrap_or("");
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return vec![mismatch(PERCENT_ERROR, PERCENT, &["1%", "93%"])];
    }
    Vec::new()
}

/// Checks a user or group ID.
pub fn unix_id(value: i64) -> Sentences {
    in_range(value, 0, i64::from(i32::MAX))
}

/// Checks that a text has only the characters of an HTTP path.
pub fn http_path(value: &str) -> Sentences {
    if value.is_empty()
        || !value
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte))
    {
        return vec![mismatch("Invalid path", HTTP_PATH, &[])];
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_with_dots_is_told_apart_from_nonsense() {
        assert!(dns_label("web-1").is_empty());
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert_eq!(
            dns_label("A_b"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
    }

    #[test]
    fn qualified_names_have_at_most_one_prefix() {
        assert!(qualified_name("example.com/My.Name").is_empty());
        assert_eq!(qualified_name("/x"), ["prefix part must be non-empty"]);
        assert_eq!(qualified_name("a/").len(), 2);
        assert!(qualified_name("a/b/c")[0].starts_with("a valid label key must consist of"));
    }

    #[test]
    fn a_generate_name_may_end_in_a_dash() {
        assert!(by_rule(NameRule::DnsSubdomain, "web-", true).is_empty());
        assert!(!by_rule(NameRule::DnsSubdomain, "web-", false).is_empty());
        assert!(by_rule(NameRule::GeneratedSubdomain, "A..", true).is_empty());
        assert!(!by_rule(NameRule::GeneratedSubdomain, "A..", false).is_empty());
        assert_eq!(
            by_rule(NameRule::PathSegment, "a/b%", false),
            ["may not contain '/'", "may not contain '%'"]
        );
    }

    #[test]
    fn port_names_need_a_letter() {
        assert!(port_name("http-2").is_empty());
        assert_eq!(port_name("80"), ["must contain at least one letter (a-z)"]);
        assert_eq!(port_name("A B").len(), 2);
    }
}
