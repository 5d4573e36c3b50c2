//! Content negotiation: chooses the form of the response from the Accept header.

use http::{HeaderMap, header::ACCEPT};
use mullion_kube_text::status::Status;

use super::reply;

/// The encoding of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    Json,
    Yaml,
    Protobuf,
}

impl Media {
    /// Returns the Content-Type of the encoding.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Media::Json => "application/json",
            Media::Yaml => "application/yaml",
            Media::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// The representation of objects in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The objects themselves.
    Whole,
    /// A `meta.k8s.io` Table of this version.
    Table(&'static str),
    /// A PartialObjectMetadata of this version.
    Metadata(&'static str),
    /// A PartialObjectMetadataList of this version.
    MetadataList(&'static str),
}

/// The form of a response: its encoding and its representation of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub media: Media,
    pub shape: Shape,
}

impl Form {
    /// The default form: whole objects as JSON.
    pub(crate) const JSON: Form = Form {
        media: Media::Json,
        shape: Shape::Whole,
    };
}

/// The media types of objects, for error messages.
pub(crate) const SUPPORTED: &str =
    "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// The media types of watches, for error messages.
const STREAMED: &str =
    "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";

/// One clause of an Accept header.
pub(crate) struct Clause<'a> {
    /// The media range, for example `application/json` or `*/*`.
    pub range: &'a str,
    quality: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    /// Returns the clause's quality value `q`, 1 by default.
    pub(crate) fn quality(&self) -> f32 {
        self.quality
    }

    /// Returns the value of a parameter, empty if it is absent.
    pub(crate) fn parameter(&self, name: &str) -> &'a str {
        self.parameters
            .iter()
            .find(|(key, _)| *key == name)
            .map_or("", |(_, value)| value)
    }
}

/// Returns the clauses of all Accept headers, highest quality first.
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
    // A stable sort, so clauses of the same quality keep the client's order.
    clauses.sort_by(|one, other| other.quality.total_cmp(&one.quality));
    clauses
}

/// The properties of a request that decide which forms it can get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestProperties {
    /// Whether the resource has no protobuf messages: custom resources, and provided resources that do not declare any. kube-apiserver
    /// serves custom resources without its router, so their error messages differ as well.
    pub custom: bool,
    /// Whether the response has many objects (a list or a watch).
    pub collection: bool,
    pub watch: bool,
    /// Whether the request is for a log. kube-apiserver's router accepts `text/plain` there, and the handler behind it then refuses it.
    pub log: bool,
}

/// Chooses the first clause that can be met. JSON wins over protobuf where the client accepts both, because the store keeps JSON.
pub(crate) fn negotiate(headers: &HeaderMap, asked: RequestProperties) -> Result<Form, Status> {
    let clauses = clauses(headers);
    if clauses.is_empty() {
        return Ok(Form::JSON);
    }
    let mut binary = None;
    let mut known = asked.custom;
    for clause in &clauses {
        let media = match clause.range {
            "*/*" | "application/json" => Media::Json,
            "application/*" if asked.custom => Media::Json,
            "application/yaml" => Media::Yaml,
            "application/vnd.kubernetes.protobuf" => Media::Protobuf,
            range => {
                known |= asked.log && range == "text/plain";
                continue;
            }
        };
        known = true;
        let Some(shape) = shape(clause, media) else {
            continue;
        };
        // Metadata and lists of metadata have messages of their own, so only whole objects are refused.
        if asked.custom && media == Media::Protobuf && shape == Shape::Whole {
            continue;
        }
        let form = Form { media, shape };
        if media == Media::Protobuf {
            binary = binary.or(Some(form));
            continue;
        }
        // kube-apiserver has no streaming serializer for YAML.
        if asked.watch && media == Media::Yaml {
            return Err(not_acceptable(STREAMED));
        }
        return Ok(form);
    }
    if let Some(form) = binary {
        return Ok(form);
    }
    if known {
        return Err(not_acceptable(SUPPORTED));
    }
    let streams = if asked.collection {
        format!(", {STREAMED}")
    } else {
        String::new()
    };
    let text = if asked.log { "text/plain, " } else { "" };
    Err(not_routed(&format!("{text}{SUPPORTED}{streams}")))
}

/// Chooses the encoding of a plain discovery list, which has no other representations. `routed` says whether kube-apiserver's router looks
/// at the header first.
pub(crate) fn of_lists(headers: &HeaderMap, routed: bool) -> Result<Media, Status> {
    let clauses = clauses(headers);
    let mut known = !routed || clauses.is_empty();
    for clause in &clauses {
        let media = match clause.range {
            "*/*" | "application/json" => Media::Json,
            "application/*" if !routed => Media::Json,
            "application/yaml" => Media::Yaml,
            "application/vnd.kubernetes.protobuf" => Media::Protobuf,
            _ => continue,
        };
        known = true;
        if shape(clause, media) == Some(Shape::Whole) {
            return Ok(media);
        }
    }
    match (clauses.is_empty(), known) {
        (true, _) => Ok(Media::Json),
        (false, true) => Err(not_acceptable(SUPPORTED)),
        (false, false) => Err(not_routed(SUPPORTED)),
    }
}

/// Returns the 406 of kube-apiserver's router, which names the media types of the path.
fn not_routed(available: &str) -> Status {
    let why = format!("406: Not Acceptable\n\nAvailable representations: {available}");
    let mut status = Status::new(406, "NotAcceptable", why);
    status.details = Some(Box::default());
    status
}

fn not_acceptable(accepted: &str) -> Status {
    reply::not_acceptable(&format!(
        "only the following media types are accepted: {accepted}"
    ))
}

/// Returns the encoding of errors; a client that accepts none of ours gets JSON.
pub(crate) fn of_refusals(headers: &HeaderMap) -> Media {
    let plain = |value: &http::HeaderValue| value.as_bytes().starts_with(b"application/json");
    // A shortcut for the header that nearly every client sends.
    if headers.get(ACCEPT).is_none_or(plain) {
        return Media::Json;
    }
    let plain = RequestProperties {
        custom: false,
        collection: false,
        watch: false,
        log: false,
    };
    match negotiate(headers, plain) {
        Ok(form) if form.shape == Shape::Whole => form.media,
        _ => Media::Json,
    }
}

/// Returns the representation that a clause's parameters ask for, or `None` if there is no such one (apiserver:
/// `acceptMediaTypeOptions`).
fn shape(clause: &Clause<'_>, media: Media) -> Option<Shape> {
    let streams = matches!(
        (clause.parameter("stream"), media),
        ("", _) | ("watch", Media::Json | Media::Protobuf)
    );
    if !streams || !matches!(clause.parameter("sv"), "" | "v1") {
        return None;
    }
    let converts = ["as", "g", "v"];
    if !clause
        .parameters
        .iter()
        .any(|(key, _)| converts.contains(key))
    {
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
    match clause.parameter("as") {
        // kube-apiserver gives tables as JSON or YAML only; a later clause of the header may still fit.
        "Table" if media != Media::Protobuf => Some(Shape::Table(version)),
        "PartialObjectMetadata" => Some(Shape::Metadata(version)),
        "PartialObjectMetadataList" => Some(Shape::MetadataList(version)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: RequestProperties = RequestProperties {
        custom: false,
        collection: false,
        watch: false,
        log: false,
    };

    fn form_of(accept: &str, asked: RequestProperties) -> Result<Form, Status> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        negotiate(&headers, asked)
    }

    fn form(accept: &str) -> Result<Form, Status> {
        form_of(accept, PLAIN)
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

    #[test]
    fn parameters_that_are_not_understood_are_refused() {
        for accept in [
            "application/json;g=meta.k8s.io;v=v1",
            "application/json;as=Table;v=v1;g=apps",
            "application/json;stream=other",
            "application/yaml;stream=watch",
            "application/json;sv=v2",
            "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
            "application/*",
        ] {
            assert_eq!(form(accept).unwrap_err().code, 406, "{accept}");
        }
        for accept in ["application/json;stream=watch", "application/json;sv=v1"] {
            assert_eq!(form(accept), Ok(Form::JSON), "{accept}");
        }
    }

    #[test]
    fn logs_are_let_through_as_text_and_are_none_then() {
        let log = RequestProperties { log: true, ..PLAIN };
        let refusal = form_of("text/plain", log).unwrap_err();
        assert!(
            refusal
                .message
                .starts_with("only the following media types")
        );
        let refusal = form_of("text/html", log).unwrap_err();
        let start =
            "406: Not Acceptable\n\nAvailable representations: text/plain, application/json,";
        assert!(refusal.message.starts_with(start), "{}", refusal.message);
    }

    #[test]
    fn watches_and_custom_resources_have_forms_of_their_own() {
        let watch = RequestProperties {
            collection: true,
            watch: true,
            ..PLAIN
        };
        let refusal = form_of("application/yaml", watch).unwrap_err();
        assert!(refusal.message.ends_with(STREAMED), "{}", refusal.message);
        let refusal = form_of("text/html", watch).unwrap_err();
        assert!(refusal.message.ends_with(STREAMED), "{}", refusal.message);
        let custom = RequestProperties {
            custom: true,
            ..PLAIN
        };
        assert_eq!(form_of("application/*", custom), Ok(Form::JSON));
        let binary = "application/vnd.kubernetes.protobuf";
        assert_eq!(form_of(binary, custom).unwrap_err().code, 406);
        let metadata = format!("{binary};as=PartialObjectMetadata;v=v1;g=meta.k8s.io");
        assert_eq!(form_of(&metadata, custom).unwrap().media, Media::Protobuf);
    }
}
