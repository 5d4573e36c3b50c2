//! What filters are told while pods come and go in thought.
//!
//! Upstream works out once per attempt what its filters need (PreFilter), then corrects that for pods that are promised a node or might be
//! evicted, by rules of its own (AddPod, RemovePod; `HostPortInfo` for ports). A [`Trial`] is where these rules are not those by which pods
//! that are really there count.

use super::{Cluster, NodeId, Question};
use crate::class::{PodClassId, Volume};
use crate::intern::Symbol;
use crate::topology::PodPresence;

/// See the module's words.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// InterPodAffinity had nothing to say about the pod, so it is not asked whoever comes.
    skips_affinity: bool,
    /// The names of the pod's claims that are for one pod. Empty where VolumeRestrictions had nothing to say, and hears nothing.
    exclusive: Box<[Symbol]>,
    /// How many of them are taken: a claim once at first, then every volume of that name in whatever namespace.
    taken: i64,
}

impl Trial {
    fn of(question: &Question<'_>) -> Self {
        let class = question.class;
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

    /// Whether some pod has one of the pod's claims.
    pub(crate) fn has_taken_claims(&self) -> bool {
        self.taken > 0
    }

    fn count(&mut self, volumes: &[Volume], sign: i64) {
        for volume in volumes {
            if let Volume::Claim {
                name,
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
    /// Tries pods of a class on a node in thought: `act` takes pods off and puts them on, and leaves the node as it was but for its ports. No
    /// board may be asked meanwhile. Trials nest.
    pub(crate) fn in_thought<T>(
        &mut self,
        class: PodClassId,
        node: NodeId,
        act: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let outermost = self.trial.is_none();
        if outermost {
            self.trial = Some(Trial::of(&self.question(class)));
        }
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

    /// Puts a pod on a node, [in thought](Cluster::in_thought). Spread does not look whether it is on its way out.
    pub(crate) fn try_on(&mut self, class: PodClassId, at: NodeId, terminating: bool) {
        self.take_in(class, at, terminating);
        self.views_count(class, at, 1, PodPresence::Tried);
        if let Some(trial) = &mut self.trial {
            trial.count(&self.classes[class.index()].volumes, 1);
        }
    }

    /// The inverse of [`Cluster::try_on`], but that a port is free then whoever else has it.
    pub(crate) fn take_off(&mut self, class: PodClassId, at: NodeId, terminating: bool) {
        self.views_count(class, at, -1, PodPresence::Tried);
        self.let_go(class, at, terminating);
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
