//! Indents JSON for people: if the client asks with `?pretty=true`, or if it is a browser, curl or wget and does not ask for
//! `pretty=false`.
//!
//! The rule is that of apiserver's responsewriters and negotiation (`isPrettyPrint`). Watches keep one event a line.

use axum::body::Body;
use http::{
    HeaderMap, Response, Uri,
    header::{CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT},
};
use mullion_kube_text::status::Status;

use super::{
    body_stream::{self, Change},
    negotiate::Media,
    reply,
};
use crate::request::query::Query;

/// The User-Agent prefixes of programs with which people read responses.
const VIEWERS: [&str; 3] = ["curl", "Wget", "Mozilla/5.0"];

/// Bodies of at least this many bytes are indented while they are sent.
const LARGE: u64 = 64 * 1024;

/// Returns whether the response is to be indented. OpenAPI documents never are.
pub(crate) fn wanted(headers: &HeaderMap, uri: &Uri) -> bool {
    if uri.path().starts_with("/openapi/") {
        return false;
    }
    // Most queries do not have the parameter and need no parsing.
    let asked = uri.query().filter(|query| query.contains("pretty="));
    if let Some(value) = Query::parse(asked).text("pretty") {
        return matches!(value, "1" | "t" | "T" | "true" | "True" | "TRUE");
    }
    let agent = headers
        .get(USER_AGENT)
        .and_then(|value| value.to_str().ok());
    agent.is_some_and(|agent| VIEWERS.iter().any(|viewer| agent.starts_with(viewer)))
}

/// Indents a JSON body, while it is sent if it is large. Endless bodies (watches) stay as they are.
pub(crate) async fn indented(response: Response<Body>) -> Response<Body> {
    let json = Media::Json.content_type().as_bytes();
    let of_json = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes() == json);
    if !of_json || !body_stream::may_have(&response, 0) {
        return response;
    }
    let is_large = body_stream::may_have(&response, LARGE);
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    if is_large {
        parts.extensions.insert(body_stream::EndsByItself);
        return Response::from_parts(parts, body_stream::changed(body, Indent::default()));
    }
    // A small body is indented at once, so that the response keeps a Content-Length.
    let Ok(plain) = axum::body::to_bytes(body, usize::MAX).await else {
        return reply::refusal(&Status::internal("the answer ended early"), Media::Json);
    };
    let (mut indent, mut out) = (Indent::default(), Vec::new());
    indent.feed(&plain, &mut out);
    Response::from_parts(parts, Body::from(out))
}

/// Indents by two spaces a level, like Go's `json.MarshalIndent`. Space between the tokens of the input, which a response has that is
/// indented for everybody, is dropped.
#[derive(Default)]
struct Indent {
    depth: usize,
    /// Whether the position is inside a string.
    quoted: bool,
    /// Whether the previous byte was an escaping backslash.
    escaped: bool,
    /// Whether the previous byte opened an object or array, which may be empty.
    opened: bool,
}

impl Indent {
    fn line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.resize(out.len() + 2 * self.depth, b' ');
    }
}

impl Change for Indent {
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        out.reserve(bytes.len() * 2);
        for byte in bytes.iter().copied() {
            if self.quoted {
                out.push(byte);
                self.quoted = byte != b'"' || self.escaped;
                self.escaped = byte == b'\\' && !self.escaped;
                continue;
            }
            if byte.is_ascii_whitespace() {
                continue;
            }
            let is_end = matches!(byte, b'}' | b']');
            match std::mem::take(&mut self.opened) {
                true if is_end => {
                    out.push(byte);
                    continue;
                }
                true => {
                    self.depth += 1;
                    self.line(out);
                }
                false => {}
            }
            match byte {
                b'"' => {
                    out.push(byte);
                    self.quoted = true;
                }
                b'{' | b'[' => {
                    out.push(byte);
                    self.opened = true;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.line(out);
                    out.push(byte);
                }
                b',' => {
                    out.push(byte);
                    self.line(out);
                }
                b':' => out.extend(b": "),
                _ => out.push(byte),
            }
        }
    }

    fn finish(&mut self, _: &mut Vec<u8>) {}
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn indenting_is_as_serde_json_does_it() {
        let trees = [
            json!({}),
            json!({"a": [], "b": {}, "c": [1, "x,y:{}[]", {"d\"\\": null}], "e": {"f": [[true]]}}),
            json!("\\\""),
        ];
        for tree in trees {
            let expected = serde_json::to_string_pretty(&tree).unwrap();
            // The result must not depend on how the input is split.
            for piece in [1, 2, 1000] {
                let (mut indent, mut indented) = (Indent::default(), Vec::new());
                for piece in tree.to_string().as_bytes().chunks(piece) {
                    indent.feed(piece, &mut indented);
                }
                assert_eq!(String::from_utf8(indented).unwrap(), expected);
            }
        }
    }

    #[test]
    fn people_are_known_by_their_programs_and_may_say_otherwise() {
        let from = |agent: &'static str| {
            HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(agent))])
        };
        for (agent, uri, expected) in [
            ("curl/8.5.0", "/api/v1/nodes", true),
            ("curl/8.5.0", "/openapi/v2", false),
            ("curl/8.5.0", "/api/v1/nodes?pretty=false", false),
            ("Mozilla/5.0 (X11)", "/api/v1/nodes?limit=1", true),
            ("kubectl/v1.36.0", "/api/v1/nodes", false),
            ("kubectl/v1.36.0", "/api/v1/nodes?pretty=1", true),
            ("kubectl/v1.36.0", "/api/v1/nodes?pretty=perhaps", false),
        ] {
            let wanted = wanted(&from(agent), &Uri::from_static(uri));
            assert_eq!(wanted, expected, "{agent} {uri}");
        }
    }

    #[tokio::test]
    async fn only_json_of_known_size_is_indented() {
        let body = async |response: Response<Body>| {
            let body = indented(response).await.into_body();
            let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        let value: Value = json!({"a": 1});
        assert_eq!(body(reply::json(200, &value)).await, "{\n  \"a\": 1\n}");
        assert_eq!(body(reply::text(200, "{}")).await, "{}");
        let stream = futures::stream::iter([Ok::<_, std::convert::Infallible>("{\"a\":1}\n")]);
        let watch = reply::respond(200, "application/json", Body::from_stream(stream));
        assert_eq!(body(watch).await, "{\"a\":1}\n");
    }
}
