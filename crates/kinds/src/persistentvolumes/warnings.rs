//! Warnings about PersistentVolumes: annotations that have become fields, and deprecated kinds of storage.

use mullion_kube_text::field::Path;
use mullion_schema::tree::Tree;
use serde_json::Value;

use crate::{
    persistentvolumeclaims::{BETA_CLASS, beta_class_warning},
    podspec,
};

/// The annotation with mount options, from before `mountOptions` was a field.
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// Deprecated kinds of volumes: the field, the name in the message, and the message.
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

/// Returns the warnings for a volume.
pub(super) fn of(volume: &Value) -> Vec<String> {
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
    use serde_json::json;

    use super::*;

    #[test]
    fn old_kinds_of_volumes_are_warned_of() {
        let volume = json!({"metadata": {"annotations": {BETA_CLASS: "a", MOUNT_OPTIONS: "ro"}}, "spec": {"rbd": {}, "persistentVolumeReclaimPolicy": "Recycle"}});
        assert_eq!(
            of(&volume),
            [
                r#"metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use "storageClassName" attribute instead"#,
                r#"metadata.annotations[volume.beta.kubernetes.io/mount-options]: deprecated since v1.31; use "mountOptions" attribute instead"#,
                "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
                "spec.rbd: deprecated in v1.28, non-functional in v1.31+",
            ]
        );
    }
}
