//! The input of one plan of the engine: pods without a place, nodes in flight, and the pools that can buy.
//!
//! Invariant: the engine's cluster is changed only for the duration of the plan and then rolled back. Nodes that start or
//! leave are shown to the engine in the shape they will have.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use mullion_api::{
    karpenter::{NodeClaim, NodePool},
    labels,
};
use mullion_engine::{
    Cluster, ModelError,
    disrupt::Consolidation,
    model::PodSpec,
    provision::{InFlightNode, NodeTemplate, Plan, PlanRequest, ReservedPolicy},
};

use super::{
    BY_POOL, KarpenterContext, discovered,
    in_flight::{expected_node, is_in_flight, prospect, settled_node},
    market::Market,
    markets::Markets,
    overhead,
    pending::{is_provisionable, is_reschedulable},
    refusal, template,
};
use crate::{ownership, pods, state::convert};

/// The pods of one plan, by the engine's key (`namespace/name`).
pub(super) type PodsByKey = BTreeMap<String, Arc<Pod>>;

/// The input of one plan.
pub(crate) struct Demand {
    /// Pods that need a place.
    pub(super) pods: PodsByKey,
    pub(super) request: PlanRequest,
    /// Nodes that are not ready yet, in the shape that they will have.
    reshaped: Vec<InFlightNode>,
    /// Names of the nodes that are about to leave; their pods are among `pods`.
    leaving: Vec<String>,
    /// The offerings that each node class can buy.
    markets: Markets,
}

/// The result of a plan.
#[derive(Debug)]
pub struct Answer {
    /// The place of each pod, and the nodes to buy.
    pub plan: Plan,
    /// The reason of each unplaceable pod as text, by the pod's key. Pods that wait for reserved capacity have no entry.
    pub refusals: BTreeMap<String, Arc<str>>,
}

impl Demand {
    /// Collects the present demand; `None` if no pod needs a place.
    pub(super) async fn gather(karpenter: &KarpenterContext) -> Option<Self> {
        let waiting = Waiting::now(karpenter);
        if waiting.specs.is_empty() {
            None
        } else {
            Some(Self::of(waiting, karpenter, false).await)
        }
    }

    /// Collects the present demand for disruption, even if no pod needs a place. Offerings that were refused lately are left
    /// out: a node must not be given up in the hope that one of them works again.
    pub(crate) async fn of_all(karpenter: &KarpenterContext) -> Self {
        Self::of(Waiting::now(karpenter), karpenter, true).await
    }

    async fn of(waiting: Waiting, karpenter: &KarpenterContext, is_careful: bool) -> Self {
        let daemons = karpenter.base.informers.daemon_sets.list();
        let mut markets = Markets::now(karpenter).await;
        // A candidate may only be replaced by what is sold for certain, or its pods lose a working
        // node for nothing.
        if is_careful {
            markets = markets.map(Market::without_trials);
        }
        let (in_flight, reshaped) = nodes_to_come(karpenter, &markets, &daemons);
        Self {
            pods: waiting.pods,
            request: PlanRequest {
                pods: waiting.specs,
                in_flight,
                places: BTreeMap::new(),
                templates: templates(karpenter, &markets, &daemons),
                seed: karpenter.options.seed,
                by_cost: buys_by_cost(karpenter),
                effort: None,
                preferences: karpenter.options.settings.preferences,
                min_values: karpenter.options.settings.min_values,
                reserved: if is_careful {
                    ReservedPolicy::FallBack
                } else {
                    ReservedPolicy::Wait
                },
            },
            reshaped,
            leaving: waiting.leaving,
            markets,
        }
    }

    /// Returns the offerings that can be bought.
    pub(crate) fn markets(&self) -> &Markets {
        &self.markets
    }

    /// Returns the same input as a question about consolidation, without candidates and terms, which the caller adds.
    pub(crate) fn into_consolidation(self) -> Consolidation {
        Consolidation {
            market: self.request,
            reshaped: self.reshaped,
            leaving: self.leaving,
            ..Consolidation::default()
        }
    }

    /// Asks the engine for a plan, after dropping the pods that found a place since the demand was collected: those that the
    /// scheduler has assumed or the watch has shown as bound. The others keep the places that they are promised.
    ///
    /// # Errors
    /// Returns an error if a node or pool offers an invalid amount.
    pub(super) fn plan(&mut self, karpenter: &KarpenterContext) -> Result<Answer, ModelError> {
        karpenter.state.with(|state| {
            // Gathering the demand awaits the cloud, and the scheduler goes on binding meanwhile.
            self.forget_placed(state.cluster());
            let places = state.places();
            let places = places.map(|(pod, place)| (pod.to_owned(), node_at(karpenter, place)));
            self.request.places = places.collect();
            // All of this happens under the state's lock, so the scheduler never sees the cluster
            // of a plan.
            let checkpoint = state.cluster_mut().checkpoint();
            // A new plan decides all places anew, so the reservations of the plan before must not
            // take room.
            state.lift_promises();
            let answer = self.plan_in(state.cluster_mut());
            state.cluster_mut().rollback(checkpoint);
            answer
        })
    }

    /// Returns a template for each pool that may buy.
    pub(super) fn templates(&self) -> &[NodeTemplate] {
        &self.request.templates
    }

    fn forget_placed(&mut self, cluster: &Cluster) {
        let leaving = &self.leaving;
        // A pod on a node that leaves is placed in the model, yet it still needs another node.
        let waits = |key: &str| {
            let node = cluster.node_of_pod(key);
            node.is_none_or(|node| leaving.iter().any(|name| name == node))
        };
        self.pods.retain(|key, _| waits(key));
        self.request.pods.retain(|pod| waits(&pod.key()));
    }

    fn plan_in(&self, cluster: &mut Cluster) -> Result<Answer, ModelError> {
        for node in &self.reshaped {
            cluster.set_in_flight(node)?;
        }
        for name in &self.leaving {
            // A node that never reached the model cannot be removed; that is no error.
            let _ = cluster.remove_node(name);
        }
        answer(cluster, &self.request)
    }
}

/// The pods that need a place, and the chunks of CapacityBuffers, which are planned like pods.
struct Waiting {
    pods: PodsByKey,
    specs: Vec<PodSpec>,
    /// Names of the nodes about to leave, whose pods need a place too.
    leaving: Vec<String>,
}

impl Waiting {
    /// Collects the pods that are waiting now.
    fn now(karpenter: &KarpenterContext) -> Self {
        let informers = &karpenter.base.informers;
        let mut wanted = PodsByKey::new();
        let mut specs = Vec::new();
        let mut want = |pod: &Arc<Pod>| {
            let spec = PodSpec {
                // The plan is free to move the pod: a nomination of kube-scheduler or a node that
                // leaves must not bind it.
                node_name: None,
                nominated_node_name: None,
                ..convert::pod(pod)
            };
            wanted.insert(spec.key(), Arc::clone(pod));
            specs.push(spec);
        };
        for pod in informers.pods.by_index(crate::informers::BY_NODE, "") {
            if is_provisionable(&pod) {
                want(&pod);
            }
        }
        for chunk in karpenter.chunks.chunks() {
            want(&chunk);
        }
        let mut leaving = Vec::new();
        let about_to_go = karpenter.disrupting.about_to_go();
        for node in informers.nodes.list() {
            let claim = karpenter.claim_of(&node);
            let claim_goes = |claim: Arc<NodeClaim>| claim.metadata.deletion_timestamp.is_some();
            let Some(name) = &node.metadata.name else {
                continue;
            };
            // The pods are counted before they are evicted, so that their new node is on its way
            // when the old one drains.
            let goes = node.metadata.deletion_timestamp.is_some()
                || claim.is_some_and(claim_goes)
                || about_to_go.contains(name);
            if goes {
                for pod in karpenter.pods_on(name) {
                    if is_reschedulable(&pod) {
                        want(&pod);
                    }
                }
                leaving.push(name.clone());
            }
        }
        Self {
            pods: wanted,
            specs,
            leaving,
        }
    }
}
/// Asks the engine for a plan and renders its refusals as text. The cluster is unchanged when this returns.
///
/// # Errors
/// Returns an error if a node or pool offers an invalid amount.
pub fn answer(cluster: &mut Cluster, request: &PlanRequest) -> Result<Answer, ModelError> {
    let plan = cluster.plan(request)?;
    // A pod that waits for reserved capacity is not refused: Karpenter logs it as deferred and
    // records no event.
    let mut refusals = refusal::texts(
        cluster,
        &plan.unplaceable,
        &plan.daemons,
        &request.templates,
    );
    for pod in plan.unplaceable.iter().filter(|pod| pod.waits()) {
        refusals.remove(&pod.pod);
    }
    Ok(Answer { plan, refusals })
}

/// Returns whether machines are chosen by cost. A cluster whose pools all mirror Provisioners (Karpenter's old API) gets
/// that API's behaviour: pod by pod, the first machine that holds them.
fn buys_by_cost(karpenter: &KarpenterContext) -> bool {
    let is_mirror = |pool: &NodePool| {
        let annotations = pool.metadata.annotations.as_ref();
        annotations.is_some_and(|own| own.contains_key(labels::MIRRORED_FROM))
    };
    let pools = karpenter.pools.list();
    // One pool of the current API is enough for the current behaviour. Without pools nothing is
    // bought either way.
    pools.is_empty() || !pools.iter().all(|pool| is_mirror(pool))
}

/// Returns a template for each pool that may buy.
fn templates(
    karpenter: &KarpenterContext,
    markets: &Markets,
    daemons: &[Arc<DaemonSet>],
) -> Vec<NodeTemplate> {
    let mut templates = Vec::new();
    for pool in karpenter.pools.list() {
        if let (true, Some(market)) = (template::may_buy(&pool), markets.of_pool(&pool)) {
            let name = pool.metadata.name.as_deref().unwrap_or_default();
            let claims = karpenter.claims.by_index(BY_POOL, name);
            let claims = claims.iter().map(|claim| &**claim);
            let daemons = daemons.iter().map(|set| &**set);
            templates.push(template::of(&pool, market, claims, daemons));
        }
    }
    templates
}

/// Returns the claims without a node as in-flight nodes, and the nodes that exist but are not ready for pods in the shape
/// they will have.
fn nodes_to_come(
    karpenter: &KarpenterContext,
    markets: &Markets,
    daemons: &[Arc<DaemonSet>],
) -> (Vec<InFlightNode>, Vec<InFlightNode>) {
    let (mut in_flight, mut reshaped) = (Vec::new(), Vec::new());
    for claim in karpenter.claims.list() {
        if !is_in_flight(&claim) {
            continue;
        }
        let sets = daemons.iter().map(|set| &**set);
        let addresses = karpenter.windows_addresses();
        if let Some(node) = karpenter.node_of(&claim) {
            let node = settled_node(&node, &claim);
            // The pods of DaemonSets that are on the node already are in the cluster's state, so only the others are to come.
            let there = karpenter.pods_on(&node.name);
            let sets = sets.filter(|set| !runs_among(set, &there));
            let pods = overhead::pods_on(sets, &prospect(&claim), &node.name, addresses);
            reshaped.push(InFlightNode { node, pods });
            continue;
        }
        // A launched claim names its resources in its status. Before that, the likeliest machine
        // stands in for it, so that the next plan does not buy the same node again.
        let market = markets.of_claim(&claim);
        let mut node = expected_node(&claim).or_else(|| template::expected_node(&claim, market?));
        if let Some(node) = &mut node {
            discovered::correct(karpenter, &claim, node);
        }
        if let Some(node) = node {
            let pods = overhead::pods_on(sets, &prospect(&claim), &node.name, addresses);
            in_flight.push(InFlightNode { node, pods });
        }
    }
    (in_flight, reshaped)
}

/// Returns the name under which plans know the node at a place: the node's own, or that of its claim until there is a node.
fn node_at(karpenter: &KarpenterContext, place: &str) -> String {
    let claim = karpenter.claims.get("", place);
    let node = claim.and_then(|claim| karpenter.node_of(&claim));
    let name = node.and_then(|node| node.metadata.name.clone());
    name.unwrap_or_else(|| place.to_owned())
}

/// Returns whether one of the pods is a DaemonSet's and has not ended.
fn runs_among(set: &DaemonSet, pods: &[Arc<Pod>]) -> bool {
    let uid = set.metadata.uid.as_deref().unwrap_or_default();
    // Ended pods still have their owner, but the DaemonSet controller replaces them.
    pods.iter()
        .any(|pod| pods::is_active(pod) && ownership::is_controlled_by(&**pod, uid))
}
