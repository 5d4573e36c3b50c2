//! Validates volume sources outside of the node: disks, file systems, drivers, and claims that are created for the pod.

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{check, metadata},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use crate::{
    csi::driver_name,
    fields::{
        self, Anything, Code, Field, Fields, Format, OneOf, Rule, Text, Within, always, filled,
        present, required, set,
    },
    persistentvolumeclaims,
};

/// The error for an iSCSI qualified name with an unknown prefix.
const STARTS: &str = "must be valid format starting with iqn, eui, or naa";

/// The number of a logical unit.
pub(super) const LUN: Rule = Within(0, 255, "must be between 0 and 255, inclusive");
const ISCSI: &[Field] = &[
    required("targetPortal", Anything),
    required("iqn", Text(target_iqn)),
    always("lun", LUN),
];
const QUOBYTE: &[Field] = &[required("volume", Anything)];
const FIBRE_CHANNEL: &[Field] =
    &[present("lun", LUN).because("lun is required if targetWWNs is specified")];
const FLEX: &[Field] = &[required("driver", Anything)];
const AZURE_DISK: &[Field] = &[
    required("diskName", Anything),
    required("diskURI", Anything),
    set("cachingMode", OneOf(&["None", "ReadOnly", "ReadWrite"])),
    set("kind", OneOf(&["Dedicated", "Managed", "Shared"])),
];
/// A reference to a secret of the pod's namespace.
pub(super) const SECRET: Field = set("secretRef", Fields(&[required("name", Anything)]));
pub(super) const STORAGE_OS: &[Field] = &[
    required("volumeName", Format(names::dns_label)),
    filled("volumeNamespace", Format(names::dns_label)),
    SECRET,
];
const CSI: &[Field] = &[required("driver", Text(driver_name))];
pub(super) const EPHEMERAL: &[Field] = &[present("volumeClaimTemplate", Fields(CLAIM_TEMPLATE))];
const CLAIM_TEMPLATE: &[Field] = &[
    set("metadata", Code(template_metadata)),
    always("spec", Code(persistentvolumeclaims::spec)),
];

fn target_iqn(errors: &mut Errors, path: &Path<'_>, name: &str) {
    iqn(name, STARTS, path, errors);
}

pub(super) fn iscsi(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(ISCSI, source, path, errors);
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
    fields::validate(QUOBYTE, source, path, errors);
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
    fields::validate(FIBRE_CHANNEL, source, path, errors);
}

pub(super) fn flex(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(FLEX, source, path, errors);
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
    const MANAGED: [&str; 1] = [
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
    ];
    const BLOB: [&str; 1] =
        ["https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"];
    fields::validate(AZURE_DISK, source, path, errors);
    let (kind, uri) = (source.text("kind"), source.text("diskURI"));
    if kind == "Managed" && !uri.starts_with("/subscriptions/") {
        errors.not_supported(&path.child("diskURI"), uri, &MANAGED);
    }
    // Disks of the other kinds are blobs of a storage account.
    if source.has("kind") && kind != "Managed" && !uri.starts_with("https://") {
        errors.not_supported(&path.child("diskURI"), uri, &BLOB);
    }
}

pub(super) fn csi(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(CSI, source, path, errors);
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
