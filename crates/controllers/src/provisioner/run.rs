//! The provisioner's loop: waits for a batch of pods, asks the engine for a plan, and creates NodeClaims for its nodes.
//!
//! Invariant: an order is a NodeClaim and nothing else, so after a crash the next process finds it as a node in flight.
//! While pods wait, a new plan is made every ten seconds, so nothing depends on seeing every event.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use mullion_api::karpenter::{NodeClaim, node_claim_condition};
use mullion_engine::{model::PodSpec, provision::PlannedNode};
use rustc_hash::FxHashMap;
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::{
    KarpenterContext,
    decision_log::{Reconciliation, abbreviated},
    demand::{Answer, Demand, PodsByKey},
    displaced,
    in_flight::is_in_flight,
    metrics::Metric,
    order::{self, PROVISIONED},
    pending::{avoids_pools, is_provisionable},
    pools,
    traced::PlanSpans,
    trials::Trials,
    wake,
};
use crate::{
    buffers,
    kubelet::pace::go_duration,
    pods,
    state::{PlaceChange, PlannedPlace, Promise},
};

const CONTROLLER: &str = "provisioner";
/// How often a new plan is made while pods wait.
const RETRY: Duration = Duration::from_secs(10);
/// How soon a new plan is made after orders were held back, to see whether offerings on trial were sold.
const TRIAL: Duration = Duration::from_secs(1);
/// The same event about a pod is recorded at most this often.
const REPEAT: Duration = Duration::from_secs(300);
/// The same event about a pool is recorded at most this often.
const REPEAT_TO_POOL: Duration = Duration::from_secs(60);
/// The maximum number of pods named in a log line.
const SHOWN: usize = 5;

/// Returns what a plan's order is called as long as it has no claim. No claim can have a name with a space.
fn place_of_order(number: usize) -> String {
    format!("order {number}")
}

/// Starts the loop and the watches that wake it.
pub(super) fn start(karpenter: &KarpenterContext) {
    wake::watch(karpenter);
    let provisioner = Provisioner {
        karpenter: karpenter.clone(),
        recorded: FxHashMap::default(),
        recorded_for_pools: FxHashMap::default(),
        places: FxHashMap::default(),
        holds_back: false,
    };
    let shutdown = karpenter.base.shutdown.clone();
    karpenter.base.tasks.spawn(async move {
        shutdown.run_until_cancelled(provisioner.run()).await;
    });
}

struct Provisioner {
    karpenter: KarpenterContext,
    /// The last event (a place or a refusal) about each waiting pod, and when it was recorded.
    recorded: FxHashMap<String, (String, Instant)>,
    /// When the last event about missing instance types was recorded for each pool.
    recorded_for_pools: FxHashMap<String, Instant>,
    /// The claim or node where the last plan places each waiting pod.
    places: FxHashMap<String, String>,
    /// Whether nodes of the last plan were not ordered because another launch tries their offerings first, or pods wait for
    /// reserved capacity that nodes hold until they are launched.
    holds_back: bool,
}

impl Provisioner {
    async fn run(mut self) {
        if !self.karpenter.synced().await {
            return;
        }
        let mut waiting = false;
        loop {
            // After a timeout a new plan is made, unless the node of every pod is on its way.
            let patience = if self.holds_back { TRIAL } else { RETRY };
            let batcher = &self.karpenter.batcher;
            let is_open = !waiting || timeout(patience, batcher.opened()).await.is_ok();
            // An open batch is waited for; otherwise a plan would be made for its first pods alone.
            if is_open {
                batcher.wait().await;
            }
            if is_open || !self.all_placed() {
                waiting = self.provision().await;
            }
        }
    }

    /// Returns whether every pod that needs a node has one in flight, so that a new plan would not differ.
    fn all_placed(&self) -> bool {
        let informers = &self.karpenter.base.informers;
        let on_its_way = |place: &String| {
            let claim = self.karpenter.claim_at(place);
            claim.is_some_and(|claim| is_in_flight(&claim))
        };
        let pending = informers.pods.by_index(crate::informers::BY_NODE, "");
        let pending = pending.iter().filter(|pod| is_provisionable(pod));
        let mut pending = pending.peekable();
        pending.peek().is_some()
            && pending.all(|pod| {
                let place = self.places.get(&pod.uid().unwrap_or_default());
                place.is_some_and(on_its_way)
            })
    }

    /// Makes one plan and orders its nodes. Returns whether pods need nodes.
    async fn provision(&mut self) -> bool {
        let start = self.karpenter.base.clock.now();
        // Cleared before anything can fail: a plan that is not finished must not keep the shorter
        // wait of the plan before.
        self.holds_back = false;
        let Some(mut demand) = Demand::gather(&self.karpenter).await else {
            // Without waiting pods all that the last plan left must go, or metrics and buffers keep
            // showing it.
            self.count_unschedulable(0);
            self.karpenter.metrics.set(Metric::IgnoredPods, &[], 0.0);
            self.recorded.clear();
            self.places.clear();
            self.karpenter.chunks.host_on(BTreeSet::new());
            buffers::write_placements(&self.karpenter, &BTreeMap::new()).await;
            return false;
        };
        let pass = self.karpenter.log.reconciliation(CONTROLLER);
        let any_pool = pools::log_unready(&self.karpenter.pools.list(), &pass);
        self.record_pools_without_types(&demand, &pass);
        let began = self.karpenter.base.clock.now();
        let planned = demand.plan(&self.karpenter);
        let ended = self.karpenter.base.clock.now();
        let took = ended.duration_since(began);
        let labels = [("controller", CONTROLLER)];
        self.karpenter
            .metrics
            .observe(Metric::Scheduling, &labels, took.as_secs_f64());
        let answer = match planned {
            Ok(answer) => answer,
            Err(error) => {
                pass.error("scheduling pods", &error);
                return true;
            }
        };
        let traces = &self.karpenter.base.traces;
        let spans = PlanSpans::of(traces, &answer.plan, demand.pods.len(), (began, ended));
        // Orders are chosen before anything is recorded, since the log counts only the nodes that
        // are ordered now.
        let mut trials = Trials::new(&self.karpenter, demand.markets());
        let planned = answer.plan.nodes.iter();
        let orders: Vec<&PlannedNode> = planned.filter(|node| trials.may_order(node)).collect();
        let deferred: Vec<&String> = answer
            .plan
            .unplaceable
            .iter()
            .filter(|pod| pod.waits())
            .map(|pod| &pod.pod)
            .collect();
        self.holds_back = orders.len() < answer.plan.nodes.len() || !deferred.is_empty();
        if !deferred.is_empty() {
            let deferred = deferred.into_iter().filter_map(|key| demand.pods.get(key));
            pass.clone()
                .with("Pods", abbreviated(&names(deferred), SHOWN))
                .debug("deferring scheduling decision for provisionable pod(s) to future simulation due to limited reserved offering capacity");
        }
        if !orders.is_empty() {
            let duration = self.karpenter.base.clock.now().duration_since(start);
            pass.clone()
                .with("Pods", abbreviated(&names(demand.pods.values()), SHOWN))
                .with("duration", go_duration(duration))
                .info("found provisionable pod(s)");
            let planned: usize = orders.iter().map(|node| node.pods.len()).sum();
            pass.clone()
                .with("nodeclaims", orders.len())
                .with("pods", planned)
                .info("computed new nodeclaim(s) to fit pod(s)");
            let nodes: BTreeSet<_> = answer.plan.existing.iter().map(|(_, node)| node).collect();
            if !nodes.is_empty() {
                pass.clone()
                    .with("nodes", nodes.len())
                    .with("pods", answer.plan.existing.len())
                    .info("computed unready node(s) will fit pod(s)");
            }
        }
        // A pod that got a place and waits again later is news, so only pods of this plan stay
        // remembered.
        self.recorded.retain(|key, _| demand.pods.contains_key(key));
        let nowhere = answer.refusals.keys().filter(|key| {
            let pod = demand.pods.get(*key);
            pod.is_some_and(|pod| buffers::buffer_of(pod).is_none())
        });
        self.count_unschedulable(nowhere.count());
        let avoiding = demand.pods.values().filter(|pod| avoids_pools(pod));
        let unplaceable = answer.plan.unplaceable.iter();
        let invalid = unplaceable.filter(|pod| pod.invalid.is_some());
        let ignored = avoiding.count() + invalid.count();
        self.karpenter
            .metrics
            .set(Metric::IgnoredPods, &[], ignored as f64);
        self.count_plan(&answer, &demand.pods);
        // Compares with the places of the plan before, so it must run before `places` is replaced.
        displaced::record_events(&self.karpenter, &self.places, &answer, &demand.pods);
        self.places = answer.plan.existing.iter().cloned().collect();
        for (number, planned) in orders.iter().enumerate() {
            let place = place_of_order(number);
            let pods = planned.pods.iter();
            self.places
                .extend(pods.map(|pod| (pod.clone(), place.clone())));
        }
        let is_real = |pod: &PodSpec| {
            let pod = demand.pods.get(&pod.key());
            pod.is_none_or(|pod| buffers::buffer_of(pod).is_none())
        };
        // Promised before anything is awaited: the scheduler goes on meanwhile, and would bind pods where the plan before had
        // them. Chunks of buffers are no pods that it could bind.
        let pods = std::mem::take(&mut demand.request.pods);
        self.promise(pods.into_iter().filter(is_real).collect(), orders.len());
        self.place_chunks(&answer, &demand.pods).await;
        self.nominate_existing(&answer, &demand.pods, &spans);
        self.record_refusals(&answer, &demand.pods, any_pool, &spans);
        // A failed order does not stop the others; its pods are planned again after ten seconds.
        for (number, planned) in orders.into_iter().enumerate() {
            let ordered = self.order(planned, &demand.pods, &spans, &pass).await;
            let claim = ordered.unwrap_or_else(|error| {
                pass.error("creating nodeclaim", &error);
                None
            });
            self.settle(&place_of_order(number), planned, claim);
        }
        true
    }

    /// Records which nodes hold chunks of CapacityBuffers, and updates the buffers' status.
    async fn place_chunks(&self, answer: &Answer, pods: &PodsByKey) {
        let buffer = |key: &String| {
            let (namespace, name) = buffers::buffer_of(pods.get(key)?)?;
            Some((namespace.to_owned(), name.to_owned()))
        };
        let mut placed: BTreeMap<_, buffers::ChunkPlacement> = BTreeMap::new();
        let mut hosts = BTreeSet::new();
        for (key, node) in &answer.plan.existing {
            if let Some(buffer) = buffer(key) {
                placed.entry(buffer).or_default().existing += 1;
                hosts.insert(node.clone());
            }
        }
        let bought = answer.plan.nodes.iter().flat_map(|node| &node.pods);
        for buffer in bought.filter_map(buffer) {
            placed.entry(buffer).or_default().bought += 1;
        }
        for buffer in answer.refusals.keys().filter_map(buffer) {
            placed.entry(buffer).or_default().unplaced += 1;
        }
        self.karpenter.chunks.host_on(hosts);
        buffers::write_placements(&self.karpenter, &placed).await;
    }

    /// Makes the scheduler keep the places of the plan, which also are those of `orders` nodes without a claim yet. The
    /// scheduler sees one pod at a time, while the plan considered all of them.
    fn promise(&self, pods: Vec<PodSpec>, orders: usize) {
        let nodes = &self.karpenter.base.informers.nodes;
        let ordered = (0..orders).map(|number| {
            let place = PlannedPlace {
                name: place_of_order(number),
                node: None,
                is_ready: false,
            };
            (place.name.clone(), place)
        });
        let mut places: BTreeMap<String, PlannedPlace> = ordered.collect();
        for claim in self.karpenter.claims.list() {
            if is_in_flight(&claim) {
                let place = PlannedPlace {
                    name: claim.name_any(),
                    node: claim.node_name().map(str::to_owned),
                    is_ready: false,
                };
                places.insert(place.name.clone(), place);
            }
        }
        let mut promises = Vec::with_capacity(pods.len());
        for pod in pods {
            let Some(planned) = self.places.get(&pod.key()) else {
                continue;
            };
            let node = nodes.get("", planned);
            let claim = node.as_ref().and_then(|node| self.karpenter.claim_of(node));
            // A place keeps the claim's name from the order on, also once its node exists under
            // another name.
            let place = claim.map_or_else(|| planned.clone(), |claim| claim.name_any());
            // Nodes that are already ready are not in flight, so they have to be named as places
            // here.
            if node.is_some() && !places.contains_key(&place) {
                let ready = PlannedPlace {
                    name: place.clone(),
                    node: Some(planned.clone()),
                    is_ready: true,
                };
                places.insert(place.clone(), ready);
            }
            promises.push(Promise { pod, place });
        }
        let places = places.into_values();
        self.karpenter
            .state
            .with(|state| state.promise(promises, places, Instant::now()));
    }

    /// Gives the pods of an order the claim that was created for them; they have no place if there is none.
    fn settle(&mut self, order: &str, planned: &PlannedNode, claim: Option<String>) {
        for pod in &planned.pods {
            match &claim {
                Some(claim) => self.places.insert(pod.clone(), claim.clone()),
                None => self.places.remove(pod),
            };
        }
        let claims = &self.karpenter.claims;
        let claim = claim.and_then(|name| claims.get("", &name));
        let stays = |claim: &Arc<NodeClaim>| claim.metadata.deletion_timestamp.is_none();
        let order = order.to_owned();
        let change = match claim.filter(stays) {
            Some(claim) => PlaceChange::Ordered {
                order,
                // A machine that boots at once may be ready by now.
                place: PlannedPlace {
                    name: claim.name_any(),
                    node: claim.node_name().map(str::to_owned),
                    is_ready: claim.is(node_claim_condition::INITIALIZED),
                },
            },
            None => PlaceChange::Gone(order),
        };
        self.karpenter
            .state
            .with(|state| state.change_place(&change, Instant::now()));
    }

    /// Creates the claim of a planned node and records its pods' nominations. Returns the claim's name, or nothing if the node
    /// is not to be bought after all.
    async fn order(
        &mut self,
        planned: &PlannedNode,
        pods: &PodsByKey,
        spans: &PlanSpans,
        pass: &Reconciliation,
    ) -> Result<Option<String>, kube::Error> {
        let began = self.karpenter.base.clock.now();
        let ordered = order::order(&self.karpenter, planned, PROVISIONED, pass).await?;
        let Some(created) = ordered else {
            return Ok(None);
        };
        let creation = (began, self.karpenter.base.clock.now());
        let name = created.name_any();
        let is_chunk = |key: &String| {
            let pod = pods.get(key);
            pod.is_some_and(|pod| buffers::buffer_of(pod).is_some())
        };
        // A node that holds only chunks is not nominated, so it may be consolidated like any other.
        if !planned.pods.iter().all(is_chunk) {
            self.karpenter.nominations.nominate(&name);
        }
        if planned.pods.iter().any(is_chunk) {
            self.karpenter.chunks.host_on_claim(name.clone());
        }
        for key in &planned.pods {
            let news = self.nominate(key, pods, &format!("nodeclaim/{name}"));
            if let Some(pod) = news {
                spans.bought(pod, planned, &created, creation);
            }
        }
        Ok(Some(name))
    }

    /// Records the nomination of pods that go to existing or in-flight nodes.
    fn nominate_existing(&mut self, answer: &Answer, pods: &PodsByKey, spans: &PlanSpans) {
        let mut by_node: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (key, node) in &answer.plan.existing {
            let pod = pods.get(key);
            if pod.is_none_or(|pod| buffers::buffer_of(pod).is_none()) {
                by_node.entry(node).or_default().push(key);
            }
        }
        for (name, keys) in by_node {
            // One nomination serves all pods of the node, but each pod gets its event (core:
            // `Results.Record`).
            let place = self.place(name);
            for key in keys {
                if let Some(pod) = self.nominate(key, pods, &place) {
                    spans.placed(pod, &place);
                }
            }
        }
    }

    /// Nominates a node and its claim, and returns both as text for the event.
    fn place(&self, name: &str) -> String {
        let node = self.karpenter.base.informers.nodes.get("", name);
        let claim = match &node {
            Some(node) => self.karpenter.claim_of(node),
            None => self.karpenter.claims.get("", name),
        };
        self.karpenter.nominations.nominate(name);
        let mut place = Vec::new();
        if let Some(claim) = claim {
            self.karpenter.nominations.nominate(&claim.name_any());
            place.push(format!("nodeclaim/{}", claim.name_any()));
        }
        if let Some(node) = node {
            place.push(format!("node/{}", node.name_any()));
        }
        place.join(", ")
    }

    /// Records the nomination of a pod for a place. Returns the pod unless the same was recorded lately, or it is a chunk.
    fn nominate<'p>(
        &mut self,
        key: &str,
        pods: &'p PodsByKey,
        place: &str,
    ) -> Option<&'p Arc<Pod>> {
        let message = format!("Pod should schedule on: {place}");
        let pod = pods
            .get(key)
            .filter(|pod| buffers::buffer_of(pod).is_none());
        let pod = pod.filter(|_| self.is_new_message(key, &message))?;
        self.karpenter.recorder.normal(&**pod, "Nominated", message);
        Some(pod)
    }

    /// Sets the metric for the number of pods for which no node can be bought.
    fn count_unschedulable(&self, pods: usize) {
        let labels = [("controller", CONTROLLER)];
        let metrics = &self.karpenter.metrics;
        metrics.set(Metric::UnschedulablePods, &labels, pods as f64);
    }

    /// Sets the metrics for the pods that have a place, and for the price of the plan.
    fn count_plan(&self, answer: &Answer, pods: &PodsByKey) {
        let (metrics, now) = (&self.karpenter.metrics, self.karpenter.base.clock.now());
        let unbound = pods.iter().filter(|(_, pod)| {
            pods::node_name(pod).is_empty() && buffers::buffer_of(pod).is_none()
        });
        for (key, pod) in unbound {
            metrics.decided(pod, !answer.refusals.contains_key(key), now);
        }
        if answer.plan.nodes.is_empty() {
            return;
        }
        // The bound is unknown for some plans; a gauge of the plan before would then look like this
        // plan's.
        for metric in [Metric::PlanPrice, Metric::PlanBound, Metric::PlanGap] {
            metrics.clear(metric);
        }
        let price = answer.plan.price_micro_usd() as f64;
        metrics.set(Metric::PlanPrice, &[], price / 1e6);
        if let Some(bound) = answer.plan.bound_micro_usd.filter(|bound| *bound > 0) {
            let bound = bound as f64;
            metrics.set(Metric::PlanBound, &[], bound / 1e6);
            metrics.set(
                Metric::PlanGap,
                &[],
                100.0 * (price - bound).max(0.0) / bound,
            );
        }
    }

    fn record_pools_without_types(&mut self, demand: &Demand, pass: &Reconciliation) {
        let now = Instant::now();
        self.recorded_for_pools
            .retain(|_, at| now.duration_since(*at) < REPEAT_TO_POOL);
        for name in pools::without_machines(demand.templates()) {
            pass.clone()
                .with_ref("NodePool", name)
                .info("skipping, nodepool requirements filtered out all instance types");
            let pool = self.karpenter.pools.get("", name);
            if let Some(pool) = pool.filter(|_| !self.recorded_for_pools.contains_key(name)) {
                self.recorded_for_pools.insert(name.to_owned(), now);
                self.karpenter.recorder.warning(
                    &*pool,
                    "NoCompatibleInstanceTypes",
                    "NodePool requirements filtered out all compatible available instance types",
                );
            }
        }
    }

    /// Records events on pods that have no place, with the reason. If there is no pool at all, the log has one line for all
    /// of them instead.
    fn record_refusals(
        &mut self,
        answer: &Answer,
        pods: &PodsByKey,
        any_pool: bool,
        spans: &PlanSpans,
    ) {
        for (key, why) in &answer.refusals {
            let message = format!("Failed to schedule pod, {why}");
            let pod = pods
                .get(key)
                .filter(|pod| buffers::buffer_of(pod).is_none());
            let Some(pod) = pod.filter(|_| self.is_new_message(key, &message)) else {
                continue;
            };
            spans.refused(pod, why);
            self.karpenter
                .recorder
                .warning(&**pod, "FailedScheduling", message);
            if !any_pool {
                continue;
            }
            let pod = json!({ "name": pod.name_any(), "namespace": pod.namespace() });
            self.karpenter
                .log
                .reconciliation(CONTROLLER)
                .with("Pod", pod)
                .error("could not schedule pod", why);
        }
    }

    /// Returns whether this message was not recorded for the pod lately, and remembers it.
    fn is_new_message(&mut self, key: &str, message: &str) -> bool {
        let now = Instant::now();
        let recorded = self.recorded.get(key);
        if recorded.is_some_and(|(last, at)| last == message && now - *at < REPEAT) {
            return false;
        }
        self.recorded
            .insert(key.to_owned(), (message.to_owned(), now));
        true
    }
}

fn names<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> Vec<String> {
    let name = |pod: &Arc<Pod>| {
        let namespace = pod.meta().namespace.as_deref().unwrap_or_default();
        format!("{namespace}/{}", pod.name_any())
    };
    pods.map(name).collect()
}
