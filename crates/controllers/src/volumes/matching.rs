//! The rules by which claims and volumes match, shared by the PersistentVolume controller and the scheduler (kubernetes:
//! component-helpers/storage/volume). Pure.
//!
//! Invariant: among equally good volumes the first by name is chosen, so the choice does not depend on their order.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use kube::{ResourceExt, core::SelectorExt};
use mullion_engine::model::Quantity;

use crate::ownership;

/// Annotation of a claim: binding is complete.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation of a claim or volume: the controller chose the binding, not a user.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Annotation of a claim: the node that the scheduler chose for its pod.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation of a volume: the driver that provisioned it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Annotation of a claim: the driver that is to provision its volume.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The older name of [`STORAGE_PROVISIONER`].
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// Annotation of claims, volumes and classes of in-tree plugins: the CSI driver that replaces the plugin.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// The provisioner of classes whose volumes are created manually.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// The in-tree plugins and the CSI drivers that replace them.
const MIGRATED: [(&str, &str); 7] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
];

/// Returns the CSI driver that replaces an in-tree plugin.
pub fn migrated_to(provisioner: &str) -> Option<&'static str> {
    let mut drivers = MIGRATED.iter();
    drivers
        .find(|(plugin, _)| *plugin == provisioner)
        .map(|(_, driver)| *driver)
}

/// Returns the class of a claim; empty for explicitly none, `None` if the claim sets none.
pub fn claim_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    match claim.annotations().get(BETA_CLASS) {
        Some(class) => Some(class),
        None => claim.spec.as_ref()?.storage_class_name.as_deref(),
    }
}

/// Returns the class of a volume; empty for none.
pub fn volume_class(volume: &PersistentVolume) -> &str {
    match volume.annotations().get(BETA_CLASS) {
        Some(class) => class,
        None => volume
            .spec
            .as_ref()
            .and_then(|spec| spec.storage_class_name.as_deref())
            .unwrap_or_default(),
    }
}

/// Returns the name of the volume that a claim is bound to or requests.
pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref();
    name.filter(|name| !name.is_empty())
}

/// Returns whether the binding of a claim is complete.
pub fn is_bind_completed(claim: &PersistentVolumeClaim) -> bool {
    claim.annotations().contains_key(BIND_COMPLETED)
}

/// Returns the claim that a volume is bound to or reserved for.
pub fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// Returns the UID in a volume's `claimRef`; `None` if a user reserved the volume by name.
pub fn claim_uid(volume: &PersistentVolume) -> Option<&str> {
    let uid = claim_ref(volume)?.uid.as_deref();
    uid.filter(|uid| !uid.is_empty())
}

/// Returns whether a volume is bound to a claim or reserved for it (`IsVolumeBoundToClaim`).
pub fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|own| {
        own.name == claim.metadata.name
            && own.namespace == claim.metadata.namespace
            && claim_uid(volume).is_none_or(|uid| claim.metadata.uid.as_deref() == Some(uid))
    })
}

/// Returns whether claims of a class are bound only when a pod uses them.
pub fn waits_for_consumer(class: Option<&StorageClass>) -> bool {
    class.and_then(|class| class.volume_binding_mode.as_deref()) == Some("WaitForFirstConsumer")
}

/// Returns the default class: of several the newest, then the first by name.
pub fn default_class<'a>(
    classes: impl IntoIterator<Item = &'a StorageClass>,
) -> Option<&'a StorageClass> {
    let is_default = |class: &&StorageClass| {
        let annotations = class.annotations();
        let mut keys = DEFAULT_CLASS.iter();
        keys.any(|key| annotations.get(*key).is_some_and(|value| value == "true"))
    };
    let classes = classes.into_iter().filter(is_default);
    classes.min_by(|a, b| {
        let created = |class: &StorageClass| class.metadata.creation_timestamp.clone();
        // The newest class first, so that an administrator replaces the default by adding another.
        (created(b), a.metadata.name.as_ref()).cmp(&(created(a), b.metadata.name.as_ref()))
    })
}

/// Parses a quantity; zero if it is invalid, which the API server rules out.
pub fn quantity(text: Option<&ApiQuantity>) -> Quantity {
    text.and_then(|text| text.0.parse().ok())
        .unwrap_or_default()
}

/// Returns the storage that a claim requests.
pub fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    quantity(requests.and_then(|requests| requests.get("storage")))
}

/// Returns the capacity of a volume.
pub fn capacity(volume: &PersistentVolume) -> Quantity {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    quantity(capacity.and_then(|capacity| capacity.get("storage")))
}

/// Returns whether claim and volume differ in `volumeMode` (Filesystem or Block).
pub fn modes_differ(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let claim = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_mode.as_deref());
    let volume = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_mode.as_deref());
    claim.unwrap_or("Filesystem") != volume.unwrap_or("Filesystem")
}

fn access_modes(modes: Option<&Vec<String>>) -> BTreeSet<&str> {
    modes.into_iter().flatten().map(String::as_str).collect()
}

fn claim_modes(claim: &PersistentVolumeClaim) -> BTreeSet<&str> {
    access_modes(
        claim
            .spec
            .as_ref()
            .and_then(|spec| spec.access_modes.as_ref()),
    )
}

fn volume_modes(volume: &PersistentVolume) -> BTreeSet<&str> {
    access_modes(
        volume
            .spec
            .as_ref()
            .and_then(|spec| spec.access_modes.as_ref()),
    )
}

fn attributes_class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    spec.and_then(|spec| spec.volume_attributes_class_name.as_deref())
        .unwrap_or_default()
}

fn attributes_class_of_volume(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.volume_attributes_class_name.as_deref())
        .unwrap_or_default()
}

/// Returns the volume to which the PersistentVolume controller binds a claim. If the claim `delays`
/// (WaitForFirstConsumer), only a volume reserved for it qualifies, because the scheduler chooses among the others.
pub fn best_match<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a PersistentVolume>,
    delays: bool,
) -> Option<&'a PersistentVolume> {
    let wanted = claim_modes(claim);
    // Volumes with the fewest access modes beyond those requested come first.
    let mut by_modes: BTreeMap<(usize, BTreeSet<&str>), Vec<&PersistentVolume>> = BTreeMap::new();
    for volume in volumes {
        let modes = volume_modes(volume);
        if wanted.is_subset(&modes) {
            by_modes
                // kube-controller-manager's index groups volumes by their modes too, so the smallest volume
                // wins only within a group.
                .entry((modes.len(), modes))
                .or_default()
                .push(volume);
        }
    }
    by_modes
        .into_values()
        .find_map(|volumes| smallest_match(claim, &volumes, delays))
}

fn smallest_match<'a>(
    claim: &PersistentVolumeClaim,
    volumes: &[&'a PersistentVolume],
    delays: bool,
) -> Option<&'a PersistentVolume> {
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let parsed = ownership::selector(selector);
    if selector.is_some() && parsed.is_none() {
        return None;
    }
    let (wanted, class) = (requested(claim), claim_class(claim).unwrap_or_default());
    let open = volumes.iter().copied().filter(|volume| {
        (claim_ref(volume).is_none() || is_bound_to(volume, claim))
            && capacity(volume) >= wanted
            && !modes_differ(claim, volume)
            && volume.metadata.deletion_timestamp.is_none()
    });
    let (own, others): (Vec<_>, Vec<_>) = open.partition(|volume| is_bound_to(volume, claim));
    let by_name = |volume: &&PersistentVolume| volume.metadata.name.clone();
    // A volume reserved for the claim is taken whatever its class, labels and phase are.
    if let Some(own) = own.into_iter().min_by_key(by_name) {
        return Some(own);
    }
    if delays {
        return None;
    }
    let suits = |volume: &&PersistentVolume| {
        let phase = volume
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        phase == Some("Available")
            && parsed
                .as_ref()
                .is_none_or(|selector| selector.matches(volume.labels()))
            && volume_class(volume) == class
            && attributes_class_of_claim(claim) == attributes_class_of_volume(volume)
    };
    let suited = others.into_iter().filter(suits);
    suited.min_by_key(|volume| (capacity(volume), volume.metadata.name.clone()))
}

/// Returns why a volume that a claim names does not fit it (`checkVolumeSatisfyClaim`); `None` if it fits.
pub fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<String> {
    if volume.metadata.deletion_timestamp.is_some() {
        let name = volume.name_any();
        return Some(format!("the volume is marked for deletion {name:?}"));
    }
    let fixed = if capacity(volume).value() < requested(claim).value() {
        "requested PV is too small"
    } else if volume_class(volume) != claim_class(claim).unwrap_or_default() {
        "storageClassName does not match"
    } else if attributes_class_of_claim(claim) != attributes_class_of_volume(volume) {
        "volumeAttributesClassName does not match"
    } else if modes_differ(claim, volume) {
        "incompatible volumeMode"
    } else if !claim_modes(claim).is_subset(&volume_modes(volume)) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(fixed.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(size: &str, modes: &[&str], extra: Value) -> PersistentVolumeClaim {
        let mut spec =
            json!({ "accessModes": modes, "resources": { "requests": { "storage": size } } });
        merge(&mut spec, extra);
        let claim =
            json!({ "metadata": { "name": "data", "namespace": "ns", "uid": "u" }, "spec": spec });
        serde_json::from_value(claim).expect("a claim")
    }

    fn volume(name: &str, size: &str, modes: &[&str], extra: Value) -> PersistentVolume {
        let mut spec = json!({ "accessModes": modes, "capacity": { "storage": size } });
        merge(&mut spec, extra);
        let metadata = json!({ "name": name, "labels": { "name": name } });
        let volume =
            json!({ "metadata": metadata, "spec": spec, "status": { "phase": "Available" } });
        serde_json::from_value(volume).expect("a volume")
    }

    fn merge(into: &mut Value, from: Value) {
        let from = from.as_object().cloned().unwrap_or_default();
        into.as_object_mut().expect("an object").extend(from);
    }

    fn matched(claim: &PersistentVolumeClaim, volumes: &[PersistentVolume]) -> Option<String> {
        best_match(claim, volumes, false).map(|volume| volume.name_any())
    }

    const ONCE: &[&str] = &["ReadWriteOnce"];
    const MANY: &[&str] = &["ReadWriteOnce", "ReadWriteMany"];

    #[test]
    fn a_claim_gets_the_smallest_volume_that_is_large_enough() {
        let volumes = [
            volume("large", "100Gi", ONCE, json!({})),
            volume("right", "10Gi", ONCE, json!({})),
            volume("small", "1Gi", ONCE, json!({})),
        ];
        assert_eq!(
            matched(&claim("5Gi", ONCE, json!({})), &volumes),
            Some("right".into())
        );
        assert_eq!(matched(&claim("1Ti", ONCE, json!({})), &volumes), None);
    }

    #[test]
    fn a_volume_that_can_do_no_more_than_asked_is_preferred_to_a_smaller_one_that_can() {
        let volumes = [
            volume("shared", "5Gi", MANY, json!({})),
            volume("plain", "50Gi", ONCE, json!({})),
        ];
        assert_eq!(
            matched(&claim("5Gi", ONCE, json!({})), &volumes),
            Some("plain".into())
        );
        assert_eq!(
            matched(&claim("5Gi", MANY, json!({})), &volumes),
            Some("shared".into())
        );
    }

    #[test]
    fn class_mode_selector_phase_and_owner_must_suit() {
        let mut pending = volume("pending", "10Gi", ONCE, json!({}));
        pending.status = None;
        let mut going = volume("going", "10Gi", ONCE, json!({}));
        going.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
            ));
        let volumes = [
            volume("fast", "10Gi", ONCE, json!({ "storageClassName": "fast" })),
            volume("block", "10Gi", ONCE, json!({ "volumeMode": "Block" })),
            volume(
                "taken",
                "10Gi",
                ONCE,
                json!({ "claimRef": { "namespace": "ns", "name": "other" } }),
            ),
            pending,
            going,
        ];
        let plain = claim("10Gi", ONCE, json!({ "storageClassName": "" }));
        assert_eq!(matched(&plain, &volumes), None);
        let fast = claim("10Gi", ONCE, json!({ "storageClassName": "fast" }));
        assert_eq!(matched(&fast, &volumes), Some("fast".into()));
        let chosen = json!({ "storageClassName": "fast", "selector": { "matchLabels": { "name": "slow" } } });
        assert_eq!(matched(&claim("10Gi", ONCE, chosen), &volumes), None);
        let block = claim("10Gi", ONCE, json!({ "volumeMode": "Block" }));
        assert_eq!(matched(&block, &volumes), Some("block".into()));
    }

    #[test]
    fn a_volume_set_aside_for_the_claim_is_taken_even_while_it_waits_for_a_pod() {
        let aside = json!({ "claimRef": { "namespace": "ns", "name": "data" } });
        let volumes = [
            volume("a", "10Gi", ONCE, json!({})),
            volume("b", "20Gi", ONCE, aside),
            volume(
                "c",
                "10Gi",
                ONCE,
                json!({ "claimRef": { "namespace": "ns", "name": "data", "uid": "old" } }),
            ),
        ];
        let wanted = claim("5Gi", ONCE, json!({}));
        assert_eq!(matched(&wanted, &volumes), Some("b".into()));
        let delayed =
            |volumes: &[PersistentVolume]| best_match(&wanted, volumes, true).map(|v| v.name_any());
        assert_eq!(delayed(&volumes), Some("b".into()));
        assert_eq!(delayed(&volumes[..1]), None);
    }

    #[test]
    fn a_named_volume_that_will_not_do_says_why() {
        let wanted = claim("5Gi", ONCE, json!({}));
        let why = |volume: PersistentVolume| mismatch(&volume, &wanted);
        assert_eq!(why(volume("a", "5Gi", ONCE, json!({}))), None);
        let cases = [
            (
                volume("a", "1Gi", ONCE, json!({})),
                "requested PV is too small",
            ),
            (
                volume("a", "5Gi", ONCE, json!({ "storageClassName": "x" })),
                "storageClassName does not match",
            ),
            (
                volume("a", "5Gi", ONCE, json!({ "volumeMode": "Block" })),
                "incompatible volumeMode",
            ),
            (
                volume("a", "5Gi", &["ReadOnlyMany"], json!({})),
                "incompatible accessMode",
            ),
        ];
        for (volume, expected) in cases {
            assert_eq!(why(volume).as_deref(), Some(expected));
        }
    }

    #[test]
    fn the_newest_default_class_counts() {
        let class = |name: &str, created: &str, default: &str| -> StorageClass {
            serde_json::from_value(json!({
                "metadata": { "name": name, "creationTimestamp": created, "annotations": { DEFAULT_CLASS[0]: default } },
                "provisioner": "p",
            }))
            .expect("a class")
        };
        let classes = [
            class("old", "2026-01-01T00:00:00Z", "true"),
            class("new", "2026-01-02T00:00:00Z", "true"),
            class("also-new", "2026-01-02T00:00:00Z", "true"),
            class("newest", "2026-01-03T00:00:00Z", "false"),
        ];
        let chosen = default_class(&classes).map(|class| class.name_any());
        assert_eq!(chosen.as_deref(), Some("also-new"));
    }
}
