//! Conditional requests for static content, answered like Go's `http.ServeContent` but without byte ranges.

use axum::body::Body;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Response,
    header::{CONTENT_TYPE, ETAG, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED},
};
use jiff::Timestamp;

use super::reply;

/// The `strftime` format of HTTP dates.
const TIME: &str = "%a, %d %b %Y %H:%M:%S GMT";

/// The content to serve.
pub(crate) struct Content {
    pub(crate) body: Bytes,
    pub(crate) content_type: &'static str,
    /// The ETag, with its quotes.
    pub(crate) tag: Option<String>,
    pub(crate) modified: Timestamp,
}

/// Answers with the content, with 304 if the client has it already, or with 412 if a precondition fails.
pub(crate) fn serve(content: Content, method: &Method, headers: &HeaderMap) -> Response<Body> {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    let code = match precondition(&content, headers, reads) {
        Precondition::Passed => 200,
        Precondition::NotModified if reads => 304,
        Precondition::NotModified | Precondition::Failed => 412,
    };
    let body = match code {
        200 => Body::from(content.body),
        _ => Body::empty(),
    };
    let mut response = reply::respond(code, content.content_type, body);
    let headers = response.headers_mut();
    let tag = content.tag.and_then(|tag| HeaderValue::from_str(&tag).ok());
    let is_tagged = tag.is_some();
    if let Some(tag) = tag {
        headers.insert(ETAG, tag);
    }
    if code == 304 {
        headers.remove(CONTENT_TYPE);
    }
    let modified = content.modified.strftime(TIME).to_string();
    // Go (writeNotModified) leaves the date out where the ETag says the same more exactly.
    if !(code == 304 && is_tagged)
        && let Ok(modified) = HeaderValue::from_str(&modified)
    {
        headers.insert(LAST_MODIFIED, modified);
    }
    response
}

/// The outcome of the request's preconditions.
enum Precondition {
    Passed,
    /// The client has this version already.
    NotModified,
    /// The client wants the content only if it is the version that it names, and it is not.
    Failed,
}

fn precondition(content: &Content, headers: &HeaderMap, reads: bool) -> Precondition {
    let tag = content.tag.as_deref().unwrap_or_default();
    let names = |list: &HeaderValue, weakly: bool| {
        let list = String::from_utf8_lossy(list.as_bytes()).into_owned();
        list.split(',').map(str::trim).any(|given| {
            let given = match given.strip_prefix("W/") {
                Some(given) if weakly => given,
                _ => given,
            };
            given == "*" || (!tag.is_empty() && given == tag)
        })
    };
    if let Some(list) = headers.get(IF_MATCH)
        && !names(list, false)
    {
        return Precondition::Failed;
    }
    if let Some(list) = headers.get(IF_NONE_MATCH) {
        return if names(list, true) {
            Precondition::NotModified
        } else {
            Precondition::Passed
        };
    }
    // RFC 9110, 13.2.2: the date counts only where there is no If-None-Match.
    let since = headers.get(IF_MODIFIED_SINCE).filter(|_| reads);
    let since = since.and_then(|since| since.to_str().ok());
    let since = since.and_then(|since| jiff::fmt::rfc2822::parse(since).ok());
    match since {
        Some(since) if content.modified.as_second() <= since.timestamp().as_second() => {
            Precondition::NotModified
        }
        _ => Precondition::Passed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(tag: Option<&str>, method: Method, header: (&'static str, &str)) -> u16 {
        let content = Content {
            body: Bytes::from_static(b"text"),
            content_type: "text/plain",
            tag: tag.map(str::to_owned),
            modified: Timestamp::constant(1_000_000_000, 5),
        };
        let mut headers = HeaderMap::new();
        headers.insert(header.0, header.1.parse().expect("it is a header"));
        serve(content, &method, &headers).status().as_u16()
    }

    #[test]
    fn who_has_it_is_told_so() {
        let tagged = |header| status(Some("\"a\""), Method::GET, header);
        assert_eq!(tagged(("if-none-match", "\"a\"")), 304);
        assert_eq!(tagged(("if-none-match", "\"b\", W/\"a\"")), 304);
        assert_eq!(tagged(("if-none-match", "*")), 304);
        assert_eq!(tagged(("if-none-match", "\"b\"")), 200);
        assert_eq!(tagged(("if-match", "\"b\"")), 412);
        assert_eq!(tagged(("if-match", "\"a\"")), 200);
        let posted = status(Some("\"a\""), Method::POST, ("if-none-match", "\"a\""));
        assert_eq!(posted, 412);
        let since = |time| status(None, Method::GET, ("if-modified-since", time));
        assert_eq!(since("Sun, 09 Sep 2001 01:46:40 GMT"), 304);
        assert_eq!(since("Sun, 09 Sep 2001 01:46:39 GMT"), 200);
        assert_eq!(since("yesterday"), 200);
    }
}
