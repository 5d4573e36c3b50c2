//! Validates the spec of a definition, in the order of kube-apiserver's checks.

use std::collections::{HashMap, HashSet};

use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
};
use serde_json::Value;

use super::{conversion::check_conversion, serving, text, versions};
use crate::crd::definition;

/// Checks a spec; `old` is the definition that it changes.
pub(super) fn check_spec(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let spec = &object["spec"];
    let path = Path::new("spec");
    let group = text(spec, "group");
    let sentences = names::dns_subdomain(group);
    if group.is_empty() {
        errors.required(&path.child("group"), "");
    } else if !sentences.is_empty() {
        errors.invalid(&path.child("group"), group, sentences.join(","));
    } else if !group.contains('.') {
        errors.invalid(
            &path.child("group"),
            group,
            "should be a domain with at least one dot",
        );
    }
    match text(spec, "scope") {
        "" => errors.required(&path.child("scope"), ""),
        "Cluster" | "Namespaced" => {}
        other => errors.not_supported(&path.child("scope"), other, &["Cluster", "Namespaced"]),
    }
    let all = versions(object);
    let at = path.child("versions");
    for (index, version) in all.iter().enumerate() {
        if schema_of(version).is_none() {
            let at = at.index(index);
            let at = at.child("schema");
            errors.required(&at.child("openAPIV3Schema"), "");
        }
    }
    let keeps_unknown = spec["preserveUnknownFields"] == true;
    if keeps_unknown
        && all
            .iter()
            .filter_map(schema_of)
            .any(definition::has_defaults)
    {
        let why = "must be false in order to use defaults in the schema";
        errors.invalid(&path.child("preserveUnknownFields"), true, why);
    }
    let parts = Parts::of(object, old);
    for (index, version) in all.iter().enumerate() {
        let at = at.index(index);
        let name = text(version, "name");
        let sentences = names::dns1035_label(name);
        if !sentences.is_empty() {
            errors.invalid(&at.child("name"), name, sentences.join(","));
        }
        serving::check_deprecation(version, &at.child("deprecationWarning"), errors);
        parts.check(version, false, &at, errors);
    }
    check_names_of_versions(spec, &path, errors);
    check_names(&spec["names"], &path.child("names"), errors);
    // Fields that all versions share are checked once, because the internal form has them at the top of the spec.
    if let Some(first) = all.first() {
        parts.check(first, true, &path, errors);
    }
    let conversion = path.child("conversion");
    if keeps_unknown && text(&spec["conversion"], "strategy") != "None" {
        let why = "must be None if spec.preserveUnknownFields is true";
        let strategy = spec["conversion"]["strategy"].clone();
        errors.invalid(&conversion.child("strategy"), strategy, why);
    }
    check_conversion(object, old, &conversion, errors);
}

fn check_names_of_versions(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let all = spec["versions"].as_array();
    let all = all.map(Vec::as_slice).unwrap_or_default();
    let at = path.child("versions");
    let names: HashSet<&str> = all.iter().map(|version| text(version, "name")).collect();
    let refuse = |errors: &mut Errors, why: &str| {
        let shown = internal_form(&spec["versions"]);
        errors.with_text(ErrorType::Invalid, &at, shown, why);
    };
    if names.len() < all.len() {
        refuse(errors, "must contain unique version names");
    }
    let is_stored = |version: &&Value| version["storage"] == true;
    if all.iter().filter(is_stored).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        refuse(errors, why);
    }
    // The internal form repeats the name of the first version in this field.
    let first = all.first().map_or("", |first| text(first, "name"));
    let sentences = names::dns1035_label(first);
    if !first.is_empty() && !sentences.is_empty() {
        errors.invalid(&path.child("version"), first, sentences.join(","));
    }
}

/// The fields of a version that are at the top of the internal form if all versions share them.
const PARTS: [&str; 4] = [
    "schema",
    "subresources",
    "additionalPrinterColumns",
    "selectableFields",
];

/// The versions of a definition, with the fields that are equal in all of them, which kube-apiserver's internal form has at the top of the
/// spec.
struct Parts<'v> {
    versions: &'v [Value],
    /// The fields that are equal in all versions.
    shared: Vec<&'static str>,
    /// The stored versions by their names.
    before: HashMap<&'v str, &'v Value>,
    relaxed: definition::RelaxedRules,
}

impl<'v> Parts<'v> {
    fn of(object: &'v Value, old: Option<&'v Value>) -> Self {
        let (versions, before) = (versions(object), old.map(versions).unwrap_or_default());
        let is_shared = |field: &&str| {
            let mut pairs = versions.windows(2);
            pairs.all(|pair| pair[0].get(field) == pair[1].get(field))
        };
        Parts {
            versions,
            shared: PARTS.into_iter().filter(is_shared).collect(),
            before: before
                .iter()
                .map(|version| (text(version, "name"), version))
                .collect(),
            relaxed: definition::RelaxedRules::by(before.iter().filter_map(schema_of)),
        }
    }

    /// Returns the rules that an update of a version's schema may break.
    fn relaxed(&self, version: &Value) -> definition::RelaxedRules {
        let old = self.before.get(text(version, "name"));
        let is_unchanged = old.is_some_and(|old| schema_of(old) == schema_of(version));
        self.relaxed.of_version(is_unchanged)
    }

    /// Validates the shared fields at the top, or the other fields of a version.
    fn check(&self, version: &Value, at_top: bool, path: &Path<'_>, errors: &mut Errors) {
        let is_here = |field: &str| self.shared.contains(&field) == at_top;
        let schema = schema_of(version);
        if let Some(schema) = schema.filter(|_| is_here("schema")) {
            // If any version has a status subresource, it restricts the schema that all versions share.
            let has_status = if at_top {
                self.versions.iter().any(has_status)
            } else {
                has_status(version)
            };
            let at = path.child(if at_top { "validation" } else { "schema" });
            let at = at.child("openAPIV3Schema");
            definition::check_schema(schema, has_status, self.relaxed(version), &at, errors);
        }
        if is_here("subresources") {
            let at = path.child("subresources");
            serving::check_subresources(&version["subresources"], &at, errors);
        }
        if is_here("additionalPrinterColumns") {
            let at = path.child("additionalPrinterColumns");
            serving::check_columns(&version["additionalPrinterColumns"], &at, errors);
        }
        if is_here("selectableFields") {
            let at = path.child("selectableFields");
            let fields = &version["selectableFields"];
            let has_any = fields.as_array().is_some_and(|fields| !fields.is_empty());
            match schema {
                Some(schema) => definition::check_selectable_fields(fields, schema, &at, errors),
                None if has_any => {
                    let why = if at_top {
                        "selectableFields may only be set when validations.schema is included"
                    } else {
                        // kube-apiserver's message has this "not", which is a mistake.

                        "selectableFields may only be set when version.schema.openAPIV3Schema is not included"
                    };
                    errors.invalid(&at, "", why);
                }
                None => {}
            }
        }
    }
}

fn has_status(version: &Value) -> bool {
    let status = version["subresources"].get("status");
    status.is_some_and(Value::is_object)
}

pub(super) fn schema_of(version: &Value) -> Option<&Value> {
    let schema = version.pointer("/schema/openAPIV3Schema");
    schema.filter(|schema| schema.is_object())
}

/// Validates the names of a spec, some of which are required.
fn check_names(given: &Value, path: &Path<'_>, errors: &mut Errors) {
    for field in ["plural", "singular", "kind", "listKind"] {
        if text(given, field).is_empty() {
            errors.required(&path.child(field), "");
        }
    }
    check_given_names(given, path, errors);
}

/// Validates names that may be missing, for example in a status.
pub(super) fn check_given_names(given: &Value, path: &Path<'_>, errors: &mut Errors) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let value = text(given, field);
        if value.is_empty() {
            continue;
        }
        let mixed = matches!(field, "kind" | "listKind");
        let checked = if mixed {
            value.to_lowercase()
        } else {
            value.to_owned()
        };
        let sentences = names::dns1035_label(&checked);
        if sentences.is_empty() {
            continue;
        }
        let why = sentences.join(",");
        let why = if mixed {
            format!("may have mixed case, but should otherwise match: {why}")
        } else {
            why
        };
        errors.invalid(&path.child(field), value, why);
    }
    check_labels(&given["shortNames"], &path.child("shortNames"), errors);
    if !text(given, "kind").is_empty() && text(given, "kind") == text(given, "listKind") {
        errors.invalid(
            &path.child("listKind"),
            text(given, "listKind"),
            "kind and listKind may not be the same",
        );
    }
    check_labels(&given["categories"], &path.child("categories"), errors);
}

fn check_labels(given: &Value, path: &Path<'_>, errors: &mut Errors) {
    let given = given.as_array().into_iter().flatten();
    for (index, name) in given.filter_map(Value::as_str).enumerate() {
        let sentences = names::dns1035_label(name);
        if !sentences.is_empty() {
            errors.invalid(&path.index(index), name, sentences.join(","));
        }
    }
}

/// Formats the versions like kube-apiserver's internal type, which has the shared fields elsewhere.
fn internal_form(versions: &Value) -> String {
    let Some(items) = versions.as_array() else {
        return "null".to_owned();
    };
    let texts: Vec<String> = items
        .iter()
        .map(|version| {
            format!(
                r#"{{"Name":{},"Served":{},"Storage":{},"Deprecated":{},"DeprecationWarning":{},"Schema":null,"Subresources":null,"AdditionalPrinterColumns":null,"SelectableFields":null}}"#,
                version["name"],
                version["served"],
                version["storage"],
                version["deprecated"].as_bool().unwrap_or(false),
                version["deprecationWarning"],
            )
        })
        .collect();
    format!("[{}]", texts.join(","))
}
