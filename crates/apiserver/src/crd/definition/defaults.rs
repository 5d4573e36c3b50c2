//! Checks that the defaults in a schema are valid values of that schema. Source:
//! k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting: ValidateDefaults.
//!
//! A default in the metadata of a resource is validated as part of an ObjectMeta. Defaults of a map's values are not validated.

use mullion_kube_text::field::{Errors, Path};
use mullion_schema::{decode, structural::Schema};
use serde_json::{Value, json};

use super::{RelaxedRules, below, entries, flag};
use crate::crd::{
    rules::Rules,
    validation::{self, embedded},
};

pub(super) fn check(schema: &Value, relaxed: RelaxedRules, path: &Path<'_>, errors: &mut Errors) {
    let mut walk = Walk {
        relaxed,
        around: Vec::new(),
        errors,
    };
    walk.schema(schema, true, false, path);
}

/// One step of the path from a resource to a value in it.
enum Step<'v> {
    Field(&'v str),
    Item,
}

struct Walk<'w, 'v> {
    relaxed: RelaxedRules,
    around: Vec<Step<'v>>,
    errors: &'w mut Errors,
}

impl<'v> Walk<'_, 'v> {
    fn schema(&mut self, schema: &'v Value, is_root: bool, in_metadata: bool, path: &Path<'_>) {
        let is_embedded = flag(schema, "x-kubernetes-embedded-resource");
        let is_resource = is_root || is_embedded;
        // An embedded resource has metadata of its own, so the path to it begins anew.
        let outside = is_embedded.then(|| std::mem::take(&mut self.around));
        let in_metadata = in_metadata && !is_embedded;
        let default = schema.get("default").filter(|default| !default.is_null());
        if let Some(default) = default {
            let at = path.child("default");
            if in_metadata {
                self.metadata(schema, default, &at)
            } else {
                self.default(schema, default, is_resource, &at)
            }
        }
        if let Some(items) = below(schema, "items") {
            self.around.push(Step::Item);
            self.schema(items, false, in_metadata, &path.child("items"));
            self.around.pop();
        }
        let properties = path.child("properties");
        for (name, property) in entries(schema, "properties") {
            let is_meta =
                is_resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
            self.around.push(Step::Field(name));
            self.schema(
                property,
                false,
                in_metadata || is_meta,
                &properties.key(name),
            );
            self.around.pop();
        }
        if let Some(outside) = outside {
            self.around = outside;
        }
    }

    fn default(&mut self, source: &Value, default: &Value, is_resource: bool, path: &Path<'_>) {
        let schema = Schema::parse(source);
        if !self.relaxed.unpruned_defaults && !is_pruned(&schema, default) {
            let why = "must not have unknown fields";
            self.errors.invalid(path, default.clone(), why);
        }
        let before = self.errors.0.len();
        embedded::check(&schema, default, Some(path), self.errors);
        // A default with broken metadata would fail again as a value, with a less helpful error.
        if self.errors.0.len() == before {
            self.values(&schema, source, default, is_resource, path);
        }
    }

    /// Validates a default in the type or metadata of a resource.
    fn metadata(&mut self, source: &Value, default: &Value, path: &Path<'_>) {
        let mut object = default.clone();
        // The default alone is no resource, so a resource that contains it is built around it.
        for step in self.around.iter().rev() {
            object = match step {
                Step::Field(name) => json!({ *name: object }),
                Step::Item => json!([object]),
            };
        }
        for (name, value) in [("apiVersion", "validation/v1"), ("kind", "Validation")] {
            let fields = object.as_object_mut();
            fields.map(|fields| fields.entry(name).or_insert(value.into()));
        }
        let mut found = Errors::default();
        embedded::resource(&object, None, &mut found);
        if found.is_empty() {
            let schema = Schema::parse(source);
            return self.values(&schema, source, default, false, path);
        }
        let why = format!("must result in valid metadata: {}", found.aggregate());
        self.errors.invalid(path, default.clone(), why);
    }

    fn values(
        &mut self,
        schema: &Schema,
        source: &Value,
        default: &Value,
        is_resource: bool,
        path: &Path<'_>,
    ) {
        let mut found = Errors::default();
        validation::check(schema, default, None, &mut found);
        let at = path.to_string();
        if !found.is_empty() {
            let found = found.0.into_iter();
            self.errors.0.extend(found.map(|error| error.below(&at)));
            return;
        }
        Rules::compile(schema, source, is_resource).check_default(
            schema,
            default,
            &at,
            self.errors,
        );
    }
}

/// Returns whether the schema has a default with fields that the schema does not know.
pub(super) fn is_unpruned(source: &Value) -> bool {
    let default = source.get("default").filter(|default| !default.is_null());
    default.is_some_and(|default| !is_pruned(&Schema::parse(source), default))
}

fn is_pruned(schema: &Schema, default: &Value) -> bool {
    let mut pruned = default.clone();
    decode::prune_default(&schema.to_value_type(), &mut pruned);
    pruned == *default
}
