//! What the claims of a pod mean before any node is looked at (upstream's PreEnqueue and PreFilter).
//!
//! Invariant: a plan depends on the objects about devices and the class only, so it holds while [`Devices::version`] does.

use super::{Devices, Key, Standing};
use crate::class::{ClaimedDevices, PodClass};
use crate::intern::{Interner, Symbol};

/// See the module's words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Why no node needs to be looked at.
    pub(crate) conflict: Option<ClaimConflict>,
    /// In the pod's order.
    pub(crate) claims: Vec<PlannedClaim>,
    /// What stands for extended resources.
    pub(crate) extended: Standing,
}

/// A claim of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedClaim {
    pub(crate) key: Key,
    pub(crate) allocated: bool,
    /// Nobody else has reserved it, so it may be given other devices.
    pub(crate) idle: bool,
}

/// What is wrong with a pod's claims, whatever the node. Names are of the pod's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimConflict {
    /// A claim that is made from a template is not there yet.
    NotCreated {
        /// Of the pod.
        namespace: Symbol,
        /// The pod.
        pod: Symbol,
    },
    /// A claim is not there.
    NotFound {
        /// Of pod and claim.
        namespace: Symbol,
        /// The claim.
        claim: Symbol,
    },
    /// A claim is on its way out.
    Deleting {
        /// The claim.
        claim: Symbol,
    },
    /// A claim that should have been made from a template was made for something else.
    NotOwned {
        /// Of pod and claim.
        namespace: Symbol,
        /// The claim.
        claim: Symbol,
        /// The pod.
        pod: Symbol,
    },
    /// Devices for it have been found for another pod, and that is being written.
    Pending {
        /// Of pod and claim.
        namespace: Symbol,
        /// The claim.
        claim: Symbol,
    },
    /// A request asks for devices of a class that is not there.
    NoClass {
        /// The request, or `request/subrequest`.
        request: Symbol,
        /// The class.
        class: Symbol,
    },
    /// A request, a class or a pool is not as it should be: trying ends with an error, which says why.
    Failed {
        /// The error's text.
        why: Symbol,
    },
}

impl ClaimConflict {
    /// Whether pods do not come before the scheduler until it is gone.
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
    /// The plan for a class whose pod claims devices, or asks for resources that classes stand for.
    pub(crate) fn of(pod: &PodClass, devices: &mut Devices, names: &mut Interner) -> Self {
        let mut plan = Plan::default();
        if let Some(claimed) = &pod.devices {
            plan.conflict = plan.gather(claimed, pod.namespace, devices);
        }
        plan.extended = Standing::of(pod, devices, names);
        if plan.conflict.is_none() {
            plan.conflict = plan.wait(pod.namespace, devices, names);
        }
        if plan.conflict.is_none() {
            let expressions = plan.expressions(devices);
            if !devices.judge_all(&expressions, names) {
                let why = "the claims have more selectors than can be tried on all devices";
                let why = names.intern(why);
                plan.conflict = Some(ClaimConflict::Failed { why });
            }
        }
        plan
    }

    /// Looks the claims up.
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
            // Two entries may name one claim.
            if self.claims.iter().any(|own| own.key == key) {
                continue;
            }
            self.claims.push(PlannedClaim {
                key,
                allocated: found.allocation.is_some(),
                idle: found.reserved_for.iter().all(|uid| *uid == claimed.uid),
            });
        }
        None
    }

    /// Whether something must come first.
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
            if own.allocated {
                continue;
            }
            for request in &claim.requests {
                let mut alternatives = request.alternatives.iter();
                let missing = alternatives.find(|own| devices.class(own.class).is_none());
                if let Some(missing) = missing {
                    let request = match request.is_list {
                        true => names.intern(&format!("{}/{}", request.name, missing.name)),
                        false => names.intern(&request.name),
                    };
                    let class = missing.class;
                    return Some(ClaimConflict::NoClass { request, class });
                }
            }
        }
        None
    }

    /// All expressions that a search for the claims without devices may come by.
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

    /// Whether devices have to be found for a request that has alternatives.
    pub(crate) fn has_choice(&self, devices: &Devices) -> bool {
        let mut wanting = self.claims.iter().filter(|own| !own.allocated);
        wanting.any(|own| {
            let claim = devices.claim(own.key);
            claim.is_some_and(|claim| claim.requests.iter().any(|request| request.is_list))
        })
    }

    /// Whether devices have to be found for a claim that is there.
    pub(crate) fn wants_devices(&self) -> bool {
        self.claims.iter().any(|own| !own.allocated)
    }
}
