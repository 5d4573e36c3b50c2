//! The algorithm: largest pods first; nodes that exist, then planned nodes with the fewest pods, then a new node of
//! the first pool that can.
//!
//! Pods that found no place are tried again as long as others did: one may have waited for another to be near.
//! Invariant: the cluster is as before when a plan is returned, whatever it says.

use std::cmp::Reverse;
use std::sync::Arc;

use fixedbitset::FixedBitSet;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::class::PodClassId;
use crate::cluster::Cluster;
use crate::error::ModelError;
use crate::intern::Symbol;
use crate::model::{NodeSpec, PodSpec};
use crate::resources::Amounts;

use super::catalog::Catalog;
use super::claim::{Claim, Topology};
use super::{InFlightNode, Plan, PlanRequest, PoolReason, PoolRefusal, Unplaceable};

/// Names of nodes that are only thought of; no real node's name has a slash.
const PLANNED: &str = "planned/";
const PLACE: &str = "place/";

impl Cluster {
    /// What to buy so that all pending pods have a place, and which go to nodes that exist or are on their way.
    /// The cluster is as before when this returns.
    ///
    /// # Errors
    /// A pool or in-flight node offers a negative amount. An impossible pod is told in the plan instead.
    pub fn plan(&mut self, request: &PlanRequest) -> Result<Plan, ModelError> {
        let checkpoint = self.checkpoint();
        let plan = solve(self, request);
        self.rollback(checkpoint);
        plan
    }
}

fn solve(cluster: &mut Cluster, request: &PlanRequest) -> Result<Plan, ModelError> {
    for node in &request.in_flight {
        add_in_flight(cluster, node)?;
    }
    let mut catalogs = Vec::with_capacity(request.templates.len());
    for template in &request.templates {
        catalogs.push(Catalog::compile(template, cluster)?);
    }
    catalogs.sort_by(|a, b| (Reverse(a.weight), &a.pool).cmp(&(Reverse(b.weight), &b.pool)));
    let mut plan = Plan::default();
    let pending = queue(cluster, &request.pods, &mut plan);
    let mut solver = Solver {
        cluster,
        catalogs,
        claims: Vec::new(),
        closed: FxHashMap::default(),
        topologies: FxHashMap::default(),
        tightened: FxHashMap::default(),
        seed: request.seed,
    };
    let existing = &mut plan.existing;
    let on_existing =
        |solver: &mut Solver<'_>, pod: &Pending| solver.place_on_existing(pod, existing);
    // A pod may use room that is held for it, which others of its class may not.
    let pending = if solver.cluster.holds_room() {
        solver.until_settled(pending, on_existing)
    } else {
        solver.until_settled_by_class(pending, on_existing)
    };
    let places = solver.add_places(&pending);
    let pending = solver.until_settled_by_class(pending, Solver::place_on_planned);
    for place in places {
        let removed = solver.cluster.remove_node(&place);
        debug_assert!(removed.is_ok(), "places were added above");
    }
    // Places that no node came to hold back spreading no more.
    let pending = solver.until_settled_by_class(pending, Solver::place_on_planned);
    let mut refusals: FxHashMap<PodClassId, Arc<[PoolRefusal]>> = FxHashMap::default();
    for pod in pending {
        let known = refusals.entry(pod.class);
        let pools = known.or_insert_with(|| solver.refusals(&pod).into());
        let pools = Arc::clone(pools);
        plan.unplaceable.push(Unplaceable {
            pod: pod.key,
            invalid: None,
            pools,
        });
    }
    for claim in &solver.claims {
        plan.nodes
            .push(claim.describe(&solver.catalogs[claim.catalog], solver.cluster));
    }
    Ok(plan)
}

/// A pending pod.
struct Pending {
    key: String,
    class: PodClassId,
}

/// Largest first, by cpu, then memory, then key.
fn queue(cluster: &mut Cluster, pods: &[PodSpec], plan: &mut Plan) -> Vec<Pending> {
    let mut pending = Vec::with_capacity(pods.len());
    for pod in pods {
        match cluster.pod_class(&pod.template) {
            Ok(class) => pending.push(Pending {
                key: pod.key(),
                class,
            }),
            Err(invalid) => {
                plan.unplaceable.push(Unplaceable {
                    pod: pod.key(),
                    invalid: Some(invalid),
                    pools: Arc::default(),
                });
            }
        }
    }
    pending.sort_by(|a, b| {
        let size = |pod: &Pending| {
            let requests = &cluster.class(pod.class).shape.requests.real;
            Reverse((requests.cpu_milli, requests.memory_bytes))
        };
        size(a).cmp(&size(b)).then_with(|| a.key.cmp(&b.key))
    });
    pending
}

fn add_in_flight(cluster: &mut Cluster, in_flight: &InFlightNode) -> Result<(), ModelError> {
    let mut node: NodeSpec = in_flight.node.clone();
    if node.allocatable.is_empty() {
        node.allocatable = node.capacity.clone();
    }
    for (name, amount) in &mut node.allocatable {
        if let Some(taken) = in_flight.daemon_overhead.get(name) {
            *amount = amount.saturating_sub(*taken).max(Default::default());
        }
    }
    cluster.set_node(&node)?;
    for pod in &in_flight.pods {
        match cluster.bind(pod, &node.name) {
            // It was bound meanwhile, there or elsewhere.
            Ok(()) | Err(ModelError::DuplicatePod(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

struct Solver<'a> {
    cluster: &'a mut Cluster,
    catalogs: Vec<Catalog>,
    claims: Vec<Claim>,
    /// Claims that have no room for a class any more; a claim only ever loses options.
    closed: FxHashMap<PodClassId, FixedBitSet>,
    topologies: FxHashMap<PodClassId, Topology>,
    /// How many pods were planned when the nodes of a pool were last tightened.
    tightened: FxHashMap<usize, usize>,
    seed: u64,
}

impl Solver<'_> {
    /// As [`Solver::until_settled`], where pods of a class are alike: once one found no place, the others need not be tried
    /// before something else was placed.
    fn until_settled_by_class(
        &mut self,
        pending: Vec<Pending>,
        mut place: impl FnMut(&mut Self, &Pending) -> bool,
    ) -> Vec<Pending> {
        let mut refused = FxHashSet::default();
        self.until_settled(pending, |solver, pod| {
            if refused.contains(&pod.class) {
                return false;
            }
            let placed = place(solver, pod);
            if placed {
                refused.clear();
            } else {
                refused.insert(pod.class);
            }
            placed
        })
    }

    /// Tries all pods again and again until none more finds a place; gives those that did not.
    fn until_settled(
        &mut self,
        mut pending: Vec<Pending>,
        mut place: impl FnMut(&mut Self, &Pending) -> bool,
    ) -> Vec<Pending> {
        loop {
            let before = pending.len();
            pending.retain(|pod| !place(self, pod));
            if pending.is_empty() || pending.len() == before {
                return pending;
            }
        }
    }

    /// Nothing that is only thought of is in the cluster yet, so the scheduler's own choice is the answer.
    fn place_on_existing(&mut self, pod: &Pending, placed: &mut Vec<(String, String)>) -> bool {
        let Some(node) = self.cluster.best_node(pod.class, &pod.key, self.seed) else {
            return false;
        };
        self.cluster.load_logged(pod.class, node);
        placed.push((pod.key.clone(), self.cluster.node_name(node).to_owned()));
        true
    }

    /// Spread preferences are demands at first: a node that does not exist yet can be anywhere.
    fn place_on_planned(&mut self, pod: &Pending) -> bool {
        let topology = self.topology(pod.class);
        let relaxed = Topology {
            strict: false,
            ..topology.clone()
        };
        (topology.strict && self.place_with(pod, &topology)) || self.place_with(pod, &relaxed)
    }

    fn place_with(&mut self, pod: &Pending, topology: &Topology) -> bool {
        let closed = self.closed.get(&pod.class);
        let open = |claim: &usize| closed.is_none_or(|closed| !closed.contains(*claim));
        let mut order: Vec<_> = (0..self.claims.len()).filter(open).collect();
        order.sort_by_key(|claim| self.claims[*claim].pods.len());
        for index in order {
            let claim = &mut self.claims[index];
            let catalog = &mut self.catalogs[claim.catalog];
            match claim.add(&pod.key, pod.class, catalog, topology, self.cluster) {
                Ok(()) => return true,
                Err(PoolReason::Topology { .. }) => {}
                Err(_) => self
                    .closed
                    .entry(pod.class)
                    .or_default()
                    .grow_and_insert(index),
            }
        }
        (0..self.catalogs.len()).any(|catalog| self.open(catalog, pod, topology).is_ok())
    }

    fn topology(&mut self, class: PodClassId) -> Topology {
        if let Some(topology) = self.topologies.get(&class) {
            return topology.clone();
        }
        let mut topology = Topology {
            keys: self.cluster.sensitive_keys(class),
            strict: false,
        };
        let view = self.cluster.question(class).view;
        for counts in view
            .soft
            .iter()
            .filter(|counts| view.soft_declared && counts.rule.key != Symbol::HOSTNAME)
        {
            topology.strict = true;
            topology.keys.push(counts.rule.key);
        }
        topology.keys.sort_unstable();
        topology.keys.dedup();
        self.topologies.insert(class, topology.clone());
        topology
    }

    /// Plans a new node of a pool for a pod.
    fn open(&mut self, index: usize, pod: &Pending, topology: &Topology) -> Result<(), PoolReason> {
        match self.try_open(index, pod, topology) {
            Err(PoolReason::LimitReached { .. }) if self.tighten(index) => {
                self.try_open(index, pod, topology)
            }
            outcome => outcome,
        }
    }

    fn try_open(
        &mut self,
        index: usize,
        pod: &Pending,
        topology: &Topology,
    ) -> Result<(), PoolReason> {
        let catalog = &mut self.catalogs[index];
        if catalog.options.is_empty() {
            return Err(PoolReason::NoInstanceTypes);
        }
        let verdicts = catalog.verdicts(pod.class, self.cluster).clone();
        if let (true, Some((plugin, reason))) = (verdicts.fits.is_clear(), verdicts.refusal) {
            return Err(PoolReason::Incompatible { plugin, reason });
        }
        let fits = verdicts.fits.clone();
        let within = within_limits(catalog, verdicts.fits)?;
        let mut options = within.clone();
        options.intersect_with(&catalog.available);
        let name = format!("{PLANNED}{}", self.claims.len());
        // Without an offering to be had, find out whether that is what is missing.
        let sold_out = options.is_clear();
        let from = if sold_out { within } else { options };
        let checkpoint = self.cluster.checkpoint();
        let claim = Claim::open((index, catalog), from, &name, self.cluster);
        let mut claim = claim.ok_or(PoolReason::NoInstanceTypes)?;
        let added = claim.add(&pod.key, pod.class, catalog, topology, self.cluster);
        let added = if sold_out {
            added.and(Err(PoolReason::NoOffering))
        } else {
            added
        };
        if let Err(mut reason) = added {
            if let PoolReason::TooLarge { .. } = reason {
                let limit = claim.limit_in_the_way(&fits, pod.class, catalog, self.cluster);
                reason = limit.unwrap_or(reason);
            }
            self.cluster.rollback(checkpoint);
            return Err(reason);
        }
        self.cluster.commit(checkpoint);
        reserve(&mut claim, catalog);
        self.claims.push(claim);
        Ok(())
    }

    /// Makes the planned nodes of a pool no larger than they need be, to free what is set aside of its limits.
    /// Whether there was anything to do: they stay as they are until another pod is planned.
    fn tighten(&mut self, index: usize) -> bool {
        let planned = self.claims.iter().map(|claim| claim.pods.len()).sum();
        if self.tightened.insert(index, planned) == Some(planned) {
            return false;
        }
        let catalog = &mut self.catalogs[index];
        for claim in self
            .claims
            .iter_mut()
            .filter(|claim| claim.catalog == index)
        {
            claim.tighten(catalog);
            catalog.limits.give_back(&claim.reserved);
            reserve(claim, catalog);
        }
        planned > 0
    }

    /// Lets the places that pools can buy in count as places, empty as they are, for pods that must be spread.
    /// Gives the names of the nodes added for it.
    fn add_places(&mut self, pending: &[Pending]) -> Vec<String> {
        let mut keys: Vec<Symbol> = Vec::new();
        for pod in pending {
            let question = self.cluster.question(pod.class);
            let view = question.view;
            let soft = view.soft.iter().filter(|_| view.soft_declared);
            keys.extend(view.hard.iter().chain(soft).map(|counts| counts.rule.key));
        }
        keys.sort_unstable();
        keys.dedup();
        keys.retain(|key| *key != Symbol::HOSTNAME);
        let mut names = Vec::new();
        for catalog in &self.catalogs {
            let mut seen: Vec<(Symbol, Symbol)> = Vec::new();
            for option in catalog.available.ones() {
                let labels = &catalog.options[option].labels;
                let new: Vec<_> = keys
                    .iter()
                    .filter_map(|key| Some((*key, labels.value(*key)?)))
                    .filter(|place| !seen.contains(place))
                    .collect();
                if !new.is_empty() {
                    seen.extend(new);
                    let name = format!("{PLACE}{}", names.len());
                    self.cluster
                        .add_virtual(&name, labels, &catalog.taints, Amounts::default());
                    names.push(name);
                }
            }
        }
        names
    }

    /// Why no pool can buy for a pod.
    fn refusals(&mut self, pod: &Pending) -> Vec<PoolRefusal> {
        let topology = Topology {
            strict: false,
            ..self.topology(pod.class)
        };
        let mut refusals = Vec::with_capacity(self.catalogs.len());
        for index in 0..self.catalogs.len() {
            if let Err(reason) = self.try_open(index, pod, &topology) {
                refusals.push(PoolRefusal {
                    pool: self.catalogs[index].pool.clone(),
                    reason,
                });
            }
        }
        refusals
    }
}

fn within_limits(catalog: &Catalog, options: FixedBitSet) -> Result<FixedBitSet, PoolReason> {
    if catalog.limits.is_unlimited() {
        return Ok(options);
    }
    let mut broken = None;
    let mut within = FixedBitSet::with_capacity(options.len());
    for option in options.ones() {
        match catalog
            .limits
            .broken_by(&catalog.type_of(option).spec.capacity)
        {
            None => within.insert(option),
            Some(reason) => broken = broken.or(Some(reason)),
        }
    }
    match broken {
        Some(reason) if within.is_clear() => Err(reason),
        _ => Ok(within),
    }
}

/// Sets aside what the largest machine the claim can become takes of the pool's limits.
fn reserve(claim: &mut Claim, catalog: &mut Catalog) {
    if catalog.limits.is_unlimited() {
        return;
    }
    let capacities = claim
        .options
        .ones()
        .map(|option| &catalog.type_of(option).spec.capacity);
    claim.reserved = catalog.limits.largest(capacities);
    catalog.limits.take(&claim.reserved);
}
