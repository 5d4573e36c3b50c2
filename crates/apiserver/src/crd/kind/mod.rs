//! CustomResourceDefinitions: defaults, the first status, and validation with kube-apiserver's messages.
//!
//! kube-apiserver validates an internal form, in which a schema, subresources and columns that all versions share are at the top: errors
//! about them name `spec.validation`, `spec.subresources` and `spec.additionalPrinterColumns` (see [`spec`]). `crd/definition` validates
//! the schemas, and `crd/controller.rs` writes the status.

mod conversion;
mod serving;
mod spec;

use std::collections::HashSet;

use mullion_kinds::{Check, Deletion, Kind, request::Ctx};
use mullion_kube_text::{
    field::{Errors, Path},
    golang::{number, quote},
};
use mullion_schema::time;
use serde_json::{Value, json};

use crate::crd::{CLEANUP_FINALIZER, definition};

const APPROVAL: &str = "api-approved.kubernetes.io";

pub(crate) struct CustomResourceDefinition;

/// The state of the approval annotation, which definitions in Kubernetes' own groups need.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Approval {
    /// The annotation is absent.
    Missing,
    /// The annotation is neither a URL nor a reason starting with `unapproved`.
    Invalid,
    /// The annotation says that the definition is not approved.
    Bypassed,
    /// The annotation is the URL of the approval.
    Approved,
}

impl Approval {
    /// Returns the state and a sentence about it, or `None` for groups that need no approval.
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
        // Go decodes the numbers of defaults and enums into any type and writes them anew.
        number::settle(object);
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
        let service = spec.pointer_mut("/conversion/webhook/clientConfig/service");
        if let Some(service) = service.and_then(Value::as_object_mut) {
            let port = service.entry("port").or_insert(Value::Null);
            if port.is_null() {
                *port = 443.into();
            }
        }
    }

    fn prepare_create(&self, _: &Ctx<'_>, object: &mut Value) {
        object["status"] = json!({"acceptedNames": {"kind": "", "plural": ""}, "conditions": null, "storedVersions": null});
        store_storage_version(object);
    }

    fn prepare_update(&self, _: &Ctx<'_>, object: &mut Value, _: &Value) {
        store_storage_version(object);
    }

    fn update_checks(&self, _: &str) -> &'static [Check] {
        &[Check::MetadataChange, Check::Change]
    }

    fn validate_creation(&self, _: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let spec = &object["spec"];
        let wanted = format!("{}.{}", text(&spec["names"], "plural"), text(spec, "group"));
        let metadata = Path::new("metadata");
        for field in ["generateName", "name"] {
            let given = text(&object["metadata"], field);
            if !given.is_empty() && given != wanted {
                let why = r#"must be spec.names.plural+"."+spec.group"#;
                errors.invalid(&metadata.child(field), given, why);
            }
        }
        spec::check_spec(object, None, errors);
        check_accepted_names(object, errors);
        check_stored_versions(object, errors);
        check_approval(object, None, errors);
        check_unknown_fields(object, None, errors);
    }

    fn validate_update(&self, _: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        spec::check_spec(object, Some(old), errors);
        let (new, before) = (&object["spec"], &old["spec"]);
        let spec = Path::new("spec");
        let names = spec.child("names");
        let mut immutable = |path: &Path<'_>, new: &Value, before: &Value| {
            if new != before {
                errors.invalid(path, new.clone(), "field is immutable");
            }
        };
        // Before it is established nothing is stored under these names, so they may still be corrected.
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
        check_accepted_names(object, errors);
        check_stored_versions(object, errors);
        check_approval(object, Some(old), errors);
        check_unknown_fields(object, Some(old), errors);
    }

    fn validate_status(&self, _: &Ctx<'_>, object: &Value, _: &Value, errors: &mut Errors) {
        check_accepted_names(object, errors);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let formats = |object: &Value| -> Vec<String> {
            let schemas = versions(object).iter().filter_map(spec::schema_of);
            schemas.flat_map(definition::unknown_formats).collect()
        };
        let mut known: HashSet<String> = old.map(formats).unwrap_or_default().into_iter().collect();
        let mut warnings = Vec::new();
        for format in formats(object) {
            let warning = format!("unrecognized format {}", quote(&format));
            if known.insert(format) {
                warnings.push(warning);
            }
        }
        warnings
    }

    fn deletion(&self) -> Option<&dyn Deletion> {
        Some(self)
    }
}

impl Deletion for CustomResourceDefinition {
    /// Adds the finalizer that keeps the definition, and the condition `Terminating`. The generation and the grace period do not change.
    fn prepare_delete(&self, ctx: &Ctx<'_>, object: &mut Value) {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("deletionGracePeriodSeconds");
            if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
                // Takes back the count of the general deletion: kube-apiserver's storage of definitions sets its mark without it.
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

/// Validates the approval annotation, unless a change leaves its state as it was.
fn check_approval(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let state = |object: &Value| Approval::of(object, text(&object["spec"], "group"));
    let Some((approval, why)) = state(object) else {
        return;
    };
    let before = old.and_then(state).map(|(before, _)| before);
    // A definition from before the policy must remain editable.
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

/// Returns whether the definition has the condition `Established` and is served.
pub(crate) fn is_established(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

fn store_storage_version(object: &mut Value) {
    let mut all = versions(object).iter();
    let Some(storage) = all.find(|version| version["storage"] == true) else {
        return;
    };
    let name = storage["name"].clone();
    let stored = &mut object["status"]["storedVersions"];
    match stored.as_array_mut() {
        Some(present) if present.contains(&name) => {}
        Some(present) => present.push(name),
        None => *stored = json!([name]),
    }
}

fn check_accepted_names(object: &Value, errors: &mut Errors) {
    let status = Path::new("status");
    let accepted = &object["status"]["acceptedNames"];
    spec::check_given_names(accepted, &status.child("acceptedNames"), errors);
}

fn check_unknown_fields(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let keeps = |object: &Value| object["spec"]["preserveUnknownFields"] == true;
    if keeps(object) && !old.is_some_and(keeps) {
        let spec = Path::new("spec");
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.invalid(&spec.child("preserveUnknownFields"), true, why);
    }
}

fn check_stored_versions(object: &Value, errors: &mut Errors) {
    let status = Path::new("status");
    let at = status.child("storedVersions");
    let stored = object["status"]["storedVersions"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if stored.is_empty() {
        let shown = object["status"]["storedVersions"].clone();
        return errors.invalid(&at, shown, "must have at least one stored version");
    }
    let stored_names: HashSet<&str> = stored.iter().filter_map(Value::as_str).collect();
    for version in versions(object) {
        let name = text(version, "name");
        if version["storage"] == true && !stored_names.contains(name) {
            let why = format!("must have the storage version {name}");
            errors.invalid(&at, stored, why);
        }
    }
    let names = versions(object).iter().map(|version| text(version, "name"));
    let names: HashSet<&str> = names.collect();
    for (index, name) in stored.iter().filter_map(Value::as_str).enumerate() {
        if !names.contains(name) {
            let why = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.invalid(&at.index(index), name, why);
        }
    }
}
