//! What a change of a definition is not held up by: what the stored one has already, so that a definition that an earlier server accepted can
//! still be changed. Source: k8s.io/apiextensions-apiserver: ValidateCustomResourceDefinitionUpdate, validationOptions.
//!
//! Costs are spared where a version's schema stays as it is, and only those of single expressions; the rest is spared in the whole definition.

use serde_json::Value;

use super::{
    below,
    defaults::is_unpruned,
    entries, items,
    openapi::{has_unknown_type, keys_and_items, set_items},
};
use crate::field::{Errors, Path};

/// The rules that a definition is not held against. Nothing is spared by default, as at a creation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spared {
    /// What a single expression may cost.
    pub(super) dear_expressions: bool,
    /// A type must be one of JSON's.
    pub(super) unknown_types: bool,
    /// A default has only fields that its schema knows.
    pub(super) unpruned_defaults: bool,
    /// The items of a set are atomic.
    pub(super) divisible_set_items: bool,
    /// Keys of items are required or have a default, and neither they nor the items are nullable.
    pub(super) optional_keys: bool,
}

impl Spared {
    /// What the schemas of a stored definition let a change have too.
    pub(crate) fn by<'v>(schemas: impl IntoIterator<Item = &'v Value>) -> Self {
        let mut spared = Spared::default();
        for schema in schemas {
            spared.look(schema);
        }
        spared
    }

    /// The same for a version whose schema is as it was, or is not.
    pub(crate) fn of_version(self, is_unchanged: bool) -> Self {
        Spared {
            dear_expressions: is_unchanged,
            ..self
        }
    }

    fn look(&mut self, schema: &Value) {
        let is_wrong = |check: fn(&Value, &Path<'_>, &mut Errors)| {
            let mut found = Errors::default();
            check(schema, &Path::new(""), &mut found);
            !found.is_empty()
        };
        self.unknown_types |= has_unknown_type(schema);
        self.unpruned_defaults |= is_unpruned(schema);
        self.divisible_set_items |= is_wrong(set_items);
        self.optional_keys |= is_wrong(keys_and_items);
        let fields = ["additionalProperties", "items", "not"];
        let single = fields.iter().filter_map(|field| below(schema, field));
        let branches = ["allOf", "oneOf", "anyOf"];
        let branches = branches.iter().flat_map(|field| items(schema, field));
        let properties = entries(schema, "properties").map(|(_, property)| property);
        for schema in single.chain(branches).chain(properties) {
            self.look(schema);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_stored_schema_spares_what_it_has_itself() {
        let object = |properties: Value| json!({"type": "object", "properties": properties});
        let item = object(json!({"k": {"type": "string"}}));
        let keyed = json!({
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": item,
        });
        let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": item});
        let default = json!({"type": "object", "default": {"other": 1}});
        let unknown = json!({"anyOf": [{"type": "text"}]});
        let none = Spared::default();
        for (property, expected) in [
            (json!({"type": "string"}), none),
            (
                keyed,
                Spared {
                    optional_keys: true,
                    ..none
                },
            ),
            (
                set,
                Spared {
                    divisible_set_items: true,
                    ..none
                },
            ),
            (
                default,
                Spared {
                    unpruned_defaults: true,
                    ..none
                },
            ),
            (
                unknown,
                Spared {
                    unknown_types: true,
                    ..none
                },
            ),
        ] {
            let schema = object(json!({"spec": object(json!({"p": property}))}));
            assert_eq!(Spared::by([&schema]), expected, "{property}");
        }
    }
}
