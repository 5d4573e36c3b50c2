//! Validates the sources of PersistentVolumes: the same as those of pods, except that the secrets have a namespace.

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::check,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{
    external::{LUN, SECRET, iqn},
    paths,
    volumes::known_source,
};
use crate::{
    csi::driver_name,
    fields::{self, Anything, Field, Fields, Format, NonEmpty, Text, always, required, set},
};

const FORMAT: &str = "must be valid format";
const GLUSTER_FS: &[Field] = &[set("endpointsNamespace", Text(endpoints_namespace))];
const PORTAL: &[Field] = &[required("targetPortal", Anything)];
const TARGET: &[Field] = &[required("iqn", Text(target_iqn)), always("lun", LUN)];
const CINDER: &[Field] = &[
    required("volumeID", Anything),
    set("secretRef", Fields(REFERENCE)),
];
const REFERENCE: &[Field] = &[required("name", Anything), required("namespace", Anything)];
const AZURE_FILE: &[Field] = &[set("secretNamespace", NonEmpty("", &Anything))];
const LOCAL: &[Field] = &[required("path", Text(paths::no_backsteps))];
const STORAGE_OS: &[Field] = &[set("secretRef", Fields(&[required("namespace", Anything)]))];
const CSI: &[Field] = &[
    required("driver", Text(driver_name)),
    required("volumeHandle", Anything),
    set("controllerPublishSecretRef", Fields(CSI_SECRET)),
    set("controllerExpandSecretRef", Fields(CSI_SECRET)),
    set("nodePublishSecretRef", Fields(CSI_SECRET)),
    set("nodeExpandSecretRef", Fields(CSI_SECRET)),
];
const CSI_SECRET: &[Field] = &[
    required("name", Format(names::dns_subdomain)),
    required("namespace", Format(names::dns_label)),
];

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
            fields::validate(GLUSTER_FS, source, path, errors);
        }
        "iscsi" => iscsi(source, volume, path, errors),
        "cinder" => fields::validate(CINDER, source, path, errors),
        "azureFile" => {
            known_source(field, source, path, errors);
            fields::validate(AZURE_FILE, source, path, errors);
        }
        "local" => fields::validate(LOCAL, source, path, errors),
        "storageos" => {
            known_source(field, source, path, errors);
            fields::validate(STORAGE_OS, source, path, errors);
        }
        "csi" => fields::validate(CSI, source, path, errors),
        _ => known_source(field, source, path, errors),
    }
}

fn endpoints_namespace(errors: &mut Errors, path: &Path<'_>, namespace: &str) {
    if namespace.is_empty() {
        let detail = "if the endpointnamespace is set, it must be a valid namespace name";
        return errors.invalid(path, namespace, detail);
    }
    check(errors, path, namespace, names::dns_label(namespace));
}

fn target_iqn(errors: &mut Errors, path: &Path<'_>, name: &str) {
    iqn(name, FORMAT, path, errors);
}

fn iscsi(source: &Value, volume: &str, path: &Path<'_>, errors: &mut Errors) {
    let portal = source.text("targetPortal");
    fields::validate(PORTAL, source, path, errors);
    if source.has("initiatorName") && volume.len() + 1 + portal.len() > 64 {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        // kube-apiserver writes this path in lower case.
        errors.invalid(&path.child("targetportal"), portal, detail);
    }
    fields::validate(TARGET, source, path, errors);
    let authenticates = source.flag("chapAuthDiscovery") || source.flag("chapAuthSession");
    if authenticates && !source.has("secretRef") {
        errors.required(&path.child("secretRef"), "");
    }
    fields::validate(&[SECRET], source, path, errors);
    if source.has("initiatorName") {
        iqn(
            source.text("initiatorName"),
            FORMAT,
            &path.child("initiatorname"),
            errors,
        );
    }
}
