//! One [`ClusterState`] for several controllers, fed by the shared informers.
//!
//! Informer handlers must not wait, so they only put changes into a channel; whoever takes the state first works them
//! off. What a controller sees is therefore as new as the informers are at that moment. Whoever is idle should
//! [`SharedState::catch_up`] now and then, or changes would pile up while nobody asks.

use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{Namespace, Node, Pod, Service},
    policy::v1::PodDisruptionBudget,
};
use mullion_engine::{Options, Profile};
use tokio::sync::mpsc;

use super::{ClusterState, convert};
use crate::{Change, Context, Informers};

/// A shared, self-updating cluster state. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SharedState {
    informers: Arc<Informers>,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    state: ClusterState,
    deltas: mpsc::UnboundedReceiver<Delta>,
}

/// A change that has not reached the model yet; `true` says that the object is gone.
#[derive(Debug)]
enum Delta {
    Node(Arc<Node>, bool),
    Pod(Arc<Pod>, bool),
    Namespace(Arc<Namespace>, bool),
    Service(Arc<Service>, bool),
    ReplicaSet(Arc<ReplicaSet>, bool),
    Pdb(Arc<PodDisruptionBudget>, bool),
}

impl SharedState {
    /// A state over the informers of `context`.
    pub fn new(context: &Context, options: Options) -> Self {
        Self::with_profiles(context, options, &[])
    }

    /// A state over the informers of `context` whose pods are decided by these profiles; by the default one if there
    /// are none.
    pub fn with_profiles(context: &Context, options: Options, profiles: &[Profile]) -> Self {
        let (sender, deltas) = mpsc::unbounded_channel();
        let informers = &context.informers;
        // A send fails only after the state is dropped, when nobody asks any more.
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
        informers.pod_disruption_budgets.on_change(move |change| {
            let _ = sender.send(Delta::Pdb(Arc::clone(change.object()), change.is_deleted()));
        });
        Self {
            informers: Arc::clone(informers),
            inner: Arc::new(Mutex::new(Inner {
                state: ClusterState::with_profiles(options, profiles),
                deltas,
            })),
        }
    }

    /// Waits until the first complete picture of everything the state rests on has arrived; `false` on shutdown.
    pub async fn synced(&self) -> bool {
        let informers = &self.informers;
        informers.nodes.synced().await
            && informers.pods.synced().await
            && informers.namespaces.synced().await
            && informers.services.synced().await
            && informers.replica_sets.synced().await
            && informers.pod_disruption_budgets.synced().await
    }

    /// Works off what the informers have reported.
    pub fn catch_up(&self) {
        self.with(|_| ());
    }

    /// Brings the state up to date and lends it to `work`. Keep `work` short: others wait for it.
    pub fn with<R>(&self, work: impl FnOnce(&mut ClusterState) -> R) -> R {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.catch_up();
        work(&mut inner.state)
    }
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
            }
        }
    }
}

/// Whether a pod's change can matter to placement: most updates only report how its containers are.
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
