//! The query string, parsed as Go parses `ListOptions`, `CreateOptions` and the like.

use std::time::Duration;

use mullion_kube_text::{
    golang::{duration, integer},
    status::Status,
};

/// The decoded key-value pairs of a query string.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a query string; percent escapes and plus signs are decoded.
    pub(crate) fn parse(query: Option<&str>) -> Self {
        let pairs = query
            .unwrap_or_default()
            .split('&')
            // Go skips a pair with a semicolon, which used to separate pairs too.
            .filter(|pair| !pair.is_empty() && !pair.contains(';'));
        Query(
            pairs
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(key), decode(value))
                })
                .collect(),
        )
    }

    /// Returns the first value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    /// Returns the first value of a key, unless it is empty.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.get(key).filter(|value| !value.is_empty())
    }

    /// Returns all values of a key.
    pub(crate) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    /// Parses a boolean as Kubernetes does: every value but `false` and `0` is true, also an empty one.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.get(key)
            .map(|value| !value.eq_ignore_ascii_case("false") && value != "0")
    }

    /// Parses an integer; the error is that of Go's `ParseInt`.
    pub(crate) fn integer(&self, key: &str) -> Result<Option<i64>, Status> {
        let Some(text) = self.get(key) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(Status::bad_request(integer::fault("ParseInt", text))),
        }
    }

    /// Returns the `timeout` of the request, if it has a positive one.
    ///
    /// # Errors
    /// 400 for a `timeout` that is not a duration.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, Status> {
        let Some(text) = self.text("timeout") else {
            return Ok(None);
        };
        if let Some(why) = duration::fault(text) {
            return Err(Status::bad_request(format!(
                "invalid timeout specified in the request URL - {why}"
            )));
        }
        let nanoseconds = duration::parse(text).and_then(|given| u64::try_from(given).ok());
        // Zero or a negative value means no timeout (kube-apiserver: WithRequestDeadline).
        let given = nanoseconds.filter(|given| *given > 0);
        Ok(given.map(Duration::from_nanos))
    }
}

/// Decodes percent escapes in a path or in the name of a header. An invalid escape stays as it is.
pub(crate) fn unescape(text: &str) -> String {
    decode_with(text, b'+')
}

fn decode(text: &str) -> String {
    decode_with(text, b' ')
}

fn decode_with(text: &str, plus: u8) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, tail) {
            (b'+', _) => bytes.push(plus),
            (b'%', [high, low, after @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    bytes.push(high * 16 + low);
                    rest = after;
                }
                _ => bytes.push(b'%'),
            },
            (other, _) => bytes.push(*other),
        }
    }
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded() {
        let query = Query::parse(Some("labelSelector=a%3Db%2Cc+in+(d)&watch&limit=5&force=0"));
        assert_eq!(query.get("labelSelector"), Some("a=b,c in (d)"));
        assert_eq!(
            (
                query.flag("watch"),
                query.flag("force"),
                query.flag("pretty")
            ),
            (Some(true), Some(false), None)
        );
        assert_eq!(query.integer("limit"), Ok(Some(5)));
    }

    #[test]
    fn options_that_are_no_numbers_or_durations_are_refused() {
        let refused = |query: &str| {
            let query = Query::parse(Some(query));
            let checked = query.integer("limit").map(|_| ());
            let refusal = checked.and_then(|()| query.timeout());
            refusal.err().map(|status| status.message)
        };
        assert_eq!(refused("limit=5&timeout=32s"), None);
        assert_eq!(
            refused("limit=").as_deref(),
            Some(r#"strconv.ParseInt: parsing "": invalid syntax"#)
        );
        assert_eq!(
            refused("limit=99999999999999999999").as_deref(),
            Some(r#"strconv.ParseInt: parsing "99999999999999999999": value out of range"#)
        );
        assert_eq!(
            refused("timeout=5").as_deref(),
            Some(
                r#"invalid timeout specified in the request URL - time: missing unit in duration "5""#
            )
        );
    }

    #[test]
    fn a_client_says_how_long_it_waits() {
        let timeout = |query| Query::parse(Some(query)).timeout().expect("a duration");
        assert_eq!(
            timeout("timeout=1m1.5s"),
            Some(Duration::from_millis(61_500))
        );
        for unlimited in ["", "timeout=", "timeout=0s", "timeout=-1s"] {
            assert_eq!(timeout(unlimited), None, "{unlimited}");
        }
    }

    #[test]
    fn a_broken_escape_stays_as_it_is() {
        assert_eq!(Query::parse(Some("a=%zz%4")).get("a"), Some("%zz%4"));
    }
}
