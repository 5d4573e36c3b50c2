//! What is decided about the pods of one batch, while the shared state is held.
//!
//! Invariant: whatever was decided is assumed before the next pod is asked about.

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
    writer::{Nomination, Relief, Reserved},
};
use crate::state::{ClusterState, convert};

/// What was decided about one pod of a batch.
pub(super) enum Verdict {
    Bind {
        node: String,
        reserved: Reserved,
    },
    /// It is not tried before its claims are there.
    Hold,
    Refuse {
        message: String,
        rejectors: Plugins,
        nominated: Nomination,
        /// Keys of the pods to evict that nobody evicts yet.
        victims: Vec<String>,
        /// The key of a pod that is being evicted already and that the pod waits for.
        awaited: Option<String>,
        /// What is done about its claims of devices.
        devices: Option<Relief>,
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

/// Pod classes that were refused since the cluster last changed: their other pods get the same answer unasked.
pub(super) type Refused = FxHashMap<PodClassId, (String, Plugins)>;

/// What is known while a batch of pods is decided.
pub(super) struct Round<'a> {
    pub(super) state: &'a mut ClusterState,
    pub(super) refused: Refused,
    pub(super) evictions: &'a mut Evictions,
}

impl Round<'_> {
    /// Asks the engine about one pod and assumes what it answers.
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
            claims.left = Some(left);
        }
        self.ask(&spec, seed).unwrap_or_else(|error| Verdict::Fail {
            message: error.to_string(),
        })
    }

    fn ask(&mut self, spec: &PodSpec, seed: u64) -> Result<Verdict, ModelError> {
        let Round { state, refused, .. } = self;
        let class = state.cluster_mut().pod_class(&spec.template)?;
        if spec.template.claims.is_some() && state.cluster_mut().claims_missing(class).is_some() {
            return Ok(Verdict::Hold);
        }
        let key = spec.key();
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
                let volumes = match spec.template.volumes.is_empty() {
                    true => VolumeChoices::default(),
                    false => state.reserve_volumes(class, id, namespace),
                };
                let claims = state.cluster().decides_devices(class);
                let devices = claims.then(|| Decided {
                    choices: state.reserve_devices(class, id, namespace, &key),
                    made: None,
                });
                state.assume(spec, &node)?;
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
        if refusal.conflict.is_some_and(Veto::is_error) {
            let message = cluster.message(&refusal);
            return Ok(Verdict::Fail { message });
        }
        let evicting = |uid: &str| self.evictions.contains(uid);
        let preemption = cluster.preempt_while_evicting(class, &key, &refusal, seed, &evicting);
        let message = cluster.message_with_preemption(&refusal, &preemption);
        let claims = cluster.claims_after_preemption(class, &refusal, &preemption);
        let devices = match claims {
            Claims::GivenBack { claim } => Some(Relief::Deallocate(cluster.text(claim).to_owned())),
            Claims::Deleted { claim } => Some(Relief::Delete(cluster.text(claim).to_owned())),
            Claims::None | Claims::Kept => None,
        };
        if preemption.waits_for_victims() {
            refused.clear();
            let promised = cluster.nominated_node(&key);
            let awaited = promised.and_then(|node| self.evictions.last_on(cluster.node_name(node)));
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
                // The room is held from now on, not only when the API server has been told.
                cluster.nominate(spec, &node)?;
                refused.clear();
                let mut victims = chosen.victims;
                victims.retain(|uid| self.evictions.begin(uid, &node));
                let awaited = match victims.is_empty() {
                    true => self.evictions.last_on(&node).map(str::to_owned),
                    false => None,
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
            // Whoever may not evict keeps what it was promised.
            kept if keeps_promise(&kept) => Nomination::Keep,
            _ => {
                state.release_room(&key);
                Nomination::Clear
            }
        };
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

/// Who refuses a node until it takes pods, or until others of the plan are there: a pod that waits for one is tried again when they may have changed
/// their minds.
const ARRIVAL: [Plugin; 5] = [
    Plugin::NodeResourcesFit,
    Plugin::TaintToleration,
    Plugin::NodeUnschedulable,
    Plugin::PodTopologySpread,
    Plugin::InterPodAffinity,
];

/// Why a pod is not bound although a node takes it: that one was bought for others.
fn waits_for(nodes: usize, place: &str) -> String {
    format!(
        "0/{nodes} nodes are available: the pod has a place on nodeclaim/{place}, and the nodes that would take it were bought for other pods."
    )
}

/// Whether a pod that could not make room now keeps the node it was promised before.
fn keeps_promise(preemption: &Preemption) -> bool {
    !matches!(preemption.inner(), Preemption::NotHelpful(_))
}
