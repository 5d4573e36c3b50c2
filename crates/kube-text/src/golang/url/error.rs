//! The reasons why a text is not a URL, with the messages of Go's `net/url`.

use crate::golang::quote;

/// The reason why a text is not a URL, with Go's message, for example `parse "http://a:b": invalid port ":b" after host`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parse {}: {fault}", quote(.text))]
pub struct UrlError {
    /// The text without its fragment, unless the fragment is what is wrong.
    pub text: String,
    /// What is wrong.
    pub fault: UrlFault,
}

/// What is wrong with a URL or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlFault {
    /// The text has a control character.
    #[error("net/url: invalid control character in URL")]
    Control,
    /// A request has no URL.
    #[error("empty url")]
    Empty,
    /// A request has neither an absolute URL nor an absolute path.
    #[error("invalid URI for request")]
    NotAbsolute,
    /// The first segment of a relative path would look like a scheme.
    #[error("first path segment in URL cannot contain colon")]
    ColonInFirstSegment,
    /// The text begins with a colon.
    #[error("missing protocol scheme")]
    NoScheme,
    /// What follows the host is not a colon and digits.
    #[error("invalid port {} after host", quote(.0))]
    Port(String),
    /// The bracket before an IPv6 address is not closed.
    #[error("missing ']' in host")]
    OpenBracket,
    /// The text within brackets is not an address; the error of `netip.ParseAddr` says why.
    #[error("invalid host: {0}")]
    Address(String),
    /// The address within brackets is not one of IPv6.
    #[error("invalid IP-literal")]
    NotIpv6,
    /// The user information has a character that must be escaped.
    #[error("net/url: invalid userinfo")]
    User,
    /// A percent sign begins no escape, or one that may not stand there.
    #[error("invalid URL escape {}", quote(.0))]
    Escape(String),
    /// The host has a character that no host has.
    #[error("invalid character {} in host name", quote(.0.encode_utf8(&mut [0; 4])))]
    HostCharacter(char),
    /// The bytes behind the escapes are not text.
    #[error("the decoded bytes are not UTF-8")]
    NotUtf8,
}

impl UrlFault {
    pub(super) fn of(self, text: &str) -> UrlError {
        UrlError {
            text: text.to_owned(),
            fault: self,
        }
    }
}
