//! Parses URLs like Go's `net/url`: only the scheme is normalised, and errors have Go's messages.

mod error;

use std::collections::BTreeMap;

pub use self::error::{UrlError, UrlFault};
use super::address;

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The scheme in lower case; empty for a path.
    pub scheme: String,
    /// The user information before the `@`, as written.
    pub user: Option<String>,
    /// The host with its port, decoded.
    pub host: String,
    /// The query as written.
    pub query: String,
    /// The fragment as written.
    pub fragment: String,
    path: String,
}

/// A part of a URL, which determines the characters that may stand there unescaped.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Host,
    Zone,
    User,
    Path,
    Query,
    Fragment,
}

impl Url {
    /// Parses a URL or a path like `url.Parse`.
    ///
    /// # Errors
    /// The text is not a URL.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        let mut url = Url::read(rest, false).map_err(|fault| fault.of(rest))?;
        unescaped(fragment, Part::Fragment).map_err(|fault| fault.of(text))?;
        url.fragment = fragment.to_owned();
        Ok(url)
    }

    /// Checks that a text is an absolute URL or path, like `url.ParseRequestURI`.
    ///
    /// # Errors
    /// The text is neither.
    pub fn check_request(text: &str) -> Result<(), UrlError> {
        Url::read(text, true).map_err(|fault| fault.of(text))?;
        Ok(())
    }

    fn read(text: &str, via_request: bool) -> Result<Url, UrlFault> {
        if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return Err(UrlFault::Control);
        }
        if text.is_empty() && via_request {
            return Err(UrlFault::Empty);
        }
        let mut url = Url {
            scheme: String::new(),
            user: None,
            host: String::new(),
            query: String::new(),
            fragment: String::new(),
            path: String::new(),
        };
        // The target of the request `OPTIONS *`.
        if text == "*" {
            url.path = text.to_owned();
            return Ok(url);
        }
        let (scheme, rest) = scheme(text)?;
        url.scheme = scheme.to_ascii_lowercase();
        let (mut rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        url.query = query.to_owned();
        if !rest.starts_with('/') {
            // The rest after such a scheme is opaque.
            if !url.scheme.is_empty() {
                return Ok(url);
            }
            if via_request {
                return Err(UrlFault::NotAbsolute);
            }
            // Such a segment would look like a scheme (RFC 3986, section 4.2).
            if rest
                .split('/')
                .next()
                .is_some_and(|first| first.contains(':'))
            {
                return Err(UrlFault::ColonInFirstSegment);
            }
        }
        // A path such as `///x` has no host, and `url.ParseRequestURI` takes `//host/x` as a path.
        let may_have_host = !url.scheme.is_empty() || !(via_request || rest.starts_with("///"));
        if let Some(authority) = rest.strip_prefix("//").filter(|_| may_have_host) {
            let end = authority.find('/').unwrap_or(authority.len());
            rest = &authority[end..];
            // The last one separates, because Go allows others in the user.
            let (user, host) = match authority[..end].rsplit_once('@') {
                Some((user, host)) => (Some(user), host),
                None => (None, &authority[..end]),
            };
            url.host = host_of(host)?;
            if let Some(user) = user {
                check_user(user)?;
                url.user = Some(user.to_owned());
            }
        }
        unescaped(rest, Part::Path)?;
        url.path = rest.to_owned();
        Ok(url)
    }

    /// Returns the host, without brackets, and the port.
    pub fn host_and_port(&self) -> (&str, &str) {
        let colon = self.host.rfind(':').filter(|at| is_port(&self.host[*at..]));
        let (host, port) = match colon {
            Some(at) => (&self.host[..at], &self.host[at + 1..]),
            None => (self.host.as_str(), ""),
        };
        let inside = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        (inside.unwrap_or(host), port)
    }

    /// Returns the path as it is sent: as written if that is valid, else escaped.
    pub fn escaped_path(&self) -> String {
        let may_stand =
            |byte: u8| b"!$&'()*+,;=:@[]%".contains(&byte) || !must_be_escaped(byte, Part::Path);
        if self.path.bytes().all(may_stand) {
            return self.path.clone();
        }
        let plain = unescaped(&self.path, Part::Path).unwrap_or_default();
        let mut escaped = String::with_capacity(plain.len() + 8);
        for byte in plain {
            if must_be_escaped(byte, Part::Path) {
                escaped.push_str(&format!("%{byte:02X}"))
            } else {
                escaped.push(char::from(byte))
            }
        }
        escaped
    }

    /// Resolves a reference relative to this URL, like Go's `URL.Parse`.
    ///
    /// # Errors
    /// The reference is not a URL.
    pub fn resolve(&self, reference: &str) -> Result<Url, UrlError> {
        let mut resolved = Url::parse(reference)?;
        if !resolved.scheme.is_empty() || !resolved.host.is_empty() || resolved.user.is_some() {
            if resolved.scheme.is_empty() {
                resolved.scheme.clone_from(&self.scheme);
            }
            resolved.path = without_dots(&resolved.escaped_path());
            return Ok(resolved);
        }
        // An empty reference means this document, with its query.
        if resolved.path.is_empty() && resolved.query.is_empty() {
            resolved.query.clone_from(&self.query);
            if resolved.fragment.is_empty() {
                resolved.fragment.clone_from(&self.fragment);
            }
        }
        let (base, path) = (self.escaped_path(), resolved.escaped_path());
        resolved.path = match path.starts_with('/') {
            _ if path.is_empty() => without_dots(&base),
            true => without_dots(&path),
            false => {
                without_dots(&(base[..base.rfind('/').map_or(0, |at| at + 1)].to_owned() + &path))
            }
        };
        resolved.scheme.clone_from(&self.scheme);
        resolved.host.clone_from(&self.host);
        resolved.user.clone_from(&self.user);
        Ok(resolved)
    }

    /// Returns the URL without its password, for error messages.
    pub fn redacted(&self) -> String {
        let user = self.user.as_deref().map(|user| match user.split_once(':') {
            Some((name, _)) => format!("{name}:***@"),
            None => format!("{user}@"),
        });
        let mut text = self.requested(&user.unwrap_or_default());
        if !self.fragment.is_empty() {
            text.push('#');
            text.push_str(&self.fragment);
        }
        text
    }

    /// Returns the URL without its fragment, with `user` in front of the host.
    pub fn requested(&self, user: &str) -> String {
        let mut text = String::new();
        if !self.scheme.is_empty() {
            text.push_str(&self.scheme);
            text.push(':');
        }
        // Like Go, write slashes after a scheme even if there is only a path, as in `file:///x`.
        let has_authority = !self.host.is_empty() || !user.is_empty();
        if has_authority || !(self.scheme.is_empty() || self.path.is_empty()) {
            text.push_str("//");
            text.push_str(user);
            text.push_str(&self.host);
        }
        text.push_str(&self.escaped_path());
        if !self.query.is_empty() {
            text.push('?');
            text.push_str(&self.query);
        }
        text
    }

    /// Returns the values of the query by name; invalid pairs are left out.
    pub fn query_values(&self) -> BTreeMap<String, Vec<String>> {
        let mut values = BTreeMap::<String, Vec<String>>::new();
        let text = |part: &str| {
            let read = unescaped(part, Part::Query).ok()?;
            Some(String::from_utf8_lossy(&read).into_owned())
        };
        let pairs = self.query.split('&');
        // Semicolons once separated pairs too; Go refuses such pairs because others read them differently.
        for pair in pairs.filter(|pair| !(pair.is_empty() || pair.contains(';'))) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if let (Some(name), Some(value)) = (text(name), text(value)) {
                values.entry(name).or_default().push(value);
            }
        }
        values
    }
}

/// Returns a path with its `.` and `..` segments resolved.
fn without_dots(path: &str) -> String {
    if path.is_empty() {
        return String::new();
    }
    let mut walked: Vec<&str> = Vec::new();
    let mut segments = path.trim_start_matches('/').split('/').peekable();
    // Go keeps empty segments, except those at the start of a path that has no others.
    let leading = path.len() - path.trim_start_matches('/').len();
    walked.extend(std::iter::repeat_n("", leading.saturating_sub(1)));
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    walked.pop();
                }
                // A path that ends in a dot segment is a directory.
                if is_last {
                    walked.push("");
                }
            }
            segment => walked.push(segment),
        }
    }
    let text = walked.join("/");
    format!("/{}", text.trim_start_matches('/'))
}

/// Splits off the text before the first colon, if it can be a scheme.
fn scheme(text: &str) -> Result<(&str, &str), UrlFault> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err(UrlFault::NoScheme),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

fn host_of(host: &str) -> Result<String, UrlFault> {
    let check_port = |port: &str| {
        if is_port(port) {
            Ok(())
        } else {
            Err(UrlFault::Port(port.to_owned()))
        }
    };
    let decoded = |text: &str, part| {
        let bytes = unescaped(text, part)?;
        Ok::<_, UrlFault>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let Some(inside) = host.strip_prefix('[') else {
        check_port(host.find(':').map_or("", |colon| &host[colon..]))?;
        return decoded(host, Part::Host);
    };
    let (inside, port) = inside.rsplit_once(']').ok_or(UrlFault::OpenBracket)?;
    check_port(port)?;
    // An escaped percent sign separates an IPv6 address from its zone (RFC 6874).
    let address = match inside.find("%25") {
        Some(zone) => {
            decoded(&inside[..zone], Part::Host)? + &decoded(&inside[zone..], Part::Zone)?
        }
        None => decoded(inside, Part::Host)?,
    };
    match address::fault(&address) {
        Some(fault) => Err(UrlFault::Address(fault)),
        None if !address.contains(':') => Err(UrlFault::NotIpv6),
        None => Ok(format!("[{address}]{port}")),
    }
}

fn is_port(text: &str) -> bool {
    let digits = text.strip_prefix(':');
    text.is_empty() || digits.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
}

fn check_user(user: &str) -> Result<(), UrlFault> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if !user.chars().all(is_fine) {
        return Err(UrlFault::User);
    }
    unescaped(user, Part::User).map(|_| ())
}

/// Decodes the escapes of a path segment like Go's `url.PathUnescape`.
///
/// # Errors
/// An escape is incomplete or has other digits than hexadecimal ones, or the bytes are not UTF-8.
pub fn path_unescape(text: &str) -> Result<String, UrlFault> {
    let bytes = unescaped(text, Part::Path)?;
    String::from_utf8(bytes).map_err(|_| UrlFault::NotUtf8)
}

fn unescaped(text: &str, part: Part) -> Result<Vec<u8>, UrlFault> {
    let is_host = matches!(part, Part::Host | Part::Zone);
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'%' => {
                let end = text.len().min(at + 3);
                let escape = text.get(at..end).unwrap_or("%");
                let invalid = || Err(UrlFault::Escape(escape.to_owned()));
                let digits = escape
                    .get(1..3)
                    .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
                let Some(value) = digits.and_then(|d| u8::from_str_radix(d, 16).ok()) else {
                    return invalid();
                };
                let is_percent = value == b'%';
                // In a host, only a percent sign and bytes beyond ASCII may be escaped.
                let is_refused = match part {
                    Part::Host => value < 0x80 && !is_percent,
                    Part::Zone => {
                        !is_percent && value != b' ' && must_be_escaped(value, Part::Host)
                    }
                    _ => false,
                };
                if is_refused {
                    return invalid();
                }
                plain.push(value);
                bytes.nth(1);
            }
            b'+' if part == Part::Query => plain.push(b' '),
            byte if is_host && byte < 0x80 && must_be_escaped(byte, part) => {
                return Err(UrlFault::HostCharacter(char::from(byte)));
            }
            byte => plain.push(byte),
        }
    }
    Ok(plain)
}

/// Returns whether a byte must be escaped in that part.
fn must_be_escaped(byte: u8, part: Part) -> bool {
    match byte {
        byte if byte.is_ascii_alphanumeric() => false,
        b'-' | b'_' | b'.' | b'~' => false,
        byte if matches!(part, Part::Host | Part::Zone) => !b"!$&'()*+,;=:[]<>\"".contains(&byte),
        b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'?' | b'@' => match part {
            Part::Path => byte == b'?',
            Part::User => b"@/?:".contains(&byte),
            Part::Fragment => false,
            _ => true,
        },
        b'!' | b'(' | b')' | b'*' => part != Part::Fragment,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golang::quote;

    #[test]
    fn escapes_of_a_path_segment_are_decoded_and_a_plus_sign_is_none() {
        assert_eq!(path_unescape("a%2Cb+c%c3%a9"), Ok("a,b+cé".to_owned()));
        let broken = |text: &str| path_unescape(text).expect_err("it is broken").to_string();
        assert_eq!(broken("a%2"), r#"invalid URL escape "%2""#);
        assert_eq!(broken("a%+1"), r#"invalid URL escape "%+1""#);
        assert_eq!(broken("%ff"), "the decoded bytes are not UTF-8");
    }

    #[test]
    fn a_url_keeps_what_was_written() {
        let url = Url::parse("HTTPS://u:p@Example.com:443/a b/%2f%41?k=1&k=2+3&x;y&=e&%zz#f");
        let url = url.expect("it is one");
        assert_eq!(
            (url.scheme.as_str(), url.host.as_str()),
            ("https", "Example.com:443")
        );
        assert_eq!(url.host_and_port(), ("Example.com", "443"));
        assert_eq!(url.user.as_deref(), Some("u:p"));
        assert_eq!(url.escaped_path(), "/a%20b//A");
        let values = url.query_values();
        assert_eq!(values["k"], ["1", "2 3"]);
        assert_eq!(values[""], ["e"]);
        assert_eq!(values.len(), 2);
        let url = Url::parse("https://[fe80::1%25en0]:80").expect("it is one");
        assert_eq!(url.host, "[fe80::1%en0]:80");
        assert_eq!(url.host_and_port(), ("fe80::1%en0", "80"));
        assert_eq!(url.escaped_path(), "");
        let url = Url::parse("/a%2fb").expect("it is one");
        assert_eq!(url.escaped_path(), "/a%2fb");
    }

    #[test]
    fn a_reference_leads_on_from_where_it_stands() {
        let base = Url::parse("https://u:p@h:8443/a/b?x=1").expect("it is a URL");
        for (reference, wanted) in [
            ("c", "https://u:***@h:8443/a/c"),
            ("/c?y=2", "https://u:***@h:8443/c?y=2"),
            ("../../c/./d/..", "https://u:***@h:8443/c/"),
            ("?y=2", "https://u:***@h:8443/a/b?y=2"),
            ("", "https://u:***@h:8443/a/b?x=1"),
            ("//other/c", "https://other/c"),
            ("HTTP://other", "http://other"),
            ("http://other/%7Ea/é", "http://other/~a/%C3%A9"),
        ] {
            let resolved = base.resolve(reference).expect(reference);
            assert_eq!(resolved.redacted(), wanted, "{reference}");
        }
        let why = base
            .resolve("http://[::1/")
            .expect_err("its host is not closed");
        assert_eq!(
            why.to_string(),
            r#"parse "http://[::1/": missing ']' in host"#
        );
    }

    #[test]
    fn a_bad_url_is_told_as_go_tells_it() {
        for (text, why) in [
            ("", "empty url"),
            ("../x", "invalid URI for request"),
            ("a b", "invalid URI for request"),
            (":x", "missing protocol scheme"),
            ("http://a:b/", r#"invalid port ":b" after host"#),
            ("http://a:1:2/", r#"invalid port ":1:2" after host"#),
            ("http://[::1/", "missing ']' in host"),
            ("http://[1.2.3.4]/", "invalid IP-literal"),
            (
                "http://[x]/",
                r#"invalid host: ParseAddr("x"): unable to parse IP"#,
            ),
            ("http://a b/", r#"invalid character " " in host name"#),
            ("http://%41/", r#"invalid URL escape "%41""#),
            ("http://a/%zz", r#"invalid URL escape "%zz""#),
            ("http://a/%2", r#"invalid URL escape "%2""#),
            ("http://<u>@a/", "net/url: invalid userinfo"),
            (
                "http://a/\u{1}",
                "net/url: invalid control character in URL",
            ),
        ] {
            let refused = Url::check_request(text).map_err(|error| error.to_string());
            let parse_error = format!("parse {}: {why}", quote(text));
            assert_eq!(refused, Err(parse_error), "{text}");
        }
        assert_eq!(Url::check_request("mailto:a@b"), Ok(()));
        assert_eq!(
            Url::parse("a:b/c"),
            Url::parse("A:b/c"),
            "the scheme is in small letters"
        );
        assert_eq!(
            Url::parse("1a:b/c").map_err(|error| error.to_string()),
            Err(r#"parse "1a:b/c": first path segment in URL cannot contain colon"#.to_owned())
        );
    }
}
