//! Merges configurations whose fields get no owner, such as those of a MutatingAdmissionPolicy (source:
//! apiserver/pkg/admission/plugin/policy/mutating/patch).

use serde_json::Value;

use super::{Misfits, merge, typed};
use crate::{Arena, ListKind, Node, Type, TypeId};

/// The reason why a configuration cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnownedError {
    /// It does not have the shape of its type.
    #[error("failed to convert patch object to typed object: {0}")]
    Untyped(Misfits),
    /// It sets atomic values at these paths.
    #[error(
        "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
        .0.join(", ")
    )]
    Atomic(Vec<String>),
}

/// Merges a configuration into an object. It must not set atomic values, because the parts that it leaves out would be lost. Where the
/// object has several items with a key that the configuration names, one item is left.
///
/// # Errors
/// The parts of the configuration that do not fit the type, or that are atomic.
pub fn merge_unowned(kind: &Type, live: &Value, config: &Value) -> Result<Value, UnownedError> {
    typed::check(kind, config).map_err(UnownedError::Untyped)?;
    let mut atomics = Vec::new();
    find_atomics(kind.arena(), kind.id(), config, "", &mut atomics);
    if !atomics.is_empty() {
        return Err(UnownedError::Atomic(atomics));
    }
    Ok(merge::merge(kind, live, config))
}

/// Collects the paths of atomic values that have inner structure.
fn find_atomics(arena: &Arena, id: TypeId, value: &Value, path: &str, found: &mut Vec<String>) {
    match (arena.node(id), value) {
        (Node::Struct(fields), Value::Object(map)) => {
            if fields.atomic {
                found.push(path.to_owned());
            }
            for (name, value) in map {
                if let Some(field) = fields.field(name) {
                    find_atomics(arena, field.id, value, &format!("{path}.{name}"), found);
                }
            }
        }
        (Node::Map { atomic: true, .. }, Value::Object(_)) => found.push(path.to_owned()),
        (Node::List(list), Value::Array(items)) => {
            if list.kind == ListKind::Atomic {
                found.push(path.to_owned());
            }
            for (index, item) in items.iter().enumerate() {
                find_atomics(arena, list.item, item, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_would_be_replaced_as_a_whole_cannot_be_set() {
        let pod = Type::builtin("api.core.v1.Pod").expect("pods are built in");
        let merged = |config: Value| {
            let live =
                json!({"spec": {"containers": [{"name": "a", "args": ["x"]}, {"name": "b"}]}});
            merge_unowned(&pod, &live, &config).map_err(|error| error.to_string())
        };
        assert_eq!(
            merged(
                json!({"metadata": {"labels": {"l": "v"}}, "spec": {"containers": [{"name": "b", "image": "i"}]}})
            ),
            Ok(json!({
                "metadata": {"labels": {"l": "v"}},
                "spec": {"containers": [{"name": "a", "args": ["x"]}, {"name": "b", "image": "i"}]},
            }))
        );
        assert_eq!(
            merged(json!({"spec": {"nodeSelector": {"a": "b"}, "containers": [{"name": "a", "args": []}]}})),
            Err("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.containers[0].args, .spec.nodeSelector".to_owned())
        );
        assert_eq!(
            merged(json!({"spec": {"what": 1}})),
            Err("failed to convert patch object to typed object: .spec.what: field not declared in schema".to_owned())
        );
    }

    #[test]
    fn items_with_the_same_key_stay_unless_they_are_set() {
        let pod = Type::builtin("api.core.v1.Pod").expect("pods are built in");
        let env = |name: &str, value: &str| json!({"name": name, "value": value});
        let live = [env("a", "1"), env("a", "2"), env("b", "1")];
        let merged = |config: Value| {
            let live = json!({"spec": {"containers": [{"name": "c", "env": live}]}});
            let config = json!({"spec": {"containers": [{"name": "c", "env": config}]}});
            let merged = merge_unowned(&pod, &live, &config).expect("it fits");
            merged["spec"]["containers"][0]["env"].clone()
        };
        assert_eq!(
            merged(json!([env("c", "3")])),
            json!([live[0], live[1], live[2], env("c", "3")])
        );
        assert_eq!(
            merged(json!([env("a", "3")])),
            json!([env("a", "3"), live[2]])
        );
    }
}
