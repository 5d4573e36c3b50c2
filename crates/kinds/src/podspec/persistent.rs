//! Validates the sources of PersistentVolumes: the same as those of pods, except that the secrets have a namespace.

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::check,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    external::{driver_name, iqn, lun, secret_reference},
    paths,
    volumes::{known_source, required},
};

/// Validates the source `field` of the PersistentVolume `volume`; `path` is the source's.
pub(crate) fn validate(
    field: &str,
    source: &Value,
    volume: &str,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    match field {
        "glusterfs" => {
            known_source(field, source, path, errors);
            endpoints_namespace(source, &path.child("endpointsNamespace"), errors);
        }
        "iscsi" => iscsi(source, volume, path, errors),
        "cinder" => {
            required(source, &["volumeID"], path, errors);
            secret_of_namespace(source, path, errors);
        }
        "azureFile" => {
            known_source(field, source, path, errors);
            if source.has("secretNamespace") {
                required(source, &["secretNamespace"], path, errors);
            }
        }
        "local" => {
            required(source, &["path"], path, errors);
            paths::no_backsteps(source.text("path"), &path.child("path"), errors);
        }
        "storageos" => {
            known_source(field, source, path, errors);
            if let Some(secret) = source.field("secretRef") {
                required(secret, &["namespace"], &path.child("secretRef"), errors);
            }
        }
        "csi" => csi(source, path, errors),
        _ => known_source(field, source, path, errors),
    }
}

fn endpoints_namespace(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(namespace) = source["endpointsNamespace"].as_str() else {
        return;
    };
    if namespace.is_empty() {
        let detail = "if the endpointnamespace is set, it must be a valid namespace name";
        return errors.invalid(path, namespace, detail);
    }
    check(errors, path, namespace, names::dns_label(namespace));
}

fn iscsi(source: &Value, volume: &str, path: &Path<'_>, errors: &mut Errors) {
    const FORMAT: &str = "must be valid format";
    let portal = source.text("targetPortal");
    required(source, &["targetPortal"], path, errors);
    if source.has("initiatorName") && volume.len() + 1 + portal.len() > 64 {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        // kube-apiserver writes this path in lower case.
        errors.invalid(&path.child("targetportal"), portal, detail);
    }
    required(source, &["iqn"], path, errors);
    if !source.text("iqn").is_empty() {
        iqn(source.text("iqn"), FORMAT, &path.child("iqn"), errors);
    }
    let number = source.integer("lun").unwrap_or(0);
    lun(number, &path.child("lun"), errors);
    let authenticates = source.flag("chapAuthDiscovery") || source.flag("chapAuthSession");
    if authenticates && !source.has("secretRef") {
        errors.required(&path.child("secretRef"), "");
    }
    secret_reference(source, path, errors);
    if source.has("initiatorName") {
        iqn(
            source.text("initiatorName"),
            FORMAT,
            &path.child("initiatorname"),
            errors,
        );
    }
}

fn secret_of_namespace(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    if let Some(secret) = source.field("secretRef") {
        required(
            secret,
            &["name", "namespace"],
            &path.child("secretRef"),
            errors,
        );
    }
}

fn csi(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    driver_name(source.text("driver"), &path.child("driver"), errors);
    required(source, &["volumeHandle"], path, errors);
    for field in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let Some(secret) = source.field(field) else {
            continue;
        };
        let at = path.child(field);
        match secret.text("name") {
            "" => errors.required(&at.child("name"), ""),
            name => check(errors, &at.child("name"), name, names::dns_subdomain(name)),
        }
        match secret.text("namespace") {
            "" => errors.required(&at.child("namespace"), ""),
            name => check(errors, &at.child("namespace"), name, names::dns_label(name)),
        }
    }
}
