//! Decides which changes of storage objects may help a refused pod: the queueing hints of kube-scheduler's volume
//! plugins.
//!
//! One function per plugin (VolumeBinding, VolumeZone, VolumeRestrictions, NodeVolumeLimits) implements its hints;
//! [`super::wake`] calls them.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass},
};
use kube::{Resource, ResourceExt};
use mullion_engine::{Plugin, model::PodVolume};

use super::wake::{Event, Plugins};
use crate::{Change, Context, Informer, state::volumes};

/// A change of a storage object; `old` is the previous version, `None` for a new object.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum StorageEvent {
    /// A claim appeared or changed.
    Claim(Arc<PersistentVolumeClaim>),
    /// A volume appeared or changed.
    Volume {
        old: Option<Arc<PersistentVolume>>,
        new: Arc<PersistentVolume>,
    },
    /// A StorageClass appeared or changed.
    Class {
        old: Option<Arc<StorageClass>>,
        new: Arc<StorageClass>,
    },
    /// A CSINode appeared or changed.
    CsiNode {
        old: Option<Arc<CSINode>>,
        new: Arc<CSINode>,
    },
    /// A CSIDriver changed.
    CsiDriver {
        old: Arc<CSIDriver>,
        new: Arc<CSIDriver>,
    },
    /// A CSIStorageCapacity appeared or changed.
    Capacity {
        old: Option<Arc<CSIStorageCapacity>>,
        new: Arc<CSIStorageCapacity>,
    },
    /// A VolumeAttachment was deleted.
    Detached,
}

/// Reports every change of a storage object that may concern a plugin.
pub(super) fn watch(
    context: &Context,
    report: impl Fn(StorageEvent) + Clone + Send + Sync + 'static,
) {
    fn each<K>(
        informer: &Informer<K>,
        report: impl Fn(StorageEvent) + Send + Sync + 'static,
        event: impl Fn(Option<Arc<K>>, Arc<K>) -> Option<StorageEvent> + Send + Sync + 'static,
    ) where
        K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
    {
        informer.on_change(move |change| {
            let event = match change {
                Change::Deleted(_) => None,
                Change::Added(new) => event(None, Arc::clone(new)),
                Change::Updated { old, new } => event(Some(Arc::clone(old)), Arc::clone(new)),
            };
            event.into_iter().for_each(&report);
        });
    }
    let informers = &context.informers;
    each(&informers.claims, report.clone(), |_, new| {
        Some(StorageEvent::Claim(new))
    });
    each(&informers.volumes, report.clone(), |old, new| {
        Some(StorageEvent::Volume { old, new })
    });
    each(&informers.storage_classes, report.clone(), |old, new| {
        Some(StorageEvent::Class { old, new })
    });
    each(&informers.csi_nodes, report.clone(), |old, new| {
        Some(StorageEvent::CsiNode { old, new })
    });
    each(&informers.csi_drivers, report.clone(), |old, new| {
        Some(StorageEvent::CsiDriver { old: old?, new })
    });
    each(&informers.storage_capacities, report.clone(), |old, new| {
        Some(StorageEvent::Capacity { old, new })
    });
    informers.volume_attachments.on_change(move |change| {
        if change.is_deleted() {
            report(StorageEvent::Detached);
        }
    });
}

/// The plugins with hints for storage objects.
pub(super) const PLUGINS: [Plugin; 4] = [
    Plugin::VolumeBinding,
    Plugin::VolumeZone,
    Plugin::VolumeRestrictions,
    Plugin::NodeVolumeLimits,
];

/// Returns whether the event may help a pod that `rejectors` refused.
pub(super) fn wakes(pod: &Pod, rejectors: Plugins, event: &StorageEvent) -> bool {
    type Hint = fn(&Pod, &StorageEvent) -> bool;
    let plugins: [(Plugin, Hint); 4] = [
        (Plugin::VolumeBinding, binding),
        (Plugin::VolumeZone, zone),
        (
            Plugin::VolumeRestrictions,
            |pod, event| matches!(event, StorageEvent::Claim(claim) if names(pod, claim)),
        ),
        (Plugin::NodeVolumeLimits, limits),
    ];
    let mut asked = plugins
        .into_iter()
        .filter(|(plugin, _)| rejectors.contains(*plugin));
    asked.any(|(_, hint)| hint(pod, event))
}

fn binding(pod: &Pod, event: &StorageEvent) -> bool {
    match event {
        StorageEvent::Claim(claim) => names(pod, claim),
        StorageEvent::Volume { .. } => true,
        StorageEvent::Class { old, new } => old
            .as_ref()
            .is_none_or(|old| old.allowed_topologies != new.allowed_topologies),
        StorageEvent::CsiNode { old, new } => {
            const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
            let migrated = |node: &CSINode| node.annotations().get(MIGRATED).cloned();
            old.as_ref()
                .is_none_or(|old| migrated(old) != migrated(new))
        }
        // A driver that stops to report capacity is assumed to have enough, so the pod may be scheduled now.
        StorageEvent::CsiDriver { old, new } => {
            let has_capacity = |driver: &CSIDriver| driver.spec.storage_capacity == Some(true);
            has_capacity(old) && !has_capacity(new)
        }
        StorageEvent::Capacity { old, new } => {
            old.as_ref().is_none_or(|old| largest(new) > largest(old))
        }
        StorageEvent::Detached => false,
    }
}

fn zone(pod: &Pod, event: &StorageEvent) -> bool {
    match event {
        StorageEvent::Claim(claim) => names(pod, claim),
        StorageEvent::Volume { old, new } => {
            const PLACES: [&str; 4] = [
                "failure-domain.beta.kubernetes.io/zone",
                "failure-domain.beta.kubernetes.io/region",
                "topology.kubernetes.io/zone",
                "topology.kubernetes.io/region",
            ];
            let places =
                |volume: &PersistentVolume| PLACES.map(|place| volume.labels().get(place).cloned());
            old.as_ref().is_none_or(|old| places(old) != places(new))
        }
        // Only such a class lets a claim without a volume pass the zone check; other changes of a class are
        // immutable.
        StorageEvent::Class { old: None, new } => {
            new.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
        }
        _ => false,
    }
}

fn limits(pod: &Pod, event: &StorageEvent) -> bool {
    match event {
        StorageEvent::Claim(claim) => names(pod, claim),
        StorageEvent::CsiNode { old, new } => old.as_ref().is_none_or(|old| {
            let count = |node: &CSINode, driver: &str| {
                let mut drivers = node.spec.drivers.iter();
                let driver = drivers.find(|own| own.name == driver)?;
                driver.allocatable.as_ref()?.count
            };
            let mut drivers = new.spec.drivers.iter();
            drivers.any(|driver| count(new, &driver.name) > count(old, &driver.name))
        }),
        StorageEvent::Detached => true,
        _ => false,
    }
}

/// Returns whether the deletion of another pod frees a volume that only one pod may use (VolumeRestrictions).
pub(super) fn volume_freed(pod: &Pod, event: &Event) -> bool {
    let Event::PodDeleted(other) = event else {
        return false;
    };
    let freed = mounted(other);
    let same_namespace = other.metadata.namespace == pod.metadata.namespace;
    mounted(pod).iter().any(|volume| match volume {
        PodVolume::Disk(_) => freed.iter().any(|own| matches!(own, PodVolume::Disk(_))),
        claim => same_namespace && freed.contains(claim),
    })
}

/// Returns whether the deletion of another pod reduces the number of attached volumes (NodeVolumeLimits).
pub(super) fn place_freed(_: &Pod, event: &Event) -> bool {
    matches!(event, Event::PodDeleted(other) if !mounted(other).is_empty())
}

fn names(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    claim.metadata.namespace == pod.metadata.namespace
        && mounted(pod).iter().any(|volume| match volume {
            PodVolume::Claim { claim } | PodVolume::Ephemeral { claim, .. } => claim == name,
            PodVolume::Disk(_) => false,
        })
}

fn mounted(pod: &Pod) -> Vec<PodVolume> {
    let meta = &pod.metadata;
    let (name, uid) = (meta.name.as_deref(), meta.uid.as_deref());
    let spec = pod.spec.as_ref();
    spec.map(|spec| volumes::of_pod(name.unwrap_or_default(), uid.unwrap_or_default(), spec))
        .unwrap_or_default()
}

/// Returns the size in bytes of the largest volume that can be provisioned.
fn largest(capacity: &CSIStorageCapacity) -> Option<i64> {
    let largest = capacity
        .maximum_volume_size
        .as_ref()
        .or(capacity.capacity.as_ref())?;
    Some(crate::state::requests::amount("storage", largest))
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn of<K: DeserializeOwned>(object: Value) -> Arc<K> {
        Arc::new(serde_json::from_value(object).expect("an object"))
    }

    fn mounting(claim: &str) -> Arc<Pod> {
        of(json!({
            "metadata": { "name": "p", "namespace": "ns" },
            "spec": { "containers": [], "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }] },
        }))
    }

    fn refused_by(plugin: Plugin) -> Plugins {
        [plugin].into_iter().collect()
    }

    #[test]
    fn a_pod_waits_for_its_own_claim_and_for_any_volume() {
        let claim = |namespace: &str, name: &str| {
            StorageEvent::Claim(of(
                json!({ "metadata": { "name": name, "namespace": namespace } }),
            ))
        };
        let binding = refused_by(Plugin::VolumeBinding);
        assert!(wakes(&mounting("data"), binding, &claim("ns", "data")));
        assert!(!wakes(&mounting("data"), binding, &claim("ns", "other")));
        assert!(!wakes(
            &mounting("data"),
            binding,
            &claim("elsewhere", "data")
        ));
        let new = of(json!({ "metadata": { "name": "pv" } }));
        let volume = StorageEvent::Volume { old: None, new };
        assert!(wakes(&mounting("data"), binding, &volume));
        let fit = refused_by(Plugin::NodeResourcesFit);
        assert!(!wakes(&mounting("data"), fit, &volume));
    }

    #[test]
    fn a_node_that_may_attach_more_helps_a_pod_that_the_limit_refused() {
        let node = |count: i32| {
            let driver = json!({ "name": "ebs.csi.aws.com", "nodeID": "i", "allocatable": { "count": count } });
            of::<CSINode>(json!({ "metadata": { "name": "n" }, "spec": { "drivers": [driver] } }))
        };
        let change = |old, new| StorageEvent::CsiNode {
            old: Some(node(old)),
            new: node(new),
        };
        let limits = refused_by(Plugin::NodeVolumeLimits);
        assert!(wakes(&mounting("data"), limits, &change(25, 26)));
        assert!(!wakes(&mounting("data"), limits, &change(26, 25)));
    }

    #[test]
    fn a_pod_waits_for_the_end_of_the_one_that_has_its_volume() {
        let gone = |claim: &str| Event::PodDeleted(mounting(claim));
        assert!(volume_freed(&mounting("data"), &gone("data")));
        assert!(!volume_freed(&mounting("data"), &gone("other")));
        assert!(place_freed(&mounting("data"), &gone("other")));
        let plain = of(json!({ "metadata": { "name": "q" }, "spec": { "containers": [] } }));
        assert!(!place_freed(&mounting("data"), &Event::PodDeleted(plain)));
    }
}
