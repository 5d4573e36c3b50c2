//! JSON for the eyes: indented when the client asks with `?pretty=true`, or is a browser, curl or wget and does not ask for the opposite.
//!
//! Source of the rule: apiserver's responsewriters and negotiation (`isPrettyPrint`). Watches stay one event a line.

use axum::body::Body;
use http::{
    HeaderMap, Response, Uri,
    header::{CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT},
};

use super::{negotiate::Media, query::Query, reply};
use crate::status::Status;

/// The programs by which people look at answers.
const VIEWERS: [&str; 3] = ["curl", "Wget", "Mozilla/5.0"];

/// Whether the answer is for the eyes. OpenAPI documents never are: they are served as they were made.
pub(crate) fn wanted(headers: &HeaderMap, uri: &Uri) -> bool {
    if uri.path().starts_with("/openapi/") {
        return false;
    }
    let asked = uri.query().filter(|query| query.contains("pretty="));
    if let Some(value) = Query::parse(asked).text("pretty") {
        return matches!(value, "1" | "t" | "T" | "true" | "True" | "TRUE");
    }
    let agent = headers
        .get(USER_AGENT)
        .and_then(|value| value.to_str().ok());
    agent.is_some_and(|agent| VIEWERS.iter().any(|viewer| agent.starts_with(viewer)))
}

/// Indents a JSON body whose size is known, which that of a watch is not.
pub(crate) async fn indented(response: Response<Body>) -> Response<Body> {
    let json = Media::Json.content_type().as_bytes();
    let of_json = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes() == json);
    let sized = http_body::Body::size_hint(response.body())
        .exact()
        .is_some();
    if !of_json || !sized {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(plain) = axum::body::to_bytes(body, usize::MAX).await else {
        return reply::refusal(&Status::internal("the answer ended early"), Media::Json);
    };
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(indent(&plain)))
}

/// Two spaces a level, as Go's `json.MarshalIndent`. The input is JSON without spaces between its tokens, as all ours is.
fn indent(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 2);
    let mut depth = 0;
    let mut bytes = json.iter().copied().peekable();
    let line = |out: &mut Vec<u8>, depth: usize| {
        out.push(b'\n');
        out.resize(out.len() + 2 * depth, b' ');
    };
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                out.push(byte);
                while let Some(inside) = bytes.next() {
                    out.push(inside);
                    match inside {
                        b'"' => break,
                        b'\\' => out.extend(bytes.next()),
                        _ => {}
                    }
                }
            }
            b'{' | b'[' => {
                out.push(byte);
                if let Some(end) = bytes.next_if(|next| matches!(next, b'}' | b']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                line(&mut out, depth);
            }
            b':' => out.extend(b": "),
            _ => out.push(byte),
        }
    }
    out
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
            let indented = indent(tree.to_string().as_bytes());
            let expected = serde_json::to_string_pretty(&tree).unwrap();
            assert_eq!(String::from_utf8(indented).unwrap(), expected);
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
