//! The volumes of a pod, compiled: claims by name and disks by what makes two of them the same.
//!
//! What the names stand for changes while the class does not: see [`crate::storage`].

use crate::intern::{Interner, Symbol};
use crate::model::{self, PodVolume};

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Volume {
    /// A claim, in the pod's namespace.
    Claim {
        name: Symbol,
        /// Of an ephemeral volume the pod it must have been made for.
        made_for: Option<Maker>,
    },
    /// A disk named in the pod.
    Disk { disk: Disk, attach: Option<Attach> },
}

/// The pod that an ephemeral volume's claim is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maker {
    pub(crate) pod: Symbol,
    pub(crate) uid: Symbol,
}

/// A disk that pods on one node may not share, or not for writing.
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
    /// Of a kind that may be shared.
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
            model::Disk::AzureDisk { .. }
            | model::Disk::Cinder { .. }
            | model::Disk::Vsphere
            | model::Disk::Portworx { .. } => Disk::Shared,
        }
    }

    /// Whether two pods that use these disks cannot be on one node.
    pub(crate) fn clashes(&self, other: &Disk) -> bool {
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
                let meet = a.iter().any(|monitor| b.contains(monitor));
                meet && own_pool == pool && own_image == image && !(*x && *y)
            }
            _ => false,
        }
    }
}

/// A volume as a node's driver counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attach {
    pub(crate) driver: Symbol,
    pub(crate) handle: Handle,
    /// The in-tree plugin that the driver stands in for; it counts only where the node says that it does.
    pub(crate) plugin: Option<Symbol>,
}

/// What is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Handle {
    /// A volume by the driver's name for it.
    Volume(Symbol),
    /// The volume a claim will have, by namespace and name.
    Claim(Symbol, Symbol),
}

/// In-tree plugins with the drivers that stand in for them.
const MIGRATED: [(&str, &str); 5] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
];

/// In-tree plugins whose drivers do not count volumes.
const UNCOUNTED: [&str; 2] = ["kubernetes.io/vsphere-volume", "kubernetes.io/azure-file"];

impl Attach {
    /// How a disk of an in-tree plugin is counted, if at all; `zones` are those of its volume.
    pub(crate) fn of_disk(
        disk: &model::Disk,
        zones: &[&str],
        names: &mut Interner,
    ) -> Option<Self> {
        let (plugin, handle) = match disk {
            model::Disk::AwsElasticBlockStore { id } => {
                let id = if id.starts_with("aws://") {
                    id.rsplit('/').next().unwrap_or(id)
                } else {
                    id
                };
                (0, id.to_owned())
            }
            model::Disk::GcePersistentDisk { name, .. } => (1, gce_handle(name, zones)),
            model::Disk::AzureDisk { uri } => (2, uri.clone()),
            model::Disk::Cinder { id } => (3, id.clone()),
            model::Disk::Portworx { id } => (4, id.clone()),
            model::Disk::Iscsi { .. } | model::Disk::Rbd { .. } | model::Disk::Vsphere => {
                return None;
            }
        };
        let (plugin, driver) = MIGRATED[plugin];
        Some(Attach {
            driver: names.intern(driver),
            handle: Handle::Volume(names.intern(&handle)),
            plugin: Some(names.intern(plugin)),
        })
    }

    /// The driver that provisions for a class, with the plugin it stands in for.
    pub(crate) fn of_provisioner(
        provisioner: &str,
        names: &mut Interner,
    ) -> Option<(Symbol, Option<Symbol>)> {
        if provisioner.is_empty() || UNCOUNTED.contains(&provisioner) {
            return None;
        }
        let migrated = MIGRATED.iter().find(|(plugin, _)| *plugin == provisioner);
        Some(match migrated {
            Some((plugin, driver)) => (names.intern(driver), Some(names.intern(plugin))),
            None => (names.intern(provisioner), None),
        })
    }
}

/// What the CSI driver calls a Google disk.
fn gce_handle(name: &str, zones: &[&str]) -> String {
    match zones {
        [] => format!("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/{name}"),
        [zone] => format!("projects/UNSPECIFIED/zones/{zone}/disks/{name}"),
        [zone, ..] => {
            let region = zone.rsplit_once('-').map_or(*zone, |(region, _)| region);
            format!("projects/UNSPECIFIED/regions/{region}/disks/{name}")
        }
    }
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
                made_for: Some(Maker {
                    pod: names.intern(pod),
                    uid: names.intern(uid),
                }),
            },
            PodVolume::Disk(disk) => Volume::Disk {
                disk: Disk::compile(disk, names),
                attach: Attach::of_disk(disk, &[], names),
            },
        }
    }
}
