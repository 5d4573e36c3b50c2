//! Validates environment variables and their sources, and the field selectors of the downward API.

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::check,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Scope, paths, totals::quantity};
use crate::fields::{self, Field, Format, Text, always, filled, required};

const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// The fields that a downward API volume can show.
pub(super) const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const VARIABLE: &[Field] = &[required("name", Format(names::relaxed_env_name))];
const KEYS: [(&str, &[Field]); 3] = [
    ("configMapKeyRef", KEY),
    ("secretKeyRef", KEY),
    ("fileKeyRef", FILE_KEY),
];
const KEY: &[Field] = &[
    always("name", Format(names::dns_subdomain)),
    required("key", Format(names::config_key)),
];
const FILE_KEY: &[Field] = &[
    required("key", Format(names::relaxed_env_name)),
    required("volumeName", Format(names::dns_label)),
    required("path", Text(paths::no_backsteps)),
];
const SOURCE: &[Field] = &[filled("prefix", Format(names::relaxed_env_name))];
const REFERENCE: &[Field] = &[required("name", Format(name_prefix))];
const DIVISORS: [&str; 13] = [
    "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
];

fn name_prefix(name: &str) -> names::Sentences {
    names::by_rule(names::NameRule::DnsSubdomain, name, true)
}

/// Validates `env` of a container.
pub(super) fn validate(variables: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, variable) in variables.iter().enumerate() {
        let at = path.index(index);
        fields::validate(VARIABLE, variable, &at, errors);
        if let Some(source) = variable.field("valueFrom") {
            value_from(
                source,
                variable.text("value"),
                &at.child("valueFrom"),
                errors,
            );
        }
    }
}

fn value_from(source: &Value, value: &str, path: &Path<'_>, errors: &mut Errors) {
    let mut sources = 0;
    if let Some(reference) = source.field("fieldRef") {
        sources += 1;
        field_ref(reference, &ENV_FIELDS, &path.child("fieldRef"), errors);
    }
    if let Some(reference) = source.field("resourceFieldRef") {
        sources += 1;
        resource_field_ref(reference, false, &path.child("resourceFieldRef"), errors);
    }
    for (kind, fields) in KEYS {
        if let Some(reference) = source.field(kind) {
            sources += 1;
            fields::validate(fields, reference, &path.child(kind), errors);
        }
    }
    if sources == 0 {
        let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errors.invalid(path, "", detail);
    } else if !value.is_empty() {
        errors.invalid(path, "", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        errors.invalid(
            path,
            "",
            "may not have more than one field specified at a time",
        );
    }
}

/// Validates an `ObjectFieldSelector`.
pub(super) fn field_ref(
    reference: &Value,
    supported: &[&str],
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let (version, field) = (reference.text("apiVersion"), reference.text("fieldPath"));
    if version.is_empty() {
        return errors.required(&path.child("apiVersion"), "");
    }
    if field.is_empty() {
        return errors.required(&path.child("fieldPath"), "");
    }
    if version != "v1" {
        let detail = format!("error converting fieldPath: unsupported pod version: {version}");
        return errors.invalid(&path.child("fieldPath"), field, detail);
    }
    if let Some((map, key)) = field
        .strip_suffix("']")
        .and_then(|field| field.split_once("['"))
        .filter(|(map, _)| !map.is_empty())
    {
        return match map {
            // Like everywhere, the keys of annotations are checked in lower case.
            "metadata.annotations" => check(
                errors,
                path,
                &key.to_lowercase(),
                names::qualified_name(&key.to_lowercase()),
            ),
            "metadata.labels" => check(errors, path, key, names::qualified_name(key)),
            _ => {
                let detail = format!(
                    "error converting fieldPath: field label does not support subscript: {field}"
                );
                errors.invalid(&path.child("fieldPath"), field, detail);
            }
        };
    }
    // The conversion to the internal form accepts these fields too, and `spec.host` is an old name there.
    let known = field == "spec.host"
        || field == "spec.restartPolicy"
        || field == "spec.schedulerName"
        || field == "status.phase";
    let internal = if field == "spec.host" {
        "spec.nodeName"
    } else {
        field
    };
    if !known && !ENV_FIELDS.contains(&field) && !VOLUME_FIELDS.contains(&field) {
        let detail = format!("error converting fieldPath: field label not supported: {field}");
        errors.invalid(&path.child("fieldPath"), field, detail);
    } else if !supported.contains(&internal) {
        errors.not_supported_text(&path.child("fieldPath"), internal, supported);
    }
}

/// Validates a `ResourceFieldSelector`; in a volume, it must name a container.
pub(super) fn resource_field_ref(
    reference: &Value,
    in_volume: bool,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let resource = reference.text("resource");
    let huge_pages =
        resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if in_volume && reference.text("containerName").is_empty() {
        errors.required(&path.child("containerName"), "");
    } else if resource.is_empty() {
        errors.required(&path.child("resource"), "");
    } else if !RESOURCES.contains(&resource) && !huge_pages {
        errors.not_supported_text(&path.child("resource"), resource, &RESOURCES);
    }
    // A divisor of zero counts as missing.
    let Some(divisor) = reference
        .field("divisor")
        .map(quantity)
        .filter(|divisor| !divisor.is_zero())
    else {
        return;
    };
    let divisor = divisor.to_string();
    let sizes = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei";
    let detail = match resource {
        "limits.cpu" | "requests.cpu" if divisor != "1" && divisor != "1m" => {
            "only divisor's values 1m and 1 are supported with the cpu resource".to_owned()
        }
        "limits.cpu" | "requests.cpu" => return,
        _ if DIVISORS.contains(&divisor.as_str()) => return,
        "limits.memory" | "requests.memory" => {
            format!("only divisor's values {sizes} are supported with the memory resource")
        }
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => {
            format!(
                "only divisor's values {sizes} are supported with the local ephemeral storage resource"
            )
        }
        _ if huge_pages => {
            format!("only divisor's values {sizes} are supported with the hugepages resource")
        }
        _ => return,
    };
    // kube-apiserver's error shows the resource, not the divisor.
    errors.invalid(&path.child("divisor"), resource, detail);
}

/// Validates that files of environment variables are in `emptyDir` volumes of the pod; `path` is the spec's.
pub(super) fn validate_files(scope: &Scope<'_>, path: &Path<'_>, errors: &mut Errors) {
    scope.visit_containers(path, &mut |container, at| {
        let list = at.child("env");
        for (index, variable) in container.items("env").iter().enumerate() {
            let reference = variable
                .field("valueFrom")
                .and_then(|source| source.field("fileKeyRef"));
            let Some(reference) = reference else {
                continue;
            };
            let name = reference.text("volumeName");
            let at = list.index(index);
            let at = at.child("valueFrom");
            let at = at.child("fileKeyRef");
            let at = at.child("volumeName");
            let named = |volume: &&Value| volume.text("name") == name;
            // kube-apiserver finds volumes in a map, which keeps the last one of two with the same name.
            match scope.spec.items("volumes").iter().rfind(named) {
                None => errors.not_found(&at, name),
                Some(volume) if !volume.has("emptyDir") => {
                    errors.invalid(&at, name, "referenced volume must be of type emptyDir");
                }
                Some(_) => {}
            }
        }
    });
}

/// Validates `envFrom` of a container.
pub(super) fn validate_from(sources: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, source) in sources.iter().enumerate() {
        let at = path.index(index);
        fields::validate(SOURCE, source, &at, errors);
        let mut sources = 0;
        for kind in ["configMapRef", "secretRef"] {
            if let Some(reference) = source.field(kind) {
                sources += 1;
                fields::validate(REFERENCE, reference, &at.child(kind), errors);
            }
        }
        // kube-apiserver reports these two errors at the list, without the index.
        if sources == 0 {
            errors.invalid(
                path,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            );
        } else if sources > 1 {
            errors.invalid(
                path,
                "",
                "may not have more than one field specified at a time",
            );
        }
    }
}
