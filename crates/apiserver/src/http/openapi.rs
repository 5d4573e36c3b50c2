//! Serves `/openapi/v3`, its documents under URLs with a hash, and `/openapi/v2`.
//!
//! A URL with a document's hash never serves anything else, so clients may cache it; a stale hash redirects to the current one.

use axum::body::Body;
use http::{
    HeaderMap, HeaderValue, Method, Response,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, LOCATION, VARY},
};
use jiff::SignedDuration;
use mullion_kube_text::status::Status;
use serde_json::{Map, Value, json};

use super::{
    content::{self, Content},
    negotiate, reply,
};
use crate::{
    openapi::{
        self,
        documents::{Document, Documents},
    },
    request::query::Query,
    state::ApiServer,
};

const JSON: &str = "application/json";
const PROTOBUF_2: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const PROTOBUF_3: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
/// The older spelling of the media types, from before the `@` had to go because it is not valid there.
const OLD_2: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const OLD_3: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

/// An encoding of documents.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Media {
    Json,
    Protobuf,
}

/// Answers a path below `/openapi` for any method; `None` if there is no such path.
pub(crate) fn serve(
    server: &ApiServer,
    method: &Method,
    path: &str,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Option<Result<Response<Body>, Status>> {
    let path = path.strip_prefix("/openapi/")?;
    Some(match path.split_once('/') {
        None if path == "v2" => Ok(v2(server, method, headers)),
        None if path == "v3" => Ok(index(server, method, headers)),
        Some(("v3", name)) => Ok(v3(server, name, method, query, headers)),
        _ => return None,
    })
}

/// Returns a document in an encoding.
fn content_of(document: &Document, media: Media, protobuf: &'static str) -> Content {
    let (body, content_type) = match media {
        Media::Json => (&document.json, JSON),
        Media::Protobuf => (&document.protobuf, protobuf),
    };
    Content {
        body: body.clone(),
        content_type,
        tag: Some(format!("\"{}\"", document.hash)),
        modified: document.made,
    }
}

/// Returns the list of v3 documents. kube-apiserver sets no Content-Type here, so Go's server declares it as plain text.
fn index(server: &ApiServer, method: &Method, headers: &HeaderMap) -> Response<Body> {
    let paths: Map<String, Value> =
        server
            .openapi()
            .with(server.registry(), server.now(), |documents| {
                let entry = |(name, document): (&String, &Document)| {
                    (
                        name.clone(),
                        json!({"serverRelativeURL": url(name, document)}),
                    )
                };
                documents.v3.iter().map(entry).collect()
            });
    let content = Content {
        body: json!({"paths": paths}).to_string().into(),
        content_type: "text/plain; charset=utf-8",
        tag: None,
        modified: server.now(),
    };
    content::serve(content, method, headers)
}

fn url(name: &str, document: &Document) -> String {
    format!("/openapi/v3/{name}?hash={}", document.hash)
}

fn v3(
    server: &ApiServer,
    name: &str,
    method: &Method,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Response<Body> {
    let has = |documents: &mut Documents| documents.v3.contains_key(name);
    if !server.openapi().with(server.registry(), server.now(), has) {
        return empty(404);
    }
    let varied = |mut response: Response<Body>| {
        let vary = HeaderValue::from_static("Accept");
        response.headers_mut().insert(VARY, vary);
        response
    };
    let media = match media(headers, [PROTOBUF_3, OLD_3]) {
        RequestedMedia::Known(media) => media,
        RequestedMedia::Unknown => return varied(empty(406)),
        // kube-apiserver answers 200 with an empty body in this case.
        RequestedMedia::Unreadable => return varied(empty(200)),
    };
    let found = server
        .openapi()
        .with(server.registry(), server.now(), |documents| {
            let document = documents.v3.get_mut(name)?;
            if media == Media::Protobuf && document.protobuf.is_empty() {
                document.protobuf = openapi::v3_protobuf(&document.json)?.into();
            }
            Some(document.clone())
        });
    let Some(document) = found else {
        return empty(404);
    };
    let content = content_of(&document, media, PROTOBUF_3);
    let query = Query::parse(query);
    let asked = query.text("hash").filter(|asked| !asked.is_empty());
    let Some(asked) = asked else {
        return varied(content::serve(content, method, headers));
    };
    if *asked != *document.hash {
        let content_type = content.content_type;
        return varied(moved(&url(name, &document), content_type, content.tag));
    }
    let mut response = varied(content::serve(content, method, headers));
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    let expires = server.now() + SignedDuration::from_hours(365 * 24);
    // kube-apiserver formats the time with the zone name of its clock, which is UTC and not HTTP's `GMT`.
    let expires = expires.strftime("%a, %d %b %Y %H:%M:%S UTC").to_string();
    if let Ok(expires) = HeaderValue::from_str(&expires) {
        headers.insert(EXPIRES, expires);
    }
    response
}

/// Redirects to the current document.
fn moved(url: &str, content_type: &'static str, tag: Option<String>) -> Response<Body> {
    let mut response = reply::respond(301, content_type, Body::empty());
    let headers = response.headers_mut();
    let tag = tag.as_deref().unwrap_or_default();
    for (name, value) in [(LOCATION, url), (ETAG, tag)] {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    response
}

fn v2(server: &ApiServer, method: &Method, headers: &HeaderMap) -> Response<Body> {
    let mut response = match media(headers, [PROTOBUF_2, OLD_2]) {
        RequestedMedia::Known(media) => {
            let openapi = server.openapi();
            let document = openapi.with(server.registry(), server.now(), |documents| {
                documents.everything(server.registry(), server.now())
            });
            content::serve(content_of(&document, media, PROTOBUF_2), method, headers)
        }
        RequestedMedia::Unknown | RequestedMedia::Unreadable => empty(406),
    };
    let vary = HeaderValue::from_static("Accept");
    response.headers_mut().insert(VARY, vary);
    response
}

/// The encoding that a client wants.
#[derive(Debug, PartialEq)]
enum RequestedMedia {
    Known(Media),
    /// An encoding that does not exist.
    Unknown,
    /// The Accept header has no readable clause.
    Unreadable,
}

/// Returns the first encoding that the client accepts: highest quality first, and among equals the more specific range.
fn media(headers: &HeaderMap, protobuf: [&str; 2]) -> RequestedMedia {
    let mut clauses = negotiate::clauses(headers);
    if headers.get(ACCEPT).is_none_or(HeaderValue::is_empty) {
        return RequestedMedia::Known(Media::Json);
    }
    clauses.retain(|clause| clause.range == "*" || clause.range.split('/').count() == 2);
    if clauses.is_empty() {
        return RequestedMedia::Unreadable;
    }
    let stars = |range: &str| range.bytes().filter(|byte| *byte == b'*').count();
    clauses.sort_by(|one, other| {
        let by_quality = other.quality().total_cmp(&one.quality());
        by_quality.then(stars(one.range).cmp(&stars(other.range)))
    });
    let known = clauses.iter().find_map(|clause| match clause.range {
        "*" | "*/*" | "application/*" | "*/json" | JSON => Some(Media::Json),
        range if protobuf.contains(&range) => Some(Media::Protobuf),
        _ => None,
    });
    known.map_or(RequestedMedia::Unknown, RequestedMedia::Known)
}

fn empty(code: u16) -> Response<Body> {
    let mut response = reply::respond(code, JSON, Body::empty());
    response.headers_mut().remove(CONTENT_TYPE);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_found_by_quality_and_then_by_name() {
        let wanted = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().expect("it is a header"));
            media(&headers, [PROTOBUF_3, OLD_3])
        };
        for accept in [
            "",
            "*",
            "*/*",
            "application/*",
            "application/json",
            "application/json;charset=utf-8",
            "text/html, application/json;q=0",
            &format!("{OLD_3};q=0.4, */*;q=0.5"),
        ] {
            assert_eq!(
                wanted(accept),
                RequestedMedia::Known(Media::Json),
                "{accept}"
            );
        }
        for accept in [
            OLD_3,
            PROTOBUF_3,
            &format!("*/*, {PROTOBUF_3}"),
            &format!("{JSON};q=0.9,{PROTOBUF_3}"),
        ] {
            assert_eq!(
                wanted(accept),
                RequestedMedia::Known(Media::Protobuf),
                "{accept}"
            );
        }
        assert_eq!(wanted("text/html, image/*"), RequestedMedia::Unknown);
        assert_eq!(wanted(PROTOBUF_2), RequestedMedia::Unknown);
        assert_eq!(wanted("json"), RequestedMedia::Unreadable);
    }
}
