//! Prints objects like Go's internal types, for errors about a whole struct and for the diff of two pod specs.
//!
//! kube-apiserver validates internal types, not the served ones. Their fields have Go's names, are in the order of the declaration, and are
//! always printed (`null`, `""`, `0`, `false`). `internal_types.txt` declares them as Go does: a name, a type, and the JSON name if it is
//! not the name with a small first letter. Absent `*T` and `[]T` are null, `*` and `[]` are pointers to and lists of scalars, and `+T` is
//! embedded.

use std::{collections::HashMap, sync::LazyLock};

use mullion_kube_text::field::{Emptied, Errors, Path};
use mullion_schema::tree::Tree;
use serde_json::Value;

static TYPES: LazyLock<HashMap<&'static str, Vec<Field>>> =
    LazyLock::new(|| parse(include_str!("internal_types.txt")));

struct Field {
    name: &'static str,
    json: String,
    shape: Shape,
}

enum Shape {
    Text,
    Number,
    Flag,
    Quantity,
    /// A pointer to a scalar, or a map of scalars: absent is null.
    Nullable,
    Scalars,
    Struct(&'static str),
    Pointer(&'static str),
    Structs(&'static str),
    Embedded(&'static str),
}

fn parse(table: &'static str) -> HashMap<&'static str, Vec<Field>> {
    let mut types = HashMap::new();
    let mut current = "";
    for line in table.lines() {
        if !line.starts_with(' ') {
            current = line;
            types.insert(current, Vec::new());
            continue;
        }
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or("");
        let shape = match words.next().unwrap_or("") {
            "" => Shape::Embedded(&name[1..]),
            "string" => Shape::Text,
            "int" => Shape::Number,
            "bool" => Shape::Flag,
            "quantity" => Shape::Quantity,
            "*" | "map" => Shape::Nullable,
            "[]" => Shape::Scalars,
            word => match (word.strip_prefix('*'), word.strip_prefix("[]")) {
                (Some(target), _) => Shape::Pointer(target),
                (_, Some(target)) => Shape::Structs(target),
                _ => Shape::Struct(word),
            },
        };
        let json = words
            .next()
            .map_or_else(|| name[..1].to_lowercase() + &name[1..], str::to_owned);
        types
            .entry(current)
            .or_default()
            .push(Field { name, json, shape });
    }
    types
}

/// Formats a struct on one line, as in `Invalid value: {"Type":"Foo","RollingUpdate":null}`.
pub(crate) fn compact(type_name: &str, value: &Value) -> String {
    let mut printer = Printer::default();
    printer.object(type_name, value);
    printer.out
}

/// Formats a struct like [`compact`]; lists that the client sent empty are printed as `[]`. `path` is the path of the value in the object
/// of `errors`.
pub(crate) fn as_sent(type_name: &str, value: &Value, path: &Path<'_>, errors: &Errors) -> String {
    let mut printer = Printer {
        emptied: Some(errors.emptied()),
        path: Emptied::text(path),
        ..Printer::default()
    };
    printer.object(type_name, value);
    printer.out
}

/// Formats a struct on many lines, indented by one space.
pub(super) fn indented(type_name: &str, value: &Value) -> String {
    let mut printer = Printer {
        indent: Some(0),
        ..Printer::default()
    };
    printer.object(type_name, value);
    printer.out
}

/// Returns the diff of two structs, as kube-apiserver prints it when it refuses an update.
pub(crate) fn difference(type_name: &str, old: &Value, new: &Value) -> String {
    super::difference::unified(&indented(type_name, old), &indented(type_name, new))
}

/// Returns the diff of two structs like [`difference`]; lists and maps of the new one that the client sent empty are printed so. `path` is
/// the path of the new struct in the object of `errors`.
pub(crate) fn difference_as_sent(
    type_name: &str,
    old: &Value,
    new: &Value,
    path: &Path<'_>,
    errors: &Errors,
) -> String {
    let mut printer = Printer {
        emptied: Some(errors.emptied()),
        path: Emptied::text(path),
        indent: Some(0),
        ..Printer::default()
    };
    printer.object(type_name, new);
    super::difference::unified(&indented(type_name, old), &printer.out)
}

/// Formats a label selector on one line. Its Go type is the served one, so absent fields are left out.
pub(crate) fn label_selector(selector: &Value) -> String {
    let mut printer = Printer::default();
    printer.label_selector(selector);
    printer.out
}

/// Formats a selector like [`label_selector`], or null if there is none.
pub(crate) fn optional_selector(selector: &Value) -> String {
    match selector {
        Value::Null => "null".to_owned(),
        selector => label_selector(selector),
    }
}

/// The fields of metadata in the order of the Go struct.
pub const METADATA_FIELDS: [&str; 15] = [
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// The fields of an owner reference in the order of the Go struct.
pub const OWNER_FIELDS: [&str; 6] = [
    "apiVersion",
    "kind",
    "name",
    "uid",
    "controller",
    "blockOwnerDeletion",
];

/// The fields of a pod's spec that the internal type has in its security context.
const HOST_FIELDS: [&str; 5] = [
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "shareProcessNamespace",
    "hostUsers",
];

/// Returns a pod's security context with the fields that the served type has in the spec instead.
fn with_host_fields(context: &Value, spec: &Value) -> Value {
    let mut merged = context.clone();
    for field in HOST_FIELDS {
        if let Some(value) = spec.field(field) {
            merged[field] = value.clone();
        }
    }
    merged
}

#[derive(Default)]
struct Printer<'a> {
    out: String,
    /// The indentation depth; `None` to print on one line.
    indent: Option<usize>,
    /// The fields that the client sent empty, if they are known.
    emptied: Option<&'a Emptied>,
    /// The path of the printed value, in the form that `emptied` uses.
    path: String,
}

impl Printer<'_> {
    fn object(&mut self, type_name: &str, value: &Value) {
        self.open('{');
        let mut first = true;
        self.fields(type_name, value, &mut first);
        self.close('}', first);
    }

    fn fields(&mut self, type_name: &str, value: &Value, first: &mut bool) {
        for field in TYPES.get(type_name).into_iter().flatten() {
            match field.shape {
                Shape::Embedded("ObjectMeta") => {
                    self.metadata(&value["metadata"], first);
                    continue;
                }
                Shape::Embedded(target) => {
                    self.fields(target, value, first);
                    continue;
                }
                _ => {}
            }
            self.key(field.name, first);
            let found = value.field(&field.json);
            let outer = self.path.len();
            if self.emptied.is_some() {
                self.path.push('.');
                self.path.push_str(&field.json);
            }
            let is_list = matches!(field.shape, Shape::Scalars | Shape::Structs(_));
            let was_sent = || self.emptied.is_some_and(|sent| sent.has_at(&self.path));
            match (&field.shape, found) {
                (Shape::Text, None) => self.out.push_str("\"\""),
                (Shape::Number, None) => self.out.push('0'),
                (Shape::Flag, None) => self.out.push_str("false"),
                (Shape::Quantity, None) => self.out.push_str("\"0\""),
                (Shape::Struct(target), found) => {
                    self.object(target, found.unwrap_or(&Value::Null))
                }
                // Go prints a nil list as null and an empty one as `[]`; JSON decoding keeps the difference.
                (_, None) if was_sent() => self.out.push_str(if is_list { "[]" } else { "{}" }),
                (_, None) => self.out.push_str("null"),
                (Shape::Pointer("LabelSelector"), Some(found)) => self.label_selector(found),
                (Shape::Pointer("PodSecurityContext"), Some(found)) => {
                    self.object("PodSecurityContext", &with_host_fields(found, value));
                }
                (Shape::Pointer(target), Some(found)) => self.object(target, found),
                (Shape::Structs(target), Some(found)) => {
                    self.list(found, |printer, item| printer.object(target, item))
                }
                (_, Some(found)) => self.plain(found),
            }
            self.path.truncate(outer);
        }
    }

    /// Prints the fields of metadata, which keep their served names because the internal types embed the served one.
    fn metadata(&mut self, metadata: &Value, first: &mut bool) {
        for field in METADATA_FIELDS {
            if let Some(value) = metadata.field(field) {
                self.key(field, first);
                match field {
                    "ownerReferences" => self.list(value, Self::owner),
                    _ => self.plain(value),
                }
            }
        }
    }

    fn owner(&mut self, owner: &Value) {
        self.open('{');
        let mut first = true;
        for field in OWNER_FIELDS {
            if let Some(value) = owner.field(field) {
                self.key(field, &mut first);
                self.plain(value);
            }
        }
        self.close('}', first);
    }

    fn label_selector(&mut self, selector: &Value) {
        self.open('{');
        let mut first = true;
        if let Some(labels) = selector.field("matchLabels") {
            self.key("matchLabels", &mut first);
            self.plain(labels);
        }
        if let Some(expressions) = selector.field("matchExpressions") {
            self.key("matchExpressions", &mut first);
            self.list(expressions, |printer, expression| {
                printer.open('{');
                let mut first = true;
                for field in ["key", "operator", "values"] {
                    if let Some(value) = expression.field(field) {
                        printer.key(field, &mut first);
                        printer.plain(value);
                    }
                }
                printer.close('}', first);
            });
        }
        self.close('}', first);
    }

    fn plain(&mut self, value: &Value) {
        match value {
            Value::Object(map) => {
                self.open('{');
                let mut first = true;
                for (key, value) in map {
                    self.key(key, &mut first);
                    self.plain(value);
                }
                self.close('}', first);
            }
            Value::Array(_) => self.list(value, Self::plain),
            scalar => self.out.push_str(&scalar.to_string()),
        }
    }

    fn list(&mut self, list: &Value, print: impl Fn(&mut Self, &Value)) {
        self.open('[');
        let items = list.as_array().map_or(&[][..], Vec::as_slice);
        let outer = self.path.len();
        for (index, item) in items.iter().enumerate() {
            self.separate(index == 0);
            if self.emptied.is_some() {
                self.path.push_str(&format!("[{index}]"));
            }
            print(self, item);
            self.path.truncate(outer);
        }
        self.close(']', items.is_empty());
    }

    fn open(&mut self, bracket: char) {
        self.out.push(bracket);
        self.indent = self.indent.map(|depth| depth + 1);
    }

    fn close(&mut self, bracket: char, empty: bool) {
        self.indent = self.indent.map(|depth| depth - 1);
        if !empty {
            self.line_break();
        }
        self.out.push(bracket);
    }

    fn key(&mut self, name: &str, first: &mut bool) {
        self.separate(*first);
        *first = false;
        self.out.push('"');
        self.out.push_str(name);
        self.out
            .push_str(if self.indent.is_some() { "\": " } else { "\":" });
    }

    fn separate(&mut self, first: bool) {
        if !first {
            self.out.push(',');
        }
        self.line_break();
    }

    fn line_break(&mut self) {
        if let Some(depth) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', depth));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_type_that_a_declaration_names_is_declared() {
        for (name, fields) in TYPES.iter() {
            for field in fields {
                if let Shape::Struct(target)
                | Shape::Pointer(target)
                | Shape::Structs(target)
                | Shape::Embedded(target) = field.shape
                {
                    assert!(
                        TYPES.contains_key(target)
                            || ["LabelSelector", "ObjectMeta"].contains(&target),
                        "{name}.{}: {target}",
                        field.name
                    );
                }
            }
        }
    }

    #[test]
    fn all_fields_are_printed_under_their_go_names() {
        assert_eq!(
            compact("DeploymentStrategy", &json!({"type": "Foo"})),
            r#"{"Type":"Foo","RollingUpdate":null}"#
        );
        let selector = json!({"matchExpressions": [{"values": ["b"], "operator": "In", "key": "a"}], "matchLabels": {"c": "d"}});
        let expected = r#"{"matchLabels":{"c":"d"},"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}"#;
        assert_eq!(label_selector(&selector), expected);
        assert_eq!(label_selector(&json!({})), "{}");
    }

    #[test]
    fn what_a_pod_shares_with_its_host_is_part_of_the_security_context() {
        let spec = json!({"hostNetwork": true, "shareProcessNamespace": false, "securityContext": {"runAsUser": 5}});
        let text = compact("PodSpec", &spec);
        let context = r#""SecurityContext":{"HostNetwork":true,"HostPID":false,"HostIPC":false,"ShareProcessNamespace":false,"HostUsers":null,"SELinuxOptions":null,"WindowsOptions":null,"RunAsUser":5,"#;
        assert!(text.contains(context), "{text}");
    }

    #[test]
    fn a_minimal_pod_spec_has_upstream_s_line_numbers() {
        let spec = json!({"containers": [{"name": "a", "image": "i", "resources": {}}], "restartPolicy": "Always", "securityContext": {}});
        let text = indented("PodSpec", &spec);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[4], "  {");
        assert_eq!(lines[34], "  }");
        assert_eq!(lines[37], r#" "RestartPolicy": "Always","#);
        assert_eq!(lines[46], r#"  "HostNetwork": false,"#);
    }
}
