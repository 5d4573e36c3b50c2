//! Checks the storage objects for the pods of one class before any node is examined (kube-scheduler: PreFilter of the
//! volume plugins).
//!
//! Invariant: a plan depends only on the storage objects and the class, so it is valid for one [`Storage::version`].

use super::{Key, Migration, PLACES, Storage, ZoneDemand};
use crate::class::{PodClass, Volume as PodVolume};
use crate::intern::{Interner, Symbol};
use crate::model::{AccessMode, Quantity};
use crate::reason::{Conflict, Plugin};
use crate::selector::{LabelQuery, NodeTerm, Requirement};

/// The claims of a class, resolved for one version of the storage objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Why no node has to be examined, by the plugin that reports it, in the order of the plugins.
    pub(crate) conflicts: Vec<(Plugin, Conflict)>,
    /// Claims with ReadWriteOncePod.
    pub(crate) exclusive: Vec<Key>,
    pub(crate) bound: Vec<Bound>,
    /// Claims without a volume, in the pod's order.
    pub(crate) unbound: Vec<Unbound>,
    pub(crate) zones: Vec<ZoneDemand>,
    /// A claim that does not exist, so the volumes on a node cannot be counted.
    pub(crate) uncounted: Option<Symbol>,
    /// The node labels that decide which nodes reach the volumes, sorted; `None` if other facts decide too.
    pub(crate) keys: Option<Box<[Symbol]>>,
}

/// The volume of a bound claim.
#[derive(Clone, Debug)]
pub(crate) enum Bound {
    /// The volume does not exist.
    Missing,
    /// The volume can be reached from nodes that match one of these terms (`None`: from all). The migration applies on
    /// nodes where a CSI driver has replaced the in-tree plugin.
    To(Option<Vec<NodeTerm>>, Option<Migration>),
}

/// A claim that is bound after the pod's node is chosen (WaitForFirstConsumer).
#[derive(Clone, Debug)]
pub(crate) struct Unbound {
    /// The claim's name, in the pod's namespace.
    pub(crate) claim: Symbol,
    /// The node for which the volume is being provisioned already.
    pub(crate) selected_node: Option<Symbol>,
    pub(crate) request: Quantity,
    /// Volumes reserved for the claim. If there are any, only the first counts.
    pub(crate) set_aside: Vec<Candidate>,
    /// Available volumes that match, the smallest first.
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) provision: Provision,
}

/// A volume that a claim could be bound to.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) name: Symbol,
    pub(crate) terms: Option<Vec<NodeTerm>>,
}

/// How a new volume would be provisioned.
#[derive(Clone, Debug)]
pub(crate) struct Provision {
    /// Whether the class has a provisioner.
    pub(crate) possible: bool,
    /// The allowed topologies; `None` for all nodes.
    pub(crate) topologies: Option<Vec<Vec<Requirement>>>,
    /// Nodes with enough storage capacity; `None` if the driver does not report capacity.
    pub(crate) room: Option<Vec<LabelQuery>>,
}

impl Plan {
    pub(crate) fn of(pod: &PodClass, storage: &Storage, names: &Interner) -> Self {
        let mut plan = Plan::default();
        let conflicts = [
            (Plugin::VolumeRestrictions, plan.restrict(pod, storage)),
            (Plugin::VolumeBinding, plan.bind(pod, storage, names)),
            (Plugin::VolumeZone, plan.locate(pod, storage)),
        ];
        plan.conflicts = conflicts
            .into_iter()
            .filter_map(|(plugin, conflict)| Some((plugin, conflict?)))
            .collect();
        // Told apart from the conflicts, because NodeVolumeLimits finds it node by node.
        let mut named = claims(pod).map(|(key, _)| key);
        let missing = named.find(|key| storage.claim(*key).is_none());
        plan.uncounted = missing.map(|(_, name)| name);
        plan.keys = plan.deciding_labels();
        plan
    }

    fn deciding_labels(&self) -> Option<Box<[Symbol]>> {
        // A selected node, storage capacity and migration depend on more than the labels of nodes.
        let plain =
            |claim: &Unbound| claim.selected_node.is_none() && claim.provision.room.is_none();
        let is_migrated = |bound: &Bound| matches!(bound, Bound::To(_, Some(_)));
        if !self.unbound.iter().all(plain) || self.bound.iter().any(is_migrated) {
            return None;
        }
        let bound = self.bound.iter().filter_map(|bound| match bound {
            Bound::Missing => None,
            Bound::To(terms, _) => terms.as_ref(),
        });
        let open = self.unbound.iter().flat_map(|claim| {
            let candidates = claim.set_aside.iter().chain(&claim.candidates);
            candidates.filter_map(|own| own.terms.as_ref())
        });
        let terms = bound.chain(open).flatten();
        let topologies = self.unbound.iter();
        let topologies = topologies.filter_map(|claim| claim.provision.topologies.as_ref());
        let demands = terms
            .flat_map(|term| term.demands())
            .chain(topologies.flatten().flatten());
        let mut keys: Vec<_> = demands.map(Requirement::key).collect();
        if !self.zones.is_empty() {
            keys.extend(PLACES.map(|(key, _)| key));
        }
        keys.sort_unstable();
        keys.dedup();
        // Boards never group nodes by hostname, so volumes that are local to a node are decided node by node.
        (!keys.contains(&Symbol::HOSTNAME)).then(|| keys.into())
    }

    /// Implements VolumeRestrictions' PreFilter of kube-scheduler, which ignores ephemeral volumes.
    fn restrict(&mut self, pod: &PodClass, storage: &Storage) -> Option<Conflict> {
        for (key, _) in claims(pod).filter(|(_, made_for)| made_for.is_none()) {
            let Some(claim) = storage.claim(key) else {
                return Some(Conflict::ClaimNotFound { claim: key.1 });
            };
            if claim.access_modes.contains(&AccessMode::ReadWriteOncePod) {
                self.exclusive.push(key);
            }
        }
        None
    }

    /// Implements VolumeBinding's PreFilter of kube-scheduler.
    fn bind(&mut self, pod: &PodClass, storage: &Storage, names: &Interner) -> Option<Conflict> {
        // All claims are checked before any is sorted into bound and unbound, as kube-scheduler does.
        for (key, made_for) in claims(pod) {
            let name = key.1;
            let Some(claim) = storage.claim(key) else {
                return Some(match made_for {
                    None => Conflict::ClaimNotFound { claim: name },
                    Some(_) => Conflict::EphemeralClaimMissing { claim: name },
                });
            };
            if claim.lost {
                return Some(Conflict::ClaimLost {
                    claim: name,
                    volume: claim.volume,
                });
            }
            if claim.deleting {
                return Some(Conflict::ClaimDeleting { claim: name });
            }
            if let Some(maker) = made_for
                && claim.owner != Some(maker.uid)
            {
                return Some(Conflict::EphemeralClaimNotOwned {
                    namespace: key.0,
                    claim: name,
                    pod: maker.pod,
                });
            }
        }
        let mut immediate = false;
        for (key, _) in claims(pod) {
            let Some(claim) = storage.claim(key) else {
                continue;
            };
            let waits = storage.class(claim.class).is_some_and(|class| class.waits);
            if claim.bound {
                self.bound.push(match storage.volume(claim.volume) {
                    None => Bound::Missing,
                    Some(volume) => Bound::To(volume.terms.clone(), volume.migration.clone()),
                });
            } else if waits && claim.volume == Symbol::EMPTY {
                self.unbound.push(Unbound::of(key, storage, names)?);
            } else {
                immediate = true;
            }
        }
        // Only reported once the other claims are known, so that a conflict of theirs comes first.
        immediate.then_some(Conflict::UnboundImmediate)
    }

    /// Implements VolumeZone's PreFilter of kube-scheduler, which ignores ephemeral volumes.
    fn locate(&mut self, pod: &PodClass, storage: &Storage) -> Option<Conflict> {
        for (key, _) in claims(pod).filter(|(_, made_for)| made_for.is_none()) {
            let Some(claim) = storage.claim(key) else {
                return Some(Conflict::ClaimNotFound { claim: key.1 });
            };
            if claim.volume != Symbol::EMPTY {
                let Some(volume) = storage.volume(claim.volume) else {
                    return Some(Conflict::VolumeNotFound {
                        volume: claim.volume,
                    });
                };
                self.zones.extend(volume.zones.iter().cloned());
                continue;
            }
            if claim.class == Symbol::EMPTY {
                return Some(Conflict::NoVolumeNorClass);
            }
            match storage.class(claim.class) {
                None => return Some(Conflict::ClassNotFound { class: claim.class }),
                Some(class) if !class.waits => return Some(Conflict::NoVolumeName),
                Some(_) => {}
            }
        }
        None
    }
}

/// Returns the claims of a pod; those of ephemeral volumes with the pod that owns them.
fn claims(
    pod: &PodClass,
) -> impl Iterator<Item = (Key, Option<crate::class::EphemeralOwner>)> + '_ {
    pod.volumes.iter().filter_map(|volume| match volume {
        PodVolume::Claim { name, made_for } => Some(((pod.namespace, *name), *made_for)),
        PodVolume::Disk { .. } => None,
    })
}

impl Unbound {
    /// Implements kube-scheduler's `FindMatchingVolume`, except for the checks that need a node.
    fn of(key: Key, storage: &Storage, names: &Interner) -> Option<Self> {
        let claim = storage.claim(key)?;
        let request = claim.request.unwrap_or_default();
        let (mut set_aside, mut candidates) = (Vec::new(), Vec::new());
        // A class of its own for each claim would match nothing, so volumes are looked up by class.
        for (name, volume) in storage.volumes_of(claim.class) {
            let for_it = volume.is_for(key, claim.uid);
            let taken = volume.claim.is_some() && !for_it;
            if taken || volume.deleting || volume.capacity < request || volume.block != claim.block
            {
                continue;
            }
            let candidate = Candidate {
                name,
                terms: volume.terms.clone(),
            };
            // A volume that is reserved for the claim is taken regardless of its labels and access modes.
            if for_it {
                set_aside.push((Quantity::default(), candidate));
                continue;
            }
            let selected = claim
                .selector
                .as_ref()
                .is_none_or(|selector| selector.matches(&volume.labels, names));
            let mut modes = claim.access_modes.iter();
            if volume.available
                && selected
                && volume.attributes_class == claim.attributes_class
                && modes.all(|mode| volume.access_modes.contains(mode))
            {
                candidates.push((volume.capacity, candidate));
            }
        }
        // By size, then by name, so that the choice does not depend on the order in which volumes arrived.
        let sorted = |mut list: Vec<(Quantity, Candidate)>| -> Vec<Candidate> {
            list.sort_by(|a, b| (a.0, names.text(a.1.name)).cmp(&(b.0, names.text(b.1.name))));
            list.into_iter().map(|own| own.1).collect()
        };
        Some(Unbound {
            claim: key.1,
            selected_node: claim.selected_node,
            request,
            set_aside: sorted(set_aside),
            candidates: sorted(candidates),
            provision: Provision::of(key, storage)?,
        })
    }
}

impl Provision {
    /// Implements kube-scheduler's `checkVolumeProvisions` and `hasEnoughCapacity`, except for the checks that need a
    /// node.
    fn of(key: Key, storage: &Storage) -> Option<Self> {
        let claim = storage.claim(key)?;
        let class = storage.class(claim.class)?;
        let publishes_capacity = storage.drivers.get(&class.provisioner) == Some(&true);
        // A claim without a request needs no capacity.
        let room = claim.request.filter(|_| publishes_capacity).map(|request| {
            let capacities = storage.capacities.values();
            let enough = capacities.filter(|capacity| {
                // Whole units, because kube-scheduler compares `Value()`.
                let largest = capacity.largest.map(Quantity::value);
                capacity.class == claim.class && largest.is_some_and(|own| own >= request.value())
            });
            enough.map(|capacity| capacity.nodes.clone()).collect()
        });
        Some(Provision {
            possible: class.provisions,
            topologies: class.topologies.clone(),
            room,
        })
    }
}
