//! Turns results into HTTP responses: the form that the client asked for, headers, compression.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io::Write,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{
    HeaderMap, HeaderValue, Response,
    header::{
        ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, VARY, WARNING,
    },
};
use http_body::{Frame, SizeHint};
use mullion_kinds::request::warnings::Warnings;
use mullion_kube_text::status::Status;
use mullion_schema::{ownership, proto};
use mullion_store::Object;
use serde_json::Value;

use super::{
    body_stream,
    call::Call,
    negotiate::{Form, Media, SUPPORTED, Shape},
    table,
};
use crate::{object::type_meta::internal_package, registry::Row};

/// Bodies of at least this many bytes are compressed for clients that accept gzip.
const GZIP_FROM: u64 = 128 * 1024;

/// The result of a handler, before it is encoded.
pub(crate) enum Outcome {
    /// A stored object of the call's row.
    Stored(Arc<Object>),
    /// An object of the call's kind in a form that is not stored (dry runs, deletions).
    Object(Value),
    /// A value that exists in one representation only (Status, Scale).
    Plain(Value),
}

impl Outcome {
    /// Unfolds an object of the call's kind that is not stored in this form.
    pub(crate) fn unfolded(mut object: Value) -> Self {
        ownership::unfold(&mut object);
        Outcome::Object(object)
    }
}

/// Encodes an outcome in the form that the client asked for.
pub(crate) fn outcome(call: &Call, code: u16, outcome: Outcome) -> Result<Response<Body>, Status> {
    let object = match outcome {
        Outcome::Plain(value) => return encode(call.form.media, code, &value, None),
        Outcome::Stored(object) if call.form == Form::JSON && call.row.serves_stored_bytes() => {
            return Ok(bytes(code, Media::Json, object.bytes()));
        }
        Outcome::Stored(object) => call.row.served(&object),
        Outcome::Object(value) => value,
    };
    match call.form.shape {
        Shape::Whole => encode(call.form.media, code, &object, Some(call)),
        Shape::Table(version) => {
            let include = table::Include::parse(&call.query)?;
            encode(
                call.form.media,
                code,
                &table::of_object(call, version, &object, include),
                None,
            )
        }
        Shape::Metadata(version) => encode(
            call.form.media,
            code,
            &table::metadata_of(&call.row, &object, version),
            None,
        ),
        Shape::MetadataList(_) => Err(no_list(&internal_type(&call.row))),
    }
}

/// Returns the 406 for a single object that was requested as a list of metadata.
pub(crate) fn no_list(internal_type: &str) -> Status {
    not_acceptable(&format!(
        "you requested PartialObjectMetadataList, but the requested object is not a list (*{internal_type})"
    ))
}

/// Returns Go's name of the internal type of a row's objects, for example `core.Pod`.
pub(crate) fn internal_type(row: &Row) -> String {
    if row.custom {
        return "unstructured.Unstructured".to_owned();
    }
    let package = internal_package(&row.resource.group);
    format!("{package}.{}", row.resource.kind)
}

/// Returns a 406: the response cannot have the form that the client asked for.
pub(crate) fn not_acceptable(why: &str) -> Status {
    Status::new(406, "NotAcceptable", why)
}

/// Encodes a value. `typed` is the call whose kind the value is of; protobuf needs its schema.
pub(crate) fn encode(
    media: Media,
    code: u16,
    value: &Value,
    typed: Option<&Call>,
) -> Result<Response<Body>, Status> {
    let body = match (media, typed) {
        (Media::Json, _) => {
            serde_json::to_vec(value).map_err(|error| Status::internal(error.to_string()))?
        }
        (Media::Yaml, _) => serde_saphyr::to_string(value)
            .map_err(|error| Status::internal(error.to_string()))?
            .into_bytes(),
        (Media::Protobuf, Some(call)) if !call.row.custom => proto::encode(call.schema(), value),
        (Media::Protobuf, _) => proto::encode_answer(value).ok_or_else(|| {
            not_acceptable(&format!(
                "only the following media types are accepted: {SUPPORTED}"
            ))
        })?,
    };
    Ok(bytes(code, media, body.into()))
}

/// Returns a response with that encoding's Content-Type.
pub(crate) fn bytes(code: u16, media: Media, body: Bytes) -> Response<Body> {
    respond(code, media.content_type(), Body::from(body))
}

/// Returns a JSON response.
pub(crate) fn json(code: u16, value: &Value) -> Response<Body> {
    respond(
        code,
        Media::Json.content_type(),
        Body::from(value.to_string()),
    )
}

/// Returns an indented JSON response, for any client (apiserver: WriteRawJSON).
pub(crate) fn indented(code: u16, value: &Value) -> Response<Body> {
    respond(
        code,
        Media::Json.content_type(),
        Body::from(format!("{value:#}")),
    )
}

/// Returns a plain-text response.
pub(crate) fn text(code: u16, body: impl Into<Body>) -> Response<Body> {
    let mut response = respond(code, "text/plain; charset=utf-8", body.into());
    response.headers_mut().insert(
        "x-content-type-options",
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// Returns the 404 for paths that nothing serves.
pub(crate) fn page_not_found() -> Response<Body> {
    text(404, "404 page not found\n")
}

/// Returns the 404: a JSON Status under a group of built-in kinds, plain text elsewhere.
pub(crate) fn nothing_here(group_served: bool) -> Result<Response<Body>, Status> {
    if group_served {
        Err(Status::no_such_path())
    } else {
        Ok(page_not_found())
    }
}

/// Returns an error as a Status, with `Retry-After` if the error has one; JSON where the encoding has no form for it.
pub(crate) fn refusal(status: &Status, media: Media) -> Response<Body> {
    let shown = status.to_json();
    // A client that accepts only a form without a Status must still learn what went wrong.
    let mut response =
        encode(media, status.code, &shown, None).unwrap_or_else(|_| json(status.code, &shown));
    let seconds = status
        .details
        .as_ref()
        .map_or(0, |details| details.retry_after_seconds);
    if seconds > 0 {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

pub(crate) fn respond(code: u16, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() =
        http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    // kube-apiserver: WithCacheControl. Responses depend on the user, so no proxy may share them.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// Adds `Warning: 299 - "text"` headers.
pub(crate) fn add_warnings(response: &mut Response<Body>, warnings: &Warnings) {
    for warning in warnings.shown() {
        let mut quoted = String::with_capacity(warning.len() + 8);
        quoted.push_str("299 - \"");
        for character in warning.chars() {
            match character {
                '"' | '\\' => quoted.extend(['\\', character]),
                character => quoted.push(character),
            }
        }
        quoted.push('"');
        if let Ok(value) = HeaderValue::from_bytes(quoted.as_bytes()) {
            response.headers_mut().append(WARNING, value);
        }
    }
}

/// Returns the 429 for an overloaded server, with kube-apiserver's text.
pub(crate) fn too_many_requests() -> Response<Body> {
    let mut response = text(429, "Too many requests, please try again later.\n");
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Returns whether the client accepts gzip.
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    let mut codings = headers
        .get_all(ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    codings.any(|coding| coding.trim().split(';').next() == Some("gzip"))
}

/// Compresses a large body while it is sent.
pub(crate) fn compress(response: Response<Body>) -> Response<Body> {
    // Endless bodies (watches) are not compressed, because that would delay their events.
    if !body_stream::may_have(&response, GZIP_FROM)
        || response.headers().contains_key(CONTENT_ENCODING)
    {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts
        .headers
        .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts
        .headers
        .append(VARY, HeaderValue::from_static("Accept-Encoding"));
    // The length was that of the uncompressed body.
    parts.headers.remove(http::header::CONTENT_LENGTH);
    parts.extensions.insert(body_stream::EndsByItself);
    let gzip = Gzip(GzEncoder::new(Vec::new(), Compression::fast()));
    Response::from_parts(parts, body_stream::changed(body, gzip))
}

struct Gzip(GzEncoder<Vec<u8>>);

impl body_stream::Change for Gzip {
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        // Writing to memory does not fail.
        let _ = self.0.write_all(bytes);
        out.append(self.0.get_mut());
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        let _ = self.0.try_finish();
        out.append(self.0.get_mut());
    }
}

/// A body of shared pieces, so that lists send the stored bytes without a copy.
#[derive(Default)]
pub(crate) struct Pieces {
    pieces: VecDeque<Bytes>,
    size: u64,
}

impl Pieces {
    pub(crate) fn push(&mut self, piece: impl Into<Bytes>) {
        let piece = piece.into();
        self.size += piece.len() as u64;
        self.pieces.push_back(piece);
    }
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.pieces.pop_front();
        if let Some(piece) = &piece {
            self.size -= piece.len() as u64;
        }
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.size)
    }
}
