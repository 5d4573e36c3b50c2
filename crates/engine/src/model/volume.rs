//! Storage as the scheduler sees it: the volumes of pods, claims, volumes, classes and what nodes can attach.
//!
//! Invariant: a pod's volumes that cannot decide where it goes (empty directories, config maps, secrets, host paths,
//! CSI ephemeral volumes) are not told at all, so pods that have no others cost nothing extra.

use super::{LabelSelector, NodeSelector, Quantity, StringMap};

/// A volume of a pod that can decide where the pod goes.
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

/// A disk by what identifies it to its in-tree plugin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Disk {
    /// `gcePersistentDisk`.
    GcePersistentDisk {
        /// `pdName`.
        name: String,
        /// `readOnly`: shared by readers.
        read_only: bool,
    },
    /// `awsElasticBlockStore`: never shared.
    AwsElasticBlockStore {
        /// `volumeID`, as a plain id or `aws://ZONE/ID`.
        id: String,
    },
    /// `iscsi`.
    Iscsi {
        /// The target's qualified name.
        iqn: String,
        /// `readOnly`: shared by readers.
        read_only: bool,
    },
    /// `rbd`.
    Rbd {
        /// `monitors`; two images are the same only if they share one.
        monitors: Vec<String>,
        /// `pool`.
        pool: String,
        /// `image`.
        image: String,
        /// `readOnly`: shared by readers.
        read_only: bool,
    },
    /// `azureDisk` of kind `Managed`, counted against limits only; of other kinds no driver stands in for the plugin.
    AzureDisk {
        /// `diskURI`.
        uri: String,
    },
    /// `cinder`, counted against limits only.
    Cinder {
        /// `volumeID`.
        id: String,
    },
    /// `portworxVolume`, counted against limits only.
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
    /// By readers anywhere.
    ReadOnlyMany,
    /// Anywhere.
    ReadWriteMany,
    /// By one pod in the whole cluster.
    ReadWriteOncePod,
}

/// What of a `v1.PersistentVolumeClaim` matters to placement.
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
    /// UID of the controlling owner: of a pod's ephemeral volume the pod.
    pub owner_uid: Option<String>,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `status.phase` is Lost: its volume is gone.
    pub lost: bool,
    /// `spec.volumeName`; empty while it has none.
    pub volume: String,
    /// The annotation `pv.kubernetes.io/bind-completed` is there: bound for good.
    pub bind_completed: bool,
    /// The annotation `volume.kubernetes.io/selected-node`: to be provisioned for that node.
    pub selected_node: Option<String>,
    /// `spec.storageClassName`, or the beta annotation; empty for none.
    pub class: String,
    /// `spec.volumeAttributesClassName`; empty for none.
    pub attributes_class: String,
    /// `spec.resources.requests.storage`.
    pub request: Option<Quantity>,
    /// `spec.accessModes`.
    pub access_modes: Vec<AccessMode>,
    /// `spec.volumeMode` is Block.
    pub block: bool,
    /// `spec.selector`: only volumes with these labels.
    pub selector: Option<LabelSelector>,
}

/// What of a `v1.PersistentVolume` matters to placement.
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
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `status.phase` is Available.
    pub available: bool,
    /// `spec.claimRef`: taken by, or set aside for.
    pub claim: Option<ClaimRef>,
    /// `spec.capacity.storage`.
    pub capacity: Quantity,
    /// `spec.accessModes`.
    pub access_modes: Vec<AccessMode>,
    /// `spec.volumeMode` is Block.
    pub block: bool,
    /// `spec.storageClassName`, or the beta annotation; empty for none.
    pub class: String,
    /// `spec.volumeAttributesClassName`; empty for none.
    pub attributes_class: String,
    /// `spec.nodeAffinity.required`.
    pub node_affinity: Option<NodeSelector>,
    /// Where the data is, as far as attaching it is counted.
    pub source: Option<VolumeSource>,
}

/// Which claim a volume is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct ClaimRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID; empty where a person set the volume aside by name.
    pub uid: String,
}

/// Where the data of a volume is.
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

/// What of a `storage.k8s.io/v1` StorageClass matters to placement.
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
    /// `volumeBindingMode` is WaitForFirstConsumer; else claims are bound at once, by others.
    pub waits_for_consumer: bool,
    /// `allowedTopologies`: terms of which one must match; empty for everywhere.
    pub allowed_topologies: Vec<Vec<TopologyRequirement>>,
}

/// A label a node must have with one of these values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct TopologyRequirement {
    /// The label.
    pub key: String,
    /// Its values.
    pub values: Vec<String>,
}

/// What of a `storage.k8s.io/v1` CSINode matters to placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::volume_wire::CsiNode")
)]
pub struct CsiNodeSpec {
    /// `metadata.name`: the node's.
    pub name: String,
    /// `spec.drivers[].allocatable.count` by driver, for drivers that have one.
    pub limits: Vec<(String, i64)>,
    /// In-tree plugins that CSI drivers stand in for on this node.
    pub migrated_plugins: Vec<String>,
}

/// What of a `storage.k8s.io/v1` CSIDriver matters to placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::volume_wire::CsiDriver")
)]
pub struct CsiDriverSpec {
    /// `metadata.name`.
    pub name: String,
    /// `spec.storageCapacity`: new volumes need a [`CsiStorageCapacitySpec`] with room.
    pub storage_capacity: bool,
}

/// How much a driver can still provision for some nodes (`storage.k8s.io/v1` CSIStorageCapacity).
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
    /// `nodeTopology`: which nodes; none without.
    pub nodes: Option<LabelSelector>,
    /// `maximumVolumeSize`, or `capacity` where that is not told.
    pub largest_volume: Option<Quantity>,
}

/// What of a `storage.k8s.io/v1` VolumeAttachment matters to placement.
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
