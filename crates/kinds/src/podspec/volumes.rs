//! Validates volumes: each has one source, and each source has its required fields ([`external`] for those outside of the node).
//!
//! As in kube-apiserver, an invalid volume does not exist for mounts, so [`find`] returns only valid ones.

use std::collections::{HashMap, HashSet};

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::check,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::{Scope, containers::PULL_POLICY, env, external, paths, projected};
use crate::fields::{
    self, Anything, Each, Field, OneOf, Rule, Text, Within, always, required, set,
};

/// The sources in the order in which kube-apiserver checks them, each with the name in the error about a second source.
const SOURCES: [(&str, &str); 30] = [
    ("emptyDir", "emptyDir"),
    ("hostPath", "hostPath"),
    ("gitRepo", "gitRepo"),
    ("gcePersistentDisk", "gcePersistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore"),
    ("secret", "secret"),
    ("nfs", "nfs"),
    ("iscsi", "iscsi"),
    ("glusterfs", "glusterfs"),
    ("flocker", "flocker"),
    ("persistentVolumeClaim", "persistentVolumeClaim"),
    ("rbd", "rbd"),
    ("cinder", "cinder"),
    ("cephfs", "cephFS"),
    ("quobyte", "quobyte"),
    // The misspelling is kube-apiserver's.
    ("downwardAPI", "downwarAPI"),
    ("fc", "fc"),
    ("flexVolume", "flexVolume"),
    ("configMap", "configMap"),
    ("azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk"),
    ("storageos", "storageos"),
    ("projected", "projected"),
    ("scaleIO", "scaleIO"),
    ("csi", "csi"),
    ("ephemeral", "ephemeral"),
    ("image", "image"),
];
const HOST_PATH_TYPES: &[&str] = &[
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];
const MODE: Rule = Within(
    0,
    0o777,
    "must be a number between 0 and 0777 (octal), both inclusive",
);
/// 0 means that no partition is given, which is why the message starts at 1.
const PARTITION: Field = always(
    "partition",
    Within(0, 255, "must be between 1 and 255, inclusive"),
);
const HOST_PATH: &[Field] = &[set("type", OneOf(HOST_PATH_TYPES))];
const GIT_REPO: &[Field] = &[
    required("repository", Anything),
    always("directory", Text(paths::local_descending)),
];
const GCE_DISK: &[Field] = &[required("pdName", Anything), PARTITION];
const AWS_DISK: &[Field] = &[required("volumeID", Anything), PARTITION];
const SECRET: &[Field] = &[
    required("secretName", Anything),
    set("defaultMode", MODE),
    always("items", Each(KEY_TO_PATH)),
];
const CONFIG_MAP: &[Field] = &[
    required("name", Anything),
    set("defaultMode", MODE),
    always("items", Each(KEY_TO_PATH)),
];
/// A key and the path of the file that shows it.
pub(super) const KEY_TO_PATH: &[Field] = &[
    required("key", Anything),
    required("path", Text(paths::local_non_reserved)),
    set("mode", MODE),
];
/// The path of a file in a volume.
pub(super) const FILE_PATH: &[Field] = &[required("path", Text(paths::local_non_reserved))];
const FILE_MODE: &[Field] = &[set("mode", MODE)];
const DEFAULT_MODE: &[Field] = &[set("defaultMode", MODE)];
const NFS: &[Field] = &[
    required("server", Anything),
    required("path", Anything),
    always("path", Text(absolute)),
];
const GLUSTER_FS: &[Field] = &[required("endpoints", Anything), required("path", Anything)];
const CLAIM: &[Field] = &[required("claimName", Anything)];
const RBD: &[Field] = &[required("monitors", Anything), required("image", Anything)];
const CINDER: &[Field] = &[required("volumeID", Anything), external::SECRET];
const CEPH_FS: &[Field] = &[required("monitors", Anything)];
const AZURE_FILE: &[Field] = &[
    required("secretName", Anything),
    required("shareName", Anything),
];
const VSPHERE: &[Field] = &[required("volumePath", Anything)];
const PHOTON: &[Field] = &[required("pdID", Anything)];
const PORTWORX: &[Field] = &[required("volumeID", Anything)];
const SCALE_IO: &[Field] = &[
    required("gateway", Anything),
    required("system", Anything),
    required("volumeName", Anything),
];
const IMAGE: &[Field] = &[required("pullPolicy", PULL_POLICY)];
const IMAGE_OF_POD: &[Field] = &[required("reference", Anything)];

/// Validates `spec.volumes`; `pod` is the Pod's name, `None` in a template.
pub(super) fn validate(volumes: &[Value], pod: Option<&str>, path: &Path<'_>, errors: &mut Errors) {
    let ephemeral = volumes.iter().filter(|volume| volume.has("ephemeral"));
    let ephemeral: HashSet<&str> = ephemeral.map(|volume| volume.text("name")).collect();
    let mut good = HashMap::new();
    for (index, volume) in volumes.iter().enumerate() {
        let at = path.index(index);
        one(volume, pod, &at, &mut good, errors);
        created_claim(volume, &ephemeral, pod.unwrap_or(""), &at, errors);
    }
}

/// Returns the valid volume of that name, which containers may mount.
pub(super) fn find<'a>(scope: &Scope<'a>, name: &str) -> Option<&'a Value> {
    let good = scope.volumes.get_or_init(|| {
        let pod = scope.is_pod().then_some("");
        let mut good = HashMap::new();
        for volume in scope.spec.items("volumes") {
            let (path, mut errors) = (Path::new("volumes"), Errors::default());
            one(volume, pod, &path, &mut good, &mut errors);
        }
        good
    });
    good.get(name).copied()
}

/// Validates a volume; `good` has the valid volumes before it, by name.
fn one<'a>(
    volume: &'a Value,
    pod: Option<&str>,
    at: &Path<'_>,
    good: &mut HashMap<&'a str, &'a Value>,
    errors: &mut Errors,
) {
    let before = errors.0.len();
    let name = volume.text("name");
    source(volume, pod, at, errors);
    if name.is_empty() {
        return errors.required(&at.child("name"), "");
    }
    check(errors, &at.child("name"), name, names::dns_label(name));
    // The first valid volume with a name takes it.
    if good.contains_key(name) {
        errors.duplicate(&at.child("name"), name);
    } else if errors.0.len() == before {
        good.insert(name, volume);
    }
}

/// Refuses a volume that refers to a claim which another volume of the pod will create.
fn created_claim(
    volume: &Value,
    ephemeral: &HashSet<&str>,
    pod_name: &str,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let Some(claim) = volume.field("persistentVolumeClaim") else {
        return;
    };
    let claim = claim.text("claimName");
    let rest = claim.strip_prefix(pod_name);
    let rest = rest.and_then(|rest| rest.strip_prefix('-'));
    // The claim of an ephemeral volume is named `<pod>-<volume>`. A template has no pod name yet, so it cannot conflict.
    if !pod_name.is_empty() && rest.is_some_and(|rest| ephemeral.contains(rest)) {
        let detail = "must not reference a PVC that gets created for an ephemeral volume";
        errors.invalid(
            &path.child("persistentVolumeClaim").child("claimName"),
            claim,
            detail,
        );
    }
}

fn source(volume: &Value, pod: Option<&str>, path: &Path<'_>, errors: &mut Errors) {
    let mut found = 0;
    for (field, printed) in SOURCES {
        let Some(source) = volume.field(field) else {
            continue;
        };
        found += 1;
        if found > 1 {
            errors.forbidden(
                &path.child(printed),
                "may not specify more than 1 volume type",
            );
        } else {
            // kube-apiserver's path has an older name of this one source.
            let at = path.child(if field == "gcePersistentDisk" {
                "persistentDisk"
            } else {
                field
            });
            // The image may be missing in a template, because the client that creates the pods may set it.
            if field == "image" && pod.is_some() {
                fields::validate(IMAGE_OF_POD, source, &at, errors);
            }
            known_source(field, source, &at, errors);
            if field == "ephemeral" {
                claim_name(volume.text("name"), pod.unwrap_or(""), path, errors);
            }
        }
        if field == "iscsi" && source.has("initiatorName") {
            let name = volume.text("name");
            // The kubelet makes the name of an iSCSI interface from both, and that name is limited to 64 bytes.
            if name.len() + 1 + source.text("targetPortal").len() > 64 {
                let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
                errors.invalid(&path.child("name"), name, detail);
            }
        }
    }
    if found == 0 {
        errors.required(path, "must specify a volume type");
    }
}

/// Validates the name of the claim for an ephemeral volume, which consists of the names of pod and volume.
fn claim_name(volume: &str, pod_name: &str, path: &Path<'_>, errors: &mut Errors) {
    if pod_name.is_empty()
        || volume.is_empty()
        || (pod_name.len() + volume.len() < 253 && names::dns_subdomain(volume).is_empty())
    {
        return;
    }
    let claim = format!("{pod_name}-{volume}");
    for sentence in names::dns_subdomain(&claim) {
        errors.invalid(
            &path.child("name"),
            volume,
            format!("PVC name {claim:?}: {sentence}"),
        );
    }
}

/// Validates the fields of one volume source.
pub(super) fn known_source(field: &str, source: &Value, path: &Path<'_>, errors: &mut Errors) {
    match field {
        "emptyDir" => empty_dir(source, path, errors),
        "hostPath" => host_path(source, path, errors),
        "gitRepo" => fields::validate(GIT_REPO, source, path, errors),
        "gcePersistentDisk" => fields::validate(GCE_DISK, source, path, errors),
        "awsElasticBlockStore" => fields::validate(AWS_DISK, source, path, errors),
        "secret" => fields::validate(SECRET, source, path, errors),
        "configMap" => fields::validate(CONFIG_MAP, source, path, errors),
        "nfs" => fields::validate(NFS, source, path, errors),
        "iscsi" => external::iscsi(source, path, errors),
        "glusterfs" => fields::validate(GLUSTER_FS, source, path, errors),
        "flocker" => external::flocker(source, path, errors),
        "persistentVolumeClaim" => fields::validate(CLAIM, source, path, errors),
        "rbd" => fields::validate(RBD, source, path, errors),
        "cinder" => fields::validate(CINDER, source, path, errors),
        "cephfs" => fields::validate(CEPH_FS, source, path, errors),
        "quobyte" => external::quobyte(source, path, errors),
        "downwardAPI" => {
            fields::validate(DEFAULT_MODE, source, path, errors);
            for file in source.items("items") {
                // kube-apiserver leaves the file's index out of the path.
                downward_file(file, path, errors);
            }
        }
        "fc" => external::fibre_channel(source, path, errors),
        "flexVolume" => external::flex(source, path, errors),
        "azureFile" => fields::validate(AZURE_FILE, source, path, errors),
        "vsphereVolume" => fields::validate(VSPHERE, source, path, errors),
        "photonPersistentDisk" => fields::validate(PHOTON, source, path, errors),
        "portworxVolume" => fields::validate(PORTWORX, source, path, errors),
        "azureDisk" => external::azure_disk(source, path, errors),
        "storageos" => fields::validate(external::STORAGE_OS, source, path, errors),
        "projected" => {
            fields::validate(DEFAULT_MODE, source, path, errors);
            projected::validate(source.items("sources"), path, errors);
        }
        "scaleIO" => fields::validate(SCALE_IO, source, path, errors),
        "csi" => external::csi(source, path, errors),
        "ephemeral" => fields::validate(external::EPHEMERAL, source, path, errors),
        "image" => fields::validate(IMAGE, source, path, errors),
        _ => {}
    }
}

fn empty_dir(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    if source
        .field("sizeLimit")
        .is_some_and(|limit| super::totals::quantity(limit).is_negative())
    {
        errors.forbidden(
            &path.child("sizeLimit"),
            "SizeLimit field must be a valid resource quantity",
        );
    }
}

fn host_path(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    let target = source.text("path");
    if target.is_empty() {
        return errors.required(&path.child("path"), "");
    }
    paths::no_backsteps(errors, &path.child("path"), target);
    fields::validate(HOST_PATH, source, path, errors);
}

fn absolute(errors: &mut Errors, path: &Path<'_>, value: &str) {
    if !value.starts_with('/') {
        errors.invalid(path, value, "must be an absolute path");
    }
}

/// Validates one file of a downward API volume.
pub(super) fn downward_file(file: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(FILE_PATH, file, path, errors);
    match (file.field("fieldRef"), file.field("resourceFieldRef")) {
        (Some(reference), other) => {
            env::field_ref(
                reference,
                &env::VOLUME_FIELDS,
                &path.child("fieldRef"),
                errors,
            );
            if other.is_some() {
                errors.invalid(
                    path,
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                );
            }
        }
        (None, Some(reference)) => {
            env::resource_field_ref(reference, true, &path.child("resourceFieldRef"), errors)
        }
        (None, None) => errors.required(path, "one of fieldRef and resourceFieldRef is required"),
    }
    fields::validate(FILE_MODE, file, path, errors);
}
