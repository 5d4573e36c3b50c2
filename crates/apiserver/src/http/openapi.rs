//! `/openapi/v3`, its documents under hashed URLs, and `/openapi/v2`.
//!
//! Documents are made when first asked for and kept until the table of served resources changes. A URL with a document's hash
//! never shows anything else, so clients may keep it; a stale hash is sent on to the current one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::body::Body;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Response,
    header::{ACCEPT, CACHE_CONTROL, ETAG, EXPIRES, IF_NONE_MATCH, LOCATION, VARY},
};
use jiff::SignedDuration;
use serde_json::{Map, Value, json};

use super::{discovery, method_not_allowed, query::Query, reply};
use crate::{openapi, registry::Table, server::ApiServer, status::Status};

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// One document with its hash.
#[derive(Clone)]
struct Document {
    bytes: Bytes,
    hash: Arc<str>,
}

impl Document {
    fn new(bytes: Vec<u8>) -> Self {
        let hash = discovery::digest(&bytes).into();
        Document {
            bytes: bytes.into(),
            hash,
        }
    }
}

/// The documents of one table.
#[derive(Default)]
pub(crate) struct Cache(Mutex<Option<Documents>>);

struct Documents {
    table: Arc<Table>,
    v3: BTreeMap<String, Document>,
    v2: Option<(Document, Document)>,
}

impl Cache {
    /// Looks at the documents of the current table, made first if need be.
    fn with<T>(&self, server: &ApiServer, look: impl FnOnce(&mut Documents) -> T) -> T {
        let table = server.registry().table();
        let mut documents = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let current = documents
            .take()
            .filter(|documents| Arc::ptr_eq(&documents.table, &table));
        look(documents.insert(current.unwrap_or_else(|| Documents {
            v3: v3_documents(server, &table),
            v2: None,
            table,
        })))
    }
}

fn v3_documents(server: &ApiServer, table: &Table) -> BTreeMap<String, Document> {
    let mut documents = BTreeMap::new();
    for row in table.rows() {
        let (group, version) = (&*row.resource.group, &*row.resource.version);
        let name = openapi::name(group, version);
        if documents.contains_key(&name) {
            continue;
        }
        if let Some(document) = openapi::v3(table, server, group, version) {
            documents.insert(name, Document::new(document.into_bytes()));
        }
    }
    documents
}

/// Answers a path below `/openapi`; `None` if there is no such document.
pub(crate) fn serve(
    server: &ApiServer,
    method: &Method,
    path: &str,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Option<Result<Response<Body>, Status>> {
    let path = path.strip_prefix("/openapi/")?;
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Some(Err(method_not_allowed()));
    }
    match path.split_once('/').unwrap_or((path, "")) {
        ("v3", "") => Some(Ok(index(server, headers))),
        ("v3", name) => v3(server, name, query, headers).map(Ok),
        ("v2", "") => Some(v2(server, headers)),
        _ => None,
    }
}

/// The list of documents.
fn index(server: &ApiServer, headers: &HeaderMap) -> Response<Body> {
    let paths: Map<String, Value> = server.openapi().with(server, |documents| {
        let entry = |(name, document): (&String, &Document)| {
            (
                name.clone(),
                json!({"serverRelativeURL": url(name, document)}),
            )
        };
        documents.v3.iter().map(entry).collect()
    });
    discovery::cacheable(
        json!({"paths": paths}).to_string(),
        "application/json",
        headers,
    )
}

fn url(name: &str, document: &Document) -> String {
    format!("/openapi/v3/{name}?hash={}", document.hash)
}

fn v3(
    server: &ApiServer,
    name: &str,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Option<Response<Body>> {
    let document = server
        .openapi()
        .with(server, |documents| documents.v3.get(name).cloned())?;
    let query = Query::parse(query);
    let asked = query.text("hash");
    if asked.is_some_and(|asked| *asked != *document.hash) {
        let mut response = reply::text(301, "");
        response
            .headers_mut()
            .insert(LOCATION, HeaderValue::from_str(&url(name, &document)).ok()?);
        return Some(response);
    }
    let mut response = tagged(&document, "application/json", headers);
    if asked.is_some() {
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        let expires = (server.now() + SignedDuration::from_hours(365 * 24))
            .strftime("%a, %d %b %Y %H:%M:%S GMT")
            .to_string();
        headers.insert(EXPIRES, HeaderValue::from_str(&expires).ok()?);
    }
    Some(response)
}

fn v2(server: &ApiServer, headers: &HeaderMap) -> Result<Response<Body>, Status> {
    let (json, protobuf) = server.openapi().with(server, |documents| {
        let table = documents.table.clone();
        let made = documents.v2.get_or_insert_with(|| {
            let document = openapi::v2(&table, server);
            (
                Document::new(document.json.into_bytes()),
                Document::new(document.protobuf),
            )
        });
        made.clone()
    });
    // Clients write the version both as `@v1.0` and as `.v1.0`.
    let wanted = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let protobuf_wanted = wanted
        .flat_map(|value| value.split(','))
        .any(|clause| clause.contains("proto-openapi.spec.v2"));
    Ok(if protobuf_wanted {
        tagged(&protobuf, PROTOBUF, headers)
    } else {
        tagged(&json, "application/json", headers)
    })
}

/// A document, or 304 for a client that has it.
fn tagged(document: &Document, content_type: &'static str, headers: &HeaderMap) -> Response<Body> {
    let tag = format!("\"{}\"", document.hash);
    let known = headers
        .get(IF_NONE_MATCH)
        .is_some_and(|value| value.as_bytes() == tag.as_bytes());
    let mut response = if known {
        reply::respond(304, content_type, Body::empty())
    } else {
        reply::respond(200, content_type, Body::from(document.bytes.clone()))
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    response
}
