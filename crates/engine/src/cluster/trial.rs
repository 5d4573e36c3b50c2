//! Trials: counts that follow kube-scheduler's rules for pods that are added to a node and removed from it hypothetically.
//!
//! kube-scheduler computes the state of its filters once per attempt (PreFilter). For nominated pods and possible victims it then corrects
//! that state by rules (AddPod, RemovePod; `HostPortInfo` for ports) which differ from those by which existing pods count. A [`Trial`] has
//! the state for which the two differ.

use super::{Cluster, NodeId, Question};
use crate::class::{PodClassId, Volume};
use crate::intern::Symbol;
use crate::topology::PodPresence;

/// The state of a trial for one pod.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// Whether the InterPodAffinity filter is skipped: PreFilter found no terms, so kube-scheduler does not run the filter, whichever pods
    /// are added later.
    skips_affinity: bool,
    /// The names of the pod's claims that only one pod may use. Empty if VolumeRestrictions is skipped, because then added and removed pods
    /// do not change its state either.
    exclusive: Box<[Symbol]>,
    /// How many of these claims are in use. At first each claim counts once; afterwards each volume with that claim name counts, in any
    /// namespace, as in kube-scheduler.
    taken: i64,
}

impl Trial {
    fn of(question: &Question<'_>) -> Self {
        let class = question.class;
        // Decided once, before any pod is added or removed (kube-scheduler: PreFilter's Skip).
        let skips_affinity = class.affinity.is_empty()
            && class.anti_affinity.is_empty()
            && question.view.existing_anti.is_empty();
        let claims = question
            .volumes
            .into_iter()
            .flat_map(|plan| &plan.exclusive);
        let mut claims: Vec<_> = claims.copied().collect();
        claims.sort_unstable();
        claims.dedup();
        let storage = question.cluster.storage();
        let taken = claims.iter().filter(|key| storage.is_used(**key)).count() as i64;
        let has_disks = class
            .volumes
            .iter()
            .any(|volume| matches!(volume, Volume::Disk { .. }));
        // kube-scheduler's VolumeRestrictions skips the pod in this case, so corrections do not count either.
        if taken == 0 && !has_disks {
            claims.clear();
        }
        Trial {
            skips_affinity,
            exclusive: claims.into_iter().map(|(_, name)| name).collect(),
            taken,
        }
    }

    pub(crate) fn skips_affinity(&self) -> bool {
        self.skips_affinity
    }

    /// Returns whether another pod uses one of the pod's exclusive claims.
    pub(crate) fn has_taken_claims(&self) -> bool {
        self.taken > 0
    }

    fn count(&mut self, volumes: &[Volume], sign: i64) {
        for volume in volumes {
            if let Volume::Claim {
                name,
                // Only claims that the pod names: kube-scheduler's corrections do not look at ephemeral volumes.
                made_for: None,
            } = volume
                && self.exclusive.contains(name)
            {
                self.taken += sign;
            }
        }
    }
}

impl Cluster {
    /// Runs `act` as a trial for a pod of a class on a node. `act` may remove pods from the node and add them, and must restore all but the
    /// ports, which are restored here. Boards must not be asked during a trial. Trials may be nested.
    pub(crate) fn with_trial<T>(
        &mut self,
        class: PodClassId,
        node: NodeId,
        act: impl FnOnce(&mut Self) -> T,
    ) -> T {
        // The inner trial of a nested one keeps the state of the attempt, as kube-scheduler's CycleState is cloned
        // and not made anew.
        let outermost = self.trial.is_none();
        if outermost {
            self.trial = Some(Trial::of(&self.question(class)));
        }
        // Freed ports do not come back by adding the pods again, because a port is freed for all its holders.
        let ports = self.at(node).ports.clone();
        let said = act(self);
        if let Some(node) = &mut self.nodes[node.index()] {
            node.ports = ports;
        }
        if outermost {
            self.trial = None;
        }
        said
    }

    pub(crate) fn trial(&self) -> Option<&Trial> {
        self.trial.as_ref()
    }

    /// Adds a pod to a node in a [trial](Cluster::with_trial). Spread constraints count the pod even if it is terminating.
    pub(crate) fn try_on(&mut self, class: PodClassId, at: NodeId, terminating: bool) {
        self.take_in(class, at, terminating);
        self.views_count(class, at, 1, PodPresence::Tried);
        if let Some(trial) = &mut self.trial {
            trial.count(&self.classes[class.index()].volumes, 1);
        }
    }

    /// Removes a pod from a node in a trial. Its ports become free even if another pod has them too, as in kube-scheduler's `HostPortInfo`.
    pub(crate) fn take_off(&mut self, class: PodClassId, at: NodeId, terminating: bool) {
        self.views_count(class, at, -1, PodPresence::Tried);
        self.release_room(class, at, terminating);
        let class = &self.classes[class.index()];
        if let Some(node) = &mut self.nodes[at.index()] {
            let freed = &class.shape.host_ports;
            node.ports.retain(|(port, _)| !freed.contains(port));
        }
        if let Some(trial) = &mut self.trial {
            trial.count(&class.volumes, -1);
        }
    }
}
