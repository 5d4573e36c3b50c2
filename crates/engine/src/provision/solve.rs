//! The plan: pods are placed one by one, as Karpenter does, or, where the request asks for it, in the cheapest of several ways
//! ([`super::cheapest`]).
//!
//! Pods that found no place are tried again as long as others did: one may have waited for another to be near.
//! Invariant: the cluster is as before when a plan is returned, whatever it says.

use std::cmp::Reverse;
use std::sync::Arc;

use fixedbitset::FixedBitSet;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId};
use crate::error::ModelError;
use crate::intern::Symbol;
use crate::model::{NodeSpec, PodSpec};
use crate::reason::Plugin;
use crate::resources::Amounts;

use super::catalog::Catalog;
use super::claim::{Claim, Lists, Topology};
use super::limit::Limits;
use super::preferences::Preferences;
use super::reservations::Reservations;
use super::{
    InFlightNode, Plan, PlanRequest, PlannedNode, PoolReason, PoolRefusal, PreferencePolicy,
    Unplaceable,
};

/// Names of nodes that are only thought of; no real node's name has a slash.
pub(super) const PLANNED: &str = "planned/";

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
    let catalogs = compile(request, cluster)?;
    let keys: Vec<String> = request.pods.iter().map(PodSpec::key).collect();
    let mut plan = Plan::default();
    let pending = queue(cluster, &request.pods, &keys, &mut plan);
    let mut solver = Solver::new(cluster, catalogs, &keys, request.seed);
    solver.wants_bound = true;
    solver.effort = request.effort.unwrap_or(PlanRequest::EFFORT);
    solver.preferences = Preferences::of(request);
    solver.reservations.policy = request.reserved;
    let pending = solver.with_preferences(&pending);
    let nodes: Vec<NodeId> = solver.cluster.nodes().collect();
    solver.add_hosts(&pending);
    let mut existing = Vec::new();
    let best = if request.by_cost {
        solver.cheapest(&pending, &nodes)
    } else {
        let rest = solver.place_on_nodes(&pending, &mut existing);
        solver.attempt(&rest, Way::OneByOne)
    };
    plan.existing = existing;
    plan.existing.extend(best.existing);
    plan.nodes = best.nodes;
    plan.unplaceable.extend(best.unplaceable);
    plan.bound_micro_usd = best.bound.filter(|_| plan.unplaceable.is_empty());
    Ok(plan)
}

/// The pools, in the order in which they are asked.
///
/// # Errors
/// A pool offers an amount below zero.
pub(super) fn compile(
    request: &PlanRequest,
    cluster: &mut Cluster,
) -> Result<Vec<Catalog>, ModelError> {
    let mut catalogs = Vec::with_capacity(request.templates.len());
    for template in &request.templates {
        catalogs.push(Catalog::compile(template, request, cluster)?);
    }
    catalogs.sort_by(|a, b| (Reverse(a.weight), &a.pool).cmp(&(Reverse(b.weight), &b.pool)));
    Ok(catalogs)
}

/// How pods are placed.
#[derive(Clone, Copy)]
pub(super) enum Way<'a> {
    /// One by one, as Karpenter does.
    OneByOne,
    /// By cost, with these nodes that are there.
    Packed(&'a [NodeId]),
}

/// A way to place all pending pods.
pub(super) struct Attempt {
    pub(super) existing: Vec<(String, String)>,
    pub(super) nodes: Vec<PlannedNode>,
    pub(super) unplaceable: Vec<Unplaceable>,
    /// Micro-dollars an hour, each node as its cheapest option. `u64::MAX` where a pool's demand for a choice of types keeps lists from
    /// being cut below the ceiling.
    pub(super) price: u64,
    /// Pods that were not packed in numbers.
    pub(super) placed_one_by_one: usize,
    /// All pods that nodes are bought for cost at least this: micro-dollars an hour.
    pub(super) bound: Option<u64>,
}

impl Attempt {
    /// Whether pods have no place.
    pub(super) fn is_open(&self) -> bool {
        !self.unplaceable.is_empty()
    }

    /// The better of this and another way: who places all that the other places, and then is cheaper.
    pub(super) fn or(self, other: Attempt) -> Attempt {
        let without: FxHashSet<&str> = other
            .unplaceable
            .iter()
            .map(|pod| pod.pod.as_str())
            .collect();
        let places_all = self
            .unplaceable
            .iter()
            .all(|pod| without.contains(pod.pod.as_str()));
        let places_more = self.unplaceable.len() < other.unplaceable.len();
        match places_all && (places_more || self.price <= other.price) {
            true => self,
            false => other,
        }
    }
}

/// A pending pod.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    /// Its place among the request's pods.
    pub(super) index: u32,
    /// The class that it is looked at as where nodes are bought: its own, or one that demands what it prefers.
    pub(super) class: PodClassId,
    /// The class that it is.
    pub(super) own: PodClassId,
}

impl Pending {
    /// A pod that is looked at as what it is.
    pub(super) fn new(index: u32, own: PodClassId) -> Self {
        Pending {
            index,
            class: own,
            own,
        }
    }
}

/// Largest first, by cpu, then memory, then key, numbers at its end as numbers.
fn queue(
    cluster: &mut Cluster,
    pods: &[PodSpec],
    keys: &[String],
    plan: &mut Plan,
) -> Vec<Pending> {
    let mut pending = Vec::with_capacity(pods.len());
    for (index, pod) in pods.iter().enumerate() {
        match cluster.pod_class(&pod.template) {
            Ok(class) => pending.push(Pending::new(index as u32, class)),
            Err(invalid) => {
                plan.unplaceable.push(Unplaceable {
                    pod: keys[index].clone(),
                    invalid: Some(invalid),
                    pools: Arc::default(),
                });
            }
        }
    }
    put_in_order(cluster, &mut pending, keys);
    pending
}

/// Puts the largest first.
pub(super) fn put_in_order(cluster: &Cluster, pending: &mut [Pending], keys: &[String]) {
    pending.sort_by_cached_key(|pod| {
        let requests = &cluster.class(pod.class).shape.requests.real;
        let size = Reverse((requests.cpu_milli, requests.memory_bytes));
        (size, numbered(&keys[pod.index as usize]))
    });
}

/// A name without the digits at its end, and their number; `web-2` comes before `web-10`.
fn numbered(key: &str) -> (&str, u64, &str) {
    let name = key.trim_end_matches(|c: char| c.is_ascii_digit());
    (name, key[name.len()..].parse().unwrap_or(0), key)
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

pub(super) struct Solver<'a> {
    pub(super) cluster: &'a mut Cluster,
    pub(super) catalogs: Vec<Catalog>,
    /// Keys of the request's pods.
    pub(super) keys: &'a [String],
    pub(super) claims: Vec<Claim>,
    /// Claims that have no room for a class any more; a claim only ever loses options.
    closed: FxHashMap<PodClassId, FixedBitSet>,
    topologies: FxHashMap<PodClassId, Topology>,
    /// How many pods were planned when the nodes of a pool were last tightened.
    tightened: FxHashMap<usize, usize>,
    seed: u64,
    /// So many items are looked at in search of a cheaper packing.
    pub(super) effort: u64,
    /// Whether the plan says what all nodes cost at least.
    pub(super) wants_bound: bool,
    /// What all nodes may cost together: where they cost less, each lists what it may be up to its share of it.
    pub(super) ceiling: Option<u64>,
    pub(super) preferences: Preferences,
    pub(super) reservations: Reservations,
}

impl<'a> Solver<'a> {
    /// A solver without claims. `keys` are those of the pods it will be asked about.
    pub(super) fn new(
        cluster: &'a mut Cluster,
        catalogs: Vec<Catalog>,
        keys: &'a [String],
        seed: u64,
    ) -> Self {
        Solver {
            cluster,
            reservations: Reservations::of(&catalogs),
            catalogs,
            keys,
            claims: Vec::new(),
            closed: FxHashMap::default(),
            topologies: FxHashMap::default(),
            tightened: FxHashMap::default(),
            seed,
            effort: PlanRequest::EFFORT,
            wants_bound: false,
            ceiling: None,
            preferences: Preferences::default(),
        }
    }
}

impl Solver<'_> {
    /// Places pending pods on nodes that are there, where the scheduler would. Gives the others.
    pub(super) fn place_on_nodes(
        &mut self,
        pending: &[Pending],
        placed: &mut Vec<(String, String)>,
    ) -> Vec<Pending> {
        // No node has more than this.
        let mut most = Amounts::default();
        for node in self.cluster.nodes() {
            let there = self.cluster.at(node);
            let mut free = there.fixed.allocatable.clone();
            free.subtract(&there.used);
            most.maximize(&free);
        }
        let place = |solver: &mut Self, pod: &Pending| {
            let shape = &solver.cluster.class(pod.class).shape;
            let wanted = shape.demands();
            let is_large = wanted.cpu_milli > most.cpu_milli.max(0)
                || wanted.memory_bytes > most.memory_bytes.max(0);
            let fits_by_size = solver
                .cluster
                .rules(shape.profile)
                .filters(Plugin::NodeResourcesFit);
            !(is_large && fits_by_size) && solver.place_on_existing(pod, placed)
        };
        // A pod may use room that is held for it, which others of its class may not.
        match self.cluster.holds_room() {
            true => self.until_settled(pending.to_vec(), place),
            false => self.until_settled_by_class(pending.to_vec(), place),
        }
    }

    /// Places all pending pods on planned nodes and takes everything back.
    pub(super) fn attempt(&mut self, pending: &[Pending], way: Way<'_>) -> Attempt {
        let checkpoint = self.cluster.checkpoint();
        let limits: Vec<Limits> = self
            .catalogs
            .iter()
            .map(|catalog| catalog.limits.clone())
            .collect();
        let reservations = self.reservations.clone();
        self.add_places(pending);
        let mut existing = Vec::new();
        let (pending, bound) = match way {
            Way::OneByOne => (pending.to_vec(), None),
            Way::Packed(nodes) => {
                let (rest, bound) = self.pack_reserved_first(pending, nodes, &mut existing);
                match nodes.is_empty() {
                    true => (rest, bound),
                    false => (self.place_on_nodes(&rest, &mut existing), None),
                }
            }
        };
        let placed_one_by_one = pending.len();
        let mut pending = self.until_settled_by_class(pending, Solver::place_on_planned);
        let mut unplaceable = Vec::with_capacity(pending.len());
        // Who waits may have what it prefers later.
        self.take_waiting(&mut pending, &mut unplaceable);
        while self.give_up_one(&mut pending) {
            pending = self.until_settled_by_class(pending, Solver::place_on_planned);
            self.take_waiting(&mut pending, &mut unplaceable);
        }
        let mut refusals: FxHashMap<PodClassId, Arc<[PoolRefusal]>> = FxHashMap::default();
        for pod in pending {
            let known = refusals.entry(pod.class);
            let pools = known.or_insert_with(|| self.refusals(&pod).into());
            unplaceable.push(Unplaceable {
                pod: self.keys[pod.index as usize].clone(),
                invalid: None,
                pools: Arc::clone(pools),
            });
        }
        let mut claims = std::mem::take(&mut self.claims);
        claims.retain(|claim| !claim.pods.is_empty());
        let is_cut = self.cut_lists(&mut claims);
        let mut price = if is_cut { 0 } else { u64::MAX };
        let mut nodes = Vec::with_capacity(claims.len());
        let mut lists = Lists::default();
        for claim in claims {
            let catalog = &self.catalogs[claim.catalog];
            price = price.saturating_add(claim.price(catalog));
            nodes.push(claim.describe(catalog, self.keys, &mut lists, self.cluster));
        }
        self.cluster.rollback(checkpoint);
        for (catalog, limits) in self.catalogs.iter_mut().zip(limits) {
            catalog.limits = limits;
        }
        self.reservations = reservations;
        self.closed.clear();
        self.tightened.clear();
        Attempt {
            existing,
            nodes,
            unplaceable,
            price,
            placed_one_by_one,
            bound,
        }
    }

    /// Takes from the lists of planned nodes what would cost more than the ceiling allows, if they cost no more as they are. `false` if a pool
    /// demands a choice that is not there then.
    fn cut_lists(&self, claims: &mut [Claim]) -> bool {
        let Some(ceiling) = self.ceiling else {
            return true;
        };
        let prices: Vec<u64> = claims
            .iter()
            .map(|claim| claim.price(&self.catalogs[claim.catalog]))
            .collect();
        let sum: u64 = prices.iter().sum();
        if sum == 0 || sum > ceiling {
            return true;
        }
        claims.iter_mut().zip(prices).all(|(claim, price)| {
            let share = u128::from(price) * u128::from(ceiling) / u128::from(sum);
            claim.cut(share as u64, &self.catalogs[claim.catalog], self.cluster)
        })
    }

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
        let key = &self.keys[pod.index as usize];
        let Some(node) = self.cluster.best_node(pod.own, key, self.seed) else {
            return false;
        };
        if self.claims.iter().any(|claim| claim.node == node) {
            // It is planned only, and joined as such.
            return false;
        }
        // Karpenter: where something was promised twice nothing more goes.
        let mut free = self.cluster.at(node).fixed.allocatable.clone();
        free.subtract(&self.cluster.at(node).used);
        if free.is_overdrawn() {
            return false;
        }
        self.cluster.load_logged(pod.own, node);
        placed.push((key.clone(), self.cluster.node_name(node).to_owned()));
        true
    }

    /// Spread preferences are demands at first: a node that does not exist yet can be anywhere.
    fn place_on_planned(&mut self, pod: &Pending) -> bool {
        let topology = self.topology(pod.class);
        let relaxed = Topology {
            strict: false,
            ..topology.clone()
        };
        let prefers = topology.strict && self.preferences.policy != PreferencePolicy::Ignore;
        self.reservations.waiting.remove(&pod.class);
        if prefers && self.place_with(pod, &topology) {
            return true;
        }
        !self.reservations.waiting.contains_key(&pod.class) && self.place_with(pod, &relaxed)
    }

    fn place_with(&mut self, pod: &Pending, topology: &Topology) -> bool {
        let closed = self.closed.get(&pod.class);
        let open = |claim: &usize| closed.is_none_or(|closed| !closed.contains(*claim));
        let mut order: Vec<_> = (0..self.claims.len()).filter(open).collect();
        order.sort_by_key(|claim| self.claims[*claim].pods.len());
        for index in order {
            let claim = &mut self.claims[index];
            let catalog = &mut self.catalogs[claim.catalog];
            match claim.add(*pod, catalog, topology, self.cluster) {
                Ok(()) => {
                    self.release(index);
                    return true;
                }
                Err(PoolReason::Topology { .. }) => {}
                Err(_) => self
                    .closed
                    .entry(pod.class)
                    .or_default()
                    .grow_and_insert(index),
            }
        }
        for catalog in 0..self.catalogs.len() {
            match self.open(catalog, pod, topology) {
                Ok(()) => return true,
                // Karpenter: no pool of lower weight is asked then.
                Err(PoolReason::ReservationHeld) => {
                    self.reservations.waiting.insert(pod.class, catalog);
                    return false;
                }
                Err(_) => {}
            }
        }
        false
    }

    pub(super) fn topology(&mut self, class: PodClassId) -> Topology {
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
        self.reservations.leave_out(&mut options, catalog);
        let name = format!("{PLANNED}{}", self.claims.len());
        // Without an offering to be had, find out whether that is what is missing.
        let sold_out = options.is_clear();
        let from = if sold_out { within } else { options };
        let checkpoint = self.cluster.checkpoint();
        let claim = Claim::open((index, catalog), from, &name, self.cluster);
        let mut claim = claim.ok_or(PoolReason::NoInstanceTypes)?;
        let added = claim.add(*pod, catalog, topology, self.cluster);
        let added = match sold_out {
            true => added.and(Err(PoolReason::NoOffering)),
            false => added.and_then(|()| self.reservations.hold(&mut claim, catalog, self.cluster)),
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
            self.reservations.release(claim, catalog);
        }
        planned > 0
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
        match catalog.limits.broken_by(&catalog.type_of(option).capacity) {
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
pub(super) fn reserve(claim: &mut Claim, catalog: &mut Catalog) {
    if catalog.limits.is_unlimited() {
        return;
    }
    let capacities = claim
        .options
        .ones()
        .map(|option| &catalog.type_of(option).capacity);
    claim.reserved = catalog.limits.largest(capacities);
    catalog.limits.take(&claim.reserved);
}
