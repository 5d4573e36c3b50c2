//! Validates `ObjectMeta` (names, labels, annotations, owner references, finalizers, managed fields) and conditions, which have the same
//! form in all kinds.
//!
//! [`object_meta`] validates new objects, whose name must be set by then, and [`object_meta_update`] validates changes. The checks run in
//! the order of `apimachinery/pkg/api/validation/objectmeta.go`, because the causes in a response have that order.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{check, entries, immutable, items, text};
use crate::{
    field::{self, ErrorType, Errors, Path},
    golang::{is_printable, quote},
    names::{self, NameRule},
};

/// The most bytes of all annotations together, keys and values.
pub const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;
const MAX_FIELD_MANAGER: usize = 128;
const MAX_SUBRESOURCE: usize = 256;

/// Validates the metadata of a new object.
pub fn object_meta(
    errors: &mut Errors,
    path: &Path<'_>,
    metadata: &Value,
    namespaced: bool,
    rule: NameRule,
) {
    let generate = text(metadata, "generateName");
    if !generate.is_empty() {
        check(
            errors,
            &path.child("generateName"),
            generate,
            names::by_rule(rule, generate, true),
        );
    }
    let name = text(metadata, "name");
    if name.is_empty() {
        errors.required(&path.child("name"), "name or generateName is required");
    } else {
        check(
            errors,
            &path.child("name"),
            name,
            names::by_rule(rule, name, false),
        );
    }
    let namespace = text(metadata, "namespace");
    match (namespaced, namespace.is_empty()) {
        (true, true) => errors.required(&path.child("namespace"), ""),
        (true, false) => check(
            errors,
            &path.child("namespace"),
            namespace,
            names::dns_label(namespace),
        ),
        (false, false) => errors.forbidden(&path.child("namespace"), "not allowed on this type"),
        (false, true) => {}
    }
    super::nonnegative(errors, &path.child("generation"), generation(metadata));
    labels(errors, &path.child("labels"), metadata.get("labels"));
    annotations(errors, &path.child("annotations"), metadata);
    owner_references(
        errors,
        &path.child("ownerReferences"),
        items(metadata, "ownerReferences"),
    );
    finalizers(
        errors,
        &path.child("finalizers"),
        items(metadata, "finalizers"),
    );
    managed_fields(
        errors,
        &path.child("managedFields"),
        items(metadata, "managedFields"),
    );
}

/// Validates the metadata of a changed object.
pub fn object_meta_update(errors: &mut Errors, path: &Path<'_>, metadata: &Value, old: &Value) {
    // A deletion waits for the finalizers, so it must not get new ones.
    if old.get("deletionTimestamp").is_some() {
        let before: BTreeSet<&str> = items(old, "finalizers")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let added: BTreeSet<&str> = items(metadata, "finalizers")
            .iter()
            .filter_map(Value::as_str)
            .filter(|name| !before.contains(name))
            .collect();
        if !added.is_empty() {
            let added: Vec<String> = added.into_iter().map(quote).collect();
            let list = added.join(", ");
            errors.forbidden(
                &path.child("finalizers"),
                format!("no new finalizers can be added if the object is being deleted, found new finalizers []string{{{list}}}"),
            );
        }
    }
    if text(metadata, "resourceVersion").is_empty() {
        errors.invalid(
            &path.child("resourceVersion"),
            "",
            "must be specified for an update",
        );
    }
    if generation(metadata) < generation(old) {
        errors.invalid(
            &path.child("generation"),
            generation(metadata),
            "must not be decremented",
        );
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        immutable(errors, &path.child(field), &metadata[field], &old[field]);
    }
    labels(errors, &path.child("labels"), metadata.get("labels"));
    annotations(errors, &path.child("annotations"), metadata);
    owner_references(
        errors,
        &path.child("ownerReferences"),
        items(metadata, "ownerReferences"),
    );
    managed_fields(
        errors,
        &path.child("managedFields"),
        items(metadata, "managedFields"),
    );
}

fn generation(metadata: &Value) -> i64 {
    metadata["generation"].as_i64().unwrap_or(0)
}

/// Validates a label's key.
pub fn label_name(errors: &mut Errors, path: &Path<'_>, name: &str) {
    check(errors, path, name, names::qualified_name(name));
}

/// Validates a map of labels, if it is present.
pub fn labels(errors: &mut Errors, path: &Path<'_>, labels: Option<&Value>) {
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        label_name(errors, path, key);
        let value = value.as_str().unwrap_or("");
        check(errors, path, value, names::label_value(value));
    }
}

/// Validates the `annotations` of an object's metadata.
pub fn annotations(errors: &mut Errors, path: &Path<'_>, metadata: &Value) {
    let mut bytes = 0;
    for (key, value) in entries(metadata, "annotations") {
        // Unlike a label key, an annotation key may have capital letters in its prefix; apimachinery checks it in lower case.
        check(
            errors,
            path,
            key,
            names::qualified_name(&key.to_lowercase()),
        );
        bytes += key.len() + value.as_str().map_or(0, str::len);
    }
    if bytes > MAX_ANNOTATIONS_BYTES {
        errors.too_long(path, MAX_ANNOTATIONS_BYTES);
    }
}

fn owner_references(errors: &mut Errors, path: &Path<'_>, references: &[Value]) {
    let mut controller: Option<String> = None;
    for reference in references {
        let (api_version, kind) = (text(reference, "apiVersion"), text(reference, "kind"));
        let (group, version) = group_version(api_version);
        if version.is_empty() {
            errors.invalid(
                &path.child("apiVersion"),
                api_version,
                "version must not be empty",
            );
        }
        for field in ["kind", "name", "uid"] {
            if text(reference, field).is_empty() {
                errors.invalid(&path.child(field), "", "must not be empty");
            }
        }
        if (group, version, kind) == ("", "v1", "Event") {
            errors.invalid(
                path,
                reference.clone(),
                "/v1, Kind=Event is disallowed from being an owner",
            );
        }
        if reference["controller"] == true {
            let name = format!("{kind}/{}", text(reference, "name"));
            match &controller {
                None => controller = Some(name),
                // The message would contain all references, so it is not formatted for an error that is dropped anyway.
                Some(_) if errors.is_full() => {}
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    );
                    errors.with_text(ErrorType::Invalid, path, printed(references), detail);
                }
            }
        }
    }
}

/// Splits an `apiVersion` into group and version; both are empty if it has more than one slash.
pub fn group_version(api_version: &str) -> (&str, &str) {
    match api_version.split_once('/') {
        None => ("", api_version),
        Some((_, version)) if version.contains('/') => ("", ""),
        Some(parts) => parts,
    }
}

/// Formats owner references as Go marshals them.
fn printed(references: &[Value]) -> String {
    let one = |reference: &Value| {
        let mut fields = Vec::new();
        for field in [
            "apiVersion",
            "kind",
            "name",
            "uid",
            "controller",
            "blockOwnerDeletion",
        ] {
            if let Some(value) = reference.get(field) {
                fields.push((field, value.clone()));
            }
        }
        field::go_struct(&fields)
    };
    format!(
        "[{}]",
        references.iter().map(one).collect::<Vec<_>>().join(",")
    )
}

/// Validates the finalizers of built-in kinds beyond their form: each needs a domain, unless it is one of Kubernetes' own.
pub fn kube_finalizers(errors: &mut Errors, path: &Path<'_>, metadata: &Value) {
    let path = path.child("finalizers");
    for (index, finalizer) in items(metadata, "finalizers")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        kube_finalizer(errors, &path.index(index), finalizer);
    }
}

/// Validates a finalizer of a built-in kind: it needs a domain unless it is one of Kubernetes' own.
pub fn kube_finalizer(errors: &mut Errors, path: &Path<'_>, finalizer: &str) {
    if !finalizer.contains('/')
        && !matches!(finalizer, "kubernetes" | "orphan" | "foregroundDeletion")
    {
        errors.invalid(
            path,
            finalizer,
            "name is neither a standard finalizer name nor is it fully qualified",
        );
    }
}

fn finalizers(errors: &mut Errors, path: &Path<'_>, finalizers: &[Value]) {
    for finalizer in finalizers.iter().filter_map(Value::as_str) {
        check(errors, path, finalizer, names::qualified_name(finalizer));
    }
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    if has("orphan") && has("foregroundDeletion") {
        errors.invalid(
            path,
            finalizers.to_vec(),
            "finalizer orphan and foregroundDeletion cannot be both set",
        );
    }
}

fn managed_fields(errors: &mut Errors, path: &Path<'_>, entries: &[Value]) {
    for (index, entry) in entries.iter().enumerate() {
        let path = &path.index(index);
        let operation = text(entry, "operation");
        if !matches!(operation, "Apply" | "Update") {
            errors.invalid(
                &path.child("operation"),
                operation,
                "must be `Apply` or `Update`",
            );
        }
        let fields_type = text(entry, "fieldsType");
        if !matches!(fields_type, "" | "FieldsV1") {
            errors.invalid(&path.child("fieldsType"), fields_type, "must be `FieldsV1`");
        }
        field_manager(errors, &path.child("manager"), text(entry, "manager"));
        if text(entry, "subresource").len() > MAX_SUBRESOURCE {
            errors.too_long(&path.child("subresource"), MAX_SUBRESOURCE);
        }
    }
}

/// Validates the name of a field manager, which may also be a request parameter.
pub fn field_manager(errors: &mut Errors, path: &Path<'_>, manager: &str) {
    if manager.len() > MAX_FIELD_MANAGER {
        errors.too_long(path, MAX_FIELD_MANAGER);
    }
    for (position, c) in manager.char_indices() {
        if !is_printable(c) {
            errors.invalid(
                path,
                manager,
                format!(
                    "invalid character U+{:04X} (at position {position})",
                    u32::from(c)
                ),
            );
        }
    }
}

/// Validates a list of `metav1.Condition`.
pub fn conditions(errors: &mut Errors, path: &Path<'_>, conditions: &[Value]) {
    let mut seen = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = &path.index(index);
        let kind = text(condition, "type");
        if !seen.insert(kind) {
            errors.duplicate(&path.child("type"), kind);
        }
        label_name(errors, &path.child("type"), kind);
        super::one_of(
            errors,
            &path.child("status"),
            text(condition, "status"),
            &["False", "True", "Unknown"],
        );
        if condition["observedGeneration"]
            .as_i64()
            .is_some_and(|generation| generation < 0)
        {
            errors.invalid(
                &path.child("observedGeneration"),
                condition["observedGeneration"].clone(),
                "must be greater than or equal to zero",
            );
        }
        if text(condition, "lastTransitionTime").is_empty() {
            errors.required(&path.child("lastTransitionTime"), "");
        }
        match text(condition, "reason") {
            "" => errors.required(&path.child("reason"), ""),
            reason => condition_reason(errors, &path.child("reason"), reason),
        }
        if text(condition, "message").len() > 32 * 1024 {
            errors.too_long(&path.child("message"), 32 * 1024);
        }
    }
}

fn condition_reason(errors: &mut Errors, path: &Path<'_>, reason: &str) {
    const PATTERN: &str = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?";
    const MESSAGE: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'";
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let good = reason.starts_with(|c: char| c.is_ascii_alphabetic())
        && reason.bytes().last().is_some_and(word)
        && reason
            .bytes()
            .all(|byte| word(byte) || b",:".contains(&byte));
    if !good {
        let examples = [
            "my_name",
            "MY_NAME",
            "MyName",
            "ReasonA,ReasonB",
            "ReasonA:ReasonB",
        ];
        errors.invalid(path, reason, names::mismatch(MESSAGE, PATTERN, &examples));
    }
    if reason.len() > 1024 {
        errors.too_long(path, 1024);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(errors: &Errors) -> Vec<String> {
        errors
            .0
            .iter()
            .map(|error| format!("{}: {}", error.field, error.body()))
            .collect()
    }

    #[test]
    fn a_new_finalizer_on_a_dying_object_is_refused() {
        let old = json!({"name": "x", "resourceVersion": "1", "deletionTimestamp": "2020-01-01T00:00:00Z", "finalizers": ["a.b/c"]});
        let mut new = old.clone();
        new["finalizers"] = json!(["a.b/c", "g.h/i"]);
        let mut errors = Errors::default();
        object_meta_update(&mut errors, &Path::new("metadata"), &new, &old);
        assert_eq!(
            messages(&errors),
            [
                r#"metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"g.h/i"}"#
            ]
        );
    }

    #[test]
    fn the_version_of_an_owner_is_what_follows_the_only_slash() {
        let rows = [
            ("v1", None),
            ("a.b/v1", None),
            ("/v1", None),
            ("", Some("")),
            ("/", Some("/")),
            ("a.b/", Some("a.b/")),
            ("a/b/c", Some("a/b/c")),
        ];
        for (api_version, refused) in rows {
            let owner = json!({"apiVersion": api_version, "kind": "Pod", "name": "n", "uid": "u"});
            let mut errors = Errors::default();
            owner_references(&mut errors, &Path::new("o"), &[owner]);
            let expected = refused.map(|shown| {
                format!("o.apiVersion: Invalid value: {shown:?}: version must not be empty")
            });
            let expected: Vec<String> = expected.into_iter().collect();
            assert_eq!(messages(&errors), expected, "{api_version}");
        }
    }

    #[test]
    fn annotations_may_be_upper_case_and_have_a_total_size() {
        let mut errors = Errors::default();
        annotations(
            &mut errors,
            &Path::new("a"),
            &json!({"annotations": {"UPPER.example.com/X": "v"}}),
        );
        assert!(errors.is_empty());
        annotations(
            &mut errors,
            &Path::new("a"),
            &json!({"annotations": {"k": "v".repeat(256 * 1024)}}),
        );
        assert_eq!(
            messages(&errors),
            ["a: Too long: may not be more than 262144 bytes"]
        );
    }

    #[test]
    fn a_manager_must_be_printable() {
        let mut errors = Errors::default();
        field_manager(&mut errors, &Path::new("fieldManager"), "\u{1}");
        assert_eq!(
            messages(&errors),
            [r#"fieldManager: Invalid value: "\x01": invalid character U+0001 (at position 0)"#]
        );
    }
}
