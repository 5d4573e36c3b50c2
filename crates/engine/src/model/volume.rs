//! Storage objects for the scheduler: volumes of pods, claims, persistent volumes, classes, and attach limits of
//! nodes.
//!
//! Invariant: volumes that cannot affect where a pod runs (empty directories, config maps, secrets, host paths, CSI
//! ephemeral volumes) are not included, so pods without others cost nothing extra.

use super::{LabelSelector, NodeSelector, Quantity, StringMap};

/// A volume of a pod that can affect where the pod runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PodVolume {
    /// `persistentVolumeClaim`.
    Claim {
        /// The claim's name, in the pod's namespace.
        claim: String,
    },
    /// `ephemeral`: a claim made for this pod alone.
    Ephemeral {
        /// The claim's name: the pod's, a dash and the volume's.
        claim: String,
        /// The pod's name.
        pod: String,
        /// The pod's UID, which the claim's controlling owner must have.
        uid: String,
    },
    /// A disk named in the pod itself.
    Disk(Disk),
}

/// A disk, by the fields that identify it for its in-tree plugin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Disk {
    /// `gcePersistentDisk`.
    GcePersistentDisk {
        /// `pdName`.
        name: String,
        /// `readOnly`: may be shared by readers.
        read_only: bool,
    },
    /// `awsElasticBlockStore`: can never be shared.
    AwsElasticBlockStore {
        /// `volumeID`, as a plain id or `aws://ZONE/ID`.
        id: String,
    },
    /// `iscsi`.
    Iscsi {
        /// The target's qualified name.
        iqn: String,
        /// `readOnly`: may be shared by readers.
        read_only: bool,
    },
    /// `rbd`.
    Rbd {
        /// `monitors`; two images are the same only if they have one in common.
        monitors: Vec<String>,
        /// `pool`.
        pool: String,
        /// `image`.
        image: String,
        /// `readOnly`: may be shared by readers.
        read_only: bool,
    },
    /// `azureDisk` of kind `Managed`, which only counts against attach limits; other kinds have no CSI driver.
    AzureDisk {
        /// `diskURI`.
        uri: String,
    },
    /// `cinder`, which only counts against attach limits.
    Cinder {
        /// `volumeID`.
        id: String,
    },
    /// `portworxVolume`, which only counts against attach limits.
    Portworx {
        /// `volumeID`.
        id: String,
    },
}

/// How a volume may be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub enum AccessMode {
    /// By the pods of one node.
    ReadWriteOnce,
    /// Read-only by any number of nodes.
    ReadOnlyMany,
    /// By any number of nodes.
    ReadWriteMany,
    /// By one pod in the whole cluster.
    ReadWriteOncePod,
}

/// The fields of a `v1.PersistentVolumeClaim` that matter to placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::volume_wire::Claim")
)]
pub struct PersistentVolumeClaimSpec {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// UID of the controlling owner; for an ephemeral volume that is the pod.
    pub owner_uid: Option<String>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Whether `status.phase` is Lost: the claim's volume is gone.
    pub lost: bool,
    /// `spec.volumeName`; empty while the claim has no volume.
    pub volume: String,
    /// Whether the claim is bound completely: it has the annotation `pv.kubernetes.io/bind-completed`.
    pub bind_completed: bool,
    /// The annotation `volume.kubernetes.io/selected-node`: the node for which the volume is to be provisioned.
    pub selected_node: Option<String>,
    /// `spec.storageClassName`, or the beta annotation; empty for none.
    pub class: String,
    /// `spec.volumeAttributesClassName`; empty for none.
    pub attributes_class: String,
    /// `spec.resources.requests.storage`.
    pub request: Option<Quantity>,
    /// `spec.accessModes`.
    pub access_modes: Vec<AccessMode>,
    /// Whether `spec.volumeMode` is Block.
    pub block: bool,
    /// `spec.selector`: only volumes with matching labels may be bound.
    pub selector: Option<LabelSelector>,
}

/// The fields of a `v1.PersistentVolume` that matter to placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::volume_wire::Volume")
)]
pub struct PersistentVolumeSpec {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.labels`.
    pub labels: StringMap,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Whether `status.phase` is Available.
    pub available: bool,
    /// `spec.claimRef`: the claim that it is bound to or reserved for.
    pub claim: Option<ClaimRef>,
    /// `spec.capacity.storage`.
    pub capacity: Quantity,
    /// `spec.accessModes`.
    pub access_modes: Vec<AccessMode>,
    /// Whether `spec.volumeMode` is Block.
    pub block: bool,
    /// `spec.storageClassName`, or the beta annotation; empty for none.
    pub class: String,
    /// `spec.volumeAttributesClassName`; empty for none.
    pub attributes_class: String,
    /// `spec.nodeAffinity.required`.
    pub node_affinity: Option<NodeSelector>,
    /// The source of the data, if attaching it counts against limits.
    pub source: Option<VolumeSource>,
}

/// The claim that a volume is bound to or reserved for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct ClaimRef {
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub name: String,
    /// The claim's UID; empty if a user reserved the volume by name.
    pub uid: String,
}

/// The source of a volume's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// `csi`.
    Csi {
        /// `driver`.
        driver: String,
        /// `volumeHandle`.
        handle: String,
    },
    /// An in-tree plugin's disk.
    Disk(Disk),
}

/// The fields of a `storage.k8s.io/v1` StorageClass that matter to placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::volume_wire::Class")
)]
pub struct StorageClassSpec {
    /// `metadata.name`.
    pub name: String,
    /// `provisioner`.
    pub provisioner: String,
    /// Whether `volumeBindingMode` is WaitForFirstConsumer; otherwise the volume controller binds claims at once.
    pub waits_for_consumer: bool,
    /// `allowedTopologies`: terms of which one must match; empty allows all nodes.
    pub allowed_topologies: Vec<Vec<TopologyRequirement>>,
}

/// A label that a node must have, with one of these values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct TopologyRequirement {
    /// The label.
    pub key: String,
    /// Its values.
    pub values: Vec<String>,
}

/// The fields of a `storage.k8s.io/v1` CSINode that matter to placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::volume_wire::CsiNode")
)]
pub struct CsiNodeSpec {
    /// `metadata.name`: the node's.
    pub name: String,
    /// `spec.drivers[].allocatable.count` by driver, for drivers that set it.
    pub limits: Vec<(String, i64)>,
    /// In-tree plugins that are migrated to CSI drivers on this node.
    pub migrated_plugins: Vec<String>,
}

/// The fields of a `storage.k8s.io/v1` CSIDriver that matter to placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::volume_wire::CsiDriver")
)]
pub struct CsiDriverSpec {
    /// `metadata.name`.
    pub name: String,
    /// `spec.storageCapacity`: whether new volumes need a [`CsiStorageCapacitySpec`] with enough capacity.
    pub storage_capacity: bool,
}

/// The capacity that a driver can still provision for some nodes (`storage.k8s.io/v1` CSIStorageCapacity).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::volume_wire::CsiStorageCapacity")
)]
pub struct CsiStorageCapacitySpec {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `storageClassName`.
    pub class: String,
    /// `nodeTopology`: the nodes it applies to; `None` matches no node.
    pub nodes: Option<LabelSelector>,
    /// `maximumVolumeSize`, or `capacity` if that is absent.
    pub largest_volume: Option<Quantity>,
}

/// The fields of a `storage.k8s.io/v1` VolumeAttachment that matter to placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::volume_wire::Attachment")
)]
pub struct VolumeAttachmentSpec {
    /// `metadata.name`.
    pub name: String,
    /// `spec.attacher`: the driver.
    pub attacher: String,
    /// `spec.nodeName`.
    pub node: String,
    /// `spec.source.persistentVolumeName`; empty for an inline volume, which is not counted.
    pub volume: String,
}
