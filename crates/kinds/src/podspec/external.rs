//! Validates volume sources outside of the node: disks, file systems, drivers, and claims that are created for the pod.

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{check, metadata},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::volumes::required;
use crate::persistentvolumeclaims;

/// The error for an iSCSI qualified name with an unknown prefix.
const STARTS: &str = "must be valid format starting with iqn, eui, or naa";

pub(super) fn iscsi(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    required(source, &["targetPortal", "iqn"], path, errors);
    if !source.text("iqn").is_empty() {
        iqn(source.text("iqn"), STARTS, &path.child("iqn"), errors);
    }
    let number = source.integer("lun").unwrap_or(0);
    lun(number, &path.child("lun"), errors);
    if (source.flag("chapAuthDiscovery") || source.flag("chapAuthSession"))
        && !source.has("secretRef")
    {
        errors.required(&path.child("secretRef"), "");
    }
    if source.has("initiatorName") {
        iqn(
            source.text("initiatorName"),
            STARTS,
            // kube-apiserver writes this path in lower case.
            &path.child("initiatorname"),
            errors,
        );
    }
}

/// Validates the number of a logical unit.
pub(super) fn lun(lun: i64, path: &Path<'_>, errors: &mut Errors) {
    if !(0..=255).contains(&lun) {
        errors.invalid(path, lun, names::outside(0, 255));
    }
}

/// Validates the name of an iSCSI target or initiator; `starts` is the message for a name with an unknown prefix.
pub(super) fn iqn(name: &str, starts: &str, path: &Path<'_>, errors: &mut Errors) {
    let of_length = |length: usize| {
        name.len() == length + 4 && name[4..].bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let good = match name.get(..3) {
        Some("iqn") => is_iqn(name),
        Some("eui") => of_length(16),
        Some("naa") => of_length(32),
        _ => {
            return errors.invalid(path, name, starts);
        }
    };
    if !good {
        errors.invalid(path, name, "must be valid format");
    }
}

/// Returns whether a text is a name like `iqn.2001-04.com.example:storage`: a date, a naming authority, a colon and a name.
fn is_iqn(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("iqn.") else {
        return false;
    };
    let Some((date, rest)) = rest.split_once('.') else {
        return false;
    };
    let Some((authority, target)) = rest.split_once(':') else {
        return false;
    };
    let digits = |text: &str, count: usize| {
        text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    date.split_once('-')
        .is_some_and(|(year, month)| digits(year, 4) && digits(month, 2))
        && !authority.is_empty()
        && authority
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
        && !target.is_empty()
        && !target.contains(|c: char| ",;*&$|".contains(c) || c.is_whitespace())
}

pub(super) fn flocker(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (name, uuid) = (source.text("datasetName"), source.text("datasetUUID"));
    if name.is_empty() && uuid.is_empty() {
        errors.required(path, "one of datasetName and datasetUUID is required");
    }
    if !name.is_empty() && !uuid.is_empty() {
        errors.invalid(
            path,
            "resource",
            "datasetName and datasetUUID can not be specified simultaneously",
        );
    }
    if name.contains('/') {
        errors.invalid(&path.child("datasetName"), name, "must not contain '/'");
    }
}

pub(super) fn quobyte(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = source.text("registry");
    if registry.is_empty() {
        errors.required(&path.child("registry"), PAIRS);
    } else if source.text("tenant").len() >= 65 {
        // kube-apiserver reports a long tenant as a missing one, and then does not look at the registry.
        errors.required(
            &path.child("tenant"),
            "must be a UUID and may not exceed a length of 64 characters",
        );
    } else {
        for _ in registry.split(',').filter(|pair| !is_host_and_port(pair)) {
            errors.invalid(&path.child("registry"), registry, PAIRS);
        }
    }
    required(source, &["volume"], path, errors);
}

/// Returns whether a text is `host:port`; an IPv6 address must be in brackets.
fn is_host_and_port(pair: &str) -> bool {
    let host = match pair.strip_prefix('[') {
        Some(rest) => rest
            .split_once("]:")
            .filter(|(_, port)| !port.contains(':')),
        None => pair.split_once(':').filter(|(_, port)| !port.contains(':')),
    };
    host.is_some_and(|(host, port)| !host.contains(['[', ']']) && !port.contains(['[', ']']))
}

pub(super) fn fibre_channel(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (targets, ids) = (source.items("targetWWNs"), source.items("wwids"));
    if targets.is_empty() && ids.is_empty() {
        errors.required(
            &path.child("targetWWNs"),
            "must specify either targetWWNs or wwids, but not both",
        );
    }
    if targets.is_empty() {
        return;
    }
    if !ids.is_empty() {
        errors.invalid(
            &path.child("targetWWNs"),
            targets.to_vec(),
            "targetWWNs and wwids can not be specified simultaneously",
        );
    }
    match source.integer("lun") {
        None => errors.required(
            &path.child("lun"),
            "lun is required if targetWWNs is specified",
        ),
        Some(number) => lun(number, &path.child("lun"), errors),
    }
}

pub(super) fn flex(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    required(source, &["driver"], path, errors);
    for (key, _) in source.entries("options") {
        let namespace = key
            .split_once('/')
            .map_or(key, |(namespace, _)| namespace)
            .to_lowercase();
        let reserved = |domain: &str| {
            namespace == domain
                || namespace
                    .strip_suffix(domain)
                    .is_some_and(|rest| rest.ends_with('.'))
        };
        if reserved("kubernetes.io") || reserved("k8s.io") {
            errors.invalid(
                &path.child("options").key(key),
                key,
                "kubernetes.io and k8s.io namespaces are reserved",
            );
        }
    }
}

pub(super) fn azure_disk(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    const CACHING: [&str; 3] = ["None", "ReadOnly", "ReadWrite"];
    const KINDS: [&str; 3] = ["Dedicated", "Managed", "Shared"];
    const MANAGED: [&str; 1] = [
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
    ];
    const BLOB: [&str; 1] =
        ["https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"];
    required(source, &["diskName", "diskURI"], path, errors);
    for (field, supported) in [("cachingMode", CACHING), ("kind", KINDS)] {
        if source.has(field) && !supported.contains(&source.text(field)) {
            errors.not_supported(&path.child(field), source.text(field), &supported);
        }
    }
    let (kind, uri) = (source.text("kind"), source.text("diskURI"));
    if kind == "Managed" && !uri.starts_with("/subscriptions/") {
        errors.not_supported(&path.child("diskURI"), uri, &MANAGED);
    }
    // Disks of the other kinds are blobs of a storage account.
    if source.has("kind") && kind != "Managed" && !uri.starts_with("https://") {
        errors.not_supported(&path.child("diskURI"), uri, &BLOB);
    }
}

pub(super) fn storage_os(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    required(source, &["volumeName"], path, errors);
    for field in ["volumeName", "volumeNamespace"] {
        let name = source.text(field);
        if !name.is_empty() {
            check(errors, &path.child(field), name, names::dns_label(name));
        }
    }
    secret_reference(source, path, errors);
}

pub(super) fn secret_reference(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    if source
        .field("secretRef")
        .is_some_and(|reference| reference.text("name").is_empty())
    {
        errors.required(&path.child("secretRef").child("name"), "");
    }
}

/// Validates the name of a CSI driver.
pub(super) fn driver_name(driver: &str, path: &Path<'_>, errors: &mut Errors) {
    if driver.is_empty() {
        return errors.required(path, "");
    }
    if driver.len() > 63 {
        errors.too_long(path, 63);
    }
    let sentences = names::dns_subdomain(&driver.to_lowercase());
    check(errors, path, driver, sentences);
}

pub(super) fn csi(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    driver_name(source.text("driver"), &path.child("driver"), errors);
    let Some(secret) = source.field("nodePublishSecretRef") else {
        return;
    };
    let name = secret.text("name");
    if name.is_empty() {
        errors.required(&path.child("nodePublishSecretRef").child("name"), "");
    } else {
        // kube-apiserver leaves the reference out of this path.
        check(
            errors,
            &path.child("name"),
            name,
            names::dns_subdomain(name),
        );
    }
}

/// The metadata fields that a claim's template must not set, in the order of Go's struct and with its spelling.
const NOT_IN_TEMPLATES: [(&str, &str); 13] = [
    ("name", "name"),
    ("generateName", "generateName"),
    ("namespace", "namespace"),
    ("selfLink", "selfLink"),
    ("uid", "uID"),
    ("resourceVersion", "resourceVersion"),
    ("generation", "generation"),
    ("creationTimestamp", "creationTimestamp"),
    ("deletionTimestamp", "deletionTimestamp"),
    ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"),
    ("ownerReferences", "ownerReferences"),
    ("finalizers", "finalizers"),
    ("managedFields", "managedFields"),
];

/// Validates the metadata of a claim's template: it may have labels and annotations alone (`ValidateTemplateObjectMeta`).
pub(crate) fn template_metadata(meta: &Value, path: &Path<'_>, errors: &mut Errors) {
    metadata::annotations(errors, &path.child("annotations"), meta);
    metadata::labels(errors, &path.child("labels"), meta.get("labels"));
    for (field, printed) in NOT_IN_TEMPLATES {
        let set = match meta.field(field) {
            None => errors.sent_empty(&path.child(field)),
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Number(number)) => {
                // The deletion grace period is a pointer in Go, so its 0 counts as set.
                number.as_i64() != Some(0) || field.starts_with("deletion")
            }
            Some(_) => true,
        };
        if set {
            errors.forbidden(&path.child(printed), "cannot be set");
        }
    }
}

pub(super) fn ephemeral(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("volumeClaimTemplate");
    let Some(claim) = source.field("volumeClaimTemplate") else {
        return errors.required(&at, "");
    };
    if let Some(meta) = claim.field("metadata") {
        template_metadata(meta, &at.child("metadata"), errors);
    }
    persistentvolumeclaims::spec(errors, &at.child("spec"), &claim["spec"]);
}
