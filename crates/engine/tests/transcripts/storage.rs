//! The words about storage: claims, volumes, classes, and what nodes attach.
//!
//! `claim NAME class= size=1Gi mode=RWO volume= (bound to it) selected=NODE`, `volume NAME class= size= zone= host=
//! for=CLAIM driver= handle= label.K=V`, `storage-class NAME by=PROVISIONER wait in=KEY:a,b`, `csi-node NODE DRIVER=COUNT`,
//! `storage-driver NAME`, `room NAME class= size= zone=`, `attached NAME node= driver= volume=`. A pod's `claim=NAME`,
//! `ephemeral=NAME`, `ebs=ID`, `gce=NAME` and `gce=NAME:ro`.

use mullion_engine::Cluster;
use mullion_engine::model::{
    AccessMode, ClaimRef, CsiDriverSpec, CsiNodeSpec, CsiStorageCapacitySpec, Disk, LabelSelector,
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Operator, PersistentVolumeClaimSpec,
    PersistentVolumeSpec, PodVolume, StorageClassSpec, StringMap, TopologyRequirement,
    VolumeAttachmentSpec, VolumeSource, label,
};

use crate::words::{Words, label_key, quantity, topology_key};

/// Applies a storage command to the cluster; returns false if the command is none of these.
pub(crate) fn apply(cluster: &mut Cluster, command: &str, rest: &str) -> bool {
    match command {
        "claim" => cluster.set_claim(&claim(&Words::read(rest))),
        "remove-claim" => cluster.remove_claim("default", rest),
        "volume" => cluster.set_volume(&volume(&Words::read(rest))),
        "remove-volume" => cluster.remove_volume(rest),
        "storage-class" => cluster.set_storage_class(&class(&Words::read(rest))),
        "csi-node" => cluster.set_csi_node(&csi_node(&Words::read(rest))),
        "storage-driver" => cluster.set_csi_driver(&CsiDriverSpec {
            name: rest.to_owned(),
            storage_capacity: true,
        }),
        "room" => cluster.set_storage_capacity(&room(&Words::read(rest))),
        "attached" => cluster.set_volume_attachment(&attached(&Words::read(rest))),
        _ => return false,
    }
    true
}

/// The volume of a pod that a word names.
pub(crate) fn pod_volume(pod: &str, key: &str, value: &str) -> Option<PodVolume> {
    Some(match key {
        "claim" => PodVolume::Claim {
            claim: value.to_owned(),
        },
        "ephemeral" => PodVolume::Ephemeral {
            claim: format!("{pod}-{value}"),
            pod: pod.to_owned(),
            uid: pod.to_owned(),
        },
        "ebs" => PodVolume::Disk(Disk::AwsElasticBlockStore {
            id: value.to_owned(),
        }),
        "gce" => {
            let (name, mode) = value.split_once(':').unwrap_or((value, "rw"));
            PodVolume::Disk(Disk::GcePersistentDisk {
                name: name.to_owned(),
                read_only: mode == "ro",
            })
        }
        _ => return None,
    })
}

fn text(words: &Words<'_>, key: &str) -> String {
    words.value(key).unwrap_or_default().to_owned()
}

fn modes(words: &Words<'_>) -> Vec<AccessMode> {
    let modes = words.value("mode").unwrap_or("RWO").split(',');
    modes
        .map(|mode| match mode {
            "RWO" => AccessMode::ReadWriteOnce,
            "ROX" => AccessMode::ReadOnlyMany,
            "RWX" => AccessMode::ReadWriteMany,
            "RWOP" => AccessMode::ReadWriteOncePod,
            other => panic!("{other} is no access mode"),
        })
        .collect()
}

fn claim(words: &Words<'_>) -> PersistentVolumeClaimSpec {
    let labels = labels(words);
    PersistentVolumeClaimSpec {
        namespace: "default".to_owned(),
        name: words.name.to_owned(),
        uid: words.name.to_owned(),
        owner_uid: words.value("owner").map(str::to_owned),
        deleting: words.value("deleting").is_some(),
        lost: words.value("lost").is_some(),
        volume: text(words, "volume"),
        bind_completed: words.value("volume").is_some(),
        selected_node: words.value("selected").map(str::to_owned),
        class: text(words, "class"),
        request: words.value("size").map(quantity),
        access_modes: modes(words),
        selector: (!labels.is_empty()).then(|| LabelSelector {
            match_labels: labels,
            ..LabelSelector::default()
        }),
        ..PersistentVolumeClaimSpec::default()
    }
}

fn labels(words: &Words<'_>) -> StringMap {
    let labels = words.attributes.iter();
    labels
        .filter_map(|(key, value)| {
            let key = key.strip_prefix("label.")?;
            let key = label_key(key).unwrap_or_else(|| key.to_owned());
            Some((key, (*value).to_owned()))
        })
        .collect()
}

fn volume(words: &Words<'_>) -> PersistentVolumeSpec {
    let places = [("zone", label::ZONE), ("host", label::HOSTNAME)];
    let place = places.into_iter().find_map(|(word, key)| {
        Some(NodeSelectorRequirement {
            key: key.to_owned(),
            operator: Operator::In,
            values: words.value(word)?.split(',').map(str::to_owned).collect(),
        })
    });
    PersistentVolumeSpec {
        name: words.name.to_owned(),
        labels: labels(words),
        available: true,
        claim: words.value("for").map(|name| ClaimRef {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: String::new(),
        }),
        capacity: words.value("size").map(quantity).unwrap_or_default(),
        access_modes: modes(words),
        class: text(words, "class"),
        node_affinity: place.map(|requirement| NodeSelector {
            node_selector_terms: vec![NodeSelectorTerm {
                match_expressions: vec![requirement],
                ..NodeSelectorTerm::default()
            }],
        }),
        source: words.value("driver").map(|driver| VolumeSource::Csi {
            driver: driver.to_owned(),
            handle: words.name.to_owned(),
        }),
        ..PersistentVolumeSpec::default()
    }
}

fn class(words: &Words<'_>) -> StorageClassSpec {
    let allowed = words.value("in").map(|place| {
        let (key, values) = place.split_once(':').expect("key:values");
        vec![TopologyRequirement {
            key: topology_key(key),
            values: values.split(',').map(str::to_owned).collect(),
        }]
    });
    StorageClassSpec {
        name: words.name.to_owned(),
        provisioner: text(words, "by"),
        waits_for_consumer: words.value("wait").is_some(),
        allowed_topologies: allowed.into_iter().collect(),
    }
}

fn csi_node(words: &Words<'_>) -> CsiNodeSpec {
    let mut node = CsiNodeSpec {
        name: words.name.to_owned(),
        ..CsiNodeSpec::default()
    };
    for (key, value) in &words.attributes {
        match *key {
            "migrated" => node.migrated_plugins.push((*value).to_owned()),
            driver => node
                .limits
                .push((driver.to_owned(), value.parse().expect("a count"))),
        }
    }
    node
}

fn room(words: &Words<'_>) -> CsiStorageCapacitySpec {
    let zone = words.value("zone").expect("a zone");
    CsiStorageCapacitySpec {
        namespace: "default".to_owned(),
        name: words.name.to_owned(),
        class: text(words, "class"),
        nodes: Some(LabelSelector {
            match_labels: StringMap::from([(label::ZONE.to_owned(), zone.to_owned())]),
            ..LabelSelector::default()
        }),
        largest_volume: words.value("size").map(quantity),
    }
}

fn attached(words: &Words<'_>) -> VolumeAttachmentSpec {
    VolumeAttachmentSpec {
        name: words.name.to_owned(),
        attacher: text(words, "driver"),
        node: text(words, "node"),
        volume: text(words, "volume"),
    }
}
