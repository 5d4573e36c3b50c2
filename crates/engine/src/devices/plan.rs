//! Checks the ResourceClaims of a pod before any node is examined (kube-scheduler: DynamicResources' PreEnqueue and
//! PreFilter).
//!
//! Invariant: a plan depends only on the device objects and the class, so it is valid for one [`Devices::version`].

use super::{Devices, ExtendedResources, Key};
use crate::class::{ClaimedDevices, PodClass};
use crate::intern::{Interner, Symbol};

/// The claims of a class, resolved for one version of the device objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Why no node has to be examined; `None` if nodes have to be.
    pub(crate) conflict: Option<ClaimConflict>,
    /// The claims in the pod's order.
    pub(crate) claims: Vec<PlannedClaim>,
    /// The extended resources that DeviceClasses provide.
    pub(crate) extended: ExtendedResources,
}

/// One claim of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedClaim {
    pub(crate) key: Key,
    pub(crate) allocated: bool,
    /// Whether no other pod has reserved it, so that it may be deallocated.
    pub(crate) idle: bool,
}

/// Why the claims of a pod cannot be satisfied on any node. Names are in the pod's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimConflict {
    /// A claim from a template is not created yet.
    NotCreated {
        /// The pod's namespace.
        namespace: Symbol,
        /// The pod's name.
        pod: Symbol,
    },
    /// A claim does not exist.
    NotFound {
        /// The namespace of pod and claim.
        namespace: Symbol,
        /// The claim.
        claim: Symbol,
    },
    /// A claim is being deleted.
    Deleting {
        /// The claim.
        claim: Symbol,
    },
    /// The claim that should come from a template has another owner.
    NotOwned {
        /// The namespace of pod and claim.
        namespace: Symbol,
        /// The claim.
        claim: Symbol,
        /// The pod's name.
        pod: Symbol,
    },
    /// An allocation for another pod is decided and being written.
    Pending {
        /// The namespace of pod and claim.
        namespace: Symbol,
        /// The claim.
        claim: Symbol,
    },
    /// A request names a DeviceClass that does not exist.
    NoClass {
        /// The request, or `request/subrequest`.
        request: Symbol,
        /// The class.
        class: Symbol,
    },
    /// A request, class or pool is invalid, so the scheduling attempt ends with an error.
    Failed {
        /// The error's text.
        why: Symbol,
    },
}

impl ClaimConflict {
    /// Returns whether pods with this conflict are kept out of the active queue (PreEnqueue).
    pub(crate) fn is_early(self) -> bool {
        match self {
            ClaimConflict::NotCreated { .. }
            | ClaimConflict::NotFound { .. }
            | ClaimConflict::Deleting { .. }
            | ClaimConflict::NotOwned { .. } => true,
            ClaimConflict::Pending { .. }
            | ClaimConflict::NoClass { .. }
            | ClaimConflict::Failed { .. } => false,
        }
    }
}

impl Plan {
    /// Creates the plan of a class with ResourceClaims, or with extended resources that DeviceClasses provide.
    pub(crate) fn of(pod: &PodClass, devices: &mut Devices, names: &mut Interner) -> Self {
        let mut plan = Plan::default();
        if let Some(claimed) = &pod.devices {
            plan.conflict = plan.gather(claimed, pod.namespace, devices);
        }
        plan.extended = ExtendedResources::of(pod, devices, names);
        // In kube-scheduler's order: what PreEnqueue finds comes before what PreFilter finds.
        if plan.conflict.is_none() {
            plan.conflict = plan.wait(pod.namespace, devices, names);
        }
        if plan.conflict.is_none() {
            // Evaluated once for all devices here, because the search itself only reads and may run for every node.
            let expressions = plan.expressions(devices);
            if !devices.judge_all(&expressions, names) {
                let why = "the claims have more selectors than can be tried on all devices";
                let why = names.intern(why);
                plan.conflict = Some(ClaimConflict::Failed { why });
            }
        }
        plan
    }

    /// Looks up the claims.
    fn gather(
        &mut self,
        claimed: &ClaimedDevices,
        namespace: Symbol,
        devices: &Devices,
    ) -> Option<ClaimConflict> {
        let pod = claimed.pod;
        for own in &claimed.claims {
            let Some(claim) = own.claim else {
                return Some(ClaimConflict::NotCreated { namespace, pod });
            };
            let key = (namespace, claim);
            let Some(found) = devices.claim(key) else {
                return Some(ClaimConflict::NotFound { namespace, claim });
            };
            if found.deleting {
                return Some(ClaimConflict::Deleting { claim });
            }
            if own.generated && found.owner != Some(claimed.uid) {
                return Some(ClaimConflict::NotOwned {
                    namespace,
                    claim,
                    pod,
                });
            }
            // Two entries may refer to the same claim.
            if self.claims.iter().any(|own| own.key == key) {
                continue;
            }
            self.claims.push(PlannedClaim {
                key,
                allocated: found.allocation.is_some(),
                // Reservations by the pod itself, left by an earlier attempt, do not keep the claim.
                idle: found.reserved_for.iter().all(|uid| *uid == claimed.uid),
            });
        }
        None
    }

    /// Returns the conflict of a claim that has to wait: for another allocation, or for a DeviceClass.
    fn wait(
        &self,
        namespace: Symbol,
        devices: &Devices,
        names: &mut Interner,
    ) -> Option<ClaimConflict> {
        for own in &self.claims {
            let claim = devices.claim(own.key)?;
            if claim.pending {
                return Some(ClaimConflict::Pending {
                    namespace,
                    claim: own.key.1,
                });
            }
            // An allocated claim needs its class no more.
            if own.allocated {
                continue;
            }
            for request in &claim.requests {
                let mut alternatives = request.alternatives.iter();
                let missing = alternatives.find(|own| devices.class(own.class).is_none());
                if let Some(missing) = missing {
                    let request = if request.is_list {
                        names.intern(&format!("{}/{}", request.name, missing.name))
                    } else {
                        names.intern(&request.name)
                    };
                    let class = missing.class;
                    return Some(ClaimConflict::NoClass { request, class });
                }
            }
        }
        None
    }

    /// Returns all CEL expressions that a search for devices may evaluate.
    fn expressions(&self, devices: &Devices) -> Vec<Symbol> {
        let wanting = self.claims.iter().filter(|own| !own.allocated);
        let claims = wanting.filter_map(|own| devices.claim(own.key));
        let alternatives = claims.flat_map(|claim| &claim.requests);
        let alternatives = alternatives.flat_map(|request| &request.alternatives);
        let standing = self.extended.classes(devices);
        let mut expressions: Vec<Symbol> = alternatives
            .flat_map(|own| {
                let class = devices.class(own.class);
                let of_class = class.into_iter().flat_map(|class| class.selectors.iter());
                of_class.chain(own.selectors.iter()).copied()
            })
            .chain(standing.flat_map(|class| class.selectors.iter().copied()))
            .collect();
        expressions.sort_unstable();
        expressions.dedup();
        expressions
    }

    /// Returns whether a claim without an allocation has a request with alternatives.
    pub(crate) fn has_choice(&self, devices: &Devices) -> bool {
        let mut wanting = self.claims.iter().filter(|own| !own.allocated);
        wanting.any(|own| {
            let claim = devices.claim(own.key);
            claim.is_some_and(|claim| claim.requests.iter().any(|request| request.is_list))
        })
    }

    /// Returns whether any claim has no allocation.
    pub(crate) fn wants_devices(&self) -> bool {
        self.claims.iter().any(|own| !own.allocated)
    }
}
