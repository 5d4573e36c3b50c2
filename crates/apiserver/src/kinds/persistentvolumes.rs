//! core/v1 PersistentVolume: a piece of storage. Its source is fixed once it exists.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    Check, Column, Kind,
    persistentvolumeclaims::{
        BETA_CLASS, VOLUME_MODES, access_modes, beta_class_warning, class, or_unset, phase,
        validate_access_modes,
    },
    podspec,
    print::{AGE, NAME, age, column, name, wide},
    tree::{Tree, object_at, set_default, set_zero},
};
use crate::{
    admission::Ctx,
    field::{ErrorType, Errors, Path},
    quantity,
    validation::{self, check, names, one_of, resources},
};

const RECLAIM_POLICIES: &[&str] = &["Delete", "Recycle", "Retain"];
const ATTRIBUTES_CLASS: &str = "volumeAttributesClassName";
/// How a volume is mounted, before that became a field.
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
const EXPAND_SECRET: &str = "controllerExpandSecretRef";
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
        default_source(spec);
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
        let name = object["metadata"].text("name");
        spec(errors, &Path::new("spec"), &object["spec"], name);
    }

    fn update_checks(&self, _subresource: &str) -> &'static [Check] {
        &[
            Check::Metadata,
            Check::Object,
            Check::Metadata,
            Check::Object,
            Check::Change,
        ]
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, object: &Value, old: &Value, errors: &mut Errors) {
        change(errors, &object["spec"], &old["spec"]);
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        warnings(object)
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

/// What the kinds of volumes default by themselves; also in the specs of attachments.
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

/// A time as `metav1.Time` is written: whole seconds.
fn stamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn spec(errors: &mut Errors, path: &Path<'_>, spec: &Value, volume: &str) {
    modes(errors, path, spec);
    capacity(errors, &path.child("capacity"), spec);
    let policy = spec.text("persistentVolumeReclaimPolicy");
    let policy_path = path.child("persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        one_of(errors, &policy_path, policy, RECLAIM_POLICIES);
    }
    if let Some(affinity) = spec.field("nodeAffinity") {
        let at = path.child("nodeAffinity");
        let at = at.child("required");
        match affinity.field("required") {
            Some(required) => podspec::node_selector(required, &at, errors),
            None => errors.required(&at, "must specify required node constraints"),
        }
    }
    sources(errors, path, spec, volume);
    if is_root(spec["hostPath"].text("path")) && policy == "Recycle" {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.forbidden(&policy_path, detail);
    }
    let class_name = |errors: &mut Errors, field: &str| {
        let class = spec.text(field);
        check(
            errors,
            &path.child(field),
            class,
            names::dns_subdomain(class),
        );
    };
    if !spec.text("storageClassName").is_empty() {
        class_name(errors, "storageClassName");
    }
    if let Some(mode) = spec["volumeMode"].as_str() {
        one_of(errors, &path.child("volumeMode"), mode, VOLUME_MODES);
    }
    if spec.has(ATTRIBUTES_CLASS) {
        if spec.text(ATTRIBUTES_CLASS).is_empty() {
            let detail = "an empty string is disallowed";
            errors.required(&path.child(ATTRIBUTES_CLASS), detail);
        } else {
            class_name(errors, ATTRIBUTES_CLASS);
        }
        if !spec.has("csi") {
            let detail = "has to be specified when using volumeAttributesClassName";
            errors.required(&path.child("csi"), detail);
        }
    }
}

/// There are access modes, and they are known.
pub(super) fn modes(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let (modes, path) = (spec.items("accessModes"), path.child("accessModes"));
    if modes.is_empty() {
        errors.required(&path, "");
    }
    validate_access_modes(errors, &path, modes);
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
        let (path, amount) = (path.key(resource), amount.as_str().unwrap_or(""));
        resources::basic(errors, &path, amount);
        resources::positive(errors, &path, amount);
    }
}

/// There is one source, and it has what it needs. A flexVolume is looked at even as a second one; so does upstream.
pub(super) fn sources(errors: &mut Errors, path: &Path<'_>, spec: &Value, volume: &str) {
    let mut found = 0;
    for field in SOURCES {
        let Some(source) = spec.field(field) else {
            continue;
        };
        found += 1;
        if found > 1 && field != "flexVolume" {
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
        if field == "local" && !spec.has("nodeAffinity") {
            let detail = "Local volume requires node affinity";
            errors.required(&path.child("nodeAffinity"), detail);
        }
    }
    if found == 0 {
        errors.required(path, "must specify a volume type");
    }
}

/// Whether a path leads to `/` once it is cleaned.
fn is_root(path: &str) -> bool {
    let depth = path.split('/').try_fold(0_usize, |depth, part| match part {
        "" | "." => Some(depth),
        ".." => Some(depth.saturating_sub(1)),
        _ => Some(depth + 1),
    });
    path.starts_with('/') && depth == Some(0)
}

/// What may not change in a volume that exists.
fn change(errors: &mut Errors, spec: &Value, old: &Value) {
    let path = Path::new("spec");
    let source = |spec: &Value| -> Value {
        let present = SOURCES.iter().filter(|source| spec.has(source));
        present
            .map(|source| ((*source).to_owned(), spec[*source].clone()))
            .collect::<Map<_, _>>()
            .into()
    };
    let (mut now, before) = (source(spec), source(old));
    // The secret that expands a volume may be named later.
    if before.has("csi")
        && !before["csi"].has(EXPAND_SECRET)
        && let Some(csi) = now.get_mut("csi").and_then(Value::as_object_mut)
    {
        csi.remove(EXPAND_SECRET);
    }
    if now != before {
        let difference = podspec::internal::difference("PersistentVolumeSource", &before, &now);
        let detail =
            format!("spec.persistentvolumesource is immutable after creation\n{difference}");
        errors.forbidden(&path.child("persistentvolumesource"), detail);
    }
    // The paths are upstream's.
    let (mode, old_mode) = (&spec["volumeMode"], &old["volumeMode"]);
    validation::immutable(errors, &Path::new("volumeMode"), mode, old_mode);
    let (affinity, old_affinity) = (spec.field("nodeAffinity"), old.field("nodeAffinity"));
    if let Some(before) = old_affinity
        && !affinity.is_some_and(|now| is_relabelled(now, before))
    {
        let printed = affinity.map_or("null".to_owned(), |affinity| {
            podspec::internal::compact("VolumeNodeAffinity", affinity)
        });
        let detail = "field is immutable, except for updating from beta label to GA";
        let path = Path::new("nodeAffinity");
        errors.with_text(ErrorType::Invalid, &path, printed, detail);
    }
    if old.has(ATTRIBUTES_CLASS) && !spec.has(ATTRIBUTES_CLASS) {
        let detail = "update from non-nil value to nil is forbidden";
        errors.forbidden(&path.child(ATTRIBUTES_CLASS), detail);
    }
}

/// Whether an affinity is the old one but for labels that have a new name.
fn is_relabelled(now: &Value, old: &Value) -> bool {
    const RENAMED: [(&str, &str); 5] = [
        (
            "failure-domain.beta.kubernetes.io/zone",
            "topology.kubernetes.io/zone",
        ),
        (
            "failure-domain.beta.kubernetes.io/region",
            "topology.kubernetes.io/region",
        ),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
        (
            "beta.kubernetes.io/instance-type",
            "node.kubernetes.io/instance-type",
        ),
    ];
    let same_requirement = |(now, old): (&Value, &Value)| {
        let (key, old_key) = (now.text("key"), old.text("key"));
        (key == old_key || RENAMED.contains(&(old_key, key)))
            && now.text("operator") == old.text("operator")
            && now.items("values") == old.items("values")
    };
    let same_list = |now: &Value, old: &Value, list: &str| {
        let (now, old) = (now.items(list), old.items(list));
        now.len() == old.len() && now.iter().zip(old).all(same_requirement)
    };
    let (now, old) = (&now["required"], &old["required"]);
    let (terms, old_terms) = (
        now.items("nodeSelectorTerms"),
        old.items("nodeSelectorTerms"),
    );
    terms.len() == old_terms.len()
        && terms.iter().zip(old_terms).all(|(now, old)| {
            same_list(now, old, "matchExpressions") && same_list(now, old, "matchFields")
        })
}

/// Kinds of volumes that are going away: the field, the name in the message, and what is said.
const DEPRECATED: [(&str, &str, &str); 6] = [
    (
        "cephfs",
        "cephfs",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
    (
        "photonPersistentDisk",
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    (
        "scaleIO",
        "scaleIO",
        "deprecated in v1.16, non-functional in v1.22+",
    ),
    (
        "storageos",
        "storageOS",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "glusterfs",
        "glusterfs",
        "deprecated in v1.25, non-functional in v1.26+",
    ),
    (
        "rbd",
        "rbd",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
];

fn warnings(volume: &Value) -> Vec<String> {
    let (spec, mut found) = (&volume["spec"], Vec::new());
    if volume["metadata"]["annotations"].has(BETA_CLASS) {
        found.push(beta_class_warning());
    }
    if volume["metadata"]["annotations"].has(MOUNT_OPTIONS) {
        let why = r#"deprecated since v1.31; use "mountOptions" attribute instead"#;
        found.push(format!("metadata.annotations[{MOUNT_OPTIONS}]: {why}"));
    }
    if spec["persistentVolumeReclaimPolicy"] == "Recycle" {
        found.push("spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.".to_owned());
    }
    found.extend(podspec::warnings::of_node_selector(
        &spec["nodeAffinity"]["required"],
        &Path::new("spec.nodeAffinity.required"),
    ));
    for (field, printed, message) in DEPRECATED {
        if spec.has(field) {
            found.push(format!("spec.{printed}: {message}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field;

    fn causes(spec_of: &Value) -> Vec<String> {
        field::causes(|errors| spec(errors, &Path::new("spec"), spec_of, "v"))
    }

    /// Each row: a source and what is wrong with it.
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
                    r#"spec.csi.driver: Invalid value: "": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"#,
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

    #[test]
    fn only_labels_with_a_new_name_may_change_in_an_affinity() {
        let volume = |key: &str| json!({"hostPath": {"path": "/a"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]}}});
        let mut errors = Errors::default();
        change(
            &mut errors,
            &volume("kubernetes.io/os"),
            &volume("beta.kubernetes.io/os"),
        );
        assert!(errors.is_empty(), "{errors:?}");
        change(&mut errors, &volume("a"), &volume("b"));
        let text = format!("{}: {}", errors.0[0].field, errors.0[0].body());
        assert_eq!(
            text,
            r#"nodeAffinity: Invalid value: {"Required":{"NodeSelectorTerms":[{"MatchExpressions":[{"Key":"a","Operator":"Exists","Values":null}],"MatchFields":null}]}}: field is immutable, except for updating from beta label to GA"#
        );
        let mut errors = Errors::default();
        change(
            &mut errors,
            &json!({"hostPath": {"path": "/b"}}),
            &json!({"hostPath": {"path": "/a"}}),
        );
        assert!(
            errors.0[0]
                .detail
                .contains("\n-  \"Path\": \"/a\",\n+  \"Path\": \"/b\",\n"),
            "{}",
            errors.0[0].detail
        );
    }

    #[test]
    fn old_kinds_of_volumes_are_warned_of() {
        let volume = json!({"metadata": {"annotations": {BETA_CLASS: "a", MOUNT_OPTIONS: "ro"}}, "spec": {"rbd": {}, "persistentVolumeReclaimPolicy": "Recycle"}});
        assert_eq!(
            warnings(&volume),
            [
                r#"metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use "storageClassName" attribute instead"#,
                r#"metadata.annotations[volume.beta.kubernetes.io/mount-options]: deprecated since v1.31; use "mountOptions" attribute instead"#,
                "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
                "spec.rbd: deprecated in v1.28, non-functional in v1.31+",
            ]
        );
    }
}
