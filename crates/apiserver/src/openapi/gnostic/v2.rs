//! Swagger 2.0 as the protobuf message `openapi.v2.Document`, the only form in which kubectl up to 1.28 and helm read it.
//!
//! The field numbers are those of gnostic's `OpenAPIv2.proto`.

use mullion_schema::proto::Writer;
use serde_json::{Map, Value};

use super::{any, entries, extensions, flag, items, named, number, text, texts, wrapped};

/// A document under construction.
#[derive(Default)]
pub(in crate::openapi) struct Document {
    pub(in crate::openapi) paths: Writer,
    pub(in crate::openapi) definitions: Writer,
}

impl Document {
    /// Adds a path item.
    pub(in crate::openapi) fn path(&mut self, path: &str, item: &Value) {
        self.paths.bytes(2, &named(path, &path_item(item)));
    }

    /// Adds a definition.
    pub(in crate::openapi) fn definition(&mut self, name: &str, definition: &Value) {
        self.definitions.bytes(1, &named(name, &schema(definition)));
    }

    /// Returns the message, and the offsets of the paths and the definitions in it.
    pub(in crate::openapi) fn finish(
        self,
        info: &Value,
        security: &Value,
    ) -> (Vec<u8>, [usize; 2]) {
        let mut out = Writer::default();
        out.bytes(1, b"2.0");
        let mut about = Writer::default();
        text(&mut about, 1, &info["title"]);
        text(&mut about, 2, &info["version"]);
        out.bytes(2, &about.finish());
        let [paths, definitions] = [self.paths.finish(), self.definitions.finish()];
        out.bytes(8, &paths);
        let paths = out.len() - paths.len();
        out.bytes(9, &definitions);
        let definitions = out.len() - definitions.len();
        let (mut needed, mut schemes) = (Writer::default(), Writer::default());
        for (name, scheme) in entries(security) {
            needed.bytes(1, &named(name, &[]));
            schemes.bytes(1, &named(name, &wrapped(2, &api_key(scheme))));
        }
        out.bytes(12, &needed.finish());
        out.bytes(13, &schemes.finish());
        (out.finish(), [paths, definitions])
    }
}

/// Encodes `ApiKeySecurity`.
fn api_key(scheme: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    for (tag, field) in [(1, "type"), (2, "name"), (3, "in"), (4, "description")] {
        text(&mut out, tag, &scheme[field]);
    }
    out.finish()
}

/// Encodes `Properties`.
fn named_schemas(schemas: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    for (name, value) in entries(schemas) {
        out.bytes(1, &named(name, &schema(value)));
    }
    out.finish()
}

fn schema(value: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    text(&mut out, 1, &value["$ref"]);
    text(&mut out, 2, &value["format"]);
    text(&mut out, 3, &value["title"]);
    text(&mut out, 4, &value["description"]);
    if let Some(default) = value.get("default") {
        out.bytes(5, &any(default));
    }
    for (tag, field) in [(6, "multipleOf"), (7, "maximum"), (9, "minimum")] {
        number(&mut out, tag, &value[field]);
    }
    for (tag, field) in [
        (8, "exclusiveMaximum"),
        (10, "exclusiveMinimum"),
        (16, "uniqueItems"),
    ] {
        flag(&mut out, tag, &value[field]);
    }
    text(&mut out, 13, &value["pattern"]);
    for (tag, field) in [
        (11, "maxLength"),
        (12, "minLength"),
        (14, "maxItems"),
        (15, "minItems"),
        (17, "maxProperties"),
        (18, "minProperties"),
    ] {
        if let Some(number) = value[field].as_u64().filter(|number| *number > 0) {
            out.varint(tag, number);
        }
    }
    texts(&mut out, 19, &value["required"]);
    for allowed in items(&value["enum"]) {
        out.bytes(20, &any(allowed));
    }
    match value.get("additionalProperties") {
        Some(Value::Bool(allowed)) => {
            let mut item = Writer::default();
            item.varint(2, u64::from(*allowed));
            out.bytes(21, &item.finish());
        }
        Some(inner) => out.bytes(21, &wrapped(1, &schema(inner))),
        None => {}
    }
    if let Some(kind) = value["type"].as_str() {
        out.bytes(22, &wrapped(1, kind.as_bytes()));
    }
    if let Some(inner) = value.get("items") {
        out.bytes(23, &wrapped(1, &schema(inner)));
    }
    if value["properties"]
        .as_object()
        .is_some_and(|properties: &Map<String, Value>| !properties.is_empty())
    {
        out.bytes(25, &named_schemas(&value["properties"]));
    }
    extensions(&mut out, 31, value);
    out.finish()
}

fn path_item(item: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    for (tag, method) in [
        (2, "get"),
        (3, "put"),
        (4, "post"),
        (5, "delete"),
        (6, "options"),
        (7, "head"),
        (8, "patch"),
    ] {
        if let Some(verb) = item.get(method) {
            out.bytes(tag, &operation(verb));
        }
    }
    for parameter in items(&item["parameters"]) {
        out.bytes(9, &parameters_item(parameter));
    }
    out.finish()
}

fn operation(verb: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    texts(&mut out, 1, &verb["tags"]);
    text(&mut out, 3, &verb["description"]);
    text(&mut out, 5, &verb["operationId"]);
    texts(&mut out, 6, &verb["produces"]);
    texts(&mut out, 7, &verb["consumes"]);
    for parameter in items(&verb["parameters"]) {
        out.bytes(8, &parameters_item(parameter));
    }
    let mut responses = Writer::default();
    for (code, response) in entries(&verb["responses"]) {
        let mut written = Writer::default();
        text(&mut written, 1, &response["description"]);
        if let Some(inner) = response.get("schema") {
            written.bytes(2, &wrapped(1, &schema(inner)));
        }
        responses.bytes(1, &named(code, &wrapped(1, &written.finish())));
    }
    out.bytes(9, &responses.finish());
    texts(&mut out, 10, &verb["schemes"]);
    extensions(&mut out, 13, verb);
    out.finish()
}

/// Encodes a parameter; its location decides the message type.
fn parameters_item(parameter: &Value) -> Vec<u8> {
    let place = &parameter["in"];
    let mut written = Writer::default();
    if place == "body" {
        text(&mut written, 1, &parameter["description"]);
        text(&mut written, 2, &parameter["name"]);
        text(&mut written, 3, place);
        flag(&mut written, 4, &parameter["required"]);
        written.bytes(5, &schema(&parameter["schema"]));
        return wrapped(1, &wrapped(1, &written.finish()));
    }
    let (message, kind, unique) = if place == "path" {
        (4, 5, 19)
    } else {
        (3, 6, 20)
    };
    flag(&mut written, 1, &parameter["required"]);
    text(&mut written, 2, place);
    text(&mut written, 3, &parameter["description"]);
    text(&mut written, 4, &parameter["name"]);
    text(&mut written, kind, &parameter["type"]);
    flag(&mut written, unique, &parameter["uniqueItems"]);
    wrapped(1, &wrapped(2, &wrapped(message, &written.finish())))
}
