//! Objects that the tests of boards add to nodes and plain pods: profiles, storage, and pods that name their nodes.
//!
//! Every claim exists and is usable, because a pod with a missing claim is refused before any node is checked, which
//! boards do not do.

use crate::cluster::Cluster;
use crate::model::{
    AccessMode, CsiNodeSpec, Disk, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    Operator, PersistentVolumeClaimSpec, PersistentVolumeSpec, PodVolume, StorageClassSpec,
    TopologyRequirement, VolumeSource, label,
};
use crate::profile::Profile;
use crate::reason::Plugin;

/// A resource that no node has and that one of the profiles ignores.
pub(super) const FOREIGN: &str = "example.com/thing";
const CLAIMS: [&str; 5] = ["zonal", "labelled", "local", "waiting", "exclusive"];

/// Returns the default profile, or one with some plugins off, in another order, or with PullTime.
pub(super) fn profile(choice: u64) -> Profile {
    let mut profile = Profile::default();
    let off: &[Plugin] = match choice % 10 {
        5 => &[Plugin::InterPodAffinity],
        6 => &[Plugin::PodTopologySpread, Plugin::NodePorts],
        7 => &[Plugin::NodeResourcesFit, Plugin::VolumeZone],
        8 => &[Plugin::TaintToleration, Plugin::NodeAffinity],
        _ => &[],
    };
    profile.filters.retain(|plugin| !off.contains(plugin));
    if choice % 10 == 3 {
        profile.scores.insert(Plugin::PullTime, 2);
    }
    if choice % 30 == 4 {
        profile.filters.reverse();
    }
    if choice % 30 == 14 {
        profile.pre_filters.clear();
    }
    if choice % 10 == 9 {
        let group = FOREIGN.split_once('/').map_or("", |(group, _)| group);
        profile.fit.ignored_resource_groups.insert(group.into());
    }
    profile
}

/// Returns a node selector by a label, or by name for the key `metadata.name`.
pub(super) fn nodes(key: &str, values: &[&str]) -> NodeSelector {
    let demand = vec![NodeSelectorRequirement {
        key: key.into(),
        operator: Operator::In,
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    }];
    let term = match key {
        "metadata.name" => NodeSelectorTerm {
            match_fields: demand,
            ..NodeSelectorTerm::default()
        },
        _ => NodeSelectorTerm {
            match_expressions: demand,
            ..NodeSelectorTerm::default()
        },
    };
    NodeSelector {
        node_selector_terms: vec![term],
    }
}

/// Returns one of the volumes that [`store`] makes usable, or a disk.
pub(super) fn volume(choice: u64) -> PodVolume {
    match CLAIMS.get(choice as usize % (CLAIMS.len() + 1)) {
        Some(claim) => PodVolume::Claim {
            claim: (*claim).into(),
        },
        None => PodVolume::Disk(Disk::GcePersistentDisk {
            name: "disk".into(),
            read_only: false,
        }),
    }
}

/// Adds claims of all kinds to some namespaces, with their volumes and classes. `limit` is the maximum number of
/// volumes per node.
pub(super) fn store(cluster: &mut Cluster, namespaces: &[&str], limit: i64) {
    cluster.set_storage_class(&StorageClassSpec {
        name: "slow".into(),
        provisioner: "example.com/disks".into(),
        waits_for_consumer: true,
        allowed_topologies: vec![vec![TopologyRequirement {
            key: label::ZONE.into(),
            values: vec![format!("{}-0", label::ZONE), format!("{}-1", label::ZONE)],
        }]],
    });
    for node in 0..10 {
        cluster.set_csi_node(&CsiNodeSpec {
            name: format!("n{node}"),
            limits: vec![("example.com/driver".into(), limit)],
            migrated_plugins: Vec::new(),
        });
    }
    let zone = format!("{}-0", label::ZONE);
    for claim in CLAIMS {
        let mut volume = PersistentVolumeSpec {
            name: claim.into(),
            source: Some(VolumeSource::Csi {
                driver: "example.com/driver".into(),
                handle: claim.into(),
            }),
            ..PersistentVolumeSpec::default()
        };
        match claim {
            "zonal" => volume.node_affinity = Some(nodes(label::ZONE, &[&zone])),
            "labelled" => drop(volume.labels.insert(label::ZONE.into(), zone.clone())),
            "local" => volume.node_affinity = Some(nodes(label::HOSTNAME, &["n1", "n2", "shared"])),
            _ => {}
        }
        cluster.set_volume(&volume);
        for namespace in namespaces {
            let waits = claim == "waiting";
            let mode = match claim {
                "exclusive" => AccessMode::ReadWriteOncePod,
                _ => AccessMode::ReadWriteOnce,
            };
            cluster.set_claim(&PersistentVolumeClaimSpec {
                namespace: (*namespace).into(),
                name: claim.into(),
                volume: if waits { "" } else { claim }.into(),
                bind_completed: !waits,
                class: "slow".into(),
                access_modes: vec![mode],
                ..PersistentVolumeClaimSpec::default()
            });
        }
    }
}
