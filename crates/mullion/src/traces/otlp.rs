//! OTLP's JSON encoding of spans (opentelemetry-proto: `ExportTraceServiceRequest`).
//!
//! Ids are hexadecimal, 64-bit numbers are strings, and fields without a value are left out.

use mullion_controllers::traces::{Link, Span, Value as Attribute};
use serde_json::{Map, Value, json};

/// Spans of work inside of a process.
const INTERNAL: u32 = 1;
/// The status of spans that failed.
const ERROR: u32 = 2;

/// Returns the request that exports spans of a process with these attributes.
pub(super) fn request(resource: &[(String, String)], spans: &[Span]) -> Value {
    let resource = resource.iter();
    let resource: Vec<_> = resource
        .map(|(key, value)| json!({"key": key, "value": {"stringValue": value}}))
        .collect();
    let spans: Vec<_> = spans.iter().map(span).collect();
    let version = env!("CARGO_PKG_VERSION");
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "mullion", "version": version}, "spans": spans}],
    }]})
}

/// Returns how many spans a collector that accepted a request did not take, and why.
pub(super) fn rejected(response: &[u8]) -> Option<(u64, String)> {
    let response: Value = serde_json::from_slice(response).ok()?;
    let partial = response.get("partialSuccess")?;
    let count = partial.get("rejectedSpans")?;
    let count = count.as_u64().or_else(|| count.as_str()?.parse().ok());
    let why = partial.get("errorMessage").and_then(Value::as_str);
    count
        .filter(|count| *count > 0)
        .map(|count| (count, why.unwrap_or_default().to_owned()))
}

fn span(span: &Span) -> Value {
    let nanoseconds = |at: jiff::Timestamp| at.as_nanosecond().to_string();
    let attributes = span.attributes.iter();
    let attributes: Vec<_> = attributes
        .map(|(key, value)| json!({"key": key, "value": attribute(value)}))
        .collect();
    let mut fields = Map::new();
    let mut add = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    add("traceId", span.trace.to_string().into());
    add("spanId", span.id.to_string().into());
    if let Some(parent) = span.parent {
        add("parentSpanId", parent.to_string().into());
    }
    add("name", span.name.into());
    add("kind", INTERNAL.into());
    add("startTimeUnixNano", nanoseconds(span.start).into());
    add("endTimeUnixNano", nanoseconds(span.end).into());
    add("attributes", attributes.into());
    if !span.links.is_empty() {
        let link = |link: &Link| json!({"traceId": link.trace.to_string(), "spanId": link.span.to_string()});
        add("links", span.links.iter().map(link).collect());
    }
    if let Some(why) = &span.error {
        add("status", json!({"code": ERROR, "message": why}));
    }
    fields.into()
}

fn attribute(value: &Attribute) -> Value {
    match value {
        Attribute::Text(text) => json!({"stringValue": text}),
        Attribute::Whole(number) => json!({"intValue": number.to_string()}),
        Attribute::Number(number) => json!({"doubleValue": number}),
        Attribute::Texts(texts) => {
            let values = texts.iter().map(|text| json!({"stringValue": text}));
            json!({"arrayValue": {"values": values.collect::<Vec<_>>()}})
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use mullion_controllers::traces::TraceId;

    use super::*;

    #[test]
    fn a_span_is_written_as_otlp_has_it() {
        let trace = TraceId::of("5f3759df-1c1b-4c3e-9d0a-8a6f5b1e2d3c");
        let other = TraceId::of("00000000-0000-4000-8000-000000000001");
        let span = Span {
            trace,
            id: trace.root(),
            parent: Some(other.root()),
            name: "plan",
            start: Timestamp::UNIX_EPOCH,
            end: "2026-01-01T00:00:00.5Z".parse().expect("a time"),
            attributes: vec![
                ("text", Attribute::Text("a".to_owned())),
                ("whole", Attribute::Whole(3)),
                ("number", Attribute::Number(0.5)),
                ("texts", Attribute::Texts(vec!["b".to_owned()])),
            ],
            links: vec![Link {
                trace: other,
                span: other.root(),
            }],
            error: Some("no room".to_owned()),
        };
        let resource = [("service.name".to_owned(), "mullion".to_owned())];
        let request = request(&resource, &[span]);
        let link = json!({"traceId": other.to_string(), "spanId": other.root().to_string()});
        let attributes = json!([
            {"key": "text", "value": {"stringValue": "a"}},
            {"key": "whole", "value": {"intValue": "3"}},
            {"key": "number", "value": {"doubleValue": 0.5}},
            {"key": "texts", "value": {"arrayValue": {"values": [{"stringValue": "b"}]}}},
        ]);
        let span = json!({
            "traceId": "5f3759df1c1b4c3e9d0a8a6f5b1e2d3c",
            "spanId": trace.root().to_string(),
            "parentSpanId": other.root().to_string(),
            "name": "plan",
            "kind": 1,
            "startTimeUnixNano": "0",
            "endTimeUnixNano": "1767225600500000000",
            "attributes": attributes,
            "links": [link],
            "status": {"code": 2, "message": "no room"},
        });
        let name = json!({"key": "service.name", "value": {"stringValue": "mullion"}});
        let scope = json!({"name": "mullion", "version": env!("CARGO_PKG_VERSION")});
        let expected = json!({"resourceSpans": [{
            "resource": {"attributes": [name]},
            "scopeSpans": [{"scope": scope, "spans": [span]}],
        }]});
        assert_eq!(request, expected);
        assert_eq!(trace.root().to_string().len(), 16);
    }

    #[test]
    fn spans_that_a_collector_rejects_are_counted() {
        assert_eq!(rejected(b"{}"), None);
        assert_eq!(rejected(b""), None);
        let none = br#"{"partialSuccess": {"rejectedSpans": "0", "errorMessage": "slow down"}}"#;
        assert_eq!(rejected(none), None);
        let some = br#"{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}"#;
        assert_eq!(rejected(some), Some((2, "too old".to_owned())));
    }
}
