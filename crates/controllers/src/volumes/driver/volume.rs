//! Checks whether EBS can create the volume for a claim, and builds the PersistentVolume that represents it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{
            CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
            ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec,
            VolumeNodeAffinity,
        },
        storage::v1::StorageClass,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::{Resource, ResourceExt};
use mullion_api::labels;

use super::{DRIVER, PROVISIONER_FINALIZER};
use crate::volumes::matching::{self, PROVISIONED_BY};

const GIB: i64 = 1 << 30;

/// The reason why EBS has no such volume, with the driver's message.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnsupportedVolume {
    /// The class names an unknown kind of volume for the claim of this UID.
    #[error(
        "rpc error: code = InvalidArgument desc = Could not create volume \"pvc-{uid}\": invalid AWS VolumeType {kind:?}"
    )]
    Kind { uid: String, kind: String },
    /// The volume would be mounted on several nodes.
    #[error(
        "rpc error: code = InvalidArgument desc = Volume capabilities MULTI_NODE_MULTI_WRITER not supported. Only AccessModes[ReadWriteOnce] supported."
    )]
    AccessMode,
}

/// Checks that EBS supports the requested volume.
pub(super) fn check(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
) -> Result<(), UnsupportedVolume> {
    const KINDS: [&str; 7] = ["gp2", "gp3", "io1", "io2", "st1", "sc1", "standard"];
    let parameters = class.parameters.iter().flatten();
    for (key, value) in parameters {
        if key.eq_ignore_ascii_case("type") && !KINDS.contains(&value.as_str()) {
            return Err(UnsupportedVolume::Kind {
                uid: claim.uid().unwrap_or_default(),
                kind: value.clone(),
            });
        }
    }
    let modes = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.access_modes.as_ref());
    let mut modes = modes.into_iter().flatten();
    let block = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_mode.as_deref())
        == Some("Block");
    // EBS attaches a volume to several nodes only as a block device (io2 Multi-Attach).
    if modes.any(|mode| mode == "ReadOnlyMany" || (mode == "ReadWriteMany" && !block)) {
        return Err(UnsupportedVolume::AccessMode);
    }
    Ok(())
}

/// Returns the size that a claim requests, rounded up to whole GiB.
pub(super) fn capacity_for(claim: &PersistentVolumeClaim) -> Quantity {
    let bytes = matching::requested(claim).value().max(1);
    Quantity(format!("{}Gi", (bytes + GIB - 1) / GIB))
}

/// Returns the driver's ID for a volume: `vol-` and seventeen digits derived from the claim's UID.
pub(super) fn handle(claim: &PersistentVolumeClaim) -> String {
    let uid = claim.uid().unwrap_or_default();
    let hash = uid.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("vol-0{hash:016x}")
}

/// Returns the PersistentVolume for a claim.
pub(super) fn volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    name: &str,
    zone: &str,
) -> PersistentVolume {
    let parameter = |wanted: [&str; 2]| {
        let mut parameters = class.parameters.iter().flatten();
        let found =
            parameters.find(|(key, _)| wanted.iter().any(|own| key.eq_ignore_ascii_case(own)));
        found.map(|(_, value)| value.clone())
    };
    let spec = claim.spec.clone().unwrap_or_default();
    let block = spec.volume_mode.as_deref() == Some("Block");
    let fs_type =
        parameter(["csi.storage.k8s.io/fstype", "fsType"]).unwrap_or_else(|| "ext4".to_owned());
    let annotations = [
        (PROVISIONED_BY, DRIVER),
        ("volume.kubernetes.io/provisioner-deletion-secret-name", ""),
        (
            "volume.kubernetes.io/provisioner-deletion-secret-namespace",
            "",
        ),
    ];
    let attributes = [(
        "storage.kubernetes.io/csiProvisionerIdentity",
        format!("1769508000000-1-{DRIVER}"),
    )];
    let in_zone = NodeSelectorRequirement {
        key: labels::ZONE.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![zone.to_owned()]),
    };
    let policy = class.reclaim_policy.clone();
    let deletes = policy.as_deref().is_none_or(|policy| policy == "Delete");
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some(
                annotations
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
            ),
            finalizers: deletes.then(|| vec![PROVISIONER_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: Some(BTreeMap::from([(
                "storage".to_owned(),
                capacity_for(claim),
            )])),
            claim_ref: Some(ObjectReference {
                resource_version: claim.resource_version(),
                ..claim.object_ref(&())
            }),
            csi: Some(CSIPersistentVolumeSource {
                driver: DRIVER.to_owned(),
                volume_handle: handle(claim),
                fs_type: (!block).then_some(fs_type),
                volume_attributes: Some(
                    attributes
                        .map(|(key, value)| (key.to_owned(), value))
                        .into(),
                ),
                ..CSIPersistentVolumeSource::default()
            }),
            mount_options: class.mount_options.clone(),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector {
                    node_selector_terms: vec![NodeSelectorTerm {
                        match_expressions: Some(vec![in_zone]),
                        match_fields: None,
                    }],
                }),
            }),
            persistent_volume_reclaim_policy: policy.or(Some("Delete".to_owned())),
            storage_class_name: matching::claim_class(claim).map(str::to_owned),
            volume_attributes_class_name: spec.volume_attributes_class_name,
            volume_mode: spec.volume_mode,
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(size: &str, extra: Value) -> PersistentVolumeClaim {
        let mut spec = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "gp3", "resources": { "requests": { "storage": size } } });
        let extra = extra.as_object().cloned().unwrap_or_default();
        spec.as_object_mut().expect("an object").extend(extra);
        let metadata = json!({ "name": "data", "namespace": "ns", "uid": "0a1b" });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).expect("a claim")
    }

    fn class(parameters: Value) -> StorageClass {
        let class = json!({ "metadata": { "name": "gp3" }, "provisioner": DRIVER, "parameters": parameters, "reclaimPolicy": "Delete" });
        serde_json::from_value(class).expect("a class")
    }

    #[test]
    fn a_volume_is_what_the_claim_asks_for_in_whole_gibibytes_and_one_zone() {
        let made = volume(
            &claim("1500Mi", json!({})),
            &class(json!({ "type": "gp3" })),
            "pvc-0a1b",
            "us-west-2b",
        );
        insta::assert_snapshot!(serde_json::to_string_pretty(&made).expect("JSON"));
    }

    #[test]
    fn a_handle_follows_from_the_claim() {
        let handle = handle(&claim("1Gi", json!({})));
        assert!(
            handle.starts_with("vol-0") && handle.len() == 21,
            "{handle}"
        );
    }

    #[test]
    fn ebs_refuses_what_it_cannot_do() {
        let shared = json!({ "accessModes": ["ReadWriteMany"] });
        assert!(check(&claim("1Gi", shared.clone()), &class(json!({}))).is_err());
        let mut block = shared;
        block["volumeMode"] = json!("Block");
        assert!(check(&claim("1Gi", block), &class(json!({}))).is_ok());
        assert!(check(&claim("1Gi", json!({})), &class(json!({ "type": "gp9" }))).is_err());
    }
}
