//! Printer columns of custom resources: a small JSONPath and how its results become cells.
//!
//! Paths are those a definition may give: fields, indexes, `[*]`, `[?(@.a=="b")]` and quoted names. A path that finds nothing makes an empty cell,
//! and of several values the first is shown. Source: k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor.

use jiff::Timestamp;
use serde_json::Value;

use super::intern;
use crate::kinds::{Column, print};

/// The columns of one version.
#[derive(Debug)]
pub(crate) struct Columns {
    columns: Vec<Column>,
    paths: Vec<(String, JsonPath)>,
}

impl Columns {
    /// Name, then the definition's own columns, then (if it has none) the age.
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
            paths.push((
                text(column, "type"),
                JsonPath::parse(&text(column, "jsonPath")),
            ));
        }
        if given.is_none() {
            columns.push(Column {
                name: "Age",
                cell_type: "date",
                format: "",
                priority: 0,
            });
            paths.push((
                "date".to_owned(),
                JsonPath::parse(".metadata.creationTimestamp"),
            ));
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
            .map(|(kind, path)| cell(kind, &path.find(object), now));
        std::iter::once(name).chain(cells).collect()
    }
}

fn cell(kind: &str, found: &[&Value], now: Timestamp) -> Value {
    let Some(first) = found.first().filter(|value| !value.is_null()) else {
        return Value::Null;
    };
    match kind {
        // Go cuts fractions off.
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
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    /// `[?(@.path op literal)]`
    Filter {
        path: Vec<Step>,
        negated: bool,
        wanted: Value,
    },
}

/// A parsed JSONPath.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonPath(Vec<Step>);

impl JsonPath {
    /// Reads a path; what cannot be read ends it.
    pub(crate) fn parse(text: &str) -> JsonPath {
        let mut steps = Vec::new();
        let mut rest = text;
        while let Some(step) = next_step(&mut rest) {
            steps.push(step);
        }
        JsonPath(steps)
    }

    /// What the path finds.
    pub(crate) fn find<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        follow(root, &self.0)
    }
}

fn next_step(rest: &mut &str) -> Option<Step> {
    let text = rest.strip_prefix('.').unwrap_or(rest);
    if text.is_empty() {
        return None;
    }
    let Some(inside) = text.strip_prefix('[') else {
        // A backslash before a dot makes the dot part of the name.
        let mut name = String::new();
        let mut end = text.len();
        let mut chars = text.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => name.extend(chars.next().map(|(_, escaped)| escaped)),
                '.' | '[' => {
                    end = at;
                    break;
                }
                c => name.push(c),
            }
        }
        *rest = &text[end..];
        return Some(if name == "*" {
            Step::All
        } else {
            Step::Field(name)
        });
    };
    if let Some(filter) = inside.strip_prefix("?(") {
        let (condition, after) = filter.split_once(")]")?;
        *rest = after;
        return filter_step(condition);
    }
    let (content, after) = inside.split_once(']')?;
    *rest = after;
    if content == "*" {
        return Some(Step::All);
    }
    let unquoted = content.trim_matches(['\'', '"']);
    if unquoted.len() != content.len() {
        return Some(Step::Field(unquoted.to_owned()));
    }
    content.parse().ok().map(Step::Index)
}

fn filter_step(condition: &str) -> Option<Step> {
    let (negated, (path, wanted)) = match condition.split_once("==") {
        Some(halves) => (false, halves),
        None => (true, condition.split_once("!=")?),
    };
    let JsonPath(path) = JsonPath::parse(path.trim().strip_prefix('@')?);
    let wanted = wanted.trim();
    let wanted = match wanted.trim_matches(['\'', '"']) {
        unquoted if unquoted.len() != wanted.len() => Value::from(unquoted),
        literal => serde_json::from_str(literal).ok()?,
    };
    Some(Step::Filter {
        path,
        negated,
        wanted,
    })
}

fn follow<'v>(value: &'v Value, steps: &[Step]) -> Vec<&'v Value> {
    let Some((step, rest)) = steps.split_first() else {
        return vec![value];
    };
    let next: Vec<&Value> = match (step, value) {
        (Step::Field(name), Value::Object(map)) => map.get(name).into_iter().collect(),
        (Step::Index(at), Value::Array(items)) => {
            let at = if *at < 0 {
                at + i64::try_from(items.len()).unwrap_or(i64::MAX)
            } else {
                *at
            };
            usize::try_from(at)
                .ok()
                .and_then(|at| items.get(at))
                .into_iter()
                .collect()
        }
        (Step::All, Value::Array(items)) => items.iter().collect(),
        (Step::All, Value::Object(map)) => map.values().collect(),
        (
            Step::Filter {
                path,
                negated,
                wanted,
            },
            Value::Array(items),
        ) => items
            .iter()
            .filter(|item| {
                follow(item, path)
                    .first()
                    .is_some_and(|found| (*found == wanted) != *negated)
            })
            .collect(),
        _ => Vec::new(),
    };
    next.into_iter()
        .flat_map(|value| follow(value, rest))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_find_fields_indexes_filters_and_escaped_names() {
        let object = json!({"status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]},
            "metadata": {"labels": {"a.b/c": "x"}}, "spec": {"l": [1, 2]}});
        let find = |path: &str| -> Vec<Value> {
            JsonPath::parse(path)
                .find(&object)
                .into_iter()
                .cloned()
                .collect()
        };
        assert_eq!(
            find(r#".status.conditions[?(@.type=="Ready")].status"#),
            [json!("True")]
        );
        assert_eq!(find(r".metadata.labels.a\.b/c"), [json!("x")]);
        assert_eq!(find(".metadata.labels['a.b/c']"), [json!("x")]);
        assert_eq!(find(".spec.l[*]"), [json!(1), json!(2)]);
        assert_eq!(find(".spec.l[-1]"), [json!(2)]);
        assert_eq!(find(".spec.none"), Vec::<Value>::new());
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
            ("string", json!([]), Value::Null),
        ] {
            let found: Vec<&Value> = found.as_array().into_iter().flatten().collect();
            assert_eq!(cell(kind, &found, now), shown, "{kind} {found:?}");
        }
    }
}
