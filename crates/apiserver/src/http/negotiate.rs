//! What form the client wants its answer in, from the Accept header.

use http::{HeaderMap, header::ACCEPT};

use crate::status::Status;

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    Json,
    Yaml,
    Protobuf,
}

impl Media {
    /// The Content-Type.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Media::Json => "application/json",
            Media::Yaml => "application/yaml",
            Media::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// What is made of the objects before they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Nothing.
    Whole,
    /// A `meta.k8s.io` Table, of that version.
    Table(&'static str),
    /// PartialObjectMetadata, of that version.
    Metadata(&'static str),
    /// PartialObjectMetadataList, of that version.
    MetadataList(&'static str),
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub media: Media,
    pub shape: Shape,
}

impl Form {
    /// The form nobody needs to ask for.
    pub(crate) const JSON: Form = Form {
        media: Media::Json,
        shape: Shape::Whole,
    };
}

/// The media types that objects can be had in, for the refusals.
pub(crate) const SUPPORTED: &str =
    "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// One clause of an Accept header.
pub(crate) struct Clause<'a> {
    /// As `application/json`, `*/*`.
    pub range: &'a str,
    quality: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    /// The value of a parameter; empty if it is not there.
    pub(crate) fn parameter(&self, name: &str) -> &'a str {
        self.parameters
            .iter()
            .find(|(key, _)| *key == name)
            .map_or("", |(_, value)| value)
    }
}

/// The clauses of the Accept headers, the most wanted first.
pub(crate) fn clauses(headers: &HeaderMap) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = Vec::new();
    for header in headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
    {
        for clause in header
            .split(',')
            .map(str::trim)
            .filter(|clause| !clause.is_empty())
        {
            let mut parts = clause.split(';').map(str::trim);
            let range = parts.next().unwrap_or_default();
            let parameters: Vec<(&str, &str)> =
                parts.filter_map(|part| part.split_once('=')).collect();
            let quality = parameters
                .iter()
                .find(|(key, _)| *key == "q")
                .and_then(|(_, value)| value.parse().ok());
            clauses.push(Clause {
                range,
                quality: quality.unwrap_or(1.0),
                parameters,
            });
        }
    }
    clauses.sort_by(|one, other| other.quality.total_cmp(&one.quality));
    clauses
}

/// Picks the first clause that can be met. JSON is preferred to protobuf wherever the client takes both: the store keeps JSON. Custom resources are
/// behind no router upstream, whose refusals have other words.
pub(crate) fn negotiate(headers: &HeaderMap, custom: bool) -> Result<Form, Status> {
    let clauses = clauses(headers);
    if clauses.is_empty() {
        return Ok(Form::JSON);
    }
    let mut binary = None;
    let mut unknown_shape = false;
    for clause in &clauses {
        let media = match clause.range {
            "*/*" | "application/*" | "application/json" => Media::Json,
            "application/yaml" => Media::Yaml,
            "application/vnd.kubernetes.protobuf" => Media::Protobuf,
            _ => continue,
        };
        let Some(shape) = shape(clause) else {
            unknown_shape = true;
            continue;
        };
        let form = Form { media, shape };
        if media == Media::Protobuf {
            binary = binary.or(Some(form));
            continue;
        }
        return Ok(form);
    }
    if let Some(form) = binary {
        return Ok(form);
    }
    Err(if unknown_shape || custom {
        Status::new(
            406,
            "NotAcceptable",
            format!("only the following media types are accepted: {SUPPORTED}"),
        )
    } else {
        let mut status = Status::new(
            406,
            "NotAcceptable",
            format!("406: Not Acceptable\n\nAvailable representations: {SUPPORTED}"),
        );
        status.details = Some(Box::default());
        status
    })
}

/// What refusals are written in; a client that takes nothing we have gets JSON.
pub(crate) fn of_refusals(headers: &HeaderMap) -> Media {
    let plain = |value: &http::HeaderValue| value.as_bytes().starts_with(b"application/json");
    // What nearly everybody sends needs no second look.
    if headers.get(ACCEPT).is_none_or(plain) {
        return Media::Json;
    }
    negotiate(headers, false).map_or(Media::Json, |form| form.media)
}

/// What `as`, `v` and `g` ask for; `None` if it is nothing we know.
fn shape(clause: &Clause<'_>) -> Option<Shape> {
    let kind = clause.parameter("as");
    if kind.is_empty() {
        return Some(Shape::Whole);
    }
    if clause.parameter("g") != "meta.k8s.io" {
        return None;
    }
    let version = match clause.parameter("v") {
        "v1" => "meta.k8s.io/v1",
        "v1beta1" => "meta.k8s.io/v1beta1",
        _ => return None,
    };
    match kind {
        "Table" => Some(Shape::Table(version)),
        "PartialObjectMetadata" => Some(Shape::Metadata(version)),
        "PartialObjectMetadataList" => Some(Shape::MetadataList(version)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(accept: &str) -> Result<Form, Status> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        negotiate(&headers, false)
    }

    #[test]
    fn the_first_clause_that_can_be_met_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(form(table).unwrap().shape, Shape::Table("meta.k8s.io/v1"));
        assert_eq!(
            form("application/json;as=Table;v=v2;g=meta.k8s.io,application/json"),
            Ok(Form::JSON)
        );
        assert_eq!(
            form("application/yaml;q=0.5,application/json"),
            Ok(Form::JSON)
        );
        assert_eq!(
            form("application/vnd.kubernetes.protobuf,application/json"),
            Ok(Form::JSON)
        );
        assert_eq!(
            form("application/vnd.kubernetes.protobuf").unwrap().media,
            Media::Protobuf
        );
        assert_eq!(form("*/*"), Ok(Form::JSON));
        assert_eq!(form("text/html").unwrap_err().code, 406);
        assert_eq!(
            form("application/json;as=Foo;v=v1;g=meta.k8s.io")
                .unwrap_err()
                .details,
            None
        );
    }
}
