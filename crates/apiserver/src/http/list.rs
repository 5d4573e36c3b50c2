//! GET of a collection: pages, selectors, and the rules for resourceVersion.

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use mullion_kube_text::{
    field::{Errors, Path},
    golang::integer,
    status::{Cause, Details, Status},
};
use mullion_schema::{Type, proto};
use mullion_store::{ListError, Page, PageRequest};
use serde_json::{Map, Value, json};

use super::{
    body_stream::{self, EndsByItself, GuardedBody},
    call::Call,
    continuation::Continue,
    negotiate::{Media, Shape},
    reply::{self, Pieces},
    selector::{self, Selector},
    table,
};
use crate::{registry::Row, request::query::Query};

/// A page with at least this many stored bytes counts as large.
const LARGE: usize = 128 * 1024;
/// The memory in bytes that a streamed list holds at most: a few pieces, and those that wait for the socket.
const PIECES: usize = 1024 * 1024;
/// How long a request waits for a revision that the store has not reached yet.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(3);

/// The validated `metav1.ListOptions`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListOptions {
    pub resource_version: String,
    pub version_match: String,
    pub limit: Option<usize>,
    pub continue_token: String,
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
}

impl ListOptions {
    /// Parses the options and validates them as kube-apiserver's `ValidateListOptions` does.
    pub(crate) fn parse(query: &Query, watch: bool) -> Result<Self, Status> {
        let text = |key: &str| query.get(key).unwrap_or_default().to_owned();
        let positive = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0);
        // Before the limit, as kube-apiserver reads them: the first number that cannot be parsed is the error.
        let timeout_seconds = query.integer("timeoutSeconds")?.and_then(positive);
        let options = ListOptions {
            resource_version: text("resourceVersion"),
            version_match: text("resourceVersionMatch"),
            limit: query
                .integer("limit")?
                .and_then(positive)
                .map(|limit| limit as usize),
            continue_token: text("continue"),
            timeout_seconds,
            bookmarks: query.flag("allowWatchBookmarks").unwrap_or(false),
            send_initial_events: query.flag("sendInitialEvents"),
        };
        // The options differ in what they forbid: sendInitialEvents is for watches alone, and Exact for lists alone.
        let errors = if watch {
            options.check_watch()
        } else {
            options.check_list()
        };
        if errors.is_empty() {
            Ok(options)
        } else {
            // kube-apiserver parses the selectors before it validates the options.
            selector::check_syntax(query)?;
            Err(Status::invalid_kind(
                "meta.k8s.io",
                "ListOptions",
                "",
                &errors,
            ))
        }
    }

    fn check_list(&self) -> Errors {
        let mut errors = Errors::default();
        let path = &Path::new("resourceVersionMatch");
        let matches = !self.version_match.is_empty();
        // The checks do not exclude each other: kube-apiserver lists every cause in one 422, in this order.
        if matches && self.resource_version.is_empty() {
            errors.forbidden(
                path,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            );
        }
        if matches && !self.continue_token.is_empty() {
            errors.forbidden(
                path,
                "resourceVersionMatch is forbidden when continue is provided",
            );
        }
        if !matches!(self.version_match.as_str(), "" | "Exact" | "NotOlderThan") {
            errors.not_supported(
                path,
                self.version_match.as_str(),
                &["Exact", "NotOlderThan", ""],
            );
        }
        if self.version_match == "Exact" && self.resource_version == "0" {
            errors.forbidden(
                path,
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            );
        }
        if self.send_initial_events.is_some() {
            errors.forbidden(
                &Path::new("sendInitialEvents"),
                "sendInitialEvents is forbidden for list",
            );
        }
        errors
    }

    fn check_watch(&self) -> Errors {
        let mut errors = Errors::default();
        let path = &Path::new("resourceVersionMatch");
        if self.send_initial_events.is_some() {
            if self.version_match != "NotOlderThan" {
                errors.forbidden(
                    path,
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                );
            }
        } else if !self.version_match.is_empty() {
            errors.forbidden(
                path,
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        if !self.version_match.is_empty() && self.version_match != "NotOlderThan" {
            errors.not_supported(path, self.version_match.as_str(), &["NotOlderThan"]);
        }
        if !self.continue_token.is_empty() {
            errors.forbidden(
                path,
                "resourceVersionMatch is forbidden when continue is provided",
            );
        }
        errors
    }
}

/// The text is not a revision; the message is that of Go's `ParseUint`.
#[derive(Debug, thiserror::Error)]
#[error("{}", integer::fault("ParseUint", .0))]
pub(crate) struct RevisionError(String);

/// Parses a revision in a query.
pub(crate) fn parse_revision(text: &str) -> Result<u64, RevisionError> {
    let signed = text.starts_with('+');
    let number = text.parse().ok().filter(|_| !signed);
    number.ok_or_else(|| RevisionError(text.to_owned()))
}

/// Waits until the store has reached a revision; returns a 504 if it does not in time.
pub(crate) async fn wait_for(call: &Call, revision: u64) -> Result<(), Status> {
    let store = call.server.store();
    if store.revision() >= revision {
        return Ok(());
    }
    // kube-apiserver waits as long for its watch cache (waitUntilFreshAndBlock).
    tokio::time::sleep(PATIENCE).await;
    if store.revision() >= revision {
        Ok(())
    } else {
        Err(too_large(revision, store.revision()))
    }
}

fn too_large(revision: u64, current: u64) -> Status {
    let mut status = Status::new(
        504,
        "Timeout",
        format!("Timeout: Too large resource version: {revision}, current: {current}"),
    );
    let cause = Cause {
        reason: "ResourceVersionTooLarge".into(),
        message: "Too large resource version".into(),
        ..Cause::default()
    };
    status.details = Some(Box::new(Details {
        causes: vec![cause],
        retry_after_seconds: 1,
        ..Details::default()
    }));
    status
}

/// Reads the page that a request asks for.
pub(crate) async fn read(
    call: &Call,
    options: &ListOptions,
    selector: &Selector,
) -> Result<Page, Status> {
    // A token that cannot be read is the error, whatever else is wrong.
    if !options.continue_token.is_empty() {
        Continue::decode(&options.continue_token)?;
    }
    let revision = match options.resource_version.as_str() {
        "" => None,
        text => Some(parse_revision(text).map_err(|error| {
            Status::bad_request(format!(
                "invalid resource version: resourceVersion: Invalid value: {text:?}: {error}"
            ))
        })?),
    };
    let namespace = call.namespace.as_deref();
    let mut request = PageRequest {
        namespace,
        limit: options.limit,
        ..PageRequest::default()
    };
    let token;
    let start;
    if options.continue_token.is_empty() {
        // A list that can have only one object has no pages.
        if selector.name().is_some() && (namespace.is_some() || !call.resource().namespaced) {
            request.limit = None;
        }
        // Without resourceVersionMatch, a limit asks for exactly the given revision.
        let exact = match options.version_match.as_str() {
            "Exact" => true,
            "NotOlderThan" => false,
            _ => options.limit.is_some(),
        };
        // kube-apiserver answers resourceVersion 0 from its watch cache, which knows no pages: the limit is ignored.
        match revision {
            Some(0) => request.limit = None,
            Some(revision) => {
                wait_for(call, revision).await?;
                request.at = exact.then_some(revision);
            }
            None => {}
        }
    } else {
        token = Continue::decode(&options.continue_token)?;
        if revision.is_some_and(|revision| revision != 0) {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        // A token's start is relative to the list's namespace, as in kube-apiserver.
        start = namespace
            .map(|namespace| format!("{namespace}/"))
            .unwrap_or_default()
            + token.start.strip_prefix('/').unwrap_or(&token.start);
        request.start = Some(&start);
        if revision == Some(0) {
            request.limit = None;
        }
        // The revision of the first page, so that all pages show the same moment; -1 stands for the newest one.
        request.at = u64::try_from(token.rv).ok();
    }
    let page = call
        .row
        .collection
        .list(&request, |object| selector.matches(&call.row, object));
    page.map_err(|error| match error {
        ListError::Future { current } => too_large(request.at.unwrap_or_default(), current),
        ListError::Compacted { .. } => match (&options.continue_token[..], request.start) {
            ("", _) | (_, None) => Status::new(410, "Expired", "The resourceVersion for the provided list is too old."),
            (_, Some(start)) => {
                let mut status = Status::new(
                    410,
                    "Expired",
                    "The provided continue parameter is too old to display a consistent list result. You can start a new list without \
                     the continue parameter, or use the continue token in this response to retrieve the remainder of the results. \
                     Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted \
                     between the time the first chunk was returned and now may show up in the list.",
                );
                // -1 continues at the newest revision (kube-apiserver: handleCompactedErrorForPaging), if the client accepts that.
                let token = Continue::encode(-1, relative(namespace, start));
                status.metadata.insert("continue".to_owned(), token.into());
                status
            }
        },
    })
}

fn relative<'a>(namespace: Option<&str>, key: &'a str) -> &'a str {
    match namespace {
        Some(namespace) => key
            .strip_prefix(namespace)
            .and_then(|rest| rest.strip_prefix('/'))
            .unwrap_or(key),
        None => key,
    }
}

/// Returns the list's own metadata.
fn metadata(call: &Call, page: &Page, selector: &Selector) -> Value {
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".into(), page.revision.to_string().into());
    if let Some(next) = &page.next {
        let token = Continue::encode(
            page.revision as i64,
            relative(call.namespace.as_deref(), next),
        );
        metadata.insert("continue".into(), token.into());
        // With a selector the rest would have to be read to be counted, so kube-apiserver leaves the count out.
        if selector.is_empty() {
            metadata.insert("remainingItemCount".into(), page.remaining.into());
        }
    } else if call.row.custom && call.form.shape == Shape::Whole {
        // Lists of custom resources are untyped in kube-apiserver, so that no `omitempty` drops the empty token from the JSON.
        metadata.insert("continue".into(), "".into());
    }
    metadata.into()
}

/// Parses the options and the selector of a list, and checks that its representation is not that of a single object.
pub(crate) fn asked(call: &Call) -> Result<(ListOptions, Selector), Status> {
    let options = ListOptions::parse(&call.query, false)?;
    let selector = Selector::of(call)?;
    check_shape(call)?;
    Ok((options, selector))
}

/// Refuses a list whose client asked for the PartialObjectMetadata of one object.
pub(crate) fn check_shape(call: &Call) -> Result<(), Status> {
    if let Shape::Metadata(_) = call.form.shape {
        let why = format!(
            "you requested PartialObjectMetadata, but the requested object is a list (*{}List)",
            reply::internal_type(&call.row)
        );
        return Err(reply::not_acceptable(&why));
    }
    Ok(())
}

pub(crate) async fn list(call: &Call) -> Result<Response<Body>, Status> {
    let (options, selector) = asked(call)?;
    let page = read(call, &options, &selector).await?;
    answer(call, page, &selector).await
}

/// Answers with a page in the requested form, which must be [one that lists have](check_shape).
///
/// A large page that is not sent as stored bytes first waits for memory. As JSON it is serialized while it is sent.
pub(crate) async fn answer(
    call: &Call,
    page: Page,
    selector: &Selector,
) -> Result<Response<Body>, Status> {
    let is_shared = call.form.shape == Shape::Whole
        && call.form.media == Media::Json
        && call.row.serves_stored_bytes();
    // Stored bytes are shared with the store and cost no memory; every other form is made anew for this response.
    let bytes: usize = page.objects.iter().map(|object| object.size_bytes()).sum();
    if is_shared || bytes < LARGE {
        return made(call, &page, selector);
    }
    let is_sent_as_made = call.form.media == Media::Json;
    let room = if is_sent_as_made { PIECES } else { bytes };
    // Without this wait a few clients that list all pods at once could exhaust the memory.
    let room = call.answer_room(room).await;
    // The wait may have outlasted the client's patience; then the response need not be made.
    call.go_on()?;
    let answer = if is_sent_as_made {
        streamed(call, page, selector)?
    } else {
        made(call, &page, selector)?
    };
    Ok(answer.map(|body| Body::new(GuardedBody { body, held: room })))
}

/// Returns a response that serializes the page's objects while it is sent.
fn streamed(call: &Call, page: Page, selector: &Selector) -> Result<Response<Body>, Status> {
    let metadata = metadata(call, &page, selector);
    let (row, now) = (call.row.clone(), call.now);
    let frame = |around: Value, field: &str| {
        let text = around.to_string();
        // The match is the empty field and not part of a string, because quotes inside strings are escaped.
        let hole = format!("\"{field}\":[]");
        let at = text.find(&hole).expect("the list has an empty field") + hole.len() - 1;
        (text[..at].to_owned(), text[at..].to_owned())
    };
    let write = |value: &Value, out: &mut Vec<u8>| {
        // Writing a tree to memory does not fail.
        let _ = serde_json::to_writer(out, value);
    };
    let objects = page.objects;
    let body = match call.form.shape {
        Shape::Table(version) => {
            let include = table::Include::parse(&call.query)?;
            let columns = table::definitions(&row);
            let (head, tail) = frame(table::table(version, metadata, columns, vec![]), "rows");
            body_stream::listed((&head, &tail), objects, move |object, out| {
                let shown = table::row(&row, version, &row.served(object), now, include);
                write(&shown, out);
            })
        }
        Shape::Metadata(version) | Shape::MetadataList(version) => {
            let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": metadata, "items": []});
            let (head, tail) = frame(list, "items");
            body_stream::listed((&head, &tail), objects, move |object, out| {
                write(&table::metadata_of(&row, &row.served(object), version), out);
            })
        }
        Shape::Whole => {
            let mut list = head(call, metadata);
            list["items"] = json!([]);
            let (head, tail) = frame(list, "items");
            body_stream::listed((&head, &tail), objects, move |object, out| {
                write(&item(&row, row.served(object)), out);
            })
        }
    };
    let mut response = reply::respond(200, Media::Json.content_type(), body);
    // A body that is made while it is sent has no length to announce, so the mark tells the layers above that it has an end.
    response.extensions_mut().insert(EndsByItself);
    Ok(response)
}

/// Serializes a whole page at once.
fn made(call: &Call, page: &Page, selector: &Selector) -> Result<Response<Body>, Status> {
    // Kept as a result: an invalid `includeObject` is an error only where a table is made.
    let include = table::Include::parse(&call.query);
    let metadata = metadata(call, page, selector);
    match call.form.shape {
        Shape::Whole => whole(call, page, metadata),
        Shape::Table(version) => {
            let include = include?;
            let rows = page.objects.iter().map(|object| {
                table::row(
                    &call.row,
                    version,
                    &call.row.served(object),
                    call.now,
                    include,
                )
            });
            let mut table = table::table(
                version,
                metadata,
                table::definitions(&call.row),
                rows.collect(),
            );
            // kube-apiserver's default table of no objects has null for its rows.
            let has_columns = call.resource().columns().is_some();
            if page.objects.is_empty() && !has_columns && !call.row.custom {
                table["rows"] = Value::Null;
            }
            reply::encode(call.form.media, 200, &table, None)
        }
        Shape::Metadata(version) | Shape::MetadataList(version) => {
            let items = page
                .objects
                .iter()
                .map(|object| table::metadata_of(&call.row, &call.row.served(object), version));
            // kube-apiserver appends to a nil slice, which Go encodes as null when the list is empty.
            let items = if page.objects.is_empty() {
                Value::Null
            } else {
                items.collect()
            };
            let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": metadata, "items": items});
            reply::encode(call.form.media, 200, &list, None)
        }
    }
}

/// Returns a list without its items.
fn head(call: &Call, metadata: Value) -> Value {
    json!({"kind": call.row.list_kind(), "apiVersion": call.row.api_version(), "metadata": metadata})
}

fn whole(call: &Call, page: &Page, metadata: Value) -> Result<Response<Body>, Status> {
    let head = head(call, metadata);
    if call.form.media == Media::Json && call.row.serves_stored_bytes() {
        return Ok(reply::respond(
            200,
            Media::Json.content_type(),
            Body::new(pieces(call, page, &head)),
        ));
    }
    if call.form.media == Media::Protobuf && !call.row.custom {
        return Ok(reply::bytes(
            200,
            Media::Protobuf,
            message(call, page, &head).into(),
        ));
    }
    let mut list = head;
    list["items"] = page
        .objects
        .iter()
        .map(|object| item(&call.row, call.row.served(object)))
        .collect();
    reply::encode(call.form.media, 200, &list, None)
}

/// Encodes the list as protobuf: every list type has its metadata in field 1 and its items in field 2.
fn message(call: &Call, page: &Page, head: &Value) -> Vec<u8> {
    let mut list = proto::Writer::default();
    if let Some(metadata) = Type::builtin("apimachinery.pkg.apis.meta.v1.ListMeta") {
        list.bytes(1, &proto::encode_message(&metadata, &head["metadata"]));
    }
    for object in &page.objects {
        list.bytes(
            2,
            &proto::encode_message(call.schema(), &call.row.served(object)),
        );
    }
    let text = |field: &str| head[field].as_str().unwrap_or_default().to_owned();
    let envelope = proto::Envelope {
        api_version: text("apiVersion"),
        kind: text("kind"),
        raw: &list.finish(),
    };
    envelope.seal()
}

/// Returns an object as lists show it: without apiVersion and kind, unless it is a custom resource.
fn item(row: &Row, mut object: Value) -> Value {
    if let Some(object) = object.as_object_mut().filter(|_| !row.custom) {
        object.remove("apiVersion");
        object.remove("kind");
    }
    object
}

/// Builds the JSON list from the stored bytes of its items.
fn pieces(call: &Call, page: &Page, head: &Value) -> Pieces {
    let mut pieces = Pieces::default();
    let mut open = head.to_string();
    open.pop();
    open.push_str(",\"items\":[");
    pieces.push(open);
    for (index, object) in page.objects.iter().enumerate() {
        if call.row.custom {
            if index > 0 {
                pieces.push(Bytes::from_static(b","));
            }
            pieces.push(object.bytes());
        } else {
            pieces.push(Bytes::from_static(if index > 0 { b",{" } else { b"{" }));
            // Items of built-in lists carry no apiVersion and kind, and the stored bytes begin with both, so only their tail is sent.
            pieces.push(object.untyped_tail());
        }
    }
    pieces.push(Bytes::from_static(b"]}"));
    pieces
}
