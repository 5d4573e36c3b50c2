//! core/v1 PersistentVolume: a piece of storage. [`change`] validates updates, and [`warnings`] finds deprecated fields and annotations.

mod change;
mod warnings;

use jiff::Timestamp;
use mullion_kube_text::{
    field::{Errors, Path},
    names, quantity,
    validation::resources,
};
use mullion_schema::tree::{Tree, object_at, set_default, set_zero};
use serde_json::{Map, Value, json};

use super::{
    Check, Column, Kind,
    persistentvolumeclaims::{
        VOLUME_MODES, access_modes, class, or_unset, phase, validate_access_modes,
    },
    podspec,
    print::{AGE, NAME, age, column, name, wide},
};
use crate::{
    Printing,
    fields::{
        self, Anything, Code, Field, Fields, Format, NonEmpty, OneOf, always, filled, present,
        required, set,
    },
    request::Ctx,
};

pub(super) const ACCESS_MODES: &[Field] = &[
    required("accessModes", Anything),
    always("accessModes", Code(validate_access_modes)),
];
const POLICY_AND_AFFINITY: &[Field] = &[
    filled(
        "persistentVolumeReclaimPolicy",
        OneOf(&["Delete", "Recycle", "Retain"]),
    ),
    set("nodeAffinity", Fields(AFFINITY)),
];
const AFFINITY: &[Field] = &[present("required", Code(podspec::node_selector))
    .because("must specify required node constraints")];
const CLASSES: &[Field] = &[
    filled("storageClassName", Format(names::dns_subdomain)),
    set("volumeMode", OneOf(VOLUME_MODES)),
    set(
        ATTRIBUTES_CLASS,
        NonEmpty(
            "an empty string is disallowed",
            &Format(names::dns_subdomain),
        ),
    ),
];
/// The field of the status that says since when the volume has been in its phase.
const PHASE_TIME: &str = "lastPhaseTransitionTime";
const ATTRIBUTES_CLASS: &str = "volumeAttributesClassName";
/// The fields of volume sources, in the order in which kube-apiserver checks them.
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
        default_source(spec);
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        object["status"] = json!({"phase": "Pending", PHASE_TIME: stamp(ctx.now)});
    }

    fn prepare_status(&self, ctx: &Ctx<'_>, object: &mut Value, old: &Value) {
        let before = old["status"].field(PHASE_TIME);
        let given = object["status"].field(PHASE_TIME);
        // A client that sets the time itself is not overruled.
        let is_given = given.is_some() && given != before;
        if object["status"]["phase"] != old["status"]["phase"] {
            if !is_given {
                object["status"][PHASE_TIME] = stamp(ctx.now).into();
            }
        } else if let (None, Some(before)) = (given, before) {
            object["status"][PHASE_TIME] = before.clone();
        }
    }

    fn validate(&self, _ctx: &Ctx<'_>, object: &Value, errors: &mut Errors) {
        let name = object["metadata"].text("name");
        spec(errors, &Path::new("spec"), &object["spec"], name);
    }

    fn update_checks(&self, _subresource: &str) -> &'static [Check] {
        // ValidatePersistentVolumeUpdate validates the new volume, which the strategy has validated already.
        &[
            Check::Metadata,
            Check::Object,
            Check::Metadata,
            Check::Object,
            Check::Change,
        ]
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        change::validate(errors, &object["spec"], &old["spec"]);
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        warnings::of(object)
    }

    fn printing(&self) -> Option<&dyn Printing> {
        Some(self)
    }
}

impl Printing for PersistentVolume {
    fn columns(&self) -> &[Column] {
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
        COLUMNS
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

/// Sets the defaults of volume sources; VolumeAttachments with inline specs use them too.
pub(super) fn default_source(spec: &mut Map<String, Value>) {
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
    if let Some(source) = spec.get_mut("hostPath").and_then(Value::as_object_mut) {
        set_default(source, "type", "");
    }
    if let Some(source) = spec.get_mut("azureDisk").and_then(Value::as_object_mut) {
        set_default(source, "cachingMode", "ReadWrite");
        set_default(source, "kind", "Shared");
        set_default(source, "fsType", "ext4");
        set_default(source, "readOnly", false);
    }
}

/// Formats a time like `metav1.Time`, with whole seconds.
fn stamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn spec(errors: &mut Errors, path: &Path<'_>, spec: &Value, volume: &str) {
    fields::validate(ACCESS_MODES, spec, path, errors);
    capacity(errors, &path.child("capacity"), spec);
    fields::validate(POLICY_AND_AFFINITY, spec, path, errors);
    sources(errors, path, spec, volume);
    // Recycling deletes all files of the volume, which would be those of the node here.
    if is_root(spec["hostPath"].text("path"))
        && spec.text("persistentVolumeReclaimPolicy") == "Recycle"
    {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.forbidden(&path.child("persistentVolumeReclaimPolicy"), detail);
    }
    fields::validate(CLASSES, spec, path, errors);
    if spec.has(ATTRIBUTES_CLASS) && !spec.has("csi") {
        let detail = "has to be specified when using volumeAttributesClassName";
        errors.required(&path.child("csi"), detail);
    }
}

fn capacity(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let count = spec.entries("capacity").count();
    if count == 0 {
        errors.required(path, "");
    }
    if !spec["capacity"].has("storage") || count > 1 {
        let shown = errors.map_as_sent(path, &spec["capacity"]);
        errors.not_supported(path, shown, &["storage"]);
    }
    for (resource, amount) in spec.entries("capacity") {
        let (path, amount) = (path.key(resource), amount.as_str().unwrap_or(""));
        resources::basic(errors, &path, amount);
        resources::positive(errors, &path, amount);
    }
}

/// Validates the volume sources, of which there must be exactly one. As in kube-apiserver, a flexVolume is validated even if it is the
/// second source.
pub(super) fn sources(errors: &mut Errors, path: &Path<'_>, spec: &Value, volume: &str) {
    let mut found = 0;
    for field in SOURCES {
        let Some(source) = spec.field(field) else {
            continue;
        };
        found += 1;
        if found > 1 && field != "flexVolume" {
            // Only in this error does kube-apiserver write the name with capital letters.
            let printed = if field == "cephfs" { "cephFS" } else { field };
            let detail = "may not specify more than 1 volume type";
            errors.forbidden(&path.child(printed), detail);
            continue;
        }
        let at = path.child(match field {
            "gcePersistentDisk" => "persistentDisk",
            field => field,
        });
        podspec::persistent::validate(field, source, volume, &at, errors);
        // Only one node has the disk, and the scheduler learns it from the affinity.
        if field == "local" && !spec.has("nodeAffinity") {
            let detail = "Local volume requires node affinity";
            errors.required(&path.child("nodeAffinity"), detail);
        }
    }
    if found == 0 {
        errors.required(path, "must specify a volume type");
    }
}

/// Returns whether a path is `/` once it is cleaned as Go's `path.Clean` does.
fn is_root(path: &str) -> bool {
    let depth = path.split('/').try_fold(0_usize, |depth, part| match part {
        "" | "." => Some(depth),
        ".." => Some(depth.saturating_sub(1)),
        _ => Some(depth + 1),
    });
    path.starts_with('/') && depth == Some(0)
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field;

    use super::*;

    fn causes(spec_of: &Value) -> Vec<String> {
        field::causes(|errors| spec(errors, &Path::new("spec"), spec_of, "v"))
    }

    /// Each row has a source and its errors.
    #[test]
    fn every_source_is_asked_for_what_it_needs() {
        let rows: Vec<(Value, &[&str])> = vec![
            (
                json!({"gcePersistentDisk": {"partition": 256}}),
                &[
                    "spec.persistentDisk.pdName: Required value",
                    "spec.persistentDisk.partition: Invalid value: 256: must be between 1 and 255, inclusive",
                ],
            ),
            (
                json!({"nfs": {"server": "s"}}),
                &[
                    "spec.nfs.path: Required value",
                    r#"spec.nfs.path: Invalid value: "": must be an absolute path"#,
                ],
            ),
            (
                json!({"rbd": {}}),
                &[
                    "spec.rbd.monitors: Required value",
                    "spec.rbd.image: Required value",
                ],
            ),
            (
                json!({"glusterfs": {"endpoints": "e", "path": "p", "endpointsNamespace": ""}}),
                &[
                    r#"spec.glusterfs.endpointsNamespace: Invalid value: "": if the endpointnamespace is set, it must be a valid namespace name"#,
                ],
            ),
            (
                json!({"cinder": {"volumeID": "v", "secretRef": {}}}),
                &[
                    "spec.cinder.secretRef.name: Required value",
                    "spec.cinder.secretRef.namespace: Required value",
                ],
            ),
            (
                json!({"azureFile": {"secretName": "s", "shareName": "s", "secretNamespace": ""}}),
                &["spec.azureFile.secretNamespace: Required value"],
            ),
            (
                json!({"iscsi": {"targetPortal": "p", "iqn": "x", "lun": -1, "chapAuthSession": true}}),
                &[
                    r#"spec.iscsi.iqn: Invalid value: "x": must be valid format"#,
                    "spec.iscsi.lun: Invalid value: -1: must be between 0 and 255, inclusive",
                    "spec.iscsi.secretRef: Required value",
                ],
            ),
            (
                json!({"local": {"path": "a/../b"}}),
                &[
                    r#"spec.local.path: Invalid value: "a/../b": must not contain '..'"#,
                    "spec.nodeAffinity: Required value: Local volume requires node affinity",
                ],
            ),
            (
                json!({"csi": {"driver": "", "nodePublishSecretRef": {"name": "a"}}}),
                &[
                    "spec.csi.driver: Required value",
                    "spec.csi.volumeHandle: Required value",
                    "spec.csi.nodePublishSecretRef.namespace: Required value",
                ],
            ),
            (
                json!({"hostPath": {"path": "/a"}, "cephfs": {}, "flexVolume": {}}),
                &[
                    "spec.cephFS: Forbidden: may not specify more than 1 volume type",
                    "spec.flexVolume.driver: Required value",
                ],
            ),
            (
                json!({}),
                &["spec: Required value: must specify a volume type"],
            ),
        ];
        for (source, expected) in rows {
            let mut volume = source;
            volume["accessModes"] = json!(["ReadWriteOnce"]);
            volume["capacity"] = json!({"storage": "1Gi"});
            assert_eq!(causes(&volume), expected, "{volume}");
        }
    }

    #[test]
    fn the_rest_of_a_spec_is_checked_in_upstream_s_order() {
        let volume = json!({
            "accessModes": [], "capacity": {"storage": "-1"}, "nodeAffinity": {}, "hostPath": {"path": "/./"},
            "persistentVolumeReclaimPolicy": "Recycle", "volumeAttributesClassName": "",
        });
        assert_eq!(
            causes(&volume),
            [
                "spec.accessModes: Required value",
                "spec.capacity[storage]: Invalid value: -1: must be a valid resource quantity",
                r#"spec.capacity[storage]: Invalid value: "-1": must be greater than zero"#,
                "spec.nodeAffinity.required: Required value: must specify required node constraints",
                "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'",
                "spec.volumeAttributesClassName: Required value: an empty string is disallowed",
                "spec.csi: Required value: has to be specified when using volumeAttributesClassName",
            ]
        );
    }
}
