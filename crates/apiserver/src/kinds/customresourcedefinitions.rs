//! CustomResourceDefinitions: defaults, the first status, and validation in upstream's words.
//!
//! Upstream validates its internal form, in which schema, subresources and columns that all versions share stand once at the top: errors
//! about them name `spec.validation`, `spec.subresources` and `spec.additionalPrinterColumns`. The schema itself is checked in
//! `crd/definition.rs`; the status is written by `crd/controller.rs`.

use serde_json::{Value, json};

use super::{Check, Kind};
use crate::{
    admission::Ctx,
    crd::{CLEANUP_FINALIZER, definition},
    field::{ErrorType, Errors, Path, is_printable},
    schema::time,
    validation::names,
};

const APPROVAL: &str = "api-approved.kubernetes.io";
const COLUMN_FORMATS: &[&str] = &[
    "byte",
    "date",
    "date-time",
    "double",
    "float",
    "int32",
    "int64",
    "password",
];
const COLUMN_TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];

pub(super) struct CustomResourceDefinition;

/// Whether the definition of a kind in one of Kubernetes' own groups has been approved.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Approval {
    /// Nothing is said.
    Missing,
    /// What is said is neither an address nor a reason.
    Invalid,
    /// It says that it is not.
    Bypassed,
    /// It says where.
    Approved,
}

impl Approval {
    /// The state and a sentence about it; `None` for groups that anybody may use.
    pub(crate) fn of(definition: &Value, group: &str) -> Option<(Approval, String)> {
        let is_protected = ["k8s.io", "kubernetes.io"]
            .iter()
            .any(|domain| group == *domain || group.ends_with(&format!(".{domain}")));
        if !is_protected {
            return None;
        }
        let given = definition["metadata"]["annotations"].get(APPROVAL);
        let given = given.and_then(Value::as_str).unwrap_or_default();
        let wanted = format!("protected groups must have approval annotation {APPROVAL:?}");
        let proposal = "see https://github.com/kubernetes/enhancements/pull/1111";
        let has_address = given
            .split_once("://")
            .is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty());
        Some(match given {
            "" => (Approval::Missing, format!("{wanted}, {proposal}")),
            reason if reason.starts_with("unapproved") => {
                (Approval::Bypassed, format!("not approved: {reason:?}"))
            }
            address if has_address => (Approval::Approved, format!("approved in {address}")),
            _ => {
                let either = "with either a URL or a reason starting with \"unapproved\"";
                (Approval::Invalid, format!("{wanted} {either}, {proposal}"))
            }
        })
    }
}

impl Kind for CustomResourceDefinition {
    fn default(&self, object: &mut Value) {
        let spec = &mut object["spec"];
        let kind = text(&spec["names"], "kind").to_owned();
        if !kind.is_empty() {
            for (field, value) in [
                ("singular", kind.to_lowercase()),
                ("listKind", format!("{kind}List")),
            ] {
                if text(&spec["names"], field).is_empty() {
                    spec["names"][field] = value.into();
                }
            }
        }
        if spec.get("conversion").is_none_or(Value::is_null) {
            spec["conversion"] = json!({"strategy": "None"});
        }
    }

    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        object["status"] = json!({"acceptedNames": {"kind": "", "plural": ""}, "conditions": null, "storedVersions": null});
        store_storage_versions(object);
    }

    fn prepare_update(&self, _: &Ctx<'_>, object: &mut Value, _: &Value) {
        store_storage_versions(object);
    }

    fn validate(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        check_spec(object, None, errors);
        check_status(object, errors);
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[Check::MetadataChange, Check::Change]
    }

    fn validate_creation(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let spec = &object["spec"];
        let (name, plural, group) = (
            text(&object["metadata"], "name"),
            text(&spec["names"], "plural"),
            text(spec, "group"),
        );
        let metadata = Path::new("metadata");
        if name != format!("{plural}.{group}") {
            errors.invalid(
                &metadata.child("name"),
                name,
                r#"must be spec.names.plural+"."+spec.group"#,
            );
        }
        check_approval(object, None, errors);
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        check_spec(object, Some(old), errors);
        check_status(object, errors);
        let (new, before) = (&object["spec"], &old["spec"]);
        let spec = Path::new("spec");
        let names = spec.child("names");
        let mut immutable = |path: &Path<'_>, new: &Value, before: &Value| {
            if new != before {
                errors.invalid(path, new.clone(), "field is immutable");
            }
        };
        if is_established(old) {
            immutable(&spec.child("scope"), &new["scope"], &before["scope"]);
            immutable(
                &names.child("kind"),
                &new["names"]["kind"],
                &before["names"]["kind"],
            );
        }
        immutable(&spec.child("group"), &new["group"], &before["group"]);
        immutable(
            &names.child("plural"),
            &new["names"]["plural"],
            &before["names"]["plural"],
        );
        check_approval(object, Some(old), errors);
    }

    /// The finalizer that keeps the definition is added by its first deletion.
    fn holds_deletion(&self, object: &Value) -> bool {
        object["metadata"].get("deletionTimestamp").is_none()
    }

    /// Upstream marks definitions in code of its own: neither generation nor grace period change.
    fn prepare_delete(&self, ctx: &Ctx<'_>, object: &mut Value) {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("deletionGracePeriodSeconds");
            if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
                metadata.insert("generation".to_owned(), (generation - 1).into());
            }
        }
        let finalizers = &mut object["metadata"]["finalizers"];
        match finalizers.as_array_mut() {
            Some(present) if present.iter().any(|name| name == CLEANUP_FINALIZER) => {}
            Some(present) => present.push(CLEANUP_FINALIZER.into()),
            None => *finalizers = json!([CLEANUP_FINALIZER]),
        }
        let terminating = json!({
            "type": "Terminating", "status": "True", "reason": "InstanceDeletionPending",
            "lastTransitionTime": time::format_seconds(&ctx.now),
            "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        });
        let conditions = &mut object["status"]["conditions"];
        match conditions.as_array_mut() {
            Some(present)
                if present
                    .iter()
                    .any(|condition| condition["type"] == "Terminating") => {}
            Some(present) => present.push(terminating),
            None => *conditions = json!([terminating]),
        }
    }
}

/// A change that leaves the state of the approval as it was is not held up by it.
fn check_approval(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let state = |object: &Value| Approval::of(object, text(&object["spec"], "group"));
    let Some((approval, why)) = state(object) else {
        return;
    };
    let before = old.and_then(state).map(|(before, _)| before);
    if before.as_ref() == Some(&approval) {
        return;
    }
    let metadata = Path::new("metadata");
    let annotations = metadata.child("annotations");
    let at = annotations.key(APPROVAL);
    match approval {
        Approval::Missing => errors.required(&at, why),
        Approval::Invalid => {
            let given = object["metadata"]["annotations"][APPROVAL].clone();
            errors.invalid(&at, given, why);
        }
        Approval::Bypassed | Approval::Approved => {}
    }
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn versions(object: &Value) -> &[Value] {
    object["spec"]["versions"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Whether the definition has been accepted and is served.
pub(crate) fn is_established(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

fn store_storage_versions(object: &mut Value) {
    let storage: Vec<Value> = versions(object)
        .iter()
        .filter(|version| version["storage"] == true)
        .map(|version| version["name"].clone())
        .collect();
    let stored = &mut object["status"]["storedVersions"];
    for name in storage {
        match stored.as_array_mut() {
            Some(present) if present.contains(&name) => {}
            Some(present) => present.push(name),
            None => *stored = json!([name]),
        }
    }
}

fn check_spec(object: &Value, old: Option<&Value>, errors: &mut Errors) {
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
    if spec["preserveUnknownFields"] == true {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.invalid(&path.child("preserveUnknownFields"), true, why);
    }
    check_names(&spec["names"], &path.child("names"), errors);
    check_versions(object, old, &path, errors);
    check_conversion(object, old, &path.child("conversion"), errors);
}

/// Upstream's internal form has what a webhook needs beside the strategy. Conversion by webhook is not served here, so it is refused where it
/// would be needed.
fn check_conversion(object: &Value, old: Option<&Value>, path: &Path<'_>, errors: &mut Errors) {
    let conversion = &object["spec"]["conversion"];
    let webhook = conversion.get("webhook").filter(|given| given.is_object());
    let (config, reviews) = (
        path.child("webhookClientConfig"),
        path.child("conversionReviewVersions"),
    );
    let versions_named = review_versions(object);
    let are_known = |versions: &[Value]| {
        let mut versions = versions.iter();
        versions.any(|name| name == "v1" || name == "v1beta1")
    };
    // A change is not held up by versions that nobody knew before it either.
    let may_be_unknown = old.map(review_versions);
    let may_be_unknown =
        may_be_unknown.is_some_and(|versions| !versions.is_empty() && !are_known(versions));
    let given = webhook.and_then(|webhook| webhook.get("clientConfig"));
    let given = given.filter(|given| given.is_object());
    match text(conversion, "strategy") {
        "" => errors.required(&path.child("strategy"), ""),
        "None" => {
            let why = "should not be set when strategy is not set to Webhook";
            if given.is_some() {
                errors.forbidden(&config, why);
            }
            if !versions_named.is_empty() {
                errors.forbidden(&reviews, why);
            }
        }
        "Webhook" => {
            let is_set = |field: &str| {
                given
                    .and_then(|given| given.get(field))
                    .is_some_and(|value| !value.is_null())
            };
            if given.is_none() {
                errors.required(&config, "required when strategy is set to Webhook");
            } else if is_set("url") == is_set("service") {
                errors.required(&config, "exactly one of url or service is required");
            }
            if versions_named.is_empty() {
                errors.required(&reviews, "");
            } else if !may_be_unknown && !are_known(versions_named) {
                let why = "must include at least one of v1, v1beta1";
                errors.invalid(&reviews, versions_named, why);
            }
            let needs_it =
                |version: &Value| version["served"] == true && version["storage"] != true;
            if versions(object).iter().any(needs_it) {
                let why = "conversion by webhook is not served: serve the storage version only, or keep the versions alike and use None";
                errors.forbidden(&path.child("strategy"), why);
            }
        }
        other => errors.not_supported(&path.child("strategy"), other, &["None", "Webhook"]),
    }
}

/// The versions of reviews that a conversion webhook knows.
fn review_versions(object: &Value) -> &[Value] {
    let versions = object.pointer("/spec/conversion/webhook/conversionReviewVersions");
    let versions = versions.and_then(Value::as_array);
    versions.map(Vec::as_slice).unwrap_or_default()
}

fn check_names(given: &Value, path: &Path<'_>, errors: &mut Errors) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let value = text(given, field);
        if value.is_empty() {
            errors.required(&path.child(field), "");
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
    for field in ["shortNames", "categories"] {
        let at = path.child(field);
        for (index, name) in given[field]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .enumerate()
        {
            let sentences = names::dns1035_label(name);
            if !sentences.is_empty() {
                errors.invalid(&at.index(index), name, sentences.join(","));
            }
        }
    }
    if !text(given, "kind").is_empty() && text(given, "kind") == text(given, "listKind") {
        errors.invalid(
            &path.child("listKind"),
            text(given, "listKind"),
            "kind and listKind may not be the same",
        );
    }
}

/// Whether all versions say the same about something, so that upstream's internal form has it once.
fn is_shared(versions: &[Value], field: &str) -> bool {
    versions
        .windows(2)
        .all(|pair| pair[0].get(field) == pair[1].get(field))
}

fn schema_of(version: &Value) -> Option<&Value> {
    let schema = version.pointer("/schema/openAPIV3Schema");
    schema.filter(|schema| schema.is_object())
}

fn check_versions(object: &Value, old: Option<&Value>, path: &Path<'_>, errors: &mut Errors) {
    let all = versions(object);
    let before = old.map(versions).unwrap_or_default();
    let spared = definition::Spared::by(before.iter().filter_map(schema_of));
    let spared = |version: &Value| {
        let mut same_name = before.iter().filter(|old| old["name"] == version["name"]);
        spared.of_version(same_name.any(|old| schema_of(old) == schema_of(version)))
    };
    let at = path.child("versions");
    if all
        .iter()
        .filter(|version| version["storage"] == true)
        .count()
        != 1
    {
        errors.with_text(
            ErrorType::Invalid,
            &at,
            internal_form(&object["spec"]["versions"]),
            "must have exactly one version marked as storage version",
        );
    }
    let mut is_unique = true;
    for (index, version) in all.iter().enumerate() {
        let name = text(version, "name");
        let sentences = names::dns1035_label(name);
        if !sentences.is_empty() {
            let why = sentences.join(",");
            if index == 0 && !name.is_empty() {
                errors.invalid(&path.child("version"), name, why.as_str());
            }
            errors.invalid(&at.index(index).child("name"), name, why);
        }
        is_unique &= !all[..index].iter().any(|other| text(other, "name") == name);
    }
    if !is_unique {
        errors.with_text(
            ErrorType::Invalid,
            &at,
            internal_form(&object["spec"]["versions"]),
            "must contain unique version names",
        );
    }
    let shared = |field: &str| is_shared(all, field);
    for (index, version) in all.iter().enumerate() {
        let at = at.index(index);
        let schema = schema_of(version);
        match schema {
            None => errors.required(&at.child("schema").child("openAPIV3Schema"), ""),
            Some(schema) if shared("schema") => {
                if index == 0 {
                    // One status subresource of any version restricts the schema that all share.
                    let has_status = all.iter().any(has_status);
                    let at = path.child("validation");
                    definition::check_schema(
                        schema,
                        has_status,
                        spared(version),
                        &at.child("openAPIV3Schema"),
                        errors,
                    );
                }
            }
            Some(schema) => {
                let at = at.child("schema");
                let at = at.child("openAPIV3Schema");
                definition::check_schema(schema, has_status(version), spared(version), &at, errors);
            }
        }
        if !shared("selectableFields") || index == 0 {
            let at = if shared("selectableFields") {
                path.child("selectableFields")
            } else {
                at.child("selectableFields")
            };
            let fields = &version["selectableFields"];
            definition::check_selectable_fields(fields, schema, &at, errors);
        }
        check_deprecation(version, &at.child("deprecationWarning"), errors);
        for (field, check) in [
            (
                "subresources",
                check_subresources as fn(&Value, &Path<'_>, &mut Errors),
            ),
            ("additionalPrinterColumns", check_columns),
        ] {
            if !shared(field) {
                check(&version[field], &at.child(field), errors);
            } else if index == 0 {
                check(&version[field], &path.child(field), errors);
            }
        }
    }
}

/// The versions as upstream prints its internal structs; what all share stands elsewhere there.
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

fn has_status(version: &Value) -> bool {
    version["subresources"]
        .get("status")
        .is_some_and(Value::is_object)
}

fn check_deprecation(version: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(warning) = version["deprecationWarning"].as_str() else {
        return;
    };
    if version["deprecated"] != true {
        errors.invalid(path, warning, "can only be set for deprecated versions");
        return;
    }
    if warning.len() > 256 {
        errors.invalid(path, warning, "must be <= 256 characters long");
    }
    if warning.is_empty() {
        errors.invalid(path, warning, "must not be an empty string");
    }
    if let Some((at, _)) = warning.char_indices().find(|(_, c)| !is_printable(*c)) {
        let why = format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {at}"
        );
        errors.invalid(path, warning, why);
    }
}

fn check_columns(columns: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, column) in columns.as_array().into_iter().flatten().enumerate() {
        let at = path.index(index);
        if text(column, "name").is_empty() {
            errors.required(&at.child("name"), "");
        }
        match text(column, "type") {
            "" => errors.required(
                &at.child("type"),
                format!("must be one of {}", COLUMN_TYPES.join(",")),
            ),
            known if COLUMN_TYPES.contains(&known) => {}
            other => errors.invalid(
                &at.child("type"),
                other,
                format!("must be one of {}", COLUMN_TYPES.join(",")),
            ),
        }
        let format = text(column, "format");
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            errors.invalid(
                &at.child("format"),
                format,
                format!("must be one of {}", COLUMN_FORMATS.join(",")),
            );
        }
        match text(column, "jsonPath") {
            "" => errors.required(&at.child("JSONPath"), ""),
            simple if simple.starts_with('.') => {}
            other => errors.invalid(
                &at.child("JSONPath"),
                other,
                "must be a simple json path starting with .",
            ),
        }
    }
}

fn check_subresources(subresources: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(scale) = subresources.get("scale").filter(|scale| scale.is_object()) else {
        return;
    };
    let at = path.child("scale");
    for (field, roots, required) in [
        ("specReplicasPath", &[".spec."][..], true),
        ("statusReplicasPath", &[".status."][..], true),
        ("labelSelectorPath", &[".spec.", ".status."][..], false),
    ] {
        let given = text(scale, field);
        let under = roots
            .iter()
            .map(|root| root.trim_end_matches('.'))
            .collect::<Vec<_>>();
        if given.is_empty() {
            if required {
                errors.required(&at.child(field), "");
            }
        } else if !given.starts_with('.') {
            errors.invalid(
                &at.child(field),
                given,
                "must be a simple json path starting with .",
            );
        } else if !roots.iter().any(|root| given.starts_with(root)) {
            let why = if under.len() == 1 {
                format!("should be a json path under {}", under[0])
            } else {
                "should be a json path under either .spec or .status".to_owned()
            };
            errors.invalid(&at.child(field), given, why);
        }
    }
}

fn check_status(object: &Value, errors: &mut Errors) {
    let status = Path::new("status");
    let at = status.child("storedVersions");
    let stored = object["status"]["storedVersions"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if stored.is_empty() {
        errors.invalid(&at, Value::Null, "must have at least one stored version");
    }
    for version in versions(object) {
        let name = text(version, "name");
        if version["storage"] == true && !stored.is_empty() && !stored.iter().any(|s| s == name) {
            let why = format!("must have the storage version {name}");
            errors.invalid(&at, stored, why);
        }
    }
    for (index, name) in stored.iter().filter_map(Value::as_str).enumerate() {
        if !versions(object)
            .iter()
            .any(|version| text(version, "name") == name)
        {
            let why = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.invalid(&at.index(index), name, why);
        }
    }
}
