//! Decides the pods of one batch while the shared state is locked.
//!
//! Invariant: each decision is assumed in the cluster state before the next pod is decided.

use k8s_openapi::api::core::v1::Pod;
use mullion_engine::{
    Claims, Decision, ModelError, Plugin, PodClassId, Veto, VolumeChoices,
    model::{PodClaims, PodSpec},
    preempt::Preemption,
};
use rustc_hash::FxHashMap;

use super::{
    devices::Decided,
    evictions::Evictions,
    wake::Plugins,
    writer::{ClaimRelease, Nomination, Reserved},
};
use crate::state::{ClusterState, convert};

/// The decision about one pod of a batch.
pub(super) enum Verdict {
    Bind {
        node: String,
        reserved: Reserved,
    },
    /// The pod waits until its claims exist.
    Hold,
    Refuse {
        message: String,
        rejectors: Plugins,
        nominated: Nomination,
        /// Keys of the pods to evict that are not being evicted yet.
        victims: Vec<String>,
        /// The key of a pod whose eviction, already under way, this pod waits for.
        awaited: Option<String>,
        /// What has to be done about the pod's ResourceClaims.
        devices: Option<ClaimRelease>,
    },
    Fail {
        message: String,
    },
}

impl Verdict {
    fn refuse(message: String, rejectors: Plugins, nominated: Nomination) -> Self {
        Self::Refuse {
            message,
            rejectors,
            nominated,
            victims: Vec::new(),
            awaited: None,
            devices: None,
        }
    }
}

/// The answers for pod classes refused since the cluster last changed; further pods of such a class get the same answer
/// without asking the engine.
pub(super) type Refused = FxHashMap<PodClassId, (String, Plugins)>;

/// The state used while one batch is decided.
pub(super) struct Round<'a> {
    pub(super) state: &'a mut ClusterState,
    pub(super) refused: Refused,
    pub(super) evictions: &'a mut Evictions,
}

impl Round<'_> {
    /// Asks the engine about one pod, and assumes its answer in the cluster state.
    pub(super) fn decide(&mut self, pod: &Pod, seed: u64) -> Verdict {
        let mut spec = convert::pod(pod);
        let left = self
            .state
            .extended_claim(&spec.template.namespace, &spec.uid);
        if let Some(left) = left.map(str::to_owned) {
            let claims = spec.template.claims.get_or_insert_with(|| {
                Box::new(PodClaims {
                    pod: spec.name.clone(),
                    uid: spec.uid.clone(),
                    ..PodClaims::default()
                })
            });
            // The claim of an earlier attempt whose deletion is not done yet still holds devices for this
            // pod.
            claims.left = Some(left);
        }
        self.ask(&spec, seed).unwrap_or_else(|error| Verdict::Fail {
            message: error.to_string(),
        })
    }

    fn ask(&mut self, spec: &PodSpec, seed: u64) -> Result<Verdict, ModelError> {
        let Round { state, refused, .. } = self;
        let class = state.cluster_mut().pod_class(&spec.template)?;
        // kube-scheduler's PreEnqueue: the claims are made from templates after the pod, so this is no
        // refusal.
        if spec.template.claims.is_some() && state.cluster_mut().claims_missing(class).is_some() {
            return Ok(Verdict::Hold);
        }
        let key = spec.key();
        // A cached refusal is valid only for a pod without a nominated node and without a place of its own in a plan.
        let promised = state.place_that_takes(&key, class);
        if spec.nominated_node_name.is_none()
            && promised.is_none()
            && !state.has_place(&key)
            && let Some((message, rejectors)) = refused.get(&class)
        {
            let nominated = Nomination::Keep;
            return Ok(Verdict::refuse(message.clone(), *rejectors, nominated));
        }
        let decision = match promised {
            Some(node) => Decision::Node(node),
            None => state.cluster_mut().schedule_pod(spec, seed)?,
        };
        let refusal = match decision {
            Decision::Node(id) => {
                let node = state.cluster().node_name(id).to_owned();
                if let Some(place) = state.place_elsewhere(&key, &node) {
                    let message = waits_for(state.cluster().nodes().count(), place);
                    let rejectors = ARRIVAL.into_iter().collect();
                    return Ok(Verdict::refuse(message, rejectors, Nomination::Keep));
                }
                let namespace = &spec.template.namespace;
                let volumes = if spec.template.volumes.is_empty() {
                    VolumeChoices::default()
                } else {
                    state.reserve_volumes(class, id, namespace)
                };
                let claims = state.cluster().decides_devices(class);
                let devices = claims.then(|| Decided {
                    choices: state.reserve_devices(class, id, namespace, &key),
                    made: None,
                });
                state.assume(spec, &node)?;
                // The cluster changed, so earlier refusals may no longer hold.
                refused.clear();
                let reserved = Reserved {
                    volumes,
                    devices: devices.map(Box::new),
                };
                return Ok(Verdict::Bind { node, reserved });
            }
            Decision::Unschedulable(refusal) => refusal,
        };
        let rejectors: Plugins = refusal.plugins().into_iter().collect();
        let cluster = state.cluster_mut();
        // Errors are retried after a back-off, while refusals wait for an event; preemption cannot mend
        // either.
        if refusal.conflict.is_some_and(Veto::is_error) {
            let message = cluster.message(&refusal);
            return Ok(Verdict::Fail { message });
        }
        let evicting = |uid: &str| self.evictions.contains(uid);
        let preemption = cluster.preempt_while_evicting(class, &key, &refusal, seed, &evicting);
        let message = cluster.message_with_preemption(&refusal, &preemption);
        let claims = cluster.claims_after_preemption(class, &refusal, &preemption);
        let devices = match claims {
            Claims::GivenBack { claim } => {
                Some(ClaimRelease::Deallocate(cluster.text(claim).to_owned()))
            }
            Claims::Deleted { claim } => Some(ClaimRelease::Delete(cluster.text(claim).to_owned())),
            Claims::None | Claims::Kept => None,
        };
        // The earlier victims are still leaving. Evicting others on a second node would kill pods in vain.
        if preemption.waits_for_victims() {
            refused.clear();
            let promised = cluster.nominated_node(&key);
            let awaited =
                promised.and_then(|node| self.evictions.last_evicted_on(cluster.node_name(node)));
            return Ok(Verdict::Refuse {
                message,
                rejectors,
                nominated: Nomination::Keep,
                victims: Vec::new(),
                awaited: awaited.map(str::to_owned),
                devices,
            });
        }
        let nominated = match preemption {
            Preemption::Evict { chosen, .. } => {
                let node = cluster.node_name(chosen.node).to_owned();
                // The room is held from now on, although the API server does not know of it yet.
                cluster.nominate(spec, &node)?;
                refused.clear();
                let mut victims = chosen.victims;
                // Another pod's preemption may have claimed a victim already; it is evicted once.
                victims.retain(|uid| self.evictions.begin(uid, &node));
                let awaited = if victims.is_empty() {
                    self.evictions.last_evicted_on(&node).map(str::to_owned)
                } else {
                    None
                };
                return Ok(Verdict::Refuse {
                    message,
                    rejectors,
                    nominated: Nomination::Set(node),
                    victims,
                    awaited,
                    devices,
                });
            }
            // A pod that is not allowed to preempt keeps its earlier nomination.
            kept if keeps_promise(&kept) => Nomination::Keep,
            _ => {
                state.release_room(&key);
                Nomination::Clear
            }
        };
        // The pod's nominated room was released, so pods of its class may fit now; otherwise they share its
        // refusal.
        if spec.nominated_node_name.is_some() {
            refused.clear();
        } else {
            refused.insert(class, (message.clone(), rejectors));
        }
        Ok(Verdict::Refuse {
            message,
            rejectors,
            nominated,
            victims: Vec::new(),
            awaited: None,
            devices,
        })
    }
}

/// The plugins that can refuse a new node before it is ready or before other pods of the plan run on it. A pod that waits
/// for its planned node is retried when their answers may have changed.
const ARRIVAL: [Plugin; 5] = [
    Plugin::NodeResourcesFit,
    Plugin::TaintToleration,
    Plugin::NodeUnschedulable,
    Plugin::PodTopologySpread,
    Plugin::InterPodAffinity,
];

/// Returns the message for a pod that is not bound to a feasible node because that node was bought for other pods.
fn waits_for(nodes: usize, place: &str) -> String {
    format!(
        "0/{nodes} nodes are available: the pod has a place on nodeclaim/{place}, and the nodes that would take it were bought for other pods."
    )
}

/// Returns whether a pod that cannot preempt now keeps its earlier nominated node.
fn keeps_promise(preemption: &Preemption) -> bool {
    !matches!(preemption.inner(), Preemption::NotHelpful(_))
}
