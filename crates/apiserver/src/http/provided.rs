//! GET of resources that the embedding program provides ([`crate::provided`]): lists and single objects, in every form that reads
//! support.

use axum::body::Body;
use http::Response;
use mullion_kinds::{Labels, ObjectQuery, ObjectSource};
use mullion_kube_text::status::{Details, Status};
use mullion_schema::proto;
use serde_json::{Map, Value, json};

use super::{
    call::Call,
    list,
    negotiate::{Media, Shape},
    reply::{self, Outcome},
    selector::Selector,
    table,
};
use crate::provided::Tagged;

/// Returns whether a selector selects an object, in the form that an [`ObjectQuery`] asks.
fn selects(selector: &Selector) -> impl Fn(&str, &str, Option<&Labels>) -> bool {
    move |namespace, name, labels| {
        selector.takes(namespace, name, |key| {
            labels.and_then(|labels| labels.get(key).map(String::as_str))
        })
    }
}

/// Answers a read; a watch is refused.
pub(crate) fn serve(call: &Call, watched: bool) -> Result<Response<Body>, Status> {
    let source = call.resource().source().ok_or_else(Status::no_such_path)?;
    if watched {
        let why = format!(
            "watch is not supported on resources of kind {:?}",
            call.resource().qualified()
        );
        return Err(Status::new(405, "MethodNotAllowed", why));
    }
    if call.name.is_empty() {
        list(call, source)
    } else {
        get(call, source)
    }
}

fn get(call: &Call, source: &dyn ObjectSource) -> Result<Response<Body>, Status> {
    let wanted = ObjectQuery::new(call.namespace.as_deref(), Some(&call.name), &|_, _, _| true);
    let found = source.list(&wanted).into_iter().next();
    let object = found.ok_or_else(|| not_found(call))?;
    let object = typed(call, object);
    if let Some(message) = message(call) {
        return Ok(in_protobuf(proto::provided::encode_object(
            message, &object,
        )));
    }
    reply::outcome(call, 200, Outcome::Object(object))
}

/// Returns the 404 as aggregated servers write it: with the kind and the namespace (metrics-server).
fn not_found(call: &Call) -> Status {
    let resource = call.resource();
    let plural = resource.kind.to_ascii_lowercase();
    let name = match &call.namespace {
        Some(namespace) => format!("{namespace}/{}", call.name),
        None => call.name.clone(),
    };
    let why = format!("{plural}.{} {name:?} not found", resource.group);
    let mut status = Status::new(404, "NotFound", why);
    status.details = Some(Box::new(Details {
        name,
        group: resource.group.to_string(),
        kind: plural,
        ..Details::default()
    }));
    status
}

fn list(call: &Call, source: &dyn ObjectSource) -> Result<Response<Body>, Status> {
    // Only validate the list options: there is a single page, and no earlier revision.
    let (_, selector) = list::asked(call)?;
    // Kept as a result: an invalid `includeObject` is an error only where a table is made.
    let include = table::Include::parse(&call.query);
    let objects = source.list(&ObjectQuery::new(
        call.namespace.as_deref(),
        None,
        &selects(&selector),
    ));
    let metadata = Value::Object(Map::new());
    let answer = match call.form.shape {
        Shape::Whole => json!({
            "kind": call.row.list_kind(), "apiVersion": call.row.api_version(), "metadata": metadata, "items": objects,
        }),
        Shape::Table(version) => {
            let include = include?;
            let rows = objects.into_iter().map(|object| {
                table::row(&call.row, version, &typed(call, object), call.now, include)
            });
            table::table(
                version,
                metadata,
                table::definitions(&call.row),
                rows.collect(),
            )
        }
        Shape::Metadata(version) | Shape::MetadataList(version) => {
            let items = objects
                .iter()
                .map(|object| table::metadata_of(&call.row, object, version));
            let items: Value = items.collect();
            json!({"kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": metadata, "items": items})
        }
    };
    if let Some(message) = message(call) {
        return Ok(in_protobuf(proto::provided::encode_list(message, &answer)));
    }
    reply::encode(call.form.media, 200, &answer, None)
}

/// Returns the protobuf message definition if the client wants whole objects in protobuf.
fn message(call: &Call) -> Option<&'static [Tagged]> {
    let wanted = call.form.media == Media::Protobuf && call.form.shape == Shape::Whole;
    wanted.then(|| call.resource().message())
}

fn in_protobuf(body: Vec<u8>) -> Response<Body> {
    reply::bytes(200, Media::Protobuf, body.into())
}

fn typed(call: &Call, mut object: Value) -> Value {
    object["apiVersion"] = call.row.api_version().into();
    object["kind"] = (*call.resource().kind).into();
    object
}
