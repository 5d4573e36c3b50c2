//! The JSON form of the storage kinds, from which the flat types of the model are deserialized.
//!
//! As in [`super::wire`], unknown fields are ignored and absent ones get their zero value.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    AccessMode, ClaimRef, CsiDriverSpec, CsiNodeSpec, CsiStorageCapacitySpec, Disk, LabelSelector,
    NodeSelector, PersistentVolumeClaimSpec, PersistentVolumeSpec, PodVolume, Quantity,
    ResourceMap, Resources, StorageClassSpec, StringMap, TopologyRequirement, VolumeAttachmentSpec,
    VolumeSource,
};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";
const STORAGE: &str = "storage";

/// Metadata with annotations, which storage kinds use for much of their state; the metadata of the
/// other kinds has none.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    name: String,
    namespace: String,
    uid: String,
    labels: Option<StringMap>,
    annotations: Option<StringMap>,
    deletion_timestamp: Option<String>,
    owner_references: Vec<Owner>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Owner {
    uid: String,
    controller: bool,
}

impl Meta {
    fn controller_uid(&self) -> Option<String> {
        let owner = self.owner_references.iter().find(|owner| owner.controller);
        owner.map(|owner| owner.uid.clone())
    }
}

/// One entry of `spec.volumes`, or the source part of a PersistentVolume.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Source {
    name: String,
    persistent_volume_claim: Option<ClaimSource>,
    ephemeral: Option<serde::de::IgnoredAny>,
    gce_persistent_disk: Option<GceDisk>,
    aws_elastic_block_store: Option<IdDisk>,
    iscsi: Option<Iscsi>,
    rbd: Option<Rbd>,
    azure_disk: Option<AzureDisk>,
    cinder: Option<IdDisk>,
    portworx_volume: Option<IdDisk>,
    csi: Option<Csi>,
    image: Option<Image>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Image {
    reference: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimSource {
    claim_name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GceDisk {
    pd_name: String,
    read_only: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IdDisk {
    #[serde(rename = "volumeID")]
    id: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Iscsi {
    iqn: String,
    read_only: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rbd {
    monitors: Vec<String>,
    pool: String,
    image: String,
    read_only: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AzureDisk {
    #[serde(rename = "diskURI")]
    uri: String,
    kind: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Csi {
    driver: String,
    volume_handle: String,
}

impl Source {
    /// Returns the image of an image volume; `None` for other volumes.
    pub(super) fn image(&self) -> Option<&str> {
        self.image.as_ref().map(|image| image.reference.as_str())
    }

    /// Returns the volume of a pod if it can affect where the pod runs.
    pub(super) fn of_pod(self, pod: &str, uid: &str) -> Option<PodVolume> {
        if let Some(source) = self.persistent_volume_claim {
            return Some(PodVolume::Claim {
                claim: source.claim_name,
            });
        }
        if self.ephemeral.is_some() {
            return Some(PodVolume::Ephemeral {
                claim: format!("{pod}-{}", self.name),
                pod: pod.to_owned(),
                uid: uid.to_owned(),
            });
        }
        self.disk().map(PodVolume::Disk)
    }

    fn disk(self) -> Option<Disk> {
        if let Some(disk) = self.gce_persistent_disk {
            let GceDisk { pd_name, read_only } = disk;
            return Some(Disk::GcePersistentDisk {
                name: pd_name,
                read_only,
            });
        }
        if let Some(disk) = self.aws_elastic_block_store {
            return Some(Disk::AwsElasticBlockStore { id: disk.id });
        }
        if let Some(Iscsi { iqn, read_only }) = self.iscsi {
            return Some(Disk::Iscsi { iqn, read_only });
        }
        if let Some(rbd) = self.rbd {
            return Some(Disk::Rbd {
                monitors: rbd.monitors,
                // `rbd` is the API server's default for the pool.
                pool: if rbd.pool.is_empty() {
                    "rbd".to_owned()
                } else {
                    rbd.pool
                },
                image: rbd.image,
                read_only: rbd.read_only,
            });
        }
        if let Some(disk) = self.azure_disk {
            let managed = |kind: &String| kind.eq_ignore_ascii_case("Managed");
            let counts = disk.kind.as_ref().is_none_or(managed);
            return counts.then_some(Disk::AzureDisk { uri: disk.uri });
        }
        if let Some(disk) = self.cinder {
            return Some(Disk::Cinder { id: disk.id });
        }
        self.portworx_volume
            .map(|disk| Disk::Portworx { id: disk.id })
    }

    fn of_volume(mut self) -> Option<VolumeSource> {
        match self.csi.take() {
            Some(csi) => Some(VolumeSource::Csi {
                driver: csi.driver,
                handle: csi.volume_handle,
            }),
            None => self.disk().map(VolumeSource::Disk),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Claim {
    metadata: Meta,
    #[serde(default)]
    spec: ClaimBody,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimBody {
    volume_name: String,
    storage_class_name: Option<String>,
    volume_attributes_class_name: Option<String>,
    resources: Resources,
    access_modes: Vec<AccessMode>,
    volume_mode: Option<String>,
    selector: Option<LabelSelector>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
}

fn is_block(mode: Option<&str>) -> bool {
    mode == Some("Block")
}

impl From<Claim> for PersistentVolumeClaimSpec {
    fn from(claim: Claim) -> Self {
        let owner_uid = claim.metadata.controller_uid();
        let mut annotations = claim.metadata.annotations.unwrap_or_default();
        PersistentVolumeClaimSpec {
            namespace: claim.metadata.namespace,
            name: claim.metadata.name,
            uid: claim.metadata.uid,
            owner_uid,
            deleting: claim.metadata.deletion_timestamp.is_some(),
            lost: claim.status.phase == "Lost",
            volume: claim.spec.volume_name,
            bind_completed: annotations.contains_key(BIND_COMPLETED),
            selected_node: annotations.remove(SELECTED_NODE),
            // The beta annotation wins over the field, as in `GetPersistentVolumeClaimClass`.
            class: annotations
                .remove(BETA_CLASS)
                .or(claim.spec.storage_class_name)
                .unwrap_or_default(),
            attributes_class: claim.spec.volume_attributes_class_name.unwrap_or_default(),
            request: claim.spec.resources.requests.get(STORAGE).copied(),
            access_modes: claim.spec.access_modes,
            block: is_block(claim.spec.volume_mode.as_deref()),
            selector: claim.spec.selector,
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Volume {
    metadata: Meta,
    #[serde(default)]
    spec: VolumeBody,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VolumeBody {
    claim_ref: Option<ClaimRef>,
    capacity: ResourceMap,
    access_modes: Vec<AccessMode>,
    volume_mode: Option<String>,
    storage_class_name: String,
    volume_attributes_class_name: Option<String>,
    node_affinity: Option<VolumeNodeAffinity>,
    #[serde(flatten)]
    source: Source,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct VolumeNodeAffinity {
    required: Option<NodeSelector>,
}

impl From<Volume> for PersistentVolumeSpec {
    fn from(volume: Volume) -> Self {
        let mut annotations = volume.metadata.annotations.unwrap_or_default();
        PersistentVolumeSpec {
            name: volume.metadata.name,
            labels: volume.metadata.labels.unwrap_or_default(),
            deleting: volume.metadata.deletion_timestamp.is_some(),
            available: volume.status.phase == "Available",
            claim: volume.spec.claim_ref,
            capacity: volume
                .spec
                .capacity
                .get(STORAGE)
                .copied()
                .unwrap_or_default(),
            access_modes: volume.spec.access_modes,
            block: is_block(volume.spec.volume_mode.as_deref()),
            // As for claims: `GetPersistentVolumeClass`.
            class: annotations
                .remove(BETA_CLASS)
                .unwrap_or(volume.spec.storage_class_name),
            attributes_class: volume.spec.volume_attributes_class_name.unwrap_or_default(),
            node_affinity: volume
                .spec
                .node_affinity
                .and_then(|affinity| affinity.required),
            source: volume.spec.source.of_volume(),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Class {
    metadata: Meta,
    #[serde(default)]
    provisioner: String,
    #[serde(default)]
    volume_binding_mode: Option<String>,
    #[serde(default)]
    allowed_topologies: Option<Vec<TopologyTerm>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TopologyTerm {
    match_label_expressions: Vec<TopologyRequirement>,
}

impl From<Class> for StorageClassSpec {
    fn from(class: Class) -> Self {
        let terms = class.allowed_topologies.unwrap_or_default();
        StorageClassSpec {
            name: class.metadata.name,
            provisioner: class.provisioner,
            waits_for_consumer: class.volume_binding_mode.as_deref()
                == Some("WaitForFirstConsumer"),
            allowed_topologies: terms
                .into_iter()
                .map(|term| term.match_label_expressions)
                .collect(),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct CsiNode {
    metadata: Meta,
    #[serde(default)]
    spec: CsiNodeBody,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CsiNodeBody {
    drivers: Option<Vec<CsiNodeDriver>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CsiNodeDriver {
    name: String,
    allocatable: Option<Allocatable>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Allocatable {
    count: Option<i64>,
}

impl From<CsiNode> for CsiNodeSpec {
    fn from(node: CsiNode) -> Self {
        let drivers = node.spec.drivers.unwrap_or_default();
        let limits: BTreeMap<String, i64> = drivers
            .into_iter()
            .filter_map(|driver| Some((driver.name, driver.allocatable?.count?)))
            .collect();
        let annotations = node.metadata.annotations.unwrap_or_default();
        let plugins = annotations.get(MIGRATED_PLUGINS).map_or("", String::as_str);
        CsiNodeSpec {
            name: node.metadata.name,
            limits: limits.into_iter().collect(),
            migrated_plugins: plugins
                .split(',')
                .filter(|plugin| !plugin.is_empty())
                .map(str::to_owned)
                .collect(),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct CsiDriver {
    metadata: Meta,
    #[serde(default)]
    spec: CsiDriverBody,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CsiDriverBody {
    storage_capacity: Option<bool>,
}

impl From<CsiDriver> for CsiDriverSpec {
    fn from(driver: CsiDriver) -> Self {
        CsiDriverSpec {
            name: driver.metadata.name,
            storage_capacity: driver.spec.storage_capacity == Some(true),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CsiStorageCapacity {
    metadata: Meta,
    #[serde(default)]
    storage_class_name: String,
    #[serde(default)]
    node_topology: Option<LabelSelector>,
    #[serde(default)]
    capacity: Option<Quantity>,
    #[serde(default)]
    maximum_volume_size: Option<Quantity>,
}

impl From<CsiStorageCapacity> for CsiStorageCapacitySpec {
    fn from(own: CsiStorageCapacity) -> Self {
        CsiStorageCapacitySpec {
            namespace: own.metadata.namespace,
            name: own.metadata.name,
            class: own.storage_class_name,
            nodes: own.node_topology,
            // kube-scheduler's `capacitySufficient`: the maximum size of one volume says more than what is free in
            // all.
            largest_volume: own.maximum_volume_size.or(own.capacity),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Attachment {
    metadata: Meta,
    #[serde(default)]
    spec: AttachmentBody,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AttachmentBody {
    attacher: String,
    node_name: String,
    source: AttachmentSource,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AttachmentSource {
    persistent_volume_name: Option<String>,
}

impl From<Attachment> for VolumeAttachmentSpec {
    fn from(attachment: Attachment) -> Self {
        VolumeAttachmentSpec {
            name: attachment.metadata.name,
            attacher: attachment.spec.attacher,
            node: attachment.spec.node_name,
            volume: attachment
                .spec
                .source
                .persistent_volume_name
                .unwrap_or_default(),
        }
    }
}
