//! A [`ClusterState`] that several controllers share, updated from the shared informers.
//!
//! Informer handlers must not block, so they only send changes into a channel; the next user of the state applies
//! them. So the state is as new as the informers when it is used. An idle controller should call
//! [`SharedState::catch_up`] now and then, because otherwise changes accumulate in the channel.

use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service},
    policy::v1::PodDisruptionBudget,
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment},
};
use mullion_engine::{Options, Profile, model::WorkloadSpec};
use tokio::{sync::mpsc, time::Instant};

use super::{ClusterState, PlaceChange, convert};
use crate::{Change, Clock, Context, Informer, Informers};

/// A shared cluster state that updates itself on use. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SharedState {
    informers: Arc<Informers>,
    inner: Arc<Mutex<Inner>>,
    changes: mpsc::UnboundedSender<Delta>,
}

#[derive(Debug)]
struct Inner {
    state: ClusterState,
    deltas: mpsc::UnboundedReceiver<Delta>,
    clock: Clock,
}

/// A change that is not applied to the model yet; `true` means that the object was deleted.
#[derive(Debug)]
enum Delta {
    Node(Arc<Node>, bool),
    Pod(Arc<Pod>, bool),
    Namespace(Arc<Namespace>, bool),
    Service(Arc<Service>, bool),
    ReplicaSet(Arc<ReplicaSet>, bool),
    Pdb(Arc<PodDisruptionBudget>, bool),
    Workload(Box<WorkloadSpec>, bool),
    Claim(Arc<PersistentVolumeClaim>, bool),
    Volume(Arc<PersistentVolume>, bool),
    StorageClass(Arc<StorageClass>, bool),
    CsiNode(Arc<CSINode>, bool),
    CsiDriver(Arc<CSIDriver>, bool),
    StorageCapacity(Arc<CSIStorageCapacity>, bool),
    VolumeAttachment(Arc<VolumeAttachment>, bool),
    ResourceClaim(Arc<ResourceClaim>, bool),
    DeviceClass(Arc<DeviceClass>, bool),
    ResourceSlice(Arc<ResourceSlice>, bool),
    Place(PlaceChange),
}

impl SharedState {
    /// Creates a state from the informers of `context`, with the default profile.
    pub fn new(context: &Context, options: Options) -> Self {
        Self::with_profiles(context, options, &[])
    }

    /// Creates a state from the informers of `context` with these profiles; with the default one if there are none.
    pub fn with_profiles(context: &Context, options: Options, profiles: &[Profile]) -> Self {
        let (sender, deltas) = mpsc::unbounded_channel();
        let informers = &context.informers;
        // A send fails only after the state is dropped; then the change is not needed.
        let tx = sender.clone();
        informers.nodes.on_change(move |change| {
            let _ = tx.send(Delta::Node(
                Arc::clone(change.object()),
                change.is_deleted(),
            ));
        });
        let tx = sender.clone();
        informers.pods.on_change(move |change| {
            if matters(change) {
                let _ = tx.send(Delta::Pod(Arc::clone(change.object()), change.is_deleted()));
            }
        });
        let tx = sender.clone();
        informers.namespaces.on_change(move |change| {
            let _ = tx.send(Delta::Namespace(
                Arc::clone(change.object()),
                change.is_deleted(),
            ));
        });
        let tx = sender.clone();
        informers.services.on_change(move |change| {
            let _ = tx.send(Delta::Service(
                Arc::clone(change.object()),
                change.is_deleted(),
            ));
        });
        let tx = sender.clone();
        // The generation changes with the spec only. Status updates, by far the most, do not affect how pods
        // are spread.
        informers.replica_sets.on_change(move |change| {
            let generation = |set: &ReplicaSet| set.metadata.generation;
            let same = change
                .previous()
                .is_some_and(|old| generation(old) == generation(change.object()));
            if !same || generation(change.object()).is_none() {
                let _ = tx.send(Delta::ReplicaSet(
                    Arc::clone(change.object()),
                    change.is_deleted(),
                ));
            }
        });
        spread_by(&informers.stateful_sets, &sender, convert::stateful_set);
        spread_by(
            &informers.replication_controllers,
            &sender,
            convert::replication_controller,
        );
        forward(&informers.claims, &sender, Delta::Claim);
        forward(&informers.volumes, &sender, Delta::Volume);
        forward(&informers.storage_classes, &sender, Delta::StorageClass);
        forward(&informers.csi_nodes, &sender, Delta::CsiNode);
        forward(&informers.csi_drivers, &sender, Delta::CsiDriver);
        forward(
            &informers.storage_capacities,
            &sender,
            Delta::StorageCapacity,
        );
        forward(
            &informers.volume_attachments,
            &sender,
            Delta::VolumeAttachment,
        );
        forward(&informers.resource_claims, &sender, Delta::ResourceClaim);
        forward(&informers.device_classes, &sender, Delta::DeviceClass);
        forward(&informers.resource_slices, &sender, Delta::ResourceSlice);
        let tx = sender.clone();
        informers.pod_disruption_budgets.on_change(move |change| {
            let _ = tx.send(Delta::Pdb(Arc::clone(change.object()), change.is_deleted()));
        });
        Self {
            informers: Arc::clone(informers),
            changes: sender,
            inner: Arc::new(Mutex::new(Inner {
                state: ClusterState::with_profiles(options, profiles),
                deltas,
                clock: context.clock.clone(),
            })),
        }
    }

    /// Waits until all informers of the state have listed; returns `false` on shutdown.
    pub async fn synced(&self) -> bool {
        let informers = &self.informers;
        informers.nodes.synced().await
            && informers.pods.synced().await
            && informers.namespaces.synced().await
            && informers.services.synced().await
            && informers.replica_sets.synced().await
            && informers.pod_disruption_budgets.synced().await
            && informers.stateful_sets.synced().await
            && informers.replication_controllers.synced().await
            && informers.claims.synced().await
            && informers.volumes.synced().await
            && informers.storage_classes.synced().await
            && informers.csi_nodes.synced().await
            && informers.csi_drivers.synced().await
            && informers.storage_capacities.synced().await
            && informers.volume_attachments.synced().await
            && informers.resource_claims.synced().await
            && informers.device_classes.synced().await
            && informers.resource_slices.synced().await
    }

    /// Queues a change of a place that pods were promised; the next user applies it.
    pub fn queue_place_change(&self, change: PlaceChange) {
        // A send fails only after the state is dropped; then the change is not needed.
        let _ = self.changes.send(Delta::Place(change));
    }

    /// Applies the changes that the informers have queued.
    pub fn catch_up(&self) {
        self.with(|_| ());
    }

    /// Applies queued changes, then runs `work` on the state under its lock. Keep `work` short, because others wait
    /// for the lock.
    pub fn with<R>(&self, work: impl FnOnce(&mut ClusterState) -> R) -> R {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the same lock as the work, so that nothing decides with changes of which others have already
        // made use.
        inner.catch_up();
        work(&mut inner.state)
    }
}

/// Queues every change of a kind.
fn forward<K>(
    informer: &Informer<K>,
    sender: &mpsc::UnboundedSender<Delta>,
    delta: fn(Arc<K>, bool) -> Delta,
) where
    K: kube::Resource
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + Sync
        + 'static,
{
    let sender = sender.clone();
    informer.on_change(move |change| {
        // A send fails only after the state is dropped; then the change is not needed.
        let _ = sender.send(delta(Arc::clone(change.object()), change.is_deleted()));
    });
}

/// Queues changes of a workload's spec; most other changes only report the status of its pods.
fn spread_by<K>(
    informer: &Informer<K>,
    sender: &mpsc::UnboundedSender<Delta>,
    convert: fn(&K) -> WorkloadSpec,
) where
    K: kube::Resource
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + Sync
        + 'static,
{
    let sender = sender.clone();
    informer.on_change(move |change| {
        let generation = |set: &K| set.meta().generation;
        let object = change.object();
        let same = change
            .previous()
            .is_some_and(|old| generation(old) == generation(object));
        if !same || generation(object).is_none() {
            let workload = Box::new(convert(object));
            // A send fails only after the state is dropped; then the change is not needed.
            let _ = sender.send(Delta::Workload(workload, change.is_deleted()));
        }
    });
}

impl Inner {
    fn catch_up(&mut self) {
        let state = &mut self.state;
        while let Ok(delta) = self.deltas.try_recv() {
            match delta {
                Delta::Node(node, false) => state.set_node(&node),
                Delta::Node(node, true) => state.remove_node(&node),
                Delta::Pod(pod, false) => state.set_pod(&pod),
                Delta::Pod(pod, true) => state.remove_pod(&pod),
                Delta::Namespace(namespace, false) => state.set_namespace(&namespace),
                Delta::Namespace(namespace, true) => state.remove_namespace(&namespace),
                Delta::Service(service, false) => state.set_service(&service),
                Delta::Service(service, true) => state.remove_service(&service),
                Delta::ReplicaSet(set, false) => state.set_replica_set(&set),
                Delta::ReplicaSet(set, true) => state.remove_replica_set(&set),
                Delta::Pdb(pdb, false) => state.set_pdb(&pdb),
                Delta::Pdb(pdb, true) => state.remove_pdb(&pdb),
                Delta::Workload(workload, false) => state.set_workload(&workload),
                Delta::Workload(workload, true) => state.remove_workload(&workload),
                Delta::Claim(claim, false) => state.set_claim(&claim),
                Delta::Claim(claim, true) => state.remove_claim(&claim),
                Delta::Volume(volume, false) => state.set_volume(&volume),
                Delta::Volume(volume, true) => state.remove_volume(&volume),
                Delta::StorageClass(class, false) => state.set_storage_class(&class),
                Delta::StorageClass(class, true) => state.remove_storage_class(&class),
                Delta::CsiNode(node, false) => state.set_csi_node(&node),
                Delta::CsiNode(node, true) => state.remove_csi_node(&node),
                Delta::CsiDriver(driver, false) => state.set_csi_driver(&driver),
                Delta::CsiDriver(driver, true) => state.remove_csi_driver(&driver),
                Delta::StorageCapacity(room, false) => state.set_storage_capacity(&room),
                Delta::StorageCapacity(room, true) => state.remove_storage_capacity(&room),
                Delta::VolumeAttachment(one, false) => state.set_volume_attachment(&one),
                Delta::VolumeAttachment(one, true) => state.remove_volume_attachment(&one),
                Delta::ResourceClaim(claim, false) => {
                    state.set_resource_claim(&claim, self.clock.now());
                }
                Delta::ResourceClaim(claim, true) => state.remove_resource_claim(&claim),
                Delta::DeviceClass(class, false) => state.set_device_class(&class),
                Delta::DeviceClass(class, true) => state.remove_device_class(&class),
                Delta::ResourceSlice(slice, false) => state.set_resource_slice(&slice),
                Delta::ResourceSlice(slice, true) => state.remove_resource_slice(&slice),
                Delta::Place(change) => state.change_place(&change, Instant::now()),
            }
        }
        // After the changes, because one of them may have made a node ready and so set the end of its
        // promises.
        state.end_promises(Instant::now());
    }
}

/// Returns whether a pod's change can matter to placement; most updates only report the status of containers.
fn matters(change: &Change<'_, Pod>) -> bool {
    let Change::Updated { old, new } = change else {
        return true;
    };
    let nominated = |pod: &Pod| {
        pod.status
            .as_ref()
            .and_then(|status| status.nominated_node_name.clone())
    };
    let started = |pod: &Pod| {
        pod.status
            .as_ref()
            .and_then(|status| status.start_time.clone())
    };
    old.metadata.generation != new.metadata.generation
        || new.metadata.generation.is_none()
        || old.metadata.labels != new.metadata.labels
        || old.metadata.owner_references != new.metadata.owner_references
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || convert::node_name(old) != convert::node_name(new)
        || convert::is_finished(old) != convert::is_finished(new)
        || nominated(old) != nominated(new)
        || started(old) != started(new)
}
