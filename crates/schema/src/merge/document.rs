//! Formats a patched document as kube-apiserver's error messages show it.
//!
//! kube-apiserver patches JSON text: objects that the patch goes through are written again with sorted keys, the others stay as Go wrote
//! them, with fields in the order of the struct. So the text depends on the type and on the paths of the patch.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::{Node, Type};

/// Formats a patched document. `visited` has an object wherever the patch went through one: a merge patch itself, or the result of
/// [`json_patch_visits`](super::json_patch_visits).
pub fn text(kind: &Type, document: &Value, visited: &Value) -> String {
    let mut out = String::new();
    let writer = Writer {
        all_sorted: kind.is_custom(),
    };
    writer.value(&mut out, Some(kind.clone()), document, Some(visited));
    // Go's encoder escapes these for HTML; they occur only inside strings.
    out.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

struct Writer {
    /// Whether all objects are sorted, as in custom resources, which are maps in Go.
    all_sorted: bool,
}

impl Writer {
    fn value(&self, out: &mut String, kind: Option<Type>, value: &Value, visited: Option<&Value>) {
        match value {
            Value::Object(map) => {
                out.push('{');
                let fields = self.order(kind.as_ref(), map, visited);
                for (index, (name, value)) in fields.into_iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    let _ = write!(out, "{}:", Value::from(name.as_str()));
                    let inner = kind.as_ref().and_then(|kind| member(kind, name));
                    let visited = visited.and_then(|visited| visited.get(name));
                    self.value(out, inner, value, visited);
                }
                out.push('}');
            }
            Value::Array(items) => {
                out.push('[');
                let item_type = kind.as_ref().and_then(item);
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    // In a merge patch the list itself is there; the visits of a JSON patch have the indexes as
                    // names.
                    let visited = visited.and_then(|visited| match visited {
                        Value::Array(items) => items.get(index),
                        other => other.get(index.to_string()),
                    });
                    self.value(out, item_type.clone(), item, visited);
                }
                out.push(']');
            }
            scalar => {
                let _ = write!(out, "{scalar}");
            }
        }
    }

    fn order<'v>(
        &self,
        kind: Option<&Type>,
        map: &'v Map<String, Value>,
        visited: Option<&Value>,
    ) -> Vec<(&'v String, &'v Value)> {
        let mut fields: Vec<_> = map.iter().collect();
        let rewritten = visited.is_some_and(Value::is_object);
        if let (false, false, Some(Node::Struct(declared))) =
            (self.all_sorted, rewritten, kind.map(Type::node))
        {
            fields.sort_by_key(|(name, _)| {
                declared.field(name).map_or(u16::MAX, |field| field.place)
            });
        }
        fields
    }
}

fn member(kind: &Type, name: &str) -> Option<Type> {
    match kind.node() {
        Node::Struct(_) => kind.field(name),
        Node::Map { value, .. } => Some(kind.sibling(*value)),
        _ => None,
    }
}

fn item(kind: &Type) -> Option<Type> {
    match kind.node() {
        Node::List(list) => Some(kind.sibling(list.item)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::merge::json_patch_visits;

    fn deployment() -> Type {
        Type::builtin("api.apps.v1.Deployment").expect("deployments are built in")
    }

    #[test]
    fn what_a_patch_goes_through_is_sorted_and_the_rest_is_as_go_declares_it() {
        let document = json!({"kind": "Deployment", "apiVersion": "apps/v1",
                              "metadata": {"labels": {"b": "2", "a": "1"}, "name": "x"},
                              "spec": {"replicas": "many", "paused": true, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}});
        let patch = json!([{"op": "replace", "path": "/spec/replicas", "value": "many"}]);
        assert_eq!(
            text(&deployment(), &document, &json_patch_visits(&patch)),
            r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x","labels":{"a":"1","b":"2"}},"spec":{"paused":true,"replicas":"many","strategy":{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":0,"maxSurge":1}}}}"#
        );
        let merge = json!({"kind": "ReplicaSet"});
        assert!(
            text(&deployment(), &document, &merge)
                .ends_with(r#""spec":{"replicas":"many","strategy":{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":0,"maxSurge":1}},"paused":true}}"#)
        );
    }

    #[test]
    fn what_a_merge_patch_brings_is_sorted_also_within_lists() {
        let ports = json!([{"containerPort": 80, "name": "http"}]);
        let containers = json!([{"name": "c", "image": "i", "ports": ports}]);
        let document = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        assert_eq!(
            text(&deployment(), &document, &document),
            r#"{"spec":{"template":{"spec":{"containers":[{"image":"i","name":"c","ports":[{"containerPort":80,"name":"http"}]}]}}}}"#
        );
        assert_eq!(
            text(&deployment(), &document, &json!({})),
            r#"{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"i","ports":[{"name":"http","containerPort":80}]}]}}}}"#
        );
    }

    #[test]
    fn what_html_could_misread_is_escaped() {
        let document = json!({"data": {"a": "<&>"}});
        let kind = Type::builtin("api.core.v1.ConfigMap").expect("config maps are built in");
        assert_eq!(
            text(&kind, &document, &json!({})),
            r#"{"data":{"a":"\u003c\u0026\u003e"}}"#
        );
    }
}
