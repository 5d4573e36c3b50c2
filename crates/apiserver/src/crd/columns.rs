//! Prints custom resources as table rows: the printer columns of a definition, and the cells that their JSONPaths select.
//!
//! A path that selects nothing makes an empty cell, and of several values the first is shown. If a path cannot be parsed, the table ends
//! before its column. Source: k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor.

use jiff::Timestamp;
use mullion_kinds::{Column, print};
use mullion_kube_text::golang::number;
use serde_json::Value;

use super::{intern, jsonpath::JsonPath};

/// The columns of one version.
#[derive(Debug)]
pub(crate) struct Columns {
    columns: Vec<Column>,
    paths: Vec<(String, JsonPath)>,
}

impl Columns {
    /// Returns the columns of a version: the name, then the definition's columns or, if it has none, the age.
    pub(crate) fn of(version: &Value) -> Columns {
        let mut columns = vec![Column {
            name: "Name",
            cell_type: "string",
            format: "name",
            priority: 0,
        }];
        let mut paths = Vec::new();
        let given = version
            .get("additionalPrinterColumns")
            .and_then(Value::as_array)
            .filter(|columns| !columns.is_empty());
        let text = |column: &Value, field: &str| {
            column
                .get(field)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        for column in given.into_iter().flatten() {
            let Ok(path) = JsonPath::parse(&text(column, "jsonPath")) else {
                break;
            };
            columns.push(Column {
                name: intern(&text(column, "name")),
                cell_type: intern(&text(column, "type")),
                format: intern(&text(column, "format")),
                priority: column
                    .get("priority")
                    .and_then(Value::as_i64)
                    .and_then(|priority| priority.try_into().ok())
                    .unwrap_or(0),
            });
            paths.push((text(column, "type"), path));
        }
        if given.is_none() {
            columns.push(Column {
                name: "Age",
                cell_type: "date",
                format: "",
                priority: 0,
            });
            let path = JsonPath::parse(".metadata.creationTimestamp");
            paths.extend(path.ok().map(|path| ("date".to_owned(), path)));
        }
        Columns { columns, paths }
    }

    pub(crate) fn definitions(&self) -> &[Column] {
        &self.columns
    }

    pub(crate) fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let name = object
            .pointer("/metadata/name")
            .cloned()
            .unwrap_or_default();
        let cells = self
            .paths
            .iter()
            .map(|(kind, path)| cell(kind, &path.find(object).unwrap_or_default(), now));
        std::iter::once(name).chain(cells).collect()
    }
}

fn cell(kind: &str, found: &[&Value], now: Timestamp) -> Value {
    let Some(first) = found.first() else {
        return Value::Null;
    };
    match kind {
        // Go's templates print this for null.
        "string" if first.is_null() => "<no value>".into(),
        _ if first.is_null() => Value::Null,
        // Go's conversion to an integer drops the fraction.
        "integer" => match (first.as_i64(), first.as_f64()) {
            (Some(whole), _) => whole.into(),
            (None, Some(number)) => (number as i64).into(),
            (None, None) => Value::Null,
        },
        "number" => match first {
            Value::Number(number) => number.clone().into(),
            _ => Value::Null,
        },
        "boolean" => first.as_bool().map_or(Value::Null, Value::from),
        "date" => match first.as_str() {
            None => Value::Null,
            Some("") => "<unknown>".into(),
            Some(text) => match text.parse::<Timestamp>() {
                Ok(time) => print::duration(now.as_second() - time.as_second()).into(),
                Err(_) => "<invalid>".into(),
            },
        },
        _ => text(first).into(),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // Go's JSON encoder escapes `<`, `>` and `&`, which occur only inside strings.
        Value::Array(_) | Value::Object(_) => number::json_text(value)
            .replace('<', "\\u003c")
            .replace('>', "\\u003e")
            .replace('&', "\\u0026"),
        Value::Number(number) if number.is_f64() => {
            number::text(number.as_f64().unwrap_or_default())
        }
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_that_cannot_be_read_is_the_end_of_the_columns() {
        let column =
            |name: &str, path: &str| json!({"name": name, "type": "string", "jsonPath": path});
        let version = json!({"additionalPrinterColumns": [column("A", ".a"), column("B", ".b["), column("C", ".c")]});
        let columns = Columns::of(&version);
        let names: Vec<&str> = columns
            .definitions()
            .iter()
            .map(|column| column.name)
            .collect();
        assert_eq!(names, ["Name", "A"]);
        let object = json!({"metadata": {"name": "x"}, "a": 1, "c": 2});
        assert_eq!(
            columns.cells(&object, Timestamp::UNIX_EPOCH),
            [json!("x"), json!("1")]
        );
    }

    #[test]
    fn cells_are_of_the_columns_type() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().expect("it is a time");
        for (kind, found, shown) in [
            ("integer", json!([42]), json!(42)),
            ("integer", json!([3.99]), json!(3)),
            ("integer", json!([true]), Value::Null),
            ("number", json!([3.5]), json!(3.5)),
            ("number", json!(["x"]), Value::Null),
            ("boolean", json!([true]), json!(true)),
            ("boolean", json!(["true"]), Value::Null),
            ("string", json!([true]), json!("true")),
            ("string", json!([["a"], ["b"]]), json!("[\"a\"]")),
            ("date", json!(["2026-01-01T00:00:00Z"]), json!("12h")),
            ("date", json!(["2027-01-01T00:00:00Z"]), json!("<invalid>")),
            ("date", json!(["x"]), json!("<invalid>")),
            ("date", json!([""]), json!("<unknown>")),
            ("date", json!([4]), Value::Null),
            ("string", json!([{"a": "<"}]), json!(r#"{"a":"\u003c"}"#)),
            ("string", json!([1500000.5]), json!("1.5000005e+06")),
            ("string", json!([null]), json!("<no value>")),
            ("integer", json!([null]), Value::Null),
            ("string", json!([]), Value::Null),
        ] {
            let found: Vec<&Value> = found.as_array().into_iter().flatten().collect();
            assert_eq!(cell(kind, &found, now), shown, "{kind} {found:?}");
        }
    }
}
