//! Converts storage to the engine's model: the volumes of pods, and the storage kinds.
//!
//! The storage kinds are parsed by the engine's own JSON reader ([`spec_of`]), so that a live cluster and a file of
//! objects give the same model. A pod's volumes are converted from the typed pod, since every pod needs that.

use k8s_openapi::api::core::v1::{PodSpec, Volume};
use mullion_engine::model::{Disk, PodVolume};
use serde::{Serialize, de::DeserializeOwned};

/// Returns the volumes that can affect where a pod is placed.
pub fn of_pod(name: &str, uid: &str, spec: &PodSpec) -> Vec<PodVolume> {
    let volumes = spec.volumes.iter().flatten();
    volumes
        .filter_map(|volume| {
            if let Some(source) = &volume.persistent_volume_claim {
                return Some(PodVolume::Claim {
                    claim: source.claim_name.clone(),
                });
            }
            if volume.ephemeral.is_some() {
                return Some(PodVolume::Ephemeral {
                    claim: format!("{name}-{}", volume.name),
                    pod: name.to_owned(),
                    uid: uid.to_owned(),
                });
            }
            disk(volume).map(PodVolume::Disk)
        })
        .collect()
}

/// Returns the images that a pod mounts as volumes.
pub fn images_of_pod(spec: &PodSpec) -> Vec<String> {
    let volumes = spec.volumes.iter().flatten();
    let images = volumes.filter_map(|volume| volume.image.as_ref());
    images
        .map(|image| image.reference.clone().unwrap_or_default())
        .collect()
}

fn disk(volume: &Volume) -> Option<Disk> {
    let read_only = |flag: Option<bool>| flag == Some(true);
    if let Some(disk) = &volume.gce_persistent_disk {
        return Some(Disk::GcePersistentDisk {
            name: disk.pd_name.clone(),
            read_only: read_only(disk.read_only),
        });
    }
    if let Some(disk) = &volume.aws_elastic_block_store {
        return Some(Disk::AwsElasticBlockStore {
            id: disk.volume_id.clone(),
        });
    }
    if let Some(disk) = &volume.iscsi {
        return Some(Disk::Iscsi {
            iqn: disk.iqn.clone(),
            read_only: read_only(disk.read_only),
        });
    }
    if let Some(disk) = &volume.rbd {
        return Some(Disk::Rbd {
            monitors: disk.monitors.clone(),
            pool: disk.pool.clone().unwrap_or_else(|| "rbd".to_owned()),
            image: disk.image.clone(),
            read_only: read_only(disk.read_only),
        });
    }
    if let Some(disk) = &volume.azure_disk {
        let managed = |kind: &String| kind.eq_ignore_ascii_case("Managed");
        // Only managed disks have a CSI driver, whose limit of attached disks they count against.
        let counts = disk.kind.as_ref().is_none_or(managed);
        return counts.then(|| Disk::AzureDisk {
            uri: disk.disk_uri.clone(),
        });
    }
    if let Some(disk) = &volume.cinder {
        return Some(Disk::Cinder {
            id: disk.volume_id.clone(),
        });
    }
    let disk = volume.portworx_volume.as_ref()?;
    Some(Disk::Portworx {
        id: disk.volume_id.clone(),
    })
}

/// Converts an object through its JSON; `None` if it cannot be parsed, which the API server rules out.
pub fn spec_of<K: Serialize, S: DeserializeOwned>(object: &K) -> Option<S> {
    let value = serde_json::to_value(object).ok()?;
    let read = serde_json::from_value(value);
    read.inspect_err(|error| tracing::warn!(%error, "storage object left out of the cluster model"))
        .ok()
}

#[cfg(test)]
mod tests {
    use mullion_engine::model::{PersistentVolumeClaimSpec, PodSpec as ModelPod};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_typed_pod_and_its_json_have_the_same_volumes() {
        let pod = json!({
            "metadata": { "name": "db-0", "namespace": "ns", "uid": "u1" },
            "spec": { "containers": [], "volumes": [
                { "name": "data", "persistentVolumeClaim": { "claimName": "data-db-0" } },
                { "name": "scratch", "ephemeral": { "volumeClaimTemplate": { "spec": { "accessModes": ["ReadWriteOnce"], "resources": {} } } } },
                { "name": "config", "configMap": { "name": "c" } },
                { "name": "gce", "gcePersistentDisk": { "pdName": "d", "readOnly": true } },
                { "name": "ebs", "awsElasticBlockStore": { "volumeID": "vol-1" } },
                { "name": "iscsi", "iscsi": { "targetPortal": "p", "iqn": "iqn.1", "lun": 0 } },
                { "name": "rbd", "rbd": { "monitors": ["m"], "image": "i" } },
                { "name": "azure", "azureDisk": { "diskName": "a", "diskURI": "/a" } },
                { "name": "cinder", "cinder": { "volumeID": "c" } },
                { "name": "px", "portworxVolume": { "volumeID": "p" } },
                { "name": "model", "image": { "reference": "model:1", "pullPolicy": "IfNotPresent" } },
            ] },
        });
        let read: ModelPod = serde_json::from_value(pod.clone()).expect("a pod");
        let typed: k8s_openapi::api::core::v1::Pod = serde_json::from_value(pod).expect("a pod");
        let spec = typed.spec.as_ref().expect("a spec");
        let volumes = of_pod("db-0", "u1", spec);
        assert_eq!(volumes.len(), 9);
        assert_eq!(volumes, read.template.volumes);
        assert_eq!(images_of_pod(spec), ["model:1"]);
        assert_eq!(images_of_pod(spec), read.template.image_volumes);
    }

    #[test]
    fn a_claim_is_read_with_what_its_annotations_say() {
        let claim: k8s_openapi::api::core::v1::PersistentVolumeClaim =
            serde_json::from_value(json!({
                "metadata": { "name": "data", "namespace": "ns", "annotations": { "volume.kubernetes.io/selected-node": "n1" } },
                "spec": { "resources": { "requests": { "storage": "1Gi" } }, "accessModes": ["ReadWriteOnce"] },
            }))
            .expect("a claim");
        let spec: PersistentVolumeClaimSpec = spec_of(&claim).expect("readable");
        assert_eq!(spec.selected_node.as_deref(), Some("n1"));
        assert_eq!(spec.access_modes.len(), 1);
    }
}
