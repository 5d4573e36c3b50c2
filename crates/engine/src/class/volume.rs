//! The volumes of a pod, compiled: claims by name, and in-tree disks by the fields that identify a disk.
//!
//! The claims and volumes themselves can change while the class stays the same: see [`crate::storage`].

use crate::intern::{Interner, Symbol};
use crate::model::{self, PodVolume};

/// One volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Volume {
    /// A PersistentVolumeClaim in the pod's namespace.
    Claim {
        name: Symbol,
        /// For an ephemeral volume, the pod that must own the claim.
        made_for: Option<EphemeralOwner>,
    },
    /// A disk that the pod names itself.
    Disk { disk: Disk, attach: Option<Attach> },
}

/// The pod that owns the claim of an ephemeral volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EphemeralOwner {
    pub(crate) pod: Symbol,
    pub(crate) uid: Symbol,
}

/// A disk that two pods on one node cannot share, or cannot share for writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    Gce {
        name: Symbol,
        read_only: bool,
    },
    Ebs {
        id: Symbol,
    },
    Iscsi {
        iqn: Symbol,
        read_only: bool,
    },
    Rbd {
        monitors: Box<[Symbol]>,
        pool: Symbol,
        image: Symbol,
        read_only: bool,
    },
    /// A disk of a kind that pods can share.
    Shared,
}

impl Disk {
    fn compile(disk: &model::Disk, names: &mut Interner) -> Self {
        match disk {
            model::Disk::GcePersistentDisk { name, read_only } => Disk::Gce {
                name: names.intern(name),
                read_only: *read_only,
            },
            model::Disk::AwsElasticBlockStore { id } => Disk::Ebs {
                id: names.intern(id),
            },
            model::Disk::Iscsi { iqn, read_only } => Disk::Iscsi {
                iqn: names.intern(iqn),
                read_only: *read_only,
            },
            model::Disk::Rbd {
                monitors,
                pool,
                image,
                read_only,
            } => Disk::Rbd {
                monitors: monitors
                    .iter()
                    .map(|monitor| names.intern(monitor))
                    .collect(),
                pool: names.intern(pool),
                image: names.intern(image),
                read_only: *read_only,
            },
            // kube-scheduler's VolumeRestrictions knows no conflicts of these.
            model::Disk::AzureDisk { .. }
            | model::Disk::Cinder { .. }
            | model::Disk::Portworx { .. } => Disk::Shared,
        }
    }

    /// Returns whether two pods with these disks cannot run on one node.
    pub(crate) fn clashes(&self, other: &Disk) -> bool {
        // Google, iSCSI and RBD disks may be shared if both pods mount them read-only (kube-scheduler:
        // `isVolumeConflict`).
        match (self, other) {
            (
                Disk::Gce {
                    name: a,
                    read_only: x,
                },
                Disk::Gce {
                    name: b,
                    read_only: y,
                },
            )
            | (
                Disk::Iscsi {
                    iqn: a,
                    read_only: x,
                },
                Disk::Iscsi {
                    iqn: b,
                    read_only: y,
                },
            ) => a == b && !(*x && *y),
            // An EBS volume is never shared, not even for reading.
            (Disk::Ebs { id: a }, Disk::Ebs { id: b }) => a == b,
            (
                Disk::Rbd {
                    monitors: a,
                    pool: own_pool,
                    image: own_image,
                    read_only: x,
                },
                Disk::Rbd {
                    monitors: b,
                    pool,
                    image,
                    read_only: y,
                },
            ) => {
                // Two pods that reach the same image through different monitors still share a cluster if one monitor
                // is common.
                let meet = a.iter().any(|monitor| b.contains(monitor));
                meet && own_pool == pool && own_image == image && !(*x && *y)
            }
            _ => false,
        }
    }
}

/// A volume as it counts against a driver's attach limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attach {
    pub(crate) driver: Symbol,
    pub(crate) handle: Handle,
}

/// The identity of an attached volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Handle {
    /// The CSI volume handle.
    Volume(Symbol),
    /// The future volume of a claim, by the claim's namespace and name.
    Claim(Symbol, Symbol),
}

/// In-tree plugins and the CSI drivers that replace them on every node with a CSINode, whatever its annotation
/// `storage.alpha.kubernetes.io/migrated-plugins` says (kube-scheduler: `isCSIMigrationOn` of nodevolumelimits).
const MIGRATED: [(&str, &str); 5] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
];

/// In-tree plugins whose drivers have no attach limits.
const UNCOUNTED: [&str; 2] = ["kubernetes.io/vsphere-volume", "kubernetes.io/azure-file"];

impl Attach {
    /// Returns how a disk of an in-tree plugin counts, if at all. `zones` is the zone label of its volume, empty if there is
    /// none. A disk for which csi-translation-lib has no handle does not count.
    pub(crate) fn of_disk(disk: &model::Disk, zones: &str, names: &mut Interner) -> Option<Self> {
        let (plugin, handle) = match disk {
            model::Disk::AwsElasticBlockStore { id } => (0, ebs_handle(id)?.to_owned()),
            model::Disk::GcePersistentDisk { name, .. } => (1, gce_handle(name, zones)?),
            model::Disk::AzureDisk { uri } => (2, uri.clone()),
            model::Disk::Cinder { id } => (3, id.clone()),
            model::Disk::Portworx { id } => (4, id.clone()),
            model::Disk::Iscsi { .. } | model::Disk::Rbd { .. } => return None,
        };
        let (_, driver) = MIGRATED[plugin];
        Some(Attach {
            driver: names.intern(driver),
            handle: Handle::Volume(names.intern(&handle)),
        })
    }

    /// Returns the driver that attaches the volumes of a provisioner.
    pub(crate) fn of_provisioner(provisioner: &str, names: &mut Interner) -> Option<Symbol> {
        if provisioner.is_empty() || UNCOUNTED.contains(&provisioner) {
            return None;
        }
        let migrated = MIGRATED.iter().find(|(plugin, _)| *plugin == provisioner);
        Some(names.intern(migrated.map_or(provisioner, |(_, driver)| driver)))
    }
}

/// Returns the CSI handle of an EBS volume, whose id may be written as `aws://ZONE/ID` or `aws:///ID`.
fn ebs_handle(id: &str) -> Option<&str> {
    let Some(rest) = id.strip_prefix("aws://") else {
        return Some(id);
    };
    let (_, path) = rest.split_once('/')?;
    let own = path.trim_matches('/');
    // csi-translation-lib accepts only such ids; anything else is an error there.
    (own.starts_with("vol-") && !own.contains('/')).then_some(own)
}

/// Returns the CSI handle of a Google disk: a regional one if its volume is in several zones, which must be in one region.
fn gce_handle(name: &str, zones: &str) -> Option<String> {
    let project = "projects/UNSPECIFIED";
    let zones: Vec<&str> = zones.split("__").collect();
    Some(match zones[..] {
        [""] => format!("{project}/zones/UNSPECIFIED/disks/{name}"),
        [zone] => format!("{project}/zones/{zone}/disks/{name}"),
        _ => {
            let region = |zone: &&str| match zone.split('-').collect::<Vec<_>>()[..] {
                [area, region, _] => Some(format!("{area}-{region}")),
                _ => None,
            };
            let regions: Option<Vec<_>> = zones.iter().map(region).collect();
            let mut regions = regions?;
            regions.dedup();
            let [region] = &regions[..] else { return None };
            format!("{project}/regions/{region}/disks/{name}")
        }
    })
}

impl Volume {
    pub(super) fn compile(volume: &PodVolume, names: &mut Interner) -> Self {
        match volume {
            PodVolume::Claim { claim } => Volume::Claim {
                name: names.intern(claim),
                made_for: None,
            },
            PodVolume::Ephemeral { claim, pod, uid } => Volume::Claim {
                name: names.intern(claim),
                made_for: Some(EphemeralOwner {
                    pod: names.intern(pod),
                    uid: names.intern(uid),
                }),
            },
            PodVolume::Disk(disk) => Volume::Disk {
                disk: Disk::compile(disk, names),
                // A disk that the pod names itself has no PersistentVolume and so no zone labels.
                attach: Attach::of_disk(disk, "", names),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_called_as_csi_translation_lib_calls_them() {
        assert_eq!(ebs_handle("vol-1"), Some("vol-1"));
        assert_eq!(ebs_handle("aws://us-west-2a/vol-1"), Some("vol-1"));
        assert_eq!(ebs_handle("aws:///vol-1"), Some("vol-1"));
        assert_eq!(ebs_handle("aws://us-west-2a/disk-1"), None);
        assert_eq!(ebs_handle("aws://us-west-2a/b/vol-1"), None);
        let gce = |zones: &str| gce_handle("d", zones);
        let named = |place: &str| Some(format!("projects/UNSPECIFIED/{place}/disks/d"));
        assert_eq!(gce(""), named("zones/UNSPECIFIED"));
        assert_eq!(gce("us-east1-b"), named("zones/us-east1-b"));
        assert_eq!(gce("us-east1-b__us-east1-c"), named("regions/us-east1"));
        assert_eq!(gce("us-east1-b__us-west1-a"), None);
        assert_eq!(gce("here__there"), None);
    }
}
