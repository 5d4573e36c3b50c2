//! OpenAPI 3.0 as the protobuf message `openapi.v3.Document`.
//!
//! The field numbers are those of gnostic's `OpenAPIv3.proto`.

use mullion_schema::proto::Writer;
use serde_json::Value;

use super::{any, entries, extensions, flag, items, named, number, text, texts, wrapped};

/// Encodes a document.
pub(in crate::openapi) fn document(document: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    text(&mut out, 1, &document["openapi"]);
    let mut info = Writer::default();
    text(&mut info, 1, &document["info"]["title"]);
    text(&mut info, 6, &document["info"]["version"]);
    out.bytes(2, &info.finish());
    let mut paths = Writer::default();
    for (path, item) in entries(&document["paths"]) {
        paths.bytes(1, &named(path, &path_item(item)));
    }
    out.bytes(4, &paths.finish());
    let mut components = Writer::default();
    components.bytes(1, &named_schemas(&document["components"]["schemas"]));
    let mut schemes = Writer::default();
    for (name, scheme) in entries(&document["components"]["securitySchemes"]) {
        let mut written = Writer::default();
        for (tag, field) in [(1, "type"), (2, "description"), (3, "name"), (4, "in")] {
            text(&mut written, tag, &scheme[field]);
        }
        schemes.bytes(1, &named(name, &wrapped(1, &written.finish())));
    }
    let schemes = schemes.finish();
    if !schemes.is_empty() {
        components.bytes(7, &schemes);
    }
    out.bytes(5, &components.finish());
    out.finish()
}

fn path_item(item: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    for (tag, method) in [
        (4, "get"),
        (5, "put"),
        (6, "post"),
        (7, "delete"),
        (8, "options"),
        (9, "head"),
        (10, "patch"),
    ] {
        if let Some(verb) = item.get(method) {
            out.bytes(tag, &operation(verb));
        }
    }
    for parameter in items(&item["parameters"]) {
        out.bytes(13, &parameter_or_reference(parameter));
    }
    out.finish()
}

fn operation(verb: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    texts(&mut out, 1, &verb["tags"]);
    text(&mut out, 3, &verb["description"]);
    text(&mut out, 5, &verb["operationId"]);
    for parameter in items(&verb["parameters"]) {
        out.bytes(6, &parameter_or_reference(parameter));
    }
    if let Some(body) = verb.get("requestBody") {
        let mut written = Writer::default();
        text(&mut written, 1, &body["description"]);
        content(&mut written, 2, &body["content"]);
        flag(&mut written, 3, &body["required"]);
        out.bytes(7, &wrapped(1, &written.finish()));
    }
    let mut responses = Writer::default();
    for (code, response) in entries(&verb["responses"]) {
        let mut written = Writer::default();
        text(&mut written, 1, &response["description"]);
        content(&mut written, 3, &response["content"]);
        responses.bytes(2, &named(code, &wrapped(1, &written.finish())));
    }
    out.bytes(8, &responses.finish());
    extensions(&mut out, 13, verb);
    out.finish()
}

/// Encodes `MediaTypes`.
fn content(out: &mut Writer, tag: u32, content: &Value) {
    if !content.is_object() {
        return;
    }
    let mut types = Writer::default();
    for (name, media) in entries(content) {
        let mut written = Writer::default();
        if let Some(schema) = media.get("schema") {
            written.bytes(1, &schema_or_reference(schema));
        }
        types.bytes(1, &named(name, &written.finish()));
    }
    out.bytes(tag, &types.finish());
}

fn parameter_or_reference(parameter: &Value) -> Vec<u8> {
    if parameter.get("$ref").is_some() {
        return wrapped(2, &reference(parameter));
    }
    let mut out = Writer::default();
    text(&mut out, 1, &parameter["name"]);
    text(&mut out, 2, &parameter["in"]);
    text(&mut out, 3, &parameter["description"]);
    flag(&mut out, 4, &parameter["required"]);
    if let Some(schema) = parameter.get("schema") {
        out.bytes(10, &schema_or_reference(schema));
    }
    wrapped(1, &out.finish())
}

fn reference(value: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    text(&mut out, 1, &value["$ref"]);
    text(&mut out, 3, &value["description"]);
    out.finish()
}

fn schema_or_reference(value: &Value) -> Vec<u8> {
    match value.get("$ref") {
        Some(_) => wrapped(2, &reference(value)),
        None => wrapped(1, &schema(value)),
    }
}

/// Encodes `Properties` or `SchemasOrReferences`.
fn named_schemas(schemas: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    for (name, value) in entries(schemas) {
        out.bytes(1, &named(name, &schema_or_reference(value)));
    }
    out.finish()
}

fn schema(value: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    flag(&mut out, 1, &value["nullable"]);
    if let Some(docs) = value.get("externalDocs") {
        let mut written = Writer::default();
        text(&mut written, 1, &docs["description"]);
        text(&mut written, 2, &docs["url"]);
        out.bytes(6, &written.finish());
    }
    if let Some(example) = value.get("example") {
        out.bytes(7, &any(example));
    }
    text(&mut out, 9, &value["title"]);
    number(&mut out, 10, &value["multipleOf"]);
    number(&mut out, 11, &value["maximum"]);
    flag(&mut out, 12, &value["exclusiveMaximum"]);
    number(&mut out, 13, &value["minimum"]);
    flag(&mut out, 14, &value["exclusiveMinimum"]);
    text(&mut out, 17, &value["pattern"]);
    for (tag, field) in [
        (15, "maxLength"),
        (16, "minLength"),
        (18, "maxItems"),
        (19, "minItems"),
        (21, "maxProperties"),
        (22, "minProperties"),
    ] {
        if let Some(number) = value[field].as_u64().filter(|number| *number > 0) {
            out.varint(tag, number);
        }
    }
    flag(&mut out, 20, &value["uniqueItems"]);
    texts(&mut out, 23, &value["required"]);
    for allowed in items(&value["enum"]) {
        out.bytes(24, &any(allowed));
    }
    text(&mut out, 25, &value["type"]);
    for (tag, field) in [(26, "allOf"), (27, "oneOf"), (28, "anyOf")] {
        for option in items(&value[field]) {
            out.bytes(tag, &schema_or_reference(option));
        }
    }
    if let Some(excluded) = value.get("not") {
        out.bytes(29, &schema(excluded));
    }
    if let Some(inner) = value.get("items") {
        out.bytes(30, &wrapped(1, &schema_or_reference(inner)));
    }
    if value.get("properties").is_some() {
        out.bytes(31, &named_schemas(&value["properties"]));
    }
    match value.get("additionalProperties") {
        Some(Value::Bool(allowed)) => {
            let mut item = Writer::default();
            item.varint(2, u64::from(*allowed));
            out.bytes(32, &item.finish());
        }
        Some(inner) => out.bytes(32, &wrapped(1, &schema_or_reference(inner))),
        None => {}
    }
    if let Some(default) = value.get("default") {
        out.bytes(33, &default_type(default));
    }
    text(&mut out, 34, &value["description"]);
    text(&mut out, 35, &value["format"]);
    extensions(&mut out, 36, value);
    out.finish()
}

/// Encodes `DefaultType`, which holds scalars only; for other defaults the message is empty.
fn default_type(default: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    match default {
        Value::Number(number) => out.fixed64(1, number.as_f64().unwrap_or_default().to_bits()),
        Value::Bool(flag) => out.varint(2, u64::from(*flag)),
        Value::String(text) => out.bytes(3, text.as_bytes()),
        _ => {}
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_is_written_field_by_field() {
        let given = json!({
            "type": "object", "description": "d", "minimum": 1, "maxItems": 300, "default": {},
            "properties": {"a": {"$ref": "#/b"}}, "x-c": [1], "additionalProperties": false, "items": {"default": "e"},
        });
        let mut wanted = Vec::new();
        wanted.extend([13 << 3 | 1, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        wanted.extend([0x90, 0x01, 0xac, 0x02]);
        wanted.extend(b"\xca\x01\x06object");
        wanted.extend(b"\xf2\x01\x0a\x0a\x08\x0a\x06\x8a\x02\x03\x1a\x01e");
        wanted.extend(b"\xfa\x01\x0e\x0a\x0c\x0a\x01a\x12\x07\x12\x05\x0a\x03#/b");
        wanted.extend(b"\x82\x02\x02\x10\x00\x8a\x02\x00\x92\x02\x01d");
        wanted.extend(b"\xa2\x02\x0c\x0a\x03x-c\x12\x05\x12\x03[1]");
        assert_eq!(schema(&given), wanted);
    }
}
