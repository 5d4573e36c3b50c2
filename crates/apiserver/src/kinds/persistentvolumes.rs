//! core/v1 PersistentVolume: a piece of storage. Its source is fixed once it exists.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Column, Kind,
    persistentvolumeclaims::{access_modes, class, or_unset, phase, validate_access_modes},
    print::{AGE, NAME, age, column, name, wide},
    tree::{Tree, object_at, set_default, set_zero},
};
use crate::{
    admission::Ctx,
    field::{Errors, Path},
    quantity,
    validation::{check, names, one_of, resources},
};

/// The kinds of volumes, in the order upstream looks for them.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

/// core/v1 PersistentVolume.
pub(crate) struct PersistentVolume;

impl Kind for PersistentVolume {
    fn default(&self, object: &mut Value) {
        let Some(root) = object.as_object_mut() else {
            return;
        };
        set_zero(object_at(root, "status"), "phase", "Pending");
        let spec = object_at(root, "spec");
        set_zero(spec, "persistentVolumeReclaimPolicy", "Retain");
        set_default(spec, "volumeMode", "Filesystem");
        spec.get_mut("capacity")
            .into_iter()
            .for_each(quantity::round_list);
        let mut within = |source: &str, field: &str, value: &str| {
            if let Some(source) = spec.get_mut(source).and_then(Value::as_object_mut) {
                set_zero(source, field, value);
            }
        };
        within("iscsi", "iscsiInterface", "default");
        within("rbd", "pool", "rbd");
        within("rbd", "user", "admin");
        within("rbd", "keyring", "/etc/ceph/keyring");
        within("scaleIO", "storageMode", "ThinProvisioned");
        within("scaleIO", "fsType", "xfs");
        within("azureDisk", "cachingMode", "ReadWrite");
        within("azureDisk", "kind", "Shared");
        within("azureDisk", "fsType", "ext4");
        if let Some(source) = spec.get_mut("hostPath").and_then(Value::as_object_mut) {
            set_default(source, "type", "");
        }
        if let Some(source) = spec.get_mut("azureDisk").and_then(Value::as_object_mut) {
            set_default(source, "readOnly", false);
        }
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        object["status"] = json!({"phase": "Pending", "lastPhaseTransitionTime": stamp(ctx.now)});
    }

    fn prepare_status(&self, ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        let given =
            object["status"]["lastPhaseTransitionTime"] != old["status"]["lastPhaseTransitionTime"];
        if object["status"]["phase"] != old["status"]["phase"] && !given {
            object["status"]["lastPhaseTransitionTime"] = stamp(ctx.now).into();
        }
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        spec(errors, &Path::new("spec"), &object["spec"]);
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        let path = Path::new("spec");
        if SOURCES
            .iter()
            .any(|source| object["spec"][source] != old["spec"][source])
        {
            errors.forbidden(
                &path.child("persistentvolumesource"),
                "spec.persistentvolumesource is immutable after creation",
            );
        }
        for field in ["volumeMode", "nodeAffinity"] {
            let (now, before) = (&object["spec"][field], &old["spec"][field]);
            if now != before && !(field == "nodeAffinity" && before.is_null()) {
                errors.invalid(
                    &path.child(field),
                    now.clone(),
                    crate::validation::IMMUTABLE,
                );
            }
        }
    }

    fn columns(&self) -> Option<&[Column]> {
        const COLUMNS: &[Column] = &[
            NAME,
            column("Capacity"),
            column("Access Modes"),
            column("Reclaim Policy"),
            column("Status"),
            column("Claim"),
            column("StorageClass"),
            column("VolumeAttributesClass"),
            column("Reason"),
            AGE,
            wide("VolumeMode"),
        ];
        Some(COLUMNS)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let claim = spec
            .field("claimRef")
            .map(|claim| format!("{}/{}", claim.text("namespace"), claim.text("name")));
        vec![
            name(object),
            spec["capacity"].text("storage").into(),
            access_modes(spec.items("accessModes")).into(),
            spec.text("persistentVolumeReclaimPolicy").into(),
            phase(object).into(),
            claim.unwrap_or_default().into(),
            class(object).into(),
            or_unset(spec.text("volumeAttributesClassName")).into(),
            object["status"].text("reason").into(),
            age(object, now),
            or_unset(spec.text("volumeMode")).into(),
        ]
    }
}

/// A time as `metav1.Time` is written: whole seconds.
fn stamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn spec(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    validate_access_modes(
        errors,
        &path.child("accessModes"),
        spec.items("accessModes"),
    );
    capacity(errors, &path.child("capacity"), spec);
    let policy = spec.text("persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        one_of(
            errors,
            &path.child("persistentVolumeReclaimPolicy"),
            policy,
            &["Delete", "Recycle", "Retain"],
        );
    }
    source(errors, path, spec);
    if spec["hostPath"]["path"] == "/" && policy == "Recycle" {
        errors.forbidden(
            &path.child("persistentVolumeReclaimPolicy"),
            "may not be 'recycle' for a hostPath mount of '/'",
        );
    }
    let class = spec.text("storageClassName");
    if !class.is_empty() {
        check(
            errors,
            &path.child("storageClassName"),
            class,
            names::dns_subdomain(class),
        );
    }
    if let Some(mode) = spec["volumeMode"].as_str() {
        one_of(
            errors,
            &path.child("volumeMode"),
            mode,
            &["Block", "Filesystem"],
        );
    }
}

fn capacity(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let count = spec.entries("capacity").count();
    if count == 0 {
        errors.required(path, "");
    }
    if !spec["capacity"].has("storage") || count > 1 {
        errors.not_supported(path, spec["capacity"].clone(), &["storage"]);
    }
    for (resource, amount) in spec.entries("capacity") {
        resources::positive(errors, &path.key(resource), amount.as_str().unwrap_or(""));
    }
}

fn source(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let mut present = SOURCES.iter().filter(|source| spec.has(source));
    let Some(first) = present.next() else {
        return errors.required(path, "must specify a volume type");
    };
    for extra in present {
        errors.forbidden(
            &path.child(extra),
            "may not specify more than 1 volume type",
        );
    }
    let (inner, path) = (&spec[*first], path.child(first));
    let needed: &[&str] = match *first {
        "hostPath" | "local" => &["path"],
        "nfs" => &["server", "path"],
        "csi" => &["driver", "volumeHandle"],
        "iscsi" => &["targetPortal", "iqn"],
        _ => &[],
    };
    for field in needed.iter().filter(|field| inner.text(field).is_empty()) {
        errors.required(&path.child(field), "");
    }
    let file = inner.text("path");
    match *first {
        "hostPath" | "local" if file.split('/').any(|part| part == "..") => {
            errors.invalid(&path.child("path"), file, "must not contain '..'");
        }
        "nfs" if !file.is_empty() && !file.starts_with('/') => {
            errors.invalid(&path.child("path"), file, "must be an absolute path");
        }
        "local" if !spec["nodeAffinity"].has("required") => {
            let parent = Path::new("metadata");
            errors.required(
                &parent.child("annotations"),
                "Local volume requires node affinity",
            );
        }
        _ => {}
    }
}
