//! Validation rules that an update of a CustomResourceDefinition may break because the stored one already breaks them, so that a definition
//! that an earlier server accepted can still be changed. Source: k8s.io/apiextensions-apiserver: ValidateCustomResourceDefinitionUpdate,
//! validationOptions.
//!
//! The cost limit is lifted for versions whose schema is unchanged, and only for single expressions; the other exemptions apply to the
//! whole definition.

use mullion_kube_text::field::{Errors, Path};
use serde_json::Value;

use super::{
    below,
    defaults::is_unpruned,
    entries, items,
    openapi::{has_unknown_type, keys_and_items, set_items},
};

/// The rules that are not enforced: a flag that is true switches its rule off. All flags are false by default, as for a create.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RelaxedRules {
    /// If true, a single expression may exceed the cost limit.
    pub(super) dear_expressions: bool,
    /// If true, a `type` that JSON schema does not have is accepted.
    pub(super) unknown_types: bool,
    /// If true, a default may have fields that its schema does not know.
    pub(super) unpruned_defaults: bool,
    /// If true, the items of a list of type `set` need not be atomic.
    pub(super) divisible_set_items: bool,
    /// If true, the keys of a list of type `map` may be optional without a default, and they and the items may be nullable.
    pub(super) optional_keys: bool,
}

impl RelaxedRules {
    /// Returns the exemptions that these stored schemas justify: a rule is off if any of them, or a schema below it, breaks the rule.
    pub(crate) fn by<'v>(schemas: impl IntoIterator<Item = &'v Value>) -> Self {
        let mut relaxed = RelaxedRules::default();
        for schema in schemas {
            relaxed.look(schema);
        }
        relaxed
    }

    /// Returns the exemptions for one version, which include the cost limit if the version's schema is unchanged.
    pub(crate) fn of_version(self, is_unchanged: bool) -> Self {
        RelaxedRules {
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
        let none = RelaxedRules::default();
        for (property, expected) in [
            (json!({"type": "string"}), none),
            (
                keyed,
                RelaxedRules {
                    optional_keys: true,
                    ..none
                },
            ),
            (
                set,
                RelaxedRules {
                    divisible_set_items: true,
                    ..none
                },
            ),
            (
                default,
                RelaxedRules {
                    unpruned_defaults: true,
                    ..none
                },
            ),
            (
                unknown,
                RelaxedRules {
                    unknown_types: true,
                    ..none
                },
            ),
        ] {
            let schema = object(json!({"spec": object(json!({"p": property}))}));
            assert_eq!(RelaxedRules::by([&schema]), expected, "{property}");
        }
    }
}
